"""Tables of a comparison, ready for a page or Markdown: metrics, sides, parts of the change, kernels, views, inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diagnose.reports.charts.figure import Column, Table
from diagnose.reports.compare_view import files, mark, role_label, rows
from diagnose.reports.numbers import UNKNOWN, byte_size, count, duration, sig3, time_unit
from diagnose.reports.text import clean, keep_units, sentence, shorten
from diagnose.reports.words import bucket_label, words
from diagnose.settle import say
from diagnose.settle.comparison import Comparison, Delta, KernelChange, SideInfo

KERNELS_SHOWN = 30


@dataclass(frozen=True, slots=True)
class KernelLine:
    """A pair of kernels in texts."""

    name: str
    former: str
    work: str
    verdict: str
    cells: list[str]


def metric_table(c: Comparison) -> Table:
    """All metrics as a table."""
    columns = [
        Column("metric", numeric=False), Column("before", "", "measured"), Column("after", "", "measured"), Column("unit", numeric=False),
        Column("change", "", "derived"), Column("95 % interval", "", "derived", numeric=False), Column("verdict", numeric=False),
        Column("noise from", numeric=False), Column("why", numeric=False),
    ]  # fmt: skip
    return Table(
        "Metrics, judged together",
        columns,
        [
            [r.name, r.before, r.after, r.unit, r.change, r.interval, mark(r.verdict), f"{r.noise}{', ' + r.samples if r.samples else ''}", r.reason]
            for r in rows(c)
        ],
    )  # fmt: skip


def side_table(c: Comparison) -> Table:
    """What each side is, side by side; what is not known is said to be unknown."""

    def steps(s: SideInfo) -> str:
        if s.steps:
            return ", ".join(
                f"{n:,} {phase if phase != 'other' else ''}".strip() for phase, n in s.steps.items()
            )
        return f"none found: a window of {duration(s.window_ns)}" if s.window_ns else UNKNOWN

    facts: list[tuple[str, Any]] = [
        ("input", files),
        ("runs", lambda s: count(s.runs)),
        (
            "device",
            lambda s: (
                (f"{s.devices} × " if s.devices > 1 else "") + (clean(s.device) or UNKNOWN)
                if s.devices
                else "no trace"
            ),
        ),
        ("model", lambda s: clean(s.model) or UNKNOWN),
        ("engine", lambda s: clean(s.engine) or UNKNOWN),
        ("precision", lambda s: clean(s.precision) or UNKNOWN),
        ("steps", steps),
    ]
    columns = [Column("", numeric=False), Column("before", numeric=False), Column("after", numeric=False)]
    return Table("The two sides", columns, [[label, fact(c.before), fact(c.after)] for label, fact in facts])


def role_table(d: Delta) -> Table:
    """Parts of the change that add up to it."""
    unit = time_unit([d.before_ns, d.after_ns])
    columns = [
        Column("part", numeric=False), Column("kind", numeric=False), Column("before", unit.name, "measured"),
        Column("after", unit.name, "measured"), Column("change", unit.name, "derived"), Column("of the change", "%", "derived"),
        Column("calls before"), Column("calls after"),
    ]  # fmt: skip
    table = []
    for r in d.roles:
        share = _signed_percent(r.change_ns, d.total_ns)
        table.append([
            clean(role_label(r.role)), r.kind, sig3(r.before_ns / unit.scale), sig3(r.after_ns / unit.scale), _signed(r.change_ns / unit.scale),
            share, "" if r.calls_before is None else sig3(r.calls_before), "" if r.calls_after is None else sig3(r.calls_after),
        ])  # fmt: skip
    table.append(
        [
            "total",
            "",
            sig3(d.before_ns / unit.scale),
            sig3(d.after_ns / unit.scale),
            _signed(d.total_ns / unit.scale),
            "100" if d.total_ns else "0",
            "",
            "",
        ]
    )
    return Table(f"Time per {d.unit}; the parts add up to the nanosecond", columns, table)


def _signed_percent(part: int, whole: int) -> str:
    """A part's share of the change in whole percent; a part that went the other way is negative."""
    value = round(100 * part / whole) if whole else 0
    return f"{value}" if value >= 0 else f"−{-value}"


