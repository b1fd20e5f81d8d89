"""`--bench`: results of vllm bench serve, SGLang bench_serving, aiperf, genai-perf and trtllm-bench, as JSON, JSON Lines
or console text.

Latencies become statistics (label stat) and, where the file holds them, one row a request. A statistic is
only ever the one the file states or one computed from its own per-request or per-token values.
"""

import json
import re
from pathlib import Path
from typing import Any

from diagnose.errors import InputError
from diagnose.serving.bench_aiperf import looks_like_aiperf, read_aiperf
from diagnose.serving.bench_trtllm import looks_like_trtllm, read_trtllm
from diagnose.serving.bench_values import add_values
from diagnose.serving.evidence_types import Evidence, RequestRow
from diagnose.serving.settings_parser import from_mapping

MAX_BYTES = 1 << 30
_LATENCIES = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "itl": "itl_ms",
    "e2el": "e2e_ms",
    "e2e_latency": "e2e_ms",
}
_VALUES = {
    "duration": "duration_s", "completed": "completed", "failed": "failed", "request_throughput": "request_s",
    "output_throughput": "output_tok_s", "total_token_throughput": "total_tok_s",
    "total_throughput": "total_tok_s",
    "total_input_tokens": "input_tokens", "total_output_tokens": "output_tokens",
    "concurrency": "concurrency",
    "max_concurrent_requests": "concurrency_peak", "accept_length": "spec_accept_len",
}  # fmt: skip
_SETTINGS = {
    "max_concurrency": "bench_max_concurrency", "request_rate": "bench_request_rate",
    "num_prompts": "bench_prompts",
    "random_input_len": "bench_input_len", "random_output_len": "bench_output_len",
    "backend": "bench_backend",
}  # fmt: skip


def looks_like_bench(data: Any) -> bool:
    """Whether a JSON object is the result of one of the known load generators."""
    if not isinstance(data, dict):
        return False
    served = "request_throughput" in data and ("output_throughput" in data or "mean_ttft_ms" in data)
    return served or looks_like_aiperf(data) or looks_like_trtllm(data)


def looks_like_bench_text(head: str) -> bool:
    """Whether a text holds the console summary of vllm bench serve or SGLang's bench_serving."""
    return "Serving Benchmark Result" in head


