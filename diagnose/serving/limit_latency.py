"""Limits of the latencies: gaps between tokens, the first token, the whole request."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.serving.limit_gain import factor, interference_relief
from diagnose.serving.limit_queue import queueing, row
from diagnose.serving.limit_supply import hardware_candidate
from diagnose.serving.limit_types import Candidate, threshold
from diagnose.serving.signals import Fact, Signals

if TYPE_CHECKING:
    from diagnose.serving.limits import TraceFacts

QUEUE_CAUSES = ("kv_pool", "slot_cap", "token_budget", "conservative")


def interference_candidate(s: Signals) -> Candidate:
    """Prefill in front of or beside running decodes stretches the gaps between their tokens."""
    c = Candidate(
        "scheduling",
        "prefill_interference",
        "not_assessed",
        0.0,
        "prefill of new requests stalls running ones",
    )
    if s.interference_share is None:
        c.missing.append(
            "iterations by kind: vLLM --enable-logging-iteration-details, or a trace with annotated steps"
        )
        if s.itl_tail:
            tail = s.itl_tail.value >= threshold("tail")
            (c.evidence if tail else c.against).append(
                row("itl_tail", s.itl_tail, threshold("tail"), "above")
            )
            # a tail has other makers: preemption, collection pauses, streaming; a lack of one leaves little
            # to explain
            c.status, c.confidence = ("possible", 0.5) if tail else ("refuted", 0.6)
        return c
    big = s.interference_share.value >= threshold("interference")
    (c.evidence if big else c.against).append(
        row("interference_share", s.interference_share, threshold("interference"), "above")
    )
    longer = s.mixed_over_decode is not None and s.mixed_over_decode.value >= threshold("mixed_ratio")
    if s.mixed_over_decode:
        (c.evidence if longer else c.against).append(
            row("mixed_over_decode", s.mixed_over_decode, threshold("mixed_ratio"), "above")
        )
    tail = s.itl_tail is not None and s.itl_tail.value >= threshold("tail")
    if s.itl_tail:
        (c.evidence if tail else c.against).append(row("itl_tail", s.itl_tail, threshold("tail"), "above"))
    if big and longer:
        c.status, c.confidence = "supported", 0.88 if tail else 0.8
        c.gain = (1.0, 1 / max(0.05, 1 - s.interference_share.value))
    elif longer and tail:
        c.status, c.confidence = "supported", 0.75
        c.statement = "prefill of new requests makes the tail of the gaps between tokens"
    else:
        c.status, c.confidence = ("possible", 0.4) if big or tail else ("refuted", 0.8)
    return c


def preemption_candidate(s: Signals) -> Candidate:
    """Preempted requests stop streaming until they are computed again: a tail of the gaps, not their
    middle."""
    c = Candidate(
        "kv_capacity", "preemption", "not_assessed", 0.0, "preempted requests pause until recomputed"
    )
    if s.preemptions is None:
        c.missing.append("preemptions: --metrics (num_preemptions) or the server's --log")
        return c
    if s.preemptions.value <= 0:
        c.status, c.confidence = "refuted", 0.7
        c.against.append(row("preemptions", s.preemptions, 0.0, "above"))
        return c
    c.evidence.append(row("preemptions", s.preemptions, 0.0, "above"))
    tail = s.itl_tail is not None and s.itl_tail.value >= threshold("tail")
    if s.itl_tail:
        (c.evidence if tail else c.against).append(row("itl_tail", s.itl_tail, threshold("tail"), "above"))
    heavy = s.recomputed_share is not None and s.recomputed_share.value >= threshold("recomputed")
    if s.recomputed_share:
        (c.evidence if heavy else c.against).append(
            row("recomputed_share", s.recomputed_share, threshold("recomputed"), "above")
        )
    # Mean ITL is not the tail: a pool without preemption also runs more sequences a step, which lengthens every gap.
    c.status, c.confidence = "possible", 0.6 if tail and heavy else 0.5
    c.missing.append("time lost to preemption: per-request traces; counters tell only how often it happened")
    return c


def assess_itl(s: Signals, trace: TraceFacts, common: list[Candidate]) -> list[Candidate]:
    """Gaps between tokens: the decode step, what interrupts it, and the host; a full pool or few slots only
    help them."""
    found: list[Candidate] = [interference_candidate(s), preemption_candidate(s)]
    for c in common:
        if c.cause in QUEUE_CAUSES and c.status in {"supported", "possible"}:
            text = "holds the batch small, which shortens the gaps between tokens: relief would lengthen them"
            found.append(
                replace(
                    c, status="refuted", confidence=0.85, statement=f"{c.cause} {text}", missing=[], gain=None
                )
            )
        elif c.cause.startswith(("host", "structured")) or c.limit == "imbalance":
            found.append(c)
    alone = interference_relief(trace.window) if trace.window is not None else None
    if alone is not None and trace.window is not None:
        found[0] = _alone(found[0], alone)
        found[0].gain = factor(alone)
    hardware = hardware_candidate(trace, "itl")
    if trace.window is not None and trace.window.of("itl"):
        return found
    if hardware is not None:
        # with nothing interrupting it, a token's gap is the decode step, and its limit that of the step
        calm = not any(c.status == "supported" for c in found)
        interrupted = interference_candidate(s).status
        hardware.status = "supported" if calm else "possible"
        hardware.confidence = 0.8 if calm and interrupted == "refuted" else 0.65 if calm else 0.55
        found.append(hardware)
    else:
        found.append(_need_trace("decode steps"))
    return found


def _alone(c: Candidate, relief: tuple[float, float]) -> Candidate:
    """Steps that compute prompts alone while others decode: seen in the trace, sized on it."""
    fact = Fact(
        sum(relief) / 2,
        "share",
        "derived",
        "of the gaps between tokens: steps that prefill alone, as chunks beside decodes",
    )
    c.evidence.append(row("prefill_alone", fact, 0.05, "above"))
    c.relief = relief
    if fact.value >= 0.05:
        c.status, c.confidence, c.missing = "supported", 0.93, []
        c.statement = "prompts are computed in steps of their own, for which every running request waits"
    return c


def _need_trace(what: str) -> Candidate:
    c = Candidate("inconclusive", "hardware", "not_assessed", 0.0, "the device's own limit")
    c.missing.append(f"a profiler trace of {what} (kernel-level limits are not assessed without one)")
    return c


def assess_ttft(s: Signals, trace: TraceFacts, common: list[Candidate]) -> list[Candidate]:
    """The first token: what holds the queue where the queue is most of it, else prefill and front end."""
    found: list[Candidate] = []
    share = s.queue_share
    long = share is not None and share.value >= threshold("queue_share")
    short = share is not None and share.value <= threshold("queue_free")
    for c in common:
        if c.cause in QUEUE_CAUSES:
            d = replace(
                c, evidence=list(c.evidence), against=list(c.against), missing=list(c.missing),
                gain=c.gain if trace.window or trace.sketch else None,
            )  # fmt: skip
            if share is not None:
                (d.evidence if long else d.against).append(
                    row("queue_share", share, threshold("queue_share"), "above")
                )
            if d.status == "supported" and short:
                d.status, d.confidence = "refuted", 0.8
            elif (
                d.status == "supported" and d.relief is None and not (long or (share is None and queueing(s)))
            ):
                d.status, d.confidence = "possible", 0.5
            if d.status == "supported" and share is not None and d.gain is None:
                d.gain = (1.0, 1 / max(0.02, 1 - share.value))
            found.append(d)
        else:
            found.append(c)
    if share is None and s.ttft_ms is not None:
        found[0].missing.append("queue time: the engine's request_queue_time histogram (--metrics)")
    hardware = hardware_candidate(trace, "ttft")
    if trace.window is not None:
        return found
    if hardware is None:
        found.append(_need_trace("prefill steps"))
    elif short or (share is None and queueing(s) is False):
        hardware.status, hardware.confidence = "supported", 0.75
        if share:
            hardware.evidence.append(row("queue_share", share, threshold("queue_free"), "below"))
        found.append(hardware)
    else:
        found.append(hardware)
    return found


def assess_e2e(s: Signals, trace: TraceFacts, common: list[Candidate]) -> list[Candidate]:
    """The whole request: first token and decode weighed by their share of the time."""
    first = assess_ttft(s, trace, common)
    rest = assess_itl(s, trace, common)
    whole, ttft = s.e2e_ms, s.ttft_ms
    if whole is None or ttft is None or whole.value <= 0:
        c = Candidate(
            "inconclusive",
            "hardware",
            "not_assessed",
            0.0,
            "the share of the first token in the whole request",
        )
        c.missing.append(
            "end-to-end latency and TTFT of the same requests: --bench with e2el among its percentile metrics"
        )
        return [c]
    share = min(1.0, ttft.value / whole.value)
    if trace.window is not None:
        return [c for c in first if c.cause != "hardware"] + [
            c for c in rest if not any(c.cause == o.cause for o in first)
        ]
    fact = Fact(share, "share", "derived", "mean TTFT / mean end-to-end latency")
    out: list[Candidate] = []
    for group, weight in ((first, share), (rest, 1 - share)):
        for c in group:
            if c.status == "refuted" and any(o.cause == c.cause and o is not c for o in out):
                continue
            d = replace(c, evidence=[*c.evidence, row("ttft_share_of_e2e", fact)], missing=list(c.missing))
            if d.status == "supported" and weight < threshold("e2e_share"):
                d.status, d.confidence = "possible", min(d.confidence, 0.5)
            elif d.status == "supported":
                d.confidence *= 0.7 + 0.3 * weight
            out.append(d)
    return out
