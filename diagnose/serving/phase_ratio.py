"""How a run divides between prefill and decode, in tokens and in time, from whatever states it."""

from typing import Any

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.kv import paired, request_lengths
from diagnose.serving.latency_split import pure_decode_ms, pure_size


def phase_ratio(evidence: Evidence) -> dict[str, Any] | None:
    """{tokens: {prompt, output, computed_prompt, ratio, source}, time: {prefill_ms, mixed_ms, decode_ms, share, prefill_share,
    decode_share} | None}.

    Prompt tokens served from the prefix cache are not computed and are given apart. Time needs iteration lines: an
    iteration that prefills and decodes is mixed, and its decodes would have taken a pure decode step's time anyway: what it
    takes beyond one of its size counts as prefill's share.
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
        prompt, output, source = lengths[0], lengths[1], f"means a request, {lengths[2]}"
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
    rows = [
        (decodes, tokens, ms)
        for decodes, tokens, ms in paired(
            evidence, "step_generation_requests", "step_context_tokens", "step_ms"
        )
    ]
    if not rows:
        return None
    prefill = sum(ms for decodes, tokens, ms in rows if tokens and not decodes)
    mixed = sum(ms for decodes, tokens, ms in rows if tokens and decodes)
    decode = sum(ms for decodes, tokens, ms in rows if decodes and not tokens)
    whole = prefill + mixed + decode
    if whole <= 0:
        return None
    share = {"prefill": prefill / whole, "mixed": mixed / whole, "decode": decode / whole}
    pure = pure_decode_ms(rows)
    beyond = (
        sum(max(0.0, ms - pure[pure_size(pure, n)]) for n, tokens, ms in rows if tokens and n)
        if pure
        else None
    )
    known = beyond is not None or not mixed
    prefill_share = (prefill + (beyond or 0.0)) / whole if known else None
    return {
        "prefill_share": prefill_share,
        "decode_share": 1 - prefill_share if prefill_share is not None else None,
        "prefill_ms": prefill,
        "mixed_ms": mixed,
        "decode_ms": decode,
        "share": share,
        "source": "iteration lines",
    }
