"""One engine step as a list of operations with FLOPs and bytes, and its roof: the sum over operations of
the larger of compute time and memory time.

Attention and projections do not overlap, so the maxima add up; the maximum of the two sums is only the
absolute bound and is given as that. Bytes count each weight once a step, each input and output once; a
multiply-add is two FLOPs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from diagnose.serving.model_config import FUSED, ModelConfig
from diagnose.serving.quant import DTYPE_BYTES


class RoofsLike(Protocol):
    """What is needed of a device's roofs (`diagnose.devices.Roofs` fits): least times in ns, None where
    unknown."""

    def memory_ns(self, nbytes: float, *, gemm: bool = False) -> float | None:
        """Least time to move `nbytes`."""

    def compute_ns(
        self,
        flops: float,
        dtype: str,
        *,
        m: int | None = None,
        n: int | None = None,
        k: int | None = None,
        batch: int = 1,
    ) -> float | None:
        """Least time for `flops` of matrix work."""


@dataclass(frozen=True, slots=True)
class FlatRoofs:
    """Roofs of two plain rates (B/s and FLOP/s), for arithmetic by hand and for devices known by two
    numbers."""

    bandwidth: float
    flops: float

    def memory_ns(self, nbytes: float, *, gemm: bool = False) -> float | None:
        """Bytes over bandwidth."""
        return nbytes / self.bandwidth * 1e9

    def compute_ns(
        self,
        flops: float,
        dtype: str,
        *,
        m: int | None = None,
        n: int | None = None,
        k: int | None = None,
        batch: int = 1,
    ) -> float | None:
        """FLOPs over rate."""
        return flops / self.flops * 1e9


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a step, `count` times. `kind`: weights (projections), kv (cache reads),
    prefill_attention."""

    name: str
    kind: str
    flops: float
    bytes: float
    dtype: str
    count: int = 1
    m: int | None = None
    n: int | None = None
    k: int | None = None

    def roof_ns(self, roofs: RoofsLike) -> tuple[float, float] | None:
        """(compute, memory) least time of all its repetitions; None where a roof is unknown."""
        compute = roofs.compute_ns(self.flops, self.dtype, m=self.m, n=self.n, k=self.k)
        memory = roofs.memory_ns(self.bytes, gemm=self.kind == "weights")
        return None if compute is None or memory is None else (compute * self.count, memory * self.count)


@dataclass(frozen=True, slots=True)
class StepRoof:
    """A step's least time in ms. `sum_ms` adds per-operation maxima; `bound_ms` is the maximum of the two
    sums."""

    sum_ms: float
    bound_ms: float
    compute_ms: float
    memory_ms: float
    by_kind_ms: dict[str, float]


def step_roof(ops: Sequence[Op], roofs: RoofsLike) -> StepRoof | None:
    """The roof of a step; None when some operation has no roof on this device."""
    total = compute = memory = 0.0
    kinds: dict[str, float] = {}
    for op in ops:
        pair = op.roof_ns(roofs)
        if pair is None:
            return None
        compute, memory, least = compute + pair[0], memory + pair[1], max(pair)
        total += least
        kinds[op.kind] = kinds.get(op.kind, 0.0) + least / 1e6
    return StepRoof(total / 1e6, max(compute, memory) / 1e6, compute / 1e6, memory / 1e6, kinds)


def math_dtype(model: ModelConfig) -> str:
    """The dtype the projections multiply in: 8 bits only where activations are quantised too."""
    if model.quant and model.quant.rules and model.quant.rules[0][1].act_bits == 8:
        return "fp8" if "fp" in model.quant.rules[0][1].label else "int8"
    return model.dtype


