"""What a trace lets one compare: step time by phase with its kernels, idle, collectives and copies; time per unit of a window.

Each metric comes with the noise its own data shows: paired steps of one run a side, or the spread between repeats.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from diagnose.settle.align import Aligned, Totals, ordinary
from diagnose.settle.judge import Change
from diagnose.settle.kernels import COLLECTIVE, Group, Matched, Pair
from diagnose.settle.noise import between_error, mean_error
from diagnose.settle.side import COMMUNICATION, COPY, IDLE, KERNELS, Run, Side, Work
from diagnose.settle.student import welch
from diagnose.settle.unit import Unit

STEP_TIME, KERNEL_TIME, IDLE_TIME = "step time", "kernels", "idle"
COMM_TIME, COPY_TIME, TOKEN_TIME, UNIT_TIME = "communication", "copies", "time per token", "time per call"
PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (KERNEL_TIME, KERNELS),
    (IDLE_TIME, IDLE),
    (COMM_TIME, COMMUNICATION),
    (COPY_TIME, COPY),
)
MIN_PART = 0.005
"""A part below half a percent of the step on both sides is not listed."""


@dataclass(slots=True)
class Candidate:
    """A metric to be judged. Values in `unit`; `change` holds before, after and noise. `headline`: counts for the verdict."""

    metric: str
    phase: str | None
    unit: str
    change: Change
    method: str
    samples: tuple[int, int]
    headline: bool = False
    note: str = ""


def of_steps(found: Aligned, before: Side, after: Side) -> list[Candidate]:
    """Step time and its parts over matched steps, in ms."""
    samples = (found.steps * len(before.runs), found.steps * len(after.runs))
    out = [_candidate(STEP_TIME, found, lambda t: t.total, before, after, samples, None)]
    whole = out[0].change.before
    out[0].headline = True
    for name, buckets in PARTS:
        part = _candidate(name, found, _part(buckets), before, after, samples, whole)
        if max(part.change.before, part.change.after) >= MIN_PART * whole:
            out.append(part)
    return out


def _part(buckets: tuple[str, ...]) -> Callable[[Totals], float]:
    return lambda t: t.part(buckets)


def _candidate(
    metric: str, found: Aligned, value: Callable[[Totals], float], before: Side, after: Side, samples: tuple[int, int], whole: float | None
) -> Candidate:  # fmt: skip
    series = [[value(t) / 1e6 for t in run] for run in (*found.before, *found.after)]
    left, right = series[: len(found.before)], series[len(found.before) :]
    means = [fmean(s) for s in left], [fmean(s) for s in right]
    a, b = fmean(means[0]), fmean(means[1])
    # Idle, collectives and copies matter by what they do to the step; kernels by themselves.
    base = a if whole is None or metric == KERNEL_TIME else whole
    se, freedom, method = noise(left, right, means)
    single = before.single or after.single
    change = Change(a, b, se, freedom, base, single, same=same(before, after), why_unknown="one step a side has no repetition to judge noise by")  # fmt: skip
    return Candidate(metric, found.phase, "ms", change, method, samples)


def noise(
    left: list[list[float]],
    right: list[list[float]],
    means: tuple[list[float], list[float]],
    paired: bool = True,
) -> tuple[float | None, float, str]:
    """(standard error of the difference of means, degrees of freedom, how it was found).

    Repeats on both sides: Welch over run means. Repeats on one side: their spread stands for both. One run a side: the
    paired differences of matched steps (residuals of a common ratio, so that steps of different length weigh in
    proportion), or each side's own steps where they are not matched.
    """
    spread = between_error(means[0]), between_error(means[1])
    if spread[0] and spread[1]:
        return *welch(*spread[0], *spread[1]), "runs"
    for at in (0, 1):
        known = spread[at]
        if known:
            one = known[0] * sqrt(len(means[at]))
            return one * sqrt(1 + 1 / len(means[at])), known[1], "runs"
    if paired:
        ratio = means[1][0] / means[0][0] if means[0][0] else 0.0
        found = mean_error([b - ratio * a for a, b in zip(left[0], right[0], strict=True)])
        return (*found, "steps") if found else (None, 1.0, "single")
    each = mean_error(left[0]), mean_error(right[0])
    if each[0] and each[1]:
        return *welch(*each[0], *each[1]), "steps"
    return None, 1.0, "single"


def same(before: Side, after: Side) -> bool:
    """Whether both sides are one and the same recording, by the hashes of their files or by all of their results."""
    if [run.d for run in before.runs] == [run.d for run in after.runs]:
        return True
    hashes = [[[s.sha256 for s in run.d.source] for run in side.runs] for side in (before, after)]
    known = all(h for side in hashes for run in side for h in run) and all(
        run for side in hashes for run in side
    )
    return known and hashes[0] == hashes[1]


def of_other_work(phase: str, before: Side, after: Side, per_token: bool) -> list[Candidate]:
    """Steps that are not the same work (another batch): step time as each stream feels it, and time per token."""

    def make(metric: str, value: Callable[[Work], float | None], headline: bool) -> Candidate | None:
        series: list[list[list[float]]] = []
        for side in (before, after):
            series.append(
                [[v for w in ordinary(run, phase) if (v := value(w)) is not None] for run in side.runs]
            )
        if not all(s for side in series for s in side):
            return None
        means = [fmean(s) for s in series[0]], [fmean(s) for s in series[1]]
        a, b = fmean(means[0]), fmean(means[1])
        se, freedom, method = noise(series[0], series[1], means, paired=False)
        change = Change(a, b, se, freedom, a, before.single or after.single, why_unknown="one step a side has no repetition to judge noise by")  # fmt: skip
        samples = (sum(map(len, series[0])), sum(map(len, series[1])))
        return Candidate(metric, phase, "ms", change, method, samples, headline)

    out = [make(STEP_TIME, lambda w: w.total / 1e6, True)]
    if per_token:
        out.append(make(TOKEN_TIME, lambda w: w.total / 1e6 / w.tokens if w.tokens else None, True))
    return [c for c in out if c is not None]


def accepted_tokens(found: Aligned, step: Candidate, before: Side, after: Side) -> Candidate | None:
    """Time per accepted token of a sequence-batch's step, where speculation keeps another number of tokens a step."""
    kept = [[run.accepted_per_step(found.phase) for run in side.runs] for side in (before, after)]
    if any(k is None or k <= 0 for side in kept for k in side):
        return None
    a, b = (fmean(k for k in side if k) for side in kept)
    if abs(b / a - 1) < 0.01:
        return None
    c = step.change
    se = None if c.se is None else c.se / b
    change = Change(
        c.before / a,
        c.after / b,
        se,
        c.freedom,
        c.before / a,
        c.single,
        same=c.same,
        why_unknown=c.why_unknown,
    )
    return Candidate(
        TOKEN_TIME, found.phase, "ms", change, step.method, step.samples, True, "per accepted token"
    )


