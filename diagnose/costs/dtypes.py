"""Names and sizes of element types as profilers record them."""

SIZE: dict[str, float] = {
    "fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5, "e8m0": 1.0,
    "int64": 8.0, "int32": 4.0, "int16": 2.0, "int8": 1.0, "uint8": 1.0, "int4": 0.5, "bool": 1.0,
    "fp4x2": 1.0, "c64": 8.0, "c128": 16.0,
}  # fmt: skip
"""Bytes of one element. `fp4x2` is torch's packed pair: one recorded element, two values. tf32 moves fp32
bytes."""

FLOATS = ("fp64", "fp32", "bf16", "fp16", "fp8")

_RECORDED = {
    "double": "fp64", "float": "fp32", "c10::half": "fp16", "half": "fp16", "c10::bfloat16": "bf16",
    "bfloat16": "bf16",
    "c10::float8_e4m3fn": "fp8", "c10::float8_e5m2": "fp8", "c10::float8_e4m3fnuz": "fp8",
    "c10::float8_e5m2fnuz": "fp8",
    "c10::float8_e8m0fnu": "e8m0", "c10::float4_e2m1fn_x2": "fp4x2",
    "long int": "int64", "long": "int64", "long long": "int64", "unsigned long": "int64", "int": "int32",
    "unsigned int": "int32", "short": "int16", "short int": "int16", "unsigned short": "int16",
    "signed char": "int8",
    "char": "int8", "c10::qint8": "int8", "unsigned char": "uint8", "c10::quint8": "uint8", "bool": "bool",
    "c10::complex<float>": "c64", "c10::complex<double>": "c128",
    "float32": "fp32", "float64": "fp64", "float16": "fp16", "int64": "int64", "int32": "int32",
    "uint8": "uint8",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "torch.float32": "fp32", "torch.bfloat16": "bf16",
    "torch.float16": "fp16", "__nv_bfloat16": "bf16", "__half": "fp16",
}  # fmt: skip

# torch.ScalarType numbers, as a `dtype` argument is recorded in Concrete Inputs (c10/core/ScalarType.h)
_SCALAR_TYPE = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "fp16", 6: "fp32", 7: "fp64", 9: "c64",
    10: "c128", 11: "bool", 15: "bf16", 23: "fp8", 24: "fp8", 25: "fp8", 26: "fp8",
    44: "e8m0", 45: "fp4x2",
}  # fmt: skip


def recorded(text: str) -> str | None:
    """Our name of a recorded element type ('c10::BFloat16' is 'bf16'); None for 'Scalar', '' and what is not
    a tensor."""
    return _RECORDED.get(text.strip().lower())


def scalar_type(text: str) -> str | None:
    """Our name of a `dtype` argument recorded as a ScalarType number ('15' is 'bf16'); None when it is not
    one."""
    try:
        return _SCALAR_TYPE.get(int(text))
    except ValueError:
        return None


def size(dtype: str) -> float:
    """Bytes of one element of `dtype` (0.5 for 4-bit types). Raises KeyError for an unknown name."""
    return SIZE[dtype]


def promote(dtypes: list[str]) -> str:
    """Result type of arithmetic between tensors of these types (the widest float, else the widest
    integer)."""
    best = "bool"
    for dtype in dtypes:
        if dtype in FLOATS and best in FLOATS:
            if {dtype, best} == {"bf16", "fp16"}:
                best = "fp32"
            elif SIZE[dtype] > SIZE[best]:
                best = dtype
        elif dtype in FLOATS or (best not in FLOATS and (SIZE[dtype] > SIZE[best] or best == "bool")):
            best = dtype
    return best
