"""Whole traces: one against itself, one kernel slowed, renamed kernels, windows without steps."""

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from diagnose import pipeline
from diagnose.reports.compare_json import json_schema, schema_text, to_json
from diagnose.settle.compare import compare
from diagnose.settle.comparison import Comparison
from diagnose.settle.story import flagged

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_traces"


@pytest.mark.parametrize(
    "name", ["generated_h100_decode_hbm", "generated_h100_prefill_compute", "cpu_decode_b1_bf16"]
)
def test_trace_against_itself_is_exactly_zero(name):
    d = pipeline.run([SAMPLES / f"{name}.json.gz"])
    again = pipeline.run([SAMPLES / f"{name}.json.gz"])
    result = compare([d], [again])
    assert result.verdict.overall == "no_change"
    assert result.metrics
    assert all(
        (m.change_abs, m.low_abs, m.high_abs, m.verdict) == (0, 0, 0, "no_change") for m in result.metrics
    )
    assert result.delta.total_ns == 0
    assert all(ns == 0 for ns in result.delta.buckets.values())
    assert all(r.change_ns == 0 for r in result.delta.roles)
    assert result.unmatched == []
    assert result.comparability == []
    assert all(k.change == 0 and k.impact_ns == 0 for k in result.kernels)
    assert flagged(result) == []


def test_one_slowed_kernel_is_found_sized_and_alone(decode_results):
    result = compare([decode_results[0]], [decode_results[1]])
    (found,) = flagged(result)
    assert found.shape == "16x4096 . 4096x28672"
    assert found.change == pytest.approx(0.10, abs=0.001)
    # 32 calls a step of 82.19 us, a tenth longer: 263 us a step.
    assert found.impact_ns == pytest.approx(0.1 * 32 * found.call_ns_before, rel=0.01)
    assert result.delta.total_ns == pytest.approx(found.impact_ns, rel=0.01)
    moved = [r for r in result.delta.roles if abs(r.change_ns) > 10]
    assert [(r.role, r.kind) for r in moved] == [("gemm", "kernels")]
    assert [m.verdict for m in result.metrics] == ["no_change"] * 3
    others = [k for k in result.kernels if k is not found]
    assert {k.verdict for k in others} == {"no_change"}
    assert result.verdict.overall == "regressed"
    assert "16x4096 . 4096x28672" in result.verdict.summary
    assert result.verdict.cause == "kernel_inefficiency"


def test_the_other_way_round_it_is_an_improvement(decode_results):
    result = compare([decode_results[1]], [decode_results[0]])
    (found,) = flagged(result)
    assert (result.verdict.overall, found.verdict) == ("improved", "improved")
    assert found.change == pytest.approx(1 / 1.1 - 1, abs=0.001)


def test_json_validates_and_reads_back(decode_results):
    result = compare([decode_results[0]], [decode_results[1]])
    data = to_json(result)
    raw = json.loads(data)
    jsonschema.Draft202012Validator(json_schema()).validate(raw)
    assert next(iter(raw)) == "schema"
    assert raw["schema"] == "diagnose-compare/1"
    assert {"comparability", "verdict", "metrics", "delta", "unmatched"} <= set(raw)
    assert msgspec.json.decode(data, type=Comparison) == result


def test_published_schema_has_not_drifted():
    assert (ROOT / "docs" / "diagnose-compare-1.schema.json").read_text() == schema_text(), (
        "the contract changed: write docs/diagnose-compare-1.schema.json anew from diagnose.reports.compare_json.schema_text()"
    )


def test_saved_results_compare_like_their_traces(decode_pair, decode_results):
    saved = [msgspec.json.decode(msgspec.json.encode(d), type=type(d)) for d in decode_results]
    assert to_json(compare([saved[0]], [saved[1]])) == to_json(
        compare([decode_results[0]], [decode_results[1]])
    )


def test_unshared_phases_are_listed(build):
    decode = [build.step(i, hbm=5_000_000) for i in range(4)]
    prefill = [build.step(9, "prefill", sequences=1, tokens=2048, compute=30_000_000)]
    result = compare([build.result(decode)], [build.result([*decode, *prefill])])
    (alone,) = [u for u in result.unmatched if u.kind == "phase"]
    assert (alone.side, alone.name, alone.ns_per_unit) == ("after", "prefill", 30_000_000)


