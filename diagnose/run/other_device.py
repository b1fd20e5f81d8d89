"""What-if over devices: the traced step re-timed on another device's roofs, gaps and floors kept."""

from typing import Any

from diagnose.contract import Diagnosis
from diagnose.devices import DTYPES, Roofs
from diagnose.serving.what_if_device import Rates, TimedPart, retime


def rates(roofs: Roofs, price: float | None = None) -> Rates:
    """Sustained plateaus of a device."""
    flops = {dtype: rate for dtype in DTYPES if (rate := roofs.plateau_compute(dtype)) is not None}
    return Rates(
        roofs.spec.name or roofs.spec.key, roofs.plateau_bandwidth, flops, roofs.spec.memory_bytes, price
    )


def devices(
    d: Diagnosis, here: Roofs | None, others: list[tuple[str, Roofs]], price: float | None
) -> list[dict[str, Any]]:
    """One row a phase and other device; empty without roofs of the device that ran the trace.

    `price` is per hour of the other device, in any currency.
    """
    rows: list[dict[str, Any]] = []
    if here is None:
        return rows
    for phase in d.phases:
        mine = [
            k for k in d.kernels if k.phase == phase.phase or (phase.phase == "other" and k.phase is None)
        ]
        dtypes = sorted({k.dtype for k in mine if k.dtype})
        parts = [
            TimedPart(bound, ns / phase.steps / 1e6, dtype)
            for bound in ("compute", "hbm", "floor", "inefficient", "unmodelled")
            for dtype in (dtypes or ["bf16"])
            if (ns := _time(d, phase.phase, bound, dtype, dtypes))
        ]
        split = phase.attribution_ns
        parts += [
            TimedPart(name, ns / phase.steps / 1e6)
            for name, ns in (
                ("communication", split["communication"] + split["comm_wait"]),
                ("copy", split["copy"]),
                ("idle", sum(n for b, n in split.items() if b.startswith("idle"))),
            )
            if ns
        ]
        tokens = phase.tokens.get("decode") or phase.tokens.get("prefill")
        for key, roofs in others:
            row = retime(parts, rates(here), rates(roofs, price), tokens / phase.steps if tokens else None)
            rows.append({"key": key, "phase": phase.phase, "step_ms_here": sum(p.ms for p in parts), **row})
    return rows


def _time(d: Diagnosis, phase: str, bound: str, dtype: str, dtypes: list[str]) -> float:
    """Exclusive time of a bound in a phase, shared over dtypes as the kernels' own times are."""
    found = next(p for p in d.phases if p.phase == phase)
    total = found.attribution_ns[bound]
    if not dtypes:
        return float(total)
    by = {x: 0.0 for x in dtypes}
    for k in d.kernels:
        if (k.phase == phase or (phase == "other" and k.phase is None)) and k.bound == bound:
            by[k.dtype or dtypes[0]] += k.time_ns
    whole = sum(by.values())
    return total * by[dtype] / whole if whole else (float(total) if dtype == dtypes[0] else 0.0)
