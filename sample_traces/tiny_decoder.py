"""A small decoder-only transformer with a KV cache and random weights: the workload of the sample captures.

Plain torch, no annotations and no profiler inside, so that a capture tool has something honest to look at:

    diagnose capture torch -- sample_traces/tiny_decoder.py --batch 8
    python sample_traces/tiny_decoder.py --dtype bf16 --steps 20     # prints the step times itself

Runs on the CPU, or on a CUDA or ROCm GPU with `--device cuda`. One process does one prefill of `--prompt`
tokens and then `--steps` decode steps, `--repeat` times over. Deliberate faults can be switched on:
`--host-ms` spends that much Python time between steps (as a slow detokeniser does), `--unfused` spells
norm, rotary and activation as many small operators, `--sync` reads every new token back to the host inside
the step.
"""

import argparse
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DTYPES |= {"int8": torch.bfloat16, "fp8": torch.bfloat16}  # of the activations


@dataclass
class Config:
    """Architecture numbers under the names of a Hugging Face `config.json`."""

    hidden_size: int = 1024
    intermediate_size: int = 2816
    num_hidden_layers: int = 4
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    vocab_size: int = 8192
    max_position_embeddings: int = 4096
    torch_dtype: str = "bfloat16"
    model_type: str = "llama"
    tie_word_embeddings: bool = False
    quantization_config: dict[str, Any] | None = None

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def to_dict(self) -> dict[str, Any]:
        """The numbers as a plain dictionary, without what is unset."""
        values = {**self.__dict__, "head_dim": self.head_dim}
        return {k: v for k, v in values.items() if v is not None}


class Int8Linear(nn.Module):
    """A weight-only int8 linear layer: one scale an output row, bf16 activations.

    On the CPU this is torch's packed kernel (1 byte a weight from memory). Elsewhere the weights are
    widened before an ordinary matrix product, which reads and writes them again: a quantised model that is
    not faster.
    """

    def __init__(self, out_features: int, in_features: int, device: torch.device) -> None:
        super().__init__()
        shape = (out_features, in_features)
        weight = torch.randint(-127, 128, shape, dtype=torch.int8, device=device)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", torch.full((out_features,), 3e-4, dtype=torch.bfloat16, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)."""
        flat = x.reshape(-1, x.shape[-1])
        if x.device.type == "cpu":
            out = torch._weight_int8pack_mm(flat, self.weight, self.scale)
        else:
            out = flat @ (self.weight.to(flat.dtype) * self.scale[:, None]).t()
        return out.reshape(*x.shape[:-1], -1)