def window(build, calls, call_ns, idle_ns, name="flash_fwd", extra=()):
    """A window with `calls` of one kernel, as many of another half as long, and idle time per call."""
    total = calls * call_ns
    row = build.step(
        0, "other", sequences=None, tokens=0, context=None, provenance="window", unmodelled=total + total // 2, idle_launch=calls * idle_ns,
        roles={"attn_prefill": total, "gemm": total // 2},
    )  # fmt: skip
    row.decode_tokens = row.prefill_tokens = None
    rows = [
        build.kernel(
            name, count=calls, time_ns=total, family="attn_prefill", phase="other", bound="unmodelled"
        ),
        build.kernel("mm", count=calls, time_ns=total // 2, phase="other", bound="unmodelled"),
        *extra,
    ]
    return build.result([row], rows)


def test_windows_are_compared_per_call_never_per_window(build):
    """34 and 30 calls of 4 ms: the windows differ by an eighth, the work by nothing."""
    result = compare([window(build, 34, 4_000_000, 100_000)], [window(build, 30, 4_000_000, 100_000)])
    assert result.delta.per == "call"
    assert (result.delta.units_before, result.delta.units_after) == (34, 30)
    assert result.delta.total_ns == 0
    by = {m.metric: m for m in result.metrics}
    assert by["time per call"].before == by["time per call"].after == pytest.approx(6.1)
    assert by["kernels"].verdict == "no_change"
    assert result.verdict.overall in ("no_change", "inconclusive")


def test_one_window_cannot_tell_idle_but_can_tell_kernels(build):
    result = compare([window(build, 34, 4_000_000, 700_000)], [window(build, 30, 4_000_000, 1_900_000)])
    by = {m.metric: m for m in result.metrics}
    assert by["kernels"].verdict == "no_change"
    assert by["idle"].change == pytest.approx(12 / 7)
    assert by["time per call"].verdict == by["idle"].verdict == "inconclusive"
    assert result.verdict.overall == "inconclusive"
    assert "too short to call it real" in result.verdict.summary
    slower = compare([window(build, 34, 4_000_000, 100_000)], [window(build, 30, 5_000_000, 100_000)])
    assert {m.metric: m.verdict for m in slower.metrics}["kernels"] == "regressed"
    assert slower.verdict.overall == "regressed"


def test_repeated_windows_measure_their_noise(build):
    before = [window(build, 30, 4_000_000, idle) for idle in (690_000, 700_000, 710_000)]
    after = [window(build, 30, 4_000_000, idle) for idle in (1_890_000, 1_900_000, 1_910_000)]
    result = compare(before, after)
    assert result.verdict.overall == "regressed"
    by = {m.metric: m for m in result.metrics}
    assert (by["time per call"].verdict, by["time per call"].noise) == ("regressed", "runs")
    assert result.verdict.cause == "launch_overhead"


def test_windows_that_repeat_nothing_in_common_are_not_compared(build):
    before = window(build, 34, 4_000_000, 100_000)
    after = window(build, 34, 4_000_000, 100_000)
    for row, family in zip(after.kernels, ("conv", "ssm"), strict=True):
        row.name, row.family = f"other_{family}", family
    result = compare([before], [after])
    assert result.metrics == []
    assert result.delta is None
    assert "--step-annotation" in " ".join(result.notes)
    assert result.verdict.overall == "inconclusive"


def test_the_unit_is_the_kernel_by_which_the_rest_repeats_alike(build):
    # `mm` runs once a flash call on both sides; `noise` runs 40 and 90 times and would be a bad ruler.
    extra = [
        build.kernel(
            "noise", count=n, time_ns=60_000_000, family="elementwise", phase="other", bound="unmodelled"
        )
        for n in (40, 90)
    ]
    result = compare(
        [window(build, 34, 4_000_000, 1, extra=extra[:1])], [window(build, 30, 4_000_000, 1, extra=extra[1:])]
    )
    assert result.delta.unit == "flash attention call"


def sample(name):
    return pipeline.run([SAMPLES / f"{name}.json.gz"])


@pytest.fixture(scope="module")
def cpu_bf16():
    return sample("cpu_decode_b1_bf16")


def test_captured_host_gap_is_a_scheduling_regression(cpu_bf16):
    """A real capture of the same model with host work put between its steps: kernels run as before, the step does not."""
    result = compare([cpu_bf16], [sample("cpu_decode_host_gap")])
    assert (result.verdict.overall, result.verdict.cause) == ("regressed", "scheduling")
    (top, *_) = result.delta.roles
    assert top.role == "idle_scheduling"
    assert top.change_ns > 0.8 * result.delta.total_ns


def test_captured_batch_of_eight_is_mixed(cpu_bf16):
    """The captures' own notes: 20.5 ms for eight sequences against 18.4 ms for one, so a token takes a seventh."""
    result = compare([cpu_bf16], [sample("cpu_decode_b8_bf16")])
    by = {m.metric: m for m in result.metrics}
    assert by["step time"].change == pytest.approx(20.5 / 18.4 - 1, abs=0.02)
    assert by["time per token"].change == pytest.approx(20.5 / 8 / 18.4 - 1, abs=0.01)
    assert result.verdict.overall == "mixed"


def test_captured_int8_is_the_same_products_done_differently():
    """fp32 against weight-only int8: a quarter of the bytes, steps of 19 ms against 11 to 14."""
    result = compare([sample("cpu_decode_b1_fp32")], [sample("cpu_decode_b1_int8")])
    assert result.verdict.overall == "improved"
    products = [k for k in result.kernels if k.role.startswith("gemm") and not k.minor]
    assert products
    assert all(k.matched_by == "shape" and k.renamed for k in products)
    # The vocabulary projection runs once a step, too seldom here to be sure of.
    assert all(k.verdict == "improved" for k in products if "8192" not in k.shape)
    (row,) = result.quantization["phases"]
    assert row["bytes_nominal"]["ratio"] == 0.25
    assert (
        row["streaming_share"] > 0.9 or row["streaming_share"] == 0.0
    )  # the processor's roofs are known with --device only
    assert row["predicted"] is None
