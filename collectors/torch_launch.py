"""The parent process of `diagnose capture torch`: prepares the folder, runs the target, keeps only a whole
result.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import diagnose
from diagnose.collectors import process, torch_runner
from diagnose.collectors.runfolder import RUN_FILE, PartialFolder, choose_folder
from diagnose.errors import InputError, UsageError


@dataclass(frozen=True)
class TorchCapture:
    """What `diagnose capture torch` was asked for. `target` is `script.py ARGS` or `-m module ARGS`."""

    target: tuple[str, ...]
    output: Path | None = None
    warmup: int = 3
    steps: int = 20
    python: str | None = None
    timeout_s: float | None = None
    memory: bool = False
    stop: bool = False
    force: bool = False
    profiler: str = "kineto"


def check(request: TorchCapture) -> str:
    """The name to call the run after. Raises UsageError for a target that cannot be run."""
    target = request.target
    if not target:
        raise UsageError("give the script after `--`, e.g. diagnose capture torch -- script.py --batch 8")
    if target[0] == "-m":
        if len(target) < 2:
            raise UsageError("`-m` needs a module name")
        return target[1].rsplit(".", 1)[-1]
    script = Path(target[0])
    if not script.is_file():
        hint = (
            "; leave the interpreter out, it is chosen with --python"
            if script.name.startswith("python")
            else ""
        )
        raise UsageError(f"{target[0]}: no such script{hint}")
    if request.warmup < 1 or request.steps < 1:
        raise UsageError("--warmup and --steps are at least 1")
    return script.stem


def command(request: TorchCapture, settings: str) -> list[str]:
    """The child's command line; `settings` is the path of the settings file."""
    python = request.python or sys.executable
    return [python, "-m", "diagnose.collectors.torch_runner", settings, *request.target]


def write_settings(request: TorchCapture, path: Path, partial: Path) -> None:
    """The file that tells the child what to do and where to work."""
    asked = {
        "warmup": request.warmup,
        "steps": request.steps,
        "memory": request.memory,
        "stop": request.stop,
        "profiler": request.profiler,
        "partial": str(partial),
    }
    path.write_text(json.dumps(asked))


def capture_torch(request: TorchCapture) -> Path:
    """Run the capture; the run folder. Raises UsageError or InputError, and then leaves nothing behind."""
    name = check(request)
    final = choose_folder(request.output, name, request.force)
    partial = PartialFolder(final)
    try:
        with tempfile.TemporaryDirectory(prefix="diagnose-") as scratch:
            settings = Path(scratch) / "settings.json"
            write_settings(request, settings, partial.path.resolve())
            status = _run(request, command(request, str(settings)), Path(scratch), partial)
        _judge(request, status, partial)
        return partial.commit()
    finally:
        partial.discard()


def _run(request: TorchCapture, arguments: list[str], scratch: Path, partial: PartialFolder) -> int | None:
    try:
        return process.run(arguments, timeout_s=request.timeout_s, env=child_env(request.python, scratch))
    except OSError as error:
        raise UsageError(
            f"{arguments[0]}: cannot run it ({error.strerror}); choose another --python"
        ) from None
    except process.Interrupted:
        if _complete(partial):
            return 0
        raise InputError("interrupted before the window was complete: nothing captured") from None


def child_env(python: str | None, scratch: Path) -> dict[str, str] | None:
    """The environment of the child: ours, and for a foreign interpreter a path on which only `diagnose` lies.

    Our own site-packages must not become importable there.
    """
    if python is None or Path(python).resolve() == Path(sys.executable).resolve():
        return None
    link = scratch / "path"
    link.mkdir(exist_ok=True)
    (link / "diagnose").symlink_to(Path(diagnose.__file__).resolve().parent)
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{link}{os.pathsep}{inherited}" if inherited else str(link)}


def _complete(partial: PartialFolder) -> bool:
    return (partial.path / RUN_FILE).is_file() or any(partial.path.glob("run.rank*.json"))


def _judge(request: TorchCapture, status: int | None, partial: PartialFolder) -> None:
    """Raise InputError unless the window was written; say so when the target failed later."""
    if status == torch_runner.NO_TORCH:
        raise UsageError(
            f"torch is not installed for {request.python or sys.executable}; "
            "pip install 'llm-diagnose[collect]' there, or name another interpreter with --python"
        )
    if _complete(partial):
        if status is None:
            said = f"was ended after {request.timeout_s:g} s; the window was complete by then"
        elif status != 0:
            said = f"{process.describe(status)} after the window was complete"
        else:
            return
        print(f"diagnose: the target {said}", file=sys.stderr)
        return
    if status is None:
        limit = f"{request.timeout_s:g} s"
        why = f"no complete window within {limit}; raise --timeout, or lower --steps or --warmup"
    elif status:
        why = f"the target {process.describe(status)} before the window was complete"
    else:
        why = (
            f"the target ended before step {request.warmup + 1}; run more steps, lower --warmup, or mark "
            "the steps with diagnose.collectors.capture where no torch module is called"
        )
    raise InputError(f"nothing captured: {why}")
