"""Costs on the device `cpu`: the outermost operator with a model owns its whole subtree, shared by self time.

Leaf operators alone cover a quarter of such a trace: the time between a linear and its BLAS call is part of
that linear.
"""

from collections.abc import Callable

from diagnose.costs.cost_rows import CostValues
from diagnose.costs.op import OpCall
from diagnose.costs.registry import cost_of
from diagnose.store.sqlfile import read_sql
from diagnose.store.store import Store

_MAY_DO_NOTHING = frozenset({"aten::to", "aten::contiguous", "aten::dropout"})
"""Operators that often return their input: where they copy, a child operator says so."""
_MOVES_NOTHING = frozenset(
    f"aten::{name}"
    for name in (
        "slice", "as_strided", "narrow", "split", "split_with_sizes", "chunk", "transpose", "t", "view",
        "_unsafe_view",
        "reshape", "_reshape_alias", "expand", "expand_as", "unsqueeze", "squeeze", "permute", "select",
        "detach", "alias",
        "empty", "empty_like", "empty_strided", "new_empty", "resize_", "unbind", "unflatten", "flatten",
        "movedim",
        "view_as", "to", "contiguous", "result_type", "lift_fresh", "numpy_T", "swapaxes", "dropout", "item",
        "_local_scalar_dense", "is_nonzero",
    )
)  # fmt: skip
"""Views and allocations: no data moves in them themselves."""


def assign_cpu(store: Store, call: Callable[[int, int | None], OpCall]) -> None:
    """Add rows to `cost` for the kernels of device -1 (operator self intervals)."""
    if not store.scalar("SELECT count(*) FROM kernel WHERE device_id = -1"):
        return
    values = CostValues()
    keys: dict[str, list[int | None]] = {"name_id": [], "signature_id": [], "kind": []}
    for name_id, signature_id in store.rows("SELECT DISTINCT name_id, signature_id FROM cost_op"):
        one = call(name_id, signature_id)
        cost = None if one.name in _MAY_DO_NOTHING else cost_of(one)
        if cost is not None:
            for key, value in zip(keys, (name_id, signature_id, values.kind(cost)), strict=True):
                keys[key].append(value)
    values.write(store)
    store.insert_columns("cost_found", keys, dict.fromkeys(keys, "INTEGER"))
    store.con.execute(read_sql("diagnose.costs", "cpu_costs.sql"))
    idle = [
        name_id for name_id, text in store.rows("SELECT name_id, text FROM name") if text in _MOVES_NOTHING
    ]
    store.insert_columns("cost_idle", {"name_id": idle}, {"name_id": "INTEGER"})
    store.con.execute(
        """INSERT INTO cost BY NAME
        SELECT k.kernel_id, 0.0 AS flops, 0.0 AS bytes_min, 0.0 AS bytes_low, 0.0 AS bytes_high, 'view' AS
        role,
               'shape' AS source, '' AS shape
        FROM kernel k JOIN cost_idle i USING (name_id) ANTI JOIN cost c ON c.kernel_id = k.kernel_id
        WHERE k.device_id = -1"""
    )
    store.con.execute("DROP TABLE cost_idle")
