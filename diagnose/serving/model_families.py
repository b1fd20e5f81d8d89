"""What a model family has that its config does not say: biases, norms, tied heads. One row a `model_type`.

Rows were written from the families' public modelling code and each is compared, parameter for parameter,
with a model instantiated from the same config (see tests/serving/test_model_params.py). A family without a
row is treated like Llama and its parameter count marked as an estimate.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """Layer anatomy. `norms` counts hidden-size norms a layer; `norm_bias` doubles them. `qk_norm`: none,
    head (one vector of head_dim for q and for k) or full (q width and k width). `positions`: learned
    position rows, by key."""

    tied: bool = False
    gated: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    norms: int = 2
    norm_bias: bool = False
    qk_norm: str = "none"
    head_bias: bool = False
    position_key: str = ""
    position_extra: int = 0
    embed_norm: bool = False
    final_norm: bool = True
    packed_mlp: bool = False


_LLAMA = Family()
_CLASSIC = Family(tied=True, gated=False, qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "ministral": _LLAMA,
    "mistral3": _LLAMA,
    "mixtral": _LLAMA,
    "phi3": _LLAMA,
    "granite": Family(tied=False),
    "granitemoe": Family(tied=False),
    "internlm2": _LLAMA,
    "baichuan": _LLAMA,
    "smollm3": Family(tied=True),
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias=True),
    "qwen3": Family(qk_norm="head"),
    "qwen3_moe": Family(qk_norm="head"),
    "qwen3_next": Family(qk_norm="head"),
    "gemma": Family(tied=True),
    "gemma2": Family(tied=True, norms=4),
    "gemma3_text": Family(tied=True, norms=4, qk_norm="head"),
    "olmo": Family(norms=0, final_norm=False),
    "olmo2": Family(qk_norm="full"),
    "olmo3": Family(qk_norm="full"),
    "olmoe": Family(qk_norm="full"),
    "cohere": Family(tied=True, norms=1),
    "cohere2": Family(tied=True, norms=1),
    "starcoder2": Family(tied=True, gated=False, qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True),
    "stablelm": Family(norm_bias=True),
    "phi": Family(gated=False, qkv_bias=True, o_bias=True, mlp_bias=True, norms=1, norm_bias=True,
    head_bias=True),
    "gpt2": Family(
        tied=True, gated=False, qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True,
        position_key="n_positions"
    ),
    "gpt_bigcode": Family(
        tied=True, gated=False, qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True,
        position_key="n_positions"
    ),
    "gpt_neox": Family(gated=False, qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True),
    "gptj": Family(gated=False, mlp_bias=True, norms=1, norm_bias=True, head_bias=True),
    "opt": Family(
        tied=True, gated=False, qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True,
        position_key="max_position_embeddings", position_extra=2,
    ),
    "bloom": Family(
        tied=True, gated=False, qkv_bias=True, o_bias=True, mlp_bias=True, norm_bias=True, embed_norm=True
    ),
    "falcon": Family(tied=True, gated=False, norms=1, norm_bias=True),
    "mpt": Family(tied=True, gated=False),
    "dbrx": Family(),
    "chatglm": Family(qkv_bias=True),
    "glm": Family(),
    "glm4": Family(norms=4),
    "glm4_moe": Family(),
    "deepseek_v2": _LLAMA,
    "deepseek_v3": _LLAMA,
    "kimi_k2": _LLAMA,
    "deepseek_v32": _LLAMA,
    "gpt_oss": Family(qkv_bias=True, o_bias=True),
    "llama4_text": _LLAMA,
    "nemotron": Family(gated=False, norm_bias=True),
    "exaone4": Family(qk_norm="head"),
    "t5": Family(tied=True, gated=False),
    "bart": _CLASSIC,
    "whisper": _CLASSIC,
    "jamba": _LLAMA,
    "bamba": _LLAMA,
    "nemotron_h": Family(gated=False, norms=1),
    "granitemoehybrid": Family(tied=False),
    "falcon_h1": _LLAMA,
}  # fmt: skip


def family(model_type: str) -> tuple[Family, bool]:
    """(anatomy, known?) of a model_type; unknown ones are treated like Llama."""
    row = FAMILIES.get(model_type)
    return (row, True) if row is not None else (_LLAMA, False)
