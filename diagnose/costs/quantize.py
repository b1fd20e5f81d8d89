"""Quantising activations: read the wide tensor, write the narrow one and its scales.

2 FLOP an element with a given scale, 4 when the scale is found first (a per-tensor dynamic scale reads the
input twice).
"""

from dataclasses import replace

from diagnose.costs import dtypes
from diagnose.costs.common import streaming, text
from diagnose.costs.op import OpCall, OpCost
from diagnose.costs.registry import model

_WIDE = ("bf16", "fp16", "fp32")
_NARROW = ("fp8", "int8", "uint8", "fp4x2", "int32")


def quantize_cost(
    rows: int, width: int, dtype: str, dtype_out: str, *, scales: int = 0, passes: int = 1
) -> OpCost:
    """`rows` x `width` from `dtype` to `dtype_out`, writing `scales` fp32 scales, reading the input `passes`
    times."""
    data = rows * width * (passes * dtypes.size(dtype) + dtypes.size(dtype_out)) + 4.0 * scales
    return OpCost((2.0 if passes == 1 else 4.0) * rows * width, data, "fp32", f"{rows}x{width}", "quantise")


@model(
    "_C::static_scaled_fp8_quant", "_C::dynamic_scaled_fp8_quant", "_C::dynamic_per_token_scaled_fp8_quant",
    "_C::scaled_fp4_quant",
    "_C::per_token_group_fp8_quant", "_C::static_scaled_int8_quant", "_C::dynamic_scaled_int8_quant",
    "_C::per_token_group_quant_int8",
    "sgl_kernel::sgl_per_token_group_quant_fp8", "sgl_kernel::sgl_per_tensor_quant_fp8",
    "sgl_kernel::sgl_per_token_quant_fp8",
    "sgl_kernel::sgl_per_token_group_quant_int8", "sgl_kernel::scaled_fp4_quant",
    "sgl_kernel::sgl_per_token_group_quant_8bit",
    "trtllm::fp4_quantize", "trtllm::quantize_e4m3_per_tensor", "trtllm::static_quantize_e4m3_per_tensor",
    "aiter::static_per_tensor_quant",
    "aiter::dynamic_per_tensor_quant", "aiter::dynamic_per_token_scaled_quant",
    "aiter::dynamic_per_group_scaled_quant_fp4",
    "bitsandbytes::int8_vectorwise_quant", "bitsandbytes::quantize_4bit", "bitsandbytes::quantize_blockwise",
    "bitsandbytes::int8_double_quant",
)  # fmt: skip
def quantize(call: OpCall) -> OpCost | None:
    """A wide and (mostly) a narrow tensor of the same elements, in either order, with scales."""
    wide = [t for t in call.tensors if t.dtype in _WIDE and len(t.dims) >= 2]
    if not wide:
        return None
    x = max(wide, key=lambda t: t.numel)
    narrow = [t for t in call.tensors if t.dtype in _NARROW and len(t.dims) >= 2]
    rest = [t for t in call.tensors if t is not x and t not in narrow]
    reads, writes = [x, *rest], narrow
    extra = 0.0
    if not narrow:  # the result is fresh: 1 byte an element, half for 4-bit formats
        extra = x.numel * (0.5 + 1 / 16 if "fp4" in call.name or "4bit" in call.name else 1.0)
    per_tensor = "dynamic_scaled_fp8" in call.name or "dynamic_per_tensor" in call.name
    flops = (4.0 if "dynamic" in call.name or "per_token" in call.name else 2.0) * x.numel
    cost = streaming(reads, writes, "quantise", flops, extra_bytes=extra, dtype="fp32", shape=text(x.dims))
    return (
        replace(cost, bytes_min=cost.bytes_min + x.bytes, bytes_high=cost.high + x.bytes)
        if per_tensor
        else cost
    )


@model("bitsandbytes::int8_mm_dequant", "_C::fp8_dequant", "sgl_kernel::dequantize")
def dequantize_result(call: OpCall) -> OpCost | None:
    """int32 product and the two scale vectors in, 16-bit result out."""
    x = max(call.tensors, key=lambda t: t.bytes, default=None)
    if x is None:
        return None
    return streaming(
        list(call.tensors),
        [],
        "dequantise",
        2.0 * x.numel,
        extra_bytes=2.0 * x.numel,
        dtype="fp32",
        shape=text(x.dims),
    )
