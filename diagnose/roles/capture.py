"""Costs for graph replays from a capture trace: the operators that recorded a graph's launches know their shapes.

A replay is matched with a captured graph by node id where both record it, else by the kernels' names in order; a
capture that does not name its kernels (CUDA) is matched launch by launch and believed only when the operators around
the launches are of the kernels' kinds. Position alone never assigns anything.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path

from diagnose.costs.cost_rows import CostValues
from diagnose.costs.families import family
from diagnose.costs.op import OpCost, StepInfo
from diagnose.costs.registry import cost_of
from diagnose.costs.share import share
from diagnose.ingest.detect import detect
from diagnose.roles.capture_read import ByStep, Recorded, read_capture
from diagnose.roles.taken import Numbers, Taken
from diagnose.store import Store

Note = tuple[str, str, int, str]

MIN_MATCHED = 0.95
"""Share of a replay's kernels that must match a captured graph by name and order."""
MIN_OF_KIND = 0.98
MIN_TELLING = 5
"""A capture without names needs this many launches whose operators tell their kind."""
_TELLING = (
    (
        frozenset({"gemm", "gemm_lowp", "gemm_w4a16", "gemv"}),
        re.compile(r"mm|linear|gemm|matmul|einsum|conv", re.IGNORECASE),
    ),
    (frozenset({"moe_gemm"}), re.compile(r"moe|expert|grouped", re.IGNORECASE)),
    (
        frozenset({"attn_prefill", "attn_decode", "mla", "attn_merge"}),
        re.compile(r"att|mha|mla|sdpa|fmha|decode|prefill", re.IGNORECASE),
    ),
    (frozenset({"norm"}), re.compile(r"norm|triton_", re.IGNORECASE)),
    (frozenset({"rope"}), re.compile(r"rot|rope|triton_", re.IGNORECASE)),
    (frozenset({"kv_write"}), re.compile(r"cache|kv", re.IGNORECASE)),
)


@dataclass(slots=True)
class CaptureOutcome:
    """What a capture trace gave. `coverage` is the share of kernel time that got its cost here."""

    coverage: float
    notes: list[Note] = field(default_factory=list)
    replays: int = 0
    matched: int = 0
    kernels: int = 0


@dataclass(slots=True)
class _Replay:
    step_id: int | None
    kernel_id: list[int]
    name: list[str]
    dur_ns: list[int]
    node: list[int | None]
    costed: list[bool]


def assign_from_capture(
    store: Store, capture: Path, *, arch: str | None = None, by_step: bool = True
) -> CaptureOutcome:
    """Insert rows of source `capture` into `cost` for graph-replayed kernels that have none.

    `by_step`: also price operators whose work depends on the step (attention over a cache) by the replay's own step;
    left out where a model's layers are known and say more (windows). InputError when the file cannot be read.
    """
    detect(capture)
    total = store.scalar("SELECT sum(dur_ns) FROM kernel WHERE device_id >= 0") or 0
    replays = _replays(store)
    out = CaptureOutcome(0.0, replays=len(replays))
    if not total or not replays:
        out.notes.append(
            (
                "capture-unused",
                "info",
                0,
                f"{capture.name}: the trace replays no graph without costs; the capture trace was not needed",
            )
        )
        return out
    lent = [list(names) for names in {tuple(r.name): None for r in replays}]
    graphs = read_capture(capture, arch, lent)
    steps = {row[0]: StepInfo(*row[1:]) for row in store.rows(
        "SELECT step_id, phase, sequences, prefill_tokens, decode_tokens, context_tokens, prefill_context_tokens, prefill_pairs FROM step"
    )}  # fmt: skip
    values, taken = CostValues(), Taken(store, "capture")
    kind = Numbers(values)
    found: dict[tuple[tuple[str, ...], int | None], tuple[Recorded, list[int | None]] | None] = {}
    for replay in replays:
        step = steps.get(replay.step_id) if replay.step_id is not None else None
        batch = (step.decode_tokens or 0) + (step.prefill_tokens or 0) if step else None
        key = (tuple(replay.name), batch or None)
        if key not in found:
            found[key] = _choose(replay, graphs, batch or None)
        chosen = found[key]
        if chosen is None:
            continue
        record, at = chosen
        out.matched += 1
        costs = [None if i is None else record.costs[i] for i in at]
        if by_step and step is not None:
            for position, priced in _by_step(record, at, replay, step):
                costs[position] = priced
        for j, cost in enumerate(costs):
            if cost is not None and not replay.costed[j]:
                taken.add((replay.kernel_id[j],), (kind.of(cost),))
                out.kernels += 1
                out.coverage += replay.dur_ns[j] / total
    taken.write(values)
    out.notes.append(_note(capture.name, out, graphs))
    return out


def _note(name: str, out: CaptureOutcome, graphs: Sequence[Recorded]) -> Note:
    if out.matched:
        return ("capture", "info", out.kernels,
                f"{out.matched} of {out.replays} graph replays match {name} by kernel names in order: {out.kernels} kernels take their shapes from it")  # fmt: skip
    why = (
        "it records no launches with operators"
        if not graphs
        else "none of its graphs has the replays' kernels in order, or several with other shapes do"
    )
    return (
        "capture-unmatched",
        "warning",
        out.replays,
        f"{name} does not fit the graph replays: {why}; no shape is taken from it",
    )


