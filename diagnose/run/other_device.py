"""What-if over devices: the step re-timed on another device's roofs, gaps and floors kept."""

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
    """One row a phase and other device; empty without roofs of the device it ran on.

    Without a trace the decode step is the one built from the evidence (`Diagnosis.useful_batch`), where there is one. `price`
    is per hour of the other device, in any currency.
    """
    if here is None:
        return []
    rows: list[dict[str, Any]] = []
    for phase, parts, tokens in _traced(d) if d.devices else _served(d):
        for key, roofs in others:
            row = retime(parts, rates(here), rates(roofs, price), tokens)
            rows.append({
                "key": key, "phase": phase, "step_ms_here": sum(p.ms for p in parts), "device_here": here.spec.name or here.spec.key,
                "bandwidth_ratio": _over(roofs.plateau_bandwidth, here.plateau_bandwidth),
                "memory_ratio": _over(roofs.spec.memory_bytes, here.spec.memory_bytes), **row,
            })  # fmt: skip
    return rows


def _over(there: float | None, here: float | None) -> float | None:
    return there / here if there and here else None


def _traced(d: Diagnosis) -> list[tuple[str, list[TimedPart], float | None]]:
    """(phase, parts of its step, tokens of a step) of every phase."""
    found = []
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
        found.append((phase.phase, parts, tokens / phase.steps if tokens else None))
    return found


def _served(d: Diagnosis) -> list[tuple[str, list[TimedPart], float | None]]:
    """The decode step that the evidence gives: weights and KV at the memory roof, prefill at the compute roof, and a rest that
    nothing explains, which may scale or not."""
    useful = d.useful_batch or {}
    ms = useful.get("parts_ms")
    if not isinstance(ms, dict):
        return []
    dtype = str((d.model or {}).get("dtype") or "bf16")
    parts = [
        TimedPart("hbm", ms["weights"] + ms["kv"], dtype), TimedPart("compute", ms["prefill"], dtype),
        TimedPart("inefficient", ms["other"], dtype), TimedPart("idle", ms["gap"]), TimedPart("floor", ms["floor"]),
        TimedPart("communication", ms["communication"]),
    ]  # fmt: skip
    return [("decode", [p for p in parts if p.ms > 0], useful.get("now"))]


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
