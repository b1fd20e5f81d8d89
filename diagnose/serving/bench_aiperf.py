"""aiperf and genai-perf results: aggregates (metric -> unit, avg, pNN), aiperf's per-request JSON Lines,
and the raw genai-perf profile (experiments with request and response time stamps in nanoseconds)."""

from itertools import pairwise
from typing import Any

from diagnose.serving.bench_values import add_values
from diagnose.serving.evidence_types import Evidence, RequestRow
from diagnose.serving.log_common import model_label

_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6}
_LATENCY = {
    "time_to_first_token": "ttft_ms", "inter_token_latency": "tpot_ms", "request_latency": "e2e_ms",
    "inter_chunk_latency": "itl_ms",
}  # fmt: skip
_LENGTH = {
    "input_sequence_length": "prompt_len", "output_sequence_length": "output_len", "num_input_token": "prompt_len",
    "num_output_token": "output_len",
}  # fmt: skip
_VALUE = {
    "output_token_throughput": "output_tok_s", "request_throughput": "request_s",
    "request_count": "completed",
    "error_request_count": "failed", "total_isl": "input_tokens", "total_output_tokens": "output_tokens",
    "total_osl": "output_tokens",
    "benchmark_duration": "duration_s",
}  # fmt: skip
_STATS = {"avg": "mean", "min": "min", "max": "max", "std": "std"}


def looks_like_aiperf(data: Any) -> bool:
    """Whether a JSON object is an aggregate, a request record or a raw profile of these tools."""
    if not isinstance(data, dict):
        return False
    if isinstance(data.get("metrics"), dict) and isinstance(data.get("metadata"), dict):
        return True
    if isinstance(data.get("experiments"), list):
        return True
    found = (data.get("records") if isinstance(data.get("records"), dict) else data) or {}
    row = found.get("request_latency") or found.get("time_to_first_token") or found.get("request_throughput")
    return isinstance(row, dict) and "unit" in row and "avg" in row


def read_aiperf(name: str, rows: list[dict[str, Any]]) -> Evidence:
    """Evidence of an aggregate (the last one), of request records, or of a raw profile."""
    last = rows[-1]
    if "metadata" in last and "metrics" in last:
        return _records([r for r in rows if isinstance(r.get("metrics"), dict)])
    if isinstance(last.get("experiments"), list):
        return _profile(last)
    return _aggregate(name, last)


def _scale(unit: Any) -> float:
    return _MS.get(str(unit).strip().lower(), 1.0)


def _aggregate(name: str, data: dict[str, Any]) -> Evidence:
    out = Evidence()
    table = data["records"] if isinstance(data.get("records"), dict) else data
    for tag, row in table.items():
        if not isinstance(row, dict) or "unit" not in row:
            continue
        metric = _LATENCY.get(tag) or _LENGTH.get(tag)
        if metric:
            factor = _scale(row["unit"]) if tag in _LATENCY else 1.0
            for key, value in row.items():
                stat = _STATS.get(key) or (
                    key if key[:1] == "p" and key[1:].replace(".", "").isdigit() else None
                )
                if stat and (number := _number(value)) is not None:
                    out.add(metric, number * factor, "bench", stat=stat)
        elif tag in _VALUE and (average := _number(row.get("avg"))) is not None:
            if out.stat_value(_VALUE[tag], "bench") is not None:
                continue  # newer versions state the total under two names
            factor = _scale(row["unit"]) / 1e3 if tag == "benchmark_duration" else 1.0
            out.add(_VALUE[tag], average * factor, "bench")
    errors = data.get("error_summary")
    if isinstance(errors, list) and out.stat_value("failed", "bench") is None:
        counts = [e.get("count") for e in errors if isinstance(e, dict)]
        out.add("failed", sum(n for n in counts if isinstance(n, int)), "bench")
    if data.get("was_cancelled") is True:
        out.note("bench-cancelled", f"{name}: the benchmark was stopped before its end", "warning")
    _setup(out, data)
    config = data.get("input_config") or {}
    for key in ("concurrency", "request_rate"):
        value = _find(config, key)
        if isinstance(value, (int, float, str)):
            out.set("bench_max_concurrency" if key == "concurrency" else "bench_request_rate", value, "bench")
    if not any(s.metric == "ttft_ms" for s in out.samples):
        out.note("bench-no-ttft", f"{name}: no time to first token (streaming was off?)")
    return out


