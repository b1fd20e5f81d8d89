"""The kernel table: its columns, and the longest rows as texts for the page before any script has run."""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.contract import KernelRow
from diagnose.reports.numbers import UNKNOWN, count, percent, sig3
from diagnose.reports.text import clean, shorten
from diagnose.reports.words import bucket_label, words


@dataclass(frozen=True, slots=True)
class KernelColumn:
    """A column of the kernel table; `key` is the contract's field, or `share` and `per_call`, computed for
    display."""

    key: str
    label: str
    unit: str = ""
    provenance: str | None = None
    numeric: bool = True


COLUMNS = [
    KernelColumn("name", "Kernel", numeric=False),
    KernelColumn("device", "Device"),
    KernelColumn("phase", "Phase", numeric=False),
    KernelColumn("time_ns", "Time", "ms", "measured"),
    KernelColumn("share", "Share", "%", "measured"),
    KernelColumn("count", "Calls", "", "measured"),
    KernelColumn("per_call", "Per call", "µs", "measured"),
    KernelColumn("bound", "Bound and reason", numeric=False),
    KernelColumn("percent_of_roof", "Of roof", "%", "derived"),
    KernelColumn("tflops", "Rate", "TFLOP/s", "derived"),
    KernelColumn("gbps", "Traffic", "GB/s", "derived"),
    KernelColumn("intensity", "Intensity", "FLOP/B", "derived"),
    KernelColumn("cost_source", "Cost source", numeric=False),
]


def columns_for(kernels: list[KernelRow]) -> list[KernelColumn]:
    """The columns; `device` only where rows come from more than one."""
    several = len({k.device for k in kernels}) > 1
    return [column for column in COLUMNS if column.key != "device" or several]


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A row as texts: full name, what it computes, why its bound, and the cells after the name by column."""

    name: str
    sub: str
    reason: str
    cells: dict[str, str]


def kernel_lines(kernels: list[KernelRow], limit: int) -> list[KernelLine]:
    """The `limit` longest rows; page.js writes further rows the same way."""
    total = sum(k.time_ns for k in kernels) or 1
    ranked = sorted(kernels, key=lambda k: -k.time_ns)[:limit]
    return [KernelLine(k.name, _sub(k), _reason(k), _cells(k, total)) for k in ranked]


def _sub(k: KernelRow) -> str:
    parts = [k.op or k.role or words(k.family), k.shape, k.dtype]
    return " · ".join(shorten(part, 90) for part in parts if part)


def _reason(k: KernelRow) -> str:
    return "; ".join(clean(part) for part in (k.reason, *map(words, k.flags)) if part)


def _cells(k: KernelRow, total_ns: int) -> dict[str, str]:
    return {
        "device": count(k.device),
        "phase": clean(k.phase or "outside steps"),
        "time_ns": sig3(k.time_ns / 1e6),
        "share": percent(k.time_ns / total_ns).removesuffix(" %"),
        "count": count(k.count),
        "per_call": sig3(k.time_ns / k.count / 1e3) if k.count else UNKNOWN,
        "bound": clean(bucket_label(k.bound)),
        "percent_of_roof": sig3(k.percent_of_roof),
        "tflops": sig3(k.tflops),
        "gbps": sig3(k.gbps),
        "intensity": sig3(k.intensity),
        "cost_source": clean(words(k.cost_source)) or "none",
    }
