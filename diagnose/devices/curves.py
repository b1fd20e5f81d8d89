"""Fitted coefficients (`curves.toml`) and how to read a curve.

A curve is a list of (size, value) points with ascending sizes, read by straight lines in log-log and flat
beyond its ends. `benchmarks/fit_roofs.py` writes the file; docs/roofs.md says from what and how well it fits.
"""

import math
import tomllib
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

Points = tuple[tuple[float, float], ...]


def read(points: Points, size: float) -> float:
    """The curve's value at `size`."""
    if size <= points[0][0]:
        return points[0][1]
    if size >= points[-1][0]:
        return points[-1][1]
    i = bisect_right(points, size, key=lambda point: point[0])
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    share = math.log(size / x0) / math.log(x1 / x0)
    return float(y0 * (y1 / y0) ** share)


@dataclass(frozen=True)
class MemoryCurve:
    """Time to move bytes through device memory. `roof` and `typical` are (bytes, ns), floor included.

    `floor_ns` is the time of the smallest weight-streaming GEMM and `stream_floor_ns` that of the smallest
    kernel of any kind, which is shorter: elementwise kernels have no prologue.
    """

    device: str
    bandwidth: float
    floor_ns: float
    stream_floor_ns: float
    roof: Points
    typical: Points
    origin: str


@dataclass(frozen=True)
class GemmCurve:
    """Constants of the tile model (see `tiles.py`) for one device and dtype.

    `level` is (FLOP, factor on the modelled time); `rate` is (FLOP, FLOP/s) of the best shape of that size,
    for work of unknown shape; `typical_*` are (roof ns, factor from roof to median) by the side of the roof.
    """

    device: str
    dtype: str
    peak: float
    quantised: bool
    start_ns: float
    tile_ns: float
    level: Points
    rate: Points
    typical_memory: Points
    typical_compute: Points
    origin: str


@dataclass(frozen=True)
class AttentionCurve:
    """Causal prefill attention: by head dimension, (length, FLOP/s) counting half the square; roof and
    median."""

    device: str
    peak: float
    roof: dict[int, Points]
    typical: dict[int, Points]
    origin: str


@dataclass(frozen=True)
class DecodeCurve:
    """Median time of paged decode attention by KV bytes read, for one KV dtype."""

    device: str
    kv_dtype: str
    bandwidth: float
    typical: Points
    origin: str


@dataclass(frozen=True)
class Curves:
    """All fitted curves, by device key (and dtype)."""

    memory: dict[str, MemoryCurve]
    gemm: dict[tuple[str, str], GemmCurve]
    attention: dict[str, AttentionCurve]
    decode: dict[tuple[str, str], DecodeCurve]


def _points(value: Any) -> Points:
    return tuple((float(x), float(y)) for x, y in value)


@cache
def curves() -> Curves:
    """The committed coefficients."""
    text = resources.files("diagnose.devices").joinpath("curves.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    memory = {
        t["device"]: MemoryCurve(
            t["device"],
            t["bandwidth"],
            t["floor_ns"],
            t["stream_floor_ns"],
            _points(t["roof"]),
            _points(t["typical"]),
            t["origin"],
        )
        for t in data["memory"]
    }
    gemm = {
        (t["device"], t["dtype"]): GemmCurve(
            t["device"],
            t["dtype"],
            t["peak"],
            t["quantised"],
            t["start_ns"],
            t["tile_ns"],
            _points(t["level"]),
            _points(t["rate"]),
            _points(t["typical_memory"]),
            _points(t["typical_compute"]),
            t["origin"],
        )
        for t in data["gemm"]
    }
    attention = {
        t["device"]: AttentionCurve(
            t["device"],
            t["peak"],
            {int(d): _points(p) for d, p in t["roof"].items()},
            {int(d): _points(p) for d, p in t["typical"].items()},
            t["origin"],
        )
        for t in data["attention"]
    }
    decode = {
        (t["device"], t["kv_dtype"]): DecodeCurve(
            t["device"], t["kv_dtype"], t["bandwidth"], _points(t["typical"]), t["origin"]
        )
        for t in data["decode"]
    }
    return Curves(memory, gemm, attention, decode)
