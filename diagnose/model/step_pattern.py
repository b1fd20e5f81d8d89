"""Steps of a trace without engine annotations: from the repeating work, else the window itself.

A decode loop repeats: each iteration gathers embeddings, copies a token, or replays a graph exactly once. A name of
that kind whose occurrences cut the device's work into segments of the same kernels marks the iterations. A forward
pass repeats its layers too, so short segments and names that only layers contain never count: when in doubt, the
window is one step of phase `other`.
"""

from array import array
from collections import Counter
from itertools import pairwise
from math import sqrt
from operator import sub
from typing import TYPE_CHECKING

from diagnose.costs.families import family
from diagnose.store import Store
from diagnose.store.sqlfile import read_sql

if TYPE_CHECKING:
    from diagnose.model.steps import StepOutcome

MIN_STEPS = 3
# A decoder layer is 10-40 kernels in the traces read; an iteration of the smallest model, 60.
MIN_KERNELS_PER_STEP = 50
# Same kernels in the same numbers, allowing for a bucket boundary in attention or a sampled branch.
MIN_SIMILARITY = 0.95
# The marked iterations must be most of the device's work, or they are a side loop.
MIN_COVERED = 0.6
# A wait this long that nothing recorded explains separates slices of different iterations.
SLICE_NS = 1_000_000
# A slice with less than this share of the device's busy time is the edge of another iteration.
MIN_SLICE_SHARE = 0.05
# Rare names come first: the rarest that cuts well marks the whole iteration.
MAX_MARKERS = 8
MARKER_FAMILIES = frozenset({"gather", "sampling", "bookkeeping"})


def build(store: Store, devices: tuple[int, ...]) -> "StepOutcome":
    """Write `step` and `owner` from the repeating pattern or the window."""
    from diagnose.model.steps import StepOutcome

    store.con.execute(
        """CREATE OR REPLACE TABLE owner (kernel_id BIGINT, step_id INTEGER);
        CREATE OR REPLACE TABLE step_span (step_id INTEGER, device_id INTEGER, start_ns BIGINT, end_ns BIGINT,
            provenance VARCHAR);"""
    )
    spans: list[tuple[int, int, int, str]] = []
    sources = set()
    for device in devices:
        found = _repeating(store, device)
        source = "pattern" if found else "window"
        if not found:
            found = _window(store, device)
        sources.add(source)
        spans += [(device, start, end, source) for start, end in found]
    spans.sort()
    store.insert_columns(
        "step_span",
        {
            "step_id": list(range(len(spans))),
            "device_id": [s[0] for s in spans],
            "start_ns": [s[1] for s in spans],
            "end_ns": [s[2] for s in spans],
            "provenance": [s[3] for s in spans],
        },
        {
            "step_id": "INTEGER",
            "device_id": "INTEGER",
            "start_ns": "BIGINT",
            "end_ns": "BIGINT",
            "provenance": "VARCHAR",
        },
    )
    store.con.execute(read_sql("diagnose.model", "step_spans.sql"))
    return StepOutcome("+".join(sorted(sources)) or "window", "", len(spans), 0)


def _window(store: Store, device: int) -> list[tuple[int, int]]:
    """The window as one step; cut where the device waited long for work it already had (a slice's edge)."""
    rows = store.rows(read_sql("diagnose.model", "slices.sql"), device, SLICE_NS)
    total = sum(busy for _, _, busy in rows)
    return [(start, end) for start, end, busy in rows if busy >= MIN_SLICE_SHARE * total]


class _Sequence:
    """One device's activity in time order as flat arrays: a few bytes a row, a million rows are common."""

    def __init__(self) -> None:
        self.start = array("q")
        self.end = array("q")
        self.token = array("q")


COPY_TOKEN = -1


