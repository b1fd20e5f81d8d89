"""Is the profiled window like the run that was slow? Batch, context and step time of the trace's steps
against the engine's own levels and the benchmark's latencies: five profiled steps are often not the
deploy that was slow."""

from typing import Any

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.kv import engine_totals, paired, resident_tokens
from diagnose.serving.stats import quantile, summary

ITERATION = ("step_generation_requests", "step_context_tokens", "step_ms")
INSIDE = (0.10, 0.90)
"""A traced median between the run's 10th and 90th percentile is ordinary for it."""
FEW_STEPS = 20
"""Below this a window cannot show tails: a stall in one step of a hundred is most likely not in it."""
STEP_RATIO = 1.25
"""A run's median gap between tokens this far from the traced step says another load was traced."""


def _check(name: str, unit: str, traced: float | None, run: list[float]) -> dict[str, Any] | None:
    if traced is None or not run:
        return None
    rows = sorted(run)
    low, high = quantile(rows, INSIDE[0]), quantile(rows, INSIDE[1])
    # a steady load has no spread of its own: allow a tenth around it
    inside = low * 0.9 <= traced <= high * 1.1
    under, same = sum(1 for v in rows if v < traced), sum(1 for v in rows if v == traced)
    return {
        "quantity": name,
        "unit": unit,
        "traced": traced,
        "run": summary(rows),
        "percentile": 100 * (under + same / 2) / len(rows),
        "inside": inside,
    }


def representative_report(evidence: Evidence, *, batch: float | None = None,
context_per_sequence: float | None = None,
                          step_ms: float | None = None, steps: int | None = None) -> dict[str,
                          Any] | None:  # fmt: skip
    """The `representative` entry: checks with traced value, the run's distribution and a verdict.

    `batch`, `context_per_sequence` and `step_ms` are medians of the traced decode steps (period, gap
    included); verdict is yes, no or unknown. None when there is no evidence to compare with.
    """
    running = [v for _, v in engine_totals(evidence, "running") if v > 0]
    pool = evidence.setting("kv_pool_tokens")
    resident = resident_tokens(evidence, float(pool) if pool else None)
    checks = [_check("batch", "sequences", batch, running)]
    if context_per_sequence is not None and resident is not None:
        ratio = context_per_sequence / resident[0]
        checks.append({
            "quantity": "context", "unit": "tokens a sequence", "traced": context_per_sequence,
            "run": {"mean": resident[0]}, "percentile": None, "inside": 0.67 <= ratio <= 1.5,
        })  # fmt: skip
    itl = evidence.stat("itl_ms", "p50", "bench") or evidence.stat("tpot_ms", "p50", "bench")
    if step_ms is not None and itl is not None:
        ratio = itl / step_ms
        checks.append({
            "quantity": "step time against the median gap between tokens", "unit": "ms", "traced": step_ms,
            "run": {"p50": itl}, "percentile": None, "inside": 1 / STEP_RATIO <= ratio <= STEP_RATIO,
        })  # fmt: skip
    pure = [ms for decodes, tokens, ms in paired(evidence, *ITERATION) if decodes and not tokens and ms > 0]
    checks.append(_check("step time against the engine's decode iterations", "ms", step_ms, pure))
    found = [c for c in checks if c is not None]
    if not found:
        return None
    off = [c["quantity"] for c in found if not c["inside"]]
    notes = []
    if steps is not None and steps < FEW_STEPS:
        notes.append(f"{steps} steps were traced: too few to show what happens in one step of a hundred")
    message = (
        "the traced steps are like the run"
        if not off
        else "the traced steps differ from the run in " + ", ".join(off)
    )
    return {"verdict": "no" if off else "yes", "message": message, "checks": found, "notes": notes}
