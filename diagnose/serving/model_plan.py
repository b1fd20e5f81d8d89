"""Layer by layer from a config: which attention, which window, which MLP. One function a convention of the
families."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from diagnose.serving.model_config import Layer

Config = Mapping[str, Any]

_KINDS = {
    "full_attention": "full", "attention": "full", "full": "full", "global_attention": "full",
    "sliding_attention": "sliding", "sliding_window": "sliding", "local_attention": "sliding",
    "local": "sliding",
    "chunked_attention": "chunked", "linear_attention": "linear", "mamba": "mamba", "mamba2": "mamba",
    "recurrent": "linear", "hybrid": "parallel", "conv": "linear", "moe": "none", "mlp": "none",
}  # fmt: skip


def first(config: Config, *keys: str) -> Any:
    """The first of `keys` that is present and not null."""
    for key in keys:
        if config.get(key) is not None:
            return config[key]
    return None


def attention_kinds(config: Config, layers: int) -> list[str]:
    """Attention kind of each layer. Explicit lists win; then the family's rule; full attention where
    nothing is said."""
    kind = config.get("model_type", "")
    listed = first(config, "layer_types", "layers_block_type", "layers_types")
    if isinstance(listed, list) and len(listed) >= layers:
        return [_KINDS.get(str(x), "full") for x in listed[:layers]]
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) >= layers:
        return [{"M": "mamba", "*": "full"}.get(c, "none") for c in pattern[:layers]]
    if isinstance(config.get("attn_type_list"), list):
        return ["full" if x == 1 else "linear" for x in config["attn_type_list"]][:layers]
    if config.get("attn_layer_indices") is not None:
        return ["full" if i in set(config["attn_layer_indices"]) else "mamba" for i in range(layers)]
    if config.get("attn_layer_period"):
        period, offset = config["attn_layer_period"], config.get("attn_layer_offset", 0)
        return ["full" if i % period == offset else "mamba" for i in range(layers)]
    if kind == "falcon_h1":
        return ["parallel"] * layers
    if config.get("full_attention_interval") or kind == "qwen3_next":
        step = config.get("full_attention_interval", 4)
        return ["full" if (i + 1) % step == 0 else "linear" for i in range(layers)]
    if config.get("kv_lora_rank"):
        return ["mla"] * layers
    if kind == "llama4_text" and config.get("attention_chunk_size"):
        # no_rope_layers holds 1 where rope (and with it the chunk) is used; by default every fourth layer is
        # global
        rope = config.get("no_rope_layers") or [int((i + 1) % 4 != 0) for i in range(layers)]
        return ["chunked" if rope[i] else "full" for i in range(layers)]
    return _sliding_kinds(config, kind, layers)


def _sliding_kinds(config: Config, kind: str, layers: int) -> list[str]:
    """Sliding-window rules of the dense families."""
    if not config.get("sliding_window"):
        return ["full"] * layers
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if isinstance(pattern, str):
        return ["sliding" if pattern[i % len(pattern)] == "L" else "full" for i in range(layers)]
    if isinstance(pattern, int) or kind in {"gemma3_text", "cohere2", "gpt_oss", "gemma2"}:
        step = pattern if isinstance(pattern, int) else {"gemma3_text": 6, "cohere2": 4}.get(kind, 2)
        return ["full" if step and (i + 1) % step == 0 else "sliding" for i in range(layers)]
    if "use_sliding_window" in config or kind.startswith("qwen2") or kind.startswith("qwen3"):
        if not config.get("use_sliding_window", False):
            return ["full"] * layers
        start = config.get("max_window_layers", layers)
        return ["sliding" if i >= start else "full" for i in range(layers)]
    return ["sliding"] * layers


def mlp_kinds(config: Config, layers: int, experts: int) -> list[str]:
    """dense, moe or none for each layer."""
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) >= layers:
        return [{"-": "dense", "E": "moe"}.get(c, "none") for c in pattern[:layers]]
    if not experts:
        return ["dense"] * layers
    listed = config.get("mlp_layer_types")
    if isinstance(listed, list) and len(listed) >= layers:
        return ["dense" if str(x) == "dense" else "moe" for x in listed[:layers]]
    if config.get("expert_layer_period"):
        period, offset = config["expert_layer_period"], config.get("expert_layer_offset", 0)
        return ["moe" if i % period == offset else "dense" for i in range(layers)]
    if config.get("moe_layers") is not None:
        return ["moe" if i in set(config["moe_layers"]) else "dense" for i in range(layers)]
    if config.get("interleave_moe_layer_step"):
        step = config["interleave_moe_layer_step"]
        return ["moe" if (i + 1) % step == 0 else "dense" for i in range(layers)]
    dense_first = int(first(config, "first_k_dense_replace", "moe_layer_start_index") or 0)
    freq = config.get("moe_layer_freq", 1)
    if isinstance(freq, list):
        return ["moe" if i < len(freq) and freq[i] else "dense" for i in range(layers)]
    step = int(config.get("decoder_sparse_step") or 1)
    only = set(config.get("mlp_only_layers") or ())
    return [
        "moe"
        if i >= dense_first and i % int(freq or 1) == 0 and i not in only and (i + 1) % step == 0
        else "dense"
        for i in range(layers)
    ]


def build_plan(config: Config, layers: int, base: Layer, experts: int) -> tuple[Layer, ...]:
    """The plan: `base` carries heads and widths; kinds, windows and shared caches are filled in a layer at
    a time."""
    kinds = attention_kinds(config, layers)
    mlps = mlp_kinds(config, layers, experts)
    window = config.get("sliding_window")
    chunk = config.get("attention_chunk_size")
    shared_from = layers - int(config.get("num_kv_shared_layers") or 0)
    plan = []
    for i, (kind, mlp) in enumerate(zip(kinds, mlps, strict=True)):
        span = window if kind == "sliding" else chunk if kind == "chunked" else None
        layer = replace(base, attention=kind, mlp=mlp, window=span, kv_shared=i >= shared_from)
        if kind in {"mamba", "linear", "none"}:
            layer = replace(layer, heads=0, kv_heads=0, head_dim=0, v_head_dim=0)
        plan.append(layer)
    return tuple(plan)
