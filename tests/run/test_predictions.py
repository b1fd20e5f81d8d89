"""Ceiling, useful batch and quantising through the whole pipeline, recomputed here by hand."""

import json
from pathlib import Path

import pytest

from diagnose import pipeline
from diagnose.devices import resolve
from diagnose.serving.quant_predict import find_ratio

SAMPLES = Path(__file__).parents[2] / "sample_traces"
# Llama-3.1-8B: 32 layers of q, k, v, o, gate, up, down and two norms, the final norm, embedding and head
LAYER = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336)
PARAMS = 32 * (LAYER + 2 * 4096) + 4096 + 2 * 128_256 * 4096
KV_TOKEN = 2 * 32 * 8 * 128 * 2
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "max_position_embeddings": 131_072,
}  # fmt: skip
POOL, RUNNING, USAGE = 400_000, 100, 0.30
RESIDENT = USAGE * POOL / RUNNING
LINE = (
    "INFO 10-06 16:00:{:02} [loggers.py:310] Engine 000: Avg prompt throughput: 900.0 tokens/s, Avg generation throughput: "
    "4000.0 tokens/s, Running: {} reqs, Waiting: 20 reqs, GPU KV cache usage: 30.0%, Prefix cache hit rate: 0.0%\n"
)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "server.log").write_text(
        "INFO 10-06 15:56:26 [utils.py:233] non-default args: {'max_num_seqs': 100}\n"
        f"INFO 10-06 15:56:53 [kv_cache_utils.py:1286] GPU KV cache size: {POOL:,} tokens\n"
        + "".join(LINE.format(i, RUNNING) for i in range(12))
    )
    (tmp_path / "bench.json").write_text(json.dumps({
        "backend": "vllm", "request_rate": "inf", "max_concurrency": 120, "num_prompts": 500, "duration": 125.0, "completed": 500,
        "total_input_tokens": 500_000, "total_output_tokens": 500_000, "request_throughput": 4.0, "output_throughput": 4000.0,
        "mean_ttft_ms": 5000.0, "median_ttft_ms": 4800.0, "p99_ttft_ms": 9000.0, "mean_itl_ms": 24.0, "median_itl_ms": 23.0,
        "p99_itl_ms": 60.0, "mean_tpot_ms": 24.0,
    }))  # fmt: skip
    return tmp_path


def run(files, **options):
    return pipeline.run([files], pipeline.Options(device="h100-sxm", **options))


def test_model_and_engine_facts_without_a_trace(files):
    d = run(files)
    assert d.model["params"] == PARAMS == 8_030_261_248  # the published count
    assert d.model["weights_per_gpu_bytes"] == pytest.approx(2 * PARAMS)
    assert d.model["dtype"] == "bf16"
    assert any(r["key"] == "device" and "H100" in r["value"] for r in d.engine_config)
    assert d.load["running"]["value"] == 100 and d.load["slot_cap"]["value"] == 100
    assert {s.path: s.format for s in d.source} == {"server.log": "log", "bench.json": "benchmark"}
    assert all(len(s.sha256) == 64 for s in d.source)


def test_ceiling_is_bytes_over_bandwidth(files):
    d = run(files)
    # all weights but the embedding, of which a token reads one row
    weights = 2 * (PARAMS - 128_256 * 4096) + 100 * 4096 * 2
    kv = RUNNING * int(RESIDENT) * KV_TOKEN
    roofs = resolve("h100-sxm")
    seconds = weights / roofs.bandwidth(weights) + kv / roofs.bandwidth(kv)
    assert d.ceiling["weight_bytes"] == pytest.approx(weights, rel=1e-3)
    assert d.ceiling["kv_bytes"] == kv == 100 * 1200 * 131_072
    assert d.ceiling["tok_s"] == pytest.approx(RUNNING / seconds, rel=1e-3)
    assert d.ceiling["achieved_share"] == pytest.approx(4000 * seconds / RUNNING, rel=1e-3)
    # the whole step at the datasheet's 3.35 TB/s is a bound on any bandwidth: the ceiling lies below it
    assert d.ceiling["tok_s"] < RUNNING / ((weights + kv) / 3.35e12)


def test_a_ceiling_that_was_passed_is_none(files):
    """24 ms a token at 100 running is at most 4,167 tokens/s; at 20,000 the device named is not the one that ran."""
    bench = json.loads((files / "bench.json").read_text()) | {
        "output_throughput": 20_000.0,
        "mean_itl_ms": 5.0,
        "mean_tpot_ms": 5.0,
    }
    (files / "bench.json").write_text(json.dumps(bench))
    d = run(files)
    assert d.ceiling["tok_s"] is None
    assert "times it" in d.ceiling["conditions"][-1]["detail"]


