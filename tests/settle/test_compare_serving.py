"""Served loads from published numbers: a starved KV pool, FP8 on B200, and loads that are not the same."""

import pytest
from serving_forms import vllm_log

from diagnose.settle.compare import compare


def pool_run(served, pool, gib, running, tok_s, ttft, tpot, usage, share):
    """Qwen2-7B on an A100, 1k in and 1k out, 200 clients: the published runs differ in --gpu-memory-utilization only."""
    bench = {
        "output_throughput": tok_s, "mean_ttft_ms": ttft, "mean_tpot_ms": tpot, "completed": 1000, "num_prompts": 1000,
        "max_concurrency": 200, "random_input_len": 1024, "random_output_len": 1024,
    }  # fmt: skip
    extra = (f"non-default args: {{'gpu_memory_utilization': {share}}}",)
    return served(
        bench,
        vllm_log([(running, 200 - running, usage, 0)] * 12, pool=pool, max_len=32_768, gib=gib, extra=extra),
    )


@pytest.fixture
def pools(served):
    small = pool_run(served, 93_872, 5.01, 72, 2057, 28_900, 29.9, 99.6, 0.30)
    return small, pool_run(served, 464_848, 24.83, 196, 4443, 3200, 40.3, 52.0, 0.55)


def test_kv_pool_grown(pools):
    result = compare([pools[0]], [pools[1]])
    by = {m.metric: m for m in result.metrics}
    assert {k: m.verdict for k, m in by.items()} == {
        "TTFT": "improved",
        "TPOT": "regressed",
        "throughput": "improved",
    }
    assert by["throughput"].change == pytest.approx(4443 / 2057 - 1)
    assert by["TTFT"].change == pytest.approx(3200 / 28_900 - 1)
    assert by["TPOT"].change == pytest.approx(40.3 / 29.9 - 1)
    assert result.verdict.overall == "mixed"
    assert result.verdict.cause == "kv_capacity"
    why = " ".join(result.verdict.why)
    assert "93,872 → 464,848 tokens" in why
    assert "72 → 196" in why
    assert ("throughput", "kv_capacity") in [(x.objective, x.before) for x in result.limits]
    assert [h.verdict for h in result.hypotheses if h.limit == "kv_capacity"] == ["confirmed"]
    assert result.batching["batch"] == [72, 196]
    assert [d.what for d in result.comparability] == ["GPU memory utilization", "KV pool tokens"]


def test_kv_pool_shrunk_is_the_same_story_backwards(pools):
    result = compare([pools[1]], [pools[0]])
    by = {m.metric: m.verdict for m in result.metrics}
    assert by == {"TTFT": "regressed", "TPOT": "improved", "throughput": "regressed"}
    assert result.verdict.cause == "kv_capacity"


def test_a_pool_that_did_not_bind_is_not_the_cause(served):
    def run(pool, gib):
        # 10 clients: both pools serve alike (published: 13.46 and 13.47 ms).
        bench = {
            "output_throughput": 700.0,
            "mean_tpot_ms": 13.46,
            "mean_ttft_ms": 90.0,
            "completed": 200,
            "max_concurrency": 10,
        }
        return served(bench, vllm_log([(10, 0, 20.0 if pool < 1e5 else 4.0, 0)] * 12, pool=pool, gib=gib))

    result = compare([run(93_872, 5.01)], [run(464_848, 24.83)])
    assert result.verdict.overall == "no_change"
    assert result.verdict.cause is None
    assert "did not bind" in " ".join(result.verdict.why)


def fp8_on_b200(served):
    """Published: TTFT 547 -> 1,010 ms, TPOT 13.7 -> 7.1 ms (medians), 44.4 -> 36.2 requests a second."""
    before = {
        "median_ttft_ms": 547.0,
        "median_tpot_ms": 13.7,
        "request_throughput": 44.4,
        "output_throughput": 0.0,
        "completed": 1000,
        "model_id": "org/Model-8B",
    }
    after = {
        "median_ttft_ms": 1010.0,
        "median_tpot_ms": 7.1,
        "request_throughput": 36.2,
        "output_throughput": 0.0,
        "completed": 1000,
        "model_id": "org/Model-8B-FP8",
    }
    return compare([served(before)], [served(after)])


