"""The parts of a decode step where there is no trace: roofs of the model's weights and KV, the prefill a
step carries, and the rest of the observed time per token, which nothing here explains.

weights and KV are least times (roofs), so the unexplained rest holds host work, launch gaps and
inefficiency alike; the what-if carries it as an interval between flat and growing with the batch.
"""

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.kv import request_lengths
from diagnose.serving.model_config import ModelConfig
from diagnose.serving.signals import Signals
from diagnose.serving.step_ops import RoofsLike, step_ops, step_roof
from diagnose.serving.what_if import Caps, StepParts, marginal_gain


def roof_parts(model: ModelConfig, roofs: RoofsLike, batch: int, context: float, *, tp: int = 1, ep: int = 1,
               kv_dtype: str | None = None, verified: int = 1) -> dict[str, float] | None:  # fmt: skip
    """{weights, kv} least ms of a decode step of `batch` sequences; None where a roof is unknown."""
    ops = step_ops(
        model,
        decode_contexts=[int(context)] * batch,
        tp=tp,
        ep=ep,
        kv_dtype=kv_dtype,
        verified_per_sequence=verified,
    )
    roof = step_roof(ops, roofs)
    if roof is None:
        return None
    return {"weights": roof.by_kind_ms.get("weights", 0.0), "kv": roof.by_kind_ms.get("kv", 0.0)}


def parts_from_evidence(model: ModelConfig, evidence: Evidence, signals: Signals, roofs: RoofsLike, *, tp: int = 1,
                        ep: int = 1) -> StepParts | None:  # fmt: skip
    """StepParts of one engine at the observed batch, context and time per token; None when one of them or a roof is
    unknown."""
    if signals.running is None or signals.resident_tokens is None or signals.tpot_ms is None:
        return None
    batch, context = max(1.0, signals.running.value / engines_of(evidence)), signals.resident_tokens.value
    kv_dtype = evidence.setting("kv_cache_dtype")
    whole = max(1, round(batch))
    roof = roof_parts(model, roofs, whole, context, tp=tp, ep=ep, kv_dtype=kv_dtype)
    if roof is None:
        return None
    prefill = prefill_per_step(model, evidence, roofs, batch, tp=tp, ep=ep)
    rest = signals.tpot_ms.value - roof["weights"] - roof["kv"] - prefill

    def weights_at(size: float) -> float:
        found = roof_parts(model, roofs, max(1, round(size)), context, tp=tp, ep=ep, kv_dtype=kv_dtype)
        return found["weights"] if found else 0.0

    return StepParts(
        batch=batch, context=context, weights_ms=roof["weights"], kv_ms=roof["kv"], prefill_ms=prefill,
        other_ms=max(0.0, rest), weights_at=weights_at,
    )  # fmt: skip


def engines_of(evidence: Evidence) -> int:
    """Engines whose levels were added up (data parallel); 1 where nothing says."""
    text = evidence.setting("kv_engines")
    return max(1, int(float(text))) if text else 1


def prefill_per_step(
    model: ModelConfig, evidence: Evidence, roofs: RoofsLike, batch: float, *, tp: int = 1, ep: int = 1
) -> float:
    """Prefill work a decode step carries on average, in ms: a step makes `batch` tokens, so it must let in
    batch / output requests, each with its prompt to compute (prefix hits left out)."""
    lengths = request_lengths(evidence)
    least = prompt_ms(model, evidence, roofs, tp=tp, ep=ep)
    return least * batch / lengths[1] if lengths and lengths[1] > 0 and least else 0.0


def computed_prompt(evidence: Evidence) -> float | None:
    """Mean prompt tokens a request has to compute: its prompt less what the prefix cache holds; None where it is unknown."""
    lengths = request_lengths(evidence)
    if lengths is None or lengths[0] <= 0:
        return None
    hits = sum(s.value for s in evidence.samples if s.metric == "prefix_hits")
    looked = sum(s.value for s in evidence.samples if s.metric == "prefix_queries")
    return lengths[0] * (1 - (hits / looked if looked else 0.0))


def prompt_ms(
    model: ModelConfig, evidence: Evidence, roofs: RoofsLike, *, tp: int = 1, ep: int = 1
) -> float | None:
    """Least time in ms to compute one mean prompt, its prefix hits left out; None where its length or a roof is unknown."""
    computed = computed_prompt(evidence)
    if computed is None:
        return None
    prompt = max(1, round(computed))
    roof = step_roof(step_ops(model, prefill_chunks=[(prompt, prompt)], tp=tp, ep=ep), roofs)
    return roof.sum_ms if roof else None


def caps_from(signals: Signals, slo_itl_ms: float | None = None, slo_ttft_ms: float | None = None,
              prefill_ms: float | None = None, engines: int = 1) -> Caps:  # fmt: skip
    """The caps of one engine of a deployment from its signals."""
    return Caps(
        pool_tokens=signals.pool_tokens.value / engines if signals.pool_tokens else None,
        resident_tokens=signals.resident_tokens.value if signals.resident_tokens else None,
        slots=int(signals.slot_cap.value / engines) if signals.slot_cap else None,
        graph_max_batch=int(signals.graph_max_batch.value) if signals.graph_max_batch else None,
        slo_itl_ms=slo_itl_ms, slo_ttft_ms=slo_ttft_ms, prefill_ms=prefill_ms,
    )  # fmt: skip


def doubling_gain(parts: StepParts) -> tuple[float, float]:
    """(low, high) throughput factor of twice the batch at the observed point."""
    low, high = marginal_gain(parts, parts.batch)
    return low, high
