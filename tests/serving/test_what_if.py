"""What-if over batch and devices, quantisation, representativeness: against published before-and-after pairs."""

from itertools import pairwise

import pytest
from serving_forms import bench_json, vllm_log

from diagnose.serving.model_config import load_model
from diagnose.serving.parts import caps_from, parts_from_evidence, roof_parts
from diagnose.serving.quant_predict import find_ratio, predict, step_ratio
from diagnose.serving.representative import representative_report
from diagnose.serving.signals import derive_signals
from diagnose.serving.step_ops import FlatRoofs
from diagnose.serving.what_if import (
    Caps,
    StepParts,
    batch_curve,
    batch_row,
    crossover_batch,
    marginal_gain,
    step_at,
    useful_batch,
)
from diagnose.serving.what_if_device import Rates, TimedPart, retime

A100 = FlatRoofs(1600e9, 0.9 * 312e12)


def inside(value, pair, slack=0.0):
    return pair[0] * (1 - slack) <= value <= pair[1] * (1 + slack)


def test_doubling_at_the_crossover_adds_half():
    """Llama-3-8B at 30 x 4k: KV bytes are the weight bytes, so twice the batch gives +50 %."""
    m = load_model("llama-3-8b")
    bandwidth = 0.9 * 3352e9
    parts = StepParts(
        batch=30, context=4096, weights_ms=m.weight_bytes().total / bandwidth * 1e3,
        kv_ms=30 * 4096 * 131_072 / bandwidth * 1e3, knee=256,
    )  # fmt: skip
    assert parts.kv_ms == pytest.approx(parts.weights_ms, rel=0.01)
    low, high = step_at(parts, 60)
    assert inside(1.5, (low / parts.step_ms, high / parts.step_ms))
    assert high / low < 1.1
    assert crossover_batch(parts) == pytest.approx(30, rel=0.01)


@pytest.mark.parametrize("kind", ["weights_ms", "floor_ms", "gap_ms"])
def test_doubling_leaves_flat_steps_flat(kind):
    """Weight-bound below the knee +0-6 %, launch-bound and floor-bound +0-5 %: doubling does not tell them apart."""
    parts = StepParts(
        **{"batch": 8, "context": 100, "weights_ms": 0.0, "kv_ms": 0.0, "knee": 128, kind: 10.0}
    )
    low, high = step_at(parts, 16)
    assert 0.94 <= low / 10 <= high / 10 <= 1.06
    assert marginal_gain(parts, 8)[0] > 1.85


def test_beyond_the_knee_weights_cost_tokens():
    parts = StepParts(batch=256, context=1, weights_ms=10.0, kv_ms=0.0, knee=256)
    low, high = step_at(parts, 512)
    # published: 256 to 512 tokens +70 % on H100; proportional is +100 %, the margin of a first-order law
    assert inside(2.0, (low / 10, high / 10))
    assert marginal_gain(parts, 256)[1] < 1.1


def test_more_batch_gains_nothing_where_kv_fills_the_step():
    parts = StepParts(batch=64, context=32_768, weights_ms=5.0, kv_ms=90.0, knee=256)
    low, high = marginal_gain(parts, 64)
    assert 0.95 < low < high < 1.12


def evidence_20(make, pool=93_872, running=72, tok_s=2057, ttft=28_900, tpot=29.9, usage=100.0):
    log = vllm_log([(running, 200 - running, usage, 0)] * 12, pool=pool, max_len=4096)
    bench = bench_json(
        max_concurrency=200, completed=400, total_input_tokens=400 * 1024, total_output_tokens=400 * 1024,
        output_throughput=tok_s, mean_ttft_ms=ttft, mean_tpot_ms=tpot, request_throughput=tok_s / 1024,
    )  # fmt: skip
    return make(log=log, bench=bench)


def test_a_larger_pool_predicted_from_the_starved_run(make):
    """Qwen2-7B on A100: from 72 running at 29.9 ms predict 196 running; 40.3 ms and 4,443 tok/s were measured."""
    e = evidence_20(make)
    s = derive_signals(e)
    parts = parts_from_evidence(load_model("qwen2-7b"), e, s, A100)
    assert parts.step_ms == pytest.approx(29.9)
    row = batch_row(parts, 196, caps_from(s))
    assert inside(40.3, (row["itl_ms_low"], row["itl_ms_high"]))
    assert inside(4443, (row["tok_s_low"], row["tok_s_high"]))
    # time per token gets worse while throughput more than doubles
    assert row["itl_ms_low"] > 29.9
    assert row["tok_s_low"] > 1.3 * 2057
    assert row["beyond"] == ["KV wall"]


