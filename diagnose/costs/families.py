"""Kernel name to kernel family, kind of math, and facts that explain a low rate.

The families are an ordered table of regular expressions (`families.csv`, first match wins, case-insensitive);
names may be mangled, demangled or Triton's, so patterns look for substrings.
"""

import csv
import re
from functools import cache, lru_cache
from importlib import resources

GEMMS = frozenset({"gemm", "gemm_lowp", "gemm_w4a16", "gemv", "moe_gemm"})
WEIGHT_FAMILIES = GEMMS | {"splitk_epilogue"}
"""Kernels of products with weights, the sums of split ones included."""
KV_FAMILIES = frozenset({"attn_decode", "attn_prefill", "mla", "attn_merge"})
"""Kernels that read the KV cache or what goes into it."""
ATTENTION = frozenset({"attn_prefill", "attn_decode", "mla"})
COMMUNICATION = frozenset({"nccl", "custom_comm"})
OTHER = "other"


@cache
def _table() -> tuple[tuple[str, re.Pattern[str]], ...]:
    text = resources.files("diagnose.costs").joinpath("families.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple((row["family"], re.compile(row["pattern"], re.IGNORECASE)) for row in rows)


@cache
def families() -> tuple[str, ...]:
    """Every family in order of priority, `other` last."""
    return (*dict.fromkeys(name for name, _ in _table()), OTHER)


@lru_cache(maxsize=65536)
def family(kernel_name: str) -> str:
    """Family of a kernel by its name; 'other' when no pattern fits."""
    for name, pattern in _table():
        if pattern.search(kernel_name):
            return name
    return OTHER


# Ordered: the first that matches decides. Only tokens that name the math, never tile sizes.
_MATH: tuple[tuple[str, str], ...] = (
    # block-scaled and narrow formats; MxE2m1 with E4m3 activations multiplies at the fp8 rate of the wider
    # operand
    (r"bmm_\w*?_MxE2m1(MxE4m3|E4m3)_", "fp8"),
    (r"bmm_\w*?_MxE2m1(MxE2m1|E2m1)_|bmm_\w*?_E2m1E2m1_|nv_float4|nvfp4|a4w4|f4gemm|scaled_fp4_mm|fp4_gemm",
    "fp4"),
    (r"QkvE4m3|bmm_\w*?_E4m3E4m3_|gemm_e4m3|float_e4m3|fp8_gemm|nvjet_\w*?qq|deep_gemm.*fp8|Cijk_\w*?_F8|mx_float8",
    "fp8"),
    (r"a8w8|i8i8|imma|int8_scaled|s8_s8|_I8I_|igemm", "int8"),
    (r"_matmul_ogs_\w*?bf16x", "bf16"),
    (r"_matmul_ogs_\w*?fp8x", "fp8"),
    (r"_matmul_ogs_\w*?fp16x", "fp16"),
    # cuBLAS and CUTLASS fp32 on tensor cores
    (r"tf32|nvjet_sss|_s1688gemm_(?!bf16|fp16|f16)\w*|cutlass_80_tensorop_s1688", "tf32"),
    (r"simt_sgemm|(ampere|volta|turing|maxwell)_sgemm|\bsgemm|_f32f32_f32f32_", "fp32"),
    (r"dgemm|_f64f64_|d884gemm", "fp64"),
    (r"bf16|BFloat16|bfloat16|DF16b|nvjet_tst|nvjet_ttt", "bf16"),
    (r"Cijk_\w*?_(B_BS|BBS|BSS|BB)_", "bf16"),
    (r"Cijk_\w*?_(H_HS|HHS|HSS|HH)_", "fp16"),
    (r"Cijk_\w*?_(S_S|SB|S_B|SS)_", "fp32"),
    (r"fp16|_f16|h16816|h884|h1688|\bhgemm|Half|half_t|__half|float16|nvjet_hs|nvjet_hh|DF16_", "fp16"),
)  # fmt: skip


@cache
def _math() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), dtype) for pattern, dtype in _MATH)


