"""What the traced steps say of the host's work in their gaps: what a gap grows with, what runs in it, whom it holds up."""

from statistics import median

import msgspec

from diagnose.contract import Diagnosis, StepRow
from diagnose.serving.gap_laws import STALL_FACTOR, STALL_MS, GapPoint

DECODING = ("decode", "mixed")
HELD = 0.5
"""A rank counts as held when collectives take at least this part of another rank's stall."""


def gap_points(d: Diagnosis) -> tuple[GapPoint, ...]:
    """One point a decode step whose gap was seen: ms, sequences, and the mean tokens a sequence holds where the step says."""
    return tuple(
        GapPoint(
            s.gap_before_ns / 1e6,
            float(s.sequences),
            s.context_tokens / s.sequences if s.context_tokens else None,
        )
        for s in _decoding(d)
        if s.sequences
    )


def _decoding(d: Diagnosis) -> list[StepRow]:
    """Steps of the phase that decodes (decode, else mixed) whose gap before was seen."""
    phase = next((p for p in DECODING if any(s.phase == p for s in d.steps)), None)
    return [s for s in d.steps if s.phase == phase and s.gap_before_ns]


def gap_work(d: Diagnosis) -> dict[str, float]:
    """Share of the decode steps' gaps by what the host ran in them (operators, Python frames where recorded)."""
    rows = _decoding(d)
    whole = sum(s.gap_before_ns for s in rows)
    out: dict[str, float] = {}
    for s in rows:
        for name, ns in s.gap_work_ns.items():
            out[name] = out.get(name, 0.0) + ns / whole
    return out


def sampler_gap_share(d: Diagnosis) -> float | None:
    """Idle time between logits and sampler over the periods of the steps that decode; None without such steps."""
    rows = [s for s in d.steps if s.phase in DECODING]
    whole = sum(s.end_ns - s.start_ns + s.gap_before_ns for s in rows)
    return sum(sum(s.sampler_gap_ns.values()) for s in rows) / whole if whole else None


def ranks_of(d: Diagnosis) -> list[Diagnosis]:
    """The diagnoses of all ranks; the run alone where there is one."""
    return [d] if d.ranks is msgspec.UNSET or not d.ranks else list(d.ranks)


def stalled_rank(d: Diagnosis) -> tuple[Diagnosis, bool | None]:
    """(the rank whose rare long gaps hold the run, whether the others sat in collectives meanwhile).

    The second is None where nothing stalls or only one rank was captured. Ranks run the same steps in the same order, so a
    step's number names it on every rank.
    """
    ranks = ranks_of(d)
    best: tuple[float, int, list[int]] = (0.0, 0, [])
    for i, one in enumerate(ranks):
        late = _stalls(one.steps)
        cost = sum(one.steps[j].gap_before_ns for j in late)
        if cost > best[0]:
            best = (cost, i, late)
    if not best[2]:
        return d, None
    who, late = ranks[best[1]], best[2]
    others = [r for i, r in enumerate(ranks) if i != best[1]]
    if not others:
        return who, None
    held = [
        max(_in_collective(o.steps[k]) for k in (j - 1, j) if 0 <= k < len(o.steps))
        >= HELD * who.steps[j].gap_before_ns
        for j in late
        for o in others
        if j < len(o.steps) + 1
    ]
    return who, bool(held) and sum(held) * 2 >= len(held)


def _stalls(steps: list[StepRow]) -> list[int]:
    """Positions of the steps before which the device waited ten times the usual gap, and 50 ms."""
    gaps = [s.gap_before_ns / 1e6 for s in steps]
    if len(gaps) < 3:
        return []
    edge = max(STALL_MS, STALL_FACTOR * median(gaps))
    return [i for i, gap in enumerate(gaps) if gap >= edge]


def _in_collective(step: StepRow) -> float:
    return float(step.attribution_ns.get("communication", 0) + step.attribution_ns.get("comm_wait", 0))
