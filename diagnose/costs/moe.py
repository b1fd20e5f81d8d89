"""Mixture of experts: FLOPs by routed tokens, weight bytes by the experts expected to be touched.

FLOPs 6 · T · k · D · I for gated experts (three matrices, 2 FLOP each). Weight bytes U · 3 · D · I · e with
U = E · (1 − (1 − k/E)^T), the expected number of distinct experts when every token picks k of E uniformly: an
assumption (skewed routing touches fewer). The bounds are 1 · k (all tokens alike) and min(E, T · k).
"""

import re
from dataclasses import replace
from math import prod

from diagnose.costs import dtypes
from diagnose.costs.common import every_tensor
from diagnose.costs.op import OpCall, OpCost, Part, Tensor
from diagnose.costs.registry import model
from diagnose.costs.weight_only import packed_weight_bytes

FAMILIES = frozenset({"moe_gemm", "gemm", "gemm_lowp", "gemm_w4a16", "other"})


def experts_touched(tokens: int, experts: int, top_k: int) -> float:
    """Expected distinct experts: E · (1 − (1 − k/E)^T), uniform and independent routing assumed."""
    if experts <= 0:
        return 0.0
    return experts * (1.0 - (1.0 - min(top_k, experts) / experts) ** tokens)


def matrix_bytes(rows: int, columns: int, fmt: str) -> float:
    """Stored bytes of one expert matrix: a plain type ('bf16', 'fp8') or a packed format of `weight_only`."""
    if fmt in dtypes.SIZE:
        return rows * columns * dtypes.size(fmt)
    return packed_weight_bytes(rows, columns, fmt)


def expert_gemm_cost(
    tokens: int,
    experts: int,
    top_k: int,
    k: int,
    n: int,
    *,
    weight: str = "bf16",
    activation: str = "bf16",
    out_columns: int | None = None,
    gathered: bool = False,
    role: str = "moe_gemm",
    math: str | None = None,
    dtype_out: str | None = None,
) -> OpCost:
    """One grouped product: T · k routed rows of width `k` times touched (N, K) expert matrices.

    `out_columns` < n when an activation is fused (gate and up fold to half); `gathered`: rows are read from
    the T un-replicated tokens (the kernel indexes them), so the input is T rows, not T · k.
    """
    rows = tokens * top_k
    touched = experts_touched(tokens, experts, top_k)
    e_in, e_out = dtypes.size(activation), dtypes.size(dtype_out or activation)
    data = (tokens if gathered else rows) * k * e_in + rows * (out_columns or n) * e_out
    one = matrix_bytes(n, k, weight)
    lowest = min(top_k, experts) * one + data
    highest = min(experts, rows) * one + data
    return OpCost(
        2.0 * rows * n * k,
        data + touched * one,
        math or activation,
        f"{tokens}x{k} top{top_k}/{experts} {weight} -> {n}",
        role,
        bytes_low=min(lowest, data + touched * one) * 0.9,
        bytes_high=max(highest, data + touched * one) * 1.1,
        families=FAMILIES,
    )


def moe_cost(
    tokens: int,
    experts: int,
    top_k: int,
    hidden: int,
    intermediate: int,
    *,
    weight: str = "bf16",
    activation: str = "bf16",
    gated: bool = True,
    math: str | None = None,
) -> OpCost:
    """Whole expert layer, unfused: gate-and-up, activation, down. Activation traffic T·k·(D + 2I + I +
    D)·e."""
    up = (2 if gated else 1) * intermediate
    first = expert_gemm_cost(
        tokens,
        experts,
        top_k,
        hidden,
        up,
        weight=weight,
        activation=activation,
        role="moe_gate_up",
        math=math,
    )
    second = expert_gemm_cost(
        tokens,
        experts,
        top_k,
        intermediate,
        hidden,
        weight=weight,
        activation=activation,
        role="moe_down",
        math=math,
    )
    rows, e = tokens * top_k, dtypes.size(activation)
    parts = (
        Part(
            r"act_and_mul|silu|gelu|activation",
            "moe_activation",
            rows * (up + intermediate) * e,
            5.0 * rows * intermediate,
            dtype="fp32",
        ),
        Part(
            r"moe_sum|finalize|reduce_kernel",
            "moe_sum",
            (rows + tokens) * hidden * e,
            rows * hidden,
            dtype="fp32",
        ),
        Part(r"moe_align|count_and_sort|MoeSorting|sort", "moe_sort", 8.0 * rows),
        Part(r"per_token.*quant|group_quant|scaled_fp8_quant", "moe_quantise", rows * hidden * (e + 1)),
        Part(r"FillFunctor|memset", "fill", rows * hidden * e),
    )
    return OpCost(
        first.flops + second.flops,
        first.bytes_min + second.bytes_min,
        first.dtype,
        f"{tokens}x{hidden} top{top_k}/{experts} i{intermediate} {weight}",
        "moe_experts",
        bytes_low=first.low + second.low,
        bytes_high=first.high + second.high,
        families=FAMILIES,
        parts=parts,
    )


