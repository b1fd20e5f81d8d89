"""Which kernels got slower or faster: each matched pair judged by the noise of its own calls, all of them as one family."""

from dataclasses import dataclass
from statistics import fmean

from diagnose.settle.comparison import KernelChange
from diagnose.settle.judge import Change, judge
from diagnose.settle.kernels import COLLECTIVE, Group, Matched, Pair
from diagnose.settle.noise import between_error, block_length
from diagnose.settle.side import Side
from diagnose.settle.student import welch
from diagnose.settle.trace_metrics import same

SAME_CALLS = 0.02
"""Calls per unit that differ by less are the same number (a window's edges cut some off)."""
MIN_IMPACT = 0.005
"""A kernel that moves the unit of work by less than half a percent is minor: shown, and no part of any conclusion."""


@dataclass(slots=True)
class Scale:
    """How a phase's kernel totals become per-unit values: units of each run, and the unit's whole time in ns.

    `per_call`: calls per unit say nothing (a window's edges), so only their length is judged. `other_work`: the steps are
    of another batch, so only kernels of the same shape are the same work; `other_context`: nor are those that grow with it.
    """

    before: list[float]
    after: list[float]
    unit_ns: float
    per_call: bool
    other_work: bool = False
    other_context: bool = False


def changes(matched: Matched, scales: dict[str, Scale], before: Side, after: Side) -> list[KernelChange]:
    """All pairs of the phases in `scales`, by impact."""
    rows: list[tuple[Pair, Scale, Change, str]] = []
    single = before.single or after.single
    is_same = same(before, after)
    for pair in matched.pairs:
        scale = scales.get(pair.before.phase)
        if scale is not None and not _same_work(pair, scale):
            continue
        if scale is not None and scale.unit_ns:
            change, per = _change(pair, scale, single, is_same)
            rows.append((pair, scale, change, per))
    # Collectives wait for other ranks: how long is no property of the kernel, so they are shown and not judged.
    judged = iter(judge([c for p, _, c, _ in rows if p.before.word != COLLECTIVE]))
    out = []
    for pair, scale, change, per in rows:
        verdict = next(judged) if pair.before.word != COLLECTIVE else None
        out.append(_row(pair, scale, change, per, verdict.verdict if verdict else "inconclusive"))
    out.sort(key=lambda k: -abs(k.impact_ns))
    return out


def _same_work(pair: Pair, scale: Scale) -> bool:
    if scale.other_context and (pair.before.grows or pair.before.word == "attention"):
        return False
    return pair.by == "shape" or not scale.other_work


def _per_unit(group: Group, units: list[float]) -> tuple[float, float]:
    """(calls, time in ns) per unit over all runs."""
    total = sum(units)
    return sum(r.count for r in group.runs) / total, sum(r.time_ns for r in group.runs) / total


def _change(pair: Pair, scale: Scale, single: bool, is_same: bool) -> tuple[Change, str]:
    """The change that is judged: time per call when both sides call alike, else time per unit."""
    calls = _per_unit(pair.before, scale.before)[0], _per_unit(pair.after, scale.after)[0]
    alike = abs(calls[0] - calls[1]) <= SAME_CALLS * max(calls)
    per = "call" if pair.by != "role" and (alike or scale.per_call) else "unit"
    values, errors = [], []
    for group, units in ((pair.before, scale.before), (pair.after, scale.after)):
        each = [
            r.time_ns / (r.count if per == "call" else n)
            for r, n in zip(group.runs, units, strict=True)
            if r.count
        ]
        values.append(each)
        errors.append(between_error(each) if not single else _call_error(group, per, units))
    a, b = fmean(values[0]), fmean(values[1])
    se, freedom = (None, 1.0)
    if errors[0] and errors[1]:
        se, freedom = welch(*errors[0], *errors[1])
    return Change(
        a, b, se, freedom, a, single, same=is_same, why_unknown="too few calls to judge noise by"
    ), per


def _call_error(group: Group, per: str, units: list[float]) -> tuple[float, float] | None:
    n = sum(r.count for r in group.runs)
    known = [r.variance for r in group.runs if r.count]
    if not known or any(v is None for v in known):
        return None
    se = sum(v for v in known if v is not None) ** 0.5 / (n if per == "call" else sum(units))
    return se, max(1.0, n / block_length(n) - 1)


def _row(pair: Pair, scale: Scale, change: Change, per: str, verdict: str) -> KernelChange:
    (calls_a, time_a), (calls_b, time_b) = (
        _per_unit(pair.before, scale.before),
        _per_unit(pair.after, scale.after),
    )
    # In a window the number of calls per unit depends on where its edges fall: the impact is that of the calls' length.
    impact = calls_a * change.difference if per == "call" else time_b - time_a
    noise = 0.0 if change.same and not change.difference else change.half_width()
    half = None if noise is None else max(noise, change.floor) if change.single and noise else noise
    return KernelChange(
        phase=pair.before.phase, role=pair.before.role or pair.before.family, op=pair.after.op or pair.before.op,
        shape=pair.after.shape or pair.before.shape, name_before=pair.before.name, name_after=pair.after.name,
        renamed=pair.renamed, matched_by=pair.by, calls_before=calls_a, calls_after=calls_b,
        call_ns_before=time_a / calls_a if calls_a else 0.0, call_ns_after=time_b / calls_b if calls_b else 0.0, per=per,
        change=change.difference / change.before if change.before else 0.0,
        low=None if half is None or not change.before else (change.difference - half) / change.before,
        high=None if half is None or not change.before else (change.difference + half) / change.before,
        impact_ns=impact, verdict=verdict, minor=abs(impact) < MIN_IMPACT * scale.unit_ns, bound_before=pair.before.bound, bound_after=pair.after.bound,
    )  # fmt: skip
