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


def test_aiperf_chunks_and_warm_up(tmp_path):
    """The published record: chunk gaps as a list, the phase in the metadata; warm-up is no measurement."""

    def record(phase, gaps):
        return {
            "metadata": {
                "session_num": 1, "request_start_ns": 10**18, "request_end_ns": 10**18 + 10**9, "benchmark_phase": phase,
                "was_cancelled": False, "worker_id": "worker_1",
            },
            "metrics": {
                "time_to_first_token": {"value": 20.0, "unit": "ms"},
                "inter_chunk_latency": {"value": gaps, "unit": "ms"},
                "output_sequence_length": {"value": len(gaps) + 1, "unit": "tokens"},
                "inter_token_latency": {"value": float(np.mean(gaps)), "unit": "ms"},
            },
            "error": None,
        }  # fmt: skip

    rows = [record("warmup", [500.0] * 8), record("profiling", [5.0, 6.0]), record("profiling", [5.0, 9.0])]
    e = write(tmp_path, "\n".join(map(json.dumps, rows)), "profile_export.jsonl")
    assert e.stat_value("completed") == 2
    assert e.stat("itl_ms", "p50") == np.quantile([5, 6, 5, 9], 0.5)
    assert e.stat("itl_ms", "n") == 4
    assert e.stat("tpot_ms", "mean") == pytest.approx((5.5 + 7) / 2)
    assert any(n.code == "bench-warmup" for n in e.notes)


def test_aiperf_aggregate_with_telemetry(tmp_path):
    """Newer files: totals under two names, nulls, errors as a list, a GPU's name beside its host's."""
    data = {
        "request_throughput": {"unit": "requests/sec", "avg": 13.0}, "request_count": {"unit": "requests", "avg": 200.0},
        "request_latency": {"unit": "ms", "avg": 6550.0, "p1": 5523.0, "p99": 9381.0, "std": 1171.0},
        "total_osl": {"unit": "tokens", "avg": 19370.0}, "total_output_tokens": {"unit": "tokens", "avg": 19370.0},
        "was_cancelled": True, "goodput": None, "error_request_count": None,
        "error_summary": [{"error_details": {"code": 499}, "count": 81}, {"error_details": {"code": 500}, "count": 3}],
        "telemetry_data": {"endpoints": {"node17:9401": {"gpus": {"gpu_0": {
            "gpu_name": "NVIDIA RTX 6000 Ada Generation", "hostname": "d3bc1424aff3", "gpu_uuid": "GPU-f35d",
            "metrics": {"gpu_power_usage": {"unit": "W", "avg": 43.4}},
        }}}}},
        "input_config": {
            "endpoint": {"model_names": ["/home/alice/gpt-oss-20b"], "url": "node17:9000"},
            "loadgen": {"concurrency": 100}, "cli_command": "aiperf profile -m x --url node17:9000",
        },
    }  # fmt: skip
    e = write(tmp_path, data)
    assert [s.value for s in e.samples if s.metric == "output_tokens"] == [19370]
    assert (e.stat_value("failed"), e.stat_value("completed")) == (84, 200)
    assert (e.setting("device"), e.setting("model")) == ("NVIDIA RTX 6000 Ada Generation", "gpt-oss-20b")
    assert any(n.code == "bench-cancelled" for n in e.notes)
    told = repr(e)
    assert not any(x in told for x in ("node17", "d3bc1424aff3", "GPU-f35d", "alice", "--url"))


def test_genai_perf_of_2024_writes_numbers_as_text(tmp_path):
    data = {
        "request_throughput": {"unit": "requests per sec", "avg": "12.2"},
        "time_to_first_token": {"unit": "ns", "avg": "21500000.5", "p50": "20901523.0", "p99": "44816559", "max": "44816559"},
        "inter_token_latency": {"unit": "ns", "avg": "3860101.11", "p99": "5263723.22"},
        "output_token_throughput": {"unit": "tokens per sec", "avg": "217.1"},
        "num_output_token": {"unit": "tokens", "avg": "17.76"}, "num_input_token": {"unit": "tokens", "avg": "200"},
    }  # fmt: skip
    e = write(tmp_path, data)
    assert e.stat("ttft_ms", "p50") == pytest.approx(20.901523)
    assert e.stat("tpot_ms", "mean") == pytest.approx(3.86010111)
    assert (e.stat("output_len", "mean"), e.stat("prompt_len", "mean")) == (17.76, 200)
    assert e.stat_value("output_tok_s") == 217.1


