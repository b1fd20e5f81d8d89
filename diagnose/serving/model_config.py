"""A model's architecture as numbers, and what follows from them: parameters, weight bytes, KV bytes,
projections.

Built from a Hugging Face `config.json` or a known name (`load_model` in `model_load`). Formulas: a
projection of N outputs from K inputs is N·K weights; a cached token is kv_heads·(d_k + d_v) elements a
layer, or kv_lora_rank + rope for latent attention. Bytes are bytes, never GiB, unless a name says so.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from diagnose.errors import UsageError
from diagnose.serving.quant import DTYPE_BYTES, QuantFormat, dtype_name


class Gemm(NamedTuple):
    """A projection as one GPU runs it: `n` outputs from `k` inputs, fused as serving engines fuse it."""

    role: str
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Mla:
    """Latent attention (DeepSeek V2/V3, Kimi): ranks and head parts. `index_*` are the sparse indexer's
    (V3.2)."""

    kv_lora_rank: int
    rope: int
    nope: int
    q_lora_rank: int | None = None
    index_heads: int = 0
    index_dim: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. attention: full, sliding, chunked, mla, linear, mamba, parallel (attention beside
    a state space block) or none; mlp: dense, moe or none. `kv_shared` layers reuse an earlier layer's
    cache."""

    attention: str = "full"
    mlp: str = "dense"
    window: int | None = None
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    kv_shared: bool = False

    @property
    def cached(self) -> bool:
        """Whether it keeps a cache that grows with the context."""
        return self.attention in {"full", "sliding", "chunked", "mla", "parallel"} and not self.kv_shared


@dataclass(frozen=True, slots=True)
class Linear:
    """A stored tensor: `n` by `k` (k is 1 for a vector), `copies` of it (experts), and how ranks share it.

    shard: column (n split), row (k split), kv (n split by KV head, replicated beyond), vocab, replicate.
    """

    component: str
    role: str
    module: str
    n: int
    k: int = 1
    copies: int = 1
    shard: str = "replicate"
    layer: int | None = None

    @property
    def params(self) -> int:
        """Elements stored over all copies."""
        return self.n * self.k * self.copies


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Weight bytes on one GPU (the fullest pipeline stage), by component: encoded as stored, `raw` in the
    model's dtype."""

    embed: float = 0.0
    attention: float = 0.0
    mlp: float = 0.0
    experts: float = 0.0
    router: float = 0.0
    norm: float = 0.0
    head: float = 0.0
    other: float = 0.0
    raw: float = 0.0

    @property
    def total(self) -> float:
        """All components, encoded."""
        return (
            self.embed
            + self.attention
            + self.mlp
            + self.experts
            + self.router
            + self.norm
            + self.head
            + self.other
        )