def test_ceiling_is_withheld_when_a_condition_fails(files):
    d = run(files, tp=2)
    assert d.ceiling["tok_s"] is None
    assert [c["condition"] for c in d.ceiling["conditions"] if c["holds"] is False] == ["collectives known"]
    d = pipeline.run([files], pipeline.Options())  # no device: no bandwidth
    assert d.ceiling["tok_s"] is None
    assert d.quantization == [] and d.what_if_devices == []


def test_knee_of_experts_is_where_an_expert_sees_that_many_tokens(files):
    """Mixtral: an expert sees 2 of 8 tokens, so the dense attention is the first to cost compute, as in a dense model."""
    from diagnose.run.predictions import _knee
    from diagnose.run.step_parts import knee_tokens
    from diagnose.serving.model_config import load_model

    roofs = resolve("h100-sxm")
    ridge = roofs.plateau_compute("bf16") / roofs.plateau_bandwidth
    assert knee_tokens(roofs, "bf16") == pytest.approx(ridge)  # M N K 2 / F = N K 2 / B
    assert knee_tokens(roofs, "bf16", 0.5) == pytest.approx(ridge / 4)  # four-bit weights, bf16 math
    assert _knee(load_model("mixtral-8x7b"), roofs) == pytest.approx(ridge)
    # gpt-oss-20b: 4 of 32 experts in 4.25 bits: 32 / 4 x 4.25 / 16 = 2.1 times the tokens of its bf16 attention
    assert _knee(load_model("gpt-oss-20b"), roofs) == pytest.approx(ridge, rel=0.02)


def test_useful_batch_stops_at_the_slots_and_its_gain_is_bounded_by_the_parts(files):
    d = run(files, slo_itl_ms=50.0, slo_ttft_ms=2000.0)
    u = d.useful_batch
    assert (u["batch"], u["stopped_by"], u["slots"]) == (100, "slots", 100)
    assert u["kv_wall"] == pytest.approx(POOL / RESIDENT)
    ms = u["parts_ms"]
    assert sum(ms.values()) == pytest.approx(24.0)  # the time per token that was measured
    grows = ms["kv"] + ms["prefill"] + ms["other"]
    # between everything open flat and everything open growing, weights flat below the knee of about 276 tokens
    flat, full = 2 * 24.0 / (24.0 + ms["kv"]), 2 * 24.0 / (24.0 + grows)
    low, high = u["gain_of_doubling"]
    assert full * 0.9 < low < full < flat < high < min(2.0, flat * 1.06)
    assert d.useful_batch["crossover"] == pytest.approx(ms["weights"] / (ms["kv"] / RUNNING))
    tight = run(files, slo_itl_ms=20.0).useful_batch
    assert tight["stopped_by"] == "slo_itl" and tight["batch"] < 100


def test_quantising_is_share_and_measured_ratio(files):
    d = run(files)
    ms = d.useful_batch["parts_ms"]
    kv = next(r for r in d.quantization if r["method"] == "fp8_kv")
    ratio = find_ratio("fp8_kv", "h100", 100, None)
    share, most = ms["kv"] / 24.0, (ms["kv"] + ms["other"]) / 24.0
    assert kv["low"] == pytest.approx(1 / (1 - share + share / ratio.low))
    assert kv["high"] == pytest.approx(1 / (1 - most + most / ratio.high))
    assert kv["pool_tokens"] == 2 * POOL
    fp8 = next(r for r in d.quantization if r["method"] == "fp8" and r["phase"] == "decode")
    # projections go from two bytes to one: 32 x LAYER bytes are 53,248 tokens of KV
    assert fp8["pool_tokens"] == pytest.approx(POOL + 32 * LAYER / KV_TOKEN)
    assert fp8["low"] < fp8["mid"] < fp8["high"] < 1 / (1 - most)
    prefill = next(r for r in d.quantization if r["method"] == "fp8" and r["phase"] == "prefill")
    assert prefill["tokens"] == 1000 and prefill["low"] < 1  # first tokens can get slower


def test_nothing_is_asked_of_weights_that_are_8_bit(files):
    config = {**CONFIG, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}}
    (files / "config.json").write_text(json.dumps(config))
    assert {r["method"] for r in run(files).quantization} <= {"fp8_kv"}