def _replays(store: Store) -> list[_Replay]:
    """Graph replays with a kernel that has no cost, kernels in order of time."""
    by_launch: dict[int, _Replay] = {}
    for launch, step, kernel, name, dur, node, costed in store.rows(
        """WITH open AS (
            SELECT DISTINCT launch_id FROM kernel k ANTI JOIN cost c ON c.kernel_id = k.kernel_id
            WHERE k.link = 'graph' AND k.launch_id IS NOT NULL AND k.device_id >= 0
        )
        SELECT k.launch_id, k.step_id, k.kernel_id, n.text, k.dur_ns, k.graph_node_id, c.kernel_id IS NOT NULL
        FROM kernel k JOIN open USING (launch_id) JOIN name n USING (name_id) LEFT JOIN cost c ON c.kernel_id = k.kernel_id
        WHERE k.link = 'graph' ORDER BY k.launch_id, k.start_ns, k.kernel_id"""
    ):
        one = by_launch.setdefault(launch, _Replay(step, [], [], [], [], []))
        one.kernel_id.append(kernel)
        one.name.append(name or "")
        one.dur_ns.append(dur)
        one.node.append(node)
        one.costed.append(costed)
    return list(by_launch.values())


def _choose(
    replay: _Replay, graphs: Sequence[Recorded], batch: int | None
) -> tuple[Recorded, list[int | None]] | None:
    """The captured graph of a replay and each kernel's launch in it; None when none fits, or several with other shapes."""
    fits = []
    for record in graphs:
        at = match(replay.name, replay.node, record)
        if at is not None:
            fits.append((record, at))
    if batch is not None:  # a graph is replayed for the batch it was captured for, or a smaller one
        sized = [f for f in fits if f[0].batch is not None and f[0].batch >= batch]
        if sized:
            least = min(f[0].batch or 0 for f in sized)
            fits = [f for f in sized if f[0].batch == least]
    kinds = {tuple(None if i is None else record.costs[i] for i in at) for record, at in fits}
    return fits[0] if fits and len(kinds) == 1 else None


def match(names: Sequence[str], nodes: Sequence[int | None], record: Recorded) -> list[int | None] | None:
    """For each kernel of a replay its launch in the capture; None when they are not the same work."""
    where = {node: i for i, node in enumerate(record.nodes) if node is not None}
    if where and all(node is not None for node in nodes):
        by_node = [where.get(node) for node in nodes if node is not None]
        same = sum(i is not None and record.names[i] == name for i, name in zip(by_node, names, strict=True))
        if same >= MIN_MATCHED * len(names):
            return [
                i if i is not None and record.names[i] == n else None
                for i, n in zip(by_node, names, strict=True)
            ]
    if not record.named:
        return (
            list(range(len(names))) if len(names) == len(record.ops) and of_kind(names, record.ops) else None
        )
    if list(names) == record.names:
        return list(range(len(names)))
    common = (Counter(names) & Counter(record.names)).total()
    if common < MIN_MATCHED * max(len(names), len(record.names)):
        return None
    found: list[int | None] = [None] * len(names)
    for a, b, size in SequenceMatcher(None, record.names, list(names), autojunk=False).get_matching_blocks():
        for k in range(size):
            found[b + k] = a + k
    hits = sum(i is not None for i in found)
    return found if hits >= MIN_MATCHED * len(names) and hits >= MIN_MATCHED * len(record.names) else None


def of_kind(names: Sequence[str], ops: Sequence[tuple[str, ...]]) -> bool:
    """Whether the operators around launches are of the kernels' kinds: products under products, norms under norms."""
    telling = right = 0
    for name, chain in zip(names, ops, strict=True):
        kind = family(name)
        pattern = next((p for kinds, p in _TELLING if kind in kinds), None)
        if name.startswith("triton_") and chain and any(op.startswith("triton_") for op in chain):
            telling, right = telling + 1, right + (name in chain)
        elif pattern is not None and chain:
            telling, right = telling + 1, right + any(pattern.search(op) for op in chain)
    return telling >= MIN_TELLING and right >= MIN_OF_KIND * telling


def _by_step(
    record: Recorded, at: Sequence[int | None], replay: _Replay, step: StepInfo
) -> list[tuple[int, OpCost]]:
    """Costs of step-dependent operators at the replay's positions.

    One operator with the same arguments that launches other kernels from layer to layer has layers that differ in
    what no argument says (a window): those are left out.
    """
    back = {i: j for j, i in enumerate(at) if i is not None}
    launched: dict[object, set[tuple[str, ...]]] = defaultdict(set)
    for one in record.by_step:
        launched[_same_arguments(one)].add(tuple(record.names[i] for i in one.at))
    out = []
    for one in record.by_step:
        if len(launched[_same_arguments(one)]) > 1 or any(i not in back for i in one.at):
            continue
        names = tuple(record.names[i] for i in one.at)
        cost = cost_of(replace(one.call, kernels=names, step=step))
        if cost is None:
            continue
        times = tuple(float(replay.dur_ns[back[i]]) for i in one.at)
        for i, part in zip(one.at, share(cost, names, one.direct, times), strict=True):
            if part is not None:
                out.append((back[i], part))
    return out


def _same_arguments(one: ByStep) -> object:
    return one.call.name, one.call.dims, one.call.dtypes
