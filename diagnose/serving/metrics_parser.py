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
from functools import cache
from itertools import pairwise
from pathlib import Path

from diagnose.errors import InputError
from diagnose.serving.evidence_types import Evidence
from diagnose.serving.metrics_names import (
    CACHE_INFO,
    COUNTERS,
    GAUGE_BYTES,
    GAUGE_SETTINGS,
    GAUGES,
    HISTOGRAMS,
)

Key = tuple[str, tuple[tuple[str, str], ...]]

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


_SUFFIX = re.compile(r"_(?:bucket|sum|count|total|created)$")
_INFO = "vllm:cache_config_info"


@cache
def _wanted(name: str) -> bool:
    """Whether a sample's name is one that is read."""
    if name in GAUGES or name in GAUGE_SETTINGS or name in GAUGE_BYTES or name == _INFO:
        return True
    if name.startswith("vllm:num_requests_waiting"):
        return True
    base = _SUFFIX.sub("", name)
    return base in COUNTERS or name.partition(":")[2] in HISTOGRAMS or base.partition(":")[2] in HISTOGRAMS


def _relevant(text: str, buckets: bool) -> str:
    """The lines of an exposition that are read; without `buckets` histograms keep their sums and counts
    only. A page with none of them is left as it is, so that the message can say what it is."""
    kept, found = [], False
    for line in text.splitlines():
        if line.startswith("#"):
            if line.startswith("# TYPE ") and _wanted(line.split(" ", 3)[2]):
                kept.append(line)
            continue
        name = line.partition("{")[0].partition(" ")[0]
        if _wanted(name) and (buckets or not name.endswith("_bucket")):
            kept.append(line)
            found = True
    return "\n".join(kept) if found else text[:65536]


def _scrape(ts: float | None, text: str) -> tuple[Scrape, int]:
    """Parse one exposition. Lines the parser refuses are dropped one at a time and counted."""
    # Imported here: it brings an HTTP server and TLS along, which a trace without metrics need not wait for.
    from prometheus_client.parser import text_string_to_metric_families

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


def _expositions(path: Path) -> tuple[list[tuple[float | None, str]], int]:
    """(time, text) of every scrape of a file or folder, and the JSON lines that could not be read."""
    parts: list[tuple[float | None, str]] = []
    bad = 0
    for file in sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]:
        text = file.read_text(encoding="utf-8", errors="replace")
        if not text.lstrip().startswith("{"):
            parts += _split_scrapes(text)
            continue
        for line in text.splitlines():
            try:
                row = json.loads(line)
                body = row.get("text") or row.get("metrics") or row.get("body")
                when = row.get("ts", row.get("scraped_at", row.get("timestamp", row.get("time"))))
                if isinstance(body, str):
                    parts.append((float(when) if when is not None else None, body))
            except (ValueError, TypeError, AttributeError):
                bad += 1
    return parts, bad


def _read_scrapes(path: Path) -> tuple[list[Scrape], int]:
    """All scrapes. Buckets are cumulative, so those between the first and the last scrape are read only
    when a counter fell, that is, when the server restarted in between."""
    parts, bad_lines = _expositions(path)
    scrapes: list[Scrape] = []
    for whole in (False, True):
        scrapes, bad = [], bad_lines
        for i, (ts, body) in enumerate(parts):
            scrape, dropped = _scrape(ts, _relevant(body, whole or i in {0, len(parts) - 1}))
            bad += dropped
            if scrape.values:
                scrapes.append(scrape)
        if all(s.ts is not None for s in scrapes):
            scrapes.sort(key=lambda s: s.ts or 0.0)
        if whole or len(parts) < 3 or not _restarted(scrapes):
            break
    return scrapes, bad


def _restarted(scrapes: list[Scrape]) -> bool:
    """Whether a count fell from one scrape to the next."""
    for before, after in pairwise(scrapes):
        for key, value in after.values.items():
            if key[0].endswith(("_count", "_total")) and value < before.values.get(key, 0.0):
                return True
    return False


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
            for source, key in CACHE_INFO.items():
                if row.get(source) not in {None, "None", ""}:
                    out.set(key, row[source], "metrics")
            size, blocks = row.get("kv_cache_size_tokens"), row.get("num_gpu_blocks")
            engine = row.get("engine", "0")
            if size and size != "None":
                pools[engine] = float(size)
            elif blocks and blocks != "None" and row.get("block_size", "None") != "None":
                pools[engine] = float(blocks) * float(row["block_size"])
                out.set("kv_pool_from_blocks", "true", "metrics")
        elif name in GAUGE_SETTINGS:
            out.set(GAUGE_SETTINGS[name], f"{value:.0f}", "metrics")
        elif name in GAUGE_BYTES:
            out.set(GAUGE_BYTES[name], f"{value * 2**30:.0f}", "metrics")
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
