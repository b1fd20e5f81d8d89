"""The SM clock the device really ran at, where GPU metrics sampled it, against the clock its peak is defined at."""

from diagnose.devices import Roofs
from diagnose.store import Store

# Multiply-adds of fp16 with fp32 accumulation an SM does per clock (vendor whitepapers: A100, H100/H200, B200). The
# datasheet peak is this times SMs times the clock it is quoted at, so the peak gives that clock back.
_MACS = {"sm_80": 1024, "sm_90": 2048, "sm_100": 4096}

# Below this the roofs are those of the clock, not of the datasheet: sampling and boost steps scatter by a few percent.
LOW_CLOCK = 0.93


def nominal_clock_hz(roofs: Roofs | None) -> float | None:
    """Clock at which the device's fp16 peak is quoted; None where the architecture's rate is not known."""
    if roofs is None or not roofs.spec.sm_count:
        return None
    macs, peak = _MACS.get(roofs.spec.arch), roofs.spec.peak_compute.get("fp16")
    return peak / (2 * macs * roofs.spec.sm_count) if macs and peak else None


def clock_shares(store: Store, roofs: dict[int, Roofs | None]) -> dict[int, float]:
    """By device, the median sampled SM clock over its nominal clock, capped at 1; only devices with samples."""
    if "counter" not in store.names():
        return {}
    out: dict[int, float] = {}
    for device, typical in store.rows(
        "SELECT device_id, quantile_cont(value, 0.5) FROM counter WHERE metric = 'gpc_clock' AND value > 0 GROUP BY 1"
    ):
        nominal = nominal_clock_hz(roofs.get(device))
        if nominal and typical:
            out[device] = min(1.0, float(typical) / nominal)
    return out
