"""Writes table `cost`: what each kernel computed and moved, from the operator that launched it.

The innermost operator of a kernel's ancestry whose model gives a cost owns the kernel; kernels of one call
share its cost by role. Work is done once per distinct (operator, arguments, kernel names) and joined back, so
that a million kernels cost little. Kernels without an operator take the cost of identical linked kernels
(`same_kernel`).
"""

from dataclasses import replace
from typing import Any

from diagnose.costs.cost_rows import CostValues
from diagnose.costs.cpu import assign_cpu
from diagnose.costs.op import OpCall, StepInfo, parse_call
from diagnose.costs.registry import cost_of, model_of, needs_step
from diagnose.costs.same_kernel import assign_same_kernel
from diagnose.costs.share import share
from diagnose.costs.untyped import with_types
from diagnose.store.schema import BY_NAME
from diagnose.store.sqlfile import read_sql
from diagnose.store.store import Store

ROUNDS = 6
"""How many modelled ancestors are tried for one kernel (a linear in a fused operator in a compiled region)."""
LEVELS = 100
"""Unmodelled operators between a kernel and a modelled one (nested compiled regions): a guard against bad nesting."""


def assign_costs(store: Store, *, arch: str | None = None, element: str | None = None) -> None:
    """Fill table `cost` for every kernel, copy and memset whose work is known.

    Reads `kernel`, `op`, `signature`, `name`, `gpu_copy`, `gpu_memset` and, where present, `step`. `arch` is
    the device's architecture, None when unknown. `element` is the model's type ('bf16') for operators whose
    element types were not recorded and whose kernels do not say. Kernels without a defensible cost get no row.
    """
    store.con.execute("DROP TABLE IF EXISTS cost")
    store.con.execute(BY_NAME["cost"].ddl())
    have = store.names()
    for name in ("op", "signature", "gpu_copy", "gpu_memset", "step"):
        if name not in have:
            store.con.execute(BY_NAME[name].ddl())
    # The public view of operators joins their arguments; only the keys are needed here.
    source = "op_base" if "op_base" in have else "op"
    store.con.execute(
        f"""CREATE OR REPLACE TEMP VIEW cost_op AS
        SELECT op_id, parent_op_id, name_id, signature_id FROM {source}"""
    )
    calls, values = _Calls(store), CostValues()
    _mark_modelled(store)
    store.con.execute(read_sql("diagnose.costs", "todo.sql"))
    for _ in range(ROUNDS):
        if not _round(store, calls, values, element):
            break
    _collectives(store, calls, values)
    assign_same_kernel(store, values)
    values.write(store)
    store.con.execute(read_sql("diagnose.costs", "write_costs.sql"))
    assign_cpu(store, calls.call)
    store.con.execute(read_sql("diagnose.costs", "recorded_bytes.sql"))
    store.con.execute("DROP VIEW cost_op")
    for name in ("cost_model_name", "cost_todo", "cost_placed", "cost_found", "cost_taken", "cost_value"):
        store.con.execute(f"DROP TABLE IF EXISTS {name}")