def test_curve_marks_and_caps(make):
    e = evidence_20(make)
    s = derive_signals(e)
    parts = parts_from_evidence(load_model("qwen2-7b"), e, s, A100)
    rows = batch_curve(parts, caps_from(s, slo_itl_ms=30.0))
    here = next(r for r in rows if r["batch"] == 72)
    assert here["marks"] == ["measured here", "KV wall"]
    assert here["provenance"] == "measured"
    assert here["tok_s"] == pytest.approx(72 / 29.9e-3)
    assert [r["batch"] for r in rows] == sorted(r["batch"] for r in rows)
    assert all(a["step_ms_low"] <= b["step_ms_high"] for a, b in pairwise(rows))
    assert rows[0]["meets_itl_slo"] is True
    assert rows[-1]["meets_itl_slo"] is False


def test_useful_batch_under_an_itl_line():
    parts = StepParts(batch=10, context=1000, weights_ms=10.0, kv_ms=1.0, knee=200)
    got = useful_batch(parts, Caps(pool_tokens=150_000, resident_tokens=1000, slots=256))
    assert (got["batch"], got["stopped_by"]) == (150, "kv_wall")
    got = useful_batch(parts, Caps(slots=256, slo_itl_ms=15.0))
    # 10 + 0.1 b <= 15: batch 50 by the middle of the interval
    assert got["batch"] < 50 < got["batch_at_best"]
    assert got["stopped_by"] == "slo_itl"


def test_no_cap_no_useful_batch():
    parts = StepParts(batch=10, context=1000, weights_ms=10.0, kv_ms=0.001, knee=1e9)
    got = useful_batch(parts, Caps())
    assert (got["batch"], got["batch_at_best"], got["stopped_by"]) == (None, None, None)
    # the KV reads of 4,096 sequences take 0.4 ms: a line at 50 ms stops nothing, one at 9 ms everything
    assert useful_batch(parts, Caps(slo_itl_ms=50.0))["batch"] is None
    got = useful_batch(parts, Caps(slo_itl_ms=9.0))
    assert (got["batch"], got["stopped_by"]) == (None, "slo_itl")


def test_prefill_line_leaves_the_queue_out():
    parts = StepParts(batch=10, context=1000, weights_ms=10.0, kv_ms=1.0, knee=200)
    row = batch_row(parts, 10, Caps(slo_ttft_ms=50.0, prefill_ms=100.0))
    assert row["meets_ttft_slo"] is False
    row = batch_row(parts, 10, Caps(slo_ttft_ms=500.0, prefill_ms=100.0))
    assert row["meets_ttft_slo"] is None  # the queue is not predicted, so it cannot be promised


def test_speculation_keeps_accepted_tokens():
    parts = StepParts(batch=4, context=100, weights_ms=10.0, kv_ms=0.1, knee=128, accepted=2.5, verified=4)
    row = batch_row(parts, 4, Caps())
    assert row["tok_s"] == pytest.approx(4 * 2.5 / 10.1e-3)
    assert row["itl_ms"] == pytest.approx(10.1 / 2.5)


def test_without_a_compute_roof_the_interval_is_wide():
    parts = StepParts(batch=32, context=1, weights_ms=10.0, kv_ms=0.0)
    low, high = step_at(parts, 64)
    assert low <= 10.0
    assert high >= 20.0


def test_h100_to_h200():
    """Bandwidth 1.43 times: memory-bound time x 0.70-0.75, compute unchanged, host-bound serving +0-4 %."""
    h100 = Rates("H100", 3000e9, {"bf16": 790e12})
    h200 = Rates("H200", 4300e9, {"bf16": 790e12}, price=4.0)
    memory = retime([TimedPart("hbm", 10.0)], h100, h200, tokens_per_step=32)
    assert memory["step_ms"][0] == pytest.approx(10 * 3000 / 4300)
    assert 6.9 < memory["step_ms"][0] < memory["step_ms"][1] < 7.6
    assert memory["tokens_per_price"][1] == pytest.approx(32 / memory["step_ms"][0] * 1e3 * 3600 / 4.0)
    compute = retime([TimedPart("compute", 10.0)], h100, h200)
    assert inside(10.0, compute["step_ms"])
    # a step that is mostly gaps, floors and collectives: what was measured at equal batch
    host = retime([TimedPart("hbm", 1.0), TimedPart("idle", 8.0), TimedPart("floor", 1.0)], h100, h200)
    assert 1.0 <= host["speedup"][0] <= host["speedup"][1] <= 1.04
    assert host["kept_ms"] == 9.0


def test_unknown_roof_keeps_the_time():
    got = retime([TimedPart("compute", 5.0, "fp4")], Rates("A", 1e12, {}), Rates("B", 2e12, {}))
    assert got["step_ms"] == [5.0, 5.0]
    assert any("unknown" in c for c in got["conditions"])