def of_windows(unit: Unit, matched: Matched, before: Side, after: Side) -> list[Candidate]:
    """Time per unit of work of windows without steps, in ms; kernels at the before-side's mix of calls.

    One window a side holds no repetition of what happens between kernels, so that part counts as uncertain by its own
    size; kernels have the noise of their calls, and the window's two edges half a unit each.
    """
    ns = [[_per_unit(run, n) for run, n in zip(side.runs, counts, strict=True)] for side, counts in ((before, unit.before), (after, unit.after))]  # fmt: skip
    single = before.single or after.single
    is_same = same(before, after)
    samples = (sum(unit.before), sum(unit.after))
    kernels = _kernel_index(unit, matched, single, is_same)

    def make(metric: str, value: Callable[[Totals], float], base: float | None, headline: bool) -> Candidate:
        means = [value(t) / 1e6 for t in ns[0]], [value(t) / 1e6 for t in ns[1]]
        a, b = fmean(means[0]), fmean(means[1])
        se, freedom, method = noise([], [], means, paired=False) if not single else (None, 1.0, "window")
        if single:
            rest = max(fmean(t.total - t.part(KERNELS) for t in side) for side in ns) / 1e6
            part = rest if headline else max(a, b)
            edges = a * sqrt((0.5 / samples[0]) ** 2 + (0.5 / samples[1]) ** 2)
            own = kernels.change.se or 0.0 if headline else 0.0
            # Half widths of a 95 % interval are 1.96 standard errors.
            se, freedom = sqrt((part / 1.96) ** 2 + (edges / 1.96) ** 2 + own**2), 1e6
        change = Change(a, b, se, freedom, base if base is not None else a, single, same=is_same)
        return Candidate(metric, None, f"ms per {unit.label}", change, method, samples, headline)

    whole = make(UNIT_TIME, lambda t: t.total, None, True)
    out = [whole, kernels]
    for name, buckets in PARTS[1:]:
        part = make(name, _part(buckets), whole.change.before, False)
        if max(part.change.before, part.change.after) >= MIN_PART * whole.change.before:
            out.append(part)
    return out


