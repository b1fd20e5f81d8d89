"""What quantising weights (or the KV cache) would do to a step: its share of the step times a measured
kernel ratio.

step after / before = 1 - share + share / ratio, where share is the part of the step spent in the kernels
that change and ratio is bf16 time / quantised time as measured for kernels of that size at that number of
tokens. Ratios below 1 exist: a loss can be predicted. Where nothing was measured for the case, nothing is
predicted.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_FAMILY = {
    "h100": "hopper",
    "h200": "hopper",
    "h800": "hopper",
    "gh200": "hopper",
    "b200": "blackwell",
    "b300": "blackwell",
}


@dataclass(frozen=True, slots=True)
class Ratio:
    """One measured ratio of times, bf16 / quantised: low, middle and high of the shapes measured."""

    method: str
    device: str
    phase: str
    m: tuple[float, float]
    mb: tuple[float, float]
    low: float
    mid: float
    high: float
    scope: str
    source: str


@cache
def ratios() -> tuple[Ratio, ...]:
    """The table of measured ratios."""
    text = resources.files("diagnose.serving").joinpath("quant_ratio.csv").read_text(encoding="utf-8")
    out = []
    for r in csv.DictReader(text.splitlines()):
        out.append(
            Ratio(
                r["method"], r["device"], r["phase"], (float(r["m_low"]), float(r["m_high"])),
                (float(r["mb_low"]), float(r["mb_high"])), float(r["ratio_low"]), float(r["ratio_mid"]),
                float(r["ratio_high"]), r["scope"], r["source"],
            )
        )  # fmt: skip
    return tuple(out)


def device_class(name: str) -> tuple[str, ...]:
    """Keys of the table that cover a device, most specific first."""
    text = name.lower()
    keys = [k for k in ("gh200", "h100", "h200", "h800", "b200", "b300", "a100") if k in text]
    keys += [_FAMILY[k] for k in keys if k in _FAMILY]
    return (*dict.fromkeys(keys), "any")


def find_ratio(
    method: str, device: str, m: float, megabytes: float | None = None, phase: str = "decode"
) -> Ratio | None:
    """The measured ratio for a method on a device at `m` tokens a step and a weight matrix of `megabytes`
    (bf16).

    None where nothing was measured. Without a size the rows of the largest matrices are used, as serving
    GEMMs are.
    """
    for key in device_class(device):
        for row in ratios():
            size = row.mb[0] <= megabytes < row.mb[1] if megabytes is not None else row.mb[1] == float("inf")
            same = (row.method, row.device) == (method, key) and row.phase in {"any", phase}
            if same and size and row.m[0] <= m <= row.m[1]:
                return row
    return None


def step_ratio(share: float, ratio: float) -> float:
    """Speed-up of a step of which `share` gets `ratio` times faster (below 1: slower)."""
    return 1.0 / (1.0 - share + share / ratio)


def predict(method: str, device: str, m: float, shares: Sequence[tuple[float, float | None]],
phase: str = "decode",
            ) -> dict[str, Any] | None:  # fmt: skip
    """Speed-up of the step: {low, mid, high, rows, scope}. `shares`: (share of the step, MB of the matrix
    in bf16) for each group of kernels that would change. None when no group has a measured ratio; groups
    without one are left as they are and named in `unmeasured_share`."""
    edges = {"low": 0.0, "mid": 0.0, "high": 0.0}
    used, unmeasured, kept = [], 0.0, 1.0
    for share, size in shares:
        row = find_ratio(method, device, m, size, phase)
        if row is None:
            unmeasured += share
            continue
        if row.scope == "step":
            return {
                "low": row.low, "mid": row.mid, "high": row.high, "scope": "end to end, as published",
                "sources": [row.source], "unmeasured_share": 0.0, "provenance": "assumed",
            }  # fmt: skip
        kept -= share
        for name, ratio in (("low", row.low), ("mid", row.mid), ("high", row.high)):
            edges[name] += share / ratio
        used.append(row.source)
    if not used:
        return None
    return {
        **{k: 1.0 / (kept + v) for k, v in edges.items()}, "scope": "this step",
        "sources": list(dict.fromkeys(used)),
        "unmeasured_share": unmeasured, "provenance": "derived",
    }  # fmt: skip
