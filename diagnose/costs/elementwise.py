"""Pointwise operators: one pass over the broadcast shape.

Bytes: every operand at its own size (a broadcast or expanded operand once), the result once in its own type;
in-place forms read and write the first operand. FLOPs count one operation an element (information only: these
are bandwidth bound); transcendental functions count one too.
"""

from math import prod

from diagnose.costs import dtypes
from diagnose.costs.common import output_like, streaming, text
from diagnose.costs.op import OpCall, OpCost, Tensor
from diagnose.costs.registry import model

_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "clamp", "clamp_min",
    "clamp_max", "conj_physical",
    "cos", "cosh", "deg2rad", "digamma", "elu", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor",
    "frac", "gelu",
    "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "lgamma", "log", "log10", "log1p", "log2",
    "log_sigmoid", "logit", "mish",
    "nan_to_num", "neg", "positive", "reciprocal", "relu", "relu6", "round", "rsqrt", "sgn", "sigmoid",
    "sign", "silu", "sin",
    "sinc", "sinh", "softplus", "sqrt", "square", "tan", "tanh", "threshold", "trunc", "celu", "selu",
    "softshrink", "hardshrink",
    "log_sigmoid_forward", "dropout", "native_dropout", "triu", "tril",
)  # fmt: skip
_UNARY_BOOL = ("logical_not", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit")
_BINARY = (
    "add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "fmod", "remainder", "pow", "maximum",
    "minimum", "fmax", "fmin",
    "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
    "__and__", "__or__",
    "__xor__", "__lshift__", "__rshift__", "__iand__", "__ior__", "copysign", "hypot", "xlogy", "logaddexp",
    "prelu", "_prelu_kernel",
)  # fmt: skip
_BINARY_BOOL = ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "isclose")
_TERNARY = ("addcmul", "addcdiv", "lerp", "where", "_s_where", "masked_fill", "clamp_tensor")


def pointwise_cost(
    operands: list[Tensor], dtype_out: str, operations: float = 1.0, *, in_place: bool = False
) -> OpCost | None:
    """One pass over the broadcast shape of `operands`; the result has `dtype_out`, or overwrites the first
    operand."""
    if not operands:
        return None
    dims = broadcast([t.dims for t in operands])
    if dims is None:
        return None
    if in_place:
        out = operands[0]
    else:
        like = next((t for t in operands if t.dims == dims), None)
        out = output_like(dims, dtype_out, like)
    numbers = any(t.dtype in dtypes.FLOATS for t in operands)
    flops = operations * prod(dims) if numbers else 0.0
    double = any(t.dtype == "fp64" and t.dims for t in operands)
    others = [text(t.dims) for t in operands[1:] if t.dims and t.dims != dims]
    shape = text(dims) + (f" , {' , '.join(others)}" if others and operands[0].dims == dims else "")
    return streaming(operands, [out], "elementwise", flops, dtype="fp64" if double else "fp32", shape=shape)


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The broadcast of shapes by torch's rules; None when they do not broadcast."""
    width = max((len(s) for s in shapes), default=0)
    dims = []
    for axis in range(width):
        sizes = {s[axis - width + len(s)] for s in shapes if axis - width + len(s) >= 0}
        sizes.discard(1)
        if len(sizes) > 1:
            return None
        dims.append(sizes.pop() if sizes else 1)
    return tuple(dims)


def result_type(operands: list[Tensor], *, division: bool = False) -> str:
    """torch's type promotion: dimensioned tensors first, 0-d tensors and Python numbers only raise the
    category."""
    wide = [t.dtype for t in operands if t.dims] or [t.dtype for t in operands]
    best = dtypes.promote(wide)
    if best not in dtypes.FLOATS and any(t.dtype in dtypes.FLOATS for t in operands):
        best = "fp32"
    if division and best not in dtypes.FLOATS:
        best = "fp32"
    return best


def _split(name: str) -> tuple[str, bool]:
    base = name.removeprefix("aten::")
    in_place = base.endswith("_") and not base.endswith("__")
    return (base[:-1] if in_place else base), in_place


def _names(bases: tuple[str, ...]) -> list[str]:
    return [f"aten::{b}{s}" for b in bases for s in ("", "_") if not (b.endswith("_") and s)]


@model(*_names(_UNARY), *_names(_UNARY_BOOL))
def unary(call: OpCall) -> OpCost | None:
    """self, parameters (and out)."""
    base, in_place = _split(call.name)
    x = call.tensor(0)
    if x is None:
        return None
    operands = [x]
    if base in ("clamp", "clamp_min", "clamp_max"):
        operands += [t for i in (1, 2) if (t := call.tensor(i)) is not None and t.dims]
    out = "bool" if base in _UNARY_BOOL else result_type(operands)
    if out not in dtypes.FLOATS and base in (
        "exp",
        "log",
        "sin",
        "cos",
        "sqrt",
        "rsqrt",
        "sigmoid",
        "tanh",
        "erf",
    ):
        out = "fp32"
    return pointwise_cost(operands, out, in_place=in_place)


@model(*_names(_BINARY), *_names(_BINARY_BOOL))
def binary(call: OpCall) -> OpCost | None:
    """self, other, alpha (and out). `other` may be a number, recorded as a 0-d value."""
    base, in_place = _split(call.name)
    operands = [t for i in (0, 1) if (t := call.tensor(i)) is not None]
    if not operands or (call.tensor(0) is None and call.scalar(0) == ""):
        return None
    out = "bool" if base in _BINARY_BOOL else result_type(operands, division=base in ("div", "true_divide"))
    given = call.tensor(3) or (call.tensor(2) if call.scalar(2) == "" else None)
    if given is not None and given.dims:
        out = given.dtype
    return pointwise_cost([t for t in operands if t.dims] or operands, out, in_place=in_place)


@model(*_names(_TERNARY))
def ternary(call: OpCall) -> OpCost | None:
    """where: condition, self, other; addcmul, addcdiv: self, tensor1, tensor2; masked_fill: self, mask,
    value."""
    base, in_place = _split(call.name)
    operands = [t for i in (0, 1, 2) if (t := call.tensor(i)) is not None and t.dims]
    values = operands[1:] if base in ("where", "_s_where") else operands[:1]
    if not operands:
        return None
    out = result_type(values or operands)
    return pointwise_cost(
        operands, out, 2.0 if base in ("addcmul", "addcdiv", "lerp") else 1.0, in_place=in_place
    )


@model("aten::_foreach_copy_", "aten::_foreach_add_", "aten::_foreach_mul_")
def foreach(call: OpCall) -> OpCost | None:
    """Two lists whose element type is not recorded: no cost, unless kernels name the type."""
    types = [t for k in call.kernels for t in ("long", "int", "float") if f"Functor<{t}" in k]
    pairs = {"long": "int64", "int": "int32", "float": "fp32"}
    if not types or not call.dims or not isinstance(call.dims[0], tuple):
        return None
    elements = sum(prod(d) for d in call.dims[0] if isinstance(d, tuple))
    e = dtypes.size(pairs[types[0]])
    return OpCost(0.0, 2 * elements * e, None, f"{elements} elements", "elementwise")
