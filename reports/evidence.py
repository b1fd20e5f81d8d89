"""Serving evidence and ranks in words and tables: the free-form parts of the result, in the shapes
docs/report.md lists."""

from __future__ import annotations

from typing import Any

from diagnose.contract import Diagnosis
from diagnose.reports.charts.figure import Column, Table
from diagnose.reports.charts.latency import METRICS
from diagnose.reports.numbers import UNKNOWN, count, duration, percent, quantity, sig3, time_unit
from diagnose.reports.text import clean, sentence
from diagnose.reports.words import bucket_label, words

_PATTERN = {
    "steady": "steadily slower",
    "rare": "held up by a few rare stalls",
    "mixed": "late again and again, not always",
}


def _rows(value: Any) -> list[dict[str, Any]]:
    return [row for row in value or [] if isinstance(row, dict)]


def _span(low: Any, high: Any) -> str:
    if high is None:
        return f"above {sig3(low)}"
    return f"{sig3(low)}–{sig3(high)}"


def latency_sources(d: Diagnosis) -> Table | None:
    """Each latency by source (client, engine), with the histogram bucket a quantile lies in where that is all
    there is."""
    latency = d.latency or {}
    engine = latency.get("engine") or {}
    columns = [
        Column("metric", numeric=False),
        Column("source", numeric=False),
        Column("mean", "ms", "measured"),
    ]
    columns += [Column(q, "ms", "measured") for q in ("p50", "p90", "p99")] + [
        Column("max", "ms", "measured")
    ]
    rows = []
    for key, name in METRICS.items():
        for stats in (latency.get(key), engine.get(key)):
            if not isinstance(stats, dict):
                continue
            bounds = stats.get("bounds") or {}
            cells = [_span(*bounds[q]) if q in bounds else sig3(stats.get(q)) for q in ("p50", "p90", "p99")]
            rows.append(
                [
                    name,
                    clean(stats.get("source")) or UNKNOWN,
                    sig3(stats.get("mean")),
                    *cells,
                    sig3(stats.get("max")),
                ]
            )
    return Table("Latencies by source", columns, rows) if engine and rows else None


def latency_remarks(d: Diagnosis) -> list[str]:
    """Sentences on the latencies: requests counted, sources that disagree, reconciliation, what would
    complete a split."""
    latency = d.latency or {}
    remarks = []
    done, failed = latency.get("completed"), latency.get("failed")
    if done is not None:
        rate = latency.get("requests_s")
        text = f"{count(done)} requests completed" + (f" at {sig3(rate)} per second" if rate else "")
        remarks.append(sentence(text + (f"; {count(failed)} failed" if failed else "")))
    for row in _rows(latency.get("disagreements")):
        name = METRICS.get(str(row.get("metric")), words(str(row.get("metric"))))
        remarks.append(
            f"Client and engine disagree on mean {name}: {sig3(row.get('client_mean'))} against "
            f"{sig3(row.get('engine_mean'))} ms. The difference can sit in {clean(row.get('where'))}."
        )
    tie = latency.get("reconciliation")
    if isinstance(tie, dict):
        remarks.append(
            f"Median gap between tokens {sig3(tie.get('itl_p50_ms'))} ms, traced step period "
            f"{sig3(tie.get('step_period_ms'))} ms: {clean(tie.get('reading'))}."
        )
    detail = latency.get("split_detail") or {}
    share = (detail.get("ttft") or {}).get("prefix_hit_share")
    if isinstance(share, int | float):
        remarks.append(
            f"{percent(share)} of the prompt tokens looked up were in the prefix cache: prefill computed the others."
        )
    rest = (detail.get("itl") or {}).get("rest_ms")
    if isinstance(rest, int | float):
        where = (
            "streaming, detokenising or preemption"
            if rest > 0
            else "the iterations are of other requests or another window"
        )
        remarks.append(f"The parts of the token gap leave {sig3(rest)} ms of its mean: {where}.")
    for part in detail.values():
        if isinstance(part, dict) and part.get("missing"):
            remarks.append(sentence("To split it further: " + "; ".join(map(str, part["missing"]))))
    return remarks


def representative(d: Diagnosis) -> tuple[str, Table | None, list[str]]:
    """(sentence, checks, notes) on whether the traced steps are the deploy that was slow."""
    value = d.representative or {}
    checks = _rows(value.get("checks"))
    columns = [
        Column("quantity", numeric=False),
        Column("traced"),
        Column("in the run", numeric=False),
        Column("percentile of the traced"),
        Column("alike", numeric=False),
    ]
    rows = [
        [
            clean(c.get("quantity")),
            quantity(c.get("traced"), clean(c.get("unit"))),
            _in_the_run(c.get("run") or {}),
            UNKNOWN if c.get("percentile") is None else count(round(c["percentile"])),
            "yes" if c.get("inside") else "no",
        ]
        for c in checks
    ]
    table = Table("Traced steps against the run", columns, rows) if rows else None
    return sentence(value.get("message")), table, [sentence(n) for n in value.get("notes") or []]


