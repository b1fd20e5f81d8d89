"""Arguments whose element types were not recorded (NVTX ranges give sizes only): the kernel's name tells the
type."""

import re
from dataclasses import replace
from typing import Any

from diagnose.costs.families import math_dtype
from diagnose.costs.op import OpCall

_TOKENS = (
    ("c10::BFloat16", r"BFloat16|bfloat16|bf16|DF16b"),
    ("c10::Half", r"Half|half|fp16|_f16|h16816|hgemm|OpaqueType<2u>"),
    ("double", r"<double|dgemm"),
    ("float", r"<float|float\)|sgemm|f32f32_f32|tf32|, float"),
    ("long int", r"<long|long\)"),
    ("int", r"<int[,>]|int\)"),
)
_TORCH = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float", "tf32": "float", "fp64": "double"}


def element_type(kernel_name: str) -> str | None:
    """torch's name of the element type that a kernel's name shows; None when it shows none."""
    named = math_dtype(kernel_name)
    if named in _TORCH:
        return _TORCH[named]
    for dtype, pattern in _TOKENS:
        if re.search(pattern, kernel_name):
            return dtype
    return None


def _is_tensor(dims: Any) -> bool:
    return isinstance(dims, tuple) and bool(dims) and all(isinstance(d, int) for d in dims)


def with_types(call: OpCall, otherwise: str | None = None) -> OpCall:
    """The call with one element type for every argument that has dimensions, when no types were recorded at
    all: the kernel's, else `otherwise` (the model's: 'bf16', 'fp16', 'fp32')."""
    if any(call.dtypes) or not call.dims or not call.kernels:
        return call
    dtype = next((t for k in call.kernels if (t := element_type(k)) is not None), _TORCH.get(otherwise or ""))
    if dtype is None:
        return call
    return replace(call, dtypes=tuple(dtype if _is_tensor(d) else "" for d in call.dims))
