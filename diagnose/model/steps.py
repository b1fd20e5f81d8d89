"""Steps: engine iterations from annotations, else from the repeating work, else the window itself.

Writes `step` (one row a step and device) and `owner(kernel_id, step_id)`. A step owns the device work launched inside
its annotation, whenever that work runs; work whose launch is not in the trace belongs to none.
"""

import re
from collections import defaultdict
from dataclasses import dataclass

from diagnose.model import step_pattern
from diagnose.model.step_text import StepText, compile_user, is_loader, parse_step
from diagnose.store import Store
from diagnose.store.sqlfile import read_sql

HOST_ORIGINS = ("user_annotation", "nvtx", "nvtx_start_end")


@dataclass(frozen=True, slots=True)
class HostStep:
    """One engine iteration on the host (`thread` None: found on the device, its work is taken by device time)."""

    process: int | None
    thread: int | None
    start_ns: int
    end_ns: int
    read: StepText
    text: str
    device: int | None = None


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """How the steps were found: `source` is annotation, pattern or window; `form` the annotation's form."""

    source: str
    form: str
    host_steps: int
    without_work: int


def build_steps(
    store: Store, step_annotation: str | None = None, devices: tuple[int, ...] = ()
) -> StepOutcome:
    """Find the steps of every device in `devices` and write `step` and `owner`.

    UsageError when `step_annotation` is no regular expression, or matches nothing.
    """
    user = compile_user(step_annotation)
    _write_loaders(store)
    host_steps = _annotated(store, user, HOST_ORIGINS)
    on_device = False
    if not host_steps and not store.scalar("SELECT count(*) FROM host_call"):
        # A trace without host events can still carry the annotations' projection on the device.
        host_steps, on_device = _annotated(store, user, ("gpu_user_annotation",)), True
    if user is not None and not any(step.read.form == "user" for step in host_steps):
        from diagnose.errors import UsageError

        raise UsageError(
            f'--step-annotation {step_annotation!r} matches no annotation of the trace; `diagnose query TRACE "SELECT DISTINCT text FROM annotation"` lists them'
        )
    if host_steps:
        outcome = _own_by_annotation(store, host_steps, on_device)
        if outcome is not None:
            return outcome
    return step_pattern.build(store, devices)


def _annotated(store: Store, user: re.Pattern[str] | None, origins: tuple[str, ...]) -> list[HostStep]:
    """Engine annotations as steps: the innermost of nested ones, with the counts of the outer ones."""
    marks = ", ".join("?" for _ in origins)
    texts = [
        row[0]
        for row in store.rows(f"SELECT DISTINCT text FROM annotation WHERE origin IN ({marks})", *origins)
    ]
    parsed = {text: read for text in texts if text and (read := parse_step(text, user)) is not None}
    if not parsed:
        return []
    rows = store.rows(
        f"""SELECT process, thread_or_stream, start_ns, start_ns + dur_ns, text FROM annotation
        WHERE origin IN ({marks}) AND text IN (SELECT unnest(?))
        ORDER BY process, thread_or_stream, start_ns, dur_ns DESC, annotation_id""",
        *origins,
        list(parsed),
    )
    by_thread: dict[tuple[int | None, int | None], list[tuple[int, int, str]]] = defaultdict(list)
    for process, thread, start, end, text in rows:
        by_thread[process, thread].append((start, end, text))
    steps: list[HostStep] = []
    for (process, thread), spans in by_thread.items():
        for start, end, read, text in innermost([(s, e, parsed[t], t) for s, e, t in spans]):
            steps.append(HostStep(process, thread, start, end, read, text))
    steps.sort(key=lambda s: (s.start_ns, s.end_ns))
    return steps


