"""What the machine and its software are, as torch reports it; nothing that names an owner."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from diagnose.collectors.lazy import torch_module

ENGINES = (
    "vllm",
    "sglang",
    "tensorrt_llm",
    "transformers",
    "flashinfer-python",
    "flash-attn",
    "triton",
    "nvtx",
)


def versions() -> dict[str, str]:
    """Versions of Python, torch, its accelerator runtime, and of serving packages that are installed."""
    torch = torch_module()

    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    if torch.version.hip:
        found["hip"] = str(torch.version.hip)
    if torch.cuda.is_available() and torch.version.cuda:
        try:
            found["cudnn"] = str(torch.backends.cudnn.version())
            found["driver_supports_cuda"] = str(torch.cuda.driver_version())
        except (RuntimeError, AttributeError, AssertionError):
            pass
    for package in ENGINES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def cpu_name() -> str:
    """Model name of the processor, '' where the system does not say."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or ""


def cache_bytes() -> int | None:
    """Size of the processor's last cache as the system reports it (a virtual machine may show its host's)."""
    best = None
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            text = (index / "size").read_text().strip()
            size = int(text.rstrip("KMG")) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 1)
            best = max(best or 0, size)
        except (OSError, ValueError, IndexError):
            continue
    return best


def memory_bytes() -> int | None:
    """Main memory in bytes; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def arch_of(properties: Any) -> str:
    """`sm_90` or `gfx942` of a torch device property object."""
    gfx = str(getattr(properties, "gcnArchName", "") or "").split(":")[0]
    if gfx.startswith("gfx"):
        return gfx
    return f"sm_{properties.major}{properties.minor}"


def devices() -> list[dict[str, Any]]:
    """The accelerators that torch sees and the processor, with the numbers that identify them."""
    torch = torch_module()

    found: list[dict[str, Any]] = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(index)
            found.append({
                "id": index, "name": p.name, "arch": arch_of(p), "sm_count": p.multi_processor_count,
                "memory_bytes": p.total_memory, "l2_bytes": getattr(p, "L2_cache_size", None),
            })  # fmt: skip
    found.append({
        "id": -1, "name": "cpu", "model": cpu_name(), "arch": platform.machine(),
        "logical_cores": _cores(), "threads": torch.get_num_threads(), "memory_bytes": memory_bytes(),
        "isa": _isa(), "last_cache_bytes": cache_bytes(),
    })  # fmt: skip
    return found


def _cores() -> int | None:
    import os

    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _isa() -> str | None:
    torch = torch_module()

    try:
        return str(torch.backends.cpu.get_cpu_capability())
    except (AttributeError, RuntimeError):
        return None


def memory_statistics() -> dict[str, Any]:
    """Bytes in use now and at their highest, by device; the process's own resident peak for the CPU."""
    torch = torch_module()

    result: dict[str, Any] = {}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            result[f"cuda:{index}"] = {
                "allocated_bytes": torch.cuda.memory_allocated(index),
                "reserved_bytes": torch.cuda.memory_reserved(index),
                "peak_allocated_bytes": torch.cuda.max_memory_allocated(index),
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(index),
                "device_free_bytes": free, "device_total_bytes": total,
            }  # fmt: skip
    try:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result["cpu"] = {"peak_resident_bytes": peak * (1 if sys.platform == "darwin" else 1024)}
    except ImportError:
        pass
    return result
