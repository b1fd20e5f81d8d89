"""Parameter counts and weight bytes against independent counts."""

import json
from pathlib import Path

import pytest

from diagnose.serving.model_load import _catalog, known_models, load_model, model_from_config

FIXTURE = json.loads((Path(__file__).parent / "params_transformers.json").read_text())


@pytest.mark.parametrize("key", sorted(FIXTURE))
def test_same_count_as_transformers(key):
    case = FIXTURE[key]
    model = model_from_config(case["config"])
    # the routers of these two store a correction bias that transformers keeps as a buffer: 4 MoE layers x 8
    # experts
    buffers = 4 * 8 if key in {"deepseek_v3", "glm4_moe"} else 0
    assert model.params == case["params"] + buffers
    assert model.params_exact


@pytest.mark.parametrize("name", known_models())
def test_published_count(name):
    published = float(_catalog()[name]["published"])
    # published to as many digits as the publisher gives: three decimals, one for gpt-oss and DeepSeek
    digits = 1 if published in {20.9, 116.8, 671.0, 15.7} else 3
    assert round(load_model(name).params / 1e9, digits) == published


def test_qwen3_8b_by_hand():
    q, kv, h, i, v, layers = 32 * 128, 8 * 128, 4096, 12288, 151936, 36
    layer = h * (q + 2 * kv) + q * h + 3 * h * i + 2 * h + 2 * 128
    total = layers * layer + 2 * v * h + h
    m = load_model("qwen3-8b")
    assert m.params == total
    assert m.params_embedding == v * h
    w = m.weight_bytes()
    assert w.total == total * 2 == w.raw
    assert w.attention == layers * 2 * (h * (q + 2 * kv) + q * h)
    assert w.mlp == layers * 2 * 3 * h * i
    assert w.embed == w.head == 2 * v * h


def test_gpt_oss_mxfp4_by_hand():
    """4 bits a weight and one 8-bit scale per 32 on the experts; everything else bf16 (expert biases too)."""
    h, inter, e, layers, v = 2880, 2880, 32, 24, 201088
    expert_weights = 2 * inter * h + h * inter
    packed = expert_weights * (4 / 8) + (2 * inter * (h / 32) + h * (inter / 32)) * 1
    biases = (2 * inter + h) * 2
    m = load_model("openai/gpt-oss-20b")
    w = m.weight_bytes()
    assert w.experts == layers * e * (packed + biases)
    attn = h * (64 + 16) * 64 + 64 * 64 * h + (64 + 16) * 64 + h + 64
    assert w.attention == layers * attn * 2
    assert w.embed == w.head == v * h * 2
    assert w.raw == 2 * m.params
    assert 13.7e9 < w.total < 13.8e9  # the published checkpoint is 13.8 GB


def test_active_parameters():
    assert load_model("mixtral-8x7b").params_active / 1e9 == pytest.approx(12.9, abs=0.05)
    assert load_model("deepseek-v3").params_active / 1e9 == pytest.approx(37, abs=0.6)
    assert load_model("qwen3-8b").params_active == load_model("qwen3-8b").params


def test_expected_experts():
    m = load_model("openai/gpt-oss-120b")
    assert m.expected_experts(1) == pytest.approx(4)
    # E (1 - (1 - k/E)^T) for E 128, k 4, T 32
    assert m.expected_experts(32) == pytest.approx(128 * (1 - (124 / 128) ** 32))
    one, many = m.step_weight_bytes(1), m.step_weight_bytes(10_000)
    w = m.weight_bytes()
    assert one == pytest.approx(w.total - w.embed - w.experts * (124 / 128) + 2880 * 2)
    assert many == pytest.approx(w.total - w.embed + 10_000 * 2880 * 2, rel=1e-9)


def test_tensor_parallel_sharding():
    m = load_model("llama-3.1-70b")
    w = m.weight_bytes(tp=8)
    norms = (2 * 80 + 1) * 8192 * 2
    assert w.total == pytest.approx((m.params * 2 - norms) / 8 + norms)
    # 64 query heads, 8 KV heads: at tp 16 each rank keeps 4 query heads and one whole, replicated KV head
    q = m.layer_gemms(0, tp=16)[0]
    assert (q.role, q.n, q.k) == ("qkv", (4 + 2) * 128, 8192)


def test_pipeline_parallel_takes_the_fullest_stage():
    m = load_model("llama-3.1-70b")
    layer = (m.params - 2 * 128256 * 8192 - 8192) // 80 * 2
    assert m.weight_bytes(pp=2).total == 40 * layer + 128256 * 8192 * 2 + 8192 * 2
    assert m.kv_bytes_per_token(pp=2) == 163840
    assert [m.stage_of(i, 3) for i in (0, 26, 27, 53, 54, 79)] == [0, 0, 1, 1, 2, 2]


def test_expert_parallel_keeps_experts_whole():
    m = load_model("qwen3-30b-a3b")
    whole = m.weight_bytes().experts
    assert m.weight_bytes(tp=4, ep=4).experts == whole / 4
    assert m.weight_bytes(tp=4).experts == whole / 4
    gemms = {g.role: g for g in m.layer_gemms(0, tp=4, ep=4)}
    assert gemms["experts_gate_up"].n == 2 * 768
    assert {g.role: g for g in m.layer_gemms(0, tp=4)}["experts_gate_up"].n == 2 * 768 // 4
    assert m.local_experts(4) == 32


def test_projections_of_a_layer():
    m = load_model("Qwen/Qwen3-8B")
    assert [tuple(g) for g in m.layer_gemms(3)] == [
        ("qkv", 6144, 4096), ("o", 4096, 4096), ("gate_up", 24576, 4096), ("down", 4096, 12288),
    ]  # fmt: skip
    assert tuple(m.head_gemm(2)) == ("head", 75968, 4096)
    v3 = load_model("deepseek-v3")
    assert [g.role for g in v3.layer_gemms(0)] == ["qkv_a", "q_b", "kv_b", "o", "gate_up", "down"]
    moe = {g.role: (g.n, g.k) for g in v3.layer_gemms(3)}
    assert moe["qkv_a"] == (1536 + 576, 7168)
    assert moe["router"] == (256, 7168)
    assert moe["shared_gate_up"] == (4096, 7168)