def test_other_device_without_a_trace_scales_the_roofs_only(files):
    d = run(files, what_if_device=("h200-sxm",), price=4.0)
    row = d.what_if_devices[0]
    ms = d.useful_batch["parts_ms"]
    here, there = resolve("h100-sxm"), resolve("h200-sxm")
    memory = here.plateau_bandwidth / there.plateau_bandwidth
    math = here.plateau_compute("bf16") / there.plateau_compute("bf16")
    best = (
        (ms["weights"] + ms["kv"]) * memory + ms["prefill"] * math * 0.95 + ms["other"] * min(1, memory, math)
    )
    worst = (
        (ms["weights"] + ms["kv"]) * (memory + 0.05)
        + ms["prefill"] * math * 1.05
        + ms["other"] * max(1, memory, math)
    )
    assert row["step_ms"] == pytest.approx([best, worst])
    assert row["tokens_per_price"] == pytest.approx(
        [100 / t * 1e3 * 3600 / 4.0 for t in reversed(row["step_ms"])]
    )


def test_traced_step_gives_ceiling_and_quantising():
    sample = SAMPLES / "generated_h100_decode_hbm.json.gz"
    d = pipeline.run([sample], pipeline.Options(model="llama-3-8b"))
    phase = next(p for p in d.phases if p.phase == "decode")
    assert d.ceiling["at"] == "traced steps" and d.ceiling["batch"] == round(phase.sequences)
    assert d.ceiling["achieved_tok_s"] == pytest.approx(phase.tokens["decode"] / phase.wall_ns * 1e9)
    assert d.ceiling["achieved_tok_s"] < d.ceiling["tok_s"]
    row = next(r for r in d.quantization if r["method"] == "fp8" and r["phase"] == "decode")
    products = sum(
        k.time_ns
        for k in d.kernels
        if k.phase == "decode" and k.family in {"gemm", "gemm_lowp", "gemv"} and k.role != "head"
    )
    assert row["share"] + row["unmeasured_share"] == pytest.approx(products / phase.wall_ns, rel=1e-6)
    assert row["unmeasured_share"] < 0.01  # every product of this trace has its shape


def test_a_model_that_is_not_the_traces_gives_no_ceiling():
    sample = SAMPLES / "generated_h100_decode_launch.json.gz"  # 896 wide: a 0.5B model
    d = pipeline.run([sample], pipeline.Options(model="qwen3-8b"))
    assert any(n.code == "roles-contradicted" for n in d.data_quality)
    assert d.ceiling["tok_s"] is None and d.ceiling["achieved_share"] is None
    assert d.ceiling["conditions"][-1]["condition"] == "the model is the trace's"
    assert all(r["pool_tokens"] is None for r in d.quantization)


def test_one_quantity_is_one_number(files):
    """The verdict's evidence, the load table and the KV table state the same level, pool and hits."""
    iteration = (
        "INFO 10-06 16:01:00 [core.py:359] Engine 000: Iteration(7): 0 context requests, 0 context tokens, 90 generation "
        "requests, 90 generation tokens, iteration elapsed time: 20.00 ms, GPU KV cache usage: 55.0%\n"
    )
    with (files / "server.log").open("a") as log:
        log.write(iteration)
    d = run(files)
    for key, name in (
        ("peak_used_share", "kv_peak"), ("tokens_per_sequence_resident", "resident_tokens"), ("fits_at_resident", "fits"),
        ("prefix_hit_rate", "prefix_hit"),
    ):  # fmt: skip
        assert d.kv[key] == d.load[name]["value"], key
    assert d.useful_batch["kv_wall"] == pytest.approx(d.kv["fits_at_resident"])
    assert d.ceiling["context_tokens"] == d.kv["tokens_per_sequence_resident"]


def test_sequences_that_hold_more_than_they_are_long_are_named(files):
    bench = json.loads((files / "bench.json").read_text())
    bench |= {"total_input_tokens": 200_000, "total_output_tokens": 200_000}  # 800 a request; 1,200 held
    (files / "bench.json").write_text(json.dumps(bench))
    note = next(n for n in run(files).data_quality if n.code == "resident-above-full")
    assert "1,200" in note.message and "800" in note.message


def test_traced_steps_unlike_the_run_are_said_first(files):
    sample = SAMPLES / "generated_h100_decode_hbm.json.gz"
    d = pipeline.run([sample, files], pipeline.Options())
    assert d.representative["verdict"] == "no"
    batch = next(c for c in d.representative["checks"] if c["quantity"] == "batch")
    assert batch["percentile"] == 0  # 16 traced, never under 100 in the run
    assert d.verdict.could_not_tell[0].startswith("whether these steps are the ones that were slow")
