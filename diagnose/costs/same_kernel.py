"""Costs for kernels without an operator: an identical kernel elsewhere in the trace shows what they did.

Same name, grid and block as kernels that were linked to operators (`same_kernel`). Where those did different
work, the neighbours decide: kernels around both must be the same too (`same_sequence`). A duration far from
the reference's excludes the match: another inner size can hide behind one grid.
"""

from dataclasses import dataclass
from typing import Any

from diagnose.costs.cost_rows import CostValues
from diagnose.costs.families import family
from diagnose.store.sqlfile import read_sql
from diagnose.store.store import Store

SHORT_NS = 4000
"""Kernels at the floor take what they take: durations are not compared below this."""
CONTEXTS: tuple[tuple[int, ...], ...] = (
    (-1, 1), (-2, -1, 1, 2), (-4, -3, -2, -1, 1, 2, 3, 4), tuple(i for i in range(-8, 9) if i),
    (1, 2, 3, 4), (-4, -3, -2, -1), tuple(range(1, 13)), tuple(range(-12, 0)),
)  # fmt: skip
"""Neighbours compared, nearest first; one-sided ones for the edges of the recorded window."""
REFERENCES = 64
"""Kernels looked at per kind of reference: a layer repeats, so its surroundings do."""
MANY = 50_000
"""Above this many open kernels only the nearest four neighbours are looked at: time stays bounded."""
_BY_CONTEXT = frozenset({"attn_decode", "attn_merge", "mla", "nccl", "custom_comm"})
"""Families whose work depends on more than their grid (context length, message size)."""

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Mode:
    """What identifies a kernel, and how far its duration may be from the reference's median.

    The ratio rejects another inner size behind the same grid; clocks and neighbours move a kernel by less.
    """

    unlinked: str
    with_grid: str
    grid: str
    block: str
    ratio: float
    ratio_in_sequence: float


_MODES = (
    _Mode("k.grid IS NOT NULL", "k.grid IS NOT NULL", "k.grid", "k.block", 2.0, 2.0),
    # ROCm records no grid for a kernel whose launch it did not see: the name alone, so closer in time
    _Mode("k.grid IS NULL", "true", "''", "''", 1.3, 1.6),
)


def assign_same_kernel(store: Store, values: CostValues) -> None:
    """Add rows to `cost_taken` for unlinked kernels; reads `kernel`, `cost_taken`, `name`."""
    for mode in _MODES:
        _assign(store, values, mode)
    for name in ("cost_same_name", "cost_reference", "cost_open", "cost_around", "cost_decided"):
        store.con.execute(f"DROP TABLE IF EXISTS {name}")


def _assign(store: Store, values: CostValues, mode: _Mode) -> None:
    unlinked = store.rows(
        f"""SELECT DISTINCT k.name_id, n.text FROM kernel k JOIN name n USING (name_id)
        ANTI JOIN cost_taken t ON t.kernel_id = k.kernel_id
        WHERE k.op_id IS NULL AND k.device_id <> -1 AND {mode.unlinked}"""
    )
    names = [name_id for name_id, text in unlinked if family(text or "") not in _BY_CONTEXT]
    if not names:
        return
    store.insert_columns("cost_same_name", {"name_id": names}, {"name_id": "INTEGER"})
    _run(store, "same_kernel.sql", mode, ratio=repr(mode.ratio))
    if store.scalar("SELECT count(*) FROM cost_open"):
        many = store.scalar("SELECT count(*) FROM cost_open") > MANY
        _run(store, "neighbours.sql", mode, references=str(REFERENCES), reach=str(4 if many else 12))
        _decide(store, values)
        _run(store, "decided.sql", mode, ratio=repr(mode.ratio_in_sequence))


def _run(store: Store, file: str, mode: _Mode, **more: str) -> None:
    sql = read_sql("diagnose.costs", file)
    fields = {
        "grid": mode.grid, "block": mode.block, "unlinked": mode.unlinked, "with_grid": mode.with_grid,
        "short_ns": str(SHORT_NS), **more,
    }  # fmt: skip
    for key, value in fields.items():
        sql = sql.replace("{" + key + "}", value)
    store.con.execute(sql)


def _decide(store: Store, values: CostValues) -> None:
    """Write `cost_decided`: which kind of work each surrounding of an open kernel means.

    The nearest neighbours that settle it count. What no surrounding settles is given only where all
    references did the same FLOPs on the same bytes (they differ in layout): then the one nearest in time, a
    row with around_id NULL.
    """
    seen: dict[Key, set[int]] = {}
    kinds: dict[Key, set[int]] = {}
    asked: dict[Key, set[int]] = {}  # kinds that a context could be compared with: at an edge some have none
    for name_id, grid, block, kind, around in store.rows(
        """SELECT name_id, grid, block, kind, any_value(around) FROM cost_around
        WHERE kind IS NOT NULL GROUP BY name_id, grid, block, kind, around_id"""
    ):
        kinds.setdefault((name_id, grid, block), set()).add(kind)
        for context, shapes in _contexts(around):
            seen.setdefault((name_id, grid, block, context, shapes), set()).add(kind)
            asked.setdefault((name_id, grid, block, context), set()).add(kind)
    columns: dict[str, list[Any]] = {"name_id": [], "grid": [], "block": [], "around_id": [], "kind": []}
    for name_id, grid, block, around_id, around in store.rows(
        """SELECT name_id, grid, block, around_id, any_value(around) FROM cost_around
        WHERE kind IS NULL GROUP BY ALL"""
    ):
        for context, shapes in _contexts(around):
            if asked.get((name_id, grid, block, context)) != kinds[name_id, grid, block]:
                continue
            agreed = seen.get((name_id, grid, block, context, shapes), set())
            if len(agreed) == 1:
                _append(columns, name_id, grid, block, around_id, next(iter(agreed)))
                break
    for (name_id, grid, block), several in kinds.items():
        if len({values.work(kind) for kind in several}) == 1:
            for kind in several:
                _append(columns, name_id, grid, block, None, kind)
    types = {
        "name_id": "INTEGER",
        "grid": "VARCHAR",
        "block": "VARCHAR",
        "around_id": "UBIGINT",
        "kind": "INTEGER",
    }
    store.insert_columns("cost_decided", columns, types)


def _contexts(around: list[dict[str, int]]) -> list[tuple[int, tuple[int, ...]]]:
    """(context number, shapes) for every context whose neighbours are all there."""
    at = {n["step"]: n["shape_id"] for n in around}
    return [
        (i, tuple(at[step] for step in steps))
        for i, steps in enumerate(CONTEXTS)
        if all(step in at for step in steps)
    ]


def _append(columns: dict[str, list[Any]], *values: Any) -> None:
    for column, value in zip(columns.values(), values, strict=True):
        column.append(value)