class Fp8Linear(nn.Module):
    """A linear layer with fp8 weights on a GPU; activations are scaled by their largest value and rounded to fp8."""

    def __init__(self, out_features: int, in_features: int, device: torch.device) -> None:
        super().__init__()
        weight = torch.randn(out_features, in_features, device=device).clamp(-4, 4).to(torch.float8_e4m3fn)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", torch.full((), in_features**-0.5, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """x (..., in) -> (..., out)."""
        flat = x.reshape(-1, x.shape[-1])
        scale = flat.abs().amax().float().clamp(min=1e-6) / 448.0
        narrow = (flat / scale).to(torch.float8_e4m3fn)
        out = torch._scaled_mm(narrow, self.weight.t(), scale, self.scale, out_dtype=x.dtype)
        return out.reshape(*x.shape[:-1], -1)


def linear(out_features: int, in_features: int, dtype: str, device: torch.device) -> nn.Module:
    """A linear layer without bias in the wanted storage format, random weights."""
    if dtype == "int8":
        return Int8Linear(out_features, in_features, device)
    if dtype == "fp8":
        return Fp8Linear(out_features, in_features, device)
    layer = nn.Linear(in_features, out_features, bias=False, device=device, dtype=DTYPES[dtype])
    nn.init.normal_(layer.weight, std=in_features**-0.5)
    return layer


class Norm(nn.Module):
    """RMS norm over the last dimension; `unfused` spells it as six operators."""

    def __init__(self, size: int, unfused: bool, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype, device=device))
        self.unfused = unfused

    def forward(self, x: Tensor) -> Tensor:
        """x (..., size) -> same shape."""
        if not self.unfused:
            return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)
        wide = x.float()
        variance = wide.pow(2).mean(-1, keepdim=True)
        return (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype) * self.weight


class Block(nn.Module):
    """Attention and gated feed-forward with their norms."""

    def __init__(self, config: Config, dtype: str, unfused: bool, device: torch.device) -> None:
        super().__init__()
        c, kv = config, config.num_key_value_heads * config.head_dim
        compute = DTYPES[dtype]
        self.config, self.unfused = config, unfused
        self.norm1 = Norm(c.hidden_size, unfused, compute, device)
        self.norm2 = Norm(c.hidden_size, unfused, compute, device)
        self.qkv = linear(c.hidden_size + 2 * kv, c.hidden_size, dtype, device)
        self.out = linear(c.hidden_size, c.hidden_size, dtype, device)
        self.gate_up = linear(2 * c.intermediate_size, c.hidden_size, dtype, device)
        self.down = linear(c.hidden_size, c.intermediate_size, dtype, device)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotary position embedding of x (batch, heads, tokens, head_dim)."""
        first, second = x.chunk(2, -1)
        if self.unfused:
            a, b = first * cos, second * sin
            c, d = second * cos, first * sin
            return torch.cat((a - b, c + d), -1)
        return x * torch.cat((cos, cos), -1) + torch.cat((-second, first), -1) * torch.cat((sin, sin), -1)

    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor], start: int, rope: tuple[Tensor, Tensor]
    ) -> Tensor:
        """x (batch, tokens, hidden) at positions start..start+tokens; writes the cache in place."""
        c = self.config
        batch, tokens, _ = x.shape
        sizes = [c.hidden_size, *[c.num_key_value_heads * c.head_dim] * 2]
        q, k, v = self.qkv(self.norm1(x)).split(sizes, -1)
        q = q.view(batch, tokens, -1, c.head_dim).transpose(1, 2)
        k = k.view(batch, tokens, -1, c.head_dim).transpose(1, 2)
        v = v.view(batch, tokens, -1, c.head_dim).transpose(1, 2)
        q, k = self.rotate(q, *rope), self.rotate(k, *rope)
        keys, values = cache
        end = start + tokens
        keys[:, :, start:end] = k
        values[:, :, start:end] = v
        mixed = F.scaled_dot_product_attention(
            q, keys[:, :, :end], values[:, :, :end], is_causal=tokens > 1, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        if self.unfused:
            activated = gate * (1.0 / (1.0 + torch.exp(-gate.float()))).to(gate.dtype)
        else:
            activated = F.silu(gate)
        return x + self.down(activated * up)


class Cache:
    """Keys and values of every layer, allocated once for the longest sequence."""

    def __init__(
        self, config: Config, batch: int, length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (batch, config.num_key_value_heads, length, config.head_dim)
        self.layers = [
            (torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
            for _ in range(config.num_hidden_layers)
        ]
        self.length = 0

    def get_seq_length(self) -> int:
        """Tokens held per sequence (the name that Hugging Face caches use)."""
        return self.length


class TinyDecoder(nn.Module):
    """Embedding, blocks, norm and head. `model.config` holds the architecture."""

    def __init__(
        self, config: Config, dtype: str = "bf16", unfused: bool = False, device: str = "cpu"
    ) -> None:
        super().__init__()
        where = torch.device(device)
        compute = DTYPES[dtype]
        self.config, self.compute, self.wait_ms = config, compute, 0.0
        config.torch_dtype = str(compute).removeprefix("torch.")
        if dtype in ("int8", "fp8"):
            config.quantization_config = {"quant_method": dtype, "bits": 8}
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size, dtype=compute, device=where)
        self.blocks = nn.ModuleList(
            Block(config, dtype, unfused, where) for _ in range(config.num_hidden_layers)
        )
        self.norm = Norm(config.hidden_size, unfused, compute, where)
        self.head = linear(config.vocab_size, config.hidden_size, dtype, where)
        half = config.head_dim // 2
        frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.arange(config.max_position_embeddings)[:, None] * frequency
        self.register_buffer("cos", angle.cos().to(where, compute))
        self.register_buffer("sin", angle.sin().to(where, compute))

    def forward(self, input_ids: Tensor, past_key_values: Cache) -> Tensor:
        """input_ids (batch, tokens) -> the next token of each sequence (batch, 1), chosen greedily."""
        start, tokens = past_key_values.length, input_ids.shape[1]
        rope = self.cos[start : start + tokens], self.sin[start : start + tokens]
        x = self.embed(input_ids)
        for block, layer in zip(self.blocks, past_key_values.layers, strict=True):
            x = block(x, layer, start, rope)
            if self.wait_ms:
                time.sleep(self.wait_ms / 1e3)
        past_key_values.length = start + tokens
        return self.head(self.norm(x[:, -1:])).argmax(-1)


def busy_wait(milliseconds: float) -> None:
    """Spend Python time, as tokenising or building JSON does."""
    end = time.perf_counter() + milliseconds / 1e3
    text = []
    while time.perf_counter() < end:
        text.append(str(len(text)))


def parser() -> argparse.ArgumentParser:
    """The command line; see the module's text."""
    p = argparse.ArgumentParser(description="A small decoder with a KV cache and random weights.")
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--prompt", type=int, default=128, help="tokens of the prompt")
    p.add_argument("--steps", type=int, default=24, help="decode steps after each prefill")
    p.add_argument("--repeat", type=int, default=1, help="times to run prefill and decode")
    p.add_argument(
        "--dtype", choices=DTYPES, default="bf16", help="weights; int8 is weight-only, fp8 needs a GPU"
    )
    p.add_argument("--hidden", type=int, default=1024)
    p.add_argument("--ffn", type=int, default=2816)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--kv-heads", type=int, default=4)
    p.add_argument("--vocab", type=int, default=8192)
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=0, help="CPU threads of torch, 0: leave as it is")
    p.add_argument("--host-ms", type=float, default=0.0, help="Python time between steps")
    p.add_argument("--wait-ms", type=float, default=0.0, help="blocking wait in every layer")
    p.add_argument("--compile", action="store_true", help="torch.compile the model")
    p.add_argument("--sync", action="store_true", help="read every token back inside the step")
    p.add_argument("--unfused", action="store_true", help="spell small operators out")
    return p


def build(args: argparse.Namespace) -> TinyDecoder:
    """The model of a command line."""
    torch.manual_seed(0)
    if args.threads:
        torch.set_num_threads(args.threads)
    config = Config(
        hidden_size=args.hidden, intermediate_size=args.ffn, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, vocab_size=args.vocab,
        max_position_embeddings=max(4096, args.prompt + args.steps),
    )  # fmt: skip
    model = TinyDecoder(config, args.dtype, args.unfused, args.device).eval()
    model.wait_ms = args.wait_ms
    if args.compile:
        model.compile(dynamic=True)
    return model


@torch.inference_mode()
def generate(model: TinyDecoder, args: argparse.Namespace) -> list[float]:
    """One prefill and `args.steps` decode steps; returns the host time of each call in milliseconds."""
    device = torch.device(args.device)
    cache = Cache(model.config, args.batch, args.prompt + args.steps, model.compute, device)
    tokens = torch.randint(0, args.vocab, (args.batch, args.prompt), device=device)
    times = []
    for _ in range(args.steps + 1):
        begin = time.perf_counter()
        tokens = model(tokens, cache)
        if args.sync:
            tokens.tolist()
        times.append((time.perf_counter() - begin) * 1e3)
        if args.host_ms:
            busy_wait(args.host_ms)
    return times


def main() -> None:
    """Run the command line and print the step times."""
    args = parser().parse_args()
    model = build(args)
    for _ in range(args.repeat):
        times = generate(model, args)
        decode = sorted(times[1:]) or [0.0]
        print(f"prefill {times[0]:.2f} ms, decode median {decode[len(decode) // 2]:.2f} ms x {args.steps}")


if __name__ == "__main__":
    main()
