"""Numbers for people: three significant digits, one unit a column, `unknown` where there is none."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

UNKNOWN = "unknown"

_TIME = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))
_BYTES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_NS_PER = {"ns": 1.0, "µs": 1e3, "us": 1e3, "ms": 1e6, "s": 1e9}
_BYTES_PER = {"B": 1.0, "bytes": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_RATE = re.compile(r"[%/]|FLOP|^(?:Hz|MHz|GHz|W|°C)$")  # measures, never counts, however round the number
_FLOP = (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("FLOP", 1.0))


def sig3(value: float | None, unknown: str = UNKNOWN) -> str:
    """Three significant digits without an exponent between 0.0001 and 10**15: 84.53 -> 84.5, 1465.2 ->
    1,470."""
    if value is None or not math.isfinite(value):
        return unknown
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    rounded = round(value, 2 - exponent)
    if rounded and math.floor(math.log10(abs(rounded))) > exponent:  # 9.996 -> 10.0, not 10.00
        exponent += 1
    if abs(rounded) < 1e-4 or abs(rounded) >= 1e15:
        return f"{rounded:.2e}"
    return f"{rounded:,.{max(0, 2 - exponent)}f}"


def count(value: int | float | None, unknown: str = UNKNOWN) -> str:
    """An exact count with thousands separators; a mean count keeps three digits."""
    if value is None:
        return unknown
    if isinstance(value, float) and not value.is_integer():
        return sig3(value, unknown)
    return f"{int(value):,}"


def percent(share: float | None, unknown: str = UNKNOWN) -> str:
    """A share of 1 as a percentage: 0.8634 -> `86.3 %`."""
    return unknown if share is None or not math.isfinite(share) else f"{_percent_digits(100 * share)} %"


def _percent_digits(value: float) -> str:
    """Three significant digits as in the rules' sentences, one decimal at most below 0.1, and never `100` for what is not all of
    it nor `0` for what is not nothing."""
    if 99.95 <= value < 100:
        return "> 99.9"
    if 0 < value < 0.1:
        return "< 0.1"
    if value in {0, 100}:
        return f"{value:.0f}"
    return sig3(value)


def confidence(value: float | None) -> str:
    """Two decimals: a probability is never known better."""
    return UNKNOWN if value is None else f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class Unit:
    """A display unit for a whole column: name and how many base units it holds."""

    name: str
    scale: float

    def text(self, value: float | None, unknown: str = UNKNOWN) -> str:
        """The number alone, in this unit."""
        return sig3(None if value is None else value / self.scale, unknown)


def _unit_for(values: Iterable[float | None], table: Sequence[tuple[str, float]]) -> Unit:
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    for name, scale in table:
        if largest >= scale:
            return Unit(name, scale)
    return Unit(*table[-1])


def time_unit(values_ns: Iterable[float | None]) -> Unit:
    """The one unit in which a column of nanoseconds reads well: that of its largest value."""
    return _unit_for(values_ns, _TIME)


def duration(value_ns: float | None) -> str:
    """A duration with its unit: 84531000 -> `84.5 ms`."""
    if value_ns is None:
        return UNKNOWN
    unit = time_unit([value_ns])
    return f"{unit.text(value_ns)} {unit.name}"


def byte_size(value: float | None) -> str:
    """Bytes with a decimal unit: 25.5e9 -> `25.5 GB`."""
    if value is None:
        return UNKNOWN
    unit = _unit_for([value], _BYTES)
    return f"{unit.text(value)} {unit.name}"


def flop_count(value: float | None) -> str:
    """Floating-point operations with a decimal unit."""
    if value is None:
        return UNKNOWN
    unit = _unit_for([value], _FLOP)
    return f"{unit.text(value)} {unit.name}"


def quantity(value: float | str | None, unit: str) -> str:
    """A value of a typed fact with its unit.

    Times and sizes are shown in the unit that reads well (0.00610 GB is 6.10 MB); a whole number of things (calls,
    kernels, requests) is a count; a `share` is a percentage, a `ratio` a factor.
    """
    if isinstance(value, str):
        return value if not unit else f"{value} {unit}"
    if value is None:
        return UNKNOWN
    if unit in _NS_PER:
        return duration(value * _NS_PER[unit])
    if unit in _BYTES_PER:
        return byte_size(value * _BYTES_PER[unit])
    if unit == "share":
        return percent(value)
    if unit in {"ratio", "x"}:
        return f"{sig3(value)} ×"
    whole = float(value).is_integer() and not _RATE.search(unit)
    text = count(int(value)) if whole else sig3(value)
    if text == "1" and re.fullmatch(r"[a-z]+s", unit):
        unit = re.sub("ies$", "ys", unit)[:-1]  # 1 copy, 1 gap
    return text if unit in {"", "count"} else f"{text} {unit}"


def interval(low: float | None, high: float | None, unit: str) -> str:
    """A range with one unit: `14.6–15.4 ms`; an open end is said in words."""
    if low is None and high is None:
        return UNKNOWN
    if unit in _NS_PER:
        low, high = (None if v is None else v * _NS_PER[unit] for v in (low, high))
        scale = time_unit([low, high])
        low, high = (None if v is None else v / scale.scale for v in (low, high))
        unit = scale.name
    elif unit == "share":
        low, high = (None if v is None else 100 * v for v in (low, high))
        unit = "%"
    unit = "×" if unit in {"ratio", "x"} else unit
    suffix = f" {unit}" if unit else ""
    if low is None:
        return f"at most {sig3(high)}{suffix}"
    if high is None:
        return f"at least {sig3(low)}{suffix}"
    if sig3(low) == sig3(high):
        return f"about {sig3(low)}{suffix}"
    # A dash between two numbers of which one is negative reads as a sign.
    dash = " to " if low < 0 or high < 0 else "–"
    return f"{sig3(low)}{dash}{sig3(high)}{suffix}"