class _Calls:
    """Operator calls by (operator name, signature): each is parsed once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: dict[int, str] = dict(store.rows("SELECT name_id, text FROM name"))
        self._calls: dict[tuple[int, int | None], OpCall] = {}
        self._steps: dict[int, StepInfo] = {}
        self._signatures: dict[int, tuple[Any, ...]] = {
            row[0]: row[1:]
            for row in store.rows(
                """SELECT signature_id, input_dims, input_dtypes, input_strides, scalar_args, extra
                FROM signature"""
            )
        }
        for step_id, *numbers in store.rows(
            """SELECT step_id, phase, sequences, prefill_tokens, decode_tokens, context_tokens,
            prefill_context_tokens,
            prefill_pairs FROM step"""
        ):
            self._steps[step_id] = StepInfo(*numbers)

    def name(self, name_id: int) -> str:
        """Text of a name."""
        return self._names.get(name_id) or ""

    def recorded(self, name: str, signature_id: int | None) -> OpCall:
        """A call of this name with the arguments of a signature (none when nothing was recorded)."""
        columns = self._signatures.get(signature_id) if signature_id is not None else None
        return parse_call(name, *(columns or (None, None)))

    def call(self, name_id: int, signature_id: int | None) -> OpCall:
        """The parsed call of an operator name and a signature."""
        key = (name_id, signature_id)
        if key not in self._calls:
            self._calls[key] = self.recorded(self.name(name_id), signature_id)
        return self._calls[key]

    def step(self, step_id: int | None) -> StepInfo | None:
        """Numbers of a step."""
        return self._steps.get(step_id) if step_id is not None else None


def _mark_modelled(store: Store) -> None:
    rows = store.rows(
        "SELECT DISTINCT name_id, text FROM name WHERE name_id IN (SELECT DISTINCT name_id FROM cost_op)"
    )
    known = [(name_id, text) for name_id, text in rows if text and model_of(text) is not None]
    store.insert_columns(
        "cost_model_name",
        {"name_id": [n for n, _ in known], "by_step": [needs_step(t) for _, t in known]},
        {"name_id": "INTEGER", "by_step": "BOOLEAN"},
    )


def _round(store: Store, calls: _Calls, values: CostValues, element: str | None) -> bool:
    """Try the nearest modelled ancestor of every kernel still without a cost; False when none is left to
    try."""
    if not store.scalar("SELECT count(*) FROM cost_todo"):
        return False
    store.con.execute(read_sql("diagnose.costs", "owners.sql"))
    # A loop, not a recursive query: its planner would build a table of all operators at every level.
    for _ in range(LEVELS):
        if not store.scalar("SELECT count(*) FROM cost_above WHERE NOT modelled"):
            break
        store.con.execute(read_sql("diagnose.costs", "above.sql"))
    store.con.execute(read_sql("diagnose.costs", "combos.sql"))
    combos = store.rows(
        """SELECT combo_id, op_name_id, signature_id, step_id, kernel_names, direct, mean_ns
        FROM cost_combo ORDER BY ALL"""
    )
    found: dict[str, list[Any]] = {"combo_id": [], "position": [], "kind": [], "source": []}
    for combo_id, op_name_id, signature_id, step_id, names, direct, mean_ns in combos:
        kernels = tuple(calls.name(n) for n in names)
        call = with_types(replace(calls.call(op_name_id, signature_id), kernels=kernels), element)
        cost, source = cost_of(call), "shape"
        if cost is None and step_id is not None:
            cost, source = cost_of(replace(call, step=calls.step(step_id))), "step"
        if cost is None:
            continue
        for position, one in enumerate(share(cost, kernels, tuple(direct), tuple(mean_ns)), start=1):
            if one is not None:
                for key, value in zip(found, (combo_id, position, values.kind(one), source), strict=True):
                    found[key].append(value)
    types = {"combo_id": "UBIGINT", "position": "BIGINT", "kind": "INTEGER", "source": "VARCHAR"}
    store.insert_columns("cost_found", found, types)
    store.con.execute(read_sql("diagnose.costs", "take.sql"))
    return bool(combos)


def _collectives(store: Store, calls: _Calls, values: CostValues) -> None:
    """Collectives record their sizes on the device event itself: they need no operator."""
    if not store.rows(
        """SELECT 1 FROM information_schema.columns WHERE table_name = 'kernel' AND column_name = 'signature_id'"""
    ):
        return
    found: dict[str, list[Any]] = {"signature_id": [], "kind": []}
    for (signature_id,) in store.rows(
        """SELECT DISTINCT k.signature_id FROM kernel k ANTI JOIN cost_taken t ON t.kernel_id = k.kernel_id
        WHERE k.signature_id IS NOT NULL AND k.device_id <> -1"""
    ):
        cost = cost_of(calls.recorded("record_param_comms", signature_id))
        if cost is not None:
            found["signature_id"].append(signature_id)
            found["kind"].append(values.kind(cost))
    store.insert_columns("cost_found", found, {"signature_id": "INTEGER", "kind": "INTEGER"})
    store.con.execute(
        """INSERT INTO cost_taken
        SELECT k.kernel_id, f.kind, 'shape' FROM kernel k JOIN cost_found f ON f.signature_id = k.signature_id
        ANTI JOIN cost_taken t ON t.kernel_id = k.kernel_id
        WHERE k.device_id <> -1"""
    )
