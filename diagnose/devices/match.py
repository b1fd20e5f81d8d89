"""From what a trace says about its device to a catalogued one, or to an honest 'unknown'.

Names are compared whole (not by prefix), ignoring case, underscores and NVIDIA's prefix, which old drivers
leave out. Memory and SM count then have to agree: one name can cover several products ("NVIDIA H100" is not
the 80 GB SXM), and a MIG slice carries its parent's name.
"""

import re
from dataclasses import dataclass, replace

from diagnose.devices.catalog import CPU, GIB, CatalogRow, catalog
from diagnose.devices.spec import DeviceSpec

# Drivers report 0.3 to 8 % less than nominal (reserved areas, ECC held in memory): lowest seen is A10G at
# 0.919 of 24 GiB; B300 reports decimal 288 GB, 0.931. Nothing reports more than nominal.
MEMORY_LOW, MEMORY_HIGH = 0.90, 1.02
# Above this difference a bandwidth that the driver itself reported replaces the catalogued one.
BANDWIDTH_TOLERANCE = 0.10

_MIG = re.compile(
    r"^(?P<parent>.*?)\s+MIG\s+(?P<slices>\d+)g\.(?P<gb>\d+)gb(?P<suffix>[+\w.]*)$", re.IGNORECASE
)
# A MIG device has 7 compute and 8 memory slices (NVIDIA MIG user guide).
_COMPUTE_SLICES, _MEMORY_SLICES = 7, 8


@dataclass(frozen=True)
class Match:
    """`spec` is None when the device is unknown; `note` says how it was recognised, or what to do."""

    spec: DeviceSpec | None
    note: str


def _plain(name: str) -> str:
    words = re.sub(r"[\s_]+", " ", name).strip().lower()
    return words.removeprefix("nvidia ").strip()


def _memory_fits(row: CatalogRow, memory_bytes: int) -> bool:
    return MEMORY_LOW <= memory_bytes / row.nominal_bytes <= MEMORY_HIGH


def _sms_fit(row: CatalogRow, sm_count: int) -> bool:
    return row.spec.sm_count is None or row.spec.sm_count == sm_count


def _describe(memory_bytes: int | None, sm_count: int | None) -> str:
    parts = []
    if memory_bytes:
        parts.append(f"{memory_bytes / GIB:.1f} GiB")
    if sm_count:
        parts.append(f"{sm_count} SMs")
    return " and ".join(parts) or "no memory size or SM count"


_ADVICE = "give it with --device KEY or a device file; no roofs are used until then"


def _reported(
    spec: DeviceSpec, memory_bytes: int | None, sm_count: int | None, bandwidth: float | None
) -> Match:
    """The catalogued device with what the trace itself reported, which is nearer the truth than a table."""
    notes = []
    peak = spec.peak_bandwidth
    if bandwidth and bandwidth > 0:
        if peak is None:
            peak = bandwidth
            notes.append(f"bandwidth {bandwidth / 1e9:.0f} GB/s as reported in the trace")
        elif abs(bandwidth / peak - 1) > BANDWIDTH_TOLERANCE:
            given, known = f"{bandwidth / 1e9:.0f} GB/s", f"{peak / 1e9:.0f}"
            notes.append(f"the trace reports {given} where the catalog has {known}: the trace's is used")
            peak = bandwidth
    elif peak is None:
        notes.append("its memory bandwidth is unpublished: no HBM roof")
    found = replace(
        spec,
        peak_bandwidth=peak,
        memory_bytes=memory_bytes or spec.memory_bytes,
        sm_count=sm_count or spec.sm_count,
    )
    return Match(found, "; ".join([f"catalog entry {spec.key}", *notes]))


