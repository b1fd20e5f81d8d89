"""The traced decode step in the parts that scale by their own law, and what the trace tells the judgement of serving limits."""

from diagnose.contract import Diagnosis, Phase
from diagnose.costs.families import KV_FAMILIES, WEIGHT_FAMILIES
from diagnose.devices import Roofs
from diagnose.serving.gap_laws import GapPoint
from diagnose.serving.limits import TraceFacts
from diagnose.serving.quant import DTYPE_BYTES
from diagnose.serving.what_if import StepParts, marginal_gain


def decode_phase(d: Diagnosis) -> Phase | None:
    """The phase that decodes: decode, else mixed; None without one."""
    return next((p for p in d.phases if p.phase == "decode"), None) or next(
        (p for p in d.phases if p.phase == "mixed"), None
    )


def knee_tokens(roofs: Roofs, dtype: str, weight_bytes: float | None = None) -> float | None:
    """Tokens a step from which a weight-streaming product costs compute.

    2 M N K / F = N K b / B gives M = (F / B) b / 2, with b bytes a weight element (default: the math dtype's).
    """
    ridge = roofs.ridge(dtype)
    size = weight_bytes if weight_bytes is not None else DTYPE_BYTES.get(dtype, 2.0)
    return None if ridge is None else ridge * size / 2


def step_parts(d: Diagnosis, roofs: Roofs | None) -> StepParts | None:
    """The decode step of the trace in ms by part; None without one."""
    phase = decode_phase(d)
    if phase is None or not phase.sequences or not phase.steps:
        return None
    mine = [k for k in d.kernels if k.phase == phase.phase]
    per_step = 1e6 * phase.steps

    def total(families: frozenset[str]) -> float:
        return sum(k.time_ns for k in mine if k.family in families) / per_step

    weights, kv = total(WEIGHT_FAMILIES), total(KV_FAMILIES)
    split = phase.attribution_ns
    busy = sum(split[b] for b in ("compute", "hbm", "floor", "inefficient", "unmodelled")) / per_step
    idle = sum(ns for b, ns in split.items() if b.startswith("idle")) / per_step
    comm = (split["communication"] + split["comm_wait"]) / per_step
    floor = min(split["floor"] / per_step, max(0.0, busy - weights - kv))
    other = max(0.0, busy - weights - kv - floor) + split["copy"] / per_step
    dtype = next((k.dtype for k in mine if k.family in ("gemm", "gemm_lowp") and k.dtype), None) or "bf16"
    context = (phase.context_tokens or 0.0) / phase.sequences
    return StepParts(
        batch=phase.sequences, context=context, weights_ms=weights, kv_ms=kv if context else 0.0, floor_ms=floor, gap_ms=idle,
        comm_ms=comm, other_ms=other + (0.0 if context else kv), knee=knee_tokens(roofs, dtype) if roofs else None,
    )  # fmt: skip


def trace_facts(d: Diagnosis, parts: StepParts | None) -> TraceFacts:
    """What the trace adds to the judgement of serving limits. `parts` may come from the evidence where there is no trace."""
    phase = decode_phase(d)
    doubling = marginal_gain(parts, parts.batch) if parts else None
    gain = (doubling[0], doubling[1]) if doubling else None
    hardware = {p.phase: p.limit for p in d.phases if p.limit != "inconclusive"}
    if phase is None:
        return TraceFacts(hardware=hardware, doubling_gain=gain)
    split = phase.attribution_ns
    observed = phase.wall_ns - split["unobserved"]
    idle = sum(ns for b, ns in split.items() if b.startswith("idle"))
    return TraceFacts(
        hardware=hardware,
        busy_share=1 - idle / observed if observed else None,
        between_steps_share=split["idle_scheduling"] / observed if observed else None,
        gaps=tuple(
            GapPoint(s.gap_before_ns / 1e6, float(s.sequences))
            for s in d.steps
            if s.phase == phase.phase and s.sequences and s.gap_before_ns
        ),
        knee=parts.knee if parts else None,
        doubling_gain=gain,
        kv_share_of_step=parts.kv_ms / parts.step_ms if parts and parts.step_ms and parts.context else None,
    )
