"""What a gap between steps grows with, and what runs in it, tell whose work it is.

Growing with the running requests: host work per request (scheduling, sampling results, detokenising).
Growing with the generated length: per-sequence work over the history (penalty tensors, caches grown by
concatenation, detokenising a growing text). Flat: fixed work per step. Rare and long on one rank: that
rank's host (garbage collection, page faults).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MIN_POINTS = 8
"""Fewer steps than this fix no law."""
EXPLAINED = 0.5
"""A law must explain half of the variance, else the gaps are called unclear."""
GROWTH = 0.3
"""Over the range seen, the growing part must be at least this share of the mean gap, else the gap is flat."""
STALL_FACTOR = 10.0
STALL_MS = 50.0
STALL_SHARE = 0.05
"""Published stalls: 100-300 ms every 1.5 s beside steps of some ten ms. A stall is ten medians and 50 ms,
and rare."""


@dataclass(frozen=True, slots=True)
class GapPoint:
    """One step's gap: ms, running sequences, and mean tokens they hold or have generated (None unknown).

    Over consecutive steps of the same sequences the two differ by a constant, which a law's slope does not see.
    """

    ms: float
    sequences: float
    generated: float | None = None


@dataclass(frozen=True, slots=True)
class GapLaw:
    """law: per_request, per_length, flat, unclear. `slope_ms` per request or per 1000 tokens, `fixed_ms`
    the rest."""

    law: str
    slope_ms: float
    fixed_ms: float
    explained: float
    text: str


def _fit(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Slope, intercept and explained variance of a straight line by least squares; slope 0 where x does not
    vary."""
    n = len(x)
    mx, my = sum(x) / n, sum(y) / n
    sxx = sum((a - mx) ** 2 for a in x)
    syy = sum((b - my) ** 2 for b in y)
    if sxx == 0 or syy == 0:
        return 0.0, my, 0.0
    sxy = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return sxy / sxx, my - sxy / sxx * mx, sxy * sxy / (sxx * syy)


def gap_law(points: Sequence[GapPoint]) -> GapLaw:
    """The law the gaps follow. Stalls are left out first; batch and length that move together are told
    unclear."""
    usual = without_stalls(points)
    if len(usual) < MIN_POINTS:
        return GapLaw("unclear", 0.0, 0.0, 0.0, f"{len(usual)} steps are too few to see a law")
    y = [p.ms for p in usual]
    mean = sum(y) / len(y)
    laws = [("per_request", [p.sequences for p in usual], 1.0, "running requests")]
    if all(p.generated is not None for p in usual):
        laws.append(
            ("per_length", [float(p.generated or 0) for p in usual], 1000.0, "the length of its sequences")
        )
    fits = []
    for name, x, unit, text in laws:
        slope, fixed, explained = _fit(x, y)
        grown = slope * (max(x) - min(x))
        if explained >= EXPLAINED and grown >= GROWTH * mean:
            fits.append(GapLaw(name, slope * unit, fixed, explained, f"the gap grows with {text}"))
    if len(fits) == 2 and abs(fits[0].explained - fits[1].explained) < 0.1:
        return GapLaw(
            "unclear",
            0.0,
            mean,
            max(f.explained for f in fits),
            "batch and length grew together: vary one alone",
        )
    if fits:
        return max(fits, key=lambda f: f.explained)
    varied = max(p.sequences for p in usual) > 1.5 * min(p.sequences for p in usual)
    text = (
        "the gap does not grow with the batch"
        if varied
        else "the batch hardly varied, so growth cannot be seen"
    )
    return GapLaw("flat" if varied else "unclear", 0.0, mean, 0.0, text)


WORK = (
    ("a cache or history grown by concatenation", ("cat", "concat", "stack", "index_put", "grow")),
    (
        "token histories for penalties",
        ("bincount", "scatter_add", "penalt", "unique", "one_hot", "repetition"),
    ),
    (
        "detokenising",
        ("detoken", "tokeniz", "convert_ids", "convert_tokens", "decode_stream", "batch_decode"),
    ),
)
"""What per-sequence work over a growing history looks like in a trace, by parts of its names."""
NAMED = 0.3
"""Work that fills less of the gap than this does not explain it."""


def work_reading(work: dict[str, float]) -> tuple[str, str, float] | None:
    """(what it is, its name in the trace, share of the gaps) of the work that fills the gaps; None where nothing recorded
    does. Operators and Python frames are matched by name; a name that means nothing here is given as itself."""
    if not work:
        return None
    name, share = max(work.items(), key=lambda x: x[1])
    if share < NAMED:
        return None
    plain = name.lower().split("::")[-1]
    for text, parts in WORK:
        if any(part in plain for part in parts):
            return text, name, share
    return "", name, share


def without_stalls(points: Sequence[GapPoint]) -> list[GapPoint]:
    """The points that are no stalls."""
    if not points:
        return []
    edge = max(STALL_MS, STALL_FACTOR * median(p.ms for p in points))
    return [p for p in points if p.ms < edge]


def stalls(points: Sequence[GapPoint]) -> list[GapPoint]:
    """Rare long gaps; empty when they are too many to be rare (then the gap itself is long)."""
    usual = without_stalls(points)
    rare = [p for p in points if p not in usual]
    return rare if points and len(rare) <= max(1.0, STALL_SHARE * len(points)) else []
