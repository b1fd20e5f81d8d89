"""Roofs as rows: for `diagnose roofs`, and the result's `devices[].roofs`."""

from typing import Any

from diagnose.devices.catalog import catalog
from diagnose.devices.fractions import sustained_fraction
from diagnose.devices.roofs import Roofs
from diagnose.devices.spec import DTYPES, DeviceSpec

MB = 1e6
# Sizes printed for the memory roof, and edges of square bf16 products for compute.
_SIZES = (4 * MB, 32 * MB, 256 * MB)
_EDGES = (1024, 4096)


def roof_rows(roofs: Roofs) -> list[dict[str, Any]]:
    """One dictionary a roof with the fields of `contract.RoofRow`. GB/s, TFLOP/s, and µs for the floors."""
    rows: list[dict[str, Any]] = []
    spec = roofs.spec
    if roofs.plateau_bandwidth is not None:
        provenance, origin = roofs.provenance("hbm")
        rates = ", ".join(f"{b / MB:.0f} MB {_gbs(roofs.memory_ns(b), b)}" for b in _SIZES)
        rows.append(
            _row("hbm", "", _scaled(spec.peak_bandwidth, 1e9), roofs.plateau_bandwidth / 1e9, "GB/s",
                 provenance, f"by kernel size: {rates} GB/s", origin)
        )  # fmt: skip
    for dtype in DTYPES:
        plateau = roofs.plateau_compute(dtype)
        if plateau is None:
            continue
        provenance, origin = roofs.provenance("compute", dtype)
        note = ", ".join(f"{e} cubed {_tflops(roofs, e, dtype)}" for e in _EDGES)
        rows.append(
            _row("compute", dtype, _scaled(spec.peak_compute.get(dtype), 1e12), plateau / 1e12, "TFLOP/s",
                 provenance, f"best shapes; {note}", origin)
        )  # fmt: skip
    if not rows:
        return rows
    if ("kernel_floor", "") in roofs.overrides:
        known = ("measured", "device file")
    elif roofs.memory and roofs.memory.provenance == "derived":
        known = ("derived", "shortest kernels seen")
    else:
        known = ("assumed", "shortest kernels seen on other devices")
    rows.append(
        _row("kernel_floor", "", None, roofs.kernel_floor_ns / 1e3, "us", known[0],
             f"smallest GEMM {roofs.gemm_floor_ns / 1e3:.1f} us", known[1])
    )  # fmt: skip
    if roofs.launch_ns is not None:
        rows.append(_row("launch", "", None, roofs.launch_ns / 1e3, "us", "measured", None, "device file"))
    for direction in ("h2d", "d2h"):
        rate = roofs.link_rate(direction)
        if rate is None:
            continue
        override = roofs.overrides.get((f"link_{direction}", ""))
        kind = "c2c" if spec.link_kind == "nvlink-c2c" else "pcie"
        source = "device file" if override else sustained_fraction(spec, f"link_{direction}", kind).source
        peak = spec.link_h2d if direction == "h2d" else spec.link_d2h
        rows.append(
            _row(f"link_{direction}", "", _scaled(peak, 1e9), rate / 1e9, "GB/s",
                 override.provenance if override else "assumed",
                 f"{spec.link_kind or 'link'}, pinned memory", source)
        )  # fmt: skip
    if spec.peer is not None:
        ranks = spec.peer_ranks
        time = roofs.collective_ns("all_reduce", 512 * MB, ranks)
        bus = 2 * (ranks - 1) / ranks * 512 * MB / time if time else None
        rows.append(
            _row("peer", "", spec.peer / 1e9, bus, "GB/s", "assumed",
                 f"per direction; sustained is the bus bandwidth of a 512 MB all-reduce on {ranks} ranks",
                 "aiconfigurator-core NCCL and vLLM all-reduce tables, scaled by link")
        )  # fmt: skip
    return rows


def _row(
    resource: str, dtype: str, peak: float | None, sustained: float | None, unit: str, provenance: str,
    note: str | None, source: str | None,
) -> dict[str, Any]:  # fmt: skip
    return {"resource": resource, "dtype": dtype, "peak": peak, "sustained": sustained, "unit": unit,
            "provenance": provenance, "note": note, "source": source}  # fmt: skip


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _gbs(time: float | None, nbytes: float) -> str:
    return "-" if time is None else f"{nbytes / time:.0f}"


def _tflops(roofs: Roofs, edge: int, dtype: str) -> str:
    flops = 2.0 * edge**3
    time = roofs.compute_ns(flops, dtype, m=edge, n=edge, k=edge)
    return "-" if time is None else f"{flops / time / 1e3:.0f} TFLOP/s"


def roofs_table(spec: DeviceSpec | None = None) -> list[dict[str, Any]]:
    """Rows for `diagnose roofs [DEVICE]`: the roofs of one device, or a line for each catalogued one.

    With a device: `roof_rows`. Without: key, name, sm_count, memory_gb, hbm and bf16 peak and sustained
    (GB/s, TFLOP/s), provenance, confidence.
    """
    if spec is not None:
        return roof_rows(Roofs(spec))
    rows = []
    for entry in catalog():
        roofs = Roofs(entry.spec)
        dtype = "bf16" if "bf16" in entry.spec.peak_compute else "fp16"
        rows.append({
            "key": entry.spec.key,
            "name": entry.spec.name,
            "sm_count": entry.spec.sm_count,
            "memory_gb": round((entry.spec.memory_bytes or 0) / 1e9, 1),
            "hbm_peak": _scaled(entry.spec.peak_bandwidth, 1e9),
            "hbm_sustained": _scaled(roofs.plateau_bandwidth, 1e9),
            "half_peak": _scaled(entry.spec.peak_compute.get(dtype), 1e12),
            "half_sustained": _scaled(roofs.plateau_compute(dtype), 1e12),
            "provenance": roofs.provenance("hbm")[0],
            "confidence": entry.spec.confidence,
        })  # fmt: skip
    return rows
