"""What a kernel's name says: its kind in a decoder layer, and widths or formats that a model must not contradict."""

import re
from dataclasses import dataclass
from functools import lru_cache

from diagnose.costs.families import family, math_dtype

GEMM, EXPERT, ATTENTION, MERGE, NORM, ROPE, KV, ACTIVATION, QUANT, MOE, COMM, GATHER, COPY, SPLIT_SUM, OTHER = (
    "gemm", "expert", "attention", "merge", "norm", "rope", "kv", "activation", "quant", "moe", "comm",
    "gather", "copy", "split_sum", "other",
)  # fmt: skip

_OF_FAMILY = {
    "gemm": GEMM, "gemm_lowp": GEMM, "gemm_w4a16": GEMM, "gemv": GEMM, "moe_gemm": EXPERT,
    "attn_prefill": ATTENTION, "attn_decode": ATTENTION, "mla": ATTENTION, "attn_merge": MERGE, "norm": NORM,
    "rope": ROPE, "kv_write": KV, "activation": ACTIVATION, "quant": QUANT, "moe_aux": MOE, "nccl": COMM,
    "custom_comm": COMM, "gather": GATHER, "copy_cat": COPY, "splitk_epilogue": SPLIT_SUM,
}  # fmt: skip

# Names that the family table puts elsewhere because it answers another question.
_FIRST: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"router_gemm"), GEMM),
    # The reduction is fused with the norm after it, and stands where the norm does.
    (re.compile(r"allreduce_fusion|allreduce\w*(rms|norm)", re.IGNORECASE), NORM),
    (re.compile(r"triton_\w*(silu|gelu)", re.IGNORECASE), ACTIVATION),
    (re.compile(r"scheduler_metadata|prepare_varlen", re.IGNORECASE), OTHER),
)


@lru_cache(maxsize=65536)
def kind(name: str) -> str:
    """Kind of a kernel in a decoder layer, from its name."""
    for pattern, found in _FIRST:
        if pattern.search(name):
            return found
    return _OF_FAMILY.get(family(name), OTHER)


_ADDS = re.compile(
    r"fused_?add|FusedAddEnumE[1-9]|FusedAddRMSNorm|add_rmsnorm\w*?Li\d+ELi\d+ELb1E|allreduce_fusion"
    r"|triton_\w*fused\w*_add_\w*rsqrt|rmsnorm2d_fwd_with_add|fused_add_layer_?norm",
    re.IGNORECASE,
)


def adds_residual(name: str) -> bool:
    """Whether a norm kernel's name says that it adds (and writes) the residual too."""
    return _ADDS.search(name) is not None


def fuses_activation(name: str) -> bool:
    """Whether a product's name says that it applies the gated activation to its result."""
    return re.search(r"swiglu|silu|geglu|fmoe|g1u1", name, re.IGNORECASE) is not None


@lru_cache(maxsize=8192)
def kv_dtype(name: str) -> str | None:
    """Type of the KV cache that an attention kernel reads, None where its name does not say."""
    if re.search(r"KVCacheDataType\)[1-9]|QkvE4m3|KvE4m3|float_e4m3|fp8_?e4m3|e4m3fn", name, re.IGNORECASE):
        return "fp8"
    if re.search(r"KVCacheDataType\)0|QkvBfloat16", name):
        return "bf16" if "bf" in name.lower() else None
    return None


@dataclass(frozen=True, slots=True)
class Widths:
    """Sizes that a name carries; None where it does not.

    head_dim of attention; group: query heads a KV head; kv_row_bytes: bytes of one token's keys as the cache
    write moves them; norm_block: elements that one block of a norm holds, at least the row's width.
    """

    head_dim: int | None = None
    group: int | None = None
    kv_row_bytes: int | None = None
    norm_block: int | None = None


@lru_cache(maxsize=8192)
def widths(name: str) -> Widths:
    """Sizes in a kernel's name."""
    # vLLM ROCm: <DTYPE, T, cache T, KV dtype, block size, head size, threads, alibi, group, ...>
    if m := re.search(r"paged_attention_ll4mi_QKV\w*<(.*)", name):
        parts = [p.strip() for p in _split(m.group(1))]
        ints = [int(p) for p in parts if p.isdigit()]
        flags = [i for i, p in enumerate(parts) if p in ("true", "false")]
        if flags and len(ints) >= 4:
            before = [int(p) for p in parts[: flags[0]] if p.isdigit()]
            after = next((int(p) for p in parts[flags[0] + 1 :] if p.isdigit()), None)
            if len(before) >= 2:
                return Widths(head_dim=before[-2], group=after)
    if m := re.search(r"[Ff]lash_fwd_kernel_traits<(?:\(int\))?(\d+)", name):
        return Widths(head_dim=int(m.group(1)))
    if m := re.search(r"fmhaSm\d+\w*?H(\d+)", name):
        return Widths(head_dim=int(m.group(1)))
    if m := re.search(r"store_kvcache<\(?(\d+)l", name):
        return Widths(kv_row_bytes=int(m.group(1)))
    if m := re.search(r"add_rmsnorm_quant_kernelI\w*?Li(\d+)ELi(\d+)E", name):
        return Widths(norm_block=int(m.group(1)) * int(m.group(2)))
    if m := re.search(r"Rmsnorm2d\w*?Generic2dBlockShapeINS_8sequenceIJLi\d+ELi(\d+)E", name):
        return Widths(norm_block=int(m.group(1)))
    return Widths()


def _split(text: str) -> list[str]:
    """Template arguments at the top level of `text`, which starts inside the brackets."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "<(":
            depth += 1
        elif c in ">)":
            if depth == 0:
                out.append(text[start:i])
                return out
            depth -= 1
        elif c == "," and depth == 0:
            out.append(text[start:i])
            start = i + 1
    return [*out, text[start:]]


def weight_math(name: str) -> str | None:
    """What a product's name says about its weights: fp8, fp4, int8, packed (4-bit integers) or 16; None unknown."""
    lowered = name.lower()
    if "mxfp4" in lowered or "mxe2m1" in lowered or "nvfp4" in lowered or "e2m1" in lowered:
        return "fp4"
    found = family(name)
    if found == "gemm_w4a16":
        return "packed"
    math = math_dtype(name)
    if math in ("fp8", "int8", "fp4"):
        return math
    if found in ("gemm", "gemv") and math in ("bf16", "fp16"):
        return "16"
    return None
