"""`diagnose calibrate`: measures the roofs of a device here and writes them as a device file.

Bandwidth by size with cold operands, matrix products by dtype and size, the kernel and launch floors,
host-device links. A few minutes on a GPU or processor, seconds with `quick` (fewer sizes, shorter windows,
lower rates).
"""

import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.collectors import calibrate_load, calibrate_measure, machine
from diagnose.collectors.calibrate_timing import Clock, ColdPool
from diagnose.collectors.device_toml import DeviceFile, Roof, store_path
from diagnose.collectors.lazy import torch_module
from diagnose.collectors.runfolder import now, tool_version
from diagnose.errors import UsageError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8")


@dataclass(frozen=True)
class Calibration:
    """What `diagnose calibrate` was asked for. `output` None: the folder that later diagnoses look into."""

    device: str = "auto"
    output: Path | None = None
    quick: bool = False
    threads: int | None = None
    force: bool = False


@dataclass(frozen=True)
class Plan:
    """Sizes to measure: bytes moved, n of products, bytes over the link, bytes of the cold pool."""

    bandwidth: tuple[int, ...]
    products: tuple[int, ...]
    links: tuple[int, ...]
    warm: tuple[int, ...]
    pool: int
    budget_s: float

    @property
    def measurements(self) -> int:
        """Number of progress steps, at most."""
        return 4 * len(self.bandwidth) + len(DTYPES) * len(self.products) + 2 * len(self.links) + 3


