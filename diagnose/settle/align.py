"""The same work on both sides: steps matched by phase, batch, tokens and KV tokens, over any number of runs.

The run with the fewest steps of a phase is the reference; each of its steps takes the nearest steps of every other run,
one to one first, and what is left over joins its nearest partner, so that a longer run adds certainty and no bias.
"""

from dataclasses import dataclass
from math import log
from statistics import fmean

from diagnose.settle.side import Run, Side, Work

SEQUENCES = 0.05
TOKENS = 0.05
"""A step with a twentieth more sequences or tokens is other work."""
CONTEXT = 0.10
"""KV tokens grow by a token a sequence and step; a tenth more of them moves attention by a tenth and the step by less."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Mean time of the steps that stand for one step of the reference, in ns."""

    buckets: dict[str, float]
    roles: dict[str, float]

    @property
    def total(self) -> float:
        """Observed time."""
        return sum(self.buckets.values())

    def part(self, names: tuple[str, ...]) -> float:
        """Time in some buckets."""
        return sum(self.buckets[b] for b in names)


@dataclass(slots=True)
class Aligned:
    """Steps of one phase that all runs share: per run a list of Totals in the reference's order."""

    phase: str
    before: list[list[Totals]]
    after: list[list[Totals]]
    works: list[Work]
    left_before: int = 0
    left_after: int = 0

    @property
    def steps(self) -> int:
        """Steps compared."""
        return len(self.works)


def distance(a: Work, b: Work) -> float | None:
    """How different two steps' work is (0: the same), None when they are not the same work."""
    if a.phase != b.phase or a.first != b.first:
        return None
    total = 0.0
    for x, y, tolerance in (
        (a.sequences, b.sequences, SEQUENCES),
        (a.tokens, b.tokens, TOKENS),
        (a.context, b.context, CONTEXT),
    ):
        if x is None or y is None or x == y:
            continue
        if not x or not y or abs(log(x / y)) > log(1 + tolerance):
            return None
        total += abs(log(x / y))
    return total


def assign(reference: list[Work], other: list[Work]) -> list[list[int]]:
    """For each reference step the indices of its partners in `other`; empty where there is none."""
    pairs = []
    for i, a in enumerate(reference):
        for j, b in enumerate(other):
            d = distance(a, b)
            if d is not None:
                # Among equals the same position in the run comes first: drift in time then cancels.
                pairs.append((d, abs(i / len(reference) - j / len(other)), i, j))
    pairs.sort()
    partners: list[list[int]] = [[] for _ in reference]
    taken: set[int] = set()
    for _, _, i, j in pairs:
        if not partners[i] and j not in taken:
            partners[i].append(j)
            taken.add(j)
    for _, _, i, j in pairs:
        if j not in taken:
            partners[i].append(j)
            taken.add(j)
    return [sorted(p) for p in partners]


def align(phase: str, before: Side, after: Side) -> Aligned | None:
    """Steps of `phase` with a partner in every run of both sides; None when there are none."""
    runs = [*before.runs, *after.runs]
    works = [run.steps_in(phase) for run in runs]
    if not all(works):
        return None
    at = min(range(len(runs)), key=lambda i: len(works[i]))
    reference = works[at]
    partners = [
        [[i] for i in range(len(reference))] if i == at else assign(reference, works[i])
        for i in range(len(runs))
    ]
    kept = [i for i in range(len(reference)) if all(p[i] for p in partners)]
    if not kept:
        return None
    totals = [[_mean([works[r][j] for j in partners[r][i]]) for i in kept] for r in range(len(runs))]
    used = [sum(len(partners[r][i]) for i in kept) for r in range(len(runs))]
    n = len(before.runs)
    return Aligned(
        phase,
        totals[:n],
        totals[n:],
        [reference[i] for i in kept],
        sum(len(w) for w in works[:n]) - sum(used[:n]),
        sum(len(w) for w in works[n:]) - sum(used[n:]),
    )


def _mean(works: list[Work]) -> Totals:
    n = len(works)
    roles = dict.fromkeys(r for w in works for r in w.roles)
    return Totals(
        {b: sum(w.buckets[b] for w in works) / n for b in works[0].buckets},
        {r: sum(w.roles.get(r, 0) for w in works) / n for r in roles},
    )


def ordinary(run: Run, phase: str) -> list[Work]:
    """Steps of a phase without the device's first one, unless it is the only one."""
    steps = run.steps_in(phase)
    return [s for s in steps if not s.first] or steps


def why_other_work(phase: str, before: Run, after: Run) -> tuple[str, str]:
    """(what differs, in words) between two runs' steps of a phase that found no partner: batch, tokens or context."""
    names = (("batch", "sequences"), ("tokens", "tokens"), ("context", "context"))
    for label, name in names:
        values = []
        for run in (before, after):
            known = [float(v) for w in run.steps_in(phase) if (v := getattr(w, name)) is not None]
            values.append(fmean(known) if known else None)
        a, b = values
        tolerance = {"batch": SEQUENCES, "tokens": TOKENS, "context": CONTEXT}[label]
        if a and b and abs(log(a / b)) > log(1 + tolerance):
            unit = {"batch": "sequences", "tokens": "tokens a step", "context": "KV tokens"}[label]
            return label, f"{a:,.0f} {unit} before, {b:,.0f} after"
    return "work", "no step of one side has a partner of the same batch, tokens and context on the other"
