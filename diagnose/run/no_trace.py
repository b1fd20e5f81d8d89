"""A result without a trace, and what it cannot assess."""

from diagnose.contract import SCHEMA, Diagnosis, Hypothesis, Note, Verdict
from diagnose.rules.registry import shipped

NO_TRACE = "kernel-level limits (compute, HBM bandwidth, launching, copies) are not assessed: they need a profiler trace"


def without_trace(objective: str) -> list[Hypothesis]:
    """Every rule that reads a trace, not assessed, naming the trace as what would assess it."""
    return [
        Hypothesis(
            id=f"{rule.id}@run", limit=rule.limit, phase=None, objective=objective, status="not_assessed", confidence=None, gain=None,
            statement=f"{rule.title}: not assessed", evidence=[], counter_evidence=[],
            missing=[need.capture for need in rule.required] or ["a profiler trace"], experiment=None, rule=rule.id,
        )
        for rule in shipped() if rule.id != "kv-capacity"
    ]  # fmt: skip


def empty(objective: str, version: str) -> Diagnosis:
    """A result without a trace, to which `attach` adds the evidence."""
    return Diagnosis(
        schema=SCHEMA, tool_version=version, source=[], objective=objective, devices=[], attribution_ns=None, coverage=None, phases=[],
        outside_steps=None, kernels=[], latency=None, kv=None, hypotheses=without_trace(objective),
        verdict=Verdict(
            limit="inconclusive", phase=None, objective=objective, confidence=None,
            summary="inconclusive: kernel-level limits were not assessed, there is no trace",
            could_not_tell=[NO_TRACE],
        ),
        data_quality=[Note(code="no-trace", severity="info", message="no trace was given: kernel-level limits are not assessed")],
    )  # fmt: skip
