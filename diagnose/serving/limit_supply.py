"""Limits outside the queue: the load itself, the front end, host work per step, uneven engines, the
hardware of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.serving.gap_laws import gap_law, stalls, work_reading
from diagnose.serving.limit_gain import factor, keeps_up, load_relief, open_relief
from diagnose.serving.limit_queue import queueing, row
from diagnose.serving.limit_types import Candidate, threshold
from diagnose.serving.limit_window import Window
from diagnose.serving.signals import Fact, Signals

if TYPE_CHECKING:
    from diagnose.serving.limits import TraceFacts


def host_candidate(s: Signals, trace: TraceFacts) -> Candidate:
    """Host work between steps: by the engine's own two clocks, by the forward pass's share, or by the
    trace's gaps."""
    c = Candidate(
        "scheduling", "host_per_step", "not_assessed", 0.0, "the device waits for the host between steps"
    )
    votes: list[bool] = []
    if s.host_over_device:
        late = s.host_over_device.value >= threshold("host_over_device")
        votes.append(late)
        (c.evidence if late else c.against).append(
            row("host_over_device", s.host_over_device, threshold("host_over_device"), "above")
        )
    if s.forward_share:
        idle = s.forward_share.value < threshold("forward_share")
        votes.append(idle)
        (c.evidence if idle else c.against).append(
            row("forward_share", s.forward_share, threshold("forward_share"), "below")
        )
    if trace.between_steps_share is not None:
        fact = Fact(trace.between_steps_share, "share", "measured", "device idle between steps, trace")
        late = fact.value >= threshold("between_steps")
        votes.append(late)
        (c.evidence if late else c.against).append(
            row("between_steps_share", fact, threshold("between_steps"), "above")
        )
        if late:
            c.gain = (1.0, 1 / max(1e-6, 1 - fact.value))
    masked = trace.sampler_gap_share is not None and trace.sampler_gap_share >= threshold("between_steps")
    if masked and trace.sampler_gap_share is not None:
        # the device idles inside the step: the gaps between steps say nothing of it
        fact = Fact(
            trace.sampler_gap_share, "share", "measured", "device idle between logits and sampler, trace"
        )
        c.evidence.append(row("sampler_gap_share", fact, threshold("between_steps"), "above"))
        votes = [True]
    if not votes:
        c.missing.append(
            "host against device time: a trace of several steps, or TensorRT-LLM iteration lines"
        )
        return c
    if not any(votes):
        c.status, c.confidence = "refuted", 0.8
        return c
    if len(set(votes)) > 1:
        c.status, c.confidence = "possible", 0.5
        return c
    c.status, c.confidence = "supported", 0.85 if trace.between_steps_share is not None else 0.75
    _gap_reading(c, trace)
    return c


def _gap_reading(c: Candidate, trace: TraceFacts) -> None:
    """Whose work the gap is: what it grows with, and whether rare stalls make it."""
    if trace.sampler_gap_share is not None and trace.sampler_gap_share >= threshold("between_steps"):
        c.cause = "structured_output"
        c.statement = "the gap lies between logits and sampler: structured output on the host"
        return
    rare = stalls(trace.gaps)
    if rare and trace.others_in_collective is None:
        c.missing.append("traces of all ranks: whether the others sat in a collective during the stalls")
    if rare:
        worst = max(p.ms for p in rare)
        fact = Fact(len(rare), "events", "measured", f"rare long gaps, up to {worst:.0f} ms")
        c.evidence.append(row("stalls", fact))
        if sum(p.ms for p in rare) > 0.5 * sum(p.ms for p in trace.gaps):
            c.limit = "imbalance" if trace.others_in_collective else c.limit
            c.cause = "host_stalls"
            c.statement = "rare long stalls of the host (garbage collection, page faults) make up the gap"
            return
    law = gap_law(trace.gaps)
    c.cause = {"per_request": "host_per_request", "per_length": "host_per_sequence_length"}.get(
        law.law, c.cause
    )
    if law.law in {"per_request", "per_length"}:
        c.statement = (
            f"the device waits for the host between steps, and {law.text}: {law.slope_ms:.3g} ms "
            + ("a request" if law.law == "per_request" else "per 1000 tokens")
        )
    _gap_work(c, trace)