def plan(kind: str, quick: bool, memory_bytes: int | None, cache: int | None) -> Plan:
    """What to measure on a `cuda` or `cpu` device with that much memory free and that last cache."""
    if kind == "cpu":
        # Twice the cache that the system reports, so that a piece is cold again; a quarter of memory at most.
        pool = min(max(GIB, 2 * (cache or 0)), max((memory_bytes or 4 * GIB) // 4, 64 * MIB))
        if quick:
            return Plan((MIB, 8 * MIB, 64 * MIB), (256, 1024), (), (), min(pool, GIB), 0.15)
        sizes = tuple(256 * KIB << shift for shift in range(11))
        warm = tuple(MIB << shift for shift in range(8))
        return Plan(sizes, (64, 128, 256, 512, 1024, 1536), (), warm, pool, 0.5)
    pool = min(8 * GIB, (memory_bytes or 8 * GIB) // 3)
    if quick:
        few = (MIB, 16 * MIB, 256 * MIB)
        return Plan(few, (512, 2048, 4096), (MIB, 64 * MIB), (), min(pool, 2 * GIB), 0.05)
    sizes = tuple(MIB << shift for shift in range(11) if MIB << shift <= pool // 3)
    link_sizes = (64 * KIB, MIB, 16 * MIB, 256 * MIB)
    return Plan(sizes, (256, 512, 1024, 2048, 4096, 8192), link_sizes, (), pool, 0.3)


class Progress:
    """A one-line bar on stderr, only on a terminal, gone when done."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.shown = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        """Announce the next measurement."""
        self.done += 1
        if self.shown:
            filled = min(20, 20 * self.done // max(self.total, 1))
            bar = "#" * filled + "-" * (20 - filled)
            print(f"\r\x1b[Kcalibrating [{bar}] {text}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def calibrate(request: Calibration) -> Path:
    """Measure and write the device file; its path. Raises UsageError without torch, or for a device not
    there.
    """
    try:
        torch = torch_module()
    except ImportError:
        raise UsageError(
            "calibration needs torch: pip install 'llm-diagnose[collect]' (with the torch build of your GPU)"
        ) from None
    device = _device(torch, request.device)
    if request.threads is not None:
        if device != "cpu" or request.threads < 1:
            raise UsageError("--threads is for --device cpu, and at least 1")
        torch.set_num_threads(request.threads)
    target = request.output or store_path(*_names(torch, device))
    if request.output is not None and target.exists() and not request.force and not _ours(target):
        raise UsageError(
            f"{target} exists and is no device file of ours; choose another --output, or --force"
        )
    if not target.parent.is_dir():
        if request.output is not None:
            raise UsageError(f"{target.parent}: no such folder; make it first or choose another --output")
        target.parent.mkdir(parents=True, exist_ok=True)
    file = measure(device, request.quick)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        partial.write_text(file.toml())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _device(torch: Any, wanted: str) -> str:
    if wanted == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if wanted == "cpu":
        return wanted
    if wanted.split(":", maxsplit=1)[0] != "cuda" or (
        not wanted.removeprefix("cuda").lstrip(":").isdigit() and wanted != "cuda"
    ):
        raise UsageError(f"--device {wanted}: cpu, cuda or cuda:N")
    index = int(wanted.partition(":")[2] or 0)
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        raise UsageError(f"--device {wanted}: torch sees no such GPU here")
    return f"cuda:{index}"


def _names(torch: Any, device: str) -> tuple[str, int | None]:
    if device == "cpu":
        return "cpu", int(torch.get_num_threads())
    return str(torch.cuda.get_device_name(device)), None


def _ours(path: Path) -> bool:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")[:200].startswith("# Measured by diagnose calibrate")
    return False


def measure(device: str, quick: bool) -> DeviceFile:
    """All measurements of one device (`cpu` or `cuda:N`)."""
    torch = torch_module()
    cuda = device != "cpu"
    file = _describe(torch, device)
    free = torch.cuda.mem_get_info(device)[0] if cuda else file.memory_bytes
    todo = plan("cuda" if cuda else "cpu", quick, free, None if cuda else machine.cache_bytes())
    clock = Clock(device, todo.budget_s)
    tell = Progress(todo.measurements)
    started, own, busy = time.perf_counter(), time.process_time(), calibrate_load.processor_busy()
    before = calibrate_load.gpu_state(int(device[5:])) if cuda else None
    during = None
    try:
        with torch.inference_mode():
            tell("floors")
            file.roofs += list(calibrate_measure.floors(clock))
            floor_s = next((r.value or 0.0 for r in file.roofs if r.resource == "kernel_floor"), 0.0) / 1e6
            pool = ColdPool(clock, todo.pool)
            hbm = calibrate_measure.bandwidth(clock, pool, todo.bandwidth, floor_s, tell)
            if not cuda and todo.warm:
                tell("cache")
                file.l2_bytes = calibrate_measure.cache_capacity(clock, pool, todo.warm)
            del pool
            file.roofs.append(hbm)
            for dtype in DTYPES:
                roof = calibrate_measure.products(clock, dtype, todo.products, floor_s, tell)
                if roof is not None:
                    file.roofs.append(roof)
            during = calibrate_load.gpu_state(int(device[5:])) if cuda else None
            if cuda:
                file.roofs += list(calibrate_measure.links(clock, todo.links, tell))
    finally:
        tell.close()
    wall = time.perf_counter() - started
    notes = calibrate_load.gpu_notes(before, during)
    if not cuda:
        notes += calibrate_load.cpu_notes(busy, time.process_time() - own, wall)
        _peaks(file.roofs)
    for note in notes:
        print(f"diagnose: {note}", file=sys.stderr)
    file.remarks = [*_remarks(torch, device, quick, wall), *notes]
    return file


def _describe(torch: Any, device: str) -> DeviceFile:
    if device == "cpu":
        return DeviceFile("cpu", arch=os.uname().machine, memory_bytes=machine.memory_bytes())
    p = torch.cuda.get_device_properties(device)
    cache = getattr(p, "L2_cache_size", None)
    return DeviceFile(p.name, machine.arch_of(p), p.multi_processor_count, p.total_memory, cache)


def _peaks(roofs: list[Roof]) -> None:
    """A processor has no catalogued datasheet: the highest rate measured stands for its peak."""
    for roof in roofs:
        if roof.points:
            roof.peak = max(rate for _, rate in roof.points)
            roof.note += "; the peak is the highest rate measured"


def _remarks(torch: Any, device: str, quick: bool, wall_s: float) -> list[str]:
    what = "quick, indicative" if quick else "full"
    lines = [
        f"Measured by diagnose calibrate {tool_version()} on {now()} in {wall_s:.0f} s ({what}).",
        f"torch {torch.__version__}; rates are GB/s and TFLOP/s (a multiply-add is 2), floors microseconds.",
    ]
    if device == "cpu":
        lines.append(f"{machine.cpu_name()}, {torch.get_num_threads()} threads.")
    return lines


def main(arguments: list[str]) -> int:
    """`python -m diagnose.collectors.calibrate OUTPUT THREADS`: the quick processor roofs of a captured
    run.
    """
    calibrate(Calibration("cpu", Path(arguments[0]), quick=True, threads=int(arguments[1]), force=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
