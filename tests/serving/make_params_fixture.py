"""Rewrites params_transformers.json: parameter counts of tiny models of each family, by Hugging Face
transformers.

Needs torch and transformers (5.24.0 was used); the tests only read the file it wrote. Each model is built
on the meta device from the config and its parameters are summed: nothing of diagnose is used.

    python tests/serving/make_params_fixture.py > tests/serving/params_transformers.json
"""

import json
import sys

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    WhisperForConditionalGeneration,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

BASE = {
    "num_hidden_layers": 5, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 640, "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MOE = {**BASE, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
LOCAL = {**BASE, "num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {
    **BASE, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96,
    "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
MLA = {**ROUTED, "num_key_value_heads": 8, "kv_lora_rank": 64}
SSM = {"mamba_n_heads": 16, "mamba_d_head": 32, "mamba_d_state": 32}
GPT = {"n_layer": 5, "n_embd": 256, "n_head": 8, "vocab_size": 1000, "n_positions": 128}
T5 = {
    "num_layers": 3,
    "num_decoder_layers": 4,
    "d_model": 256,
    "num_heads": 8,
    "d_kv": 32,
    "d_ff": 640,
    "vocab_size": 1000,
}
BART = {
    "encoder_layers": 3, "decoder_layers": 4, "d_model": 256, "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 640, "decoder_ffn_dim": 500, "vocab_size": 1000, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
FALCON = {"num_hidden_layers": 5, "hidden_size": 256, "num_attention_heads": 8, "vocab_size": 1000}
GDN = {
    "linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "shared_expert_intermediate_size": 200, "head_dim": 64,
}  # fmt: skip

CASES = {
    "llama": BASE, "mistral": BASE, "mixtral": LOCAL, "phi3": BASE, "granite": BASE, "granitemoe": LOCAL,
    "qwen2": BASE, "qwen2_moe": {**MOE, "shared_expert_intermediate_size": 200}, "qwen3": {**BASE,
    "head_dim": 64},
    "qwen3_moe": {**MOE, "head_dim": 64}, "qwen3_next": {**MOE, **GDN}, "gemma": {**BASE, "head_dim": 64},
    "gemma2": {**BASE, "head_dim": 64}, "gemma3_text": {**BASE, "head_dim": 64}, "olmo": BASE,
    "olmo2": BASE, "olmo3": BASE,
    "olmoe": {**BASE, "num_experts": 6, "num_experts_per_tok": 2}, "cohere": BASE, "cohere2": BASE,
    "starcoder2": BASE, "stablelm": BASE, "phi": BASE, "smollm3": BASE,
    "gpt2": GPT, "gpt_bigcode": {**GPT, "multi_query": True}, "gpt_neox": {**FALCON,
    "intermediate_size": 640}, "gptj": {**GPT, "rotary_dim": 16},
    "opt": {**FALCON, "ffn_dim": 640, "max_position_embeddings": 128, "word_embed_proj_dim": 128},
    "bloom": {"n_layer": 5, "hidden_size": 256, "n_head": 8, "vocab_size": 1000}, "falcon": FALCON,
    "falcon+new": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
    "mpt": {"n_layers": 5, "d_model": 256, "n_heads": 8, "vocab_size": 1000}, "glm": {**BASE, "head_dim": 64},
    "glm4": {**BASE, "head_dim": 64}, "glm4_moe": {**ROUTED, "head_dim": 32, "n_shared_experts": 1},
    "deepseek_v2": {**MLA, "q_lora_rank": None, "n_shared_experts": 2},
    "deepseek_v3": {**MLA, "q_lora_rank": 96, "n_shared_experts": 1}, "gpt_oss": {**LOCAL, "head_dim": 32},
    "llama4_text": {**LOCAL, "head_dim": 32, "intermediate_size_mlp": 900, "interleave_moe_layer_step": 2},
    "nemotron": BASE, "exaone4": BASE,
    "jamba": {**LOCAL, "num_hidden_layers": 9, "num_experts": 4, "attn_layer_period": 8,
    "attn_layer_offset": 4,
              "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 16},
    "bamba": {**BASE, **SSM, "attn_layer_indices": [2]},
    "granitemoehybrid": {**LOCAL, **SSM, "shared_intermediate_size": 128,
                         "layer_types": ["mamba", "mamba", "attention", "mamba", "mamba"]},
    "falcon_h1": {**BASE, **SSM, "mamba_d_ssm": 512}, "t5": T5, "t5+gated": {**T5,
    "feed_forward_proj": "gated-gelu"},
    "bart": BART, "whisper": BART,
    "nemotron_h": {**BASE, "hybrid_override_pattern": "M-M*-", "mamba_num_heads": 16, "mamba_head_dim": 32,
                   "ssm_state_size": 32, "n_groups": 4, "conv_kernel": 4, "head_dim": 32},
}  # fmt: skip


def count(key: str, config: dict[str, object]) -> int:
    kind = key.split("+", maxsplit=1)[0]
    cls = CONFIG_MAPPING[kind]
    conf = cls(**config)
    if kind == "whisper":
        model_cls = WhisperForConditionalGeneration
    elif kind in {"t5", "bart"}:
        model_cls = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[cls]
    else:
        model_cls = MODEL_FOR_CAUSAL_LM_MAPPING[cls]
    with torch.device("meta"):
        model = model_cls(conf)
    model.tie_weights()
    return sum(p.numel() for p in model.parameters())


def main() -> None:
    rows = {}
    for key, config in CASES.items():
        try:
            rows[key] = {
                "config": {"model_type": key.split("+", maxsplit=1)[0], **config},
                "params": count(key, config),
            }
        except Exception as error:
            print(f"{key}: left out, {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items()]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