# gpt-fast on A100: Llama-2-7B batch 1, 104.9 / 155.6 / 196.8 tok/s in bf16, int8, int4
@pytest.mark.parametrize(("method", "after", "ideal"), [("int8", 155.6, 2.0), ("int4", 196.8, 4.0)])
def test_batch_one_quantisation_is_not_its_bits(method, after, ideal):
    m = load_model("llama-2-7b")
    roof = roof_parts(m, A100, 1, 100)
    share = roof["weights"] / (1e3 / 104.9)
    assert 0.8 < share < 0.95
    got = predict(method, "NVIDIA A100-SXM4-80GB", 1, [(share, None)])
    assert inside(after / 104.9, (got["low"], got["high"]))
    assert got["high"] < 0.9 * ideal


@pytest.mark.parametrize(
    ("method", "device", "m", "phase", "measured"),
    [
        ("fp8", "NVIDIA B200", 32, "decode", 13.7 / 7.1), ("fp8", "NVIDIA B200", 8192, "prefill", 547 / 1010),
        ("llm.int8", "A800", 1, "decode", 9.9 / 36.2), ("awq", "A100", 256, "decode", 0.5),
        ("w4a8", "H800", 512, "decode", 0.91),
    ],
)  # fmt: skip
def test_published_outcomes_are_covered_losses_too(method, device, m, phase, measured):
    got = predict(method, device, m, [(1.0, None)], phase)
    assert inside(measured, (got["low"], got["high"]))


# bf16 and fp8 times of an 8192 x 8192 projection, from the tables of the device's vendor: us at M
SINGLE = [
    ("H100 80GB HBM3", 16, 46.4, 32.8), ("H100 80GB HBM3", 64, 47.4, 30.4), ("H100 80GB HBM3", 512, 87.4, 57.5),
    ("H100 80GB HBM3", 4096, 698, 496), ("NVIDIA H200", 16, 34.4, 23.4),
]  # fmt: skip


def test_kernel_ratios_cover_single_shapes():
    """The band is the 5th to 95th percentile of a class: one shape of five may lie outside, and only just."""
    rows = [(find_ratio("fp8", device, m, 134.2), bf16 / fp8) for device, m, bf16, fp8 in SINGLE]
    assert sum(r.low <= ratio <= r.high for r, ratio in rows) >= 4
    assert all(0.95 * r.low <= ratio <= 1.05 * r.high for r, ratio in rows)


def test_small_matrices_can_lose():
    row = find_ratio("fp8", "H100", 16, 8.0)
    assert row.mid < 1
    assert find_ratio("fp8", "H100", 16, 200.0).mid > 1.5


def test_nothing_measured_nothing_predicted():
    assert predict("int3", "H100", 16, [(0.9, None)]) is None
    assert predict("int8", "RTX 4090", 1, [(0.9, None)]) is None
    got = predict("fp8", "H100", 16, [(0.5, 200.0), (0.3, 200.0)])
    assert got["unmeasured_share"] == 0
    assert got["mid"] == pytest.approx(step_ratio(0.8, find_ratio("fp8", "H100", 16, 200.0).mid))


def test_share_limits_the_gain():
    assert step_ratio(0.5, 2.0) == pytest.approx(1 / 0.75)
    assert step_ratio(0.0, 2.0) == 1.0
    assert step_ratio(1.0, 0.5) == 0.5


def test_eight_bit_cache_gains_its_share_of_the_step():
    """Decode attention at 32 x 4k on H200: 135.5 to 103.3 us, 1.31 times; of a fifth of a step that is 5 %."""
    got = predict("fp8_kv", "NVIDIA H200", 32, [(1.0, None)])
    assert inside(135.5 / 103.3, (got["low"], got["high"]))
    assert predict("fp8_kv", "NVIDIA H200", 32, [(0.2, None)])["high"] < 1.08


def test_representative(make):
    e = make(log=vllm_log([(64, 0, 60.0, 0)] * 30, pool=100_000), bench=bench_json(median_itl_ms=20.0))
    same = representative_report(e, batch=62, context_per_sequence=900, step_ms=19.5, steps=40)
    assert (same["verdict"], same["notes"]) == ("yes", [])
    # 60,000 tokens over 64 sequences are 938 each
    other = representative_report(e, batch=4, context_per_sequence=100, step_ms=9.0, steps=5)
    assert other["verdict"] == "no"
    assert [c["quantity"] for c in other["checks"] if not c["inside"]] == [
        "batch", "context", "step time against the median gap between tokens",
    ]  # fmt: skip
    assert "5 steps" in other["notes"][0]
    assert representative_report(make(bench=bench_json()), batch=4) is None
