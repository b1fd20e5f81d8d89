"""Where results go: names derived from the input, checked before the analysis, written whole or not at all."""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from diagnose.errors import UsageError
from diagnose.reports.marker import is_own_report

_ENDINGS = re.compile(
    r"(\.pt)?(\.trace)?(\.json|\.jsonl|\.gz|\.sqlite|\.nsys-rep|\.html|\.md)+$", re.IGNORECASE
)


def stem(path: Path) -> str:
    """File name without the endings of traces."""
    return _ENDINGS.sub("", path.name) or path.name


def default_output(path: Path) -> Path:
    """`NAME.diagnosis.html` beside the input, or in the current directory when the input's cannot be written."""
    folder = path if path.is_dir() else path.parent
    name = f"{stem(path.resolve() if path.name in ('', '.', '..') else path)}.diagnosis.html"
    return (folder if os.access(folder, os.W_OK) else Path.cwd()) / name


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write; a JSON or Markdown target of `-` is standard output."""

    html: Path | None
    json: str | None
    markdown: str | None

    @property
    def to_stdout(self) -> bool:
        """Whether standard output belongs to data, so that the summary stays silent."""
        return "-" in (self.json, self.markdown)


def check(outputs: Outputs, inputs: list[Path], force: bool) -> None:
    """Refuse to overwrite anything but an earlier report of ours; never an input. UsageError, before any work."""
    if outputs.json == "-" and outputs.markdown == "-":
        raise UsageError("--json - and --markdown - both want standard output; give one of them a file")
    targets = [outputs.html] + [
        Path(t) for t in (outputs.json, outputs.markdown) if t not in (None, "-") and t
    ]
    present = [t for t in targets if t is not None]
    for target in present:
        _refuse_special(target)
    if len({t.resolve() for t in present}) < len(present):
        raise UsageError("two outputs name the same file; give each its own")
    sources = {p.resolve() for p in inputs}
    for target in present:
        if target.resolve() in sources:
            raise UsageError(f"{target} is an input; name another file with -o")
        if target.is_dir():
            raise UsageError(f"{target} is a folder; name a file with -o")
        if not target.parent.exists():
            raise UsageError(f"folder {target.parent} does not exist; create it or name another file with -o")
        if target.exists() and not force and not is_own_report(target):
            raise UsageError(
                f"{target} exists and is not an earlier report of diagnose; use --force to replace it, or -o FILE"
            )


def _refuse_special(target: Path) -> None:
    """Devices, pipes and links that lead nowhere are never replaced, with --force either."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}; name another file with -o") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UsageError(f"{target} is no regular file; give `-` for standard output, or name a file")