def bucket_table(d: Delta) -> Table:
    """The same change by bucket."""
    unit = time_unit([d.before_ns, d.after_ns])
    columns = [
        Column("bucket", numeric=False),
        *(
            Column(x, unit.name, p)
            for x, p in (("before", "measured"), ("after", "measured"), ("change", "derived"))
        ),
    ]
    table = [
        [
            bucket_label(b),
            sig3(d.buckets_before[b] / unit.scale),
            sig3(d.buckets_after[b] / unit.scale),
            _signed(ns / unit.scale),
        ]
        for b, ns in d.buckets.items()
        if d.buckets_before.get(b) or d.buckets_after.get(b)
    ]
    table.append(
        [
            "total",
            sig3(d.before_ns / unit.scale),
            sig3(d.after_ns / unit.scale),
            _signed(d.total_ns / unit.scale),
        ]
    )
    return Table(f"Time by bucket per {d.unit}", columns, table)


def _signed(value: float) -> str:
    return "0" if value == 0 else f"{'+' if value > 0 else '−'}{sig3(abs(value))}"


KERNEL_COLUMNS = [
    Column("Kernel", numeric=False), Column("Calls", "per unit", "measured"), Column("Before", "µs a call", "measured"),
    Column("After", "µs a call", "measured"), Column("Change", "", "derived"), Column("95 % interval", "", "derived", numeric=False),
    Column("Impact", "µs per unit", "derived"), Column("Verdict", numeric=False), Column("Bound", numeric=False),
]  # fmt: skip


def kernel_lines(c: Comparison) -> list[KernelLine]:
    """The pairs with the largest impact."""
    return [_kernel(k) for k in c.kernels[:KERNELS_SHOWN]]


def _kernel(k: KernelChange) -> KernelLine:
    calls = (
        sig3(k.calls_before)
        if sig3(k.calls_before) == sig3(k.calls_after)
        else f"{sig3(k.calls_before)} → {sig3(k.calls_after)}"
    )
    bound = bucket_label(k.bound_before)
    if k.bound_after != k.bound_before:
        bound += f" → {bucket_label(k.bound_after)}"
    verdict = mark(k.verdict) + (", minor" if k.minor and k.verdict in ("improved", "regressed") else "")
    change = say.pct(k.change) + (" per unit" if k.per == "unit" else "")
    interval = UNKNOWN if k.low is None else keep_units(f"{say.pct(k.low)} to {say.pct(k.high)}")
    return KernelLine(
        name=k.name_after,
        former=k.name_before if k.renamed else "",
        work=" · ".join(
            clean(p) for p in (words(k.role), k.op, k.shape, k.phase if k.phase != "other" else None) if p
        ),
        verdict=k.verdict,
        cells=[
            calls,
            sig3(k.call_ns_before / 1e3),
            sig3(k.call_ns_after / 1e3),
            change,
            interval,
            _signed(k.impact_ns / 1e3),
            verdict,
            bound,
        ],
    )


def kernel_finding(c: Comparison) -> str:
    """A sentence over the kernel table."""
    judged = [k for k in c.kernels if not k.minor]
    changed = [k for k in judged if k.verdict in ("improved", "regressed")]
    renamed = sum(k.renamed for k in c.kernels)
    text = f"{len(c.kernels):,} kinds of kernel work are on both sides"
    text += f"; {len(changed):,} changed" if changed else "; none of them changed beyond its noise"
    if renamed:
        text += f"; {renamed:,} are done by another kernel now"
    return sentence(text)


def unmatched_table(c: Comparison) -> Table | None:
    """What has no partner on the other side."""
    if not c.unmatched:
        return None
    unit = time_unit([u.ns_per_unit for u in c.unmatched])
    columns = [
        Column("side", numeric=False),
        Column("what", numeric=False),
        Column("name", numeric=False),
        Column("detail", numeric=False),
        Column("time per unit", unit.name, "measured"),
    ]
    table = [
        [
            u.side,
            u.kind,
            shorten(u.name, 80),
            clean(u.detail),
            "" if u.ns_per_unit is None else unit.text(u.ns_per_unit),
        ]
        for u in c.unmatched
    ]
    return Table("Without a partner on the other side", columns, table)


