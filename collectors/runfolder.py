"""Run folders: what a capture leaves behind, whole or not at all.

A capture works in a hidden folder beside the wanted one (`.NAME.partial-PID`) and renames it when
everything is in place. `run.json` names what is in the folder; it never holds environment variables, host
or user names, or command lines.
"""

import json
import os
import re
import shutil
import tempfile
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from diagnose.errors import UsageError

RUN_SCHEMA = "diagnose-run/1"
RUN_FILE = "run.json"
_PARTIAL = re.compile(r"^\..+\.partial-(\d+)$")


def tool_version() -> str:
    """Version of the installed distribution, or 'unknown' when run from a bare checkout."""
    try:
        return version("llm-diagnose")
    except PackageNotFoundError:
        return "unknown"


def now() -> str:
    """Current time, ISO 8601 in UTC to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def is_run_folder(path: Path) -> bool:
    """True for a folder that an earlier capture of ours wrote."""
    try:
        return str(json.loads((path / RUN_FILE).read_text()).get("schema", "")).startswith("diagnose-run/")
    except (OSError, ValueError, AttributeError):
        return False


def choose_folder(wanted: Path | None, default_name: str, force: bool) -> Path:
    """The folder to write: `wanted` if free (or ours, with `force`), else `default_name`, numbered when
    taken.

    Raises UsageError when `wanted` exists and may not be replaced, or its parent is not there.
    """
    if wanted is None:
        safe = re.sub(r"[^\w.-]+", "_", default_name) or "capture"
        candidates = [Path(f"{safe}.run"), *(Path(f"{safe}.run-{n}") for n in range(2, 10000))]
        return next(path for path in candidates if not path.exists())
    if not wanted.parent.is_dir():
        raise UsageError(f"{wanted.parent}: no such folder; make it first or choose another --output")
    if wanted.exists() and not (force and is_run_folder(wanted)):
        hint = "use --force to replace it" if is_run_folder(wanted) else "choose another --output"
        raise UsageError(f"{wanted} exists; {hint}")
    return wanted


class PartialFolder:
    """A hidden working folder that becomes `final` on `commit`, and vanishes otherwise."""

    def __init__(self, final: Path) -> None:
        self.final = final
        _sweep(final.parent)
        try:
            self.path = Path(
                tempfile.mkdtemp(prefix=f".{final.name}.", suffix=f".partial-{os.getpid()}", dir=final.parent)
            )
        except OSError as error:
            raise UsageError(
                f"{final.parent}: cannot write there ({error.strerror}); choose another --output"
            ) from None

    def commit(self) -> Path:
        """Move the finished folder to its place; an earlier one there is removed only then."""
        self.path.chmod(0o777 & ~_umask())
        if self.final.exists():
            old = self.path.with_name(f".{self.final.name}.old.partial-{os.getpid()}")
            self.final.rename(old)
            self.path.rename(self.final)
            shutil.rmtree(old, ignore_errors=True)
        else:
            self.path.rename(self.final)
        return self.final

    def discard(self) -> None:
        """Remove the working folder; nothing happens after `commit`."""
        shutil.rmtree(self.path, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sweep(parent: Path) -> None:
    """Remove working folders of captures that were killed."""
    for path in parent.glob(".*.partial-*"):
        match = _PARTIAL.match(path.name)
        if match and path.is_dir() and not _alive(int(match.group(1))):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def write_json(path: Path, value: Any) -> None:
    """Write JSON through a temporary name, so that a reader never sees half of it."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_text(json.dumps(value, indent=2, default=str) + "\n")
    partial.replace(path)


def public_config(config: Any) -> dict[str, Any] | None:
    """A model's config as plain JSON without anything that could name a person, a machine or a place.

    Takes a mapping, a dataclass or an object with `to_dict()`. Keys that start with `_` (Hugging Face keeps
    the load path there) and strings that look like paths are left out.
    """
    if config is None:
        return None
    for convert in (lambda c: c.to_dict(), dict, lambda c: dict(vars(c))):
        try:
            values = convert(config)
        except (AttributeError, TypeError, ValueError):
            continue
        if isinstance(values, dict):
            cleaned = _clean(values)
            return cleaned if isinstance(cleaned, dict) and cleaned else None
    return None


def _clean(value: Any, depth: int = 0) -> Any:
    if isinstance(value, dict):
        if depth > 6:
            return {}
        items = {str(k): _clean(v, depth + 1) for k, v in value.items() if not str(k).startswith("_")}
        return {k: v for k, v in items.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_clean(v, depth + 1) for v in value][:4096]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value
    text = str(value).removeprefix("torch.")
    looks_like_path = text.startswith(("/", "~", "\\", ".")) or "://" in text or "\\" in text or "@" in text
    return None if looks_like_path or len(text) > 200 or text.count("/") > 1 else text
