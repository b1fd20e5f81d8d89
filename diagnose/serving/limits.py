"""From signals to limits, per objective: which resource's relief would help, what speaks for it, what
against, what is missing.

Serving limits only: KV capacity, scheduling in its forms, demand, imbalance, power. Hardware limits come
from a trace and are passed in as plain facts (`TraceFacts`). Nothing is concluded from a question no source
answers: without enough evidence the answer is "inconclusive" and what to attach.
"""

from dataclasses import dataclass, field
from typing import Any

from diagnose.serving.gap_laws import GapPoint
from diagnose.serving.limit_gain import closed
from diagnose.serving.limit_latency import assess_e2e, assess_itl, assess_ttft
from diagnose.serving.limit_queue import (
    budget_candidate,
    conservative_candidate,
    kv_candidate,
    slot_candidate,
)
from diagnose.serving.limit_rank import TIE, by_gain, middle
from diagnose.serving.limit_sizes import set_sizes, step_limits, untraced_share, with_prompt_steps
from diagnose.serving.limit_sketch import against_the_steps
from diagnose.serving.limit_supply import (
    demand_candidate,
    front_end_candidate,
    hardware_candidate,
    host_candidate,
    imbalance_candidate,
)
from diagnose.serving.limit_types import Assessment, Candidate
from diagnose.serving.limit_window import Window
from diagnose.serving.signals import Signals

OBJECTIVES = ("throughput", "ttft", "itl", "e2e")
NEED_LEVELS = (
    "running, waiting and KV usage over time: --metrics with the engine's /metrics scraped during the run, "
    "or --log with the server's periodic lines"
)
TOGETHER = 0.6
BOTH = 0.8
"""A second cap this sure is named beside the first."""
NEED_COSTS = "operator shapes, or --model beside graph replays, so that the steps' kernels can be judged"
NEED_MIX = "a profiler trace that holds the steps which compute prompts: those traced only decode, and tokens come slower than they do"
STEP_LIMITS = frozenset({"compute", "hbm", "kernel_inefficiency"})
NEED_LOAD = "the load that was offered: --bench with the benchmark's result"


@dataclass(frozen=True)
class TraceFacts:
    """What a trace adds, as plain numbers; None is unknown. Shares are of the steps' wall time.

    `hardware` is the trace's own limit by phase (hbm, compute, launch_overhead, ...); `knee` the tokens a
    step from which weights cost compute; `doubling_gain` the (low, high) throughput factor of twice the
    batch, by the step's parts; `window` the traced steps' time by phase, part and relief, on which gains are
    compared; `sketch` a step by arithmetic alone, for the size of a larger batch where there is no window;
    `gap_work` the share of the gaps that each named piece of host work fills.
    """

    hardware: dict[str, str] = field(default_factory=dict)
    busy_share: float | None = None
    between_steps_share: float | None = None
    gaps: tuple[GapPoint, ...] = ()
    knee: float | None = None
    doubling_gain: tuple[float, float] | None = None
    kv_share_of_step: float | None = None
    others_in_collective: bool | None = None
    clock_drift: float | None = None
    sampler_gap_share: float | None = None
    window: Window | None = None
    sketch: Window | None = None
    gap_work: dict[str, float] = field(default_factory=dict)


