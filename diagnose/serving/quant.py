"""How a checkpoint stores its weights: the `quantization_config` of a Hugging Face config, as bytes per
matrix.

A format is a list of rules "these modules are stored so"; what no rule names keeps the model's own dtype.
Encoded size counts the packed weights with their scales and zero points, because those are what a kernel
has to read.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

DTYPE_BYTES: dict[str, float] = {
    "fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5,
    "int4": 0.5,
}  # fmt: skip

_DTYPE_NAMES = {
    "float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16", "half": "fp16", "fp16": "fp16", "float8_e4m3fn": "fp8", "float8_e4m3fnuz": "fp8",
    "float8_e5m2": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8": "fp8", "int8": "int8", "nvfp4": "fp4",
    "fp4": "fp4", "fp4_e2m1": "fp4", "fp32": "fp32", "fp8_inc": "fp8", "fp8_ds_mla": "fp8",
}  # fmt: skip

NEVER = ("embed", "head", "router", "norm", "other")
"""Components that stay in the model's dtype unless a format says otherwise by name."""


def dtype_name(text: str | None) -> str | None:
    """Canonical short dtype (bf16, fp16, fp8, ...) of a config or engine spelling, None when it is none."""
    if text is None:
        return None
    return _DTYPE_NAMES.get(text.removeprefix("torch.").strip().lower())


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Storage of one matrix. `bits` per weight; one scale (and zero) per `group` weights along K, per `block`
    (rows, columns), per output channel (`per_channel`), or per tensor when all three are absent."""

    bits: float
    scale_bits: float = 0.0
    zero_bits: float = 0.0
    group: int | None = None
    block: tuple[int, int] | None = None
    per_channel: bool = False
    tensor_bytes: float = 4.0
    label: str = ""
    act_bits: float | None = None

    def encoded_bytes(self, n: int, k: int) -> float:
        """Bytes of an (n, k) matrix: packed weights, scales and zero points."""
        weights = n * k * self.bits / 8
        per_scale = (self.scale_bits + self.zero_bits) / 8
        if self.group:
            return weights + n * math.ceil(k / self.group) * per_scale + self.tensor_bytes
        if self.block:
            return weights + math.ceil(n / self.block[0]) * math.ceil(k / self.block[1]) * per_scale
        if self.per_channel:
            return weights + n * per_scale
        return weights + self.tensor_bytes


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """A checkpoint's quantisation. `rules` maps module patterns to formats, first match wins; `skip` wins
    over all.

    `kv_dtype` is the KV cache dtype the checkpoint asks for, None when it says nothing.
    """

    method: str
    rules: tuple[tuple[str, WeightFormat], ...]
    skip: tuple[str, ...] = ()
    kv_dtype: str | None = None
    quantise_head: bool = False
    note: str | None = None

    @property
    def label(self) -> str:
        """Short text such as `gptq int4 g128`."""
        return (
            " + ".join(
                dict.fromkeys(
                    f.label if f.label.startswith(self.method) else f"{self.method} {f.label}".strip()
                    for _, f in self.rules
                )
            )
            or self.method
        )

    @property
    def weight_bits(self) -> float | None:
        """Bits of the first rule's weights, without scales."""
        return self.rules[0][1].bits if self.rules else None

    @property
    def group_size(self) -> int | None:
        """Weights that share a scale along K, of the first rule."""
        return self.rules[0][1].group if self.rules else None

    def format_for(self, module: str, component: str) -> WeightFormat | None:
        """The format of a module, None when it keeps the model's dtype."""
        if component in NEVER and not (component == "head" and self.quantise_head):
            return None
        if any(_matches(pattern, module) for pattern in self.skip):
            return None
        for pattern, fmt in self.rules:
            if pattern == "Linear" or _matches(pattern, module):
                return fmt
        return None


