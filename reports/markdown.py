"""The diagnosis as Markdown for a ticket: CommonMark with tables, no HTML but the marker comment."""

from diagnose.contract import Diagnosis
from diagnose.reports import evidence, serving, serving_lines, tables, view
from diagnose.reports.charts import latency, memory, other_device, what_if
from diagnose.reports.charts.attribution import attribution_figure_table
from diagnose.reports.charts.figure import Table
from diagnose.reports.kernels import COLUMNS, kernel_lines
from diagnose.reports.marker import MARKER
from diagnose.reports.numbers import confidence, count
from diagnose.reports.text import markdown as esc
from diagnose.reports.text import markdown_code as code
from diagnose.reports.text import sentence
from diagnose.reports.words import LIMIT, OBJECTIVE, PROVENANCE, is_alone, limit_name, words

_KERNELS = 12
_KERNEL_KEYS = ("phase", "count", "time_ns", "share", "percent_of_roof", "bound", "cost_source")


def to_markdown(d: Diagnosis) -> str:
    """The report as Markdown. Strings from the trace are escaped or in code spans: they cannot link, mention
    or format."""
    v = d.verdict
    subject = "Inconclusive" if v.limit == "inconclusive" else f"Limited by {limit_name(v.limit)}"
    trust = "" if v.calibrated or v.confidence is None else " (uncalibrated)"
    parts = [
        MARKER,
        f"## {esc(subject)}",
        f"**{esc(sentence(v.summary))}**",
        f"Confidence {confidence(v.confidence)}{trust} for "
        f"{esc(OBJECTIVE.get(v.objective, words(v.objective)))}; "
        f"runner-up: {esc(limit_name(v.runner_up) if v.runner_up else 'none')}; "
        f"binds next: {esc(limit_name(v.next) if v.next in LIMIT else sentence(v.next).rstrip('.') or 'unknown')}.",
        _list([sentence(s) for s in v.by_phase]),
        _trial(d),
        f"**Ruled out:**\n\n{_list([sentence(s) for s in v.ruled_out]) or 'Nothing was ruled out.'}",
        f"**Could not be "
        f"told:**\n\n{_list([sentence(s) for s in v.could_not_tell]) or 'Nothing was left open.'}",
        "**Facts:** " + "; ".join(f"{f.label} {esc(f.value)}" for f in view.facts(d)),
        _time(d),
        _limits(d),
        _hypotheses(d),
        _kernels(d),
        _latency(d),
        _memory(d),
        _outlook(d),
        _quality(d),
        _provenance(d),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {esc(line)}" for line in lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(t: Table) -> str:
    """A table as Markdown; units and provenance marks are in the header."""
    heads = []
    for c in t.columns:
        mark = PROVENANCE[c.provenance][0] if c.provenance in PROVENANCE else ""
        heads.append(" ".join(x for x in (esc(c.label), esc(c.unit), mark) if x) or " ")
    rule = ["--:" if c.numeric else ":--" for c in t.columns]
    return "\n".join([_row(heads), _row(rule), *(_row([esc(cell) for cell in row]) for row in t.rows)])


def _trial(d: Diagnosis) -> str:
    first = view.first_trial(d)
    if first is None:
        if d.verdict.limit == "inconclusive" and d.verdict.could_not_tell:
            return "**Try first:** what could not be told is asked for below; get it before any experiment."
        return "**Try first:** no experiment is proposed."
    return f"**Try first:** {_trial_text(view.card(first, is_alone(d)))}"


def _trial_text(c: view.Card) -> str:
    x = c.trial
    if x is None:
        return "no experiment is proposed."
    lines = [f"{esc(sentence(x.change))} Expect {esc(x.metric)} {esc(x.predicted)}"]
    if x.now:
        lines[0] += f", now {esc(x.now)}"
    if x.under_runner_up:
        lines[0] += f"; if {esc(x.runner_up)} were the limit: {esc(x.under_runner_up)}"
    lines[0] += f". Refuted if: {esc(x.refuted_if)} Cost: {esc(sentence(x.cost) or 'unknown.')}"
    if x.risk:
        lines[0] += f" Risk: {esc(sentence(x.risk))}"
    if x.command:
        fence = "```"
        while fence in x.command:
            fence += "`"
        lines.append(f"{fence}sh\n{x.command}\n{fence}")
    return "\n\n".join(lines)


def _time(d: Diagnosis) -> str:
    t = attribution_figure_table(d)
    if t is None:
        return "### Where the time went\n\nUnknown: no trace was given."
    outside = view.outside_text(d)
    return "\n\n".join(x for x in ("### Where the time went", table(t), esc(outside)) if x)


def _limits(d: Diagnosis) -> str:
    if not d.phases:
        return ""
    lines = [
        f"- **{esc(p.phase)}**: {esc(p.limit)} (confidence {p.confidence}), runner-up {esc(p.runner_up)}"
        + (f". What separates them: {esc(p.separated_by)}" if p.separated_by else "")
        for p in view.phase_lines(d)
    ]
    return "### Limits by phase\n\n" + "\n".join(lines)


def _evidence(lines: list[view.EvidenceLine]) -> str:
    return "\n".join(
        f"- {PROVENANCE[e.provenance][0] + ' ' if e.provenance in PROVENANCE else ''}{esc(e.metric)}: "
        f"**{esc(e.value)}**"
        + (f" ({esc(e.wanted)})" if e.wanted else "")
        + (f", {esc(e.note)}" if e.note else "")
        for e in lines
    )


def _hypotheses(d: Diagnosis) -> str:
    cards = [view.card(h, is_alone(d)) for h in d.hypotheses]
    parts = ["### Hypotheses, ranked"]
    for c in cards:
        if c.status not in {"supported", "possible"}:
            continue
        gain = f"; recoverable: {esc(c.gain)}{', ' + esc(c.scope) if c.scope else ''}" if c.gain else ""
        parts.append(
            f"#### {esc(c.limit)}, {esc(c.phase)} ({c.status_word}, confidence "
            f"{c.confidence}{gain})\n\n{esc(c.statement)}"
        )
        if c.evidence:
            parts.append(_evidence(c.evidence))
        if c.counter:
            parts.append("Counter-evidence:\n\n" + _evidence(c.counter))
        if c.missing:
            parts.append("Would decide it:\n\n" + _list(c.missing))
        parts.append(f"Experiment: {_trial_text(c)}")
    if len(parts) == 1:
        parts.append("No hypothesis is supported by this evidence.")
    closed = [c for c in cards if c.status not in {"supported", "possible"}]
    if closed:
        parts.append(
            "Ruled out or not assessed:\n\n"
            + "\n".join(
                f"- {esc(c.limit)}, {esc(c.phase)} ({c.status_word}): {esc(c.statement)}"
                + (f" Missing: {esc(' '.join(c.missing))}" if c.missing else "")
                for c in closed
            )
        )
    return "\n\n".join(parts)


def _kernels(d: Diagnosis) -> str:
    if not d.kernels:
        return ""
    columns = [c for c in COLUMNS if c.key in _KERNEL_KEYS]
    heads = ["Kernel", *(" ".join(x for x in (c.label, c.unit) if x) for c in columns)]
    rule = [":--", *("--:" if c.numeric else ":--" for c in columns)]
    rows = [
        _row(
            [code(line.name, 80, in_table=True)]
            + [
                esc(line.cells[c.key]) + (f": {esc(line.reason)}" if c.key == "bound" and line.reason else "")
                for c in columns
            ]
        )
        for line in kernel_lines(d.kernels, _KERNELS)
    ]
    more = f"\n\nThe {_KERNELS} longest of {count(len(d.kernels))} rows." if len(d.kernels) > _KERNELS else ""
    return "### Kernels\n\n" + "\n".join([_row(heads), _row(rule), *rows]) + more


def _tables(*found: Table | None) -> list[str]:
    return [f"{esc(t.caption)}:\n\n{table(t)}" for t in found if t is not None]


def _section(title: str, parts: list[str]) -> str:
    told = [part for part in parts if part]
    return "\n\n".join([f"### {title}", *told]) if told else ""


def _latency(d: Diagnosis) -> str:
    figure = latency.latency_figure(d)
    splits = [f.table for f in latency.split_figures(d)]
    line = serving_lines.latency_line(d)
    remarks = evidence.latency_remarks(d) + serving.ratio_remarks(d)
    message, checks, notes = evidence.representative(d)
    return _section("Latency and load", [
        esc(line), *_tables(figure.table if figure else None, evidence.latency_sources(d), *splits), _list(remarks),
        *_tables(serving.load_table(d)), f"Is the capture representative? {esc(message)}" if message else "", *_tables(checks), _list(notes),
    ])  # fmt: skip


def _memory(d: Diagnosis) -> str:
    figure = memory.memory_figure(d)
    return _section(
        "Memory and KV cache",
        [*_tables(figure.table if figure else None, serving.kv_table(d)), _list(evidence.memory_remarks(d))],
    )


def _outlook(d: Diagnosis) -> str:
    curves = what_if.what_if_figures(d)
    devices = other_device.other_device_figures(d)
    return _section("What other batches, formats and devices would do", [
        *_tables(*(f.table for f in curves)), _list(serving.batch_remarks(d)), esc(serving.ceiling_text(d)),
        *_tables(serving.quantisation_table(d)), _list(serving.quantisation_remarks(d)),
        *(text for f in devices for text in (*_tables(f.table), esc(f.note))),
    ])  # fmt: skip


def _quality(d: Diagnosis) -> str:
    lines = [f"- {severity}: {esc(message)} {code(name)}" for severity, name, message in view.notes(d)]
    body = "\n".join(lines) or "No notes."
    coverage = tables.coverage_table(d)
    return "### Data quality\n\n" + body + (f"\n\n{table(coverage)}" if coverage else "")


def _provenance(d: Diagnosis) -> str:
    sources = [
        f"- {code(s.path)}, {esc(s.format)}, SHA-256 {code(s.sha256) if s.sha256 else 'unknown'}"
        for s in d.source
    ]
    roofs = tables.roof_table(d)
    marks = ", ".join(f"{sign} {esc(meaning)}" for sign, meaning in PROVENANCE.values())
    parts = ["### Provenance", "\n".join(sources) or "No input is named."]
    if roofs.rows:
        parts.append(table(roofs))
    parts.append(f"Marks: {marks}. Made by diagnose {esc(d.tool_version)}, contract {esc(d.schema)}.")
    return "\n\n".join(parts)
