"""Costs from roles: kernels of graph replays and of operators without shapes, priced by their place in the model.

For every step with kernels that have no cost yet: find the layers, give each kernel its role (`align`), price it
(`price`), and look for anything that speaks against it (`check`). One contradiction anywhere, and no kernel of the
trace gets a cost from its role: the model given is then not the one that ran.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from diagnose.costs.cost_rows import CostValues
from diagnose.costs.op import OpCost
from diagnose.devices import Roofs
from diagnose.roles import check
from diagnose.roles.align import Alignment, align
from diagnose.roles.price import Pricer
from diagnose.roles.read import Lane, collectives, lanes, step_numbers
from diagnose.roles.segment import NoAlignment
from diagnose.roles.taken import Numbers, Taken
from diagnose.roles.work import Work
from diagnose.serving.model_config import ModelConfig
from diagnose.store import Store

Note = tuple[str, str, int, str]
"""(code, severity, count, message), as table `ingest_note` has them."""

LARGE_PRODUCT = 1 << 20
"""Weights of a recorded product above which its shape must be one of the model's (small ones are adapters, heads of
other models)."""
MIN_RECORDED = 0.5
CHECKED_STEPS = 3
LITTLE = 0.02
"""Kernel time without a cost below this share is not worth a warning."""


@dataclass(slots=True)
class RolesOutcome:
    """What role assignment did. `coverage` is the share of kernel time that got its cost here."""

    coverage: float
    notes: list[Note] = field(default_factory=list)
    steps: int = 0
    aligned: int = 0
    kernels: int = 0


class Contradiction(Exception):
    """The trace shows something that the given model cannot be."""


Names = tuple[int, ...]


class _Reader:
    """Alignments by sequence of names: a decode loop repeats the same one."""

    def __init__(self, model: ModelConfig, pp: int, pricer: Pricer, roofs: dict[int, Roofs | None]) -> None:
        self._model, self._pp, self._pricer, self._roofs = model, pp, pricer, roofs
        self._found: dict[Names, Alignment | str] = {}
        self._checked: Counter[Names] = Counter()

    def align(self, lane: Lane) -> Alignment:
        """Alignment of a lane. Raises NoAlignment, the same for the same names."""
        key = tuple(lane.name_id)
        if key not in self._found:
            try:
                self._found[key] = align(lane.name_id, self._pricer.texts, self._model, self._pp)
            except NoAlignment as error:
                self._found[key] = str(error)
        found = self._found[key]
        if isinstance(found, str):
            raise NoAlignment(found)
        return found

    def check(self, lane: Lane, found: Alignment, costs: dict[int, OpCost], rows: int, talks: int) -> None:
        """Look for what speaks against an alignment, in the first few steps of each sequence. Raises Contradiction.

        `talks` counts the step's collectives.
        """
        key = tuple(lane.name_id)
        self._checked[key] += 1
        if self._checked[key] > CHECKED_STEPS:
            return
        work, placed = self._pricer.work, self._pricer.placed(lane, found, costs)
        why = (
            check.collectives(talks, work, found.layers, self._pp)
            or check.shapes(placed, work)
            or check.tiles(placed, work, rows)
            or check.formats(placed, work)
            or check.names(placed, work)
            or check.windows(placed, work)
            or check.rates(placed, self._roofs.get(lane.device_id))
        )
        if why is not None:
            raise Contradiction(why)


def assign_roles(
    store: Store,
    model: ModelConfig,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    roofs: dict[int, Roofs | None] | None = None,
) -> RolesOutcome:
    """Insert rows of source `role` into `cost` for kernels that have none and whose place in the model is sure.

    `roofs` (by device) let impossible rates speak against an alignment. Reads `kernel`, `name`, `cost` and `step`.
    UsageError when `tp` does not split the model's heads.
    """
    model.check_tp(tp)
    if model.quant is not None and not model.quant.rules:
        text = f"how {model.name} stores its weights ({model.quant.method}) is not known here: no kernel is costed by its place in it"
        return RolesOutcome(0.0, [("roles-abstained", "warning", 0, text)])
    total = store.scalar("SELECT sum(dur_ns) FROM kernel WHERE device_id >= 0") or 0
    if not total:
        return RolesOutcome(0.0)
    texts = {
        n: t or ""
        for n, t in store.rows("SELECT name_id, text FROM name WHERE name_id IN (SELECT name_id FROM kernel)")
    }
    values, taken = CostValues(), Taken(store, "role")
    pricer, kind = Pricer(Work(model, tp, ep), texts), Numbers(values)
    reader = _Reader(model, pp, pricer, roofs or {})
    outcome, failed = RolesOutcome(0.0), _Failures()
    try:
        _recorded(store, pricer.work)
        numbers, talks = step_numbers(store), collectives(store)
        for lane in lanes(store):
            outcome.steps += 1
            try:
                found = reader.align(lane)
                step = pricer.rows(lane, found, numbers[lane.step_id])
                costs = pricer.price(lane, found, step)
                reader.check(lane, found, costs, step.rows or 0, talks.get(lane.step_id, 0))
            except NoAlignment as error:
                failed.add(
                    str(error),
                    sum(ns for ns, known in zip(lane.dur_ns, lane.costed, strict=True) if not known),
                )
                continue
            outcome.aligned += 1
            fresh = [at for at in costs if not lane.costed[at]]
            better = _windowed(lane, found, costs, model)
            taken.add(
                [lane.kernel_id[at] for at in fresh + better],
                [kind.of(costs[at]) for at in fresh + better],
            )
            outcome.coverage += sum(lane.dur_ns[at] for at in fresh) / total
            outcome.kernels += len(fresh)
            if outcome.aligned == 1:
                outcome.notes = [_how(found, model, tp, ep), *_assumed(model)]
    except Contradiction as error:
        taken.drop()
        return RolesOutcome(0.0, [("roles-contradicted", "warning", outcome.steps,
            f"--model {model.name} does not fit the trace: {error}; no kernel got a cost from its place in the model")])  # fmt: skip
    taken.write(values)
    outcome.notes += failed.notes(model.name, outcome.steps, total)
    return outcome


def _windowed(lane: Lane, found: Alignment, costs: dict[int, OpCost], model: ModelConfig) -> list[int]:
    """Attention of windowed layers that was charged the step's whole context: its operator does not say the window."""
    return [
        at
        for at in costs
        if lane.by_step[at]
        and found.roles[at].role == "attention"
        and model.plan[found.roles[at].layer].window is not None
    ]


