"""A step sketched from the model and the load alone, for the size of a larger batch where nothing was traced.

Without a device only ratios are known: weights and KV move at one bandwidth, prompts cost FLOPs at RIDGE times it. Devices
that serve models keep that ridge within a factor of two, so the sketch is made at both ends, each with little and with much
time that no arithmetic explains (launches, host, small kernels); an answer spans them all.
"""

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.kv import request_lengths
from diagnose.serving.limit_rank import chance_first
from diagnose.serving.limit_types import Candidate
from diagnose.serving.limit_window import PhaseTime, Window
from diagnose.serving.model_config import ModelConfig
from diagnose.serving.signals import Signals
from diagnose.serving.step_ops import step_ops

RIDGE = (160.0, 290.0)
"""Sustained bf16 FLOP per byte: A100 153, H200 206, MI300X 246, H100 295 at peak; sustained compute falls shorter."""
UNEXPLAINED = (0.05, 0.2)
"""Share of a decode step beyond weights, KV and prompts: well-tuned engines with graphs, and eager or host-heavy ones."""


def sketch(
    model: ModelConfig, evidence: Evidence, s: Signals, *, tp: int = 1, pp: int = 1, ep: int = 1
) -> Window | None:
    """The decode step at the batch that ran; None where batch, context or lengths are unknown."""
    lengths = request_lengths(evidence)
    if s.running is None or s.resident_tokens is None or lengths is None or lengths[1] <= 0:
        return None
    engines = max(1.0, float(evidence.setting("kv_engines") or 1))
    batch = max(1.0, s.running.value / engines)
    prompt = max(1, round(lengths[0] * (1 - (s.prefix_hit.value if s.prefix_hit else 0.0))))
    weights = model.step_weight_bytes(batch, tp, pp, ep)
    kv = (
        batch * s.resident_tokens.value * model.kv_bytes_per_token(evidence.setting("kv_cache_dtype"), tp, pp)
    )
    one = step_ops(model, prefill_chunks=[(prompt, prompt)], tp=tp, ep=ep)
    flops = sum(op.flops * op.count for op in one) / pp * batch / lengths[1]
    variants = []
    for ridge in RIDGE:
        known = weights + kv + flops / ridge
        for loose in UNEXPLAINED:
            rest = 1 - loose
            parts = {
                "hbm:weights": rest * weights / known,
                "hbm:kv": rest * kv / known,
                "compute:prompt": rest * flops / ridge / known,
                "unmodelled:other": loose,
            }
            variants.append(Window((PhaseTime("decode", 1.0, parts=parts, tokens=batch, steps=1),), ridge))
    return Window(variants[0].phases, variants=tuple(variants))


STREAMS = (0.6, 0.95)
"""Share of a memory-bound kernel's time that is bytes over bandwidth: small kernels start and end at the device's pace."""
LIKELY = 0.4
"""A cap on the batch that is less likely than this to gain the most is no answer without a trace."""
NEED_STEPS = "a trace of the steps, or --device: what limits them may gain more than a larger batch"


def against_the_steps(found: list[Candidate], drawn: Window, objective: str) -> None:
    """Weigh caps on the batch by what faster memory or compute would free of the sketched step, in place: with nothing traced
    no limit inside the steps can be named, but one may well be the larger."""
    if objective not in ("throughput", "e2e"):
        return
    rivals = []
    for limit, ends, kept in (("hbm", ("hbm:",), STREAMS), ("compute", ("compute:",), (1.0, 1.0))):
        shares = [
            sum(share for part, share in v.phases[0].parts.items() if part.startswith(ends))
            for v in drawn.variants
        ]
        rival = Candidate(limit, "sketch", "supported", 1.0, "")
        rival.relief = (kept[0] * min(shares) / 2, kept[1] * max(shares) / 2)
        rivals.append(rival)
    for c in found:
        if c.cause in ("kv_pool", "slot_cap") and c.status == "supported" and c.relief is not None:
            chance = chance_first(c, rivals)
            c.confidence = round(c.confidence * chance, 3)
            if chance < LIKELY:
                c.status = "possible"
                c.missing.append(NEED_STEPS)
