"""How a run divides between prefill and decode, in tokens and in time, from whatever states it."""

from typing import Any

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.kv import paired, request_lengths


def phase_ratio(evidence: Evidence) -> dict[str, Any] | None:
    """{tokens: {prompt, output, computed_prompt, ratio, source}, time: {prefill_ms, mixed_ms, decode_ms, share} | None}.

    Prompt tokens served from the prefix cache are not computed and are given apart. Time needs iteration lines: an
    iteration that prefills and decodes is mixed, and its decodes would have taken a pure decode step's time anyway.
    None when neither side is known.
    """
    prompt = sum(s.value for s in evidence.samples if s.metric == "prompt_tokens" and s.label("interval_s"))
    output = sum(
        s.value for s in evidence.samples if s.metric == "generation_tokens" and s.label("interval_s")
    )
    source = "engine counters"
    if not (prompt and output):
        lengths = request_lengths(evidence)
        if lengths is None:
            return _time_only(evidence)
        prompt, output, source = lengths[0], lengths[1], f"{lengths[2]}, a request"
    hits = sum(s.value for s in evidence.samples if s.metric == "prefix_hits")
    looked = sum(s.value for s in evidence.samples if s.metric == "prefix_queries")
    computed = prompt - prompt * hits / looked if looked else None
    tokens = {
        "prompt": prompt, "output": output, "computed_prompt": computed, "ratio": (computed or prompt) / output,
        "source": source,
    }  # fmt: skip
    return {"tokens": tokens, "time": _time(evidence), "provenance": "measured"}


def _time_only(evidence: Evidence) -> dict[str, Any] | None:
    time = _time(evidence)
    return {"tokens": None, "time": time, "provenance": "measured"} if time else None


def _time(evidence: Evidence) -> dict[str, Any] | None:
    rows = paired(evidence, "step_generation_requests", "step_context_tokens", "step_ms")
    if not rows:
        return None
    prefill = sum(ms for decodes, tokens, ms in rows if tokens and not decodes)
    mixed = sum(ms for decodes, tokens, ms in rows if tokens and decodes)
    decode = sum(ms for decodes, tokens, ms in rows if decodes and not tokens)
    whole = prefill + mixed + decode
    if whole <= 0:
        return None
    share = {"prefill": prefill / whole, "mixed": mixed / whole, "decode": decode / whole}
    return {
        "prefill_ms": prefill,
        "mixed_ms": mixed,
        "decode_ms": decode,
        "share": share,
        "source": "iteration lines",
    }