@dataclass(frozen=True)
class ModelConfig:
    """Architecture of one model. Unknown numbers are None or 0 with a line in `notes`; nothing is invented.

    `params_exact` is True when every stored tensor of the family is accounted for, so `params` can be
    compared with a published count; otherwise counts are estimates and say so in `notes`.
    """

    name: str
    model_type: str
    source: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    plan: tuple[Layer, ...]
    tensors: tuple[Linear, ...]
    dtype: str = "bf16"
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    shared_experts: int = 0
    first_k_dense: int = 0
    sliding_window: int | None = None
    mla: Mla | None = None
    quant: QuantFormat | None = None
    max_context: int | None = None
    state_bytes_per_sequence: float = 0.0
    cross_layers: int = 0
    encoder_layers: int = 0
    gated_mlp: bool = True
    params_exact: bool = True
    notes: tuple[str, ...] = field(default=())

    # ---- parameters

    @property
    def layers(self) -> int:
        """Decoder layers."""
        return len(self.plan)

    @property
    def params(self) -> int:
        """Stored parameters, a tied head counted once."""
        return sum(t.params for t in self.tensors)

    @property
    def params_active(self) -> float:
        """Parameters one token uses: every expert tensor counts experts_per_token / experts of itself."""
        share = self.experts_per_token / self.experts if self.experts else 1.0
        return sum(t.params * (share if t.component == "experts" else 1.0) for t in self.tensors)

    @property
    def params_embedding(self) -> int:
        """Parameters of the token (and position) embedding, which a step gathers rather than streams."""
        return sum(t.params for t in self.tensors if t.component == "embed")

    # ---- sharding

    def check_tp(self, tp: int) -> None:
        """UsageError when `tp` cannot split the attention heads evenly."""
        if tp < 1 or (self.heads and self.heads % tp):
            raise UsageError(
                f"--tp {tp} does not divide the {self.heads} heads of {self.name}; give the --tp it ran with"
            )

    def local_shape(self, t: Linear, tp: int = 1, ep: int = 1) -> tuple[int, int, float]:
        """(n, k, copies) of a tensor on one rank. With `ep` > 1 experts stay whole and are dealt out over
        ep ranks."""
        if t.component == "experts" and ep > 1:
            return t.n, t.k, t.copies / ep
        if tp == 1 or t.shard == "replicate":
            return t.n, t.k, t.copies
        if t.shard == "row":
            return t.n, math.ceil(t.k / tp), t.copies
        if t.shard == "kv":
            layer = self.plan[t.layer or 0]
            heads = layer.kv_heads or 1
            return t.n // heads * max(1, heads // tp), t.k, t.copies
        return math.ceil(t.n / tp), t.k, t.copies

    def tensor_bytes(self, t: Linear, tp: int = 1, ep: int = 1) -> tuple[float, float]:
        """(encoded, raw) bytes of a tensor on one rank."""
        n, k, copies = self.local_shape(t, tp, ep)
        raw = n * k * copies * DTYPE_BYTES[self.dtype]
        fmt = self.quant.format_for(t.module, t.component) if self.quant and t.k > 1 else None
        return (raw if fmt is None else fmt.encoded_bytes(n, k) * copies), raw

    def stage_of(self, layer: int, pp: int) -> int:
        """Pipeline stage of a layer: even split, remainder to the stages before the last (vLLM's rule)."""
        base, extra = divmod(self.layers, pp)
        sizes = [base] * pp
        for i in range(2, extra + 2):
            sizes[-i] += 1
        stage = 0
        while layer >= sum(sizes[: stage + 1]):
            stage += 1
        return stage

    def weight_bytes(self, tp: int = 1, pp: int = 1, ep: int = 1) -> WeightBytes:
        """Weight bytes on one GPU of the fullest stage. The embedding lives on the first, the head on the
        last stage."""
        self.check_tp(tp)
        stages: list[dict[str, float]] = [{} for _ in range(pp)]
        for t in self.tensors:
            encoded, raw = self.tensor_bytes(t, tp, ep)
            where = [self.stage_of(t.layer, pp)] if t.layer is not None else [pp - 1]
            if t.component == "embed":
                where = [0] if pp == 1 or not self.tied else [0, pp - 1]
            for i, stage in enumerate(where):
                # at pp > 1 a tied head is a second copy on the last stage
                name = "head" if t.component == "embed" and i == 1 else t.component
                stages[stage][name] = stages[stage].get(name, 0.0) + encoded
                stages[stage]["raw"] = stages[stage].get("raw", 0.0) + raw
        per_stage = [WeightBytes(**s) for s in stages]
        return max(per_stage, key=lambda w: w.total)

    def expected_experts(self, tokens: float) -> float:
        """Experts a layer touches for `tokens` tokens, E·(1 − (1 − k/E)^T): routing assumed uniform and
        independent."""
        if not self.experts:
            return 0.0
        return float(self.experts * (1 - (1 - self.experts_per_token / self.experts) ** tokens))

    def step_weight_bytes(self, tokens: float, tp: int = 1, pp: int = 1, ep: int = 1) -> float:
        """Weight bytes one GPU reads in a step over `tokens` tokens: all dense weights, the experts
        expected, the head (a tied head is read although it is stored with the embedding), and one
        embedding row a token."""
        w = self.weight_bytes(tp, pp, ep)
        share = self.expected_experts(tokens) / self.experts if self.experts else 0.0
        head = w.head
        if self.tied and not head:
            head = w.embed
        rows = tokens * self.hidden * DTYPE_BYTES[self.dtype]
        return w.attention + w.mlp + w.experts * share + w.router + w.norm + w.other + head + rows

    # ---- projections

    def layer_gemms(self, layer: int, tp: int = 1, ep: int = 1) -> list[Gemm]:
        """Projections of a layer in execution order as an engine runs them: q, k and v fused (qkv), gate
        and up fused (gate_up), q_a and kv_a fused (qkv_a). Expert projections are given for one expert,
        see `local_experts`."""
        order: dict[str, list[tuple[int, int]]] = {}
        for t in self.tensors:
            if t.layer == layer and t.k > 1 and t.component in {"attention", "mlp", "experts", "router"}:
                n, k, _ = self.local_shape(t, tp, ep)
                order.setdefault(FUSED.get(t.role, t.role), []).append((n, k))
        return [Gemm(role, sum(n for n, _ in parts), parts[0][1]) for role, parts in order.items()]

    def head_gemm(self, tp: int = 1) -> Gemm:
        """The projection to the vocabulary on one rank."""
        return Gemm("head", math.ceil(self.vocab / tp), self.hidden)

    def local_experts(self, ep: int = 1) -> int:
        """Routed experts held by one rank."""
        return math.ceil(self.experts / ep) if self.experts else 0

    # ---- KV cache

    def kv_dtype(self, asked: str | None = None) -> str:
        """The cache dtype an engine uses: `asked` unless it is absent or "auto", then the checkpoint's,
        then the model's."""
        if asked and asked.lower() not in {"auto", "none"}:
            return dtype_name(asked) or asked.lower()
        return (self.quant.kv_dtype if self.quant else None) or self.dtype

    def kv_layer_bytes(self, layer: Layer, kv_dtype: str | None = None, tp: int = 1) -> float:
        """Bytes one token occupies in one layer's cache on one rank. Latent caches are replicated, never
        split by tp; KV heads are replicated when tp exceeds them. fp4 carries one 1-byte scale per 16
        elements."""
        if not layer.cached:
            return 0.0
        raw = (kv_dtype or "").lower()
        dtype = self.kv_dtype(kv_dtype)
        if dtype not in DTYPE_BYTES:
            raise UsageError(
                f"KV cache dtype {kv_dtype!r} is not known; use auto, bf16, fp16, fp8, int8 or fp4"
            )
        b = DTYPE_BYTES[dtype] + (1 / 16 if dtype == "fp4" else 0.0)
        if layer.attention == "mla" and self.mla:
            if raw == "fp8_ds_mla":
                # fp8 latent + fp32 scale per 128 + bf16 rope: 512 + 16 + 128 = 656 B for DeepSeek V3.2
                latent = self.mla.kv_lora_rank * (1 + 4 / 128) + self.mla.rope * 2
            else:
                latent = (self.mla.kv_lora_rank + self.mla.rope) * b
            # the indexer keeps fp8 keys with one fp32 scale per 128
            return latent + (self.mla.index_dim * (1 + 4 / 128) if self.mla.index_dim else 0.0)
        heads = max(1, layer.kv_heads // tp)
        return heads * (layer.head_dim + layer.v_head_dim) * b

    def kv_bytes_per_token(self, kv_dtype: str | None = None, tp: int = 1, pp: int = 1) -> float:
        """Bytes a token occupies in all layers on one GPU of the fullest stage, windows ignored."""
        per_stage = [0.0] * pp
        for i, layer in enumerate(self.plan):
            per_stage[self.stage_of(i, pp)] += self.kv_layer_bytes(layer, kv_dtype, tp)
        return max(per_stage)

    def kv_bytes_materialised(self, kv_dtype: str | None = None) -> float:
        """Bytes a token would occupy if a latent-attention model cached full keys and values instead of the
        latent."""
        b = DTYPE_BYTES[self.kv_dtype(kv_dtype)]
        if self.mla is None:
            return self.kv_bytes_per_token(kv_dtype)
        per_layer = self.heads * (self.mla.nope + self.mla.rope + self.v_head_dim) * b
        return sum(per_layer for layer in self.plan if layer.cached)

    def kv_resident_bytes(self, context: int, kv_dtype: str | None = None, tp: int = 1, pp: int = 1) -> float:
        """Bytes one sequence of `context` tokens keeps on one GPU: windowed layers hold at most their
        window."""
        per_stage = [0.0] * pp
        for i, layer in enumerate(self.plan):
            kept = min(context, layer.window) if layer.window else context
            per_stage[self.stage_of(i, pp)] += kept * self.kv_layer_bytes(layer, kv_dtype, tp)
        return max(per_stage)

    def kv_read_bytes(self, contexts: list[int], kv_dtype: str | None = None, tp: int = 1) -> float:
        """KV bytes one decode step reads on one rank: each sequence's context, windows respected."""
        return sum(self.kv_resident_bytes(c, kv_dtype, tp) for c in contexts)

    def kv_crossover_tokens(self, tp: int = 1, kv_dtype: str | None = None) -> float | None:
        """Context tokens over all sequences at which a decode step reads as many KV bytes as weight bytes.
        Dense models without windows only: elsewhere the answer depends on batch or length, so None."""
        per_token = self.kv_bytes_per_token(kv_dtype, tp)
        if self.experts or not per_token or any(layer.window for layer in self.plan):
            return None
        w = self.weight_bytes(tp)
        return w.total / per_token

    def summary(
        self, tp: int = 1, pp: int = 1, ep: int = 1, kv_dtype: str | None = None
    ) -> dict[str, object]:
        """The `model` entry of the JSON contract."""
        w = self.weight_bytes(tp, pp, ep)
        return {
            "name": self.name, "model_type": self.model_type, "source": self.source, "layers": self.layers,
            "hidden": self.hidden, "heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim,
            "intermediate": self.intermediate, "vocab": self.vocab, "tied": self.tied, "dtype": self.dtype,
            "quantization": self.quant.label if self.quant else None, "experts": self.experts or None,
            "experts_per_token": self.experts_per_token or None, "sliding_window": self.sliding_window,
            "attention": _counts([layer.attention for layer in self.plan]), "params": self.params,
            "params_active": round(self.params_active), "params_exact": self.params_exact, "tp": tp,
            "pp": pp, "ep": ep,
            "weight_bytes_per_gpu": w.total, "weight_bytes_per_gpu_raw": w.raw,
            "kv_dtype": self.kv_dtype(kv_dtype), "kv_bytes_per_token": self.kv_bytes_per_token(kv_dtype, tp,
            pp),
            "state_bytes_per_sequence": self.state_bytes_per_sequence or None, "notes": list(self.notes),
            "provenance": "derived",
        }  # fmt: skip


FUSED = {
    "q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up", "q_a": "qkv_a", "kv_a": "qkv_a",
    "experts_gate": "experts_gate_up", "experts_up": "experts_gate_up", "shared_gate": "shared_gate_up",
    "shared_up": "shared_gate_up",
}  # fmt: skip


def _counts(values: list[str]) -> dict[str, int]:
    return {v: values.count(v) for v in dict.fromkeys(values)}


def load_model(arg: str) -> ModelConfig:
    """The model of `--model FILE|NAME`; see `diagnose.serving.model_load`, which holds the reading."""
    from diagnose.serving.model_load import load_model as read

    return read(arg)
