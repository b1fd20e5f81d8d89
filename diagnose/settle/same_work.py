"""Whether two sides run the same work at all, from their kernels: layers, and how much of the time is the same."""

from diagnose.settle.comparable import TRACE, far
from diagnose.settle.comparison import Difference
from diagnose.settle.kernels import COLLECTIVE, Matched, Pair
from diagnose.settle.serving_metrics import SERVING


def layers(matched: Matched, phase: str, units: list[list[float]]) -> list[Difference]:
    """Another number of layers: attention and products are called in another number a step, by the same factor.

    A split or fused kernel changes the calls of one of them, so it is no reason to withhold anything.
    """
    calls = []
    for word in ("attention", "gemm"):
        row = []
        for at, alone in enumerate((matched.only_before, matched.only_after)):
            groups = [(p.before, p.after)[at] for p in matched.pairs] + alone
            n = sum(r.count for g in groups if g.phase == phase and g.word == word for r in g.runs)
            row.append(n / sum(units[at]))
        calls.append(row)
    (a, b), (c, d) = calls
    if not all((a, b, c, d)) or not far(a, b, 0.1) or far(b / a, d / c, 0.15):
        return []
    note = "attention and products by the same factor: another number of layers, so another model"
    return [
        Difference(
            what=f"attention calls a {phase} step",
            before=f"{a:.3g}",
            after=f"{b:.3g}",
            withholds=[*TRACE, *SERVING],
            note=note,
        )
    ]


MIN_SAME = 0.5
"""Where nothing says what the steps were asked to do, half of the kernel time must be the same work on both sides."""


def same_kernels(matched: Matched, phase: str, units: list[list[float]]) -> list[Difference]:
    """Too little of the kernel time is the same work: other inputs or another model, although nothing names it.

    Same is what matches by shape or name, and what another kernel does as often where no shape says otherwise.
    """
    shares = []
    for at, alone in enumerate((matched.only_before, matched.only_after)):
        mine = [
            (p, (p.before, p.after)[at])
            for p in matched.pairs
            if p.before.phase == phase and p.before.word != COLLECTIVE
        ]
        whole = sum(g.time_ns for _, g in mine) + sum(
            g.time_ns for g in alone if g.phase == phase and g.word != COLLECTIVE
        )
        same = sum(g.time_ns for p, g in mine if _same_work(p, units))
        shares.append(same / whole if whole else 1.0)
    if min(shares) >= MIN_SAME:
        return []
    note = "by shape or name; the two sides do not run the same work"
    x, y = (f"{100 * share:.0f} %" for share in shares)
    what = "kernel time with the same work on the other side"
    return [Difference(what=what, before=x, after=y, withholds=list(TRACE), note=note)]


def _same_work(p: Pair, units: list[list[float]]) -> bool:
    if p.by == "shape":
        return True
    if p.before.shaped and p.after.shaped:
        return False  # both shapes are known, and they are not the same
    calls = [sum(r.count for r in g.runs) / sum(n) for g, n in zip((p.before, p.after), units, strict=True)]
    return p.by == "name" or not far(calls[0], calls[1], 0.1)