def _read(store: Store, device: int) -> _Sequence:
    """Tokens: name_id of a kernel, COPY_TOKEN for copies and sets, -2 - name_id for the first kernel of a replay."""
    sequence = _Sequence()
    cursor = store.con.execute(
        """SELECT a.start_ns, a.start_ns + a.dur_ns, CASE WHEN a.kind IN ('copy', 'memset') THEN -1 ELSE coalesce(a.name_id, 0) END,
            CASE WHEN a.kind = 'graph' OR a.link = 'graph' THEN a.launch_id END
        FROM activity a WHERE a.device_id = ? ORDER BY a.start_ns, a.kernel_id""",
        [device],
    )
    previous_launch = None
    while rows := cursor.fetchmany(50_000):
        for start, end, name, launch in rows:
            sequence.start.append(start)
            sequence.end.append(end)
            sequence.token.append(-2 - name if launch is not None and launch != previous_launch else name)
            previous_launch = launch
    return sequence


def _repeating(store: Store, device: int) -> list[tuple[int, int]]:
    """Iterations by their marker; empty when none is convincing."""
    if device < 0:
        return []
    sequence = _read(store, device)
    counts = Counter(sequence.token)
    often = [token for token, count in counts.items() if count >= MIN_STEPS]
    names = dict(
        store.rows(
            "SELECT name_id, text FROM name WHERE name_id IN (SELECT unnest(?::BIGINT[]))",
            [t for t in often if t >= 0],
        )
    )
    markers = [t for t in often if t < 0 or family(names.get(t, "")) in MARKER_FAMILIES]
    markers.sort(key=lambda t: (counts[t], t))
    for marker in markers[:MAX_MARKERS]:
        if spans := _iterations(sequence, marker):
            return spans
    return []


def _iterations(sequence: _Sequence, marker: int) -> list[tuple[int, int]]:
    """Cut at the marker; spans when the segments are long, alike and most of the work, else empty.

    The marker names the iterations, not where they begin (a sampler ends them): where every iteration has its longest
    wait before the same kernel, that is where the next one begins.
    """
    marks = [i for i, token in enumerate(sequence.token) if token == marker]
    shortest = MIN_KERNELS_PER_STEP if marker > COPY_TOKEN - 1 else 0
    spans = _cut(sequence, marks, shortest)
    if spans and (waits := _after_longest_wait(sequence, marks)):
        return _cut(sequence, waits, shortest) or spans
    return spans


def _after_longest_wait(sequence: _Sequence, marks: list[int]) -> list[int]:
    """The activity behind the longest wait of each iteration; empty unless they are all alike.

    The work before the first marker is the end of an iteration, or a whole one when it begins like the others.
    """
    found: list[int] = []
    for a, b in pairwise(marks):
        done, longest, at = sequence.end[a], 0, a
        for i in range(a + 1, b + 1):
            if (wait := sequence.start[i] - done) > longest:
                longest, at = wait, i
            done = max(done, sequence.end[i])
        found.append(at)
    head = sequence.token[found[0]] if found else None
    if head is None or any(sequence.token[i] != head for i in found) or found == marks[1:]:
        return []
    return [0, *found] if sequence.token[0] == head else found


def _cut(sequence: _Sequence, marks: list[int], shortest: int) -> list[tuple[int, int]]:
    """Spans from mark to mark and to the end; empty when they are too short, unlike each other or a side loop."""
    edges = [*marks, len(sequence.token)]
    segments = list(pairwise(edges))
    counts = [Counter(sequence.token[a:b]) for a, b in segments]
    inner = counts[:-1]
    if len(inner) < 2 or min(c.total() for c in inner) < shortest:
        return []
    alike = sum(_cosine(a, b) >= MIN_SIMILARITY for a, b in pairwise(inner))
    if alike < 0.9 * (len(inner) - 1):
        return []
    busy = sum(map(sub, sequence.end, sequence.start))
    covered = sum(map(sub, sequence.end[edges[0] :], sequence.start[edges[0] :]))
    if covered < MIN_COVERED * busy:
        return []
    if _cosine(counts[-1], counts[-2]) < MIN_SIMILARITY and counts[-1].total() < counts[-2].total():
        # The last iteration is cut off by the end of the trace: its work stays outside the steps.
        segments.pop()
    return [(sequence.start[a], max(sequence.end[a:b])) for a, b in segments]


def _cosine(a: Counter[int], b: Counter[int]) -> float:
    dot = sum(n * b[name] for name, n in a.items())
    norm = sqrt(sum(n * n for n in a.values()) * sum(n * n for n in b.values()))
    return dot / norm if norm else 0.0
