"""What a first token and a gap between tokens are made of, from the engine's own parts.

TTFT = queue + prefill + other. Queue and prefill are the engine's histograms (means add up; quantiles do
not, so only means are split). ITL is split from iteration lines: every decoding request of an iteration
waits for the whole iteration, so mean ITL = sum(requests x duration) / sum(requests), of which the decode
part is what a pure decode iteration of that size takes, and the rest of a mixed iteration is prefill
interference.
"""

from collections import defaultdict
from statistics import median
from typing import Any

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.kv import paired

MIN_PURE = 5
"""Fewer pure decode iterations than this give no baseline."""


def _mean(evidence: Evidence, metric: str, origin: str) -> float | None:
    if origin == "client":
        return evidence.stat(metric, "mean", "bench")
    total, count = evidence.stat(metric, "sum"), evidence.stat(metric, "count")
    return total / count if total is not None and count else None


def ttft_split(evidence: Evidence) -> dict[str, Any]:
    """Mean TTFT in parts: queue_ms, prefill_ms, other_ms (front end, network, first detokenising), each or
    None.

    `missing` names what would supply an absent part. The prefix cache's share of prompt tokens is stated
    beside.
    """
    whole = _mean(evidence, "ttft_ms", "client")
    source = "client" if whole is not None else "engine"
    if whole is None:
        whole = _mean(evidence, "ttft_ms", "engine")
    queue, prefill = _mean(evidence, "queue_ms", "engine"), _mean(evidence, "prefill_ms", "engine")
    missing = []
    if queue is None:
        missing.append("queue time: the engine's request_queue_time histogram (--metrics)")
    if prefill is None:
        missing.append("prefill time: the engine's request_prefill_time histogram (--metrics)")
    other = None
    if whole is not None and queue is not None and prefill is not None:
        other = whole - queue - prefill
    looked, hit = _total(evidence, "prefix_queries"), _total(evidence, "prefix_hits")
    return {
        "ttft_mean_ms": whole, "source": source if whole is not None else None, "queue_ms": queue,
        "prefill_ms": prefill,
        "other_ms": other, "queue_share": queue / whole if queue is not None and whole else None,
        "prefix_hit_share": hit / looked if looked else None, "missing": missing,
    }  # fmt: skip


def _total(evidence: Evidence, metric: str) -> float:
    return sum(s.value for s in evidence.samples if s.metric == metric)


def iterations(evidence: Evidence) -> list[tuple[float, float, float]]:
    """(decoding requests, prompt tokens, ms) of every logged iteration."""
    return [
        (requests, tokens, ms)
        for requests, tokens, ms in paired(
            evidence, "step_generation_requests", "step_context_tokens", "step_ms"
        )
        if ms > 0
    ]


def pure_decode_ms(rows: list[tuple[float, float, float]]) -> dict[int, float]:
    """Median duration of pure decode iterations by batch, in powers of two (batch 17 to 32 under 32)."""
    groups: dict[int, list[float]] = defaultdict(list)
    for requests, tokens, ms in rows:
        if requests and not tokens:
            groups[_size(requests)].append(ms)
    return {size: median(values) for size, values in groups.items()}


def _size(requests: float) -> int:
    return 1 << max(0, int(requests) - 1).bit_length()


def pure_size(pure: dict[int, float], requests: float) -> int:
    """The size in `pure_decode_ms` nearest to a number of decoding requests."""
    wanted = _size(requests)
    return min(sorted(pure), key=lambda s: abs(s - wanted))


def itl_split(
    evidence: Evidence, step_period_ms: float | None = None, gap_ms: float | None = None
) -> dict[str, Any]:
    """Mean ITL in parts: decode_step_ms, prefill_interference_ms, gap_ms, preemption_ms, each or None."""
    rows = iterations(evidence)
    out: dict[str, Any] = {
        "decode_step_ms": None, "prefill_interference_ms": None, "gap_ms": gap_ms, "preemption_ms": None,
        "mixed_share": None, "mixed_step_p50_ms": None, "decode_step_p50_ms": None, "source": None,
        "missing": [],
    }  # fmt: skip
    pure = pure_decode_ms(rows)
    if sum(1 for requests, tokens, _ in rows if requests and not tokens) >= MIN_PURE and pure:

        def base(requests: float) -> float:
            return pure[pure_size(pure, requests)]

        decoding = [r for r in rows if r[0]]
        waits = sum(requests for requests, _, _ in decoding)
        mixed = [(requests, ms) for requests, tokens, ms in decoding if tokens]
        extra = sum(requests * max(0.0, ms - base(requests)) for requests, ms in mixed)
        whole = sum(requests * ms for requests, _, ms in decoding) / waits
        out.update(
            decode_step_ms=whole - extra / waits, prefill_interference_ms=extra / waits,
            mixed_share=sum(r for r, _ in mixed) / waits,
            mixed_step_p50_ms=median(ms for _, ms in mixed) if mixed else None,
            decode_step_p50_ms=median(ms for requests, tokens, ms in rows if requests and not tokens),
            source="iteration lines",
        )  # fmt: skip
    elif step_period_ms is not None:
        out.update(decode_step_ms=step_period_ms - (gap_ms or 0.0), source="trace")
        out["missing"].append(
            "prefill interference: iteration lines (vLLM --enable-logging-iteration-details)"
        )
    else:
        out["missing"].append(
            "decode step: iteration lines (vLLM --enable-logging-iteration-details) or a trace"
        )
    if gap_ms is None:
        out["missing"].append("gap between steps: a trace of the same load")
    if _total(evidence, "preemptions"):
        out["missing"].append("time lost to preemption: per-request traces; only the count is stated")
    return out


def ttft_parts(split: dict[str, Any]) -> dict[str, float]:
    """The known parts of mean TTFT in ms, by name; what they leave over is one part, told as not split."""
    whole, queue, prefill = split["ttft_mean_ms"], split["queue_ms"], split["prefill_ms"]
    parts = {"queue": queue, "prefill": prefill, "front end and first token out": split["other_ms"]}
    known = {k: float(v) for k, v in parts.items() if v is not None and v > 0}
    if (
        whole is not None
        and split["other_ms"] is None
        and known
        and (rest := whole - sum(known.values())) > 0
    ):
        known["not split"] = rest
    return known


def itl_parts(split: dict[str, Any]) -> dict[str, float]:
    """The known parts of mean ITL in ms, by name."""
    parts = {
        "decode step": split["decode_step_ms"], "prefill interference": split["prefill_interference_ms"],
        "gap between steps": split["gap_ms"], "preemption": split["preemption_ms"],
    }  # fmt: skip
    return {k: float(v) for k, v in parts.items() if v is not None}
