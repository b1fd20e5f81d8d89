"""What a capture says of itself: `run.json` and `server.json` of a run folder."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnose.contract import Diagnosis, Note

# Recording that lengthens the steps by more than this on the host changes what a trace shows of host time.
SLOWDOWN = 1.15
_MAX_BYTES = 16 << 20


@dataclass(slots=True)
class Told:
    """The parts of interest, merged over the files of a call. `model` is the served model's name, `settings` the files that
    hold a server's settings."""

    model: str | None = None
    slowdown: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    settings: list[Path] = field(default_factory=list)


def is_told(row: dict[str, Any]) -> bool:
    """Whether a JSON object is one of the two files."""
    return str(row.get("schema", "")).startswith(("diagnose-run/", "diagnose-server/"))


def read_told(paths: list[Path]) -> Told:
    """Read the files; one that cannot be read tells nothing."""
    told = Told()
    for path in paths:
        try:
            row = json.loads(path.read_text(encoding="utf-8")) if path.stat().st_size <= _MAX_BYTES else None
        except (OSError, ValueError, RecursionError):
            continue
        if not isinstance(row, dict) or not is_told(row):
            continue
        if isinstance(row.get("settings"), dict):
            told.settings.append(path)
        if isinstance(row.get("model"), str):
            told.model = told.model or row["model"]
        slowdown = row.get("slowdown")
        if isinstance(slowdown, (int, float)) and not isinstance(slowdown, bool):
            told.slowdown = max(told.slowdown or 0.0, float(slowdown))
        versions = row.get("versions")
        if isinstance(versions, dict):
            told.versions.update({str(k): v for k, v in versions.items() if isinstance(v, str)})
        if isinstance(row.get("notes"), list):
            told.notes += [str(n) for n in row["notes"]]
    return told


def apply(told: Told, result: Diagnosis) -> None:
    """Put it into the result: what recording cost, what the capture could not get, the framework's version."""
    if told.slowdown is not None and told.slowdown > SLOWDOWN:
        result.data_quality.append(
            Note(
                code="profiler-slowdown",
                severity="warning",
                message=f"recorded steps took {told.slowdown:.2f} times as long on the host as unrecorded ones: idle "
                "while launching is partly the profiler's; confirm it with the unprofiled step time",
            )
        )
    result.data_quality += [
        Note(code="capture", severity="info", message=f"the capture says: {text}") for text in told.notes
    ]
    version = told.versions.get("torch")
    for source in result.source:
        if version and source.framework == "pytorch":
            source.framework = f"pytorch {version}"