def _matches(pattern: str, module: str) -> bool:
    """Engines match skip lists as regex (`re:`), glob (`*`) or as a dotted part of the name; so do we."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error:
            return False
    if "*" in pattern:
        return re.match(re.escape(pattern).replace(r"\*", ".*") + r"($|\.)", module) is not None
    return module == pattern or f".{pattern}." in f".{module}."


def _int_format(bits: int, group: int | None, zero: bool, label: str = "") -> WeightFormat:
    """Grouped integer weights with fp16 scales and, where asymmetric, packed zeros."""
    zeros = float(bits) if zero else 0.0
    text = label or f"int{bits}" + (f" g{group}" if group else "")
    if group:
        return WeightFormat(bits, 16, zeros, group=group, tensor_bytes=0, label=text)
    return WeightFormat(bits, 16, zeros, per_channel=True, label=text)


def _compressed(group: dict[str, Any]) -> WeightFormat | None:
    """One `config_groups` entry of compressed-tensors."""
    weights = group.get("weights") or {}
    bits = weights.get("num_bits")
    if not bits:
        return None
    acts = (group.get("input_activations") or {}).get("num_bits")
    kind = "fp" if weights.get("type") == "float" else "int"
    strategy = str(weights.get("strategy") or "tensor")
    size = weights.get("group_size")
    label = f"{kind}{bits}" + (f" a{acts}" if acts else "")
    if kind == "fp" and bits == 4:
        size = size or 16
        scale = 8.0
        return WeightFormat(4, scale, group=size, label=label + f" g{size}", act_bits=acts)
    if strategy in {"group", "tensor_group"} and size:
        zero = 0.0 if weights.get("symmetric", True) else float(bits)
        return WeightFormat(
            bits, 16, zero, group=size, tensor_bytes=0, label=label + f" g{size}", act_bits=acts
        )
    if strategy == "block":
        rows, cols = (weights.get("block_structure") or [128, 128])[:2]
        return WeightFormat(
            bits, 32, block=(int(rows), int(cols)), label=label + f" b{rows}x{cols}", act_bits=acts
        )
    if strategy == "channel":
        return WeightFormat(bits, 32, per_channel=True, label=label, act_bits=acts)
    return WeightFormat(bits, label=label, act_bits=acts)


def _modelopt(config: dict[str, Any]) -> tuple[WeightFormat | None, str | None]:
    algo = str(config.get("quant_algo") or "").upper()
    kv = dtype_name(str(config.get("kv_cache_quant_algo") or "").lower() or None)
    if "NVFP4" in algo or algo == "FP4":
        return WeightFormat(4, 8, group=int(config.get("group_size") or 16), label="nvfp4"), kv
    if "FP8" in algo:
        return WeightFormat(8, label="fp8", act_bits=8), kv
    if "W4A8" in algo or "W4A16" in algo or "AWQ" in algo:
        return _int_format(4, int(config.get("group_size") or 128), False), kv
    return None, kv


def _bitsandbytes(config: dict[str, Any]) -> WeightFormat:
    if config.get("load_in_8bit") or config.get("_load_in_8bit"):
        return WeightFormat(8, 32, per_channel=True, label="int8", act_bits=8)
    # 64 weights share an absmax; double quantisation stores it in 8 bits with one fp32 per 256 of them
    double = config.get("bnb_4bit_use_double_quant", False)
    return WeightFormat(4, 8 + 32 / 256 if double else 32, group=64, tensor_bytes=0, label="nf4 g64")


def _generic(method: str, config: dict[str, Any]) -> WeightFormat | None:
    bits = config.get("bits") or config.get("w_bit") or config.get("weight_bits")
    if not bits:
        return None
    group = config.get("group_size", config.get("q_group_size"))
    group = int(group) if group and int(group) > 0 else None
    if method.startswith("awq"):
        return _int_format(int(bits), group, bool(config.get("zero_point", True)))
    return _int_format(int(bits), group, True)


def parse_quantization(config: dict[str, Any] | None) -> QuantFormat | None:
    """A QuantFormat from a `quantization_config`, None when the checkpoint is not quantised.

    An unknown method comes back with no rules and a note: its size is then unknown, never guessed.
    """
    if not config:
        return None
    config = {**config, **(config.get("quantization") or {})}
    method = str(config.get("quant_method") or config.get("quant_algo") or "unknown").lower()
    skip = tuple(
        str(p)
        for key in (
            "modules_to_not_convert",
            "ignore",
            "ignored_layers",
            "exclude_modules",
            "llm_int8_skip_modules",
        )
        for p in config.get(key) or ()
    )
    kv: str | None = None
    rules: list[tuple[str, WeightFormat]] = []
    if method in {"compressed-tensors", "compressed_tensors"}:
        method = "compressed-tensors"
        for group in (config.get("config_groups") or {}).values():
            if (fmt := _compressed(group)) is not None:
                rules += [(str(t), fmt) for t in group.get("targets") or ["Linear"]]
        scheme = config.get("kv_cache_scheme")
        if scheme and scheme.get("num_bits") == 8:
            kv = "fp8" if scheme.get("type") == "float" else "int8"
    elif method.startswith("modelopt"):
        fmt, kv = _modelopt(config)
        rules = [("Linear", fmt)] if fmt else []
    elif method == "mxfp4":
        rules = [("experts", WeightFormat(4, 8, group=32, tensor_bytes=0, label="mxfp4 g32"))]
    elif method in {"fp8", "fbgemm_fp8", "deepseek_fp8"}:
        block = config.get("weight_block_size")
        if block:
            rows, cols = int(block[0]), int(block[1])
            fmt = WeightFormat(8, 32, block=(rows, cols), label=f"fp8 b{rows}x{cols}", act_bits=8)
        elif method == "fbgemm_fp8":
            fmt = WeightFormat(8, 32, per_channel=True, label="fp8", act_bits=8)
        else:
            fmt = WeightFormat(8, label="fp8", act_bits=8)
        rules = [("Linear", fmt)]
    elif method in {"bitsandbytes", "bnb"}:
        rules = [("Linear", _bitsandbytes(config))]
    elif (generic := _generic(method, config)) is not None:
        rules = [("Linear", generic)]
    note = (
        None if rules else f"quantisation method {method!r} is not known here; encoded weight size is unknown"
    )
    return QuantFormat(method, tuple(rules), skip, kv, bool(config.get("lm_head", False)), note)