def gemm_parts(cost: OpCost, first: OpCost, second: OpCost, kernels: tuple[str, ...], pattern: str) -> OpCost:
    """Give the two grouped products to the two GEMM kernels, in order, when the op launched exactly two."""
    if sum(1 for k in kernels if re.search(pattern, k)) != 2:
        return cost
    pair = tuple(
        Part(pattern, c.role, c.bytes_min, c.flops, c.high, count=1, dtype=c.dtype) for c in (first, second)
    )
    return replace(cost, parts=(*pair, *cost.parts))


GEMM_PATTERN = (
    r"fused_moe_kernel|moe_wna16|[Mm]arlin|_matmul_ogs|GroupProblemShape|[Gg]rouped|MoeGemm|moe_gemm"
    r"|bmm_\w*dynBatch|fp8_gemm"
)


@model(
    "vllm::fused_experts", "vllm::inplace_fused_experts", "vllm::outplace_fused_experts",
    "sglang::inplace_fused_experts",
    "sglang::outplace_fused_experts", "sgl_kernel::fused_experts_cpu", "vllm::rocm_aiter_fused_moe",
    "vllm::rocm_aiter_asm_moe",
    "aiter::fused_moe_", "aiter::fmoe", "aiter::fmoe_g1u1", "trtllm::fused_moe", "trtllm::moe_custom_op",
    "vllm::flashinfer_cutlass_fused_moe", "vllm::fused_marlin_moe", "vllm::flashinfer_fused_moe_bf16",
    "sglang::fused_marlin_moe",
)  # fmt: skip
def fused_experts(call: OpCall) -> OpCost | None:
    """Tokens (T, D); weights w1 (E, 2I, D) and w2 (E, D, I), maybe packed; routing (T, k)."""
    weights = [t for t in call.tensors if len(t.dims) == 3 and t.numel > 0]
    if len(weights) < 2:
        return None
    w1, w2 = sorted(weights, key=lambda t: -t.bytes)[:2]
    x = next(
        (t for t in call.tensors if len(t.dims) == 2 and t.dtype in ("bf16", "fp16", "fp32", "fp8")), None
    )
    if x is None or w1.dims[0] != w2.dims[0]:
        return None
    tokens, hidden = x.dims
    routing = [
        t
        for t in call.tensors
        if len(t.dims) == 2 and t.dims[0] == tokens and 1 <= t.dims[1] <= 64 and t is not x
    ]
    if not routing:
        return None
    experts, top_k = w1.dims[0], routing[0].dims[1]
    if hidden in w2.dims[1:2] and w1.dims[2] == hidden:
        intermediate, gated = w2.dims[2], w1.dims[1] == 2 * w2.dims[2]
        if not gated and w1.dims[1] != w2.dims[2]:
            return None
    else:
        return None  # packed or shuffled weights: their logical shape is not in the arguments
    weight = "fp8" if w1.dtype in ("fp8", "uint8") else w1.dtype
    if weight not in ("bf16", "fp16", "fp32", "fp8", "int8"):
        return None
    math = weight if weight in ("fp8", "int8") else x.dtype
    cost = moe_cost(
        tokens,
        experts,
        top_k,
        hidden,
        intermediate,
        weight=weight,
        activation=x.dtype,
        gated=gated,
        math=math,
    )
    up = 2 * intermediate if gated else intermediate
    first = expert_gemm_cost(
        tokens,
        experts,
        top_k,
        hidden,
        up,
        weight=weight,
        activation=x.dtype,
        role="moe_gate_up",
        gathered=True,
        math=math,
    )
    second = expert_gemm_cost(
        tokens,
        experts,
        top_k,
        intermediate,
        hidden,
        weight=weight,
        activation=x.dtype,
        role="moe_down",
        math=math,
    )
    return gemm_parts(cost, first, second, call.kernels, GEMM_PATTERN)


