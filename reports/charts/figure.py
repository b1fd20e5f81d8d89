"""What every chart hands to the page: a title that states the finding, a text alternative, a spec and its
table."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import altair as alt

# Page colours that follow light, dark and print; resolved by CSS inside the SVG.
FOREGROUND = "var(--fg)"
MUTED = "var(--muted)"
BACKGROUND = "var(--bg)"
ACCENT = "var(--accent)"


@dataclass(frozen=True, slots=True)
class Column:
    """A table column: label, unit (one for the whole column), provenance of its numbers, number or text."""

    label: str
    unit: str = ""
    provenance: str | None = None
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table of ready texts; `caption` says what it lists."""

    caption: str
    columns: list[Column]
    rows: list[list[str]]
    open: bool = False


@dataclass(frozen=True, slots=True)
class Swatch:
    """A legend entry: CSS or SVG paint, label, and the shape it has in the chart (`box`, `line`, `dash`,
    `dot`)."""

    color: str
    label: str
    shape: str = "box"
    hatch: str | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart. `height` is the whole figure's height in CSS pixels, so that nothing moves when it is
    drawn."""

    id: str
    title: str
    alt: str
    height: int
    spec: dict[str, Any]
    table: Table
    legend: list[Swatch] = field(default_factory=list)
    note: str = ""
    callouts: list[tuple[str, str]] = field(default_factory=list)


@contextlib.contextmanager
def drawing() -> Iterator[Any]:
    """The altair module, set to build without validating each object: specs are validated by the tests
    instead.

    Validation costs more than building (measured: 7 ms against 2 ms a chart).
    """
    import altair
    from altair.utils import schemapi

    with schemapi.debug_mode(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield altair


def log_axis(alt: Any, channel: Any, field_name: str, title: str, low: float, high: float) -> Any:
    """A logarithmic axis with a line and a label at each power of ten: more lines would hide the marks."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    every = 1 if last - first <= 8 else 2
    return channel(
        field_name,
        title=title,
        scale=alt.Scale(type="log", nice=False, domain=[low, high]),
        axis=alt.Axis(values=[10.0**power for power in range(first, last + 1, every)], format=",~g"),
    )


Rows = list[dict[str, Any]]


def significant(value: float, digits: int) -> float:
    """A number with so many significant digits: half of a page's data would be digits that nobody can see."""
    return float(f"{value:.{digits}g}")


def finish(chart: alt.Chart | alt.LayerChart, height: int, **rows: Rows) -> dict[str, Any]:
    """The Vega-Lite spec as a dict: fills its container, which has `height` pixels; styling is the page's.

    `rows` are the data that the chart names (`alt.NamedData("parts")`): altair would copy each of them for every layer,
    and a data frame costs more to import than a chart to draw.
    """
    sized: Any = chart.properties(width="container", height=height)
    spec: dict[str, Any] = sized.to_dict(validate=False)
    spec.pop("config", None)
    spec["height"] = "container"
    if rows:
        spec["datasets"] = {**spec.get("datasets", {}), **rows}
    return spec
