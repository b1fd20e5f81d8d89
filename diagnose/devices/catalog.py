"""The table of known devices: `catalog.csv`, one row a device as the driver reports it.

Columns: `reported_names` are the names a trace can carry, separated by `|`; `memory_gib` is nominal and
`memory_bytes` what the driver reports, where seen; rates are dense TFLOP/s and GB/s (1e9), `host_gbs` and
`peer_gbs` per direction (`peer_ranks` devices share such links) and before protocol overhead. `confidence`
and `source` say how sure each row is and where it was read.
"""

import csv
import difflib
from dataclasses import dataclass
from functools import cache
from importlib import resources

from diagnose.devices.spec import DTYPES, DeviceSpec
from diagnose.errors import UsageError

GIB = 2**30
MIB = 2**20


@dataclass(frozen=True)
class CatalogRow:
    """A catalogued device with every name it is reported under."""

    spec: DeviceSpec
    reported_names: tuple[str, ...]
    nominal_bytes: int


def _number(text: str, scale: float = 1.0) -> float | None:
    return float(text) * scale if text else None


def _whole(text: str, scale: int = 1) -> int | None:
    return int(text) * scale if text else None


def _row(row: dict[str, str]) -> CatalogRow:
    names = tuple(row["reported_names"].split("|"))
    nominal = int(row["memory_gib"]) * GIB
    host = _number(row["host_gbs"], 1e9)
    spec = DeviceSpec(
        key=row["key"],
        name=names[0],
        vendor=row["vendor"],
        arch=row["arch"],
        sm_count=_whole(row["sm_count"]),
        memory_bytes=_whole(row["memory_bytes"]) or nominal,
        l2_bytes=_whole(row["l2_mib"], MIB),
        cache_bytes=_whole(row["cache_mib"], MIB),
        peak_bandwidth=_number(row["bandwidth_gbs"], 1e9),
        peak_compute={d: float(row[d]) * 1e12 for d in DTYPES if row[d]},
        link_kind=row["host_link"],
        link_h2d=host,
        link_d2h=host,
        peer=_number(row["peer_gbs"], 1e9),
        peer_ranks=int(row["peer_ranks"] or 0),
        confidence=row["confidence"],
        notes=row["notes"],
        source=row["source"],
    )
    return CatalogRow(spec, names, nominal)


@cache
def catalog() -> tuple[CatalogRow, ...]:
    """Every catalogued device, in file order."""
    text = resources.files("diagnose.devices").joinpath("catalog.csv").read_text(encoding="utf-8")
    return tuple(_row(row) for row in csv.DictReader(text.splitlines()))


def catalog_keys() -> list[str]:
    """The keys that `--device` accepts, in file order, `cpu` last."""
    return [row.spec.key for row in catalog()] + ["cpu"]


CPU = DeviceSpec(
    key="cpu",
    name="cpu",
    vendor="",
    arch="cpu",
    sm_count=None,
    memory_bytes=None,
    notes="No roofs until a device file gives them (`diagnose calibrate --device cpu`).",
)


def by_key(key: str) -> DeviceSpec:
    """The device of that catalog key. UsageError, with the nearest keys, when there is none."""
    wanted = key.strip().lower()
    if wanted == "cpu":
        return CPU
    for row in catalog():
        if row.spec.key == wanted:
            return row.spec
    near = difflib.get_close_matches(wanted, catalog_keys(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`diagnose roofs` lists the keys."
    raise UsageError(f"unknown device {key!r}: {hint}")
