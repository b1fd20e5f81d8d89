"""trtllm-bench reports (`--report_json`): engine, world_info, request_info, performance and, with streaming,
streaming_metrics.

A report states averages and percentiles of requests; its time per output token is one value a request. It has no list of
requests.
"""

from typing import Any

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.log_common import model_label

_STATS = {
    "average": "mean",
    "minimum": "min",
    "maximum": "max",
    "p50": "p50",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
}
_PERFORMANCE = {
    "request_throughput_req_s": "request_s", "system_output_throughput_tok_s": "output_tok_s",
    "system_total_throughput_tok_s": "total_tok_s",
}  # fmt: skip
_WORLD = {
    "tp_size": "tp", "pp_size": "pp", "ep_size": "ep", "max_batch_size": "max_num_seqs",
    "max_num_tokens": "max_num_batched_tokens",
}  # fmt: skip
_ENGINE = {"dtype": "dtype", "kv_cache_dtype": "kv_cache_dtype", "quantization": "quantization"}


def looks_like_trtllm(data: Any) -> bool:
    """Whether a JSON object is a report of trtllm-bench."""
    return (
        isinstance(data, dict)
        and isinstance(data.get("performance"), dict)
        and isinstance(data.get("request_info"), dict)
        and "request_throughput_req_s" in data["performance"]
    )


def _part(data: dict[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def read_trtllm(name: str, data: dict[str, Any]) -> Evidence:
    """Evidence of one report. Latencies are in milliseconds throughout the file."""
    out = Evidence(engines=["tensorrt-llm"])
    out.set("engine", "tensorrt-llm", "bench")
    engine, world = _part(data, "engine"), _part(data, "world_info")
    for key, setting in _ENGINE.items():
        if isinstance(engine.get(key), str):
            out.set(setting, engine[key].lower(), "bench")
    if isinstance(engine.get("model"), str):
        out.set("model", model_label(engine["model"]), "bench")
    if isinstance(engine.get("version"), str):
        out.set("engine_version", engine["version"][:40], "bench")
    for key, setting in _WORLD.items():
        value = _number(world.get(key))
        if value and value > 0:
            out.set(setting, f"{value:.0f}", "bench")
    performance, requests = _part(data, "performance"), _part(data, "request_info")
    for key, metric in _PERFORMANCE.items():
        out.add(metric, _number(performance.get(key)), "bench")
    count = _number(requests.get("num_requests"))
    out.add("completed", count, "bench")
    out.add("concurrency", _number(requests.get("avg_num_concurrent_requests")), "bench")
    whole = _number(performance.get("total_latency_ms"))
    out.add("duration_s", whole / 1e3 if whole else None, "bench")
    for key, length, total in (
        ("avg_input_length", "prompt_len", "input_tokens"),
        ("avg_output_length", "output_len", "output_tokens"),
    ):
        mean = _number(requests.get(key))
        out.add(length, mean, "bench", stat="mean")
        out.add(total, mean * count if mean and count else None, "bench")
    _latency(
        out,
        "e2e_ms",
        performance.get("request_latency_percentiles_ms"),
        performance.get("avg_request_latency_ms"),
    )
    streaming = _part(data, "streaming_metrics")
    _latency(out, "ttft_ms", streaming.get("ttft_percentiles"), streaming.get("avg_ttft_ms"))
    _latency(out, "tpot_ms", streaming.get("tpot_percentiles"), streaming.get("avg_tpot_ms"))
    accepted = _number(_part(_part(data, "decoding_stats"), "acceptance_length_percentiles").get("average"))
    out.add("spec_accept_len", accepted, "bench")
    if not streaming:
        out.note("bench-no-ttft", f"{name}: no time to first token (run trtllm-bench with --streaming)")
    return out


def _latency(out: Evidence, metric: str, percentiles: Any, mean: Any) -> None:
    rows = percentiles if isinstance(percentiles, dict) else {}
    stated = {stat: value for key, stat in _STATS.items() if (value := _number(rows.get(key))) is not None}
    if (average := _number(mean)) is not None:
        stated.setdefault("mean", average)
    for stat, value in stated.items():
        out.add(metric, value, "bench", stat=stat)
