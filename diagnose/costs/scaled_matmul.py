"""Products of quantised operands with scales: fp8, int8, fp4. FLOPs 2·M·N·K at the rate of the narrow type.

Bytes: both operands in encoded size, the scales as recorded (tensorwise 2 values; rowwise M + N; blockwise
M·K/128 + K·N/16384; mx 1 per 32; nvfp4 1 per 16), the result in its own type.
"""

from dataclasses import replace
from math import prod

from diagnose.costs import dtypes
from diagnose.costs.matmul import gemm_cost
from diagnose.costs.op import OpCall, OpCost, Tensor
from diagnose.costs.registry import model

_NARROW = ("fp8", "int8", "uint8", "fp4x2")


def scale_bytes(kind: str, m: int, n: int, k: int) -> float:
    """Bytes of both operands' scales. `kind`: tensorwise, rowwise, blockwise (1x128 and 128x128), mx,
    nvfp4."""
    if kind == "tensorwise":
        return 8.0
    if kind == "rowwise":
        return 4.0 * (m + n)
    if kind == "blockwise":
        return 4.0 * (m * k / 128 + k * n / 16384)
    if kind == "mx":
        return (m * k + k * n) / 32
    if kind == "nvfp4":
        return (m * k + k * n) / 16 + 4.0
    raise ValueError(f"unknown scaling {kind}")


def scaled_gemm(
    a: Tensor | None, b: Tensor | None, others: tuple[Tensor, ...], out_dtype: str, *, packed: bool = False
) -> OpCost | None:
    """a (M,K) with b (K,N) or (N,K); `others` (scales, bias, zero points) are read once.

    `packed`: 4-bit values, two to an element, packed along K in both operands.
    """
    if a is None or b is None or len(a.dims) < 2 or len(b.dims) != 2:
        return None
    m, k = prod(a.dims[:-1]), a.dims[-1]
    if b.dims[0] == k:
        n = b.dims[1]
    elif b.dims[1] == k:
        n = b.dims[0]
    else:
        return None
    if packed or a.dtype == "fp4x2":
        cost = gemm_cost(m, n, 2 * k, "fp4", "fp4", out_dtype)
    else:
        math = "int8" if a.dtype in ("int8", "uint8") else a.dtype
        cost = gemm_cost(m, n, k, a.dtype, b.dtype, out_dtype, math=math)
    return replace(cost, bytes_min=cost.bytes_min + sum(t.bytes for t in others))


@model("aten::_scaled_mm")
def scaled_mm(call: OpCall) -> OpCost | None:
    """self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum."""
    others = tuple(t for i in (2, 3, 4, 5) if (t := call.tensor(i)) is not None)
    out = dtypes.scalar_type(call.scalar(6)) or "bf16"
    return scaled_gemm(call.tensor(0), call.tensor(1), others, out)


@model("aten::_int_mm")
def int_mm(call: OpCall) -> OpCost | None:
    """int8 self, int8 mat2 to int32."""
    return scaled_gemm(call.tensor(0), call.tensor(1), (), "int32")


_FP4 = ("fp4_mm", "nvfp4_gemm", "a4w4", "fp4_gemm", "mxfp4_mm")


@model(
    "_C::cutlass_scaled_mm", "_C::cutlass_scaled_mm_azp", "_C::cutlass_scaled_fp4_mm",
    "_C::cutlass_scaled_sparse_mm",
    "sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm", "sgl_kernel::fp8_blockwise_scaled_mm",
    "sgl_kernel::cutlass_scaled_fp4_mm", "vllm::fp8_gemm_nt_op", "vllm::w8a8_triton_block_scaled_mm_func",
    "vllm::w8a8_block_fp8_matmul_func", "vllm::apply_w8a8_block_fp8_linear",
    "vllm::flashinfer_fp8_blockscale_gemm",
    "vllm::dynamic_flashinfer_deepgemm_blockscale_gemm", "vllm::flashinfer_mm_fp4",
    "vllm::flashinfer_scaled_fp8_mm",
    "vllm::rocm_aiter_gemm_a8w8", "vllm::rocm_aiter_gemm_a8w8_blockscale", "vllm::rocm_aiter_gemm_w8a8",
    "vllm::rocm_aiter_gemm_w8a8_blockscale", "vllm::rocm_aiter_gemm_a4w4", "vllm::gemm_with_dynamic_quant",
    "aiter::gemm_a8w8", "aiter::gemm_a8w8_bpreshuffle", "aiter::gemm_a8w8_blockscale", "aiter::gemm_a4w4",
    "aiter::gemm_a4w4_asm", "aiter::gemm_a4w4_blockscale", "deep_gemm::fp8_gemm_nt", "deep_gemm::fp8_gemm",
    "trtllm::nvfp4_gemm", "trtllm::fp4_gemm", "trtllm::fp8_block_scaling_gemm", "trtllm::cublas_scaled_mm",
    "trtllm::fp8_rowwise_gemm", "trtllm::nvfp4_gemm_cublaslt", "trtllm::nvfp4_gemm_cutlass",
    "trtllm::cuda_scaled_mm",
    "bitsandbytes::int8_linear_matmul", "bitsandbytes::int8_scaled_mm", "torchao::int_scaled_matmul",
    "vllm::cutlass_scaled_mm", "sglang::w8a8_block_fp8_matmul", "sglang::deep_gemm_fp8_fp8_bf16_nt",
    "flashinfer::mm_fp4", "flashinfer::mm_fp8", "flashinfer::gemm_fp8_nt_groupwise",
)  # fmt: skip
def custom_scaled(call: OpCall) -> OpCost | None:
    """Two narrow matrices among the arguments are the operands; a wide M x N one the result; the rest scales
    and bias.

    Which of the two is the activation does not change FLOPs or bytes. Fused activation quantisation
    (a 16-bit activation beside an 8-bit weight) multiplies in the weight's type.
    """
    matrices = [t for t in call.tensors if len(t.dims) == 2 and t.numel > 0]
    narrow = [t for t in matrices if t.dtype in _NARROW]
    pair = _operands(narrow, [t for t in matrices if t.dtype not in _NARROW])
    if pair is None:
        return _quantises_inside(call, matrices, narrow)
    a, b = pair
    packed = any(token in call.name for token in _FP4)
    rows = {a.dims[0], a.dims[1], b.dims[0], b.dims[1]}
    cost = scaled_gemm(a, b, (), "bf16", packed=packed)
    if cost is None:
        return None
    m, n = (int(v) for v in (cost.shape.split("x")[0], cost.shape.rsplit("x", 1)[1]))
    wide = [
        t
        for t in matrices
        if t.dtype in ("bf16", "fp16", "fp32", "int32") and sorted(t.dims) == sorted((m, n))
    ]
    out = wide[0] if wide else None
    others = [t for t in call.tensors if t is not a and t is not b and t is not out and len(t.dims) >= 1]
    others = [t for t in others if t.numel <= 2 * max(rows) ** 2]
    cost = scaled_gemm(a, b, tuple(others), out.dtype if out else _out_dtype(call), packed=packed)
    return cost


