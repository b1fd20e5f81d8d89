"""`diagnose capture nsys -- COMMAND`: Nsight Systems with the options that make a report diagnosable.

The command line is built from what the installed nsys says it understands, or for the newest known version
when none is installed (`--dry-run` shows it). The target runs in a clean environment, because a report
keeps the environment of what it profiled.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from diagnose.collectors import process, torch_launch
from diagnose.collectors.runfolder import (
    RUN_FILE,
    RUN_SCHEMA,
    PartialFolder,
    choose_folder,
    now,
    tool_version,
    write_json,
)
from diagnose.errors import InputError, UsageError

REPORT = "report.nsys-rep"
NEWEST_KNOWN = "2026.4"
# Options of the newest known version that are used here where present; 2023.4 has all but the two noted.
NEWEST_OPTIONS = frozenset(
    {
        "--trace",
        "--sample",
        "--cpuctxsw",
        "--cuda-graph-trace",
        "--trace-fork-before-exec",
        "--capture-range",
        "--capture-range-end",
        "--gpu-metrics-devices",
        "--gpu-metrics-frequency",
        "--force-overwrite",
        "--output",
        "--duration",
        "--delay",
        "--kill",
        "--pytorch",
        "--nvtx-capture",
        "--env-var",
        "--cuda-memory-usage",
    }
)  # fmt: skip  (2023.4 spells --gpu-metrics-device and has no --pytorch)
INSTALLS = (
    "/opt/nvidia/nsight-systems/*/bin/nsys", "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/usr/local/cuda*/bin/nsys", "/usr/lib/nsight-systems/bin/nsys", "/usr/local/bin/nsys",
)  # fmt: skip
# What programs need to run at all and to find their devices and libraries; nothing that carries credentials.
KEPT = (
    "PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "PYTHONPATH", "HOME", "TMPDIR", "TZ", "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
    "HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "VLLM_WORKER_MULTIPROC_METHOD",
)  # fmt: skip


@dataclass(frozen=True)
class NsysCapture:
    """What `diagnose capture nsys` was asked for.

    `torch`: the target is a Python script whose model's steps are to be marked and bounded as in `capture
    torch`. `capture_range`: "auto", "none", "cuda" (the target calls cudaProfilerStart) or "nvtx:NAME".
    `keep_env`: further environment variables, `NAME` or `NAME=VALUE`.
    """

    target: tuple[str, ...]
    output: Path | None = None
    nsys: str | None = None
    torch: bool = False
    python: str | None = None
    warmup: int = 5
    steps: int = 20
    capture_range: str = "auto"
    delay_s: float | None = None
    duration_s: float | None = None
    timeout_s: float = 900.0
    gpu_metrics: bool = False
    keep_env: tuple[str, ...] = ()
    force: bool = False


@dataclass(frozen=True)
class Nsys:
    """An nsys program, or the newest known one (`path` None) to show what would be run."""

    path: str | None
    version: str
    options: frozenset[str] = field(default_factory=frozenset)


def find_nsys(wanted: str | None) -> str | None:
    """The nsys to use: `wanted`, $NSYS, the search path, the usual install folders (newest last name
    first).
    """
    for candidate in (wanted, os.environ.get("NSYS")):
        if candidate:
            found = shutil.which(candidate)
            if found is None:
                raise UsageError(f"{candidate}: no such program; give nsys with --nsys PATH")
            return found
    if found := shutil.which("nsys"):
        return found
    for pattern in INSTALLS:
        head, _, tail = pattern.partition("*")
        matches = sorted(Path(head).parent.glob(Path(head).name + "*" + tail)) if tail else [Path(pattern)]
        for path in reversed(matches):
            if os.access(path, os.X_OK):
                return str(path)
    return None


def read_nsys(path: str | None) -> Nsys:
    """Ask an nsys for its version and its `profile` options. UsageError when it does not answer."""
    if path is None:
        return Nsys(None, NEWEST_KNOWN, NEWEST_OPTIONS)
    texts = []
    for arguments in (["--version"], ["profile", "--help"]):
        try:
            done = subprocess.run(
                [path, *arguments], capture_output=True, text=True, timeout=60, check=False, env=clean_env(())
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{path}: does not run ({type(error).__name__}); give another --nsys") from None
        texts.append(done.stdout + done.stderr)
    match = re.search(r"version (\d+\.\d+)", texts[0])
    if match is None:
        raise UsageError(f"{path}: is not nsys (no version in its answer); give another --nsys")
    # The help spells `-t, --trace=`; two-letter forms are aliases of what we use.
    return Nsys(path, match.group(1), frozenset(re.findall(r"(?<![\w-])--[a-z][a-z-]+", texts[1])))


def clean_env(keep: tuple[str, ...]) -> dict[str, str]:
    """The environment for nsys and its target: `KEPT`, a neutral locale, and what was asked for."""
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    env["LANG"] = env["LC_ALL"] = "C.UTF-8"
    for item in keep:
        name, equals, value = item.partition("=")
        if equals:
            env[name] = value
        elif name in os.environ:
            env[name] = os.environ[name]
        else:
            raise UsageError(f"--keep-env {name}: not set here; give {name}=VALUE")
    return env


def build_command(request: NsysCapture, nsys: Nsys, report: Path, target: list[str]) -> list[str]:
    """The whole command line. Options that this nsys does not know are left out."""

    def known(*options: str) -> list[str]:
        return [option for option in options if option.split("=")[0] in nsys.options]

    line = [nsys.path or "nsys", "profile", "--trace=cuda,nvtx,osrt,cublas"]
    line += known(
        "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node", "--trace-fork-before-exec=true"
    )
    line += _range(request, nsys)
    if request.delay_s is not None:
        line.append(f"--delay={request.delay_s:g}")
    if request.duration_s is not None:
        line.append(f"--duration={request.duration_s:g}")
    if request.gpu_metrics:
        metrics = known("--gpu-metrics-devices=all", "--gpu-metrics-device=all")[:1]
        if not metrics:
            raise UsageError(f"nsys {nsys.version} has no GPU metrics; leave --gpu-metrics out")
        line += metrics
    if request.torch is False and _is_python(request.target):
        line += known("--pytorch=autograd-shapes-nvtx")
    return [*line, "--force-overwrite=true", f"--output={report}", *target]


def _is_python(target: tuple[str, ...]) -> bool:
    return bool(target) and Path(target[0]).name.startswith("python")


def has_nvidia_gpu() -> bool:
    """Whether the driver's control device is there (no library is loaded to find out)."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/nvhost-ctrl").exists()


def _range(request: NsysCapture, nsys: Nsys) -> list[str]:
    wanted = request.capture_range
    if wanted == "auto":
        # Our runner brackets its window with cudaProfilerStart/Stop, which exists only with CUDA.
        wanted = "cuda" if request.torch and (nsys.path is None or has_nvidia_gpu()) else "none"
    if wanted == "none":
        return []
    if wanted == "cuda":
        return ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    if wanted.startswith("nvtx:") and len(wanted) > 5:
        return ["--capture-range=nvtx", f"--nvtx-capture={wanted[5:]}@*", "--capture-range-end=stop",
                "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0"]  # fmt: skip
    raise UsageError(f"--capture-range {wanted}: auto, none, cuda or nvtx:NAME")


def _target(request: NsysCapture, scratch: Path | None) -> tuple[str, list[str]]:
    """The run's name and the command that nsys shall start; `scratch` None only shows it."""
    if not request.torch:
        if not request.target:
            raise UsageError("give the command after `--`, e.g. diagnose capture nsys -- python serve.py")
        script = next((t for t in request.target[1:] if t.endswith(".py")), "")
        named = script if _is_python(request.target) and script else request.target[0]
        return Path(named).stem, list(request.target)
    inner = torch_launch.TorchCapture(
        request.target, warmup=request.warmup, steps=request.steps, python=request.python, profiler="nsys"
    )
    name = torch_launch.check(inner)
    settings = Path("SETTINGS.json") if scratch is None else scratch / "settings.json"
    if scratch is not None:
        torch_launch.write_settings(inner, settings, scratch)
    return name, torch_launch.command(inner, str(settings))


def dry_run(request: NsysCapture) -> str:
    """The command as a shell line, without running anything but `nsys --help`."""
    nsys = read_nsys(find_nsys(request.nsys))
    _, target = _target(request, None)
    clean_env(request.keep_env)
    note = (
        f"# for nsys {nsys.version}{'' if nsys.path else ' (not installed here)'}, in a clean environment\n"
    )
    return note + shlex.join(build_command(request, nsys, Path(REPORT), target))


def capture_nsys(request: NsysCapture) -> Path:
    """Run the capture; the run folder. Raises UsageError or InputError, and then leaves nothing behind."""
    path = find_nsys(request.nsys)
    if path is None:
        raise UsageError(
            "nsys is not installed (not in --nsys, $NSYS, PATH or the usual folders); "
            "--dry-run shows the command to run where it is"
        )
    nsys = read_nsys(path)
    env = clean_env(request.keep_env)
    with tempfile.TemporaryDirectory(prefix="diagnose-") as scratch:
        name, target = _target(request, Path(scratch))
        if request.torch and (child := torch_launch.child_env(request.python, Path(scratch))):
            env["PYTHONPATH"] = child["PYTHONPATH"]
        partial = PartialFolder(choose_folder(request.output, name, request.force))
        try:
            report = partial.path.resolve() / REPORT
            status = _run(build_command(request, nsys, report, target), env, request.timeout_s)
            if not report.is_file() or report.stat().st_size == 0:
                raise InputError(f"nothing captured: {_no_report(request, status)}")
            if status:
                # nsys ends the target itself when --duration is over, and passes its status on.
                print(
                    f"diagnose: the target {process.describe(status)}; the report covers what ran",
                    file=sys.stderr,
                )
            _describe(request, nsys, partial.path, Path(scratch))
            return partial.commit()
        finally:
            partial.discard()


def _run(command: list[str], env: dict[str, str], timeout_s: float) -> int:
    try:
        status = process.run(command, timeout_s=timeout_s, env=env)
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot run it ({error.strerror}); give another --nsys") from None
    except process.Interrupted:
        raise InputError("interrupted before nsys wrote its report: nothing captured") from None
    if status is None:
        raise InputError(
            f"nothing captured: nsys and its target were ended after {timeout_s:g} s; "
            "bound the capture with --duration, or raise --timeout"
        )
    return status


def _no_report(request: NsysCapture, status: int) -> str:
    if status:
        return f"nsys or its target {process.describe(status)} and no report was written; its own words are above"
    if request.capture_range not in ("auto", "none") or request.torch:
        return (
            "the target never entered the capture range; check --capture-range, or lower --warmup and --steps"
        )
    return "nsys wrote no report"


def _describe(request: NsysCapture, nsys: Nsys, folder: Path, scratch: Path) -> None:
    """Write `run.json`, with what the marked script told of itself when there was one."""
    try:
        told = json.loads((scratch / RUN_FILE).read_text())
    except (OSError, ValueError):
        told = {}
    config = scratch / "config.json"
    if config.is_file():
        shutil.copyfile(config, folder / "config.json")
    write_json(folder / RUN_FILE, {
        "schema": RUN_SCHEMA, "collector": "nsys", "tool_version": tool_version(), "captured_at": now(),
        "traces": [REPORT], "versions": {**told.get("versions", {}), "nsys": nsys.version},
        "devices": told.get("devices", []), "model_config": told.get("model_config"),
        "window": told.get("window"), "steps": told.get("steps", []), "memory": told.get("memory"),
        "profiler": {"name": "nsys", "cuda_graph_trace": "node", "gpu_metrics": request.gpu_metrics,
                     "capture_range": request.capture_range},
    })  # fmt: skip
