"""Latency by source, never one for another; splits only where the engine states the parts."""

import json
from pathlib import Path

import numpy as np
import pytest
from serving_forms import bench_json, hist, vllm_log

from diagnose.serving.bench_parser import read_bench
from diagnose.serving.latency import latency_report
from diagnose.serving.phase_ratio import phase_ratio

SHARED = Path(__file__).parents[3] / "shared" / "traces" / "serving"


def test_client_statistics_are_kept_as_stated(make):
    report = latency_report(
        make(bench=bench_json(mean_ttft_ms=100.0, median_ttft_ms=80.0, p99_ttft_ms=400.0))
    )
    assert report["ttft_ms"] == {
        "mean": 100.0, "p50": 80.0, "p90": None, "p99": 400.0, "count": None, "max": None, "source": "client",
        "provenance": "measured",
    }  # fmt: skip
    # nothing was said of gaps or of the whole request
    assert report["itl_ms"] is None
    assert report["e2e_ms"] is None


def test_tpot_is_not_taken_for_itl(make):
    report = latency_report(make(bench=bench_json(mean_tpot_ms=30.0, median_tpot_ms=29.0)))
    assert report["tpot_ms"]["mean"] == 30.0
    assert report["itl_ms"] is None


def test_engine_histogram(make):
    values = [0.05] * 50 + [0.3] * 40 + [2.0] * 10
    report = latency_report(make(metrics=hist("vllm:time_to_first_token_seconds", [0.1, 0.5, 1, 5], values)))
    ttft = report["ttft_ms"]
    assert ttft["source"] == "engine"
    assert ttft["mean"] == pytest.approx(np.mean(values) * 1e3)
    # rank 50 closes the first bucket; rank 90 the second; rank 99 lies 9/10 into (1, 5]
    assert (ttft["p50"], ttft["p90"], ttft["p99"]) == (100, 500, pytest.approx(1000 + 0.9 * 4000))
    for stat, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        low, high = ttft["bounds"][stat]
        assert low <= np.quantile(values, q, method="inverted_cdf") * 1e3 <= high
    # buckets up to 0.1, 0.5 and 5 s; the one up to 1 s is empty, none lie beyond
    assert ttft["histogram"] == [
        {"low": 0.0, "high": 100.0, "count": 50}, {"low": 100.0, "high": 500.0, "count": 40},
        {"low": 500.0, "high": 1000.0, "count": 0}, {"low": 1000.0, "high": 5000.0, "count": 10},
    ]  # fmt: skip


def test_histogram_of_the_clients_values_is_numpys(make):
    rng = np.random.default_rng(11)
    ttfts = rng.lognormal(0, 1.2, 500)
    itls = [list(rng.normal(0.02, 0.0005, 9)) for _ in ttfts]
    report = latency_report(
        make(bench=bench_json(ttfts=list(ttfts), itls=itls, output_lens=[10] * 500, input_lens=[5] * 500))
    )
    for metric, values in (("ttft_ms", ttfts * 1e3), ("itl_ms", np.concatenate(itls) * 1e3)):
        bins = report[metric]["histogram"]
        edges = [b["low"] for b in bins] + [bins[-1]["high"]]
        # edges are printed to six digits: a value may change sides of one only within that
        counts, _ = np.histogram(values, edges)
        assert np.abs(counts - [b["count"] for b in bins]).max() <= 1
        assert sum(b["count"] for b in bins) == len(values)
    bins = report["ttft_ms"]["histogram"]
    assert bins[1]["low"] / bins[0]["low"] == pytest.approx(10**0.05, rel=1e-4)  # twenty a decade
    assert len(report["itl_ms"]["histogram"]) == 12  # within half a decade: equal ones


