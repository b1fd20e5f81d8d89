"""Reductions, softmax and scans: the input once, the result once.

One operation an element (5 for softmax: maximum, subtraction, exponential, sum, division). Softmax over rows
that fit on chip reads once; a kernel that passes over memory again shows in the upper edge (three passes).
"""

from dataclasses import replace
from math import prod

from diagnose.costs import dtypes
from diagnose.costs.common import output_like, streaming, text
from diagnose.costs.op import OpCall, OpCost, Tensor
from diagnose.costs.registry import model


def softmax_cost(rows: int, width: int, dtype: str, dtype_out: str | None = None) -> OpCost:
    """5 FLOP an element; read once, write once; up to one more read of the input (rows too long to keep on
    chip)."""
    e, out = dtypes.size(dtype), dtypes.size(dtype_out or dtype)
    n = rows * width
    return OpCost(
        5.0 * n, n * (e + out), "fp32", f"{rows}x{width}", "softmax", bytes_high=n * (2 * e + out) * 1.1
    )


@model("aten::_softmax", "aten::softmax", "aten::_log_softmax", "aten::log_softmax", "aten::_safe_softmax")
def softmax(call: OpCall) -> OpCost | None:
    """self, dim, half_to_float."""
    x = call.tensor(0)
    if x is None or not x.dims:
        return None
    dtype = "fp32" if call.name.startswith("aten::_") and call.flag(2) else x.dtype
    cost = streaming(
        [x], [output_like(x.dims, dtype, x)], "softmax", 5.0 * x.numel, dtype="fp32", shape=text(x.dims)
    )
    return replace(cost, bytes_high=cost.high + x.bytes)


_REDUCE = (
    "sum", "mean", "nansum", "prod", "amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "all",
    "any", "norm", "linalg_vector_norm",
    "var", "std", "var_mean", "std_mean", "logsumexp", "count_nonzero", "median", "_norm_except_dim",
    "linalg_norm",
)  # fmt: skip
_INDEX = ("argmax", "argmin")


def reduce_cost(elements: float, outputs: float, dtype: str, dtype_out: str | None = None) -> OpCost:
    """`elements` read, `outputs` written."""
    data = elements * dtypes.size(dtype) + outputs * dtypes.size(dtype_out or dtype)
    return OpCost(float(elements), data, "fp32", f"{elements:g} -> {outputs:g}", "reduce")


@model(*(f"aten::{name}" for name in _REDUCE))
def reduce(call: OpCall) -> OpCost | None:
    """self, dim(s): elementwise when a second tensor is given (max, min of two)."""
    x = call.tensor(0)
    if x is None:
        return None
    base = call.name.removeprefix("aten::")
    other = call.tensor(1)
    if other is not None and other.dims and base in ("max", "min"):
        return streaming(
            [x, other], [output_like(x.dims, x.dtype, x)], "elementwise", float(x.numel), dtype="fp32"
        )
    outputs = _outputs(call, x)
    width = {"all": 1.0, "any": 1.0}.get(base, 8.0 if base in _INDEX else dtypes.size(x.dtype))
    numbers = x.dtype in dtypes.FLOATS
    return streaming(
        [x],
        [],
        "argmax" if base in _INDEX else "reduce",
        float(x.numel) if numbers else 0.0,
        extra_bytes=outputs * width,
        dtype="fp32",
        shape=f"{text(x.dims)} -> {outputs:g}",
    )


def _outputs(call: OpCall, x: Tensor) -> float:
    """Elements left: recorded dimensions are taken out; unreadable ones leave at least one."""
    first = 2 if call.name.removeprefix("aten::") in ("norm", "linalg_vector_norm", "linalg_norm") else 1
    for i in (first, first + 1):
        axes = call.integers(i)
        if axes and all(-len(x.dims) <= a < len(x.dims) for a in axes):
            gone = prod(x.dims[a] for a in {a % len(x.dims) for a in axes}) if x.dims else 1
            return x.numel / max(1, gone)
    return 1.0


@model("aten::cumsum", "aten::cumsum_", "aten::cumprod", "aten::cummax", "aten::logcumsumexp")
def scan(call: OpCall) -> OpCost | None:
    """self, dim: one pass (decoupled look-back). Integers narrower than 8 bytes are summed in int64."""
    x = call.tensor(0)
    if x is None:
        return None
    dtype = x.dtype if x.dtype in dtypes.FLOATS else "int64"
    return streaming([x], [output_like(x.dims, dtype, x)], "scan", float(x.numel), dtype="fp32")
