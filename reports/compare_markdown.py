"""A comparison as Markdown for a ticket or a pull request: CommonMark with tables, no HTML but the marker comment."""

from diagnose.reports import compare_tables as tables
from diagnose.reports import compare_view as view
from diagnose.reports.charts.figure import Table
from diagnose.reports.markdown import table
from diagnose.reports.marker import MARKER
from diagnose.reports.numbers import count
from diagnose.reports.text import markdown as esc
from diagnose.reports.text import markdown_code as code
from diagnose.reports.text import sentence
from diagnose.reports.words import limit_name
from diagnose.settle.comparison import Comparison

_KERNELS = 12


def to_markdown(c: Comparison) -> str:
    """The comparison as Markdown. Strings from the inputs are escaped or in code spans: they cannot link, mention or format."""
    withheld, named = view.differences(c)
    parts = [
        MARKER,
        f"## {esc(view.mark(c.verdict.overall))}: {code(view.files(c.before), 60)} → {code(view.files(c.after), 60)}",
        f"**{esc(view.headline(c))}**",
        f"The change lies in {esc(limit_name(c.verdict.cause))}." if c.verdict.cause else "",
        _list(c.verdict.why),
        table(tables.metric_table(c)) if c.metrics else "",
        _titled("Makes a verdict unsound", _list(withheld)),
        _titled("Differs, and is part of what is compared", _list(named)),
        _titled("How it was compared", _list(view.notes(c))),
        *(f"### {esc(view.delta_title(d))}\n\n{table(tables.role_table(d))}" for d in view.deltas(c)),
        _kernels(c),
        _table("Load points", tables.point_table(c)),
        _table("Without a partner", tables.unmatched_table(c)),
        _titled("Limits", _list(view.limit_lines(c)), 3),
        _titled(
            "Hypotheses of the before-report",
            "\n".join(f"- {esc(view.mark(v))}: {esc(n)}. {esc(r)}" for v, n, r in view.bet_lines(c)),
            3,
        ),
        _quantised(c),
        _batching(c),
        _quality(c),
        "### The two sides\n\n" + table(tables.side_table(c)),
        f"Made by diagnose {esc(c.tool_version)}, contract {esc(c.schema)}.",
    ]
    return "\n\n".join(part for part in parts if part).replace("\u00a0", " ") + "\n"


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {esc(line)}" for line in lines)


def _titled(title: str, body: str, level: int = 0) -> str:
    if not body:
        return ""
    return f"{'#' * level} {title}\n\n{body}" if level else f"**{title}:**\n\n{body}"


def _table(title: str, t: Table | None) -> str:
    return f"### {title}\n\n{table(t)}" if t else ""


def _kernels(c: Comparison) -> str:
    if not c.kernels:
        return ""
    lines = tables.kernel_lines(c)[:_KERNELS]
    heads = [" ".join(x for x in (col.label, col.unit) if x) for col in tables.KERNEL_COLUMNS]
    rows = [
        f"| {code(line.name, 60, in_table=True)}{' (was ' + code(line.former, 40, in_table=True) + ')' if line.former else ''} {esc(line.work)} | "
        + " | ".join(esc(cell) for cell in line.cells)
        + " |"
        for line in lines
    ]
    rule = [":--", *("--:" if col.numeric else ":--" for col in tables.KERNEL_COLUMNS[1:])]
    more = (
        f"\n\nThe {len(lines)} with the largest impact of {count(len(c.kernels))}."
        if len(c.kernels) > len(lines)
        else ""
    )
    body = "\n".join([f"| {' | '.join(heads)} |", f"| {' | '.join(rule)} |", *rows])
    return f"### Kernels\n\n{esc(tables.kernel_finding(c))}\n\n{body}{more}"


def _quantised(c: Comparison) -> str:
    t = tables.quant_table(c)
    body = "\n\n".join(x for x in (_list(view.quant_lines(c)), table(t) if t else "") if x)
    return _titled("Quantisation", body, 3)


def _batching(c: Comparison) -> str:
    t = tables.batch_table(c)
    return f"### Batching\n\n{esc(sentence((c.batching or {}).get('message')))}\n\n{table(t)}" if t else ""


def _quality(c: Comparison) -> str:
    if not c.quality:
        return ""
    t = tables.eval_table(c)
    return f"### Quality\n\n{esc(sentence(c.quality.get('message')))}" + (f"\n\n{table(t)}" if t else "")
