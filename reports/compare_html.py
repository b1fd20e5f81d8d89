"""The page of a comparison: one offline HTML file, by the same rules as the page of a diagnosis."""

from __future__ import annotations

from typing import Any

from diagnose.reports import compare_charts as charts
from diagnose.reports import compare_tables as tables
from diagnose.reports import compare_view as view
from diagnose.reports import html as page
from diagnose.reports.compare_json import to_json
from diagnose.reports.text import clean, shorten
from diagnose.reports.words import limit_name
from diagnose.settle.comparison import Comparison

SECTIONS = (
    ("verdict", "Verdict"),
    ("metrics", "Metrics"),
    ("moved", "What moved"),
    ("kernels", "Kernels"),
    ("alone", "No partner"),
    ("limits", "Limits"),
    ("quantization", "Quantisation"),
    ("batching", "Batching"),
    ("quality", "Quality"),
    ("provenance", "Provenance"),
)


def to_html(c: Comparison) -> str:
    """The whole page. Every string of the inputs is escaped; the page loads nothing and runs only its two own scripts."""
    return page._environment().get_template("compare.html.j2").render(_context(c))


def _context(c: Comparison) -> dict[str, Any]:
    from markupsafe import Markup

    data, encoding = page.embed_json(to_json(c))
    parts = page.page_parts(f"{view.mark(c.verdict.overall)}: {view.title_of(c)}", c.tool_version)
    withheld, named = view.differences(c)
    splits = view.deltas(c)
    return {
        **parts,
        "css": parts["css"] + Markup(page._text("templates/compare.css")),
        "sections": [s for s in SECTIONS if _has(c, s[0])],
        "shown": {s[0] for s in SECTIONS if _has(c, s[0])},
        "schema": c.schema,
        "before_files": view.files(c.before),
        "after_files": view.files(c.after),
        "overall": c.verdict.overall,
        "overall_mark": view.mark(c.verdict.overall),
        "headline": view.headline_parts(c)[0],
        "after_headline": view.headline_parts(c)[1],
        "cause": limit_name(c.verdict.cause) if c.verdict.cause else "",
        "why": [clean(line) for line in c.verdict.why],
        "notes": view.notes(c),
        "withheld": withheld,
        "named": named,
        "rows": view.rows(c),
        "marks": {v: view.mark(v) for v in view.VERDICT},
        "side_table": tables.side_table(c),
        "metrics_figure": charts.metrics_figure(c),
        "splits": [
            {
                "delta": d,
                "sides": charts.sides_figure(d, at),
                "moved": charts.delta_figure(d, at),
                "table": tables.role_table(d),
            }
            for at, d in enumerate(splits)
        ],
        "kernel_columns": tables.KERNEL_COLUMNS,
        "kernel_rows": tables.kernel_lines(c),
        "kernel_count": len(c.kernels),
        "kernel_finding": tables.kernel_finding(c),
        "unmatched": tables.unmatched_table(c),
        "limits": view.limit_lines(c),
        "bets": view.bet_lines(c),
        "quant_lines": view.quant_lines(c),
        "quant_table": tables.quant_table(c),
        "batch_message": (c.batching or {}).get("message", ""),
        "batch_table": tables.batch_table(c),
        "what_if": charts.what_if_figure(c),
        "quality": (c.quality or {}).get("message", ""),
        "eval_table": tables.eval_table(c),
        "point_table": tables.point_table(c),
        "source_table": tables.source_table(c),
        "download_name": f"{page.slug(shorten(view.files(c.before), 24))}-{page.slug(shorten(view.files(c.after), 24))}.compare.json",
        "data": data,
        "data_encoding": encoding,
    }


def _has(c: Comparison, section: str) -> bool:
    """Whether a section has anything to say; those that every comparison owes its reader always stand."""
    return {
        "kernels": bool(c.kernels),
        "alone": bool(c.unmatched),
        "limits": bool(c.limits or c.hypotheses),
        "quantization": c.quantization is not None,
        "batching": c.batching is not None,
        "quality": c.quality is not None,
    }.get(section, True)
