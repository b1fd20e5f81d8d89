"""Dense matrix products: FLOPs 2·M·N·K; bytes = both operands and the result once (facts: roofline
convention).

Batched operands that are expanded (stride 0) are read once. A bias or addend is read once. torch's flop
counter ignores the bias; so do we: a multiply-add counts 2 and the bias rides in the epilogue.
"""

from dataclasses import replace
from math import prod

from diagnose.costs import dtypes
from diagnose.costs.families import GEMMS, math_dtype
from diagnose.costs.op import OpCall, OpCost, Part, Tensor
from diagnose.costs.registry import model

GEMM_FAMILIES = GEMMS | {"other"}


def gemm_cost(
    m: int,
    n: int,
    k: int,
    dtype_a: str,
    dtype_w: str | None = None,
    dtype_out: str | None = None,
    *,
    batch: int = 1,
    extra_bytes: float = 0.0,
    math: str | None = None,
    role: str = "gemm",
) -> OpCost:
    """(M,K)·(K,N): 2·M·N·K FLOP; (M·K·e_a + K·N·e_w + M·N·e_out) bytes, times `batch`, plus `extra_bytes`.

    `extra_bytes` are bias, scales and zero points. `math` is the type multiplied (default: `dtype_a`).
    """
    dtype_w, dtype_out = dtype_w or dtype_a, dtype_out or dtype_a
    data = batch * (
        m * k * dtypes.size(dtype_a) + k * n * dtypes.size(dtype_w) + m * n * dtypes.size(dtype_out)
    )
    head = f"{batch}x" if batch > 1 else ""
    return OpCost(
        flops=2.0 * batch * m * n * k,
        bytes_min=data + extra_bytes,
        dtype=math or dtype_a,
        shape=f"{head}{m}x{k} . {k}x{n}",
        role=role,
        families=GEMM_FAMILIES,
        parts=helpers(batch * m * n, dtype_out),
        m=m,
        n=n,
        k=k,
        batch=batch,
    )


def helpers(outputs: float, dtype_out: str) -> tuple[Part, ...]:
    """Kernels beside a GEMM: the split-K sum reads at least two fp32 partials (up to 16) and writes the
    result once; a bias or beta prologue copies the result once."""
    e = dtypes.size(dtype_out)
    return (
        Part(
            r"splitK|split_k|reduce_1Block|SplitK.*[Rr]educ",
            "split_k_sum",
            outputs * (8 + e),
            outputs,
            outputs * (64 + e),
        ),
        Part(r"direct_copy_kernel|copy_device_to_device|CatArray", "gemm_operand_copy", 2 * outputs * e),
        Part(r"FillFunctor|memset", "fill", outputs * e),
    )


def multiply_dtype(call: OpCall, a: Tensor, b: Tensor) -> str:
    """Type of the multiplication: the operands', except that fp32 may run in tf32, which only kernel names
    tell."""
    wider = a.dtype if dtypes.size(a.dtype) >= dtypes.size(b.dtype) else b.dtype
    if wider != "fp32":
        return wider
    named = [math_dtype(k) for k in call.kernels]
    nvjet = any("nvjet_" in k for k in call.kernels)  # nvjet kernels only exist on tensor cores
    return "tf32" if "tf32" in named or nvjet else "fp32"


def _finish(cost: OpCost, operands: tuple[Tensor, ...], expand: float) -> OpCost:
    strided = any(t.run_bytes < 64 and not t.dense for t in operands)
    if expand == 0 and not strided:
        return cost
    return replace(cost, bytes_min=cost.bytes_min - expand, strided=strided)


def product(call: OpCall, a: Tensor | None, b: Tensor | None, addend: Tensor | None = None) -> OpCost | None:
    """Cost of a matmul with torch's broadcasting: 1-D operands, batches, one 2-D operand folded into the
    rows."""
    if a is None or b is None or not a.dims or not b.dims:
        return None
    rows, k = (1, a.dims[0]) if len(a.dims) == 1 else (a.dims[-2], a.dims[-1])
    k2, n = (b.dims[0], 1) if len(b.dims) == 1 else (b.dims[-2], b.dims[-1])
    if k != k2:
        return None
    batch_a, batch_b = a.dims[:-2], b.dims[:-2]
    out_dtype = a.dtype if a.dtype == b.dtype else dtypes.promote([a.dtype, b.dtype])
    extra = addend.bytes if addend is not None and addend.dims else 0.0
    if len(b.dims) <= 2:  # leading dimensions of `a` are rows
        batch, m = 1, rows * prod(batch_a)
    elif len(a.dims) <= 2 and prod(batch_b) == 1:
        batch, m = 1, rows
    else:
        batch, m = prod(_broadcast(batch_a, batch_b)), rows
    cost = gemm_cost(
        m, n, k, a.dtype, b.dtype, out_dtype, batch=batch, extra_bytes=extra, math=multiply_dtype(call, a, b)
    )
    operands = batch * (m * k * dtypes.size(a.dtype) + k * n * dtypes.size(b.dtype))
    return _finish(cost, (a, b), operands - a.bytes - b.bytes)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    width = max(len(a), len(b))
    a, b = (1,) * (width - len(a)) + a, (1,) * (width - len(b)) + b
    return tuple(max(x, y) for x, y in zip(a, b, strict=True))


