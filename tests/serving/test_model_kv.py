"""KV cache bytes: the worked numbers of the published models, windows, latent caches, sharding."""

import pytest

from diagnose.errors import UsageError
from diagnose.serving.model_load import load_model, model_from_config

GIB = 1024**3
TINY = {
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}

# layers, KV heads, head dim; bytes = 2 * layers * heads * dim * 2 (bf16)
WORKED = {
    "llama-3.1-8b": (131072, 8192, 17.18e9), "llama-3.1-70b": (327680, 3276, 42.95e9), "qwen3-8b": (147456,
    7281, 19.33e9),
    "qwen3-32b": (262144, 4096, 34.36e9), "mixtral-8x7b": (131072, 8192, 17.18e9), "deepseek-r1": (70272,
    15279, 9.21e9),
    "llama-2-7b": (524288, 2048, 68.72e9),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKED)
def test_worked_numbers(name):
    per_token, per_gib, read = WORKED[name]
    m = load_model(name)
    assert m.kv_bytes_per_token("bf16") == per_token
    assert m.kv_bytes_per_token("fp8") == per_token / 2
    assert int(GIB // m.kv_bytes_per_token("bf16")) == per_gib
    assert m.kv_read_bytes([4096] * 32, "bf16") == pytest.approx(read, rel=5e-4)


def test_latent_cache_is_replicated_and_small():
    m = load_model("deepseek-v3")
    assert m.kv_bytes_per_token("bf16", tp=8) == 61 * 576 * 2
    assert m.kv_bytes_materialised("bf16") == 61 * 128 * (192 + 128) * 2 == 4_997_120
    lite = load_model("deepseek-v2-lite")
    assert (lite.kv_bytes_materialised("bf16"), lite.kv_bytes_per_token("bf16")) == (276_480, 31_104)
    # vLLM's fp8 layout of V3.2: 512 fp8 + 4 fp32 scales + 64 bf16 rope = 656 bytes a layer
    assert m.kv_layer_bytes(m.plan[0], "fp8_ds_mla") == 656


def test_heads_split_then_replicate():
    m = load_model("qwen2-7b")
    assert [m.kv_bytes_per_token("bf16", tp=t) for t in (1, 2, 4)] == [57344, 28672, 14336]
    assert load_model("llama-3.1-70b").kv_bytes_per_token("bf16", tp=16) == 327680 / 8


@pytest.mark.parametrize(
    ("name", "tokens"), [("llama-3-8b", 122.5e3), ("llama-3-70b", 431e3), ("qwen3-32b", 250e3)]
)
def test_crossover(name, tokens):
    assert load_model(name).kv_crossover_tokens() == pytest.approx(tokens, rel=2e-3)


def test_crossover_withheld_where_it_depends():
    assert load_model("mixtral-8x7b").kv_crossover_tokens() is None
    assert load_model("gpt-oss-20b").kv_crossover_tokens() is None


def test_sliding_window_residency():
    m = load_model("gpt-oss-20b")
    layer = 2 * 8 * 64 * 2
    assert [x.attention for x in m.plan[:4]] == ["sliding", "full", "sliding", "full"]
    assert m.kv_resident_bytes(100) == 24 * 100 * layer
    assert m.kv_resident_bytes(4096) == 12 * 4096 * layer + 12 * 128 * layer
    assert m.kv_bytes_per_token() == 24 * layer


def test_window_rules_by_family():
    base = {**TINY, "sliding_window": 64}
    kinds = {
        "mistral": ["sliding"] * 8,
        "gemma2": ["sliding", "full"] * 4,
        "gemma3_text": ["sliding"] * 5 + ["full"] + ["sliding"] * 2,
        "cohere2": (["sliding"] * 3 + ["full"]) * 2,
        "qwen2": ["full"] * 8,
    }
    for kind, want in kinds.items():
        m = model_from_config({**base, "model_type": kind})
        assert [x.attention for x in m.plan] == want, kind
    m = model_from_config({**base, "model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 6})
    assert [x.attention for x in m.plan] == ["full"] * 6 + ["sliding"] * 2
    m = model_from_config({**base, "layer_types": ["full_attention"] + ["sliding_attention"] * 7})
    assert [x.window for x in m.plan] == [None] + [64] * 7


def test_keys_of_older_families():
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
    assert model_from_config(gpt2).kv_bytes_per_token("fp16") == 2 * 12 * 12 * 64 * 2
    code = {**gpt2, "model_type": "gpt_bigcode", "multi_query": True}
    assert model_from_config(code).kv_bytes_per_token("fp16") == 2 * 12 * 64 * 2
    glm = {
        "model_type": "chatglm", "num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32,
        "kv_channels": 128,
        "multi_query_attention": True, "multi_query_group_num": 2, "ffn_hidden_size": 13696,
        "padded_vocab_size": 65024,
        "add_qkv_bias": True,
    }  # fmt: skip
    m = model_from_config(glm)
    assert m.kv_bytes_per_token("fp16") == 2 * 28 * 2 * 128 * 2
    assert m.params == 6_243_584_000  # the published ChatGLM2/3-6B count
    mpt = {
        "model_type": "mpt",
        "n_layers": 32,
        "d_model": 4096,
        "n_heads": 32,
        "vocab_size": 50432,
        "attn_config": {"kv_n_heads": 8},
    }
    assert model_from_config(mpt).kv_heads == 8
    dbrx = {
        "model_type": "dbrx", "n_layers": 40, "d_model": 6144, "n_heads": 48, "vocab_size": 100352,
        "attn_config": {"kv_n_heads": 8}, "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16,
        "moe_top_k": 4},
    }  # fmt: skip
    m = model_from_config(dbrx)
    assert (m.kv_heads, m.experts, m.experts_per_token) == (8, 16, 4)
    assert m.params / 1e9 == pytest.approx(132, abs=0.7)  # DBRX is published as 132B, 36B active
    assert m.params_active / 1e9 == pytest.approx(36, abs=0.7)
    falcon = {
        "model_type": "falcon",
        "num_hidden_layers": 32,
        "hidden_size": 4544,
        "num_attention_heads": 71,
        "vocab_size": 65024,
    }
    assert model_from_config(falcon).kv_bytes_per_token("bf16") == 2 * 32 * 1 * 64 * 2


def test_hybrid_layers_hold_state_not_tokens():
    m = model_from_config({
        **TINY, "model_type": "qwen3_next", "full_attention_interval": 4, "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    })  # fmt: skip
    assert m.kv_bytes_per_token("bf16") == 2 * 2 * 2 * 64 * 2  # two full-attention layers of eight
    # six delta-net layers: 8 heads of 32x32 plus 3 past conv inputs of 2*4*32 + 8*32 channels, two bytes each
    assert m.state_bytes_per_sequence == 6 * (8 * 32 * 32 + 3 * 512) * 2


def test_encoder_decoder_caches_the_decoder_only():
    t5 = {
        "model_type": "t5",
        "num_layers": 6,
        "num_decoder_layers": 4,
        "d_model": 512,
        "num_heads": 8,
        "d_kv": 64,
        "d_ff": 2048,
        "vocab_size": 32128,
    }
    m = model_from_config(t5)
    assert (m.layers, m.encoder_layers, m.cross_layers) == (4, 6, 4)
    assert m.kv_bytes_per_token("bf16") == 2 * 4 * 8 * 64 * 2


def test_nested_text_config():
    outer = {
        "model_type": "gemma3",
        "text_config": {**TINY, "model_type": "gemma3_text", "num_key_value_heads": 4, "head_dim": 32},
        "vision_config": {},
    }
    m = model_from_config(outer)
    assert m.kv_bytes_per_token("bf16") == 2 * 8 * 4 * 32 * 2
    assert "towers" in m.notes[0]


def test_kv_dtype_choices():
    m = model_from_config(
        {
            **TINY,
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {},
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
        }
    )
    assert m.kv_dtype("auto") == "fp8"
    assert m.kv_dtype("fp8_e5m2") == "fp8"
    full = m.kv_bytes_per_token("bf16")
    assert m.kv_bytes_per_token("nvfp4") == full / 4 + full / 2 / 16
    with pytest.raises(UsageError, match="not known"):
        m.kv_bytes_per_token("int3")
    with pytest.raises(UsageError, match="does not divide"):
        m.weight_bytes(tp=3)