def _number(value: Any) -> float | None:
    """A number, also one written as text, as genai-perf of 2024 does."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _setup(out: Evidence, data: dict[str, Any]) -> None:
    """The served model's name and the GPU's, where the file has them. Its host names and addresses stay out."""
    names = _find(data.get("input_config"), "model_names") or _find(data.get("input_config"), "model")
    name = names[0] if isinstance(names, list) and names else names
    if isinstance(name, str):
        out.set("model", model_label(name), "bench")
    gpu = _find(data.get("telemetry_data"), "gpu_name")
    if isinstance(gpu, str):
        out.set("device", gpu[:80], "bench")


def _find(data: Any, key: str) -> Any:
    """A key anywhere in nested dictionaries."""
    if isinstance(data, dict):
        if data.get(key) is not None and not isinstance(data[key], dict):
            return data[key]
        for value in data.values():
            found = _find(value, key)
            if found is not None:
                return found
    return None


def _metric(row: dict[str, Any], tag: str) -> float | None:
    cell = row["metrics"].get(tag)
    if not isinstance(cell, dict) or not isinstance(cell.get("value"), (int, float)):
        return None
    return float(cell["value"]) * (_scale(cell.get("unit")) if tag in _LATENCY else 1.0)


def _records(rows: list[dict[str, Any]]) -> Evidence:
    out = Evidence()
    failed = 0
    measured = [r for r in rows if r["metadata"].get("benchmark_phase") != "warmup"]
    if len(measured) < len(rows):
        out.note("bench-warmup", f"{len(rows) - len(measured)} warm-up requests were left out")
    rows = measured
    gaps: list[float] = []
    starts = [r["metadata"].get("request_start_ns") for r in rows]
    first = min((s for s in starts if isinstance(s, (int, float))), default=0)
    last = max(
        (e for r in rows if isinstance(e := r["metadata"].get("request_end_ns"), (int, float))), default=first
    )
    for row in rows:
        if row.get("error") or row["metadata"].get("was_cancelled"):
            failed += 1
            continue
        gaps += _chunks(row)
        isl, osl = _metric(row, "input_sequence_length"), _metric(row, "output_sequence_length")
        start = row["metadata"].get("request_start_ns")
        out.requests.append(
            RequestRow(
                ttft_ms=_metric(row, "time_to_first_token"), itl_ms=_metric(row, "inter_token_latency"),
                e2e_ms=_metric(row, "request_latency"), prompt_tokens=int(isl) if isl is not None else None,
                output_tokens=int(osl) if osl is not None else None,
                start_s=(start - first) / 1e9 if isinstance(start, (int, float)) else None,
            )
        )  # fmt: skip
    add_values(out, "itl_ms", gaps)
    _from_requests(out, failed, (last - first) / 1e9)
    return out


def _chunks(row: dict[str, Any]) -> list[float]:
    """Times between a request's chunks in ms: the gaps its reader saw."""
    cell = row["metrics"].get("inter_chunk_latency")
    if not isinstance(cell, dict) or not isinstance(cell.get("value"), list):
        return []
    factor = _scale(cell.get("unit"))
    return [float(v) * factor for v in cell["value"] if isinstance(v, (int, float))]


def _profile(data: dict[str, Any]) -> Evidence:
    """Raw profile: the first response is TTFT, the gaps between responses are inter-chunk latencies."""
    out, gaps = Evidence(), []
    first, last = float("inf"), 0.0
    for experiment in data["experiments"]:
        mode = (experiment or {}).get("experiment") or {}
        if mode.get("mode") in {"concurrency", "request_rate"}:
            key = "bench_max_concurrency" if mode["mode"] == "concurrency" else "bench_request_rate"
            out.set(key, mode.get("value"), "bench")
        for request in experiment.get("requests") or []:
            stamps = request.get("response_timestamps") or []
            start = request.get("timestamp")
            if not stamps or start is None:
                continue
            first, last = min(first, start), max(last, stamps[-1])
            steps = [(b - a) / 1e6 for a, b in pairwise(stamps)]
            gaps += steps
            out.requests.append(
                RequestRow(
                    (stamps[0] - start) / 1e6,
                    sum(steps) / len(steps) if steps else None,
                    (stamps[-1] - start) / 1e6,
                    None,
                    None,
                    start / 1e9,
                )
            )
    add_values(out, "itl_ms", gaps)
    _from_requests(out, 0, (last - first) / 1e9 if out.requests else 0.0)
    return out


def _from_requests(out: Evidence, failed: int, duration: float) -> None:
    columns: dict[str, list[float | int | None]] = {
        "ttft_ms": [r.ttft_ms for r in out.requests], "e2e_ms": [r.e2e_ms for r in out.requests],
        "prompt_len": [r.prompt_tokens for r in out.requests],
        "output_len": [r.output_tokens for r in out.requests],
    }  # fmt: skip
    if any(r.output_tokens for r in out.requests):
        columns["tpot_ms"] = [r.itl_ms for r in out.requests]
    for metric, values in columns.items():
        add_values(out, metric, [float(v) for v in values if v is not None])
    out.add("completed", len(out.requests), "bench")
    out.add("failed", failed, "bench")
    tokens = [r.output_tokens for r in out.requests if r.output_tokens]
    if duration > 0:
        out.add("duration_s", duration, "bench")
        out.add("request_s", len(out.requests) / duration, "bench")
        if tokens:
            out.add("output_tok_s", sum(tokens) / duration, "bench")
