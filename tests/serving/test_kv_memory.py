"""KV pools computed against logged, sequences that fit, and the memory waterfall."""

import pytest
from serving_forms import bench_json, vllm_log

from diagnose.serving.kv import (
    check_pool,
    kv_report,
    pool_tokens,
    request_lengths,
    resident_tokens,
    tokens_gained,
)
from diagnose.serving.memory import memory_report
from diagnose.serving.model_config import load_model

GIB = 2**30

# public bench logs of Qwen2-7B on A100: available KV GiB a GPU, tp, tokens computed, tokens in the engine's
# log
POOLS = [(5.01, 1, 93_810, 93_872), (24.83, 1, 464_931, 464_848), (12.02, 2, 450_139, 450_192)]


@pytest.mark.parametrize(("gib", "tp", "computed", "logged"), POOLS)
def test_pool_within_a_thousandth_of_the_log(make, gib, tp, computed, logged):
    model = load_model("qwen2-7b")
    per_token = model.kv_bytes_per_token("bf16", tp=tp)
    assert per_token == 57_344 / tp
    assert gib * GIB / per_token == pytest.approx(computed, abs=1)
    # whole blocks of 16
    assert pool_tokens(gib * GIB, per_token) == computed // 16 * 16
    check = check_pool(model, make(log=vllm_log(pool=logged, gib=gib)), tp=tp)
    assert abs(check.computed / logged - 1) < 1e-3
    assert check.agrees


def test_eight_bit_cache_doubles_the_pool():
    model = load_model("qwen3-8b")
    size = 389_872 * model.kv_bytes_per_token("bf16")
    assert pool_tokens(size, model.kv_bytes_per_token("bf16")) == 389_872
    assert pool_tokens(size, model.kv_bytes_per_token("fp8")) == pytest.approx(779_760, abs=32)


def test_a_mismatch_is_read(make):
    model = load_model("qwen2-7b")
    e = make(log=vllm_log(pool=93_872, gib=2.505))
    check = check_pool(model, e)
    assert not check.agrees
    assert "8-bit" in check.reading
    e = make(log=vllm_log(pool=93_872, gib=7.7))
    assert "differ" in check_pool(model, e).reading
    assert check_pool(model, make(log=vllm_log(pool=93_872))).agrees is None


def test_windowed_model_as_the_engine_states_it(make):
    """tokens = sequences of max_model_len that fit x max_model_len, windows respected."""
    model = load_model("gpt-oss-20b")
    layer = 2 * 8 * 64 * 2
    one = 12 * 131_072 * layer + 12 * 128 * layer
    gib = 40.0
    e = make(log=vllm_log(pool=int(gib * GIB / one * 131_072), max_len=131_072, gib=gib))
    assert check_pool(model, e).agrees


def test_what_more_memory_adds():
    # 0.92 to 0.95 of 80 GB with 131,072 bytes a token
    assert tokens_gained(80e9, 0.03, 131_072) == pytest.approx(18_000, rel=0.02)


def test_residents_are_observed_not_assumed(make):
    """72 ran in a pool of 93,872 although only 46 of 2,048 tokens fit: they hold 1,304 tokens each."""
    e = make(log=vllm_log([(10, 0, 10.0, 0), *[(72, 128, 100.0, 0)] * 5, (3, 0, 1.0, 0)], pool=93_872))
    mean, how = resident_tokens(e, 93_872)
    assert mean == pytest.approx(93_872 / 72)
    assert "usage" in how


def test_lengths_come_from_the_best_source(make):
    e = make(bench=bench_json(input_lens=[10, 30], output_lens=[5, 7], ttfts=[0.1, 0.1], itls=[[0.1], [0.1]]))
    assert request_lengths(e) == (20, 6, "benchmark, per request")
    e = make(bench=bench_json(completed=2, total_input_tokens=100, total_output_tokens=50))
    assert request_lengths(e)[:2] == (50, 25)
    e = make(bench=bench_json(random_input_len=1024, random_output_len=512))
    assert request_lengths(e)[:2] == (1024, 512)


def test_nothing_known_gives_nothing(make):
    assert kv_report(None, make(bench=bench_json())) is None
    assert memory_report(None, make(bench=bench_json())) is None


V0 = """\
INFO 12-22 10:55:34 worker.py:241] the current vLLM instance can use total_gpu_memory (79.25GiB) x gpu_memory_utilization (0.90) = 71.32GiB
INFO 12-22 10:55:34 worker.py:241] model weights take 14.99GiB; non_torch_memory takes 0.26GiB; PyTorch activation peak memory takes 1.23GiB; the rest of the memory reserved for KV Cache is 54.85GiB.
"""  # noqa: E501


def test_memory_waterfall_adds_up(make):
    m = memory_report(load_model("llama-3-8b"), make(log=V0))
    parts = {p["name"]: p["bytes"] / GIB for p in m["parts"]}
    assert m["total_bytes"] / GIB == pytest.approx(79.25)
    assert parts["KV pool"] == pytest.approx(54.85)
    assert parts["kept out of the engine's budget"] == pytest.approx(7.925)
    # the four stated parts fill 0.9 x 79.25 = 71.325 GiB to the last digit printed
    assert sum(parts.values()) == pytest.approx(79.25, abs=0.02)
    # Llama-3-8B: 8.03e9 x 2 bytes = 14.96 GiB
    assert m["weights_loaded_over_computed"] == pytest.approx(14.99 / 14.958, rel=1e-3)
    assert m["notes"] == []


def test_another_model_is_noticed(make):
    m = memory_report(load_model("llama-3.1-70b"), make(log=V0))
    assert "the config gives 131" in m["notes"][0]


def test_weights_of_the_config_where_the_log_is_silent(make):
    m = memory_report(load_model("llama-3-8b"), make(log=vllm_log(gib=50.0)), device_bytes=85e9)
    part = next(p for p in m["parts"] if p["name"] == "weights")
    assert (part["provenance"], part["bytes"]) == ("derived", pytest.approx(16.06e9, rel=1e-3))
