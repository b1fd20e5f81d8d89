"""Costs on the device `cpu`: the outermost operator with a model owns its whole subtree, shared by self time.

Leaf operators alone cover a quarter of such a trace: the time between a linear and its BLAS call is part of that linear.
"""

from collections.abc import Callable

from diagnose.costs.cost_rows import CostRows
from diagnose.costs.op import OpCall
from diagnose.costs.registry import cost_of
from diagnose.store.sqlfile import read_sql
from diagnose.store.store import Store

_MAY_DO_NOTHING = frozenset({"aten::to", "aten::contiguous", "aten::reshape", "aten::dropout"})
"""Operators that often return their input: where they copy, a child operator says so."""


def assign_cpu(store: Store, call: Callable[[int, int | None], OpCall]) -> None:
    """Add rows to `cost` for the kernels of device -1 (operator self intervals)."""
    if not store.scalar("SELECT count(*) FROM kernel WHERE device_id = -1"):
        return
    rows = CostRows()
    for name_id, signature_id in store.rows("SELECT DISTINCT name_id, signature_id FROM op"):
        one = call(name_id, signature_id)
        cost = None if one.name in _MAY_DO_NOTHING else cost_of(one)
        if cost is not None:
            rows.add((name_id, signature_id), cost, "shape")
    rows.write(store, "cost_found", {"name_id": "INTEGER", "signature_id": "INTEGER"})
    store.con.execute(read_sql("diagnose.costs", "cpu_costs.sql"))
