"""Limits that hold requests in the queue: the KV pool, the slots, the token budget, a cautious scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diagnose.serving.limit_gain import room
from diagnose.serving.limit_types import Candidate, threshold
from diagnose.serving.signals import Fact, Signals

if TYPE_CHECKING:
    from diagnose.serving.limits import TraceFacts


def row(metric: str, fact: Fact, limit: float | None = None, direction: str | None = None) -> dict[str, Any]:
    """An evidence row of a fact."""
    return {
        "metric": metric, "value": fact.value, "unit": fact.unit, "threshold": limit, "direction": direction,
        "provenance": fact.provenance, "text": fact.text,
    }  # fmt: skip


def queueing(s: Signals) -> bool | None:
    """Whether requests wait in the engine for most of the loaded time; None when no source tells."""
    if s.waiting_share is not None:
        return s.waiting_share.value >= threshold("sustained")
    return None


def kv_candidate(s: Signals, trace: TraceFacts) -> Candidate:
    """The KV pool: full for most of the run while requests wait, or fewer sequences fit than were offered.

    Zero preemptions is no argument against it: an engine that does not admit does not preempt. A pool that
    is full with nobody waiting is not a limit yet.
    """
    c = Candidate(
        "kv_capacity", "kv_pool", "not_assessed", 0.0, "the KV pool decides how many requests run at a time"
    )
    full = s.kv_full_share is not None and s.kv_full_share.value >= threshold("sustained")
    tight = _tight(s)
    free = s.kv_peak is not None and s.kv_peak.value < threshold("kv_free")
    waits = queueing(s)
    lost = s.preemptions is not None and s.preemptions.value > 0
    short = (
        s.fits is not None
        and s.offered is not None
        and s.offered.value > threshold("offered_over_fits") * s.fits.value
    )
    slack = threshold("fits_slack")
    near = (
        s.fits is not None
        and s.running is not None
        and (s.fits.value / slack <= s.running.value <= s.fits.value * slack)
    )
    if s.kv_full_share:
        side = c.evidence if full else c.against
        side.append(row("kv_full_share", s.kv_full_share, threshold("sustained"), "above"))
    if s.waiting_share:
        (c.evidence if waits else c.against).append(
            row("waiting_share", s.waiting_share, threshold("sustained"), "above")
        )
    if lost and s.preemptions:
        c.evidence.append(row("preemptions", s.preemptions, 0.0, "above"))
    if s.recomputed_share and s.recomputed_share.value >= threshold("recomputed"):
        c.evidence.append(row("recomputed_share", s.recomputed_share, threshold("recomputed"), "above"))
    if s.fits and s.offered:
        edge = s.offered.value / threshold("offered_over_fits")
        (c.evidence if short else c.against).append(row("fits", s.fits, edge, "below"))
    if s.kv_usage is None:
        c.missing.append(
            "KV usage over time: --metrics (kv_cache_usage_perc, token_usage) or the server's --log"
        )
    if s.pool_tokens is None:
        c.missing.append(
            "the pool's size: start-up lines of the server (--log), or --model and the pool's bytes"
        )
    deferred = (
        s.waiting_deferred is not None
        and s.waiting is not None
        and 0 < s.waiting.value <= s.waiting_deferred.value
    )
    if deferred and s.waiting_deferred:
        c.against.append(row("waiting_deferred", s.waiting_deferred))
    if free and s.kv_peak:
        c.status, c.confidence = "refuted", 0.9
        c.against.append(row("kv_peak", s.kv_peak, threshold("kv_free"), "above"))
    elif full and (waits or lost) and not deferred:
        c.status, c.confidence = "supported", 0.92 if short or lost else 0.85
    elif tight and waits and short and not deferred:
        c.status, c.confidence = "supported", 0.75
    elif full and waits is False and not lost:
        c.status, c.confidence = "possible", 0.3
        c.statement = "the pool is nearly full, but nobody waits for it yet"
    elif full and waits is None:
        c.status, c.confidence = "possible", 0.5
        c.missing.append("requests waiting over time: --metrics or the server's --log")
    elif s.kv_full_share is None and short and near:
        # no levels: the arithmetic alone, and the batch that ran agrees with it
        c.status, c.confidence = "supported", 0.75
        if s.running:
            c.evidence.append(row("running", s.running, s.fits.value if s.fits else None, "equal"))
    elif s.kv_full_share is None and short:
        c.status, c.confidence = "possible", 0.5
    elif s.kv_full_share is not None and not full:
        partly = s.kv_full_share.value > 0 and (waits or lost)
        c.status, c.confidence = ("possible", 0.4) if partly else ("refuted", 0.7)
    if c.status == "supported":
        c.statement = _kv_statement(s)
        c.gain = _room(s)
        weigh(c, s, trace)
        if (
            trace.window is None
            and s.fits is not None
            and s.offered is not None
            and s.offered.value <= s.fits.value
        ):
            # Everything offered fits: the pool fills only when lengths peak together, and more of it gains little.
            c.confidence = min(c.confidence, 0.6)
        if s.samples is not None and s.samples.value < 3:
            c.confidence -= 0.1
    return c


def weigh(c: Candidate, s: Signals, trace: TraceFacts) -> None:
    """Weigh a cap on the batch by what a larger batch would gain: little gain, no limit; unknown gain, less
    certain. With a window the gain itself is compared with what else could be gained."""
    if trace.window is not None:
        c.confidence = max(c.confidence, 0.93)
        return
    if trace.doubling_gain is None:
        where = room(s)
        c.confidence = min(c.confidence, 0.8)
        if where is not None and where.queue is not None and where.queue < threshold("room"):
            c.status, c.confidence = "possible", 0.4
            c.statement += (
                f"; yet only {where.queue - 1:.0%} more could run, which what limits the steps may outweigh"
            )
        c.missing.append("what a larger batch would gain: a trace, or --model with the device")
    elif trace.doubling_gain[1] < threshold("marginal_gain"):
        c.status, c.confidence = "possible", 0.4
        c.statement += "; yet a larger batch would hardly gain: KV reads or compute already fill the step"
    elif trace.doubling_gain[0] < threshold("marginal_gain"):
        c.confidence = min(c.confidence, 0.7)


def _tight(s: Signals) -> bool:
    """Whether less than two requests' tokens are free: a pool of few requests stops below nine tenths."""
    if not (s.kv_usage and s.pool_tokens and s.full_tokens) or s.kv_usage.value < threshold("kv_tight"):
        return False
    return (1 - s.kv_usage.value) * s.pool_tokens.value < 2 * s.full_tokens.value


