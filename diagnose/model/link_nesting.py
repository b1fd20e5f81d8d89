"""Operator nesting in one pass over each thread: parents, self times, and the operator around each host call.

A stack, not SQL: recorded intervals of one thread do not always nest (integer microseconds, unfinished operators),
and a stack gives every nanosecond of a thread to exactly one operator all the same.
"""

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

from diagnose.store.store import Store

_FETCH = 20_000
_NONE = -1
_ROUNDING_NS = 2_000  # integer microseconds: start and duration are each cut off

# kind 0 operator, 1 host call; an operator opens before a call of the same start
_ORDERED = """
SELECT kind, id, process, thread, start_ns, end_ns FROM (
    SELECT 0 AS kind, op_id AS id, source_id, process, thread, start_ns, start_ns + dur_ns AS end_ns FROM link_op
    UNION ALL
    SELECT 1, call_id, source_id, process, thread, start_ns, start_ns + dur_ns FROM link_call
) ORDER BY source_id, process, thread, start_ns, kind, CASE WHEN kind = 0 THEN id ELSE -end_ns END, id
"""

Row = tuple[int, int, int | None, int | None, int, int]


class Nesting:
    """The result by operator id: `parent` (-1: none), `self_ns`; `owner_call` and `owner_op` are pairs by position."""

    def __init__(self, operators: int) -> None:
        self.parent = array("q", [_NONE]) * operators
        self.self_ns = array("q", [0]) * operators
        self.owner_call = array("q")
        self.owner_op = array("q")
        self.segments: list[tuple[int, int, int]] = []
        self.overhanging = 0  # operators that end well after the one they started in

    def run(self, batches: Iterator[list[Row]], with_segments: bool = False) -> None:
        """Read rows ordered by thread, start, then outermost first.

        An operator reaching beyond the one it started in counts up to that one's end, so that self times of a thread
        sum to the durations of its outermost operators exactly. `segments` are (op_id, start, end) self intervals.
        """
        parent, self_ns, segments = self.parent, self.self_ns, self.segments
        add_call, add_owner = self.owner_call.append, self.owner_op.append
        stack: list[int] = []
        ends: list[int] = []
        place: int | None = None
        lane: int | None = None
        reached = 0  # up to here the thread's time has been given to an operator
        for rows in batches:
            for kind, number, process, thread, start, end in rows:
                new = thread != lane or process != place
                if new:
                    place, lane = process, thread
                while ends and (new or ends[-1] <= start):
                    top = stack.pop()
                    until = ends.pop()
                    if with_segments and until > reached:
                        segments.append((top, reached, until))
                        reached = until
                if kind:
                    if stack:
                        add_call(number)
                        add_owner(stack[-1])
                    continue
                if stack:
                    outer = stack[-1]
                    parent[number] = outer
                    if end > ends[-1]:
                        self.overhanging += end > ends[-1] + _ROUNDING_NS
                        end = ends[-1]
                    self_ns[outer] -= end - start
                    if with_segments and start > reached:
                        segments.append((outer, reached, start))
                self_ns[number] += end - start
                reached = start
                stack.append(number)
                ends.append(end)
        while with_segments and stack:
            top = stack.pop()
            until = ends.pop()
            if until > reached:
                segments.append((top, reached, until))
                reached = until


def nest(store: Store, with_segments: bool) -> None:
    """Write `link_nesting(op_id, parent_op_id, self_ns)`, `link_owner(call_id, op_id)`, `link_segment(op_id, …)`."""
    result = Nesting(store.count("link_op"))
    cursor = store.con.cursor()
    cursor.execute(_ORDERED)

    result.run(iter(lambda: cursor.fetchmany(_FETCH), []), with_segments)
    cursor.close()
    if result.overhanging:
        store.insert("ingest_note", [{
            "source_id": 0, "code": "overhanging-operators", "severity": "info", "count": result.overhanging,
            "message": f"{result.overhanging} operators end after the operator they started in; their time counts up to its end",
        }])  # fmt: skip
    operators = range(len(result.parent))
    _table(
        store,
        "link_nesting",
        ("op_id", "parent_op_id", "self_ns"),
        zip(operators, result.parent, result.self_ns, strict=True),
    )
    _table(store, "link_owner", ("call_id", "op_id"), zip(result.owner_call, result.owner_op, strict=True))
    _table(store, "link_segment", ("op_id", "start_ns", "end_ns"), result.segments)


def _table(store: Store, name: str, columns: tuple[str, ...], rows: Iterable[tuple[int, ...]]) -> None:
    """Integers to a table by way of a CSV file: many times faster than bound values, and needs no other library."""
    path: Path = store.folder / f"{name}.csv"
    form = ",".join(["%d"] * len(columns)) + "\n"
    with path.open("w", encoding="ascii") as file:
        file.writelines(map(form.__mod__, rows))
    types = ", ".join(f"'{column}': 'BIGINT'" for column in columns)
    values = ", ".join(
        f"nullif({column}, {_NONE}) AS {column}" if column == "parent_op_id" else column for column in columns
    )
    store.save(
        name,
        f"SELECT {values} FROM read_csv('{path.as_posix()}', header = false, auto_detect = false, delim = ',', "
        f"columns = {{{types}}})",
    )
    path.unlink()
