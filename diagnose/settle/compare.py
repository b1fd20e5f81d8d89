"""Two sides to one comparison: the same work matched, metrics judged together, the change split, causes named."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from diagnose import __version__
from diagnose.contract import PHASES, Diagnosis
from diagnose.errors import UsageError
from diagnose.settle import batched, load_points, quantized, split, unit
from diagnose.settle.align import CONTEXT, Aligned, align, ordinary, why_other_work
from diagnose.settle.bets import outcomes
from diagnose.settle.comparable import (
    device_label,
    differences,
    far,
    model_name,
    precision,
    setting,
)
from diagnose.settle.comparison import (
    SCHEMA,
    Comparison,
    Delta,
    Difference,
    LimitChange,
    MetricChange,
    OverallVerdict,
    SideInfo,
    Unmatched,
)
from diagnose.settle.evals import quality
from diagnose.settle.judge import HEADLINE, judge
from diagnose.settle.kernel_changes import Scale, changes
from diagnose.settle.kernels import Group, Matched, match
from diagnose.settle.same_work import layers, same_kernels
from diagnose.settle.serving_metrics import serving_metrics
from diagnose.settle.side import Run, Side, sides
from diagnose.settle.story import tell
from diagnose.settle.trace_metrics import (
    KERNEL_TIME,
    Candidate,
    accepted_tokens,
    of_other_work,
    of_steps,
    of_windows,
)

MAX_UNMATCHED = 40


class _Work:
    """What the traces of both sides share."""

    def __init__(self, before: Side, after: Side) -> None:
        self.before, self.after = before, after
        self.matched: Matched = match(before, after)
        self.candidates: list[Candidate] = []
        self.deltas: list[Delta] = []
        self.scales: dict[str, Scale] = {}
        self.differences: list[Difference] = []
        self.unmatched: list[Unmatched] = []
        self.notes: list[str] = []
        shared = [p for p in PHASES if all(r.steps_in(p) for s in (before, after) for r in s.runs)]
        for phase in shared:
            self._phase(phase)
        if not shared and all(r.windows for s in (before, after) for r in s.runs):
            self._windows()
        self._alone(shared)
        self._kernels_alone()

    def _phase(self, phase: str) -> None:
        found = align(phase, self.before, self.after)
        if found is not None:
            self._matched_steps(phase, found)
            return
        what, text = why_other_work(phase, self.before.first, self.after.first)
        per_token = what in ("batch", "tokens")
        made = of_other_work(phase, self.before, self.after, per_token)
        self.candidates += made
        a, _, b = text.partition(" before, ")
        withheld = [] if per_token else [c.metric for c in made]
        note = (
            "no step has a partner of the same work: step time is what a stream feels, time per token what the device delivers"
            if per_token
            else "no step has a partner of the same work, so step times say nothing of the engine"
        )
        self.differences.append(
            Difference(
                what=f"{phase} {what} of every step",
                before=a,
                after=b.removesuffix(" after"),
                withholds=withheld,
                note=note,
            )
        )
        delta = split.of_tokens(phase, self.before, self.after) if per_token else None
        if delta is not None:
            self.deltas.append(delta)
        # Kernels of the same shape are the same work, whatever the rest of the step was.
        mean = fmean(w.total for r in self.before.runs for w in ordinary(r, phase))
        self._scale(phase, mean, other_work=True)

    def _scale(self, phase: str, unit_ns: float, other_work: bool = False) -> None:
        counts = [[r.step_count(phase) for r in s.runs] for s in (self.before, self.after)]
        contexts = [
            [w.context for r in s.runs for w in r.steps_in(phase) if w.context]
            for s in (self.before, self.after)
        ]
        other = bool(contexts[0] and contexts[1]) and far(fmean(contexts[0]), fmean(contexts[1]), CONTEXT)
        self.scales[phase] = Scale(counts[0], counts[1], unit_ns, other_work, other_work, other)
        self.differences += layers(self.matched, phase, counts)
        if all(
            w.tokens is None for s in (self.before, self.after) for r in s.runs for w in r.steps_in(phase)
        ):
            self.differences += same_kernels(self.matched, phase, counts)

    def _matched_steps(self, phase: str, found: Aligned) -> None:
        made = of_steps(found, self.before, self.after)
        token = accepted_tokens(found, made[0], self.before, self.after)
        if token is not None:
            # With speculation a step is worth what it keeps: the step alone decides nothing.
            made[0].headline = False
            made.append(token)
        self.candidates += made
        delta = split.of_steps(found, self.matched, self.before, self.after)
        self.deltas.append(delta)
        self._scale(phase, delta.before_ns)
        for side, left in (("before", found.left_before), ("after", found.left_after)):
            if left:
                runs = (self.before if side == "before" else self.after).runs
                all_ = sum(len(r.steps_in(phase)) for r in runs)
                detail = (
                    f"{left} of {all_} {phase} steps have no partner of the same batch, tokens and context"
                )
                self.unmatched.append(Unmatched(side=side, kind="steps", name=phase, detail=detail))
        for s in (self.before, self.after):
            for run in s.runs:
                listed = len(run.d.steps)
                if run.d.steps_total > listed:
                    self.notes.append(
                        f"the first {listed} of {run.d.steps_total:,} steps of a trace are compared step by step"
                    )

    def _windows(self) -> None:
        found = unit.choose(self.matched, self.before, self.after)
        if found is None:
            self.notes.append(
                "neither side has engine steps, and no kernel repeats on both often enough to count the work by: the windows "
                "are not compared; capture with engine annotations, or name your own ranges with --step-annotation"
            )
            return
        self.candidates += of_windows(found, self.matched, self.before, self.after)
        delta = split.of_windows(found, self.matched, self.before, self.after)
        self.deltas.append(delta)
        counts = [float(n) for n in found.before], [float(n) for n in found.after]
        self.scales[found.pair.before.phase] = Scale(*counts, delta.before_ns, True)
        self.differences += same_kernels(self.matched, found.pair.before.phase, [*counts])
        self.notes.append(
            f"no engine steps on either side: time is counted per {found.label} ({sum(found.before):,} before, {sum(found.after):,} after)"
        )

    def _alone(self, shared: Sequence[str]) -> None:
        """Phases that only one side has."""
        for side, mine, other in (("before", self.before, self.after), ("after", self.after, self.before)):
            for phase in PHASES:
                have = [r for r in mine.runs if r.steps_in(phase)]
                if have and phase not in shared and not all(r.steps_in(phase) for r in other.runs):
                    works = [w for r in have for w in ordinary(r, phase)]
                    mean = sum(w.total for w in works) / len(works)
                    detail = f"{len(works)} steps, none on the other side"
                    self.unmatched.append(
                        Unmatched(side=side, kind="phase", name=phase, detail=detail, ns_per_unit=mean)
                    )

    def _kernels_alone(self) -> None:
        """Kernels without a partner, longest first."""
        rows = []
        for side, groups in (("before", self.matched.only_before), ("after", self.matched.only_after)):
            for group in groups:
                scale = self.scales.get(group.phase)
                if scale is None:
                    continue
                units = sum(scale.before if side == "before" else scale.after)
                rows.append(
                    Unmatched(
                        side=side,
                        kind="kernel",
                        name=group.name,
                        detail=_work_of(group),
                        ns_per_unit=group.time_ns / units,
                        phase=group.phase,
                    )
                )
        rows.sort(key=lambda u: -(u.ns_per_unit or 0))
        if len(rows) > MAX_UNMATCHED:
            self.notes.append(
                f"the {MAX_UNMATCHED} longest of {len(rows)} kernels without a partner are listed"
            )
        self.unmatched += rows[:MAX_UNMATCHED]


def _work_of(group: Group) -> str:
    parts = [group.role or group.family, group.op, group.shape]
    return " · ".join(p for p in parts if p)


def compare(
    before: list[Diagnosis],
    after: list[Diagnosis],
    evals: tuple[dict[str, Any], dict[str, Any]] | None = None,
) -> Comparison:
    """Compare finished results; several on a side are repeats of each other.

    `evals`: (before, after) results of lm-evaluation-harness. UsageError when a side is empty or nothing is comparable.
    """
    if not before or not after:
        raise UsageError(
            "compare needs a result on both sides; give BEFORE and AFTER, or --before A B --after C D"
        )
    left, right = sides(before, after)
    work = _Work(left, right)
    sweep = load_points.points(left, right)
    served, points = load_points.over_points(sweep) if sweep else (serving_metrics(left, right), [])
    candidates = work.candidates + served
    found = work.differences + (differences(sweep[0][1], sweep[0][2]) if sweep else differences(left, right))
    named = {d.what.removesuffix(" of every step") for d in found if d.what.endswith(" of every step")}
    found = sorted((d for d in found if d.what not in named), key=lambda d: not d.withholds)
    metrics = _judged(candidates, found)
    for m in metrics if points else []:
        mine = [p["verdict"] for p in points if p["metric"] == m.metric]
        m.points = {v: mine.count(v) for v in ("improved", "regressed", "no_change", "inconclusive")}
    kernels = changes(work.matched, work.scales, left, right)
    if any(KERNEL_TIME in d.withholds for d in found):
        for k in kernels:
            if k.matched_by != "shape":
                k.verdict = "withheld"
    deltas = sorted(work.deltas, key=lambda d: -d.before_ns * d.units_before)
    if not deltas:
        request = split.of_requests(left.first, right.first)
        deltas = [request] if request else []
    result = Comparison(
        schema=SCHEMA,
        tool_version=__version__,
        before=_info(left, before[0]),
        after=_info(right, after[0]),
        comparability=found,
        verdict=OverallVerdict(overall="inconclusive", summary=""),
        metrics=metrics,
        delta=deltas[0] if deltas else None,
        deltas=deltas[1:],
        unmatched=work.unmatched,
        kernels=kernels,
        limits=_limits(left.first, right.first),
        quantization=quantized.view(left, right, work.matched, work.scales, metrics, found, work.unmatched),
        batching=batched.view(left, right, work.matched, metrics),
        points=points,
        notes=list(dict.fromkeys(work.notes)),
    )
    if evals is not None:
        result.quality = quality(*evals)
        if result.quantization is not None:
            result.quantization["quality"] = result.quality["message"]
    result.hypotheses = outcomes(result, left, right)
    result.verdict = tell(result, left, right)
    return result


def _judged(candidates: list[Candidate], found: list[Difference]) -> list[MetricChange]:
    """Verdicts of all metrics as one family; those that a difference makes unsound are withheld."""
    reasons: dict[str, str] = {}
    for d in found:
        for metric in d.withholds:
            reasons.setdefault(
                metric, f"{d.what}: {d.before} before, {d.after} after" + (f"; {d.note}" if d.note else "")
            )
    verdicts = judge([replace(c.change, weight=HEADLINE if c.headline else 1.0) for c in candidates])
    out = []
    for c, v in zip(candidates, verdicts, strict=True):
        a = c.change.before
        # No time or rate falls by more than all of it.
        low_abs = None if v.low is None else max(v.low, -a)
        withheld = reasons.get(c.metric) if not c.change.same else None
        out.append(
            MetricChange(
                metric=c.metric, phase=c.phase, unit=c.unit, before=a, after=c.change.after,
                change=c.change.difference / a if a else None,
                low=low_abs / a if a and low_abs is not None else None, high=v.high / a if a and v.high is not None else None,
                verdict="withheld" if withheld else v.verdict, change_abs=c.change.difference, low_abs=low_abs, high_abs=v.high,
                better="higher" if c.change.higher_is_better else "lower", noise=c.method, samples=list(c.samples), headline=c.headline,
                reason=withheld or v.reason or None, note=c.note or None,
            )
        )  # fmt: skip
    return out


def _info(side: Side, given: Diagnosis) -> SideInfo:
    """Facts of a side; `given` is its first result as given, which may hold several ranks."""
    d = side.first.d
    ranks = given.ranks if isinstance(given.ranks, list) else []
    frameworks = [s.framework for s in d.source if s.framework]
    steps: dict[str, int] = {}
    for run in side.runs:
        for phase in run.phases():
            steps[phase] = steps.get(phase, 0) + len(run.steps_in(phase))
    windows = sum(w.total for w in side.first.windows)
    return SideInfo(
        runs=len(side.runs),
        source=[list(run.d.source) for run in side.runs],
        device=device_label(d),
        devices=len(ranks) or len(d.devices),
        model=model_name(d),
        engine=", ".join(dict.fromkeys(frameworks))
        or " ".join(filter(None, (setting(d, "engine"), setting(d, "engine_version"))))
        or None,
        precision=precision(d),
        steps=steps,
        window_ns=windows or None,
    )


def _limits(before: Run, after: Run) -> list[LimitChange]:
    out = []
    for phase in before.d.phases:
        other = next((p for p in after.d.phases if p.phase == phase.phase), None)
        if other is not None:
            out.append(
                LimitChange(phase=phase.phase, objective="step_time", before=phase.limit, after=other.limit)
            )
    a, b = before.d, after.d
    if a.objective != "step_time" and a.objective == b.objective:
        out.append(
            LimitChange(phase=None, objective=a.objective, before=a.verdict.limit, after=b.verdict.limit)
        )
    return out