@lru_cache(maxsize=65536)
def math_dtype(kernel_name: str) -> str | None:
    """Type of the multiplication, from tokens of the name; None when the name does not say.

    An fp32 GEMM may run in tf32 on tensor cores: only the kernel's name can tell.
    """
    for pattern, dtype in _math():
        if pattern.search(kernel_name):
            return dtype
    return None


_FACTS: tuple[tuple[str, str], ...] = (
    ("align1", r"align1(?!\d)"),
    ("align2", r"align2(?!\d)"),
    ("align4", r"align4(?!\d)"),
    ("simt", r"_simt_|_ffma_|(ampere|volta|turing|maxwell)_sgemm"),
    ("wmma", r"_wmma_"),
    ("built_for_sm75", r"cutlass_75_|turing_"),
    ("built_for_sm70", r"cutlass_70_|volta_"),
    ("built_for_sm80", r"cutlass_80_|ampere_|Sm80"),
    ("built_for_sm90", r"sm90|Sm90|hopper_"),
    ("built_for_sm100", r"sm100|Sm100"),
    ("split_k", r"splitK|split_k|_splitk|SplitK|stream_?k|_GSU\d"),
    ("gemv", r"gemv|Gemv"),
    ("dequantises", r"awq|gptq|[Mm]arlin|machete|tinygemm|fpA_intB|mxfp4|w4a16|a16_?w4|4bit|dequant"),
    ("offset_math", r"::elementwise_kernel<|elementwise_kernel_manual_unroll<|[^r]OffsetCalculator<"),
    ("casting", r"gpu_kernel_impl<|LoadWithCast"),
    ("flash_v2", r"flash_fwd_kernel|flash_fwd_splitkv"),
    ("flash_v3", r"FlashAttnFwdSm90"),
)


@cache
def _facts() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((fact, re.compile(pattern)) for fact, pattern in _FACTS)


@lru_cache(maxsize=65536)
def name_facts(kernel_name: str) -> frozenset[str]:
    """What the name says about how well the kernel can use a device.

    align1/2/4: operands not aligned for wide loads (CUTLASS); simt: no tensor cores; wmma: the oldest
    tensor-core path; built_for_smNN: the architecture its code targets; split_k, gemv; dequantises: unpacks
    weights inside; offset_math: ATen elementwise that computes an address per element (strided or broadcast
    operands), not vectorised; casting: ATen elementwise converting types per element; flash_v2, flash_v3:
    generation of flash attention.
    """
    found = {fact for fact, pattern in _facts() if pattern.search(kernel_name)}
    return frozenset(found)


_BUILT_FOR = {
    "built_for_sm70": 70,
    "built_for_sm75": 75,
    "built_for_sm80": 80,
    "built_for_sm90": 90,
    "built_for_sm100": 100,
}


def _compute_capability(arch: str | None) -> int | None:
    match = re.fullmatch(r"sm_?(\d{2,3})[a-z]?", arch or "")
    return int(match.group(1)) if match else None


def fallback_reason(kernel_name: str, arch: str | None) -> str | None:
    """Why a GEMM or attention kernel cannot reach the device's best rate, in words; None when the name shows
    nothing.

    `arch` is the device's architecture as in table `device` ('sm_90').
    """
    facts = name_facts(kernel_name)
    if "align1" in facts:
        return "misaligned operands: align1 fallback kernel"
    if "simt" in facts:
        return "fp32 on CUDA cores, not on tensor cores"
    if "align2" in facts:
        return "operands aligned to 2 elements only: narrow loads"
    device = _compute_capability(arch)
    targets = [_BUILT_FOR[f] for f in facts if f in _BUILT_FOR]
    if device is not None and targets and max(targets) < 80 <= device:
        return f"kernel built for sm_{max(targets)} on sm_{device}"
    if device is not None and 90 <= device < 120 and targets and max(targets) < 90:
        return f"kernel built for sm_{max(targets)} on sm_{device}: no warp-group MMA"
    if "flash_v2" in facts and device == 90:
        return "FlashAttention 2 on sm_90: no warp-group MMA"
    if "wmma" in facts:
        return "wmma kernel: small tiles for a small problem"
    return None
