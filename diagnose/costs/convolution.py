"""Convolutions: 2 · batch · output positions · C_out · (C_in / groups) · kernel positions.

torch's weight already holds C_in / groups; a transposed convolution counts input positions and its weight is
(C_in, C_out / groups, kernel...). Bytes: input, weight, output (and bias) once. Layout changes around the
kernel (NCHW to NHWC and back) are kernels of their own and read and write what they convert.
"""

from math import prod

from diagnose.costs import dtypes
from diagnose.costs.families import math_dtype
from diagnose.costs.op import OpCall, OpCost, Part, Tensor
from diagnose.costs.registry import model

FAMILIES = frozenset({"conv", "gemm", "gemm_lowp", "gemv", "other", "elementwise"})


def output_size(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Output positions along one axis (torch.nn.Conv2d, formula of H_out)."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def convolution_cost(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    dtype: str,
    *,
    transposed: bool = False,
    output_padding: tuple[int, ...] = (0,),
    groups: int = 1,
    bias: bool = False,
    math: str | None = None,
) -> OpCost | None:
    """x (batch, C_in, spatial...), weight as torch has it; per-axis parameters of length 1 apply to every
    axis."""
    axes = len(x) - 2
    if axes < 1 or len(weight) != len(x):
        return None
    stride, padding, dilation, output_padding = (
        _spread(p, axes) for p in (stride, padding, dilation, output_padding)
    )
    kernel, space = weight[2:], x[2:]
    if transposed:
        channels = weight[1] * groups
        out = tuple(
            (s - 1) * st - 2 * p + d * (k - 1) + op + 1
            for s, k, st, p, d, op in zip(
                space, kernel, stride, padding, dilation, output_padding, strict=True
            )
        )
        positions = prod(space)
    else:
        channels = weight[0]
        out = tuple(
            output_size(s, k, st, p, d)
            for s, k, st, p, d in zip(space, kernel, stride, padding, dilation, strict=True)
        )
        positions = prod(out)
    if min(out) <= 0:
        return None
    # per position: every weight is used once, for the channels of its group
    flops = 2.0 * x[0] * positions * prod(weight)
    e = dtypes.size(dtype)
    sizes = [prod(x) * e, prod(weight) * e, x[0] * channels * prod(out) * e]
    to_nhwc = r"nchwToNhwc|nchw_to_nhwc|transpose_NCHW2CNHW|Batched?Transpose|batched_transpose"
    to_nchw = r"nhwcToNchw|nhwc_to_nchw"
    return OpCost(
        flops,
        sum(sizes) + (channels * e if bias else 0.0),
        math or dtype,
        f"{'x'.join(map(str, x))} * {'x'.join(map(str, weight))}",
        "convolution",
        families=FAMILIES,
        m=x[0] * positions if groups == 1 else None,
        n=channels if groups == 1 else None,
        k=prod(weight[1:]) if groups == 1 and not transposed else None,
        parts=(
            Part(to_nhwc, "layout_input", 2 * sizes[0], count=1),
            Part(to_nhwc, "layout_weight", 2 * sizes[1], count=1),
            Part(to_nchw, "layout_output", 2 * sizes[2], count=1),
            Part(r"im2col|im2Col|Im2d2Col", "im2col", sizes[0] + x[0] * prod(weight[1:]) * prod(out) * e),
            Part(r"computeOffsetsKernel|computeBOffsets", "offsets", 0.0),
            Part(
                r"CUDAFunctor_add|AddFunctor", "bias", 2 * sizes[2] + channels * e, sizes[2] / e, dtype="fp32"
            ),
        ),
    )


def _spread(values: tuple[int, ...], axes: int) -> tuple[int, ...]:
    return values * axes if len(values) == 1 else values


def _cost(
    call: OpCall,
    x: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    **options: object,
) -> OpCost | None:
    if x is None or weight is None:
        return None
    dims = x.dims if len(x.dims) == len(weight.dims) else (1, *x.dims)
    tf32 = x.dtype == "fp32" and any(math_dtype(k) == "tf32" for k in call.kernels)
    return convolution_cost(
        dims,
        weight.dims,
        stride or (1,),
        padding or (0,),
        dilation or (1,),
        x.dtype,
        bias=bias is not None,
        math="tf32" if tf32 else None,
        **options,  # type: ignore[arg-type]
    )


