"""A unit of work for windows in which no engine steps were found: calls of a kernel that both sides repeat.

Two windows hold different amounts of work, so their totals say nothing. A repeated kernel counts the work: time per call
of it is comparable. Of the kernels with a good share of the time, the one is taken for which the other kernels repeat most
alike on both sides, and among equals the longest.
"""

from dataclasses import dataclass

from diagnose.settle.kernels import COLLECTIVE, Group, Matched, Pair
from diagnose.settle.side import Side

MIN_CALLS = 4
"""Fewer calls cut the window too coarsely: its edges alone would move the result by an eighth."""
MIN_SHARE = 0.05
ALIKE = 0.02
"""Candidates whose mismatch differs by less are equally good."""
WINDOW = "other"


@dataclass(slots=True)
class Unit:
    """The kernel whose calls count the work, and how many there are in each run."""

    pair: Pair
    label: str
    before: list[int]
    after: list[int]


def choose(matched: Matched, before: Side, after: Side) -> Unit | None:
    """The unit of two windows, None when they repeat nothing in common."""
    pairs = [p for p in matched.pairs if p.before.phase == WINDOW and p.before.word != COLLECTIVE]
    whole = sum(p.before.time_ns for p in pairs), sum(p.after.time_ns for p in pairs)
    if not all(whole):
        return None
    share = {id(p): p.before.time_ns / whole[0] + p.after.time_ns / whole[1] for p in pairs}
    able = [p for p in pairs if _calls(p) >= MIN_CALLS and share[id(p)] >= 2 * MIN_SHARE and p.by != "role"]
    if not able:
        return None
    scored = [(_mismatch(p, pairs, share), -share[id(p)], at) for at, p in enumerate(able)]
    best = min(score for score, _, _ in scored)
    _, at = min((weight, at) for score, weight, at in scored if score <= best + ALIKE)
    chosen = able[at]
    return Unit(
        chosen,
        f"{_label(chosen.before)} call",
        [r.count for r in chosen.before.runs],
        [r.count for r in chosen.after.runs],
    )


def _calls(p: Pair) -> int:
    return min([r.count for r in p.before.runs] + [r.count for r in p.after.runs])


def _rate(p: Pair, unit: Pair) -> tuple[float, float]:
    """Calls of `p` per call of the unit on both sides."""
    a = sum(r.count for r in p.before.runs) / sum(r.count for r in unit.before.runs)
    b = sum(r.count for r in p.after.runs) / sum(r.count for r in unit.after.runs)
    return a, b


def _mismatch(unit: Pair, pairs: list[Pair], share: dict[int, float]) -> float:
    """Mean relative difference of all kernels' calls per unit, weighted by their time."""
    total = weight = 0.0
    for p in pairs:
        if p.by == "role":
            continue
        a, b = _rate(p, unit)
        total += share[id(p)] * abs(a - b) / max(a, b)
        weight += share[id(p)]
    return total / weight if weight else 0.0


_WORDS = {"attention": "attention", "gemm": "matrix product", "experts": "expert product"}


def _label(g: Group) -> str:
    """Short words for the unit: `flash attention`, `matrix product 8944x1024 . 1024x2816`."""
    word = _WORDS.get(g.word, g.word)
    if g.word == "attention" and "flash" in g.name.lower():
        word = "flash attention"
    return f"{word} {g.shape}" if g.shape and g.word != "attention" else word