def step_ops(model: ModelConfig, *, decode_contexts: Sequence[int] = (), prefill_chunks: Sequence[tuple[int,
int]] = (),
             tp: int = 1, ep: int = 1, kv_dtype: str | None = None,
             verified_per_sequence: int = 1) -> list[Op]:  # fmt: skip
    """Operations of one step on one GPU.

    `decode_contexts`: KV length of each decoding sequence; `prefill_chunks`: (new tokens, KV length after
    them) of each prefilling one; `verified_per_sequence` > 1 is speculative verification. Layers with equal
    shapes are one Op.
    """
    tokens = len(decode_contexts) * verified_per_sequence + sum(new for new, _ in prefill_chunks)
    heads_out = len(decode_contexts) * verified_per_sequence + len(prefill_chunks)
    ops: dict[tuple[object, ...], Op] = {}
    dtype, e = math_dtype(model), DTYPE_BYTES[model.dtype]

    def add(name: str, kind: str, flops: float, nbytes: float, math: str, m: int | None = None,
    n: int | None = None,
            k: int | None = None, count: int = 1) -> None:  # fmt: skip
        key = (name, kind, flops, nbytes, math, m, n, k)
        old = ops.get(key)
        ops[key] = Op(name, kind, flops, nbytes, math, (old.count if old else 0) + count, m, n, k)

    encoded = _encoded(model, tp, ep)
    for i in range(model.layers):
        for gemm in model.layer_gemms(i, tp, ep):
            weights = encoded[(i, gemm.role)]
            if gemm.role.startswith("experts_"):
                touched = model.expected_experts(tokens) / max(1, ep)
                rows = tokens * model.experts_per_token / max(1, ep)
                flops, nbytes = 2.0 * rows * gemm.n * gemm.k, touched * weights + rows * (gemm.n + gemm.k) * e
                add(gemm.role, "weights", flops, nbytes, dtype)
            else:
                nbytes = weights + tokens * (gemm.n + gemm.k) * e
                add(
                    gemm.role,
                    "weights",
                    2.0 * tokens * gemm.n * gemm.k,
                    nbytes,
                    dtype,
                    tokens,
                    gemm.n,
                    gemm.k,
                )
        _attention(model, i, add, decode_contexts, prefill_chunks, tp, kv_dtype, verified_per_sequence)
    head = model.head_gemm(tp)
    add("head", "weights", 2.0 * heads_out * head.n * head.k,
    head.n * head.k * e + heads_out * (head.n + head.k) * e,
        model.dtype, heads_out, head.n, head.k)  # fmt: skip
    return list(ops.values())


def _encoded(model: ModelConfig, tp: int, ep: int) -> dict[tuple[int, str], float]:
    """Stored bytes of each fused projection (of one expert, for experts)."""
    out: dict[tuple[int, str], float] = {}
    for t in model.tensors:
        if t.layer is None or t.k == 1:
            continue
        size, _ = model.tensor_bytes(t, tp, ep)
        copies = model.local_shape(t, tp, ep)[2]
        key = (t.layer, FUSED.get(t.role, t.role))
        out[key] = out.get(key, 0.0) + size / copies
    return out


def _attention(model: ModelConfig, i: int, add: Callable[..., None], decode_contexts: Sequence[int],
               prefill_chunks: Sequence[tuple[int, int]], tp: int, kv_dtype: str | None,
               verified: int) -> None:  # fmt: skip
    """Decode reads each sequence's cache (windows respected); prefill is causal over its chunk."""
    layer = model.plan[i]
    if not layer.heads or layer.attention in {"mamba", "linear", "none"}:
        return
    token_bytes = model.kv_layer_bytes(layer, kv_dtype, tp)
    q_heads = max(1, layer.heads // tp)
    if layer.attention == "mla" and model.mla:
        wide = 2 * model.mla.kv_lora_rank + model.mla.rope
    else:
        wide = layer.head_dim + layer.v_head_dim
    span = layer.window
    read = [min(c, span) if span else c for c in decode_contexts]
    if read:
        add(
            "attention_decode",
            "kv",
            2.0 * verified * q_heads * wide * sum(read),
            token_bytes * sum(read),
            model.dtype,
        )
    for new, length in prefill_chunks:
        reach = min(length, span) if span else length
        pairs = causal_pairs(new, length, span)
        head = layer.head_dim + layer.v_head_dim
        add(
            "attention_prefill",
            "prefill_attention",
            2.0 * q_heads * head * pairs,
            token_bytes * reach,
            model.dtype,
        )


def causal_pairs(new: int, length: int, window: int | None = None) -> float:
    """Query-key pairs of `new` tokens ending at `length`: sum over p = length - new + 1 ... length of
    min(p, window)."""
    first = length - new + 1
    if window is None or length <= window:
        return (first + length) * new / 2
    inside = max(0, window - first + 1)
    return (first + window) * inside / 2 + (new - inside) * window