def _operands(narrow: list[Tensor], wide: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """The first two narrow matrices with a common inner dimension, those first whose product is among `wide`.

    Block scales are narrow too (fp8), but their inner dimension is that of no operand.
    """
    fits = [(a, b) for i, a in enumerate(narrow) for b in narrow[i + 1 :] if a.dims[1] in b.dims]
    for a, b in fits:
        n = b.dims[0] if b.dims[1] == a.dims[1] else b.dims[1]
        if any(t.dims == (a.dims[0], n) for t in wide):
            return a, b
    return fits[0] if fits else None


def _out_dtype(call: OpCall) -> str:
    for i in range(len(call.scalars)):
        dtype = dtypes.scalar_type(call.scalar(i))
        if dtype in ("bf16", "fp16", "fp32") and call.tensor(i) is None:
            return dtype
    return "bf16"


def _quantises_inside(call: OpCall, matrices: list[Tensor], narrow: list[Tensor]) -> OpCost | None:
    wide = [t for t in matrices if t.dtype in ("bf16", "fp16")]
    if len(narrow) != 1 or not wide:
        return None
    b = narrow[0]
    fits = [t for t in wide if t.dims[1] in b.dims]
    if not fits:
        return None
    a = fits[0]
    n = b.dims[0] if b.dims[1] == a.dims[1] else b.dims[1]
    scales = [t for t in call.tensors if t.dtype in ("fp32", "e8m0") and len(t.dims) >= 1]
    return gemm_cost(
        a.dims[0],
        n,
        a.dims[1],
        a.dtype,
        b.dtype,
        a.dtype,
        math=b.dtype if b.dtype != "uint8" else "fp8",
        extra_bytes=sum(t.bytes for t in scales),
    )


def grouped_gemm_cost(
    rows: int,
    n: int,
    k: int,
    experts_touched: float,
    dtype_a: str,
    dtype_w: str,
    dtype_out: str,
    math: str | None = None,
) -> OpCost:
    """`rows` token rows spread over groups: 2·rows·N·K FLOP; every touched group's K·N weights once."""
    activations = rows * (k * dtypes.size(dtype_a) + n * dtypes.size(dtype_out))
    weights = experts_touched * k * n * dtypes.size(dtype_w)
    return OpCost(
        2.0 * rows * n * k,
        activations + weights,
        math or dtype_a,
        f"{rows}x{k} . {experts_touched:g}x{k}x{n}",
        "grouped_gemm",
        families=frozenset({"moe_gemm", "gemm", "gemm_lowp", "other"}),
    )


@model("aten::_grouped_mm", "aten::_scaled_grouped_mm")
def grouped_mm(call: OpCall) -> OpCost | None:
    """mat_a (rows, K) with mat_b (groups, K, N): groups expected to be touched when rows fall on them uniformly."""
    a, b = call.tensor(0), call.tensor(1)
    if a is None or b is None or len(a.dims) != 2 or len(b.dims) != 3 or a.dims[1] != b.dims[1]:
        return None
    rows, k = a.dims
    groups, _, n = b.dims
    touched = groups * (1.0 - (1.0 - 1.0 / groups) ** rows) if groups else 0.0
    out = "bf16" if a.dtype in ("fp8", "fp4x2") else a.dtype
    cost = grouped_gemm_cost(rows, n, k, touched, a.dtype, b.dtype, out)
    scales = sum(t.bytes for t in call.tensors[2:] if t.dtype == "fp32" and t.dims)
    return replace(cost, bytes_min=cost.bytes_min + scales)
