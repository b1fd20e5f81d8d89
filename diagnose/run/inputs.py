"""Which of the given paths are traces, which are evidence, and what a run folder holds. By content, never by name."""

from dataclasses import dataclass, field
from pathlib import Path

from diagnose.errors import InputError
from diagnose.ingest.detect import detect, is_surely_trace


@dataclass(slots=True)
class Inputs:
    """Sorted inputs of one call."""

    traces: list[Path] = field(default_factory=list)
    metrics: list[Path] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    benches: list[Path] = field(default_factory=list)
    settings: list[Path] = field(default_factory=list)
    model: Path | None = None
    device: Path | None = None
    told: list[Path] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


# A run folder is what a capture leaves: a handful of files. More is somebody's home directory.
MAX_FILES = 500


def sort_inputs(paths: list[Path]) -> Inputs:
    """Traces and evidence among `paths`; folders that are no parquetdir are searched one level deep.

    InputError for a path that is missing or nothing known, and for a folder with nothing usable in it.
    """
    found = Inputs()
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder; check the path")
        if path.is_dir() and not any(path.glob("*.parquet")):
            _search(path, found)
        elif (kind := _evidence(path) if path.is_file() else None) is not None and kind != "run_json":
            _file(path, kind, found)
        else:
            found.traces.append(path)
    return found


def _search(folder: Path, found: Inputs) -> None:
    files = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    if len(files) > MAX_FILES:
        raise InputError(
            f"{folder}: {len(files)} entries; name the traces, or give a folder that holds one run"
        )
    before = len(found.traces) + len(found.metrics) + len(found.logs) + len(found.benches)
    for path in files:
        if path.is_dir():
            if any(path.glob("*.parquet")):
                found.traces.append(path)
            elif (kind := _evidence(path)) is not None:
                # A folder of scrapes, one file each.
                _file(path, kind, found)
            continue
        if path.suffix == ".toml" and found.device is None:
            found.device = path
            continue
        kind = _evidence(path)
        if kind is not None:
            _file(path, kind, found)
            continue
        try:
            trace = detect(path)
        except InputError:
            found.skipped.append(path.name)
            continue
        if trace == "diagnosis-json":
            found.skipped.append(path.name)
        else:
            found.traces.append(path)
    if len(found.traces) + len(found.metrics) + len(found.logs) + len(found.benches) == before:
        raise InputError(
            f"{folder}: no trace, metrics, log or benchmark result in this folder; give a trace, or a folder that holds one"
        )


def _evidence(path: Path) -> str | None:
    """The kind of serving evidence a file or folder is, None for anything else."""
    if path.is_file() and is_surely_trace(path):
        return None
    # The parsers that recognise evidence are imported where something may be evidence.
    from diagnose.serving.evidence import detect_evidence

    return detect_evidence(path)


def _file(path: Path, kind: str, found: Inputs) -> None:
    if kind == "metrics":
        found.metrics.append(path)
    elif kind == "log":
        found.logs.append(path)
    elif kind == "bench":
        found.benches.append(path)
    elif kind == "settings":
        found.settings.append(path)
    elif kind == "model_config":
        found.model = found.model or path
    elif kind == "run_json":
        found.told.append(path)
    else:
        found.skipped.append(path.name)
