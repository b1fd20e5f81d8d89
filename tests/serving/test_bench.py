"""Benchmark results of each load generator, and the two real files."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from diagnose.errors import InputError
from diagnose.serving.bench_parser import read_bench
from diagnose.serving.stats import bucket_quantile, quantile

SHARED = Path(__file__).parents[3] / "shared" / "traces" / "serving"

VLLM = {
    "backend": "vllm", "model_id": "/home/x/models/Qwen2-7B", "num_prompts": 3, "request_rate": "inf",
    "max_concurrency": 200,
    "duration": 10.0, "completed": 3, "failed": 1, "total_input_tokens": 30, "total_output_tokens": 9,
    "request_throughput": 0.3, "output_throughput": 0.9, "total_token_throughput": 3.9,
    "input_lens": [10, 10, 10], "output_lens": [3, 3, 3], "ttfts": [0.1, 0.2, 0.3],
    "itls": [[0.01, 0.02], [0.03, 0.04], [0.05, 0.06]], "start_times": [5.0, 6.0, 7.0],
    "mean_ttft_ms": 200.0, "median_ttft_ms": 200.0, "p99_ttft_ms": 298.0, "std_ttft_ms": 81.6,
    "mean_itl_ms": 35.0,
    "mean_tpot_ms": 35.0, "median_tpot_ms": 35.0,
}  # fmt: skip


def write(tmp_path, text, name="bench.json"):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return read_bench(path)


def test_vllm(tmp_path):
    e = write(tmp_path, VLLM)
    assert e.stat("ttft_ms", "p50") == 200
    assert e.stat("ttft_ms", "p90") == pytest.approx(np.quantile([100, 200, 300], 0.9))
    assert e.stat("itl_ms", "p50") == pytest.approx(35)
    assert e.stat_value("output_tok_s") == 0.9
    assert (e.setting("bench_max_concurrency"), e.setting("bench_request_rate")) == ("200", "inf")
    assert e.setting("model") == "Qwen2-7B"
    assert [r.e2e_ms for r in e.requests] == pytest.approx([130, 270, 410])
    assert [r.start_s for r in e.requests] == [0, 1, 2]
    assert e.stat_value("failed") == 1


def test_failed_requests_have_no_latency(tmp_path):
    run = {**VLLM, "errors": ["", "timeout", ""]}
    assert len(write(tmp_path, run).requests) == 2


def test_sglang_json_lines_take_the_last_run(tmp_path):
    row = {
        "backend": "sglang", "request_rate": float("inf"), "max_concurrency": 16, "duration": 1.5,
        "completed": 5,
        "total_input_tokens": 10, "total_output_tokens": 20, "request_throughput": 3.3,
        "output_throughput": 13.0,
        "total_throughput": 20.0, "mean_e2e_latency_ms": 90.0, "p99_e2e_latency_ms": 99.0,
        "mean_ttft_ms": 9.0,
        "p90_itl_ms": 4.0, "concurrency": 12.5, "accept_length": 2.5,
    }  # fmt: skip
    text = "\n".join(json.dumps({**row, "mean_ttft_ms": t}) for t in (1.0, 2.0))
    e = write(tmp_path, text, "bench.jsonl")
    assert e.stat("ttft_ms", "mean") == 2.0
    assert (e.stat("e2e_ms", "mean"), e.stat("itl_ms", "p90")) == (90.0, 4.0)
    assert e.stat_value("total_tok_s") == 20.0
    assert e.stat_value("concurrency") == 12.5
    assert e.notes[0].code == "bench-runs"


def test_console_text(tmp_path):
    text = """\