def _gap_work(c: Candidate, trace: TraceFacts) -> None:
    """What fills the gap, by name; of work that grows with length, which kind it is, or the capture that would tell."""
    read = work_reading(trace.gap_work)
    if read is not None:
        what, name, share = read
        c.evidence.append(row("gap_work", Fact(share, "share", "measured", f"of the gaps: {name}")))
        if what:
            c.statement += f"; {what} ({name}) fills {share:.0%} of it"
    elif c.cause == "host_per_sequence_length":
        c.missing.append(
            "Python stacks of a few steps (with_stack, or py-spy): whether history tensors, a cache grown by concatenation or "
            "detokenising grows with length"
        )


def front_end_candidate(s: Signals) -> Candidate:
    """Requests wait in front of the engine: HTTP, tokenising, a router."""
    c = Candidate("scheduling", "front_end", "not_assessed", 0.0, "requests wait in front of the engine")
    votes = []
    if s.in_engine_share:
        outside = s.in_engine_share.value < threshold("in_engine")
        votes.append(outside)
        (c.evidence if outside else c.against).append(
            row("in_engine_share", s.in_engine_share, threshold("in_engine"), "below")
        )
    if s.front_end_share:
        outside = s.front_end_share.value >= threshold("front_end")
        votes.append(outside)
        (c.evidence if outside else c.against).append(
            row("front_end_share", s.front_end_share, threshold("front_end"), "above")
        )
    if not votes:
        c.missing.append("the client's latencies beside the engine's: --bench and --metrics of the same run")
        return c
    if queueing(s):
        c.status, c.confidence = "refuted", 0.7
    elif all(votes) and len(votes) == 2:
        c.status, c.confidence = "supported", 0.8
    elif any(votes):
        c.status, c.confidence = "possible", 0.5
    else:
        c.status, c.confidence = "refuted", 0.8
    return c


def imbalance_candidate(s: Signals, trace: TraceFacts) -> Candidate:
    """One engine of several carries more than its share while others have room."""
    c = Candidate("imbalance", "engines", "not_assessed", 0.0, "load is spread unevenly over the engines")
    if s.engine_spread is None:
        if s.running is None or s.running.provenance != "measured":
            c.missing.append("running and waiting of every engine: --metrics of all of them")
        return c
    uneven = s.engine_spread.value >= threshold("engine_spread")
    (c.evidence if uneven else c.against).append(
        row("engine_spread", s.engine_spread, threshold("engine_spread"), "above")
    )
    if uneven and queueing(s):
        c.status, c.confidence = "supported", 0.8
        c.gain = (1.0, s.engine_spread.value)
    else:
        c.status, c.confidence = ("possible", 0.4) if uneven else ("refuted", 0.8)
    return c


