"""Pieces shared by the log parsers: time stamps, sizes, and the state of one server's log."""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from diagnose.serving.evidence_types import Evidence

UNITS = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30}
"""Engines divide by powers of two and print GB or GiB alike."""

_STAMPS = (
    (re.compile(r"\b(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)"), "%Y-%m-%d %H:%M:%S"),
    (re.compile(r"\b(?:INFO|WARNING|ERROR|DEBUG)\s+(\d\d-\d\d \d\d:\d\d:\d\d)"), "%m-%d %H:%M:%S"),
    (re.compile(r"\b(\d\d[-/]\d\d[-/]\d{4}[- ]\d\d:\d\d:\d\d)"), "%m-%d-%Y %H:%M:%S"),
)


def size_bytes(number: str, unit: str) -> float:
    """Bytes of a logged size."""
    return float(number) * UNITS.get(unit.lower(), 2**30)


def number(text: str) -> float:
    """A number with thousands separators."""
    return float(text.replace(",", ""))


@dataclass
class LogState:
    """What a log has said so far. `boot` counts server starts; pools are kept by engine and added up at the
    end."""

    out: Evidence = field(default_factory=Evidence)
    boot: int = 0
    pools: dict[str, float] = field(default_factory=dict)
    starts: set[str] = field(default_factory=set)
    preempted: dict[str, float] = field(default_factory=dict)
    year: int = 2000
    last: float | None = None
    lines: int = 0

    def restart(self, key: str) -> None:
        """A server started. A second start of the same engine discards what the first one said."""
        if key in self.starts:
            notes, engines = self.out.notes, self.out.engines
            self.out = Evidence(notes=notes, engines=engines)
            self.pools, self.preempted, self.starts = {}, {}, set()
            self.boot += 1
        self.starts.add(key)

    def stamp(self, line: str) -> float | None:
        """Seconds of a line's time stamp. vLLM prints no year: years count up when the month falls back."""
        for pattern, form in _STAMPS:
            match = pattern.search(line)
            if not match:
                continue
            text = match[1].replace("T", " ").replace("/", "-")
            yearless = form == "%m-%d %H:%M:%S"
            if form.startswith("%m-%d-%Y"):
                text = text[:10] + " " + text[11:]
            elif yearless:
                text, form = f"{self.year}-{text}", "%Y-%m-%d %H:%M:%S"
            try:
                when = datetime.strptime(text, form).replace(tzinfo=UTC)
                if yearless and self.last and when.timestamp() < self.last - 200 * 86400:
                    self.year += 1
                    when = when.replace(year=self.year)
            except ValueError:
                return self.last
            seconds = when.timestamp()
            self.last = seconds
            return seconds
        return self.last


def model_label(text: str) -> str:
    """A model's name; of a local path only the last part, because the rest can name a person."""
    text = text.strip().strip("'\"")
    if text.startswith(("/", "~", ".", "\\")) or re.match(r"^[A-Za-z]:\\", text):
        text = re.split(r"[/\\]+", text.rstrip("/\\"))[-1]
    return text


def flag(text: str) -> str:
    """A boolean or null in any spelling, as true, false or none."""
    return {"true": "true", "1": "true", "false": "false", "0": "false", "none": "none"}.get(
        text.lower(), text
    )
