"""What-if over devices: every part of the step re-timed on the other device's roofs, gaps and floors kept.

A part at a roof scales with that roof; a part far from it (inefficient) may scale or may not; host gaps,
floors and what is not modelled stay. So a faster memory helps exactly the share of the step that was at the
memory roof. Measured reminder: the same kernels on H100 and H200 at equal batch gained 0-4 % end to end for
1.43 times the bandwidth in host-bound serving.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TimedPart:
    """`ms` of a step spent under one bound: hbm, compute, inefficient, floor, communication, copy, idle,
    unmodelled."""

    bound: str
    ms: float
    dtype: str = "bf16"


@dataclass(frozen=True, slots=True)
class Rates:
    """Sustained rates of a device: bytes/s, FLOP/s by dtype, memory in bytes; `price` an hour, any
    currency."""

    name: str
    bandwidth: float | None
    flops: dict[str, float]
    memory_bytes: float | None = None
    price: float | None = None


def retime(parts: Sequence[TimedPart], here: Rates, there: Rates, tokens_per_step: float | None = None,
           price_here: float | None = None) -> dict[str, Any]:  # fmt: skip
    """The step on another device: {step_ms: [low, high], speedup: [low, high], kept_ms, conditions}.

    Communication and copies are kept only if the links are alike, which is stated. None for a ratio that is
    unknown.
    """
    memory = here.bandwidth / there.bandwidth if here.bandwidth and there.bandwidth else None
    low = high = kept = before = 0.0
    unknown: list[str] = []
    for part in parts:
        before += part.ms
        math = here.flops.get(part.dtype), there.flops.get(part.dtype)
        compute = math[0] / math[1] if math[0] and math[1] else None
        edges = (1.0, 1.0)
        if part.bound == "hbm" and memory is not None:
            # measured spread of the gain of memory-bound kernels: 0.70-0.75 of the time where the peaks say
            # 0.70
            edges = (memory, memory + 0.05) if memory < 1 else (memory - 0.05, memory)
        elif part.bound == "compute" and compute is not None:
            edges = (compute * 0.95, compute * 1.05)
        elif part.bound == "inefficient":
            ratios = [r for r in (memory, compute) if r is not None]
            edges = (min([1.0, *ratios]), max([1.0, *ratios]))
        else:
            kept += part.ms
            if part.bound in {"hbm", "compute"}:
                unknown.append(part.bound)
        low, high = low + part.ms * edges[0], high + part.ms * edges[1]
    conditions = ["same software, clocks not capped, same batch and context", "host gaps and floors as here"]
    if any(p.bound == "inefficient" for p in parts):
        conditions.append("time far from both roofs between unchanged and scaled")
    if any(p.bound in {"communication", "copy"} for p in parts):
        conditions.append("links between devices and to the host as here")
    if unknown:
        conditions.append(
            "a roof of one device is unknown: " + ", ".join(sorted(set(unknown))) + " kept as here"
        )
    out: dict[str, Any] = {
        "device": there.name, "step_ms": [low, high], "speedup": [before / high,
        before / low] if low and high else None,
        "kept_ms": kept, "conditions": conditions, "provenance": "derived",
    }  # fmt: skip
    if tokens_per_step:
        rates = [tokens_per_step / high * 1e3, tokens_per_step / low * 1e3]
        out["tok_s"] = rates
        if there.price:
            out["tokens_per_price"] = [r * 3600 / there.price for r in rates]
        if price_here:
            out["tokens_per_price_here"] = tokens_per_step / before * 1e3 * 3600 / price_here
    return out