def read_bench(path: Path) -> Evidence:
    """Evidence of one benchmark result. InputError when the file is none of the known forms.

    A JSON Lines file of several runs is read as its last run, with a note.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path.name}: larger than 1 GiB; give the benchmark's result file")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"{path.name}: cannot be read ({error.strerror}); give the benchmark's result file"
        ) from error
    if looks_like_bench_text(text[:1_000_000]):
        return _from_text(path, text)
    rows, bad = _rows(text)
    runs = [r for r in rows if looks_like_bench(r)]
    if not runs:
        raise InputError(
            f"{path.name}: no result of vllm bench serve, bench_serving, aiperf, genai-perf or trtllm-bench in it"
        )
    if looks_like_trtllm(runs[-1]):
        out = read_trtllm(path.name, runs[-1])
    elif looks_like_aiperf(runs[-1]):
        out = read_aiperf(path.name, runs)
    else:
        out = _from_run(path.name, runs[-1])
        if len(runs) > 1:
            out.note("bench-runs", f"{path.name}: {len(runs)} runs in the file; the last one is used")
    if bad:
        out.note("bench-lines", f"{path.name}: {bad} lines are not valid JSON and were left out", "warning")
    return out


def _rows(text: str) -> tuple[list[Any], int]:
    """JSON objects of a file: one document, or one a line."""
    try:
        data = json.loads(text)
        return (data if isinstance(data, list) else [data]), 0
    except (ValueError, RecursionError):
        rows, bad = [], 0
        for line in text.splitlines():
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                bad += 1
        return rows, bad


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _from_run(name: str, run: dict[str, Any]) -> Evidence:
    """A run of vllm bench serve or SGLang bench_serving. Lists are in seconds, statistics in milliseconds."""
    out = Evidence()
    for key, metric in _VALUES.items():
        out.add(metric, _number(run.get(key)), "bench")
    for key, setting in _SETTINGS.items():
        if run.get(key) is not None:
            out.set(setting, str(run[key]).lower() if key == "request_rate" else run[key], "bench")
    model = run.get("model_id")
    if isinstance(model, str):
        out.set(
            "model",
            model.rstrip("/").rsplit("/", 1)[-1] if model.startswith(("/", ".", "~")) else model,
            "bench",
        )
    if isinstance(run.get("server_info"), dict):
        # SGLang's bench_serving keeps the server's own answer about its settings
        out.extend(from_mapping(run["server_info"]))
    requests = _requests(run)
    out.requests += requests
    stated: set[tuple[str, str]] = set()
    for key, value in run.items():
        m = re.match(r"(mean|median|std|max|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)_ms$", key)
        number = _number(value)
        if m and number is not None:
            stat = "p50" if m[1] == "median" else m[1]
            stated.add((_LATENCIES[m[2]], stat))
            out.add(_LATENCIES[m[2]], number, "bench", stat=stat)
    add_values(out, "ttft_ms", [r.ttft_ms for r in requests if r.ttft_ms is not None], stated)
    add_values(out, "e2e_ms", [r.e2e_ms for r in requests if r.e2e_ms is not None], stated)
    itls = [float(x) * 1e3 for row in run.get("itls") or [] for x in row]
    add_values(out, "itl_ms", itls, stated)
    add_values(out, "tpot_ms", [t for r in requests if (t := _tpot(r)) is not None], stated)
    add_values(out, "prompt_len", [float(x) for x in run.get("input_lens") or []])
    add_values(out, "output_len", [float(x) for x in run.get("output_lens") or []])
    if not any(s.metric == "ttft_ms" for s in out.samples):
        out.note("bench-no-ttft", f"{name}: the benchmark states no time to first token")
    return out


def _tpot(row: RequestRow) -> float | None:
    if row.e2e_ms is None or row.ttft_ms is None or not row.output_tokens or row.output_tokens < 2:
        return None
    return (row.e2e_ms - row.ttft_ms) / (row.output_tokens - 1)


def _requests(run: dict[str, Any]) -> list[RequestRow]:
    """Per-request rows where the run saved details. End to end is the saved latency, else TTFT plus its
    gaps."""
    ttfts, itls = run.get("ttfts"), run.get("itls")
    if not isinstance(ttfts, list):
        return []
    errors = run.get("errors") or []
    rows = []
    for i, ttft in enumerate(ttfts):
        if i < len(errors) and errors[i]:
            continue
        gaps = itls[i] if isinstance(itls, list) and i < len(itls) and isinstance(itls[i], list) else None
        saved = run.get("latencies")
        whole = saved[i] if isinstance(saved, list) and i < len(saved) else None
        if whole is None and gaps is not None:
            whole = ttft + sum(gaps)
        rows.append(
            RequestRow(
                ttft_ms=ttft * 1e3,
                itl_ms=sum(gaps) / len(gaps) * 1e3 if gaps else None,
                e2e_ms=whole * 1e3 if whole is not None else None,
                prompt_tokens=_at(run, ("input_lens",), i),
                output_tokens=_at(run, ("output_lens",), i),
                start_s=_start(run, i),
            )
        )
    return rows


def _at(run: dict[str, Any], keys: tuple[str, ...], i: int) -> int | None:
    for key in keys:
        values = run.get(key)
        if isinstance(values, list) and i < len(values) and _number(values[i]) is not None:
            return int(values[i])
    return None


def _start(run: dict[str, Any], i: int) -> float | None:
    values = run.get("start_times")
    if isinstance(values, list) and i < len(values) and _number(values[i]) is not None:
        first = min(v for v in values if _number(v) is not None)
        return float(values[i]) - float(first)
    return None


_TEXT = (
    (r"Successful requests", "completed"), (r"Failed requests", "failed"), (r"Benchmark duration \(s\)",
    "duration_s"),
    (r"Total input tokens", "input_tokens"), (r"Total generated tokens", "output_tokens"),
    (r"Request throughput \(req/s\)", "request_s"), (r"Output token throughput \(tok/s\)", "output_tok_s"),
    (r"Total [Tt]oken throughput \(tok/s\)", "total_tok_s"), (r"Concurrency", "concurrency"),
    (r"Peak concurrent requests", "concurrency_peak"), (r"Accept length", "spec_accept_len"),
)  # fmt: skip
_TEXT_STAT = re.compile(
    r"^\s*(Mean|Median|Std|Max|P\d+(?:\.\d+)?)\s+(TTFT|TPOT|ITL|E2EL|E2E Latency) \(ms\):\s*([\d.]+)", re.M
)


def _from_text(path: Path, text: str) -> Evidence:
    """The console summary, "name: value" lines under a banner; of several summaries the last."""
    body = text[text.rindex("Serving Benchmark Result") :]
    out = Evidence()
    for pattern, metric in _TEXT:
        m = re.search(rf"^\s*{pattern}:\s*([\d.]+)", body, re.M)
        if m:
            out.add(metric, float(m[1]), "bench")
    for pattern, key in (
        (r"Max(?:imum)? request concurrency", "bench_max_concurrency"), (r"Request rate configured \(RPS\)",
        "bench_request_rate"),
        (r"Traffic request rate", "bench_request_rate"),
    ):  # fmt: skip
        m = re.search(rf"^\s*{pattern}:\s*([\w.]+)", body, re.M)
        if m and m[1] != "not":
            out.set(key, m[1].lower(), "bench")
    for stat, name, value in _TEXT_STAT.findall(body):
        metric = _LATENCIES[name.lower().replace(" ", "_")]
        out.add(metric, float(value), "bench", stat="p50" if stat == "Median" else stat.lower())
    if not out.samples:
        raise InputError(
            f"{path.name}: the benchmark summary in it holds no numbers; give the whole console output"
        )
    return out
