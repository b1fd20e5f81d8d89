"""Picking up the traces that an engine wrote while we had its profiler on."""

import re
import time
import zlib
from pathlib import Path

from diagnose.collectors import trace_file

_TRACE = re.compile(r"\.json(\.gz)?$")
# The front end's own trace holds no device work; the graph-capture one is warm-up.
_NOT_A_RANK = re.compile(r"async_llm|asyncllm|cuda_graph_capture", re.IGNORECASE)
_RANK = re.compile(r"(?:rank[_-]?|TP-|tp)(\d+)")


def wait_for_traces(
    folder: Path, since: float, timeout_s: float, settle_s: float = 2.0
) -> tuple[list[Path], str | None]:
    """Traces written in `folder` since the epoch second `since`, once none has grown for `settle_s`.

    The second value says what was wrong: nothing new, or files still growing after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    known: dict[Path, int] = {}
    quiet_since = time.monotonic()
    while True:
        current = _sizes(folder, since)
        if current != known:
            known, quiet_since = current, time.monotonic()
        settled = time.monotonic() - quiet_since >= settle_s
        if known and settled:
            return sorted(known), None
        if time.monotonic() >= deadline:
            if not known:
                return [], f"no new trace in the trace folder within {timeout_s:g} s"
            return [], f"traces were still being written after {timeout_s:g} s"
        time.sleep(0.2)


def _sizes(folder: Path, since: float) -> dict[Path, int]:
    sizes = {}
    for path in folder.rglob("*"):
        try:
            stat = path.stat()
        except OSError:
            continue
        if path.is_file() and _TRACE.search(path.name) and stat.st_mtime >= since - 1.0 and stat.st_size:
            sizes[path] = stat.st_size
    return sizes


def take(traces: list[Path], folder: Path) -> tuple[list[str], list[str]]:
    """Copy traces into `folder` without host names; their new names, and a line for each left out."""
    taken: list[str] = []
    notes: list[str] = []
    for path in traces:
        if _NOT_A_RANK.search(path.name):
            notes.append("a trace of the front end or of graph capture was left out")
            continue
        match = _RANK.search(path.name)
        stem = f"trace.rank{int(match.group(1))}" if match else "trace"
        name, number = f"{stem}.json.gz", 2
        while name in taken:
            name, number = f"{stem}-{number}.json.gz", number + 1
        try:
            trace_file.pack(path, folder / name)
        except (OSError, EOFError, zlib.error) as error:
            notes.append(f"a trace was left out: it cannot be read to its end ({type(error).__name__})")
            continue
        taken.append(name)
    return taken, notes
