"""Distinct costs on their way from Python into tables."""

from typing import Any

from diagnose.costs.op import OpCost
from diagnose.store.store import Store

COLUMNS = {
    "flops": "DOUBLE", "bytes_min": "DOUBLE", "bytes_low": "DOUBLE", "bytes_high": "DOUBLE",
    "dtype": "VARCHAR",
    "role": "VARCHAR", "shape": "VARCHAR", "strided": "BOOLEAN", "m": "BIGINT", "n": "BIGINT", "k": "BIGINT",
    "batch": "BIGINT", "attention_length": "DOUBLE", "head_dim": "BIGINT",
}  # fmt: skip
"""The columns of table `cost` that a cost fills."""


class CostValues:
    """Numbers distinct costs: the same work has the same number (`kind`)."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[Any, ...], int] = {}

    def kind(self, cost: OpCost) -> int:
        """The number of a cost."""
        low = float(min(cost.low, cost.bytes_min))
        row = (
            float(cost.flops), float(cost.bytes_min), low, float(cost.high), cost.dtype, cost.role,
            cost.shape, cost.strided, cost.m, cost.n, cost.k, cost.batch, cost.attention_length,
            cost.head_dim,
        )  # fmt: skip
        return self._kinds.setdefault(row, len(self._kinds))

    def work(self, kind: int) -> tuple[Any, ...]:
        """FLOPs, bytes and type of the math of a kind: equal for costs that differ in layout only."""
        flops, bytes_min, _, _, dtype, *_ = self._rows()[kind]
        return flops, bytes_min, dtype

    def _rows(self) -> list[tuple[Any, ...]]:
        return list(self._kinds)

    def write(self, store: Store) -> None:
        """Create or replace table `cost_value(kind, ...)`."""
        rows = self._rows()
        columns: dict[str, list[Any]] = {"kind": list(range(len(rows)))}
        for i, name in enumerate(COLUMNS):
            columns[name] = [row[i] for row in rows]
        store.insert_columns("cost_value", columns, {"kind": "INTEGER", **COLUMNS})
