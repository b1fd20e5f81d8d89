"""Kernels with their costs on the way into table `cost`, a bounded number at a time."""

from collections.abc import Iterable

from diagnose.costs.cost_rows import CostValues
from diagnose.costs.op import OpCost
from diagnose.store import Store

_BATCH = 200_000


class Numbers:
    """Numbers of costs in `CostValues`; the same object is looked up once."""

    def __init__(self, values: CostValues) -> None:
        self._values = values
        self._known: dict[int, tuple[OpCost, int]] = {}

    def of(self, cost: OpCost) -> int:
        """The number of a cost."""
        found = self._known.get(id(cost))
        if found is None:  # the cost is kept, so its id stays its own
            found = self._known[id(cost)] = (cost, self._values.kind(cost))
        return found[1]


class Taken:
    """Collects (kernel, kind of cost) pairs; `write` inserts them into `cost` with this source."""

    def __init__(self, store: Store, source: str) -> None:
        self._store, self._source = store, source
        self._kernel: list[int] = []
        self._kind: list[int] = []
        store.con.execute("CREATE OR REPLACE TABLE role_taken (kernel_id BIGINT, kind INTEGER)")

    def add(self, kernels: Iterable[int], kinds: Iterable[int]) -> None:
        """Kernels, and the numbers of their costs in `CostValues`."""
        self._kernel.extend(kernels)
        self._kind.extend(kinds)
        if len(self._kernel) >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        self._store.con.execute(
            "INSERT INTO role_taken SELECT unnest(?::BIGINT[]), unnest(?::INTEGER[])",
            [self._kernel, self._kind],
        )
        self._kernel, self._kind = [], []

    def write(self, values: CostValues) -> None:
        """Insert everything into `cost`, in place of what these kernels had."""
        self._flush()
        values.write(self._store)
        self._store.con.execute("DELETE FROM cost WHERE kernel_id IN (SELECT kernel_id FROM role_taken)")
        self._store.con.execute(
            """INSERT INTO cost BY NAME SELECT t.kernel_id, v.* EXCLUDE (kind), ? AS source
            FROM role_taken t JOIN cost_value v ON v.kind = t.kind""",
            [self._source],
        )
        self.drop()

    def drop(self) -> None:
        """Forget everything."""
        for name in ("role_taken", "cost_value"):
            self._store.con.execute(f"DROP TABLE IF EXISTS {name}")
