"""Find out what a file is, read it, and put everything into the tables serving, request and engine_config."""

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diagnose.errors import InputError
from diagnose.serving.bench_parser import looks_like_bench, looks_like_bench_text, read_bench
from diagnose.serving.conflicts import find_conflicts
from diagnose.serving.evidence_types import Evidence
from diagnose.serving.log_parser import looks_like_log, read_log
from diagnose.serving.log_trtllm import looks_like_stats, read_stats
from diagnose.serving.metrics_parser import looks_like_metrics, read_metrics
from diagnose.serving.model_load import looks_like_config
from diagnose.serving.settings_parser import looks_like_settings, looks_like_settings_text, read_settings
from diagnose.store import BY_NAME, Store

HEAD_BYTES = 262144
WHOLE_BYTES = 64 * 1024 * 1024
KINDS = ("metrics", "log", "bench", "settings", "model_config", "eval", "run_json")


def detect_evidence(path: Path) -> str | None:
    """What a file is, by its content: one of KINDS, or None for anything else (traces included).

    A folder is "metrics" when its first files are scrapes. Never raises for unreadable content.
    """
    try:
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.is_file())[:3]
            return "metrics" if files and all(detect_evidence(f) == "metrics" for f in files) else None
        size = path.stat().st_size
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except (OSError, EOFError):
        return None
    if b"\x00" in head[:4096]:
        return None
    text = head.decode("utf-8", "replace")
    if text.lstrip()[:1] in {"{", "["}:
        kind = _json_kind(path, text, size, packed)
        if kind or not _mixed(text):
            return kind
    if looks_like_bench_text(text):
        return "bench"
    if looks_like_metrics(text):
        return "metrics"
    if looks_like_settings_text(text):
        return "settings"
    return "log" if looks_like_log(text) else None


def _mixed(text: str) -> bool:
    """Whether a text that begins with a bracket is lines of prose rather than JSON, as logs are."""
    return text.lstrip().startswith("[") and text.lstrip()[1:2] not in {"{", "[", '"', "]"}


def _json_kind(path: Path, head: str, size: int, packed: bool) -> str | None:
    first = head.lstrip().split("\n", 1)[0]
    rows: list[Any] = []
    try:
        rows = [json.loads(first)]
    except (ValueError, RecursionError):
        if '"traceEvents"' in head or size > WHOLE_BYTES or packed:
            return None
        try:
            data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        except (OSError, ValueError, RecursionError):
            return None
        rows = data[:1] if isinstance(data, list) else [data]
    row = rows[0] if rows else None
    if isinstance(row, list):
        row = row[0] if row else None
    if not isinstance(row, dict) or "traceEvents" in row:
        return None
    if looks_like_bench(row):
        return "bench"
    scraped = row.get("text") or row.get("metrics") or row.get("body")
    if looks_like_stats(row) or (isinstance(scraped, str) and looks_like_metrics(scraped)):
        return "metrics"
    if "results" in row and (
        "n-shot" in row or "higher_is_better" in row or "configs" in row or "versions" in row
    ):
        return "eval"
    if looks_like_config(row):
        return "model_config"
    if str(row.get("schema", "")).startswith(("diagnose-run/", "diagnose-server/")) or (
        "captured_at" in row and "collector" in row
    ):
        return "run_json"
    return "settings" if looks_like_settings(row) else None


def _read_metrics_or_stats(path: Path) -> Evidence:
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.lstrip()[:1] in {"{", "["}:
            try:
                data = json.loads(text)
                rows = data if isinstance(data, list) else [data]
            except (ValueError, RecursionError):
                rows = []
                for line in text.splitlines():
                    try:
                        rows.append(json.loads(line))
                    except (ValueError, RecursionError):
                        continue
            stats = [r for r in rows if looks_like_stats(r)]
            if stats:
                return read_stats(stats)
    return read_metrics(path)


def _read_log_or_settings(path: Path) -> Evidence:
    try:
        return read_log(path)
    except InputError:
        if path.is_file() and detect_evidence(path) == "settings":
            return read_settings(path)
        raise


def read_evidence(
    metrics: Sequence[Path] = (),
    logs: Sequence[Path] = (),
    benches: Sequence[Path] = (),
    settings: Sequence[Path] = (),
) -> Evidence:
    """All sources together, with a note for each point on which they disagree. InputError names the file at
    fault. A settings file given as a log is read as what it is."""
    out = Evidence()
    for path in (*metrics, *logs, *benches, *settings):
        if not path.exists():
            raise InputError(f"{path.name}: no such file; check the path given for metrics, log or bench")
    for path in metrics:
        out.extend(_read_metrics_or_stats(path))
    for path in logs:
        out.extend(_read_log_or_settings(path))
    for path in settings:
        out.extend(read_settings(path))
    for path in benches:
        out.extend(read_bench(path))
    if len(benches) > 1:
        out.note(
            "bench-several",
            f"{len(benches)} benchmark files were given; the first one counts where they overlap",
        )
    for note in find_conflicts(out):
        out.note(*note)
    return out


def store_evidence(store: Store, evidence: Evidence) -> None:
    """Write the tables serving, request and engine_config (replacing what they held)."""
    for name in ("serving", "request", "engine_config"):
        store.con.execute(f'DROP TABLE IF EXISTS "{name}"')
        store.con.execute(BY_NAME[name].ddl())
    _insert(
        store, "serving", ((s.ts, s.metric, s.labels_json(), s.value, s.origin) for s in evidence.samples)
    )
    _insert(
        store,
        "request",
        (
            (i, r.ttft_ms, r.itl_ms, r.e2e_ms, r.prompt_tokens, r.output_tokens, r.start_s)
            for i, r in enumerate(evidence.requests)
        ),
    )
    _insert(store, "engine_config", ((s.key, s.value, s.origin) for s in evidence.settings))


def _insert(store: Store, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    columns = [c.name for c in BY_NAME[table].columns]
    data = list(rows)
    if not data:
        return
    lines = "\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in data)
    path = store.folder / f"{table}.ndjson"
    path.write_text(lines, encoding="utf-8")
    kinds = ", ".join(f"'{c.name}': '{c.type}'" for c in BY_NAME[table].columns)
    source = f"read_json(?, format='newline_delimited', columns={{{kinds}}})"
    store.con.execute(f'INSERT INTO "{table}" SELECT * FROM {source}', [str(path)])
    path.unlink()


def load_evidence(
    store: Store, metrics: Sequence[Path] = (), logs: Sequence[Path] = (), benches: Sequence[Path] = ()
) -> Evidence:
    """Read all sources into the store; returns them as Evidence for the stages that follow."""
    evidence = read_evidence(metrics, logs, benches)
    store_evidence(store, evidence)
    return evidence
