"""The parent process of `diagnose capture torch`: prepares the folder, runs the target, keeps only a whole
result.
"""

import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import diagnose
from diagnose.collectors import device_toml, process, torch_runner
from diagnose.collectors.runfolder import RUN_FILE, PartialFolder, choose_folder
from diagnose.errors import InputError, UsageError

DEVICE_FILE = "device.toml"
CALIBRATION_TIMEOUT_S = 300.0
SLOWDOWN_WORTH_SAYING = 1.15


@dataclass(frozen=True)
class TorchCapture:
    """What `diagnose capture torch` was asked for. `target` is `script.py ARGS` or `-m module ARGS`."""

    target: tuple[str, ...]
    output: Path | None = None
    warmup: int = 5
    steps: int = 20
    python: str | None = None
    timeout_s: float | None = None
    memory: bool = False
    stop: bool = False
    force: bool = False
    profiler: str = "kineto"
    calibrate: bool = False  # measure the processor's roofs after a run without a GPU


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
        _tell_slowdown(partial.path)
        if request.calibrate:
            _processor_roofs(request, partial.path)
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
    # Compared without following links: every environment's python may link to the same program.
    if python is None or os.path.abspath(shutil.which(python) or python) == os.path.abspath(sys.executable):
        return None
    link = scratch / "path"
    link.mkdir(exist_ok=True)
    (link / "diagnose").symlink_to(Path(diagnose.__file__).resolve().parent)
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{link}{os.pathsep}{inherited}" if inherited else str(link)}


def _tell_slowdown(folder: Path) -> None:
    """Say so when recording made the steps clearly slower: the trace then shows too much host time."""
    try:
        slowdown = json.loads((folder / RUN_FILE).read_text()).get("slowdown")
    except (OSError, ValueError):
        return
    if slowdown and slowdown > SLOWDOWN_WORTH_SAYING:
        print(
            f"diagnose: recorded steps took {slowdown:.2f} times as long on the host as unrecorded ones; "
            "gaps between operators are partly the profiler's",
            file=sys.stderr,
        )


def _processor_roofs(request: TorchCapture, folder: Path) -> None:
    """Put measured roofs beside a trace without a GPU: no catalog knows this processor with these threads.

    A kept calibration of as many threads is copied, else a quick one is made now, while the machine is as
    it was.
    """
    try:
        devices = json.loads((folder / RUN_FILE).read_text())["devices"]
    except (OSError, ValueError, KeyError):
        return
    if len(devices) != 1 or devices[0].get("name") != "cpu":
        return
    threads = int(devices[0]["threads"])
    kept = device_toml.store_path("cpu", threads)
    if kept.is_file():
        shutil.copyfile(kept, folder / DEVICE_FILE)
        return
    print("diagnose: measuring the processor's roofs (--no-calibrate to skip)", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="diagnose-") as scratch:
        arguments = [request.python or sys.executable, "-m", "diagnose.collectors.calibrate"]
        target = Path(scratch) / DEVICE_FILE
        try:
            status = process.run(
                [*arguments, str(target), str(threads)],
                timeout_s=CALIBRATION_TIMEOUT_S,
                env=child_env(request.python, Path(scratch)),
            )
        except (OSError, process.Interrupted):
            status = 1
        if status == 0 and target.is_file():
            shutil.copyfile(target, folder / DEVICE_FILE)
            return
    print(
        "diagnose: the processor's roofs could not be measured; give them later with --device",
        file=sys.stderr,
    )


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