============ Serving Benchmark Result ============
Successful requests:                     400
Maximum request concurrency:             200
Benchmark duration (s):                  199.12
Total input tokens:                      409600
Total generated tokens:                  409600
Request throughput (req/s):              2.01
Output token throughput (tok/s):         2057.00
Total Token throughput (tok/s):          4114.00
---------------Time to First Token----------------
Mean TTFT (ms):                          28900.00
Median TTFT (ms):                        29100.00
P99 TTFT (ms):                           61000.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          29.90
Median TPOT (ms):                        29.80
---------------Inter-token Latency----------------
Mean ITL (ms):                           29.90
P99 ITL (ms):                            80.00
==================================================
"""
    e = write(tmp_path, text, "bench.txt")
    assert e.stat_value("output_tok_s") == 2057
    assert e.stat("ttft_ms", "p50") == 29100
    assert e.stat("itl_ms", "p99") == 80
    assert e.setting("bench_max_concurrency") == "200"


def test_aiperf_aggregate(tmp_path):
    data = {
        "time_to_first_token": {"unit": "ms", "avg": 12.0, "p50": 11.0, "p99": 20.0, "std": 1.0},
        "inter_token_latency": {"unit": "ms", "avg": 5.0, "p90": 6.0},
        "request_latency": {"unit": "s", "avg": 1.5, "p99": 2.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 900.0},
        "benchmark_duration": {"unit": "sec", "avg": 60.0},
        "input_config": {"loadgen": {"concurrency": 32}},
    }
    e = write(tmp_path, data)
    assert (e.stat("ttft_ms", "p50"), e.stat("e2e_ms", "mean")) == (11.0, 1500.0)
    # its inter-token latency is one value a request: TPOT, not the gap between tokens
    assert e.stat("tpot_ms", "p90") == 6.0
    assert e.stat("itl_ms", "p90") is None
    assert (e.stat_value("output_tok_s"), e.stat_value("duration_s")) == (900.0, 60.0)
    assert e.setting("bench_max_concurrency") == "32"


def test_aiperf_records(tmp_path):
    rows = [
        {
            "metadata": {
                "request_start_ns": i * 10**9,
                "request_end_ns": i * 10**9 + 2 * 10**9,
                "was_cancelled": False,
            },
            "metrics": {
                "time_to_first_token": {"value": 10.0 * (i + 1), "unit": "ms"},
                "request_latency": {"value": 2000.0, "unit": "ms"},
                "output_sequence_length": {"value": 100, "unit": "tokens"},
            },
            "error": None,
        }
        for i in range(3)
    ]
    rows.append({"metadata": {}, "metrics": {}, "error": {"code": 500}})
    e = write(tmp_path, "\n".join(map(json.dumps, rows)), "profile_export.jsonl")
    assert e.stat("ttft_ms", "mean") == 20
    assert (e.stat_value("completed"), e.stat_value("failed")) == (3, 1)
    assert e.stat_value("output_tok_s") == pytest.approx(300 / 4)


def test_genai_perf_profile(tmp_path):
    ms = 10**6
    data = {
        "experiments": [
            {
                "experiment": {"mode": "concurrency", "value": 4},
                "requests": [{"timestamp": 0, "response_timestamps": [50 * ms, 60 * ms, 80 * ms]}],
            }
        ]
    }
    e = write(tmp_path, data)
    assert (e.stat("ttft_ms", "mean"), e.stat("itl_ms", "mean"), e.stat("e2e_ms", "mean")) == (50, 15, 80)
    assert e.setting("bench_max_concurrency") == "4"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"a": 1}', "{" * 5000, "plain words"])
def test_other_files_are_refused(tmp_path, text):
    with pytest.raises(InputError) as error:
        write(tmp_path, text)
    assert "\n" not in str(error.value)


def test_quantile_is_numpys():
    rng = np.random.default_rng(3)
    values = np.sort(rng.exponential(size=257))
    for q in (0, 0.1, 0.5, 0.9, 0.99, 1):
        assert quantile(values.tolist(), q) == pytest.approx(np.quantile(values, q))


def test_bucket_quantile():
    rows = [(1.0, 10.0), (2.0, 30.0), (math.inf, 40.0)]
    assert bucket_quantile(rows, 0.5) == (1.5, 1.0, 2.0)  # rank 20, ten into the twenty of (1, 2]
    assert bucket_quantile(rows, 0.25) == (1.0, 0.0, 1.0)
    assert bucket_quantile(rows, 0.99) == (2.0, 2.0, math.inf)
    assert bucket_quantile([], 0.5) is None


@pytest.mark.shared_traces
@pytest.mark.skipif(not SHARED.exists(), reason="real traces are not here")
@pytest.mark.parametrize(("name", "tpot"), [("qps1", 24.564), ("qpsinf", 39.063)])
def test_real_vllm_results(name, tpot):
    path = SHARED / f"vllm_bench_llama3.3-70b_a100x8_tp8_{name}.json"
    e = read_bench(path)
    raw = json.loads(path.read_text())
    assert e.stat("tpot_ms", "mean") == pytest.approx(tpot, abs=1e-3)
    assert len(e.requests) == 200
    itls = np.concatenate([np.array(x) for x in raw["itls"]]) * 1e3
    assert e.stat("itl_ms", "p90") == pytest.approx(np.quantile(itls, 0.9))
    assert e.stat("itl_ms", "n") == len(itls)
    # computed from the rows, the mean time to first token is the one the file states
    assert np.mean([r.ttft_ms for r in e.requests]) == pytest.approx(raw["mean_ttft_ms"])
