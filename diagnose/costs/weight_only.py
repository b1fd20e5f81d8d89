"""Weight-only quantised products (int4, int8, MXFP4, NVFP4 weights; 16-bit activations).

FLOPs 2·M·N·K at the activation type's rate: dequantisation runs on other units and is not counted. Bytes are
what is stored: packed weights, scales (one per group of g along K), zero points (packed like the weights;
none when symmetric), act-order indices. With g = 128: 4.125 bits a weight symmetric, 4.156 with zeros; g =
32: 4.5 and 4.625.
"""

from dataclasses import replace
from math import ceil, prod

from diagnose.costs import dtypes
from diagnose.costs.matmul import gemm_cost
from diagnose.costs.op import OpCall, OpCost, Tensor
from diagnose.costs.registry import model

FORMATS: dict[str, tuple[float, float, int, bool]] = {
    # bits a weight, bytes a scale, default group, zero points
    "int4": (4, 2, 128, False),
    "awq": (4, 2, 128, True),
    "gptq": (4, 2, 128, False),
    "gptq_asym": (4, 2, 128, True),
    "int8": (8, 2, -1, False),
    "mxfp4": (4, 1, 32, False),
    "nvfp4": (4, 1, 16, False),
    "nf4": (4, 4, 64, False),
}


def packed_weight_bytes(n: int, k: int, fmt: str, group: int | None = None, act_order: bool = False) -> float:
    """Stored bytes of an (N, K) weight: packed values, scales, zero points; `group` along K (-1: one per
    column)."""
    bits, scale, default, zeros = FORMATS[fmt]
    g = default if group is None else group
    groups = 1 if g == -1 else ceil(k / g)
    values = n * k * bits / 8
    return (
        values
        + groups * n * scale
        + (groups * n * bits / 8 if zeros else 0.0)
        + (4.0 * k if act_order else 0.0)
    )


def weight_only_cost(
    m: int,
    n: int,
    k: int,
    fmt: str,
    *,
    group: int | None = None,
    activation: str = "bf16",
    act_order: bool = False,
) -> OpCost:
    """(M,K) 16-bit activations times packed (N,K) weights, result in the activation's type."""
    dense = gemm_cost(m, n, k, activation)
    weights = packed_weight_bytes(n, k, fmt, group, act_order)
    e = dtypes.size(activation)
    return replace(
        dense,
        bytes_min=(m * k + m * n) * e + weights,
        shape=f"{m}x{k} . {k}x{n} {fmt}",
        role="gemm_w4a16" if FORMATS[fmt][0] == 4 else "gemm_w8a16",
    )


_PACKED = ("int32", "uint8", "int8", "int64")