def innermost(spans: list[tuple[int, int, StepText, str]]) -> list[tuple[int, int, StepText, str]]:
    """Leaves of properly nested spans of one thread, sorted by start and longest first.

    A leaf takes the counts it lacks from an enclosing span that holds no other leaf: a span around several
    iterations counts them all together, so its numbers belong to none of them.
    """
    parent: list[int | None] = []
    stack: list[int] = []
    for index, (start, end, _, _) in enumerate(spans):
        while stack and spans[stack[-1]][1] <= start:
            stack.pop()
        # Spans that only overlap (ranges of several threads under one id) do not nest.
        inside = [i for i in stack if spans[i][1] >= end]
        parent.append(inside[-1] if inside else None)
        stack.append(index)
    children = [0] * len(spans)
    leaves = [True] * len(spans)
    for above in parent:
        if above is not None:
            leaves[above] = False
    for index, leaf in enumerate(leaves):
        above = parent[index]
        while leaf and above is not None:
            children[above] += 1
            above = parent[above]
    result = []
    for index, leaf in enumerate(leaves):
        if not leaf:
            continue
        start, end, read, text = spans[index]
        above = parent[index]
        while above is not None and children[above] == 1:
            read = read.filled_from(spans[above][2])
            above = parent[above]
        result.append((start, end, read, text))
    return result


def _write_loaders(store: Store) -> None:
    """Input-pipeline annotations, which are never part of a step: `loader(process, thread, start_ns, end_ns, text)`."""
    texts = [
        row[0]
        for row in store.rows(
            "SELECT DISTINCT text FROM annotation WHERE origin IN ('user_annotation', 'nvtx', 'nvtx_start_end')"
        )
        if row[0] and is_loader(row[0])
    ]
    store.con.execute(
        """CREATE OR REPLACE TABLE loader AS
        SELECT process, thread_or_stream AS thread, start_ns, start_ns + dur_ns AS end_ns, text FROM annotation
        WHERE origin IN ('user_annotation', 'nvtx', 'nvtx_start_end') AND text IN (SELECT unnest(?::VARCHAR[]))""",
        [texts],
    )


def _own_by_annotation(store: Store, steps: list[HostStep], on_device: bool) -> StepOutcome | None:
    """Write `host_step`, then ownership by launch; None when no step owns device work."""
    write_host_steps(store, steps)
    store.con.execute(read_sql("diagnose.model", "own_on_device.sql" if on_device else "own_by_launch.sql"))
    store.con.execute(read_sql("diagnose.model", "step_rows.sql"))
    owned = store.scalar("SELECT count(DISTINCT host_step_id) FROM step_host") or 0
    if not owned:
        return None
    forms = sorted({step.read.form for step in steps})
    return StepOutcome("annotation", ", ".join(forms), len(steps), len(steps) - int(owned))


def write_host_steps(store: Store, steps: list[HostStep]) -> None:
    """`host_step`: one row an iteration, numbered by host start."""
    columns: dict[str, list[object]] = {
        "host_step_id": list(range(len(steps))),
        "process": [s.process for s in steps],
        "thread": [s.thread for s in steps],
        "start_ns": [s.start_ns for s in steps],
        "end_ns": [s.end_ns for s in steps],
        "phase": [s.read.phase for s in steps],
        "sequences": [s.read.sequences for s in steps],
        "prefill_sequences": [s.read.prefill_sequences for s in steps],
        "decode_sequences": [s.read.decode_sequences for s in steps],
        "prefill_tokens": [s.read.prefill_tokens for s in steps],
        "decode_tokens": [s.read.decode_tokens for s in steps],
        "context_tokens": [s.read.context_tokens for s in steps],
        "prefill_context_tokens": [s.read.prefill_context_tokens for s in steps],
        "prefill_pairs": [s.read.prefill_pairs for s in steps],
        "provenance": [s.read.form for s in steps],
        "text": [s.text for s in steps],
        "device_id": [s.device for s in steps],
    }
    store.insert_columns("host_step", columns, types=HOST_STEP_TYPES)


HOST_STEP_TYPES = {
    "host_step_id": "INTEGER", "process": "BIGINT", "thread": "BIGINT", "start_ns": "BIGINT", "end_ns": "BIGINT",
    "phase": "VARCHAR", "sequences": "INTEGER", "prefill_sequences": "INTEGER", "decode_sequences": "INTEGER",
    "prefill_tokens": "BIGINT", "decode_tokens": "BIGINT", "context_tokens": "BIGINT",
    "prefill_context_tokens": "BIGINT", "prefill_pairs": "DOUBLE", "provenance": "VARCHAR", "text": "VARCHAR",
    "device_id": "INTEGER",
}  # fmt: skip
