"""Tables that only restate parts of the result: inputs, devices, roofs, coverage, free-form parts."""

from __future__ import annotations

from typing import Any

from diagnose.contract import Diagnosis
from diagnose.reports.charts.figure import Column, Table
from diagnose.reports.numbers import UNKNOWN, byte_size, count, duration, percent, sig3, time_unit
from diagnose.reports.text import clean, shorten
from diagnose.reports.words import words


def source_table(d: Diagnosis) -> Table:
    """Every input file with what is known of it."""
    columns = [
        Column(label, numeric=False)
        for label in ("file", "format", "profiler", "software", "rank", "captured", "size", "SHA-256")
    ]
    rows = [
        [
            clean(s.path),
            clean(s.format),
            clean(f"{s.profiler or UNKNOWN} {s.profiler_version or ''}").strip(),
            clean(s.framework) or UNKNOWN,
            UNKNOWN
            if s.rank is None
            else f"{s.rank} of {s.world_size if s.world_size is not None else UNKNOWN}",
            clean(s.captured_at) or UNKNOWN,
            byte_size(s.bytes),
            clean(s.sha256) or UNKNOWN,
        ]
        for s in d.source
    ]
    return Table("Inputs", columns, rows)


def roof_table(d: Diagnosis) -> Table:
    """Every roof of every device with its provenance; equal devices are listed once."""
    columns = [
        Column("device", numeric=False),
        Column("resource", numeric=False),
        Column("dtype", numeric=False),
        Column("peak"),
        Column("sustained"),
        Column("unit", numeric=False),
        Column("provenance", numeric=False),
        Column("origin", numeric=False),
    ]
    rows: dict[tuple[str, ...], None] = {}
    for device in d.devices:
        for roof in device.roofs:
            origin = "; ".join(clean(v) for v in (roof.note, roof.source) if v)
            rows[
                clean(device.name or device.catalog_key) or UNKNOWN,
                words(roof.resource),
                clean(roof.dtype) or "any",
                sig3(roof.peak),
                sig3(roof.sustained),
                _unit(roof.unit),
                clean(roof.provenance),
                origin or "not stated",
            ] = None
    return Table("Roofs used", columns, [list(row) for row in rows])


def _unit(unit: str) -> str:
    return "µs" if unit == "us" else clean(unit)


def device_table(d: Diagnosis) -> Table:
    """Devices with activity and how each was recognised."""
    columns = [
        Column("device"),
        Column("name", numeric=False),
        Column("matched as", numeric=False),
        Column("SMs or CUs"),
        Column("memory", numeric=False),
        Column("window", numeric=False),
    ]
    rows = [
        [
            str(x.id),
            clean(x.name) or UNKNOWN,
            clean(x.catalog_key or UNKNOWN) + (f" ({clean(x.match_note)})" if x.match_note else ""),
            count(x.sm_count),
            byte_size(x.memory_bytes),
            duration(x.window.wall_ns),
        ]
        for x in d.devices
    ]
    return Table("Devices with activity", columns, rows)


def coverage_table(d: Diagnosis) -> Table | None:
    """What share of kernel time is linked and costed, and by which source."""
    c = d.coverage
    if c is None or not c.kernel_time_ns:
        return None
    unit = time_unit([c.kernel_time_ns])
    lines = [
        ("kernel time", c.kernel_time_ns),
        ("linked to an operator", c.linked_to_op_ns),
        ("replayed by graphs", c.in_graphs_ns),
        ("without a launch in the file", c.no_launch_ns),
        ("with a cost", c.with_cost_ns),
        *((f"cost from {clean(words(source))}", ns) for source, ns in c.by_source_ns.items()),
    ]
    rows = [[label, unit.text(ns), percent(ns / c.kernel_time_ns).removesuffix(" %")] for label, ns in lines]
    columns = [
        Column("kernel time", numeric=False),
        Column("time", unit.name, "measured"),
        Column("share", "%", "derived"),
    ]
    return Table("Coverage of kernel time", columns, rows)


def key_values(title: str, values: dict[str, Any] | None) -> Table | None:
    """A free-form part of the result (model, KV, ranks) as a two-column table, nested values flattened.

    Its `provenance` marks the values, its `message` is told beside it; None when nothing else is left.
    """
    provenance = values.get("provenance") if values else None
    values = {k: v for k, v in (values or {}).items() if k not in {"provenance", "message"}}
    if not values:
        return None
    rows: list[list[str]] = []

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                add(f"{prefix} {key}".strip(), inner)
        elif isinstance(value, list):
            rows.append(
                [clean(words(prefix)), shorten(", ".join(_plain(prefix, v) for v in value[:20]), 400)]
            )
        else:
            rows.append([clean(words(prefix)), _plain(prefix, value)])

    add("", values)
    unknown = [label for label, text in rows if text == UNKNOWN]
    rows = [row for row in rows if row[1] != UNKNOWN]
    if unknown:
        rows.append(["unknown", ", ".join(unknown)])
    return Table(title, [Column("what", numeric=False), Column("value", "", provenance, numeric=False)], rows)


def _plain(key: str, value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if key.endswith("_share"):
            return percent(value)
        if key.endswith("_bytes") and value >= 1e6:
            return byte_size(value)
        if key.endswith("_ns"):
            return duration(value)
        return count(value)
    return shorten(value, 400)