def _in_the_run(stats: dict[str, Any]) -> str:
    """A distribution by its median and ends, anything else as it is."""
    if {"p50", "min", "max"} <= set(stats):
        of = f", {count(round(stats['n']))} samples" if stats.get("n") else ""
        return f"p50 {sig3(stats['p50'])}, {sig3(stats['min'])} to {sig3(stats['max'])}{of}"
    return ", ".join(f"{clean(k)} {sig3(v)}" for k, v in stats.items()) or UNKNOWN


def straggler(d: Diagnosis) -> str:
    """Who the others wait for and why, in one sentence; '' when nobody stands out."""
    late = (d.rank_summary or {}).get("straggler")
    if not isinstance(late, dict):
        return ""
    text = (
        f"{clean(late.get('label'))} causes {percent(late.get('share_of_wait'))} of the waiting: "
        f"{_PATTERN.get(str(late.get('pattern')), clean(late.get('pattern')))}, last into "
        f"{count(late.get('late_in'))} of "
        f"{count(late.get('of'))} collectives, {duration(late.get('cost_ns'))} "
        f"({percent(late.get('cost_share'))} of the "
        "time in common) for a typical other rank"
    )
    cause = late.get("cause")
    if isinstance(cause, dict):
        detail = f" ({clean(words(cause.get('detail')))})" if cause.get("detail") else ""
        more = bucket_label(str(cause.get("bucket")))
        text += f". It spends {duration(cause.get('ns'))} more than the others in {more}{detail}"
    return sentence(text)


def rank_tables(d: Diagnosis) -> list[Table]:
    """Ranks side by side, pipeline waits, and expert kernels, as far as the summary holds them."""
    summary = d.rank_summary or {}
    tables = []
    ranks = _rows(summary.get("ranks"))
    if ranks:
        unit = time_unit([v for r in ranks for v in (r.get("transfer_ns"), r.get("wait_ns"))])
        columns = [
            Column("rank", numeric=False),
            Column("collectives"),
            Column("matched"),
            Column("transfer", unit.name, "derived"),
            Column("waiting", unit.name, "derived"),
            Column("waiting", "%", "derived"),
            Column("waiting it caused", unit.name, "derived"),
            Column("last into"),
            Column("clock skew", "µs", "derived"),
        ]
        rows = [
            [
                clean(r.get("label")),
                count(r.get("collectives")),
                count(r.get("matched")),
                unit.text(r.get("transfer_ns")),
                unit.text(r.get("wait_ns")),
                percent(r.get("wait_share")).removesuffix(" %"),
                unit.text(r.get("caused_wait_ns")),
                count(r.get("late_in")),
                _microseconds(r.get("skew_ns")),
            ]
            for r in ranks
        ]
        tables.append(Table("Ranks side by side", columns, rows))
    stages = _rows(summary.get("pipeline"))
    if stages:
        unit = time_unit([v for s in stages for v in (s.get("receive_wait_ns"), s.get("send_wait_ns"))])
        columns = [
            Column("rank", numeric=False),
            Column("transfers"),
            Column("waits to receive", unit.name, "derived"),
            Column("waits to send", unit.name, "derived"),
            Column("receive waits", "%", "derived"),
        ]
        rows = [
            [
                clean(s.get("label")),
                count(s.get("transfers")),
                unit.text(s.get("receive_wait_ns")),
                unit.text(s.get("send_wait_ns")),
                percent(s.get("receive_wait_share")).removesuffix(" %"),
            ]
            for s in stages
        ]
        tables.append(Table("Pipeline: waits between stages", columns, rows))
    experts = summary.get("experts")
    if isinstance(experts, dict) and experts.get("by_rank_ns"):
        times = experts["by_rank_ns"]
        unit = time_unit(times.values())
        columns = [Column("rank", numeric=False), Column("expert kernels", unit.name, "measured")]
        tables.append(
            Table("Expert kernels by rank", columns, [[clean(k), unit.text(v)] for k, v in times.items()])
        )
    return tables


def _microseconds(ns: Any) -> str:
    return UNKNOWN if ns is None else sig3(float(ns) / 1e3)


def memory_remarks(d: Diagnosis) -> list[str]:
    """Notes of the memory budget and of its parts."""
    memory = d.memory or {}
    of_parts = [
        f"{clean(p.get('name'))}: {clean(p['note'])}" for p in _rows(memory.get("parts")) if p.get("note")
    ]
    return [sentence(n) for n in [*(memory.get("notes") or []), *of_parts]]
