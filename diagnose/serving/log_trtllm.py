"""TensorRT-LLM: iteration log lines of the PyTorch backend, and iteration statistics as JSON (get_stats,
/metrics)."""

import re
from typing import Any

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.log_common import LogState

_ITER = re.compile(r"\biter = (\d+)\b")
MARKS = ("host_step_time", "currank_total_requests")


def _field(line: str, name: str) -> str | None:
    m = re.search(rf"\b{name}'?\s*[:=]\s*([\d.eE+-]+|N/A)", line)
    return m[1] if m and m[1] != "N/A" else None


def parse_line(state: LogState, line: str) -> bool:
    """Take what an iteration line says into `state`. The device time it prints belongs to the iteration
    before."""
    if not any(mark in line for mark in MARKS):
        return False
    m = _ITER.search(line)
    if m is None:
        return False
    rank = _field(line, "global_rank") or _field(line, "rank")
    if rank not in {None, "0"}:
        return True
    ts, out = state.stamp(line[max(line.find("timestamp"), 0) :]), state.out
    labels = {"iteration": m[1]}
    for metric, name in (
        ("host_step_ms", "host_step_time"), ("device_step_ms", "prev_device_step_time"),
        ("scheduled", "num_scheduled_requests"), ("kv_usage", "kv_cache_util"),
        ("step_context_requests", "num_ctx_requests"), ("step_context_tokens", "num_ctx_tokens"),
        ("step_generation_tokens", "num_generation_tokens"),
    ):  # fmt: skip
        text = _field(line, name)
        if text is not None:
            out.add(metric, float(text), "log", ts, **labels)
    elapsed = re.search(r"\belapsed_time = ([\d.eE+-]+)s\b", line)
    if elapsed:
        # before 1.0 the line has the wall time of the step, and no time of the device
        out.add("host_step_ms", float(elapsed[1]) * 1e3, "log", ts, **labels)
    both = re.search(r"currank_total_requests = (\d+)/(\d+)", line)
    if both:
        scheduled = _field(line, "num_scheduled_requests")
        if scheduled is not None:
            out.add("running", float(scheduled), "log", ts, **labels)
    if "tensorrt-llm" not in out.engines:
        out.engines.append("tensorrt-llm")
    out.set("engine", "tensorrt-llm", "log")
    return True


def looks_like_stats(row: Any) -> bool:
    """Whether a JSON object is one iteration's statistics."""
    return (
        isinstance(row, dict)
        and "iter" in row
        and ("iterLatencyMS" in row or "kvCacheStats" in row or "inflightBatchingStats" in row)
    )


def read_stats(rows: list[dict[str, Any]]) -> Evidence:
    """Evidence from iteration statistics, one object an iteration."""
    out = Evidence(engines=["tensorrt-llm"])
    out.set("engine", "tensorrt-llm", "metrics")
    for i, row in enumerate(rows):
        clock = row.get("scraped_at", row.get("timestamp"))
        ts = float(clock) if isinstance(clock, (int, float)) else float(i)
        labels = {"iteration": str(row.get("iter", i))}
        kv = row.get("kvCacheStats") or {}
        batch = row.get("inflightBatchingStats") or {}
        spec = row.get("specDecodingStats") or {}
        total = kv.get("maxNumBlocks")
        if total:
            used = kv.get("usedNumBlocks", total - kv.get("freeNumBlocks", total))
            out.add("kv_usage", used / total, "metrics", ts, **labels)
            if kv.get("tokensPerBlock"):
                out.set("kv_pool_tokens", f"{total * kv['tokensPerBlock']:.0f}", "metrics")
                out.set("block_size", kv["tokensPerBlock"], "metrics")
        out.add("prefix_hit_rate", kv.get("cacheHitRate"), "metrics", ts, **labels)
        out.add("step_ms", row.get("iterLatencyMS"), "metrics", ts, **labels)
        running = batch.get("numScheduledRequests", row.get("numActiveRequests"))
        out.add("running", running, "metrics", ts, **labels)
        out.add("waiting", row.get("numQueuedRequests"), "metrics", ts, **labels)
        out.add("paused", batch.get("numPausedRequests"), "metrics", ts, **labels)
        out.add("step_context_requests", batch.get("numContextRequests"), "metrics", ts, **labels)
        out.add("step_context_tokens", batch.get("numCtxTokens"), "metrics", ts, **labels)
        out.add("step_generation_requests", batch.get("numGenRequests"), "metrics", ts, **labels)
        out.add("spec_accept_len", spec.get("acceptanceLength"), "metrics", ts, **labels)
        slots = row.get("maxBatchSizeRuntime") or row.get("maxNumActiveRequests")
        if slots:
            out.set("max_num_seqs", slots, "metrics")
        if row.get("maxNumTokensRuntime"):
            out.set("max_num_batched_tokens", row["maxNumTokensRuntime"], "metrics")
    return out
