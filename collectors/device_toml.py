"""Device files: the measured roofs of one device, as `diagnose --device FILE` reads them, and where they
are kept.

Rates are GB/s and TFLOP/s (10^9, 10^12), floors in microseconds; sizes are bytes moved or FLOP.
"""

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Roof:
    """One `[[roof]]`: `points` are (size, rate), sizes ascending, or one number in `value`."""

    resource: str
    dtype: str = ""
    points: list[tuple[float, float]] = field(default_factory=list)
    value: float | None = None
    peak: float | None = None
    note: str = ""


@dataclass
class DeviceFile:
    """A device and its roofs. `remarks` become comments at the top (conditions of the measurement)."""

    name: str
    arch: str = ""
    sm_count: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    roofs: list[Roof] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def toml(self) -> str:
        """The file's text."""
        lines = [f"# {_one_line(remark)}" for remark in self.remarks]
        lines += ["", "[device]", f"name = {_text(self.name)}"]
        if self.arch:
            lines.append(f"arch = {_text(self.arch)}")
        for key in ("sm_count", "memory_bytes", "l2_bytes"):
            value = getattr(self, key)
            if value:
                lines.append(f"{key} = {int(value)}")
        for roof in self.roofs:
            lines += ["", "[[roof]]", f"resource = {_text(roof.resource)}"]
            if roof.dtype:
                lines.append(f"dtype = {_text(roof.dtype)}")
            if roof.peak is not None:
                lines.append(f"peak = {_number(roof.peak)}")
            if roof.points:
                pairs = ", ".join(f"[{_size(size)}, {_number(rate)}]" for size, rate in roof.points)
                lines.append(f"sustained = [{pairs}]")
            elif roof.value is not None:
                lines.append(f"sustained = {_number(roof.value)}")
            lines.append('provenance = "measured"')
            if roof.note:
                lines.append(f"note = {_text(roof.note)}")
        return "\n".join(lines).lstrip() + "\n"


def _one_line(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]+", " ", text)


def _text(value: str) -> str:
    return json.dumps(_one_line(value), ensure_ascii=False)  # a TOML basic string


def _number(value: float) -> str:
    text = f"{value:.4g}"
    return text if any(c in text for c in ".e") else f"{text}.0"


def _size(value: float) -> str:
    return f"{value:.6g}" if value >= 1e6 else f"{value:.0f}.0"


def envelope(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points by ascending size with rates that never fall: larger work can always be done at the rate of
    smaller.

    Of several points of one size the best stays.
    """
    best: dict[float, float] = {}
    for size, rate in points:
        best[size] = max(rate, best.get(size, 0.0))
    result: list[tuple[float, float]] = []
    highest = 0.0
    for size in sorted(best):
        highest = max(highest, best[size])
        result.append((size, highest))
    return result


def store_folder() -> Path:
    """Where calibrations are kept for later diagnoses: `$XDG_CONFIG_HOME/diagnose/devices`."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "diagnose" / "devices"


def store_path(name: str, threads: int | None = None) -> Path:
    """The kept file of a device name; the processor's depends on the threads that torch may use."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "device"
    if threads is not None:
        slug = f"{slug}-{threads}-threads"
    return store_folder() / f"{slug}.toml"