def _per_unit(run: Run, count: int) -> Totals:
    buckets = {b: sum(w.buckets[b] for w in run.windows) / count for b in run.windows[0].buckets}
    roles: dict[str, float] = {}
    for w in run.windows:
        for role, time in w.roles.items():
            roles[role] = roles.get(role, 0.0) + time / count
    return Totals(buckets, roles)


def window_totals(unit: Unit, before: Side, after: Side) -> tuple[list[Totals], list[Totals]]:
    """Time per unit of every run."""
    return (
        [_per_unit(r, n) for r, n in zip(before.runs, unit.before, strict=True)],
        [_per_unit(r, n) for r, n in zip(after.runs, unit.after, strict=True)],
    )


def _kernel_index(unit: Unit, matched: Matched, single: bool, is_same: bool) -> Candidate:
    """Kernel time per unit for the same calls on both sides: the before-side's calls per unit times each side's mean."""
    phase = unit.pair.before.phase
    pairs = [
        p for p in matched.pairs if p.before.phase == phase and p.before.word != COLLECTIVE and p.by != "role"
    ]
    other = [
        p for p in matched.pairs if p.before.phase == phase and p.before.word != COLLECTIVE and p.by == "role"
    ]
    alone = [[g for g in side if g.phase == phase and g.word != COLLECTIVE] for side in (matched.only_before, matched.only_after)]  # fmt: skip
    rest = [p.before for p in other] + alone[0], [p.after for p in other] + alone[1]
    runs = [_index_runs(pairs, rest[side], unit, side) for side in (0, 1)]
    means = [fmean(runs[0]), fmean(runs[1])]
    samples = tuple(sum(r.count for p in pairs for r in (p.before, p.after)[side].runs) for side in (0, 1))
    if single:
        variance = sum(_variance(p, unit, side) for p in pairs for side in (0, 1))
        se, freedom, method = sqrt(variance) / 1e6, 30.0, "calls"
    else:
        a, b = between_error(runs[0]), between_error(runs[1])
        assert a and b
        (se, freedom), method = welch(*a, *b), "runs"
    change = Change(means[0], means[1], se, freedom, means[0], single, same=is_same)
    note = "for the same calls on both sides"
    return Candidate(
        KERNEL_TIME, None, f"ms per {unit.label}", change, method, (samples[0], samples[1]), False, note
    )


def _calls_per_unit(p: Pair, unit: Unit) -> float:
    return sum(r.count for r in p.before.runs) / sum(unit.before)


def _index_runs(pairs: list[Pair], rest: list[Group], unit: Unit, side: int) -> list[float]:
    out = []
    for at, units in enumerate((unit.before, unit.after)[side]):
        total = 0.0
        for p in pairs:
            calls = (p.before, p.after)[side].runs[at]
            if calls.count:
                total += _calls_per_unit(p, unit) * calls.mean_ns
        # Work done by other kernels has no call to compare: its whole time counts.
        total += sum(g.runs[at].time_ns for g in rest) / units
        out.append(total / 1e6)
    return out


def _variance(p: Pair, unit: Unit, side: int) -> float:
    calls = (p.before, p.after)[side].runs
    n = sum(r.count for r in calls)
    # One or two calls show no spread: a tenth is what single calls of one kernel differ by.
    variance = sum((0.1 * r.time_ns) ** 2 if (v := r.variance) is None else v for r in calls)
    return variance * (_calls_per_unit(p, unit) / n) ** 2 if n else 0.0
