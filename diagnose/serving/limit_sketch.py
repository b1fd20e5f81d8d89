"""A step sketched from the model and the load alone, for the size of a larger batch where nothing was traced.

Without a device only ratios are known: weights and KV move at one bandwidth, prompts cost FLOPs at RIDGE times it. Devices
that serve models keep that ridge within a factor of two, so the sketch is made at both ends, each with little and with much
time that no arithmetic explains (launches, host, small kernels); an answer spans them all.
"""

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.kv import request_lengths
from diagnose.serving.limit_window import PhaseTime, Window
from diagnose.serving.model_config import ModelConfig
from diagnose.serving.signals import Signals
from diagnose.serving.step_ops import step_ops

RIDGE = (150.0, 300.0)
"""Sustained bf16 FLOP per byte: A100 153, H200 206, MI300X 246, H100 295 at peak; sustained compute falls shorter."""
UNEXPLAINED = (0.05, 0.25)
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
