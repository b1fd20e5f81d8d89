"""What a Kineto file says around its events: devices, ranks, versions, the base of its clock.

Nothing else is read from there: user metadata can hold names, paths and command lines.
"""

import json
import re
from typing import Any

import msgspec

_VERSIONS = (
    ("cupti_version", "CUPTI"), ("cuda_runtime_version", "CUDA runtime"), ("cuda_driver_version", "CUDA driver"),
    ("roctracer_version", "roctracer"), ("rocprofiler-sdk_version", "rocprofiler-sdk"),
    ("hip_runtime_version", "HIP runtime"), ("hip_driver_version", "HIP driver"),
)  # fmt: skip
_KEYS = (
    "deviceProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "with_stack",
    *(key for key, _ in _VERSIONS),
)


class Properties(msgspec.Struct):
    """One entry of deviceProperties."""

    id: int
    name: str
    memory_bytes: int | None
    sm_count: int | None
    arch: str | None


class Head(msgspec.Struct):
    """The facts kept. `base_ns` is added to every time; `intact` tells that head and tail parsed as JSON."""

    devices: list[Properties] = []
    rank: int | None = None
    world_size: int | None = None
    base_ns: int = 0
    versions: str | None = None
    intact: bool = True


def read_head(head: bytes, tail: bytes) -> Head:
    """Read what precedes (`{` up to "traceEvents") and follows (after the list's `]`) the events."""
    found: dict[str, Any] = {}
    intact = True
    for part, start, end in ((head, b"", b'"traceEvents":[]}'), (tail, b'{"traceEvents":[]', b"")):
        if not part.strip(b" \t\r\n,{}]"):
            continue
        try:
            raws = msgspec.json.decode(start + part + end, type=dict[str, msgspec.Raw])
            found |= {key: _value(bytes(raws[key])) for key in _KEYS if key in raws}
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            intact = False
            found |= _salvage(part)
    devices = found.get("deviceProperties")
    job = found.get("distributedInfo")
    job = job if isinstance(job, dict) else {}
    return Head(
        devices=[d for entry in devices if (d := _device(entry))] if isinstance(devices, list) else [],
        rank=_int(job.get("rank")),
        world_size=_int(job.get("world_size")),
        base_ns=_int(found.get("baseTimeNanoseconds")) or 0,
        versions=", ".join(
            f"{label} {text}" for key, label in _VERSIONS if (text := _version(key, found.get(key)))
        ) or None,
        intact=intact,
    )  # fmt: skip


def _value(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _salvage(part: bytes) -> dict[str, Any]:
    """The keys whose own value is readable in a head or tail that is not valid JSON (quotes in log arrays)."""
    text = part.decode("utf-8", "replace")
    found: dict[str, Any] = {}
    for key in _KEYS:
        at = re.search(rf'(?<!\\)"{re.escape(key)}"\s*:\s*', text)
        if at:
            try:
                found[key] = json.JSONDecoder(strict=False).raw_decode(text, at.end())[0]
            except (ValueError, RecursionError):
                continue
    return found


def _int(item: Any) -> int | None:
    if isinstance(item, bool) or item is None:
        return None
    try:
        return int(item)
    except (ValueError, TypeError, OverflowError):
        return None


def _version(key: str, item: Any) -> str | None:
    number = _int(item)
    if key.startswith("cuda_") and number and number > 1000:
        return f"{number // 1000}.{number % 1000 // 10}"
    if key.startswith("hip_") and number and number > 10**6:
        return f"{number // 10**7}.{number // 10**5 % 100}.{number % 10**5}"
    return None if item is None else str(item)[:40]


def _device(entry: Any) -> Properties | None:
    number = _int(entry.get("id")) if isinstance(entry, dict) else None
    if number is None:
        return None
    name = entry.get("name")
    return Properties(
        id=number,
        name=name.strip() if isinstance(name, str) else "",
        memory_bytes=_int(entry.get("totalGlobalMem")),
        sm_count=_int(entry.get("numSms")),
        arch=_arch(_int(entry.get("computeMajor")), _int(entry.get("computeMinor")), entry),
    )


def _arch(major: int | None, minor: int | None, entry: dict[str, Any]) -> str | None:
    """sm_90 for CUDA. HIP leaves the stepping out (9.4 is gfx942): the parts sold so far make it known."""
    if major is None or minor is None:
        return None
    if _int(entry.get("warpSize")) != 64 and "maxSharedMemoryPerMultiProcessor" not in entry:
        return f"sm_{major}{minor}"
    mi100 = (_int(entry.get("totalGlobalMem")) or 0) < 40 * 10**9
    known = {(9, 0): "gfx908" if mi100 else "gfx90a", (9, 4): "gfx942", (9, 5): "gfx950"}
    return known.get((major, minor), f"gfx{major}{minor}x")