def test_split_of_the_first_token(make):
    metrics = (
        hist("vllm:time_to_first_token_seconds", [1, 10], [2.0] * 10)
        + hist("vllm:request_queue_time_seconds", [1, 10], [1.5] * 10)
        + hist("vllm:request_prefill_time_seconds", [1, 10], [0.3] * 10)
        + "# TYPE vllm:prefix_cache_queries counter\nvllm:prefix_cache_queries_total 1000\n"
        + "# TYPE vllm:prefix_cache_hits counter\nvllm:prefix_cache_hits_total 250\n"
    )
    report = latency_report(make(metrics=metrics))
    assert report["split"]["ttft"] == pytest.approx(
        {"queue": 1500, "prefill": 300, "front end and first token out": 200}
    )
    assert report["split_detail"]["ttft"]["prefix_hit_share"] == 0.25
    # the client saw 3 s: the second outside the engine is named
    report = latency_report(make(metrics=metrics, bench=bench_json(mean_ttft_ms=3000.0)))
    assert report["split"]["ttft"]["front end and first token out"] == pytest.approx(1200)
    assert report["disagreements"][0]["difference"] == pytest.approx(1000)
    assert "front end" in report["disagreements"][0]["where"]


def test_no_parts_no_split(make):
    report = latency_report(make(bench=bench_json(mean_ttft_ms=100.0)))
    assert report["split"] == {"ttft": {}, "itl": {}}
    assert any("queue" in m for m in report["split_detail"]["ttft"]["missing"])
    metrics = hist("vllm:time_to_first_token_seconds", [1], [0.5] * 4) + hist(
        "vllm:request_queue_time_seconds", [1], [0.1] * 4
    )
    report = latency_report(make(metrics=metrics))
    assert report["split"]["ttft"] == pytest.approx({"queue": 100, "not split": 400})


def test_split_of_a_gap(make):
    """Ten pure decodes of 10 ms, two mixed of 30 ms, eight streams: mean 13.33 ms of which 3.33 are
    interference."""
    rows = [(0, 0, 8, 10.0)] * 10 + [(1, 512, 8, 30.0)] * 2
    report = latency_report(make(log=vllm_log(iterations=rows)), gap_ms=0.4)
    assert report is None  # iteration lines state no latency of a request
    bench = bench_json(mean_itl_ms=13.4, median_itl_ms=10.1)
    report = latency_report(make(log=vllm_log(iterations=rows), bench=bench), step_period_ms=10.0, gap_ms=0.4)
    split = report["split"]["itl"]
    assert split["prefill interference"] == pytest.approx(2 * 20 / 12)
    assert split["decode step"] + split["prefill interference"] == pytest.approx(160 / 12)
    assert split["gap between steps"] == 0.4
    # the client's mean gap of 13.4 ms less iterations of 13.33 and gaps of 0.4
    assert report["split_detail"]["itl"]["rest_ms"] == pytest.approx(13.4 - 160 / 12 - 0.4)
    assert report["reconciliation"]["ratio"] == pytest.approx(1.01)
    assert "is the traced decode step" in report["reconciliation"]["reading"]


def test_throughput_of_the_engine_where_the_client_is_silent(make):
    page = "# scraped_at {t}\n# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total {n}\n"
    e = make(metrics=page.format(t=0, n=0) + page.format(t=10, n=5000))
    report = latency_report(e)
    assert (report["throughput_tok_s"], report["throughput_source"]) == (500, "engine counter")


@pytest.mark.shared_traces
@pytest.mark.skipif(not SHARED.exists(), reason="real traces are not here")
def test_real_results_are_summarised():
    raw = {}
    reports = {}
    for rate in ("qps1", "qpsinf"):
        path = SHARED / f"vllm_bench_llama3.3-70b_a100x8_tp8_{rate}.json"
        raw[rate] = json.loads(path.read_text())
        reports[rate] = latency_report(read_bench(path))
    for rate, r in reports.items():
        d = raw[rate]
        assert r["throughput_tok_s"] == pytest.approx(d["total_output_tokens"] / d["duration"])
        assert r["ttft_ms"]["p90"] == pytest.approx(np.quantile(d["ttfts"], 0.9) * 1e3)
        whole = [t + sum(x) for t, x in zip(d["ttfts"], d["itls"], strict=True)]
        assert r["e2e_ms"]["p50"] == pytest.approx(np.quantile(whole, 0.5) * 1e3)
        assert r["itl_ms"]["p99"] == pytest.approx(d["p99_itl_ms"])
    # all at once: more tokens a second, longer gaps and a longer wait for the first token
    assert reports["qpsinf"]["throughput_tok_s"] > 8 * reports["qps1"]["throughput_tok_s"]
    assert reports["qpsinf"]["ttft_ms"]["p50"] > 6 * reports["qps1"]["ttft_ms"]["p50"]