@model("aten::mm", "aten::bmm", "aten::matmul", "aten::mv", "aten::dot", "aten::vdot", "aten::mm.out")
def matmul(call: OpCall) -> OpCost | None:
    """self, other (and out)."""
    return product(call, call.tensor(0), call.tensor(1))


@model(
    "aten::addmm",
    "aten::addmm_",
    "aten::baddbmm",
    "aten::baddbmm_",
    "aten::addmv",
    "aten::addmv_",
    "aten::_addmm_activation",
)
def add_matmul(call: OpCall) -> OpCost | None:
    """self, mat1, mat2, beta, alpha: self is read unless beta is 0."""
    beta = call.scalar(3)
    addend = None if beta in ("0", "0.", "0.0") else call.tensor(0)
    return product(call, call.tensor(1), call.tensor(2), addend)


def linear_cost(
    call: OpCall, x: Tensor | None, weight: Tensor | None, bias: Tensor | None = None
) -> OpCost | None:
    """x (..., K) times weight (N, K) transposed."""
    if x is None or weight is None or len(weight.dims) != 2 or not x.dims or x.dims[-1] != weight.dims[1]:
        return None
    k, n = x.dims[-1], weight.dims[0]
    m = prod(x.dims[:-1])
    extra = bias.bytes if bias is not None else 0.0
    cost = gemm_cost(
        m, n, k, x.dtype, weight.dtype, x.dtype, extra_bytes=extra, math=multiply_dtype(call, x, weight)
    )
    return _finish(cost, (x, weight), m * k * dtypes.size(x.dtype) - x.bytes)


@model("aten::linear", "aten::mkldnn_linear", "mkldnn::_linear_pointwise", "vllm::rocm_unquantized_gemm")
def linear(call: OpCall) -> OpCost | None:
    """input, weight (N, K), bias."""
    return linear_cost(call, call.tensor(0), call.tensor(1), call.tensor(2))


@model("aiter::gemm_a16w16", "aiter::gemm_a16w16_", "aiter::tgemm_mm", "vllm::rocm_aiter_tuned_gemm")
def aiter_gemm(call: OpCall) -> OpCost | None:
    """input, weight (N, K), bias, output type (AITER tuned GEMM)."""
    return linear_cost(call, call.tensor(0), call.tensor(1), call.tensor(2))


@model(
    "_rocm_C::wvSplitK", "_rocm_C::LLMM1", "_rocm_C::wvSplitKQ", "_rocm_C::wvSplitKrc",
    "_C::dsv3_fused_a_gemm",
    "sgl_kernel::dsv3_fused_a_gemm", "sgl_kernel::dsv3_router_gemm", "_moe_C::router_gemm",
    "_moe_C::dsv3_router_gemm",
    "trtllm::cublas_mm", "trtllm::cublas_mm_out", "trtllm::bmm_out", "trtllm::dsv3_router_gemm_op",
    "trtllm::dsv3_fused_a_gemm_op",
    "vllm::bf16_mm", "flashinfer::mm_bf16",
)  # fmt: skip
def custom_gemm(call: OpCall) -> OpCost | None:
    """Operators that take the two operands and sometimes the result in an order of their own: the shapes
    decide."""
    found = solve([t for t in call.tensors if len(t.dims) in (2, 3)])
    if found is None:
        return None
    batch, m, n, k, a, b, out = found
    return gemm_cost(
        m, n, k, a.dtype, b.dtype, out.dtype if out else a.dtype, batch=batch, math=multiply_dtype(call, a, b)
    )


def solve(tensors: list[Tensor]) -> tuple[int, int, int, int, Tensor, Tensor, Tensor | None] | None:
    """(batch, M, N, K, A, B, out) of operands in unknown order; None unless exactly one reading fits.

    With three matrices A (M,K), B (K,N or N,K) and out (M,N) the shapes fix the product. With two, the common
    dimension is K; when both are square alike any reading gives the same FLOPs and bytes.
    """
    if len(tensors) == 3:
        readings = [
            (a, b, out)
            for a in tensors
            for b in tensors
            for out in tensors
            if a is not b and b is not out and a is not out and _fits(a, b, out) is not None
        ]
        costs = {_fits(a, b, o) for a, b, o in readings}
        products = {(c[0], c[1] * c[2] * c[3]) for c in costs if c}
        if readings and len(products) == 1:
            # an in-out pair such as (out, a, b) reads the same whichever square matrix is called the result
            a, b, out = readings[0]
            fit = _fits(a, b, out)
            assert fit is not None
            return (*fit, a, b, out)
        return None
    if len(tensors) == 2 and len(tensors[0].dims) == len(tensors[1].dims) == 2:
        a, b = tensors
        if a.dims[1] == b.dims[1]:
            return (1, a.dims[0], b.dims[0], a.dims[1], a, b, None)
        if a.dims[1] == b.dims[0]:
            return (1, a.dims[0], b.dims[1], a.dims[1], a, b, None)
    return None


def _fits(a: Tensor, b: Tensor, out: Tensor) -> tuple[int, int, int, int] | None:
    if not len(a.dims) == len(b.dims) == len(out.dims):
        return None
    batches = {t.dims[:-2] for t in (a, b, out)}
    if len(batches) != 1:
        return None
    (m, k), (x, y), (m2, n) = a.dims[-2:], b.dims[-2:], out.dims[-2:]
    if m != m2 or (x, y) not in ((k, n), (n, k)):
        return None
    return prod(a.dims[:-2]), m, n, k