@model("aten::convolution", "aten::_convolution", "aten::convolution_overrideable")
def convolution(call: OpCall) -> OpCost | None:
    """input, weight, bias, stride, padding, dilation, transposed, output_padding, groups."""
    return _cost(
        call,
        call.tensor(0),
        call.tensor(1),
        call.tensor(2),
        call.integers(3),
        call.integers(4),
        call.integers(5),
        transposed=call.flag(6),
        output_padding=call.integers(7) or (0,),
        groups=call.integer(8) or 1,
    )


@model("aten::cudnn_convolution", "aten::miopen_convolution", "aten::miopen_depthwise_convolution")
def backend_convolution(call: OpCall) -> OpCost | None:
    """cuDNN: input, weight, padding, stride, dilation, groups; MIOpen has a bias third. (self, weight first
    in both.)"""
    first = 3 if call.name.startswith("aten::miopen") else 2
    return _cost(
        call,
        call.tensor(0),
        call.tensor(1),
        call.tensor(2) if first == 3 else None,
        call.integers(first + 1),
        call.integers(first),
        call.integers(first + 2),
        groups=call.integer(first + 3) or 1,
    )


@model("aten::cudnn_convolution_relu", "aten::cudnn_convolution_add_relu")
def fused_convolution(call: OpCall) -> OpCost | None:
    """relu: input, weight, bias, stride, padding, dilation, groups; add_relu: input, weight, z, alpha, bias,
    stride, ..."""
    first = 5 if "add" in call.name else 3
    return _cost(
        call,
        call.tensor(0),
        call.tensor(1),
        call.tensor(first - 1),
        call.integers(first),
        call.integers(first + 1),
        call.integers(first + 2),
        groups=call.integer(first + 3) or 1,
    )


@model("aten::mkldnn_convolution")
def mkldnn_convolution(call: OpCall) -> OpCost | None:
    """input, weight, bias, padding, stride, dilation, groups."""
    return _cost(
        call,
        call.tensor(0),
        call.tensor(1),
        call.tensor(2),
        call.integers(4),
        call.integers(3),
        call.integers(5),
        groups=call.integer(6) or 1,
    )


@model("aten::conv1d", "aten::conv2d", "aten::conv3d")
def functional_convolution(call: OpCall) -> OpCost | None:
    """input, weight, bias, stride, padding (a list, 'same' or 'valid'), dilation, groups."""
    x, weight = call.tensor(0), call.tensor(1)
    stride, dilation = call.integers(3) or (1,), call.integers(5) or (1,)
    padding = call.integers(4)
    if call.scalar(4).strip("'\"") == "same":
        return None  # its child `_convolution_mode` pads; the convolution below it has the numbers
    return _cost(call, x, weight, call.tensor(2), stride, padding, dilation, groups=call.integer(6) or 1)


@model(
    "aten::_conv_depthwise2d",
    "aten::conv_depthwise3d",
    "aten::thnn_conv2d",
    "aten::_slow_conv2d_forward",
    "aten::slow_conv3d",
)
def native_convolution(call: OpCall) -> OpCost | None:
    """self, weight, kernel_size, bias, stride, padding, dilation."""
    return _cost(
        call,
        call.tensor(0),
        call.tensor(1),
        call.tensor(3),
        call.integers(4),
        call.integers(5),
        call.integers(6),
    )


@model("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d")
def transposed_convolution(call: OpCall) -> OpCost | None:
    """input, weight, bias, stride, padding, output_padding, groups, dilation."""
    return _cost(
        call,
        call.tensor(0),
        call.tensor(1),
        call.tensor(2),
        call.integers(3),
        call.integers(4),
        call.integers(7),
        transposed=True,
        output_padding=call.integers(5) or (0,),
        groups=call.integer(6) or 1,
    )
