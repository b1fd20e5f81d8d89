"""Costs for kernels without an operator: an identical kernel elsewhere in the trace shows what they did.

Same name, grid and block as kernels that were linked to operators (`same_kernel`). Where those did different work, the
neighbours decide: kernels around both must be the same too (`same_sequence`). A duration far from the reference's
excludes the match: another inner size can hide behind one grid.
"""

from dataclasses import dataclass

from diagnose.costs.families import family
from diagnose.store.sqlfile import read_sql
from diagnose.store.store import Store

SHORT_NS = 4000
"""Kernels at the floor take what they take: durations are not compared below this."""
CONTEXTS = ((1, 1), (2, 2), (4, 4), (8, 8), (0, 4), (4, 0), (0, 12), (12, 0))
"""Neighbours compared (before, after), cheapest first; one-sided ones for the edges of the recorded window."""
_BY_CONTEXT = frozenset({"attn_decode", "attn_merge", "mla", "nccl", "custom_comm"})
"""Families whose work depends on more than their grid (context length, message size)."""


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


def assign_same_kernel(store: Store) -> None:
    """Add rows to `cost` for unlinked kernels; reads `kernel`, `cost`, `name`."""
    for mode in _MODES:
        _assign(store, mode)
    for name in ("cost_same_name", "cost_reference", "cost_open", "cost_sequence", "cost_kind"):
        store.con.execute(f"DROP TABLE IF EXISTS {name}")


def _assign(store: Store, mode: _Mode) -> None:
    unlinked = store.rows(
        f"""SELECT DISTINCT k.name_id, n.text FROM kernel k JOIN name n USING (name_id)
        ANTI JOIN cost c ON c.kernel_id = k.kernel_id
        WHERE k.op_id IS NULL AND k.device_id <> -1 AND {mode.unlinked}"""
    )
    names = [name_id for name_id, text in unlinked if family(text or "") not in _BY_CONTEXT]
    if not names:
        return
    store.insert_columns("cost_same_name", {"name_id": names}, {"name_id": "INTEGER"})
    _run(store, "same_kernel.sql", mode, mode.ratio)
    for before, after in CONTEXTS:
        if not store.scalar("SELECT count(*) FROM cost_open"):
            return
        _by_neighbours(store, mode, before, after)
    # References that differ in layout only: FLOPs and bytes are the same, so the nearest in time serves.
    _run(store, "same_work.sql", mode, mode.ratio)


def _run(store: Store, file: str, mode: _Mode, ratio: float, **more: str) -> None:
    sql = read_sql("diagnose.costs", file)
    fields = {
        "grid": mode.grid, "block": mode.block, "unlinked": mode.unlinked, "with_grid": mode.with_grid,
        "ratio": repr(ratio), "short_ns": str(SHORT_NS), **more,
    }  # fmt: skip
    for key, value in fields.items():
        sql = sql.replace("{" + key + "}", value)
    store.con.execute(sql)


def _by_neighbours(store: Store, mode: _Mode, before: int, after: int) -> None:
    """Settle the open kernels whose neighbours are those of references that all did the same work."""
    around = [f"lag(shape_id, {i}) OVER w" for i in range(1, before + 1)]
    around += [f"lead(shape_id, {i}) OVER w" for i in range(1, after + 1)]
    edges = [f"lag(shape_id, {before}) OVER w"] * bool(before) + [f"lead(shape_id, {after}) OVER w"] * bool(after)
    present = " AND ".join(f"{e} IS NOT NULL" for e in edges)
    _run(store, "same_sequence.sql", mode, mode.ratio_in_sequence, around=", ".join(around), present=present)