@pytest.mark.shared_traces
@pytest.mark.skipif(not SHARED.exists(), reason="real traces are not here")
def test_two_engine_versions_at_fourteen_loads(tmp_path):
    """Time per token better at all points; first token worse below saturation (9) and better at it (5)."""
    lines = [
        x for x in (SHARED / "vllm_0.5.3_vs_0.5.5.csv").read_text().splitlines() if not x.startswith("#")
    ]
    rows = [dict(zip(lines[0].split(","), x.split(","), strict=True)) for x in lines[1:]]
    old = {(r["model"], r["qps"]): r for r in rows if r["engine"].startswith("0.5.3")}
    new = {(r["model"], r["qps"]): r for r in rows if r["engine"] == "0.5.5"}
    assert len(old) == len(new) == 14
    reports = {}
    for side, table in (("old", old), ("new", new)):
        for key, r in table.items():
            text = bench_json(
                mean_ttft_ms=float(r["mean_ttft_ms"]), mean_tpot_ms=float(r["mean_tpot_ms"]),
                output_throughput=float(r["out_tok_s"]), request_rate=r["qps"], request_throughput=float(r["req_s"]),
            )  # fmt: skip
            path = tmp_path / "b.json"
            path.write_text(text)
            reports[side, key] = latency_report(read_bench(path))
    assert all(reports["new", k]["tpot_ms"]["mean"] < reports["old", k]["tpot_ms"]["mean"] for k in old)
    better = [k for k in old if reports["new", k]["ttft_ms"]["mean"] < reports["old", k]["ttft_ms"]["mean"]]
    assert sorted(better) == sorted(
        [
            ("llama70B", "16"),
            ("llama70B", "inf"),
            ("mixtral8x7B", "16"),
            ("mixtral8x7B", "inf"),
            ("llama8B", "inf"),
        ]
    )


def test_prefill_to_decode_in_tokens_and_time(make):
    rows = [(1, 1000, 0, 50.0), (1, 1000, 4, 60.0), *[(0, 0, 4, 10.0)] * 9]
    bench = bench_json(completed=4, total_input_tokens=4000, total_output_tokens=800)
    got = phase_ratio(make(log=vllm_log(iterations=rows), bench=bench))
    assert got["tokens"]["ratio"] == 5
    assert got["time"]["share"] == {"prefill": 0.25, "mixed": 0.3, "decode": 0.45}
    # of the mixed 60 ms a pure decode step would have taken 10: prefill has 50 + 50 of 200
    assert got["time"]["prefill_share"] == pytest.approx(0.5)
    assert got["time"]["decode_share"] == pytest.approx(0.5)
    page = (
        "# scraped_at {t}\n# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total {p}\n"
        "# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total {g}\n"
        "# TYPE vllm:prefix_cache_queries counter\nvllm:prefix_cache_queries_total {p}\n"
        "# TYPE vllm:prefix_cache_hits counter\nvllm:prefix_cache_hits_total {h}\n"
    )
    got = phase_ratio(make(metrics=page.format(t=0, p=0, g=0, h=0) + page.format(t=9, p=900, g=100, h=300)))
    assert got["tokens"] == {
        "prompt": 900, "output": 100, "computed_prompt": 600, "ratio": 6, "source": "engine counters",
    }  # fmt: skip
    assert got["time"] is None
    assert phase_ratio(make(bench=bench_json())) is None