def _recorded(store: Store, work: Work) -> None:
    """Large products with recorded shapes must mostly be the model's own. Raises Contradiction."""
    mine: set[frozenset[int]] = set()
    for i in range(work.model.layers):
        for role in {t.role for t in work.model.tensors if t.layer == i and t.k > 1}:
            if (g := work.gemm(i, role)) is not None:
                mine.add(frozenset((g.n, g.k)))
        mine |= {frozenset((g.n, g.k)) for g in work.model.layer_gemms(i, work.tp, work.ep)}
    head = work.model.head_gemm(work.tp)
    mine |= {frozenset((head.n, head.k)), frozenset((work.model.vocab, work.model.hidden))}
    fits = wrong = 0
    example = ""
    for m, n, k, ns in store.rows(
        """SELECT c.m, c.n, c.k, sum(k.dur_ns)::BIGINT FROM cost c JOIN kernel k USING (kernel_id)
        WHERE c.source = 'shape' AND c.role = 'gemm' AND coalesce(c.batch, 1) = 1 AND c.n * c.k >= ? AND k.device_id >= 0
        GROUP BY ALL ORDER BY 4 DESC, 1, 2, 3""",
        LARGE_PRODUCT,
    ):
        # Columns may be rows where the operator multiplies the transposed way round.
        if frozenset((n, k)) in mine or frozenset((m, k)) in mine:
            fits += ns
        else:
            wrong += ns
            example = example or f"{k} -> {n}"
    if wrong and fits < MIN_RECORDED * (fits + wrong):
        raise Contradiction(
            f"recorded products such as {example} are none of its projections over {work.tp} rank(s)"
        )


class _Failures:
    """Reasons why steps were not aligned, with their kernel time."""

    def __init__(self) -> None:
        self._steps: Counter[str] = Counter()
        self._ns: dict[str, int] = defaultdict(int)

    def add(self, why: str, ns: int) -> None:
        """One step, with the kernel time in it that has no cost."""
        self._steps[why] += 1
        self._ns[why] += ns

    def notes(self, model: str, steps: int, total: int) -> list[Note]:
        """The three reasons with most time; a warning only where that time matters."""
        severity = "warning" if sum(self._ns.values()) > LITTLE * total else "info"
        top = sorted(self._steps, key=lambda w: (-self._ns[w], w))[:3]
        return [
            ("roles-abstained", severity, self._steps[w],
             f"{self._steps[w]} of {steps} steps that hold kernels without a cost do not fit the layers of {model}: {w}")
            for w in top
        ]  # fmt: skip


def _how(found: Alignment, model: ModelConfig, tp: int, ep: int) -> Note:
    ranks = f", tp {tp}" * (tp > 1) + f", ep {ep}" * (ep > 1)
    period = " or ".join(str(p) for p in found.period)
    return ("roles", "info", found.layers,
            f"kernels without recorded shapes are costed by their place in {model.name}{ranks}: {found.layers} layers of "
            f"{period} kernels repeat by name and fit its projections; that the trace ran this model is your word where no width is recorded")  # fmt: skip


def _assumed(model: ModelConfig) -> list[Note]:
    """Assumptions behind the costs."""
    out: list[Note] = []
    if count := sum(p.window is not None for p in model.plan):
        text = (
            f"{count} of {model.layers} layers attend within a window: they are charged min(window, mean context) keys a sequence; "
            "the interval holds other spreads"
        )
        out.append(("roles-windows", "info", count, text))
    if model.experts:
        text = (
            f"expert weights are counted for the experts that uniform routing of {model.experts_per_token} in {model.experts} would touch; "
            "skewed routing touches fewer"
        )
        out.append(("roles-experts", "info", model.experts, text))
    return out
