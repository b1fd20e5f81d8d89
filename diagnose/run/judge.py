"""Limits of a served load: candidates judged for an objective, told as hypotheses with their bets, and as the verdict."""

from dataclasses import replace
from typing import Any

from diagnose.contract import (
    Diagnosis,
    Evidence,
    Experiment,
    Gain,
    Hypothesis,
    Verdict,
)
from diagnose.rules.calibration import beside, calibrated, observed
from diagnose.rules.serving_experiments import experiment_for
from diagnose.rules.serving_rules import rule_of
from diagnose.rules.verdict import words
from diagnose.run.served_gaps import gap_points, gap_work, sampler_gap_share, stalled_rank
from diagnose.run.step_parts import trace_facts
from diagnose.serving.limit_types import Assessment, Candidate
from diagnose.serving.limit_window import Window
from diagnose.serving.limits import assess
from diagnose.serving.signals import Signals
from diagnose.serving.what_if import StepParts


def judge(
    d: Diagnosis,
    signals: Signals,
    objective: str,
    parts: StepParts | None,
    window: Window | None,
    drawn: Window | None,
) -> None:
    """Judge the limits of the objective from the signals and the traced window; puts hypotheses and verdict into `d`."""
    d.hypotheses = [h for h in d.hypotheses if h.rule != "kv-capacity"]
    if objective == "step_time":
        return
    facts = trace_facts(d, parts)
    who, held = stalled_rank(d)
    facts = replace(
        facts, window=window, sketch=drawn, gaps=gap_points(who), gap_work=gap_work(who),
        sampler_gap_share=sampler_gap_share(d), others_in_collective=held,
    )  # fmt: skip
    found = assess(signals, objective, facts)
    _tell_confidence(found)
    baseline = _baseline(d, objective)
    made = [_hypothesis(c, found, objective, signals.engine or "", baseline) for c in found.candidates]
    for c, h in zip(found.candidates, made, strict=True):
        if c.cause.startswith("trace_"):
            h.experiment = _step_experiment(d, c.limit)
            if h.experiment is None and c is not found.first:
                h.status = "possible"  # no step rule claims it in any phase: its shares only add up
    d.objective = objective
    d.hypotheses = made + d.hypotheses
    d.verdict = _verdict(d, found, made, objective)


def _step_experiment(d: Diagnosis, limit: str) -> Experiment | None:
    """The bet of a limit inside the steps: that of its step rule, in the phase where most would be freed."""
    time = {p.phase: p.wall_ns for p in d.phases}
    mine = [
        h
        for h in d.hypotheses
        if h.limit == limit and h.experiment is not None and h.status in ("supported", "possible")
    ]
    best = max(mine, key=lambda h: (h.score or 0.0) * time.get(h.phase or "", 0), default=None)
    return best.experiment if best is not None else None


def _tell_confidence(found: Assessment) -> None:
    """From stated confidence, by which candidates compete, to how often such first claims were right."""
    if found.first is None:
        return
    told = observed(found.first.confidence, "serving")
    for c in found.candidates:
        c.confidence = round(told if c is found.first else beside(c.confidence, told), 3)


def _baseline(d: Diagnosis, objective: str) -> tuple[float | None, str, str]:
    """Current value of the objective, its metric and unit."""
    latency = d.latency or {}
    if objective == "throughput":
        return latency.get("throughput_tok_s"), "output throughput", "tok/s"
    key = {"ttft": "ttft_ms", "itl": "itl_ms", "e2e": "e2e_ms"}[objective]
    entry = latency.get(key) or (latency.get("tpot_ms") if objective == "itl" else None) or {}
    return (
        entry.get("mean") or entry.get("p50"),
        {"ttft": "mean TTFT", "itl": "mean ITL", "e2e": "mean end-to-end latency"}[objective],
        "ms",
    )


def _hypothesis(
    c: Candidate, found: Assessment, objective: str, engine: str, baseline: tuple[float | None, str, str]
) -> Hypothesis:
    rival = next(
        (x for x in found.candidates if x.limit != c.limit and x.status in ("supported", "possible")), None
    )
    value, metric, unit = baseline
    gain = None
    if c.gain is not None and c.status in ("supported", "possible"):
        gain = Gain(metric=metric, low=c.gain[0], high=c.gain[1], unit="x", scope="the served load")
    live = c.status in ("supported", "possible")
    return Hypothesis(
        id=f"serving-{c.cause.replace('_', '-')}@{objective}",
        limit=c.limit,
        phase=None,
        objective=objective,
        status=c.status,
        confidence=c.confidence,
        gain=gain,
        statement=c.statement,
        evidence=[_evidence(row) for row in c.evidence],
        counter_evidence=[_evidence(row) for row in c.against],
        missing=c.missing,
        experiment=experiment_for(
            c.change or c.cause, engine, metric, unit, value, c.gain, rival.limit if rival else None
        )
        if live
        else None,
        rule=rule_of(c.cause),
        score=round(sum(c.relief) / 2, 4) if c.relief is not None else None,
    )


def _evidence(row: dict[str, Any]) -> Evidence:
    return Evidence(
        metric=row["metric"], value=row["value"], unit=row.get("unit") or "", threshold=row.get("threshold"), direction=row.get("direction"),
        provenance=row.get("provenance") or "measured", note=row.get("text"),
    )  # fmt: skip


def _verdict(d: Diagnosis, found: Assessment, made: list[Hypothesis], objective: str) -> Verdict:
    trace = d.verdict
    below = (
        f"the traced steps themselves: {trace.summary}"
        if d.devices and trace.limit != "inconclusive"
        else None
    )
    ruled = [
        f"{words(c.limit)} ({c.cause.replace('_', ' ')}): {c.statement}"
        for c in found.candidates
        if c.status == "refuted"
    ]
    could_not = [*found.missing, *(trace.could_not_tell if d.devices else [])]
    could_not = [line for line in dict.fromkeys(could_not) if not line.startswith("KV cache capacity: needs")]
    first = found.first
    if found.limits == ["inconclusive"] or first is None:
        ask = found.missing[0] if found.missing else "engine metrics over the loaded part of the run"
        text = f"inconclusive for {objective}: {found.note}. To settle it: {ask}"
        return Verdict(
            limit="inconclusive", phase=None, objective=objective, confidence=None, summary=text + (f"; {below}" if below else ""),
            runner_up=trace.limit if below else None, by_phase=trace.by_phase, ruled_out=ruled, could_not_tell=could_not,
        )  # fmt: skip
    second = (
        found.limits[1]
        if len(found.limits) > 1
        else next(
            (
                c.limit
                for c in found.candidates
                if c.limit != first.limit and c.status in ("supported", "possible")
            ),
            None,
        )
    )
    both = f" and {words(found.limits[1])} ({found.note})" if len(found.limits) > 1 else ""
    return Verdict(
        limit=first.limit,
        phase=None,
        objective=objective,
        confidence=first.confidence,
        summary=f"{objective} is limited by {words(first.limit)}{both}: {first.statement}",
        runner_up=second or (trace.limit if below else None),
        next=below,
        by_phase=trace.by_phase,
        ruled_out=ruled,
        could_not_tell=could_not,
        calibrated=calibrated("serving"),
    )
