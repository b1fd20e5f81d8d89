"""Names of roles made comparable: what a kernel is for, when one side knows more precisely than the other."""

import re

# Families name kernels of which nothing but the name is known; roles come from shapes or the model. The coarse word is
# what both can be called.
_COARSE = {
    "attention": ("attention", "attention_decode", "attention_prefill", "attn_prefill", "attn_decode", "mla"),
    "attention merge": ("attention_merge", "attn_merge"),
    "gemm": (
        "gemm", "gemm_lowp", "gemm_w4a16", "gemm_w8a16", "gemv", "splitk_epilogue", "split_k_sum", "qkv", "q", "k", "v", "o", "gate", "up",
        "gate_up", "down", "head", "router", "qkv_a", "q_a", "q_b", "kv_a", "kv_b", "k_up", "v_up", "shared_gate_up", "shared_down",
    ),
    "experts": ("moe_gemm", "moe_gate_up", "moe_down", "experts", "experts_gate_up", "experts_up", "experts_down"),
    "expert routing": ("moe_aux", "moe_sort", "moe_sum", "moe_pad", "moe_routing"),
    "quantise": ("quant", "quantise", "dequant", "dequantise"),
    "norm": ("norm", "norm_add", "q_norm", "k_norm", "qk_norm", "q_a_norm", "kv_a_norm"),
    "copy": ("copy", "cast", "cat", "copy_cat", "q_copy", "k_copy", "logits_cast", "pad"),
    "activation": ("activation", "swiglu", "moe_activation"),
    "sampling": ("sampling", "argmax", "argmin", "softmax_sample"),
    "gather": ("gather", "embedding"),
    "collective": ("nccl", "custom_comm", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"),
}  # fmt: skip
COARSE = {name: word for word, names in _COARSE.items() for name in names}

_CONTEXT = re.compile(r"\bk\d+\b|\d+(?= kv\b)")
_PRODUCT = re.compile(r"\d+(?:x\d+)+ \. \d+(?:x\d+)+")


def coarse(role: str | None, family: str) -> str:
    """The word a role or family shares with the other side."""
    name = role or family
    return COARSE.get(name, COARSE.get(family, name) if role is None else name)


def without_context(shape: str) -> str:
    """A decode shape without the number that grows by a token a step."""
    return _CONTEXT.sub("*", shape)


def plain(shape: str) -> str:
    """A product's shape without the format of its weights: `16x4096 . 4096x6144 int4 g128` is the work of its bf16 twin."""
    found = _PRODUCT.match(shape)
    return found[0] if found else shape


def weight_format(role: str | None, family: str, dtype: str | None, shape: str | None) -> str | None:
    """The dtype a product's weights are stored in, which for weight-only formats is not the dtype of its math."""
    text = shape or ""
    for name in ("int4", "int8", "fp4", "nf4", "mxfp4", "fp8"):
        if f" {name}" in text:
            return "fp4" if name == "mxfp4" else name
    if role == "gemm_w8a16":
        return "int8"
    if role == "gemm_w4a16" or (role is None and family == "gemm_w4a16"):
        return "int4"
    return dtype


def common_names(before: set[str], after: set[str]) -> dict[str, str]:
    """How to call each role so that both sides speak alike: its own name where the class has the same members on both
    sides, else the coarse word."""
    names: dict[str, str] = {}
    words: dict[str, tuple[set[str], set[str]]] = {}
    for side, roles in enumerate((before, after)):
        for role in roles:
            words.setdefault(COARSE.get(role, role), (set(), set()))[side].add(role)
    for word, (a, b) in words.items():
        for role in a | b:
            names[role] = role if a == b or not a or not b else word
    return names
