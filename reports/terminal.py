"""The summary for a terminal: at most 25 lines, the verdict first."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable

from diagnose.contract import Diagnosis, Phase
from diagnose.reports.charts.attribution import phase_bars
from diagnose.reports.numbers import UNKNOWN, confidence, duration, time_unit
from diagnose.reports.serving_lines import kv_line, latency_line, load_line, outlook_line
from diagnose.reports.text import clean, keep_units, sentence, shorten
from diagnose.reports.view import card, facts, first_trial, notes, outside_text
from diagnose.reports.words import BUCKET, OBJECTIVE, bucket_label, is_alone, limit_name, phase_name, words

MAX_LINES = 25
_LABEL = 11
_BAR = 50
_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"


def wants_color() -> bool:
    """True on a terminal that can show colour and where NO_COLOR is not set (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stdout.isatty()


def summary(d: Diagnosis, *, width: int | None = None, color: bool | None = None) -> str:
    """The verdict, time, limits, what was ruled out or left open, the first experiment and the notes, as
    text.

    `width` in columns (default: the terminal's, at most 100), `color` with ANSI colours (default:
    `wants_color()`; NO_COLOR
    wins over True). Nothing in it is wider than `width`; control characters of trace strings are written out.
    """
    columns = max(40, min(width or shutil.get_terminal_size((80, 24)).columns, 120 if width else 100))
    colored = wants_color() if color is None else color and not os.environ.get("NO_COLOR")
    page = _Page(columns, colored)
    v = d.verdict
    head = "inconclusive" if v.limit == "inconclusive" else f"limited by {limit_name(v.limit)}"
    trust = "" if v.calibrated or v.confidence is None else " (uncalibrated)"
    objective = OBJECTIVE.get(v.objective, words(v.objective))
    page.plain(f"{head} · confidence {confidence(v.confidence)}{trust} · for {objective}", bold=True)
    page.block("", [sentence(v.summary)], 3)
    page.block("facts", [_facts_line(d)], 3)
    page.times(d)
    at = len(page.lines)
    page.block("limits", [_limit_line(p, is_alone(d)) for p in d.phases[:3]], 3)
    if not d.phases:
        page.block("runner-up", [limit_name(v.runner_up) if v.runner_up else "none"], 1)
    page.block("ruled out", ["; ".join(map(clean, v.ruled_out)) or "nothing"], 2)
    page.block("not told", ["; ".join(map(clean, v.could_not_tell)) or "nothing was left open"], 2)
    page.experiment(d)
    page.notes(d)
    page.insert(at, _served(d, columns, colored))
    return page.text()


def _served(d: Diagnosis, width: int, color: bool) -> list[str]:
    """Latency, KV cache and outlook of a served run."""
    page = _Page(width, color)
    for label, line in (
        ("latency", latency_line(d)),
        ("load", load_line(d)),
        ("KV cache", kv_line(d)),
        ("outlook", outlook_line(d)),
    ):
        if line:
            page.block(label, [line], 2)
    return page.lines


def _facts_line(d: Diagnosis) -> str:
    value = {f.label: f.value for f in facts(d)}
    if not d.devices:
        # What only a trace has is said once.
        texts = [
            value[k] if value[k] != UNKNOWN else f"{k} {UNKNOWN}"
            for k in ("device", "model", "engine", "precision")
        ]
        return " · ".join([*texts, "steps, profiler and kernel costs unknown"])
    texts = [
        *(
            value[k] if value[k] != UNKNOWN else f"{k} {UNKNOWN}"
            for k in ("device", "model", "engine", "precision")
        ),
        value["batch and context"] if value["batch and context"] != UNKNOWN else "batch and context unknown",
        f"steps {value['steps analysed']}",
        f"profiler {value['profiler']}",
        f"kernel time with a cost {value['kernel time with a cost']}",
    ]
    return " · ".join(texts)


def _limit_line(p: Phase, alone: bool) -> str:
    runner = f", runner-up {limit_name(p.runner_up)}" if p.runner_up else ", no runner-up"
    return f"{phase_name(p.phase, alone)}: {limit_name(p.limit)} ({confidence(p.confidence)}){runner}"


class _Page:
    """Lines with a label column; every block has a share of the line budget."""

    def __init__(self, width: int, color: bool) -> None:
        self.width = width
        self.color = color
        self.lines: list[str] = []

    def text(self) -> str:
        lines = self.lines
        if len(lines) > MAX_LINES:
            lines = [*lines[: MAX_LINES - 1], "… more in the report"]
        return "\n".join(lines) + "\n"

    def insert(self, at: int, lines: list[str]) -> None:
        """Lines that are told only as far as there is room."""
        self.lines[at:at] = lines[: max(0, MAX_LINES - len(self.lines))]

    def paint(self, text: str, code: str) -> str:
        return f"{code}{text}{_RESET}" if self.color and text else text

    def plain(self, text: str, bold: bool = False) -> None:
        for line in textwrap.wrap(clean(text), self.width)[:2]:
            self.lines.append(self.paint(line, _BOLD) if bold else line)

    def block(self, label: str, texts: Iterable[str], most: int) -> None:
        """A label and its texts, each wrapped beside it; what exceeds `most` lines ends in an ellipsis."""
        room = self.width - _LABEL
        wrapped = [
            line
            for text in texts
            for line in textwrap.wrap(keep_units(clean(text)), room, break_on_hyphens=False) or [""]
        ]
        if len(wrapped) > most:
            wrapped = wrapped[:most]
            wrapped[-1] = wrapped[-1][: room - 1].rstrip() + "…"
        for index, line in enumerate(wrapped):
            name = label if index == 0 else ""
            self.lines.append(self.paint(f"{name:<{_LABEL}}", _DIM) + line.replace("\u00a0", " "))

    def times(self, d: Diagnosis) -> None:
        """A line a phase: length, its three largest buckets; in colour a bar under the longest."""
        bars = phase_bars(d)[:3]
        lines = []
        for bar in bars:
            unit = time_unit([bar.total])
            top = sorted(((ns, b) for b, ns in bar.attribution.items() if ns > 0), reverse=True)[:3]
            listed = ", ".join(
                f"{bucket_label(b)} {duration(ns) if b == 'unobserved' else bar.share(b)}" for ns, b in top
            )
            lines.append(f"{bar.label}: {unit.text(bar.total)} {unit.name} per {bar.per}: {listed}")
        self.block("time", lines or ["no trace was given: kernel-level limits are not assessed"], 4)
        if bars and self.color:
            self.lines.append(" " * _LABEL + self._bar(max(bars, key=lambda b: b.total).attribution))
        outside = outside_text(d)
        if outside:
            self.block("", [outside], 1)

    def _bar(self, attribution: dict[str, float]) -> str:
        """A bar of coloured cells, each bucket rounded so that the cells add up."""
        total = sum(attribution.values()) or 1.0
        room = min(_BAR, self.width - _LABEL)
        cells, filled, reached = "", 0, 0.0
        for bucket, style in BUCKET.items():
            reached += attribution.get(bucket, 0.0)
            upto = round(room * reached / total)
            red, green, blue = (int(style.color[i : i + 2], 16) for i in (1, 3, 5))
            glyph = "▒" if style.hatched else "█"
            if upto > filled:
                cells += f"\x1b[38;2;{red};{green};{blue}m{glyph * (upto - filled)}{_RESET}"
            filled = upto
        return cells

    def experiment(self, d: Diagnosis) -> None:
        first = first_trial(d)
        if first is None:
            settle = d.verdict.limit == "inconclusive" and d.verdict.could_not_tell
            text = "what is asked for above, before any experiment" if settle else "no experiment is proposed"
            self.block("try first", [text], 1)
            return
        c = card(first, is_alone(d))
        x = c.trial
        assert x is not None
        self.block("try first", [sentence(x.change)], 2)
        if x.command:
            command = x.command.splitlines()[0]
            self.lines.append(" " * _LABEL + self.paint(shorten(f"$ {command}", self.width - _LABEL), _BOLD))
        expect = f"expect {x.metric} {x.predicted}" + (f", now {x.now}" if x.now else "")
        if x.under_runner_up:
            expect += f"; if {x.runner_up} were the limit, {x.under_runner_up}"
        self.block("", [expect], 2)
        self.block("", [f"refuted if {x.refuted_if[0].lower()}{x.refuted_if[1:]}"], 2)

    def notes(self, d: Diagnosis) -> None:
        listed = notes(d)
        if not listed:
            self.block("quality", ["no notes"], 1)
            return
        severity, _, message = listed[0]
        rest = f" (+{len(listed) - 1} more in the report)" if len(listed) > 1 else ""
        self.block("quality", [f"{severity}: {message}{rest}"], 2)
