"""Rows of costs on their way from Python into a table."""

from typing import Any

from diagnose.costs.op import OpCost
from diagnose.store.store import Store

SHAPE_COLUMNS = {
    "m": "BIGINT", "n": "BIGINT", "k": "BIGINT", "batch": "BIGINT", "attention_length": "DOUBLE", "head_dim": "BIGINT",
}  # fmt: skip
COLUMNS = {
    "flops": "DOUBLE", "bytes_min": "DOUBLE", "bytes_low": "DOUBLE", "bytes_high": "DOUBLE", "dtype": "VARCHAR",
    "role": "VARCHAR", "source": "VARCHAR", "shape": "VARCHAR", "strided": "BOOLEAN", **SHAPE_COLUMNS,
}  # fmt: skip
"""The columns of table `cost` after kernel_id, in its order."""


class CostRows:
    """Costs by key, written in one go."""

    def __init__(self) -> None:
        self._keys: list[tuple[Any, ...]] = []
        self._values: dict[str, list[Any]] = {name: [] for name in COLUMNS}

    def add(self, key: tuple[Any, ...], cost: OpCost, source: str) -> None:
        """One cost under a key (one value per key column)."""
        self._keys.append(key)
        values = {
            "flops": float(cost.flops), "bytes_min": float(cost.bytes_min), "bytes_low": float(min(cost.low, cost.bytes_min)),
            "bytes_high": float(cost.high), "dtype": cost.dtype, "role": cost.role, "source": source, "shape": cost.shape,
            "strided": cost.strided,
        }  # fmt: skip
        for name in SHAPE_COLUMNS:
            values[name] = getattr(cost, name)
        for name, value in values.items():
            self._values[name].append(value)

    def write(self, store: Store, table: str, key_types: dict[str, str]) -> None:
        """Create or replace `table` with the key columns and the columns of `cost`."""
        keys = {name: [key[i] for key in self._keys] for i, name in enumerate(key_types)}
        store.insert_columns(table, {**keys, **self._values}, {**key_types, **COLUMNS})
