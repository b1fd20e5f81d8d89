"""`--metrics`: Prometheus exposition text of vLLM (V0, V1) and SGLang, one scrape or many, as canonical
samples.

Many scrapes come as one file in which the families repeat (an optional `# scraped_at SECONDS` line or
sample timestamps give the times), as JSON Lines of {"ts", "text"}, or as a folder of scrapes in name order.
Counters and histograms are differenced between scrapes; a value that falls means the server restarted, and
counting starts again from zero.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from diagnose.errors import InputError
from diagnose.serving.evidence_types import Evidence

Key = tuple[str, tuple[tuple[str, str], ...]]

# source name -> (canonical, scale). Counters are listed without _total.
GAUGES: dict[str, tuple[str, float]] = {
    "vllm:num_requests_running": ("running", 1), "vllm:num_requests_waiting": ("waiting", 1),
    "vllm:num_requests_swapped": ("swapped", 1), "vllm:kv_cache_usage_perc": ("kv_usage", 1),
    "vllm:gpu_cache_usage_perc": ("kv_usage", 1), "vllm:gpu_prefix_cache_hit_rate": ("prefix_hit_rate", 1),
    "vllm:avg_prompt_throughput_toks_per_s": ("prompt_tok_s", 1),
    "vllm:avg_generation_throughput_toks_per_s": ("generation_tok_s", 1),
    "sglang:num_running_reqs": ("running", 1), "sglang:num_queue_reqs": ("waiting", 1),
    "sglang:num_used_tokens": ("used_tokens", 1), "sglang:token_usage": ("kv_usage", 1),
    "sglang:swa_token_usage": ("swa_usage", 1), "sglang:kv_evictable_tokens": ("evictable_tokens", 1),
    "sglang:gen_throughput": ("generation_tok_s", 1), "sglang:cache_hit_rate": ("prefix_hit_rate", 1),
    "sglang:num_paused_reqs": ("paused", 1), "sglang:spec_accept_length": ("spec_accept_len", 1),
    "sglang:spec_accept_rate": ("spec_accept_rate", 1), "sglang:is_cuda_graph": ("graph_replay", 1),
}  # fmt: skip

COUNTERS: dict[str, str] = {
    "vllm:num_preemptions": "preemptions", "vllm:prompt_tokens": "prompt_tokens",
    "vllm:generation_tokens": "generation_tokens", "vllm:prefix_cache_queries": "prefix_queries",
    "vllm:prefix_cache_hits": "prefix_hits", "vllm:gpu_prefix_cache_queries": "prefix_queries",
    "vllm:gpu_prefix_cache_hits": "prefix_hits", "vllm:request_success": "requests_finished",
    "vllm:prompt_tokens_recomputed": "recomputed_tokens", "vllm:prompt_tokens_cached": "cached_tokens",
    "vllm:spec_decode_num_drafts": "spec_drafts", "vllm:spec_decode_num_draft_tokens": "spec_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "spec_accepted_tokens",
    "vllm:estimated_flops_per_gpu": "estimated_flops",
    "vllm:estimated_read_bytes_per_gpu": "estimated_read_bytes",
    "vllm:estimated_write_bytes_per_gpu": "estimated_write_bytes",
    "sglang:prompt_tokens": "prompt_tokens", "sglang:generation_tokens": "generation_tokens",
    "sglang:cached_tokens": "cached_tokens", "sglang:num_requests": "requests_finished",
    "sglang:num_aborted_requests": "requests_aborted", "sglang:num_retracted_requests": "preemptions",
    "sglang:forward_execution_seconds": "forward_s", "sglang:scheduler_idle_seconds": "scheduler_idle_s",
    "sglang:scheduler_stage_seconds": "scheduler_stage_s",
    "sglang:estimated_flops_per_gpu": "estimated_flops",
    "sglang:estimated_read_bytes_per_gpu": "estimated_read_bytes",
    "sglang:estimated_write_bytes_per_gpu": "estimated_write_bytes",
}  # fmt: skip

HISTOGRAMS: dict[str, tuple[str, float]] = {
    "time_to_first_token_seconds": ("ttft_ms", 1e3), "inter_token_latency_seconds": ("itl_ms", 1e3),
    "time_per_output_token_seconds": ("itl_ms", 1e3), "request_time_per_output_token_seconds": ("tpot_ms",
    1e3),
    "e2e_request_latency_seconds": ("e2e_ms", 1e3), "request_queue_time_seconds": ("queue_ms", 1e3),
    "queue_time_seconds": ("queue_ms", 1e3), "request_prefill_time_seconds": ("prefill_ms", 1e3),
    "request_decode_time_seconds": ("decode_ms", 1e3), "request_inference_time_seconds": ("inference_ms",
    1e3),
    "iteration_tokens_total": ("iteration_tokens", 1), "request_prompt_tokens": ("prompt_len", 1),
    "request_generation_tokens": ("output_len", 1), "prompt_tokens_histogram": ("prompt_len", 1),
    "generation_tokens_histogram": ("output_len", 1), "request_num_preemptions": ("request_preemptions", 1),
}  # fmt: skip

_CACHE_INFO = {
    "block_size": "block_size", "num_gpu_blocks": "num_gpu_blocks", "cache_dtype": "kv_cache_dtype",
    "gpu_memory_utilization": "gpu_memory_utilization", "enable_prefix_caching": "prefix_caching",
    "kv_cache_size_tokens": "kv_pool_tokens",
}  # fmt: skip
_GAUGE_SETTINGS = {"sglang:max_total_num_tokens": "kv_pool_tokens", "sglang:context_len": "max_model_len"}
_GAUGE_BYTES = {
    "sglang:weight_memory_usage_gb": "weight_bytes",
    "sglang:kv_cache_memory_usage_gb": "kv_pool_bytes",
}
_KEEP_LABELS = ("engine", "dp_rank", "stage", "reason")


@dataclass
class Scrape:
    """One exposition: its time, and every sample by (name, labels)."""

    ts: float | None
    values: dict[Key, float] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)


def looks_like_metrics(head: str) -> bool:
    """Whether a text begins like a Prometheus exposition."""
    sample = re.compile(r"^[a-zA-Z_:][\w:]*(\{[^\n]*\})? [-+0-9.eEnNaAiIfF]+( \d+)?$", re.M)
    return bool(
        re.search(r"^# (TYPE|HELP) \S+", head, re.M)
        or ("vllm:" in head and sample.search(head))
        or ("sglang:" in head and sample.search(head))
    )


def _split_scrapes(text: str) -> Iterator[tuple[float | None, str]]:
    """Cut a file into scrapes: at a `scraped_at` comment, or where the first family's TYPE line comes
    again."""
    first: str | None = None
    ts: float | None = None
    block: list[str] = []
    for line in text.splitlines():
        stamp = re.match(r"#\s*(?:scraped?_?at|scrape|timestamp|ts)[\s:=]+([0-9.]+)\s*$", line, re.I)
        if stamp:
            if any(not row.startswith("#") for row in block):
                yield ts, "\n".join(block)
                block = []
            ts, first = float(stamp[1]), None
            continue
        if line.startswith("# TYPE ") or line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            mark = f"{line[:7]}{name}"
            if first is None:
                first = mark
            elif mark == first and any(not row.startswith("#") for row in block):
                yield ts, "\n".join(block)
                block, ts = [], None
        block.append(line)
    if any(row.strip() and not row.startswith("#") for row in block):
        yield ts, "\n".join(block)


def _scrape(ts: float | None, text: str) -> tuple[Scrape, int]:
    """Parse one exposition. Lines the parser refuses are dropped one at a time and counted."""
    try:
        families = list(text_string_to_metric_families(text + "\n"))
        bad = 0
    except ValueError:
        good, bad = [], 0
        types = {m[1]: m[2] for m in re.finditer(r"^# TYPE (\S+) (\w+)", text, re.M)}
        for line in text.splitlines():
            if line.startswith("#") or not line.strip():
                continue
            try:
                list(text_string_to_metric_families(line + "\n"))
                good.append(line)
            except ValueError:
                bad += 1
        header = [f"# TYPE {name} {kind}" for name, kind in types.items()]
        try:
            families = list(text_string_to_metric_families("\n".join(header + good) + "\n"))
        except ValueError:
            families = list(text_string_to_metric_families("\n".join(good) + "\n"))
    out = Scrape(ts)
    for fam in families:
        out.types[fam.name] = fam.type
        for s in fam.samples:
            labels = tuple(sorted((k, v) for k, v in s.labels.items()))
            out.values[(s.name, labels)] = float(s.value)
            if out.ts is None and s.timestamp is not None:
                out.ts = float(s.timestamp)
    return out, bad


def _read_scrapes(path: Path) -> tuple[list[Scrape], int]:
    scrapes: list[Scrape] = []
    bad = 0
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        parts: list[tuple[float | None, str]] = []
        if text.lstrip().startswith("{"):
            for line in text.splitlines():
                try:
                    row = json.loads(line)
                    body = row.get("text") or row.get("metrics") or row.get("body")
                    when = row.get("ts", row.get("timestamp", row.get("time")))
                    if isinstance(body, str):
                        parts.append((float(when) if when is not None else None, body))
                except (ValueError, TypeError, AttributeError):
                    bad += 1
        else:
            parts = list(_split_scrapes(text))
        for ts, body in parts:
            scrape, dropped = _scrape(ts, body)
            bad += dropped
            if scrape.values:
                scrapes.append(scrape)
    if all(s.ts is not None for s in scrapes):
        scrapes.sort(key=lambda s: s.ts or 0.0)
    return scrapes, bad


def _base(name: str) -> str:
    return name.removesuffix("_total")


def _keep(labels: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {k: v for k, v in labels if k in _KEEP_LABELS}


def read_metrics(path: Path) -> Evidence:
    """Samples, settings and notes of a metrics file or folder. InputError when nothing of an engine is in
    it."""
    try:
        scrapes, bad = _read_scrapes(path)
    except OSError as error:
        raise InputError(
            f"{path.name}: cannot be read ({error.strerror}); give a saved /metrics page"
        ) from error
    out = Evidence()
    if not scrapes:
        raise InputError(
            f"{path.name}: no Prometheus samples in it; save the engine's /metrics page (curl URL/metrics)"
        )
    known = {"vllm": False, "sglang": False, "trtllm": False}
    for name, _ in scrapes[-1].values:
        for engine in known:
            known[engine] |= name.startswith((f"{engine}:", f"{engine}_"))
    if not any(known.values()):
        raise InputError(
            f"{path.name}: no vllm: or sglang: metrics in it; save the page of the engine's own /metrics"
        )
    out.engines = [e for e, seen in known.items() if seen]
    out.set("engine", out.engines[0], "metrics")
    if bad:
        out.note("metrics-lines", f"{path.name}: {bad} lines could not be read and were left out", "warning")
    for i, scrape in enumerate(scrapes):
        ts = scrape.ts if scrape.ts is not None else float(i)
        _gauges(out, scrape, ts)
    _config(out, scrapes[-1])
    resets = _counters(out, scrapes) + _histograms(out, scrapes)
    if resets:
        out.note(
            "metrics-restart",
            f"{path.name}: counters fell between scrapes; the server restarted in between",
            "warning",
        )
    if len(scrapes) == 1:
        out.note(
            "metrics-single",
            f"{path.name}: one scrape; levels are of one moment, counters cover the time since start-up",
        )
    return out


def _gauges(out: Evidence, scrape: Scrape, ts: float) -> None:
    seen: set[Key] = set()
    for (name, labels), value in scrape.values.items():
        if name == "vllm:num_requests_waiting_by_reason":
            reason = dict(labels).get("reason", "")
            if reason in {"capacity", "deferred"}:
                out.add(f"waiting_{reason}", value, "metrics", ts, **_keep(labels))
            continue
        target = GAUGES.get(name)
        if target is None or (target[0], labels) in seen:
            continue  # 0.11 exposes the KV usage under its old and its new name
        seen.add((target[0], labels))
        out.add(target[0], value * target[1], "metrics", ts, **_keep(labels))


def _config(out: Evidence, scrape: Scrape) -> None:
    pools: dict[str, float] = {}
    for (name, labels), value in scrape.values.items():
        if name == "vllm:cache_config_info":
            row = dict(labels)
            for source, key in _CACHE_INFO.items():
                if row.get(source) not in {None, "None", ""}:
                    out.set(key, row[source], "metrics")
            size, blocks = row.get("kv_cache_size_tokens"), row.get("num_gpu_blocks")
            engine = row.get("engine", "0")
            if size and size != "None":
                pools[engine] = float(size)
            elif blocks and blocks != "None" and row.get("block_size", "None") != "None":
                pools[engine] = float(blocks) * float(row["block_size"])
                out.set("kv_pool_from_blocks", "true", "metrics")
        elif name in _GAUGE_SETTINGS:
            out.set(_GAUGE_SETTINGS[name], f"{value:.0f}", "metrics")
        elif name in _GAUGE_BYTES:
            out.set(_GAUGE_BYTES[name], f"{value * 2**30:.0f}", "metrics")
    if pools:
        out.set("kv_pool_tokens", f"{sum(pools.values()):.0f}", "metrics")
        out.set("kv_engines", len(pools), "metrics")


def _increase(values: list[float | None]) -> tuple[list[float], int]:
    """Increase at each scrape after the first; a fall counts the new value as the increase since the
    restart."""
    steps, resets = [], 0
    last: float | None = None
    for value in values:
        if value is None:
            continue
        if last is not None:
            if value < last:
                resets += 1
                steps.append(value)
            else:
                steps.append(value - last)
        last = value
    return steps, resets


def _counters(out: Evidence, scrapes: list[Scrape]) -> int:
    resets = 0
    keys = {k for s in scrapes for k in s.values if _base(k[0]) in COUNTERS}
    for name, labels in sorted(keys):
        target = COUNTERS[_base(name)]
        if scrapes[-1].types.get(_base(name)) == "histogram" or scrapes[-1].types.get(name) == "histogram":
            continue
        kept = _keep(labels)
        present = [s for s in scrapes if (name, labels) in s.values]
        if len(present) == 1:
            whole = "since_start" if len(scrapes) == 1 else "appeared"
            out.add(
                target, present[0].values[(name, labels)], "metrics", present[0].ts, interval=whole, **kept
            )
            continue
        for before, after in pairwise(present):
            steps, fell = _increase([before.values[(name, labels)], after.values[(name, labels)]])
            resets += fell
            span = {}
            if before.ts is not None and after.ts is not None:
                span["interval_s"] = f"{after.ts - before.ts:.3f}"
            out.add(target, steps[0], "metrics", after.ts, **span, **kept)
    return resets


def _histograms(out: Evidence, scrapes: list[Scrape]) -> int:
    """Window totals of each bucket, sum and count, added over engines and finish reasons."""
    resets = 0
    totals: dict[tuple[str, str, str], float] = {}
    chosen: dict[str, str] = {}
    for name, labels in sorted({k for s in scrapes for k in s.values}):
        prefix, _, rest = name.partition(":")
        for suffix in ("_bucket", "_sum", "_count"):
            family = rest.removesuffix(suffix)
            if not rest.endswith(suffix) or family not in HISTOGRAMS:
                continue
            target, scale = HISTOGRAMS[family]
            # 0.11 to 0.13 expose inter-token latency under two names: take one
            if chosen.setdefault(f"{prefix}:{target}", family) != family:
                continue
            values = [s.values.get((name, labels)) for s in scrapes]
            if len(scrapes) == 1:
                steps: list[float] = [v for v in values if v is not None]
            else:
                steps, fell = _increase([0.0 if values[0] is None else values[0], *values[1:]])
                resets += fell if suffix == "_count" else 0
            stat = suffix[1:]
            le = dict(labels).get("le", "") if stat == "bucket" else ""
            bound = le if le in {"", "+Inf"} else f"{float(le) * scale:g}"
            key = (target, stat, bound)
            totals[key] = totals.get(key, 0.0) + sum(steps) * (scale if stat == "sum" else 1.0)
    counts = {target: value for (target, stat, _), value in totals.items() if stat == "count"}
    for (target, stat, bound), value in totals.items():
        if counts.get(target):
            edge = {"le": bound} if bound else {}
            out.add(target, value, "metrics", None, stat=stat, **edge)
    return resets
