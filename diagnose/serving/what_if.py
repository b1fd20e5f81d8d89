"""What-if over batch: a step's time rebuilt from its parts, and with it gaps between tokens, throughput, KV
and limits.

Each part follows its own law: weights flat to the knee, then with the tokens; KV reads with batch and
context; floors and gaps flat; work a request does with the batch. Prefill, collectives and what no part
explains are carried as an interval between "flat" and "grows with the batch", so that ignorance widens the
answer instead of hiding in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MARGIN = 0.03
"""Run-to-run spread of a step's parts when nothing changes; measured GEMM times below the knee move by up
to 6 %."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """A decode step at `batch` sequences of `context` tokens, in ms. `weights_at(batch)` gives the weight
    part as a function; without it weights are flat up to `knee` tokens and proportional beyond.
    `prefill_ms` is the prefill work that a step carries on average; `other_ms` what no part explains."""

    batch: float
    context: float
    weights_ms: float
    kv_ms: float
    floor_ms: float = 0.0
    gap_ms: float = 0.0
    gap_per_sequence_ms: float = 0.0
    comm_ms: float = 0.0
    prefill_ms: float = 0.0
    other_ms: float = 0.0
    knee: float | None = None
    weights_at: Callable[[float], float] | None = None
    accepted: float = 1.0
    verified: float = 1.0

    @property
    def step_ms(self) -> float:
        """The sum of the parts."""
        return (
            self.weights_ms + self.kv_ms + self.floor_ms + self.gap_ms + self.gap_per_sequence_ms * self.batch
            + self.comm_ms + self.prefill_ms + self.other_ms
        )  # fmt: skip


def weights_factor(parts: StepParts, batch: float) -> tuple[float, float]:
    """(low, high) factor of the weight part at another batch."""
    if parts.weights_at is not None:
        ratio = parts.weights_at(batch) / parts.weights_at(parts.batch)
        return min(ratio, ratio * (1 - MARGIN)), max(ratio, ratio * (1 + MARGIN))
    if parts.knee is None:
        # without a compute roof the part lies between flat and proportional
        grown = batch / parts.batch
        return (1.0, max(1.0, grown)) if grown >= 1 else (grown, 1.0)
    before, after = (max(1.0, b * parts.verified / parts.knee) for b in (parts.batch, batch))
    ratio = after / before
    return ratio * (1 - MARGIN), ratio * (1 + 2 * MARGIN)


def step_at(parts: StepParts, batch: float, context: float | None = None) -> tuple[float, float]:
    """(low, high) step time in ms at another batch and mean context."""
    context = parts.context if context is None else context
    grown = batch / parts.batch
    w_low, w_high = weights_factor(parts, batch)
    kv = parts.kv_ms * grown * (context / parts.context if parts.context else 1.0)
    fixed = parts.floor_ms + parts.gap_ms + parts.gap_per_sequence_ms * batch
    # prefill grows with the batch in a steady stream; of a burst it is done before the decodes begin
    loose = parts.comm_ms + parts.other_ms + parts.prefill_ms
    edges = sorted((loose, loose * grown))
    low = parts.weights_ms * w_low + kv * (1 - MARGIN) + fixed * (1 - MARGIN) + edges[0]
    high = parts.weights_ms * w_high + kv * (1 + MARGIN) + fixed * (1 + MARGIN) + edges[1]
    return low, high


@dataclass(frozen=True, slots=True)
class Caps:
    """What stops the batch: pool and tokens a sequence holds, slots, captured graphs, latency lines."""

    pool_tokens: float | None = None
    resident_tokens: float | None = None
    slots: int | None = None
    graph_max_batch: int | None = None
    slo_itl_ms: float | None = None
    slo_ttft_ms: float | None = None
    prefill_ms: float | None = None

    def kv_wall(self) -> float | None:
        """Sequences the pool holds at the tokens they were seen to hold."""
        if not self.pool_tokens or not self.resident_tokens:
            return None
        return self.pool_tokens / self.resident_tokens


def batch_row(parts: StepParts, batch: float, caps: Caps) -> dict[str, Any]:
    """One point of the curve: step and ITL in ms, tokens a second, KV used, caps it is at or beyond."""
    low, high = step_at(parts, batch)
    if batch == parts.batch:
        low = high = parts.step_ms
    middle = (low + high) / 2
    wall = caps.kv_wall()
    marks = ["measured here"] if batch == parts.batch else []
    limits = (("KV wall", wall), ("slots", caps.slots), ("captured graphs", caps.graph_max_batch))
    for name, limit in limits:
        if limit is not None and int(limit) == int(batch):
            marks.append(name)
    tokens = batch * parts.accepted * 1e3
    row: dict[str, Any] = {
        "batch": batch, "step_ms": middle, "step_ms_low": low, "step_ms_high": high,
        "itl_ms": middle / parts.accepted, "itl_ms_low": low / parts.accepted,
        "itl_ms_high": high / parts.accepted,
        "tok_s": tokens / middle, "tok_s_low": tokens / high, "tok_s_high": tokens / low,
        "kv_used_share": batch / wall if wall else None, "marks": marks,
        "beyond": [name for name, limit in limits if limit is not None and batch > limit],
        "provenance": "measured" if batch == parts.batch else "derived",
    }  # fmt: skip
    if caps.slo_itl_ms is not None:
        row["slo_itl_ms"] = caps.slo_itl_ms
        fits, fails = row["itl_ms_high"] <= caps.slo_itl_ms, row["itl_ms_low"] > caps.slo_itl_ms
        row["meets_itl_slo"] = True if fits else False if fails else None
    if caps.slo_ttft_ms is not None and caps.prefill_ms is not None:
        # a prompt waits for the running iteration, then is computed; queueing comes on top
        least, most = caps.prefill_ms + low / 2, caps.prefill_ms + high
        row.update(
            slo_ttft_ms=caps.slo_ttft_ms, ttft_without_queue_ms_low=least, ttft_without_queue_ms_high=most
        )
        row["meets_ttft_slo"] = False if least > caps.slo_ttft_ms else None
    return row


def batch_curve(parts: StepParts, caps: Caps, batches: Sequence[float] | None = None) -> list[dict[str, Any]]:
    """Points at powers of two, the measured batch, the caps and the wall; in order. Beyond the wall or the
    slots a point says what the step would cost, not that the engine would run it."""
    if batches is None:
        top = max(
            2 * parts.batch, *(float(c) for c in (caps.slots, caps.graph_max_batch, caps.kv_wall()) if c), 8.0
        )
        points = {float(1 << i) for i in range(13) if (1 << i) <= min(top * 1.01, 4096)} | {
            float(parts.batch)
        }
        points |= {float(int(c)) for c in (caps.slots, caps.graph_max_batch, caps.kv_wall()) if c and c >= 1}
        batches = sorted(p for p in points if p >= 1)
    rows = [batch_row(parts, b, caps) for b in batches]
    for row in rows:
        row["gain_of_doubling_low"], row["gain_of_doubling_high"] = marginal_gain(parts, row["batch"])
    return rows


def marginal_gain(parts: StepParts, batch: float) -> list[float]:
    """(low, high) throughput factor of doubling the batch from here: 2 x (step at B) / (step at 2B), each part by its law.

    A part whose law is open follows the same one at both batches, so its doubt does not count twice; twice the batch never
    makes more than twice the tokens. Where KV bytes dominate the factor is near 1, however much KV space there is.
    """
    ratios = [
        2 * _step(parts, batch, grows, weights) / _step(parts, 2 * batch, grows, weights)
        for grows in (False, True)
        for weights in (0, 1)
    ]
    return [min(ratios) * (1 - MARGIN), min(2.0, max(ratios) * (1 + MARGIN))]


def _step(parts: StepParts, batch: float, grows: bool, weights: int) -> float:
    """Step time in ms with the open parts flat or growing with the batch, weights at their low (0) or high (1) factor."""
    grown = batch / parts.batch
    loose = parts.comm_ms + parts.other_ms + parts.prefill_ms
    return (
        parts.weights_ms * weights_factor(parts, batch)[weights] + parts.kv_ms * grown + parts.floor_ms + parts.gap_ms
        + parts.gap_per_sequence_ms * batch + loose * (grown if grows else 1.0)
    )  # fmt: skip


def crossover_batch(parts: StepParts) -> float | None:
    """The batch at which KV reads take as long as weight reads, at this context; None without KV reads."""
    if parts.kv_ms <= 0 or parts.batch <= 0:
        return None
    return parts.weights_ms / (parts.kv_ms / parts.batch)


def useful_batch(parts: StepParts, caps: Caps, min_gain: float = 1.10) -> dict[str, Any]:
    """The largest batch worth running: under caps and the ITL line for certain (`batch`) and at best
    (`batch_at_best`), and the one from which doubling gains less than `min_gain` (`flattens_at`). Where no cap and no line is
    known, or the line holds as far as is looked, there is none to name."""
    wall = caps.kv_wall()
    limits = [c for c in (wall, caps.slots) if c]
    top = int(min(limits)) if limits else 4096
    sure = best = None
    flattens = None
    for batch in range(1, max(top, 1) + 1):
        low, high = step_at(parts, batch)
        if caps.slo_itl_ms is None or high / parts.accepted <= caps.slo_itl_ms:
            sure = batch
        if caps.slo_itl_ms is None or low / parts.accepted <= caps.slo_itl_ms:
            best = batch
        if flattens is None and marginal_gain(parts, batch)[1] < min_gain:
            flattens = batch
    binding = None
    if sure == top and not limits:
        sure = best = None
    elif best == top and not limits:
        best = None
    if sure is not None and sure == top and limits:
        binding = "kv_wall" if wall and int(wall) == top else "slots"
    elif caps.slo_itl_ms is not None:
        binding = "slo_itl"
    return {"batch": sure, "batch_at_best": best, "flattens_at": flattens, "stopped_by": binding}