def eval_table(c: Comparison) -> Table | None:
    """Scores of both evaluations with the standard error of their difference."""
    tasks = (c.quality or {}).get("tasks") or []
    if not tasks:
        return None
    columns = [
        Column("task", numeric=False), Column("metric", numeric=False), Column("before", "", "measured"), Column("after", "", "measured"),
        Column("change", "", "derived"), Column("95 % interval", "±", "derived"), Column("verdict", numeric=False), Column("why", numeric=False),
    ]  # fmt: skip
    table = []
    for t in tasks:
        half = "" if not t["stderr"] else sig3(1.96 * t["stderr"])
        table.append(
            [
                clean(t["task"]),
                clean(t["metric"]),
                sig3(t["before"]),
                sig3(t["after"]),
                _signed(t["change"]),
                half,
                mark(t["verdict"]),
                sentence(t["reason"]),
            ]
        )
    return Table("Quality, task by task", columns, table)


def point_table(c: Comparison) -> Table | None:
    """The points of a load sweep."""
    if not c.points:
        return None
    columns = [
        Column("load", numeric=False),
        Column("metric", numeric=False),
        Column("before", "", "measured"),
        Column("after", "", "measured"),
        Column("unit", numeric=False),
        Column("change", "", "derived"),
        Column("verdict", numeric=False),
    ]
    table = [
        [
            clean(p["load"]),
            p["metric"],
            sig3(p["before"]),
            sig3(p["after"]),
            p["unit"],
            say.pct(p["change"]),
            mark(p["verdict"]),
        ]
        for p in c.points
    ]
    return Table("Load points", columns, table)


def quant_table(c: Comparison) -> Table | None:
    """The quantisation view by phase."""
    q = c.quantization
    if not q or not q["phases"]:
        return None
    columns = [
        Column("phase", numeric=False),
        Column("products", "% of the time", "measured"),
        Column("of that near memory roof", "%", "derived"),
        Column("bytes, nominal", "×", "derived"),
        Column("bytes, encoded", "×", "derived"),
        Column("products", "× faster", "derived"),
        Column("predicted step", "× faster", "derived", numeric=False),
        Column("realised step", "× faster", "measured"),
        Column("stops paying at", "tokens a step", "assumed"),
    ]
    table = []
    for row in q["phases"]:
        predicted, realised = row["predicted"], row["realised"]
        table.append([
            "window" if row["phase"] == "other" else row["phase"], f"{100 * row['products_share']:.0f}", f"{100 * row['streaming_share']:.0f}",
            sig3((row["bytes_nominal"] or {}).get("ratio")), sig3((row["bytes_encoded"] or {}).get("ratio")), sig3(row["products_speedup"]),
            f"{predicted['low']:.2f}–{predicted['high']:.2f}" if predicted else UNKNOWN, sig3(realised["speedup"]) if realised else UNKNOWN,
            count(row["crossover_tokens"]) if row["crossover_tokens"] else UNKNOWN,
        ])  # fmt: skip
    return Table("Quantisation by phase", columns, table)


def batch_table(c: Comparison) -> Table | None:
    """The batching view, before and after."""
    b = c.batching
    if not b:
        return None
    columns = [Column("", numeric=False), Column("before"), Column("after")]
    reuse, knee = b["reuse"] or {}, b["knee"] or {}
    share = knee.get("batch_over_knee") or [None, None]

    def pct(v: float | None) -> str:
        return UNKNOWN if v is None else f"{100 * v:.0f} %"

    table = [
        ["batch, sequences", *(count(v) for v in b["batch"])],
        ["cap on sequences", *(UNKNOWN if v is None else clean(v) for v in b["slots"])],
        [
            "bytes of products a token",
            byte_size(reuse.get("bytes_per_token_before")),
            byte_size(reuse.get("bytes_per_token_after")),
        ],
        ["share of the knee" + (f" ({knee['tokens']:.0f} tokens)" if knee else ""), *(pct(v) for v in share)],
        ["KV pool free at its peak", *(pct(v) for v in b["kv_headroom"])],
        ["most requests waiting", *(count(v) for v in b["waiting_max"])],
    ]
    return Table("Batching", columns, table)


def source_table(c: Comparison) -> Table:
    """Every input of both sides."""
    columns = [Column(x, numeric=False) for x in ("side", "run", "file", "format", "profiler", "SHA-256")]
    table = []
    for side, info in (("before", c.before), ("after", c.after)):
        for at, run in enumerate(info.source, 1):
            for s in run:
                tool = f"{s.profiler or ''} {s.profiler_version or ''}".strip()
                table.append(
                    [
                        side,
                        str(at),
                        clean(s.path),
                        clean(s.format),
                        clean(tool) or UNKNOWN,
                        clean(s.sha256) or UNKNOWN,
                    ]
                )
    return Table("Inputs", columns, table)