TRTLLM = {
    "engine": {
        "model": "meta-llama/Llama-3.1-8B", "model_path": "/home/alice/m", "engine_dir": "/home/alice/e", "version": "1.0.0",
        "backend": "Pytorch", "dtype": "bfloat16", "kv_cache_dtype": None, "quantization": "FP8",
    },
    "world_info": {
        "tp_size": 2, "pp_size": 1, "ep_size": None, "world_size": 2, "max_batch_size": 64, "max_num_tokens": 8192,
        "scheduling_policy": "GUARANTEED_NO_EVICT", "kv_cache_percentage": 0.9, "issue_rate": 1e6,
    },
    "request_info": {
        "num_requests": 100, "avg_num_concurrent_requests": 61.5, "avg_input_length": 1000.0, "avg_output_length": 500.0,
    },
    "performance": {
        "total_latency_ms": 25000.0, "avg_request_latency_ms": 9000.0, "request_throughput_req_s": 4.0,
        "system_output_throughput_tok_s": 2000.0, "system_total_throughput_tok_s": 6000.0,
        "request_latency_percentiles_ms": {
            "p50": 8800.0, "p90": 9900.0, "p95": 9950.0, "p99": 9990.0, "minimum": 5000.0, "maximum": 9999.0, "average": 9000.0,
        },
    },
    "streaming_metrics": {
        "token_output_speed_tok_s": 60.0, "avg_ttft_ms": 800.0, "avg_tpot_ms": 16.0,
        "ttft_percentiles": {"p50": 700.0, "p90": 1500.0, "p99": 2000.0, "minimum": 20.0, "maximum": 2100.0, "average": 800.0},
        "tpot_percentiles": {"p50": 15.5, "p90": 18.0, "p99": 20.0, "minimum": 12.0, "maximum": 21.0, "average": 16.0},
    },
    "dataset": {"dataset_path": "/home/alice/d.jsonl", "num_requests": 100},
}  # fmt: skip


def test_trtllm_bench(tmp_path):
    e = write(tmp_path, TRTLLM, "report.json")
    assert (e.stat("ttft_ms", "p90"), e.stat("tpot_ms", "mean"), e.stat("e2e_ms", "p99")) == (1500, 16, 9990)
    assert e.stat("itl_ms", "p50") is None
    # 100 requests of 500 tokens in 25 s
    assert e.stat_value("output_tokens") / e.stat_value("duration_s") == e.stat_value("output_tok_s") == 2000
    assert {s.key: s.value for s in e.settings} == {
        "engine": "tensorrt-llm", "engine_version": "1.0.0", "model": "meta-llama/Llama-3.1-8B", "dtype": "bfloat16",
        "quantization": "fp8", "tp": "2", "pp": "1", "max_num_seqs": "64", "max_num_batched_tokens": "8192",
    }  # fmt: skip
    assert "alice" not in repr(e)
    still = {k: v for k, v in TRTLLM.items() if k != "streaming_metrics"}
    assert [n.code for n in write(tmp_path, still, "r.json").notes] == ["bench-no-ttft"]


def test_sglang_keeps_the_servers_settings(tmp_path):
    info = {
        "model_path": "/data/alice/Qwen3-8B", "host": "10.0.0.7", "api_key": "sk-1", "tp_size": 2, "max_running_requests": 64,
        "mem_fraction_static": 0.8, "disable_cuda_graph": True, "chunked_prefill_size": 8192,
    }  # fmt: skip
    run = {
        "backend": "sglang", "request_rate": "trace", "request_throughput": 1.0, "output_throughput": 9.0, "mean_ttft_ms": 5.0,
        "mean_itl_ms": 4.0, "p95_itl_ms": 7.0, "p99_itl_ms": 9.0, "max_itl_ms": 12.0, "server_info": info, "accept_length": None,
    }  # fmt: skip
    e = write(tmp_path, json.dumps(run), "bench.jsonl")
    assert (e.setting("max_num_seqs"), e.setting("enforce_eager"), e.setting("tp")) == ("64", "true", "2")
    assert (e.stat("itl_ms", "max"), e.stat("itl_ms", "p95")) == (12, 7)
    assert not any(x in repr(e) for x in ("10.0.0.7", "sk-1", "alice"))


def test_values_of_something_else_complete_no_statistics(tmp_path):
    """Lists of chunks of ten tokens: the file's mean TPOT is 3.5, theirs would be 35."""
    e = write(tmp_path, {**VLLM, "mean_tpot_ms": 3.5, "median_tpot_ms": 3.4})
    assert e.stat("tpot_ms", "p90") is None
    assert e.stat("itl_ms", "p90") == pytest.approx(np.quantile([10, 20, 30, 40, 50, 60], 0.9))


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
