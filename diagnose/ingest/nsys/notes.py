"""What the export says about itself, as notes: lost events, opaque graphs, a full launch queue.

Diagnostics are quoted only after everything that can name a path, a person, a machine or a command has been
taken out of them.
"""

import re

from diagnose.ingest.api import graph_launch_sql
from diagnose.ingest.nsys.facts import Session
from diagnose.ingest.nsys.tables import Tables
from diagnose.store import Store

_LOSS = re.compile(
    r"\b(dropped|lost|discard\w*|overflow\w*|incomplete|not all|missing|truncated|exceeded)\b", re.I
)
_PRIVATE = (
    (re.compile(r"https?://\S+"), "<address>"),
    (re.compile(r"[\w.+-]+@[\w.-]+"), "<user>"),
    (re.compile(r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b(?!\.)"), "<address>"),
    (re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`"), "<name>"),
    (re.compile(r"(?<!\w)~?(/[^\s:,;()]+)+/?|[A-Za-z]:\\\S+"), "<path>"),
    (re.compile(r"\b[A-Z][A-Z0-9_]{2,}=\S+"), "<setting>"),
    (
        re.compile(r"(?i)\b(host(name)?|user(name)?|command|executable|application|process|program)\b[^:=]{0,6}[:=].*"),
        r"\1: <withheld>",
    ),
)  # fmt: skip
_WARNING = 2
_QUOTED = 10


def note(store: Store, code: str, severity: str, count: int, message: str) -> None:
    """Add one row to `ingest_note`."""
    row = {"source_id": 0, "code": code, "severity": severity, "count": count, "message": message}
    store.insert("ingest_note", [row])


def _time(ns: float) -> str:
    return f"{ns / 1e6:.1f} ms" if ns >= 1e6 else f"{ns / 1e3:.1f} µs"


def sanitise(text: str) -> str:
    """One printable line of at most 200 characters without paths, names of people or machines, or
    commands."""
    line = " ".join(re.sub(r"[^\x20-\x7e]", " ", text).split())
    for pattern, replacement in _PRIVATE:
        line = pattern.sub(replacement, line)
    return line[:200]


def diagnostics(tables: Tables) -> list[tuple[str, str, int]]:
    """(severity, sanitised text, count) of warnings, errors and reports of loss, in order of time."""
    if not {"text", "severity"} <= tables.columns("DIAGNOSTIC_EVENT"):
        return []
    order = " 1 = 1 ORDER BY timestamp" if "timestamp" in tables.columns("DIAGNOSTIC_EVENT") else ""
    found: dict[tuple[str, str], int] = {}
    for severity, text in tables.fetch("DIAGNOSTIC_EVENT", ["severity", "text"], order):
        line = str(text or "")
        if not line or (int(severity or 0) not in (_WARNING, 3) and not _LOSS.search(line)):
            continue
        key = (
            "error" if severity == 3 else "warning" if severity == _WARNING or _LOSS.search(line) else "info",
            sanitise(line),
        )
        found[key] = found.get(key, 0) + 1
    return [(severity, text, count) for (severity, text), count in found.items()]


def write_notes(store: Store, tables: Tables, session: Session) -> None:
    """Notes on graphs, launch queue, diagnostics and old ranges; needs the staged tables and raw views."""
    store.insert("ingest_note", [])
    _graph_notes(store, session)
    _queue_note(store)
    for severity, text, count in diagnostics(tables)[:_QUOTED]:
        note(store, "profiler-diagnostic", severity, count, f"Nsight Systems reported: {text}")
    open_ranges = int(store.scalar("SELECT count(*) FROM nsys_range WHERE t1 IS NULL") or 0)
    if open_ranges:
        note(
            store, "open-ranges", "info", open_ranges,
            f"{open_ranges} NVTX range(s) were still open when the capture ended; taken to last to its end",
        )  # fmt: skip
    if not store.count("nsys_call"):
        note(
            store, "no-api-calls", "warning", 1,
            "no CUDA API calls are in the report, so idle time cannot be attributed: capture with "
            "`-t cuda,nvtx`, or export the table CUPTI_ACTIVITY_KIND_RUNTIME too",
        )  # fmt: skip
    shared = store.rows(
        """SELECT cuda_id, count(DISTINCT process) FROM (
               SELECT process, cuda_id FROM nsys_kernel UNION SELECT process, cuda_id FROM nsys_copy
           ) a ANTI JOIN nsys_device d ON d.process = a.process AND d.cuda_id = a.cuda_id
           GROUP BY cuda_id HAVING count(DISTINCT process) > 1 ORDER BY cuda_id"""
    )
    for device, processes in shared:
        note(
            store, "shared-device-number", "warning", int(processes),
            f"{processes} processes recorded work on device {device}; the report does not say whether "
            "that is one GPU, and it is shown as one",
        )  # fmt: skip


def _graph_notes(store: Store, session: Session) -> None:
    runs, run_ns = store.rows("SELECT count(*), coalesce(sum(dur_ns), 0) FROM raw_graph_run")[0]
    if runs:
        note(
            store, "opaque-graphs", "warning", int(runs),
            f"{runs} CUDA graph replay(s), {_time(run_ns)} of device time, are recorded as one piece "
            "each, without their kernels: capture again with `--cuda-graph-trace=node` to see what they "
            "spend it on",
        )  # fmt: skip
        return
    launches, seen = store.rows(
        f"""SELECT count(*), count(*) FILTER (WHERE k.process IS NOT NULL)
        FROM raw_host_call c JOIN name n USING (name_id)
        LEFT JOIN (SELECT DISTINCT process, correlation FROM nsys_kernel
                   UNION SELECT DISTINCT process, correlation FROM nsys_copy) k
            ON k.process = c.process AND k.correlation = c.correlation
        WHERE {graph_launch_sql("n.text")}"""
    )[0]
    if launches > seen:
        why = (
            "" if session.graph_mode is None else f" (captured with --cuda-graph-trace={session.graph_mode})"
        )
        note(
            store, "missing-graphs", "warning", int(launches - seen),
            f"{launches - seen} of {launches} CUDA graph launches have no device work in the report{why}: "
            "what the device did for them is not recorded; capture again with `--cuda-graph-trace=node`",
        )  # fmt: skip


def _queue_note(store: Store) -> None:
    count, ns = store.rows(
        "SELECT count(*), coalesce(sum(greatest(t1 - t0, 0)), 0) FROM nsys_cuda_overhead "
        "WHERE overhead_type = 8"
    )[0]
    if count:
        note(
            store, "launch-queue-full", "info", int(count),
            f"the CUDA launch queue was full {count} time(s), {_time(ns)} in all: the host ran ahead of the "
            "device",
        )  # fmt: skip
