"""A capture trace read apart: the launches that were recorded into graphs, their operators and so their shapes.

While a graph is captured no kernel runs: the trace holds launch calls, the operators around them and, on ROCm, the
kernels' names. A trace of the same work run eagerly serves as well: its kernels ran and have operators.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.costs.assign import assign_costs
from diagnose.costs.op import OpCall, OpCost, parse_call
from diagnose.costs.registry import model_of, needs_step
from diagnose.ingest import load
from diagnose.model.link import link
from diagnose.model.steps import build_steps
from diagnose.store import Store
from diagnose.store.sqlfile import read_sql


@dataclass(slots=True)
class ByStep:
    """An operator whose work depends on the step (attention over a cache): its call and the launches it made."""

    call: OpCall
    at: tuple[int, ...]
    direct: tuple[bool, ...]


@dataclass(slots=True)
class Recorded:
    """One captured graph (or one eager pass): launches in order.

    `names` are kernel names ('' where the trace does not say), `costs` their costs from operator shapes, `nodes`
    graph node ids where recorded, `ops` the names of the operators around each launch, innermost first; `batch` the
    size that the capture's label names.
    """

    names: list[str] = field(default_factory=list)
    costs: list[OpCost | None] = field(default_factory=list)
    nodes: list[int | None] = field(default_factory=list)
    ops: list[tuple[str, ...]] = field(default_factory=list)
    by_step: list[ByStep] = field(default_factory=list)
    batch: int | None = None
    named: bool = True


def read_capture(path: Path, arch: str | None, names_for: list[list[str]] | None = None) -> list[Recorded]:
    """The graphs that a capture trace records, else its steps' kernels. InputError when it cannot be read.

    `names_for`: sequences of kernel names seen in replays, lent to captures that do not name their kernels when
    they have as many launches (whoever uses them checks that they fit the operators).
    """
    with Store() as store:
        load(path, store)
        link(store)
        have = store.names()
        if "captured_launch" not in have:
            store.con.execute(
                """CREATE TABLE captured_launch (process BIGINT, thread BIGINT, start_ns BIGINT, correlation BIGINT,
                kernel VARCHAR)"""
            )
        store.con.execute(read_sql("diagnose.roles", "capture_launches.sql"))
        if not store.count("capture_launch"):
            return _executed(store, arch)
        return _captured(store, arch, names_for or [])


def _executed(store: Store, arch: str | None) -> list[Recorded]:
    """Kernels that ran, by step: an eager pass over the same work."""
    devices = tuple(r[0] for r in store.rows("SELECT DISTINCT device_id FROM kernel WHERE device_id >= 0"))
    if not devices:
        return []
    build_steps(store, None, devices)
    store.con.execute(
        "CREATE OR REPLACE TABLE capture_launch AS SELECT kernel_id AS call_id, op_id, NULL AS kernel FROM kernel LIMIT 0"
    )
    from diagnose.model.link import public_views

    public_views(store)
    assign_costs(store, arch=arch)
    rows = store.rows(
        """SELECT k.step_id * 1000 + k.device_id, k.kernel_id, n.text, k.op_id, k.graph_node_id FROM kernel k
        JOIN name n USING (name_id) WHERE k.device_id >= 0 AND k.step_id IS NOT NULL ORDER BY 1, k.start_ns, k.kernel_id"""
    )
    groups: dict[int, list[tuple[int, str, int | None, int | None]]] = defaultdict(list)
    for group, kernel, name, op, node in rows:
        groups[group].append((kernel, name or "", op, node))
    return _records(store, groups, {})


def _captured(store: Store, arch: str | None, names_for: list[list[str]]) -> list[Recorded]:
    groups: dict[int, list[tuple[int, str, int | None, int | None]]] = defaultdict(list)
    labels: dict[int, str] = {}
    for group, call, name, op, label in store.rows(
        "SELECT grp, call_id, kernel, op_id, label FROM capture_launch ORDER BY grp, start_ns, call_id"
    ):
        groups[group].append((call, name or "", op, None))
        labels[group] = label or labels.get(group, "")
    named = {g: all(name for _, name, _, _ in rows) for g, rows in groups.items()}
    for group, rows in groups.items():
        lent = next((s for s in names_for if len(s) == len(rows)), None) if not named[group] else None
        if lent is not None:
            groups[group] = [
                (call, name, op, node) for (call, _, op, node), name in zip(rows, lent, strict=True)
            ]
    flat = [(call, name, op) for rows in groups.values() for call, name, op, _ in rows]
    texts = sorted({name for _, name, _ in flat})
    store.con.execute(
        """INSERT INTO name SELECT (SELECT coalesce(max(name_id), 0) FROM name) + row_number() OVER (ORDER BY t), t
        FROM (SELECT unnest(?::VARCHAR[]) AS t) WHERE t NOT IN (SELECT text FROM name)""",
        [texts],
    )
    store.insert_columns(
        "capture_kernel",
        {"kernel_id": [c for c, _, _ in flat], "kernel": [n for _, n, _ in flat], "op_id": [o for _, _, o in flat],
         "start_ns": list(range(len(flat)))},
        {"kernel_id": "BIGINT", "kernel": "VARCHAR", "op_id": "BIGINT", "start_ns": "BIGINT"},
    )  # fmt: skip
    # A kernel that never ran has no duration: equal ones, so that several main kernels of one operator share evenly.
    store.con.execute(
        """CREATE OR REPLACE VIEW kernel AS SELECT c.kernel_id, 0 AS source_id, 0 AS device_id, 0::BIGINT AS stream, c.start_ns,
        1000::BIGINT AS dur_ns, n.name_id, NULL::VARCHAR AS grid, NULL::VARCHAR AS block, NULL::BIGINT AS correlation, c.op_id,
        NULL::BIGINT AS launch_id, NULL::INTEGER AS step_id, 'launch' AS link, NULL::INTEGER AS signature_id
        FROM capture_kernel c JOIN (SELECT min(name_id) AS name_id, text FROM name GROUP BY text) n ON n.text = c.kernel"""
    )
    assign_costs(store, arch=arch)
    out = _records(store, groups, labels)
    for record, group in zip(out, groups, strict=True):
        record.named = named[group]
    return out


def _records(
    store: Store, groups: dict[int, list[tuple[int, str, int | None, int | None]]], labels: dict[int, str]
) -> list[Recorded]:
    costs = {
        row[0]: OpCost(row[1], row[2], row[5], row[7], row[6], bytes_low=row[3], bytes_high=row[4], strided=bool(row[8]),
                       m=row[9], n=row[10], k=row[11], batch=row[12], attention_length=row[13], head_dim=row[14])
        for row in store.rows(
            """SELECT kernel_id, flops, bytes_min, bytes_low, bytes_high, dtype, role, shape, strided, m, n, k, batch,
            attention_length, head_dim FROM cost WHERE source = 'shape'"""
        )
    }  # fmt: skip
    ops = {
        row[0]: row[1:]
        for row in store.rows(
            "SELECT o.op_id, o.parent_op_id, n.text, o.signature_id FROM op_base o JOIN name n USING (name_id)"
        )
    }
    signatures = {
        row[0]: row[1:]
        for row in store.rows(
            "SELECT signature_id, input_dims, input_dtypes, input_strides, scalar_args, extra FROM signature"
        )
    }
    out = []
    for group, rows in groups.items():
        record = Recorded(batch=_batch(labels.get(group, "")))
        owners: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        for at, (kernel, name, op, node) in enumerate(rows):
            record.names.append(name)
            record.costs.append(costs.get(kernel))
            record.nodes.append(node)
            chain: list[str] = []
            owner, walk = None, op
            while walk is not None and walk in ops and len(chain) < 100:
                parent, text, _ = ops[walk]
                chain.append(text or "")
                if owner is None and model_of(text or "") is not None:
                    owner = walk
                walk = parent
            record.ops.append(tuple(chain))
            if owner is not None and kernel not in costs and needs_step(ops[owner][1] or ""):
                owners[owner].append((at, owner == op))
        for owner, places in owners.items():
            _, text, signature = ops[owner]
            call = parse_call(text or "", *(signatures.get(signature) or (None,) * 5))
            record.by_step.append(ByStep(call, tuple(a for a, _ in places), tuple(d for _, d in places)))
        out.append(record)
    return out


def _batch(label: str) -> int | None:
    """The batch size of a label such as `capture_32_FULL`."""
    found = re.match(r"capture_(\d+)", label)
    return int(found.group(1)) if found else None
