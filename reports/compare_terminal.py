"""A comparison for a terminal: at most 25 lines, the verdict first."""

import os
import shutil
import textwrap

from diagnose.reports import compare_view as view
from diagnose.reports.terminal import wants_color
from diagnose.reports.text import clean, keep_units, sentence
from diagnose.settle.comparison import Comparison

MAX_LINES = 25
_LABEL = 11
_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_INK = {"improved": "\x1b[32m", "regressed": "\x1b[31m", "mixed": "\x1b[33m"}


def summary(c: Comparison, *, width: int | None = None, color: bool | None = None) -> str:
    """The verdict, metrics with their intervals, why, what differs and what was withheld, as text of at most 25 lines.

    `width` in columns (default: the terminal's, at most 100); `color` with ANSI colours (NO_COLOR wins over True). Control
    characters of input strings are written out.
    """
    columns = max(40, min(width or shutil.get_terminal_size((80, 24)).columns, 120 if width else 100))
    colored = wants_color() if color is None else color and not os.environ.get("NO_COLOR")
    lines: list[str] = []

    def paint(text: str, ink: str) -> str:
        return f"{ink}{text}{_RESET}" if colored and text and ink else text

    def block(label: str, text: str, most: int) -> None:
        room = columns - _LABEL
        wrapped = textwrap.wrap(keep_units(clean(text)), room, break_on_hyphens=False) or [""]
        if len(wrapped) > most:
            wrapped = [*wrapped[: most - 1], wrapped[most - 1][: room - 1].rstrip() + "…"]
        for at, line in enumerate(wrapped):
            lines.append(paint(f"{label if at == 0 else '':<{_LABEL}}", _DIM) + line.replace("\u00a0", " "))

    lines.append(paint(view.mark(c.verdict.overall), _BOLD + _INK.get(c.verdict.overall, "")))
    block("", view.headline(c), 4)
    for label, text in (("before", _side(c, True)), ("after", _side(c, False))):
        block(label, text, 1)
    for at, r in enumerate(view.rows(c)[:7]):
        text = f"{r.name} {r.before} → {r.after} {r.unit} ({r.change}; {r.interval}): "
        plain = len(text) + len(view.mark(r.verdict)) <= columns - _LABEL
        body = text + view.mark(r.verdict)
        if plain:
            lines.append(
                paint(f"{'metrics' if at == 0 else '':<{_LABEL}}", _DIM)
                + clean(text)
                + paint(view.mark(r.verdict), _INK.get(r.verdict, ""))
            )
        else:
            block("metrics" if at == 0 else "", body, 2)
    for at, line in enumerate(c.verdict.why[:4]):
        block("why" if at == 0 else "", line, 2)
    withheld, named = view.differences(c)
    if withheld:
        block("withheld", " ".join(withheld), 2)
    block("differs", " ".join(named) or "nothing that the inputs state", 2)
    if c.unmatched:
        block("no partner", "; ".join(f"{u.side} {u.kind} {u.name}" for u in c.unmatched[:3]), 1)
    if c.quantization:
        block("quantised", sentence(c.quantization["message"]), 2)
    if c.batching:
        block("batching", sentence(c.batching["message"]), 2)
    if c.quality:
        block("quality", sentence(c.quality["message"]), 1)
    elif c.quantization:
        block("quality", sentence(c.quantization["quality"]), 1)
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], "… more in the report"]
    return "\n".join(lines).replace("\u00a0", " ") + "\n"


def _side(c: Comparison, before: bool) -> str:
    info = c.before if before else c.after
    parts = [view.files(info), info.device, info.model, info.engine, info.precision]
    runs = f"{info.runs} runs" if info.runs > 1 else ""
    return " · ".join(clean(p) for p in (*parts, runs) if p)