def _match_mig(
    found: re.Match[str], memory_bytes: int | None, sm_count: int | None, bandwidth: float | None
) -> Match:
    """A slice of a device: SM share of the compute roofs, memory slices of bandwidth and cache."""
    gigabytes, slices = int(found["gb"]), int(found["slices"])
    parents = [row for row in catalog() if _plain(found["parent"]) in {_plain(n) for n in row.reported_names}]
    if not parents:
        return Match(None, f"unknown parent of the MIG slice {found[0]!r}: {_ADVICE}")
    parent = parents[0]
    memory_share = min(
        1.0, max(1, round(_MEMORY_SLICES * gigabytes * GIB / parent.nominal_bytes)) / _MEMORY_SLICES
    )
    full = parent.spec.sm_count
    if sm_count and full:
        sm_share, how = min(1.0, sm_count / full), f"{sm_count} of {full} SMs"
    else:
        sm_share, how = min(1.0, slices / _COMPUTE_SLICES), f"{slices} of {_COMPUTE_SLICES} compute slices"
    spec = parent.spec
    cut = replace(
        spec,
        name=found[0],
        sm_count=sm_count or (round(full * sm_share) if full else None),
        memory_bytes=memory_bytes or round(parent.nominal_bytes * memory_share),
        l2_bytes=round(spec.l2_bytes * memory_share) if spec.l2_bytes else None,
        cache_bytes=round(spec.cache_bytes * memory_share) if spec.cache_bytes else None,
        peak_bandwidth=spec.peak_bandwidth * memory_share if spec.peak_bandwidth else None,
        peak_compute={dtype: rate * sm_share for dtype, rate in spec.peak_compute.items()},
        peer=None,
        peer_ranks=0,
        sm_share=sm_share,
        memory_share=memory_share,
    )
    memory = f"{memory_share * _MEMORY_SLICES:.0f} of {_MEMORY_SLICES} memory slices"
    return Match(cut, f"MIG slice of {spec.key}: roofs scaled to {how} and {memory}")


def match_device(
    name: str, memory_bytes: int | None, sm_count: int | None, *, bandwidth: float | None = None
) -> Match:
    """The catalogued device behind a trace's device properties.

    `name` as reported (may be empty on ROCm), `memory_bytes` total memory, `sm_count` SMs or CUs, `bandwidth`
    the peak in B/s where the trace carries it (nsys does). Never raises; an unknown or contradictory device
    gives `spec` None, except that a reported bandwidth alone still makes an HBM roof.
    """
    wanted = _plain(name)
    if wanted == "cpu":
        return Match(CPU, CPU.notes)
    if mig := _MIG.match(name.strip()):
        return _match_mig(mig, memory_bytes, sm_count, bandwidth)
    rows = catalog()
    if not wanted:
        if not (memory_bytes and sm_count):
            return Match(None, f"the trace names no device ({_describe(memory_bytes, sm_count)}): {_ADVICE}")
        fits = [r for r in rows if r.spec.sm_count == sm_count and _memory_fits(r, memory_bytes)]
        if len(fits) != 1:
            several = "fits " + ", ".join(r.spec.key for r in fits) if fits else "fits nothing in the catalog"
            return Match(
                None, f"unnamed device with {_describe(memory_bytes, sm_count)} {several}: {_ADVICE}"
            )
        found = _reported(fits[0].spec, memory_bytes, sm_count, bandwidth)
        return Match(
            found.spec, f"{found.note} by {_describe(memory_bytes, sm_count)}: the trace gives no name"
        )
    named = [r for r in rows if wanted in {_plain(n) for n in r.reported_names}]
    fits = [
        r
        for r in named
        if (not memory_bytes or _memory_fits(r, memory_bytes)) and (not sm_count or _sms_fit(r, sm_count))
    ]
    if len(fits) == 1 and (memory_bytes or fits[0].spec.peak_bandwidth is not None):
        return _reported(fits[0].spec, memory_bytes, sm_count, bandwidth)
    if named:
        known = ", ".join(f"{r.spec.key} ({_describe(r.spec.memory_bytes, r.spec.sm_count)})" for r in named)
        why = f"{name!r} with {_describe(memory_bytes, sm_count)} is not the catalogued {known}"
    else:
        why = f"{name!r} is not in the catalog"
    return _unknown(name, why, memory_bytes, sm_count, bandwidth)


def _unknown(
    name: str, why: str, memory_bytes: int | None, sm_count: int | None, bandwidth: float | None
) -> Match:
    if not bandwidth or bandwidth <= 0:
        return Match(None, f"{why}: {_ADVICE}")
    spec = DeviceSpec(
        key="reported",
        name=name,
        vendor="",
        arch="",
        sm_count=sm_count,
        memory_bytes=memory_bytes,
        peak_bandwidth=bandwidth,
        confidence="low",
        provenance="measured",
        source="device properties in the trace",
    )
    return Match(
        spec,
        f"{why}: only the HBM roof is known, {bandwidth / 1e9:.0f} GB/s as reported in the trace; "
        "give the rest with --device KEY or a device file",
    )