def test_fp8_on_b200_splits_by_phase(served):
    result = fp8_on_b200(served)
    by = {m.metric: m for m in result.metrics}
    assert {k: m.verdict for k, m in by.items()} == {
        "TTFT": "regressed",
        "TPOT": "improved",
        "request throughput": "regressed",
    }
    assert by["TTFT"].change == pytest.approx(1010 / 547 - 1)
    assert by["TPOT"].change == pytest.approx(7.1 / 13.7 - 1)
    assert by["TTFT"].note == "median"
    assert result.verdict.overall == "mixed"
    # One breath: what got better and what got worse in one sentence.
    assert (
        result.verdict.summary.index("TPOT")
        < result.verdict.summary.index(", but ")
        < result.verdict.summary.index("TTFT")
    )
    assert "prefill" in " ".join(result.verdict.why)


def test_fp8_checkpoint_is_the_same_model_and_quality_is_asked_for(served):
    result = fp8_on_b200(served)
    assert [d for d in result.comparability if d.withholds] == []
    assert result.quantization["after"] == "fp8"
    assert "quality was not measured" in result.quantization["quality"]


@pytest.mark.parametrize(
    ("key", "a", "b", "what"),
    [
        ("request_rate", 4, 16, "request rate"),
        ("max_concurrency", 10, 200, "client concurrency"),
        ("random_input_len", 128, 4096, "prompt length asked for"),
    ],
)
def test_another_load_withholds_latency_and_throughput(served, key, a, b, what):
    base = {"mean_ttft_ms": 50.0, "mean_tpot_ms": 20.0, "output_throughput": 500.0, "completed": 100}
    result = compare([served({**base, key: a})], [served({**base, "mean_ttft_ms": 500.0, key: b})])
    assert {m.verdict for m in result.metrics} == {"withheld"}
    assert any(d.what == what and d.withholds for d in result.comparability)
    assert result.verdict.overall == "inconclusive"
    assert what in result.verdict.summary


def test_another_model_withholds_everything(served):
    base = {"mean_ttft_ms": 50.0, "completed": 100}
    result = compare([served({**base, "model_id": "org/A-7B"})], [served({**base, "model_id": "org/B-70B"})])
    assert {m.verdict for m in result.metrics} == {"withheld"}


def test_failed_requests_withhold(served):
    base = {"mean_ttft_ms": 50.0, "completed": 100, "failed": 0}
    result = compare([served(base)], [served({**base, "mean_ttft_ms": 20.0, "failed": 40})])
    assert result.metrics[0].verdict == "withheld"
    assert "failed requests" in result.metrics[0].reason


def test_spread_of_requests_is_the_noise_of_a_mean(served):
    def run(mean):
        return served(
            {"mean_ttft_ms": mean, "std_ttft_ms": 400.0, "completed": 100, "output_throughput": 500.0}
        )

    # Standard error 400 / 10 = 40 ms a side, 56.6 of the difference: 10 ms of 100 is nothing, 300 of 100 is.
    small = compare([run(100.0)], [run(110.0)]).metrics[0]
    assert (small.verdict, small.noise) == ("inconclusive", "requests")
    assert small.high_abs - small.low_abs == pytest.approx(2 * 1.97 * 56.57, rel=0.01)
    assert compare([run(100.0)], [run(400.0)]).metrics[0].verdict == "regressed"


def test_repeats_are_judged_by_their_spread(served):
    def runs(*values):
        return [served({"mean_ttft_ms": v, "completed": 100}) for v in values]

    found = compare(runs(100, 101, 99), runs(103, 104, 102.5)).metrics[0]
    assert (found.verdict, found.noise) == ("regressed", "runs")
    assert compare(runs(100, 120, 80), runs(103, 125, 85)).metrics[0].verdict == "inconclusive"


def test_engine_flags_are_named_and_not_withheld(served):
    def run(flag):
        return served(
            {"mean_ttft_ms": 50.0, "completed": 100},
            vllm_log(extra=(f"non-default args: {{'max_num_seqs': {flag}}}",)),
        )

    result = compare([run(128)], [run(256)])
    (found,) = result.comparability
    assert (found.what, found.before, found.after, found.withholds) == ("max num seqs", "128", "256", [])


def test_request_delta_splits_first_token_from_the_rest(served):
    def run(ttft, e2e):
        return served({"mean_ttft_ms": ttft, "mean_e2el_ms": e2e, "completed": 100})

    delta = compare([run(100.0, 1100.0)], [run(150.0, 1050.0)]).delta
    assert (delta.per, delta.total_ns) == ("request", -50_000_000)
    assert {r.role: r.change_ns for r in delta.roles} == {
        "time to first token": 50_000_000,
        "first to last token": -100_000_000,
    }