@model(
    "_moe_C::topk_softmax", "_moe_C::topk_sigmoid", "_moe_C::grouped_topk", "_moe_C::moe_sum",
    "_moe_C::moe_align_block_size",
    "_moe_C::shuffle_rows", "sgl_kernel::topk_softmax", "sgl_kernel::topk_sigmoid",
    "sgl_kernel::moe_fused_gate",
    "sgl_kernel::moe_align_block_size", "sgl_kernel::moe_sum_reduce", "sgl_kernel::moe_sum",
    "sgl_kernel::shuffle_rows",
    "sgl_kernel::apply_shuffle_mul_sum", "_moe_C::moe_permute", "_moe_C::moe_unpermute",
    "aiter::topk_softmax", "aiter::moe_sum",
    "aiter::biased_grouped_topk", "aiter::grouped_topk", "aiter::moe_sorting_fwd", "vllm::grouped_topk",
)  # fmt: skip
def routing(call: OpCall) -> OpCost | None:
    """Router and token sorting: results are arguments too, so every tensor is moved once."""
    return every_tensor(call, call.name.rsplit("::", 1)[1], 1.0)


@model(
    "_moe_C::moe_wna16_gemm", "_C::cutlass_moe_mm", "_C::cutlass_fp4_group_mm",
    "sgl_kernel::fp8_blockwise_scaled_grouped_mm",
       "sgl_kernel::cutlass_fp4_group_mm", "_moe_C::moe_wna16_marlin_gemm",
       "sgl_kernel::moe_wna16_marlin_gemm")  # fmt: skip
def grouped(call: OpCall) -> OpCost | None:
    """Output (rows, N), input (rows or tokens, K), weights (E, N, K) plain or two values a byte; rows = T · k
    or T."""
    weights = [t for t in call.tensors if len(t.dims) == 3 and t.numel > 0]
    matrices = [
        t
        for t in call.tensors
        if len(t.dims) == 2 and t.dtype in ("bf16", "fp16", "fp8", "uint8", "int8", "fp4x2")
    ]
    if not weights or len(matrices) < 2:
        return None
    w = max(weights, key=lambda t: t.bytes)
    out, x = matrices[0], matrices[1]
    found = _logical(w, out, x)
    if found is None:
        return None
    n, k, bits = found
    rows = max(out.dims[0], x.dims[0])
    others = [t for t in call.tensors if t is not w and t is not out and t is not x]
    scales = sum(t.bytes for t in others if len(t.dims) == 3)
    experts = w.dims[0]
    touched = experts_touched(rows, experts, 1)
    one = prod(w.dims[1:]) * dtypes.size(w.dtype) + scales / experts
    math = {4: "fp4" if "fp4" in call.name else x.dtype, 8: "fp8" if w.dtype == "fp8" else "int8"}.get(
        bits, x.dtype
    )
    return OpCost(
        2.0 * rows * n * k,
        x.bytes + out.bytes + touched * one,
        math,
        f"{rows}x{k} . {experts}x{k}x{n} int{bits}",
        "moe_gemm",
        bytes_low=(x.bytes + out.bytes + one) * 0.9,
        bytes_high=(x.bytes + out.bytes + min(experts, rows) * one) * 1.1,
        families=FAMILIES,
    )


def _logical(w: Tensor, out: Tensor, x: Tensor) -> tuple[int, int, int] | None:
    """(N, K, bits) from output columns, input columns and the stored bits per expert."""
    n, k = out.dims[1], x.dims[1] * (2 if x.dtype in ("uint8", "fp4x2") else 1)
    bits = prod(w.dims[1:]) * dtypes.size(w.dtype) * 8 / (n * k)
    return (n, k, int(bits)) if bits in (4, 8, 16) else None
