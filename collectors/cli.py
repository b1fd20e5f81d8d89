"""The commands `diagnose capture torch|nsys|serve` and `diagnose calibrate`, for the main command line to
mount.

Nothing here loads torch, and `--help` and `--dry-run` need neither torch nor nsys nor a GPU.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from diagnose.collectors import calibrate as calibration
from diagnose.collectors import nsys_capture, serve_capture, torch_launch

# Everything after the first word that is no option belongs to the target, options too.
_TARGET = {"allow_interspersed_args": False}

capture_app = typer.Typer(
    name="capture",
    no_args_is_help=True,
    help="Take a capture that can be diagnosed: the right profiler options, a bounded window, a run folder.",
)

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Run folder to write. Default: a free NAME.run here.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an earlier run folder of ours.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be run, and do nothing.")]
Then = Annotated[bool, typer.Option("--diagnose/--no-diagnose", help="Diagnose the folder afterwards.")]
Warmup = Annotated[int, typer.Option("--warmup", min=1, help="Steps to run before recording.")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Steps to record.")]
Python = Annotated[
    str | None,
    typer.Option("--python", help="Interpreter for the script. Default: the one running diagnose."),
]


def _finish(folder: Path, diagnose: bool, *options: str) -> None:
    """Say where the run folder is, and diagnose it when asked to."""
    print(f"Wrote {folder}", file=sys.stderr)
    if diagnose:
        status = subprocess.call([sys.executable, "-m", "diagnose", str(folder), *options])
        if status:
            raise typer.Exit(status)


@capture_app.command("torch", context_settings=_TARGET)
def torch_command(
    target: Annotated[
        list[str] | None, typer.Argument(metavar="-- SCRIPT.py [ARGS]...", help="Script, or -m MODULE.")
    ] = None,
    output: Output = None,
    warmup: Warmup = 5,
    steps: Steps = 20,
    python: Python = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", help="End the script after so many seconds.")
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="End the script when the window is complete.")] = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Record allocator events too (more overhead).")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate/--no-calibrate", help="Measure the processor's roofs after a run without GPU."
        ),
    ] = True,
    diagnose: Then = False,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Profile a Python script with the PyTorch profiler: shapes on, stacks off, a bounded window after
    warm-up.

    A step is one call of the script's model, or what the script marks itself with
    diagnose.collectors.capture.
    """
    request = torch_launch.TorchCapture(
        tuple(target or ()), output, warmup, steps, python, timeout, memory, stop, force, calibrate=calibrate
    )
    if dry_run:
        torch_launch.check(request)
        print(shlex.join(torch_launch.command(request, "SETTINGS.json")))
        return
    _finish(torch_launch.capture_torch(request), diagnose)


@capture_app.command("nsys", context_settings=_TARGET)
def nsys_command(
    target: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND [ARGS]...", help="Command, or a script with --torch."),
    ] = None,
    output: Output = None,
    nsys: Annotated[
        str | None, typer.Option("--nsys", help="nsys program. Default: $NSYS, PATH, install folders.")
    ] = None,
    torch: Annotated[
        bool, typer.Option("--torch", help="The target is a Python script: mark and bound its model's steps.")
    ] = False,
    warmup: Warmup = 5,
    steps: Steps = 20,
    python: Python = None,
    capture_range: Annotated[
        str, typer.Option("--capture-range", help="auto, none, cuda (cudaProfilerStart) or nvtx:NAME.")
    ] = "auto",
    delay: Annotated[float | None, typer.Option("--delay", help="Seconds before recording starts.")] = None,
    duration: Annotated[float | None, typer.Option("--duration", help="Seconds to record.")] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="End everything after so many seconds.")
    ] = 900.0,
    gpu_metrics: Annotated[
        bool, typer.Option("--gpu-metrics", help="Sample GPU metrics (may need administrator rights).")
    ] = False,
    keep_env: Annotated[
        list[str] | None,
        typer.Option("--keep-env", help="A further environment variable: NAME or NAME=VALUE."),
    ] = None,
    diagnose: Then = True,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Profile a command with Nsight Systems: graphs by node, cuBLAS and NVTX, a clean environment.

    The report still names host, user and command lines, as every report of nsys does; ours does not.
    """
    request = nsys_capture.NsysCapture(
        tuple(target or ()), output, nsys, torch, python, warmup, steps, capture_range, delay, duration,
        timeout, gpu_metrics, tuple(keep_env or ()), force,
    )  # fmt: skip
    if dry_run:
        print(nsys_capture.dry_run(request))
        return
    found = nsys_capture.find_nsys(nsys)
    _finish(nsys_capture.capture_nsys(request), diagnose, *(("--nsys", found) if found else ()))


@capture_app.command("serve")
def serve_command(
    url: Annotated[str, typer.Option("--url", help="The server; loopback unless you name another host.")] = (
        serve_capture.DEFAULT_URL
    ),
    engine: Annotated[
        str | None, typer.Option("--engine", help="vllm, sglang or trtllm. Default: told by it.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Length of the metrics window.")] = 30.0,
    profile_seconds: Annotated[
        float, typer.Option("--profile-seconds", help="Seconds of it with the profiler on, in the middle.")
    ] = 5.0,
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Use the server's profiler.")
    ] = True,
    trace_dir: Annotated[
        Path | None,
        typer.Option("--trace-dir", help="Where the server writes its traces, as seen from here."),
    ] = None,
    log: Annotated[Path | None, typer.Option("--log", help="The server's log, to keep with the run.")] = None,
    bench: Annotated[
        Path | None, typer.Option("--bench", help="A benchmark's result, to keep with the run.")
    ] = None,
    output: Output = None,
    stop_timeout: Annotated[
        float, typer.Option("--stop-timeout", help="Seconds the profiler may take to stop.")
    ] = 300.0,
    diagnose: Then = False,
    force: Force = False,
    dry_run: DryRun = False,
) -> None:
    """Watch a running server: /metrics once a second, its settings, and its profiler for a few seconds."""
    request = serve_capture.ServeCapture(
        url, engine, seconds, profile_seconds, profile, trace_dir, log, bench, output, force,
        stop_timeout_s=stop_timeout,
    )  # fmt: skip
    if dry_run:
        print(serve_capture.dry_run(request))
        return
    _finish(serve_capture.capture_serve(request), diagnose)


def calibrate_command(
    device: Annotated[
        str, typer.Option("--device", help="cpu, cuda or cuda:N. Default: the first GPU, else cpu.")
    ] = "auto",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Device file. Default: kept for later diagnoses.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Seconds instead of minutes; indicative only.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Threads torch may use on the cpu.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that we did not write.")] = False,
) -> None:
    """Measure what this device reaches (bandwidth, matrix products, floors, links) and write its device
    file.
    """
    path = calibration.calibrate(calibration.Calibration(device, output, quick, threads, force))
    print(f"Wrote {path}", file=sys.stderr)