@model(
    "_C::marlin_gemm", "_C::gptq_marlin_gemm", "_C::awq_marlin_gemm", "_C::awq_gemm", "_C::gptq_gemm",
    "_C::machete_mm",
    "_C::cutlass_w4a8_mm", "_C::fp8_marlin_gemm", "_C::gptq_marlin_24_gemm", "_C::marlin_qqq_gemm",
    "_C::allspark_w8a16_gemm",
    "vllm::triton_w4a16_gemm", "vllm::apply_gptq_marlin_linear", "vllm::apply_awq_marlin_linear",
    "vllm::gptq_marlin_gemm",
    "sgl_kernel::gptq_gemm", "sgl_kernel::gptq_marlin_gemm", "sgl_kernel::awq_gemm",
    "sgl_kernel::marlin_gemm",
    "trtllm::w4a16_gemm", "trtllm::weight_only_quant_gemm", "trtllm::finegrained_mixed_dtype_gemm",
    "aten::_weight_int4pack_mm", "aten::_weight_int4pack_mm_for_cpu", "aten::_weight_int8pack_mm",
    "quantized::linear_dynamic", "auto_gptq::gemm", "awq_ext::gemm_forward_cuda",
)  # fmt: skip
def packed_gemm(call: OpCall) -> OpCost | None:
    """Activation (.., K) 16-bit, one packed integer matrix, scales whose last dimension is N (or a size
    argument).

    N is what makes packed bits ÷ (N·K) a real width (2, 3, 4, 6 or 8 bits): checked, never assumed.
    """
    # biases, results and scales are 16-bit too: the activation is the first matrix, as in every one of these
    # operators
    wide = [t for t in call.tensors if t.dtype in ("bf16", "fp16", "fp32", "fp8") and len(t.dims) >= 2]
    packed = [t for t in call.tensors if t.dtype in _PACKED and len(t.dims) >= 2]
    if not wide or not packed:
        return None
    x = wide[0]
    weight = max(packed, key=lambda t: t.bytes)
    m, k = prod(x.dims[:-1]), x.dims[-1]
    scales = [t for t in wide[1:] if t.dims[:-1] != x.dims[:-1]]
    sizes = [v for i in range(len(call.scalars)) if (v := call.integer(i)) is not None and v > 1]
    columns = (
        [t.dims[-1] for t in scales]
        + [t.dims[-2] for t in scales]
        + sizes
        + [weight.dims[0], weight.dims[-1]]
    )
    bits = next((w for n in columns if (w := _width(weight, n, k)) is not None), None)
    if bits is None:
        return None
    n = round(weight.bytes * 8 / bits / k)
    rest = _read_once(call, x, weight, m, n)
    e = dtypes.size(x.dtype)
    out = 2.0 if x.dtype == "fp8" else e
    dense = gemm_cost(m, n, k, x.dtype)
    return replace(
        dense,
        bytes_min=x.bytes + weight.bytes + rest + m * n * out,
        shape=f"{m}x{k} . {k}x{n} int{bits}",
        role="gemm_w4a16" if bits == 4 else "gemm_w8a16",
    )


def _width(weight: Tensor, n: int, k: int) -> int | None:
    if n <= 1 or k <= 0:
        return None
    bits = weight.bytes * 8 / (n * k)
    return int(bits) if bits in (2, 3, 4, 6, 8) else None


def _read_once(call: OpCall, x: Tensor, weight: Tensor, m: int, n: int) -> float:
    """Bytes of scales, zero points and indices: what is neither activation, weight, result nor workspace."""
    total = 0.0
    for t in call.tensors:
        if t is x or t is weight or not t.dims or t.dims[-1:] == (0,):
            continue
        if t.dims == (m, n) or (t.dtype == "int32" and len(t.dims) == 1 and t.numel != x.dims[-1]):
            continue  # a preallocated result, or locks
        total += t.bytes
    return total


@model("bitsandbytes::gemv_4bit", "bitsandbytes::gemv_4bit.out", "bitsandbytes::gemm_4bit")
def bitsandbytes_4bit(call: OpCall) -> OpCost | None:
    """A, packed B, shapeB, absmax, code, blocksize: nf4 or fp4 weights."""
    x, packed, shape, absmax = call.tensor(0), call.tensor(1), call.integers(2), call.tensor(3)
    if x is None or packed is None or len(shape) != 2:
        return None
    n, k = shape
    if x.dims[-1] != k:
        return None
    m = prod(x.dims[:-1])
    dense = gemm_cost(m, n, k, x.dtype)
    data = x.bytes + packed.bytes + (absmax.bytes if absmax else 0.0) + m * n * dtypes.size(x.dtype)
    return replace(
        dense,
        bytes_min=data,
        shape=f"{m}x{k} . {k}x{n} nf4",
        role="gemm_w4a16",
    )


@model(
    "bitsandbytes::dequantize_4bit", "bitsandbytes::dequantize_blockwise", "_C::awq_dequantize",
    "sgl_kernel::awq_dequantize",
    "_C::ggml_dequantize",
)  # fmt: skip
def dequantize(call: OpCall) -> OpCost | None:
    """Packed weights and scales in, 16-bit weights out: 4-bit gives two elements a byte."""
    tensors = call.tensors
    if not tensors:
        return None
    packed = max(tensors, key=lambda t: t.bytes)
    eight = call.name == "bitsandbytes::dequantize_blockwise"
    values = packed.bytes * (1 if eight else 2)
    return OpCost(
        values,
        sum(t.bytes for t in tensors) + values * 2,
        "fp32",
        f"{int(values)} weights",
        "dequantise",
    )
