"""Writes PyTorch-profiler traces of a GPU that was not there: the samples called `generated_*`.

What limits each trace is known from the way it was made (`gpu_timeline.py`: kernel times from shapes and assumed
rates), not from a tool. Every file says `"generated": true` in its metadata and shares no code with the package that
diagnoses it.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_timeline import Host, Timeline

GEMM = "nvjet_tst_{m}x{n}_64x6_1x2_h_bz_coopA_TNT"
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::{op}, std::array<char*, {n}ul> >"
    "(int, at::native::{op}, std::array<char*, {n}ul>)"
)
RMS_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(...)"
)
FLASH_PREFILL = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4> >(...)"
)
FLASH_DECODE = (
    "void pytorch_flash::flash_fwd_splitkv_kernel<"
    "pytorch_flash::Flash_fwd_kernel_traits<128, 64, 128, 4> >(...)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<direct_copy_kernel_cuda> >(...)"
)
GATHER = (
    "void at::native::(anonymous namespace)::"
    "indexSelectSmallIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>(...)"
)
REDUCE = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, ArgMaxOps<float> > >(...)"
)


@dataclass(frozen=True)
class Model:
    """A dense decoder in bf16."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 128

    @property
    def qkv_out(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


LLAMA_8B = Model(4096, 14336, 32, 32, 8, 128256)
HALF_LLAMA_8B = Model(4096, 14336, 16, 32, 8, 128256)
QWEN_HALF_B = Model(896, 4864, 24, 14, 2, 151936, 64)


BF16, LONG = "c10::BFloat16", "long int"


def gemm(t: Timeline, m: int, n: int, k: int, efficiency: float = 1.0) -> None:
    """A linear layer: x (m, k) times the transpose of w (n, k), bf16."""
    tile = 64 if m <= 64 else 128
    grid = max(1, -(-m // tile) * -(-n // 128))
    t.op(
        "aten::mm",
        [[m, k], [k, n]],
        [BF16, BF16],
        GEMM.format(m=tile, n=128),
        2.0 * m * n * k,
        2.0 * (m * k + n * k + m * n),
        grid,
        efficiency,
        parent="aten::linear",
    )


def pointwise(t: Timeline, name: str, inputs: int, shape: list[int], functor: str) -> None:
    """An elementwise operator over contiguous bf16 tensors of one shape."""
    count = 1
    for extent in shape:
        count *= extent
    scalars: list[Any] = [[]] if name == "aten::add" else []
    t.op(
        name,
        [shape] * inputs + scalars,
        [BF16] * inputs + ["Scalar"] * len(scalars),
        ELEMENTWISE.format(op=functor, n=inputs + 1),
        float(count),
        2.0 * count * (inputs + 1),
        max(1, count // 2048),
        concrete=[""] * inputs + ["1"] * len(scalars),
    )


def attention(t: Timeline, model: Model, batch: int, queries: int, context: int) -> None:
    """Scaled dot-product attention, causal when there is more than one query."""
    h, g, d = model.heads, model.kv_heads, model.head_dim
    causal = queries > 1
    pairs = queries * (queries + 1) / 2 if causal else queries * context
    flops = 4.0 * batch * h * d * pairs
    nbytes = 2.0 * batch * d * (2 * h * queries + 2 * g * context)
    dims = [[batch, h, queries, d], [batch, g, context, d], [batch, g, context, d], [], [], [], []]
    blocks = batch * h * -(-queries // 128) if causal else batch * g * max(1, context // 256)
    t.op(
        "aten::_scaled_dot_product_flash_attention",
        dims,
        [BF16] * 3 + ["Scalar"] * 4,
        FLASH_PREFILL if causal else FLASH_DECODE,
        flops,
        nbytes,
        blocks,
        0.62 if causal else 0.95,
        ["", "", "", "0.", str(causal), "False", ""],
        parent="aten::scaled_dot_product_attention",
    )


def layer(t: Timeline, model: Model, batch: int, queries: int, context: int, sync: bool) -> None:
    """One decoder layer, eager."""
    m, hidden = batch * queries, model.hidden
    norm = ([[m, hidden], [], [hidden], []], [BF16, "ScalarList", BF16, "Scalar"])
    kv = model.kv_heads * model.head_dim
    t.op("aten::_fused_rms_norm", *norm, RMS_NORM, 4.0 * m * hidden, 4.0 * m * hidden, m)
    gemm(t, m, model.qkv_out, hidden)
    pointwise(
        t, "aten::mul", 2, [m, (model.heads + model.kv_heads) * model.head_dim], "BinaryFunctor<MulFunctor>"
    )
    t.op(
        "aten::copy_",
        [[m, 2 * kv], [m, 2 * kv], []],
        [BF16, BF16, "Scalar"],
        COPY,
        0.0,
        8.0 * m * kv,
        max(1, m * kv // 256),
        concrete=["", "", "False"],
    )
    if sync:
        t.read_back("aten::item", [[1]], 2)
    attention(t, model, batch, queries, context)
    if sync:
        t.read_back("aten::item", [[1]], 2)
    gemm(t, m, hidden, model.heads * model.head_dim)
    pointwise(t, "aten::add", 2, [m, hidden], "CUDAFunctor_add<c10::BFloat16>")
    if sync:
        t.read_back("aten::item", [[1]], 2)
    t.op("aten::_fused_rms_norm", *norm, RMS_NORM, 4.0 * m * hidden, 4.0 * m * hidden, m)
    gemm(t, m, 2 * model.ffn, hidden)
    if sync:
        t.read_back("aten::item", [[1]], 2)
    pointwise(t, "aten::silu", 1, [m, model.ffn], "silu_kernel")
    pointwise(t, "aten::mul", 2, [m, model.ffn], "BinaryFunctor<MulFunctor>")
    gemm(t, m, hidden, model.ffn)
    pointwise(t, "aten::add", 2, [m, hidden], "CUDAFunctor_add<c10::BFloat16>")


def step(t: Timeline, model: Model, batch: int, queries: int, context: int, sync: bool = False) -> None:
    """One engine iteration with its annotation (the detailed form, which carries KV tokens)."""
    start = t.now
    m = batch * queries
    t.op(
        "aten::embedding",
        [[model.vocab, model.hidden], [m], [], [], []],
        [BF16, LONG, "Scalar", "Scalar", "Scalar"],
        GATHER,
        0.0,
        4.0 * m * model.hidden + 8.0 * m,
        m,
        concrete=["", "", "-1", "False", "False"],
    )
    for _ in range(model.layers):
        layer(t, model, batch, queries, context, sync)
    gemm(t, batch, model.vocab, model.hidden)
    t.op(
        "aten::argmax",
        [[batch, model.vocab], [], []],
        [BF16, "Scalar", "Scalar"],
        REDUCE,
        float(batch * model.vocab),
        2.0 * batch * model.vocab,
        batch,
        concrete=["", "-1", "False"],
    )
    sums = f"sq{m}sk{batch * context}sqsq{batch * queries**2}sqsk{batch * queries * context}"
    none = "sq0sk0sqsq0sqsk0"
    text = (
        f"execute_{m}_context_{batch}({sums})_generation_0({none})"
        if queries > 1
        else f"execute_{m}_context_0({none})_generation_{batch}({sums})"
    )
    t.annotate(text, start, t.now)


def run(
    model: Model, steps: int, batch: int, queries: int, context: int, gap_us: float, sync: bool, host: Host
) -> Timeline:
    """`steps` iterations; the host waits for each step's tokens and then works `gap_us` before the next."""
    t = Timeline(host=host)
    for index in range(steps):
        if index:
            t.read_back("aten::item", [[batch]], 8 * batch)
            t.now += gap_us
        step(t, model, batch, queries, context + (0 if queries > 1 else index), sync)
    return t


def all_generated(folder: Path) -> list[Path]:
    """Write every generated sample into `folder`; returns the files."""
    cases = {
        "generated_h100_decode_hbm": (
            run(LLAMA_8B, 3, 16, 1, 2048, 150.0, False, Host(1.5, 2.0, 2.6)),
            "Llama-3-8B shapes, decode batch 16 at 2,048 tokens: weight and KV reads near the HBM rate",
        ),
        "generated_h100_decode_launch": (
            run(QWEN_HALF_B, 4, 1, 1, 512, 120.0, False, Host(9.0, 5.0, 4.2)),
            "a 0.5B model, eager decode batch 1: kernels of 2 to 5 us launched every 20 us",
        ),
        "generated_h100_prefill_compute": (
            run(LLAMA_8B, 2, 1, 4096, 4096, 150.0, False, Host()),
            "Llama-3-8B shapes, prefill of one 4,096-token prompt: large GEMMs near the sustained bf16 rate",
        ),
        "generated_h100_decode_sync": (
            run(HALF_LLAMA_8B, 3, 16, 1, 512, 60.0, True, Host(1.5, 2.0, 2.6, wake_us=70.0)),
            "16 layers of Llama-3-8B shapes, decode batch 16: four scalars a layer read back, each wait 70 us late",
        ),
    }
    written = []
    for name, (timeline, note) in cases.items():
        path = folder / f"{name}.json.gz"
        timeline.write(path, note)
        written.append(path)
    return written


if __name__ == "__main__":
    for file in all_generated(Path(__file__).parent):
        print(file.name, file.stat().st_size)