def _kv_statement(s: Signals) -> str:
    text = "the KV pool is full"
    if s.pool_tokens and s.resident_tokens:
        pool, each = s.pool_tokens.value, s.resident_tokens.value
        text = f"a pool of {pool:,.0f} tokens holds about {pool / each:.0f} requests of {each:,.0f}"
    if s.offered:
        text += f"; {s.offered.value:.0f} were offered"
    return text


def _room(s: Signals) -> tuple[float | None, float | None] | None:
    """Throughput factor if the pool were no limit: between nothing and all waiting requests running as
    cheaply."""
    if not (s.running and s.offered) or s.running.value <= 0:
        return None
    top = s.offered.value
    if s.slot_cap:
        top = min(top, s.slot_cap.value)
    return (1.0, max(1.0, top / s.running.value))


def slot_candidate(s: Signals, trace: TraceFacts) -> Candidate:
    """All slots taken while requests wait."""
    c = Candidate("scheduling", "slot_cap", "not_assessed", 0.0, "the cap on sequences decides how many run")
    if s.slot_cap is None:
        c.missing.append("the slot cap: start-up lines of the server (--log)")
        return c
    if s.at_cap_share is None:
        c.missing.append("requests running over time: --metrics or the server's --log")
        return c
    at = s.at_cap_share.value >= threshold("sustained")
    (c.evidence if at else c.against).append(
        row("at_cap_share", s.at_cap_share, threshold("sustained"), "above")
    )
    waits = queueing(s)
    if s.waiting_share:
        (c.evidence if waits else c.against).append(
            row("waiting_share", s.waiting_share, threshold("sustained"), "above")
        )
    if not at and _beside_a_full_pool(s) and waits and s.running:
        # the pool stops the batch just below the cap: more pool alone would meet the cap at once
        c.status, c.confidence = "supported", 0.7
        c.statement = (
            f"{s.running.value:.0f} run of {s.slot_cap.value:.0f} slots: the cap is next to the full pool"
        )
        c.evidence.append(row("running", s.running, threshold("batch_room") * s.slot_cap.value, "above"))
        weigh(c, s, trace)
        return c
    if not at:
        c.status, c.confidence = "refuted", 0.85
        return c
    if not waits:
        c.status, c.confidence = "possible", 0.4
        c.statement = f"all {s.slot_cap.value:.0f} slots are taken, but no queue was seen"
        return c
    c.status = "supported"
    c.confidence = {"measured": 0.9, "assumed": 0.85}.get(s.slot_cap.provenance, 0.75)
    c.statement = f"all {s.slot_cap.value:.0f} slots are taken and requests wait"
    if s.kv_usage and s.kv_usage.value < threshold("kv_full"):
        c.evidence.append(row("kv_usage", s.kv_usage, threshold("kv_full"), "below"))
    if s.offered and s.running and s.running.value > 0:
        top = min(s.offered.value, s.fits.value) if s.fits else s.offered.value
        c.gain = (1.0, max(1.0, top / s.running.value))
    weigh(c, s, trace)
    return c