def assess(signals: Signals, objective: str = "throughput", trace: TraceFacts | None = None) -> Assessment:
    """Rank the candidate limits of an objective (throughput, ttft, itl, e2e)."""
    trace = trace or TraceFacts()
    signals = with_prompt_steps(signals, trace.window)
    common: list[Candidate] = [
        kv_candidate(signals, trace),
        slot_candidate(signals, trace),
        budget_candidate(signals, trace),
    ]
    common += [
        conservative_candidate(signals, common),
        host_candidate(signals, trace),
        front_end_candidate(signals),
    ]
    common += [imbalance_candidate(signals, trace)]
    set_sizes(common, signals, trace.window or trace.sketch, objective)
    if trace.window is None:
        if trace.sketch is not None:
            against_the_steps(common, trace.sketch, objective)
        # a sketch sizes experiments and weighs caps; it cannot name a limit inside the steps, so it does not rank
        for c in common:
            c.relief = None
    if objective == "itl":
        found = assess_itl(signals, trace, common)
    elif objective == "ttft":
        found = assess_ttft(signals, trace, common)
    elif objective == "e2e" and not (trace.window is not None and closed(signals)):
        found = assess_e2e(signals, trace, common)
    else:
        # In a closed loop a request takes clients / throughput: what limits one limits the other, but for the load itself.
        found = [*common]
        found += [demand_candidate(signals, trace, common)] if objective == "throughput" else []
        hardware = None if trace.window else hardware_candidate(trace, "throughput")
        found += [hardware] if hardware else []
    found += step_limits(found, signals, trace.window, objective)
    return conclude(objective, found, signals, trace.window)


def conclude(
    objective: str, found: list[Candidate], signals: Signals, window: Window | None = None
) -> Assessment:
    """Order candidates and name the limits: the best supported one, and those that bind together with it.

    With a window all gains are known and decide; without one the evidence for each candidate does.
    """
    order = {"supported": 0, "possible": 1, "not_assessed": 2, "refuted": 3}
    dark = window.unknown(objective) if window is not None and window.of(objective) else 0.0
    untraced = untraced_share(signals, window) if window is not None and objective != "ttft" else 0.0
    dark = min(1.0, dark + untraced)
    if window is not None:
        by_gain(found, dark)
        found = sorted(found, key=lambda c: (order[c.status], -c.confidence * max(0.0, middle(c))))
    else:
        found = sorted(found, key=lambda c: (order[c.status], -c.confidence))
    for c in found:
        if c.status == "refuted" and c.against:
            c.statement = "not so: " + "; ".join(_seen(r) for r in c.against)
    supported = [c for c in found if c.status == "supported"]
    missing = list(dict.fromkeys(m for c in found if c.status != "refuted" for m in c.missing))
    if not supported:
        if signals.running is None or signals.waiting is None or signals.kv_usage is None:
            missing.insert(0, NEED_LEVELS)
        if signals.offered is None and signals.open_rate is None:
            missing.append(NEED_LOAD)
        missing = list(dict.fromkeys(missing))
        return Assessment(
            objective, ["inconclusive"], found, missing, "no limit is carried by the evidence given"
        )
    best = supported[0]
    if window is not None and best.limit in STEP_LIMITS and dark > middle(best) + TIE:
        missing.insert(0, NEED_COSTS if untraced < dark / 2 else NEED_MIX)
        note = f"{dark:.0%} of the time is of unknown nature, more than any known limit holds"
        return Assessment(objective, ["inconclusive"], found, missing, note)
    limits = [best.limit]
    # limits that bind at once: the batch is at its slots while the pool is full; relieving one alone changes
    # little
    for other in supported[1:]:
        if other.limit in limits or not _together(best, other):
            continue
        if best.relief == other.relief if window is not None else other.confidence >= TOGETHER:
            limits.append(other.limit)
    if len(limits) > 1:
        # the gain of a larger batch needs both reliefs: less certain that this pair is what helps most
        for c in supported if window is None else ():
            c.confidence = min(c.confidence, BOTH)
    note = "bind together: relieving one alone meets the other" if len(limits) > 1 else ""
    return Assessment(objective, limits, found, missing, note)


def _seen(row: dict[str, Any]) -> str:
    """An evidence row in words: how it was found, and its value."""
    value, unit = row["value"], row["unit"]
    shown = f"{value:.0%}" if unit == "share" else f"{value:,.3g} {unit}".strip()
    return f"{row['text'] or row['metric']}: {shown}"


def _together(a: Candidate, b: Candidate) -> bool:
    pair = {a.cause, b.cause}
    return pair == {"kv_pool", "slot_cap"}
