"""What else went on during a calibration: other load, clocks, throttling. Notes for the file, never a
reason to stop.
"""

import contextlib
import os
import subprocess
from pathlib import Path

# NVML's reasons for lower clocks that mean throttling (nvmlClocksEventReason bits); idle and display are
# none.
THROTTLE = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}
_QUERY = "clocks.sm,clocks.max.sm,power.draw,temperature.gpu,utilization.gpu,clocks_throttle_reasons.active"


def processor_busy() -> tuple[float, float] | None:
    """(busy + stolen, all) processor seconds of the machine so far, in kernel ticks; None where not told."""
    try:
        fields = [float(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def cpu_notes(before: tuple[float, float] | None, own_s: float, wall_s: float) -> list[str]:
    """Load of others while we measured for `wall_s` seconds, `own_s` processor seconds of it ours."""
    after = processor_busy()
    if before is None or after is None or wall_s <= 0:
        return []
    hertz = os.sysconf("SC_CLK_TCK")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    others = (after[0] - before[0]) / hertz - own_s
    share = others / (wall_s * cores)
    if share > 0.1:
        taken = f"{min(share, 1.0):.0%}"
        return [f"other load took {taken} of the processor meanwhile: roofs may be low; repeat when idle"]
    return []


def gpu_state(index: int) -> dict[str, float] | None:
    """Clocks (MHz), power, temperature, utilisation and throttle bits by nvidia-smi; None without it."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--id={index}", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    parts = [p.strip() for p in done.stdout.strip().split(",")]
    if done.returncode or len(parts) != 6:
        return None
    names = ("clock", "clock_max", "power", "temperature", "utilisation")
    state: dict[str, float] = {}
    for name, text in zip(names, parts, strict=False):
        try:
            state[name] = float(text)
        except ValueError:
            continue
    with contextlib.suppress(ValueError):
        state["throttle"] = float(int(parts[5], 16))
    return state


def gpu_notes(before: dict[str, float] | None, during: dict[str, float] | None) -> list[str]:
    """Other load before we began, and throttling while we measured."""
    notes = []
    if before and before.get("utilisation", 0.0) > 5:
        notes.append(f"the GPU was {before['utilisation']:.0f} % busy before: other load, roofs may be low")
    if during:
        bits = int(during.get("throttle", 0))
        reasons = [text for bit, text in THROTTLE.items() if bits & bit]
        if reasons:
            notes.append(
                f"throttled while measuring ({', '.join(reasons)}): SM clock {during.get('clock', 0):.0f} of "
                f"{during.get('clock_max', 0):.0f} MHz; sustained rates are what this power and cooling allow"
            )
    return notes
