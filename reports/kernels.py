"""The kernel table: its columns, and the longest rows as texts for the page before any script has run."""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.contract import KernelRow
from diagnose.reports.numbers import UNKNOWN, count, sig3
from diagnose.reports.text import clean, shorten
from diagnose.reports.words import bucket_label, words


@dataclass(frozen=True, slots=True)
class KernelColumn:
    """A column of the kernel table; `key` is the contract's field, or `share` and `per_call`, computed for display."""

    key: str
    label: str
    unit: str = ""
    provenance: str | None = None
    numeric: bool = True


COLUMNS = [
    KernelColumn("name", "Kernel", numeric=False),
    KernelColumn("phase", "Phase", numeric=False),
    KernelColumn("count", "Calls", provenance="measured"),
    KernelColumn("time_ns", "Time", "ms", "measured"),
    KernelColumn("share", "Share", "%", "measured"),
    KernelColumn("per_call", "Per call", "µs", "measured"),
    KernelColumn("tflops", "Rate", "TFLOP/s", "derived"),
    KernelColumn("gbps", "Traffic", "GB/s", "derived"),
    KernelColumn("intensity", "Intensity", "FLOP/B", "derived"),
    KernelColumn("percent_of_roof", "Of roof", "%", "derived"),
    KernelColumn("bound", "Bound", numeric=False),
    KernelColumn("reason", "Reason", numeric=False),
    KernelColumn("cost_source", "Cost source", numeric=False),
]


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A row as texts: full name, what it computes, and the cells after the name."""

    name: str
    sub: str
    cells: list[str]


def kernel_lines(kernels: list[KernelRow], limit: int) -> list[KernelLine]:
    """The `limit` longest rows; page.js writes further rows the same way."""
    total = sum(k.time_ns for k in kernels) or 1
    ranked = sorted(kernels, key=lambda k: -k.time_ns)[:limit]
    return [KernelLine(k.name, _sub(k), _cells(k, total)) for k in ranked]


def _sub(k: KernelRow) -> str:
    parts = [k.op or k.role or k.family, k.shape, k.dtype]
    return " · ".join(shorten(words(part), 90) for part in parts if part)


def _cells(k: KernelRow, total_ns: int) -> list[str]:
    phase = "whole window" if k.phase == "other" else clean(k.phase or "outside steps")
    reason = "; ".join(clean(part) for part in (k.reason, *map(words, k.flags)) if part)
    return [
        phase,
        count(k.count),
        sig3(k.time_ns / 1e6),
        sig3(100 * k.time_ns / total_ns),
        sig3(k.time_ns / k.count / 1e3) if k.count else UNKNOWN,
        sig3(k.tflops),
        sig3(k.gbps),
        sig3(k.intensity),
        sig3(k.percent_of_roof),
        clean(bucket_label(k.bound)),
        reason or "not stated",
        clean(words(k.cost_source)) or "none",
    ]