def demand_candidate(s: Signals, trace: TraceFacts, others: list[Candidate]) -> Candidate:
    """Nobody waits, slots and pool have room: throughput is what was asked for.

    Not so where twice the batch would gain nothing: then the device is the limit, queue or not.
    """
    c = Candidate(
        "demand", "load", "not_assessed", 0.0, "the engine has room and nobody waits: the load is the limit"
    )
    waits = s.waiting_share
    if s.running is None or (waits is None and not _cannot_queue(s)):
        c.missing.append("running and waiting over time: --metrics or the server's --log")
        return c
    quiet = waits is None or waits.value <= threshold("idle_queue")
    if waits is not None:
        (c.evidence if quiet else c.against).append(
            row("waiting_share", waits, threshold("idle_queue"), "below")
        )
    elif s.offered is not None:
        c.evidence.append(row("offered", s.offered, s.fits.value if s.fits else None, "below"))
    slots = s.slot_cap is None or s.running.value <= threshold("batch_room") * s.slot_cap.value
    if s.slot_cap:
        edge = threshold("batch_room") * s.slot_cap.value
        (c.evidence if slots else c.against).append(row("running", s.running, edge, "below"))
    pool = s.kv_peak is None or s.kv_peak.value < threshold("kv_full")
    if s.kv_peak:
        (c.evidence if pool else c.against).append(row("kv_peak", s.kv_peak, threshold("kv_full"), "below"))
    asked = s.open_rate and s.request_s
    keeps = bool(
        asked
        and s.open_rate
        and s.request_s
        and s.request_s.value >= threshold("keeps_up") * s.open_rate.value
    )
    if asked and s.request_s and s.open_rate:
        edge = threshold("keeps_up") * s.open_rate.value
        (c.evidence if keeps else c.against).append(row("request_s", s.request_s, edge, "above"))
    if s.in_engine_share and s.in_engine_share.value < threshold("in_engine"):
        c.against.append(row("in_engine_share", s.in_engine_share, threshold("in_engine"), "above"))
    if not quiet or not slots or not pool:
        c.status, c.confidence = "refuted", 0.8
        return c
    if any(
        o.status == "supported" and o.cause in {"front_end", "host_per_step", "host_per_request"}
        for o in others
    ):
        c.status, c.confidence = "possible", 0.3
        c.statement = "nobody waits in the engine, but requests are slowed before or beside it"
        return c
    if trace.window is not None:
        return _sized_demand(c, s, trace.window, others)
    saturated = trace.doubling_gain is not None and trace.doubling_gain[1] < threshold("marginal_gain")
    if trace.knee is not None and s.running.value > trace.knee:
        saturated = True
    if saturated:
        c.status, c.confidence = "refuted", 0.7
        c.statement = "nobody waits, yet a larger batch would gain nothing: the device itself is the limit"
        return c
    outside = s.in_engine_share is not None and s.in_engine_share.value < threshold("in_engine")
    told = s.kv_peak is not None or waits is None
    gain = trace.doubling_gain
    # of an open arrival rate that is kept up with, throughput is the rate: nothing else can raise it. A closed loop
    # also speeds up when a step does, so there the load leads only where twice the batch surely gains much
    grows = gain is not None and gain[0] >= threshold("sure_gain")
    if gain is None:
        drawn = load_relief(s, trace.sketch)
        grows = s.running.value <= threshold("small_batch")
        if drawn is not None:
            grows = drawn[0] >= 1 - 1 / threshold("sure_gain")
        c.missing.append("what a larger batch would gain: a trace, or --model with the device")
    above = s.graph_max_batch is not None and s.running.value > s.graph_max_batch.value
    slow = bool(s.eager) or above
    if slow:
        c.statement += "; yet steps run without captured graphs, which may cost more"
    if keeps and told:
        c.status, c.confidence = "supported", 0.9
    elif told and grows and not outside and not slow:
        c.status, c.confidence = "supported", 0.8 if gain is not None else 0.7
    else:
        c.status, c.confidence = "possible", 0.5
    c.gain = gain
    sized = load_relief(s, trace.sketch)
    if sized is not None:
        c.gain = factor(open_relief(s, trace.sketch) if keeps_up(s) else sized)
    return c


def _sized_demand(c: Candidate, s: Signals, window: Window, others: list[Candidate]) -> Candidate:
    """The load where the traced steps say what more of it would gain."""
    relief = open_relief(s, window) if keeps_up(s) else load_relief(s, window)
    if relief is None:
        c.status, c.confidence = "possible", 0.5
        return c
    c.relief = relief
    c.gain = factor(relief)
    outside = s.in_engine_share is not None and s.in_engine_share.value < threshold("in_engine")
    if relief[1] < 1 - 1 / threshold("marginal_gain"):
        c.status, c.confidence = "refuted", 0.7
        c.statement = "nobody waits, yet a larger batch would gain nothing: the device itself is the limit"
    else:
        c.status, c.confidence = "supported", 0.75 if outside and not keeps_up(s) else 0.95
    return c


def _cannot_queue(s: Signals) -> bool:
    """Whether fewer requests were in flight than slots and pool hold, and all of them were decoding: no
    queue can be."""
    if not (s.offered and s.slot_cap and s.fits and s.running):
        return False
    room = s.offered.value <= threshold("batch_room") * s.slot_cap.value
    space = s.offered.value <= threshold("kv_free") * s.fits.value
    return room and space and s.running.value >= threshold("in_engine") * s.offered.value


def hardware_candidate(trace: TraceFacts, objective: str) -> Candidate | None:
    """The trace's own limit of the phase that carries an objective, as a candidate beside the serving
    limits."""
    phases = {"itl": ("decode", "mixed"), "ttft": ("prefill", "mixed")}.get(
        objective, ("decode", "mixed", "prefill")
    )
    found = next((trace.hardware[p] for p in phases if p in trace.hardware), None)
    if found is None or found in {"kv_capacity", "demand", "inconclusive"}:
        return None
    # beside a queue or an idle queue the serving limit says what to change first; alone the device's limit
    # stands
    return Candidate(found, "trace", "possible", 0.55, f"the trace's steps are limited by {found}")
