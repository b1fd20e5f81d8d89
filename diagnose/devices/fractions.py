"""Published sustained fractions of peak (`sustained.csv`) for devices without a fitted curve."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from diagnose.devices.spec import DeviceSpec

# Dtypes that do not share a device's 16-bit fraction of peak.
OWN_FRACTION = frozenset({"fp32", "fp64", "fp4"})


@dataclass(frozen=True)
class Fraction:
    """Share of the peak that the best measured kernels sustain, and who measured it."""

    value: float
    source: str


@cache
def _table() -> dict[tuple[str, str, str], Fraction]:
    text = resources.files("diagnose.devices").joinpath("sustained.csv").read_text(encoding="utf-8")
    return {
        (row["key"], row["resource"], row["dtype"]): Fraction(float(row["fraction"]), row["source"])
        for row in csv.DictReader(text.splitlines())
    }


def sustained_fraction(spec: DeviceSpec, resource: str, dtype: str = "") -> Fraction:
    """The most specific entry: this device and dtype, this device, the vendor, then any device.

    `dtype` is the math dtype for compute, `pcie` or `c2c` for links. fp32, fp64 and fp4 do not share a
    device's 16-bit fraction, so for them only entries of that dtype count.
    """
    table = _table()
    order = [
        (spec.key, dtype),
        (spec.key, ""),
        (spec.vendor, dtype),
        (spec.vendor, ""),
        ("*", dtype),
        ("*", ""),
    ]
    if dtype == "int8":
        order.insert(1, (spec.key, "fp8"))
    if dtype in OWN_FRACTION:
        order = [(spec.key, dtype), (spec.vendor, dtype), ("*", dtype)]
    for key, kind in order:
        if found := table.get((key, resource, kind)):
            return found
    return table["*", resource, ""]