def _beside_a_full_pool(s: Signals) -> bool:
    full = s.kv_full_share is not None and s.kv_full_share.value >= threshold("sustained")
    if not (full and s.running and s.slot_cap):
        return False
    return s.running.value >= threshold("batch_room") * s.slot_cap.value


def budget_candidate(s: Signals, trace: TraceFacts) -> Candidate:
    """Iterations filled to the token budget while requests wait and neither pool nor slots are exhausted."""
    c = Candidate(
        "scheduling",
        "token_budget",
        "not_assessed",
        0.0,
        "the token budget of an iteration holds prefill back",
    )
    if s.at_budget_share is None:
        c.missing.append(
            "tokens per iteration: vLLM --enable-logging-iteration-details, or SGLang's prefill batch lines"
        )
        return c
    at = s.at_budget_share.value >= threshold("sustained")
    (c.evidence if at else c.against).append(
        row("at_budget_share", s.at_budget_share, threshold("sustained"), "above")
    )
    waits = queueing(s)
    computing = trace.hardware.get("prefill") == "compute" or trace.hardware.get("mixed") == "compute"
    if not at:
        c.status, c.confidence = "refuted", 0.8
    elif trace.window is None and computing:
        c.status, c.confidence = "refuted", 0.7
        c.statement = (
            "iterations reach the token budget, but prefill is compute-bound: more tokens take more time"
        )
    else:
        # A full iteration has prompt tokens left over: they wait in the queue, or as requests that run but have no token yet.
        c.status, c.confidence = "supported", 0.7 if trace.window is None else 0.93
        c.statement = "iterations are filled to the token budget" + (" while requests wait" if waits else "")
        if trace.window is None:
            c.missing.append("whether prefill is at the compute roof: a trace of mixed iterations")
    return c


def conservative_candidate(s: Signals, others: list[Candidate]) -> Candidate:
    """Requests wait although pool, slots and budget have room: the scheduler admits too cautiously.

    SGLang's guide: token usage below 0.9 with a queue. For other engines the same picture has more readings.
    """
    c = Candidate(
        "scheduling",
        "conservative",
        "not_assessed",
        0.0,
        "the scheduler admits fewer requests than would fit",
    )
    waits = queueing(s)
    if waits is None or s.kv_usage is None:
        c.missing.append("waiting and KV usage over time: --metrics or the server's --log")
        return c
    if s.waiting_share:
        (c.evidence if waits else c.against).append(
            row("waiting_share", s.waiting_share, threshold("sustained"), "above")
        )
    room = s.kv_usage.value < threshold("kv_full")
    (c.evidence if room else c.against).append(row("kv_usage", s.kv_usage, threshold("kv_full"), "below"))
    taken = any(o.status == "supported" for o in others)
    deferred = s.waiting_deferred is not None and s.waiting_deferred.value > 0
    if not waits or not room or taken:
        c.status, c.confidence = "refuted", 0.8
    elif deferred:
        c.status, c.confidence = "possible", 0.3
        c.statement = "requests wait for something other than capacity (deferred): a remote cache or transfer"
    elif s.engine != "sglang":
        # elsewhere a queue with room mostly means that prefill takes all the time there is
        c.status, c.confidence = "possible", 0.4
        c.statement = (
            "requests wait although pool and slots have room: prefill may take all the time there is"
        )
        c.missing.append("what iterations are made of: iteration lines (--log) or a trace of them")
    elif s.at_budget_share is not None and s.at_budget_share.value >= threshold("sustained"):
        c.status, c.confidence = "possible", 0.4
        c.statement = "requests wait while prefill batches are full: prefill itself may be the limit"
    else:
        c.status, c.confidence = "supported", 0.75
        c.statement = (
            f"requests wait while only {s.kv_usage.value:.0%} of the pool is used and slots are free"
        )
    return c
