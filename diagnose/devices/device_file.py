"""Device files: the TOML that `diagnose calibrate` writes and `--device FILE.toml` reads.

    [device]
    name = "NVIDIA H100 80GB HBM3"      # as the trace reports it; "cpu" for the host processor
    arch = "sm_90"                      # optional
    sm_count = 132                      # optional
    memory_bytes = 85018279936          # optional
    base = "h100-sxm"                   # optional catalog key that fills what this file leaves out

    [[roof]]
    resource = "hbm"        # hbm | compute | link_h2d | link_d2h | peer | kernel_floor | launch
    dtype = ""              # of compute: fp64 fp32 tf32 fp16 bf16 fp8 int8 fp4; else empty or absent
    peak = 3352.0           # GB/s, TFLOP/s, or µs for kernel_floor and launch; optional
    sustained = [[16e6, 2100.0], [134e6, 2900.0]]   # a number, or (size in bytes or FLOP, rate) points
    provenance = "measured" # measured | derived | assumed
    note = ""               # optional, shown with the roof

A rate in a list of points is size over the kernel's whole time, its floor included; a single number is the
rate beyond the floor. Without `base`, a name that the catalog knows (with its memory and SM count) fills what
is left out. Unknown keys are errors: a misspelt key would silently change a verdict.
"""

import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from diagnose.devices.catalog import by_key
from diagnose.devices.match import match_device
from diagnose.devices.spec import DTYPES, DeviceSpec
from diagnose.errors import InputError, UsageError

RATES = ("hbm", "compute", "link_h2d", "link_d2h", "peer")
TIMES = ("kernel_floor", "launch")
PROVENANCES = ("measured", "derived", "assumed")
_DEVICE_KEYS = {"name", "arch", "sm_count", "memory_bytes", "l2_bytes", "base"}
_ROOF_KEYS = {"resource", "dtype", "peak", "sustained", "provenance", "note"}
_UNIT = {
    "compute": 1e12,
    "kernel_floor": 1e3,
    "launch": 1e3,
}  # to FLOP/s and ns; every other resource is GB/s
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class RoofPoints:
    """One `[[roof]]` in base units: B/s, FLOP/s, or ns for the floors.

    `points` are (size in bytes or FLOP, rate), sizes ascending; a single number is one point of size 0.
    """

    resource: str
    dtype: str
    peak: float | None
    points: tuple[tuple[float, float], ...]
    provenance: str
    note: str = ""


@dataclass(frozen=True)
class DeviceFile:
    """A device and the roofs its file gives (none for a catalog key). `path` None means the catalog."""

    spec: DeviceSpec
    roofs: tuple[RoofPoints, ...]
    path: Path | None


def load_device_file(path: Path) -> DeviceFile:
    """Read and check a device file. InputError, one line with the place, for anything wrong in it."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot read the device file ({error.strerror or error})") from None
    if len(raw) > _MAX_BYTES:
        raise InputError(f"{path}: {len(raw)} bytes is too large for a device file")
    try:
        data = tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a device file (not UTF-8 text)") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {str(error).splitlines()[0]}") from None
    _known(data, {"device", "roof"}, f"{path}")
    spec = _device(data.get("device"), path)
    tables = data.get("roof", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise InputError(f"{path}: roofs are [[roof]] tables")
    roofs = tuple(_roof(table, f"{path}: [[roof]] {i}") for i, table in enumerate(tables, 1))
    seen: set[tuple[str, str]] = set()
    for i, roof in enumerate(roofs, 1):
        if (roof.resource, roof.dtype) in seen:
            raise InputError(f"{path}: [[roof]] {i}: a second roof for {roof.resource} {roof.dtype}".rstrip())
        seen.add((roof.resource, roof.dtype))
    return DeviceFile(_with_peaks(spec, roofs), roofs, path)


def _known(table: dict[str, Any], allowed: set[str], where: str) -> None:
    if unknown := sorted(set(table) - allowed):
        raise InputError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(sorted(allowed))}")


def _text(table: dict[str, Any], key: str, where: str, default: str = "") -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise InputError(f"{where}: {key} must be text")
    return value


def _positive_int(table: dict[str, Any], key: str, where: str) -> int | None:
    value = table.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise InputError(f"{where}: {key} must be a whole number above 0")
    return value


def _positive(value: Any, what: str, where: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value <= 0
    ):
        raise InputError(f"{where}: {what} must be a number above 0")
    return float(value)


def _device(table: Any, path: Path) -> DeviceSpec:
    where = f"{path}: [device]"
    if not isinstance(table, dict):
        raise InputError(f'{path}: no [device] table; a device file starts with [device] and name = "…"')
    _known(table, _DEVICE_KEYS, where)
    name = _text(table, "name", where)
    if not name.strip():
        raise InputError(f"{where}: name is missing; write the name as the trace reports it")
    sm_count = _positive_int(table, "sm_count", where)
    memory_bytes = _positive_int(table, "memory_bytes", where)
    l2_bytes = _positive_int(table, "l2_bytes", where)
    arch = _text(table, "arch", where)
    base = _text(table, "base", where)
    spec: DeviceSpec | None
    if base:
        try:
            spec = by_key(base)
        except UsageError as error:
            raise InputError(f"{where}: base: {error}") from None
    else:
        spec = match_device(name, memory_bytes, sm_count).spec
    if spec is None:
        spec = DeviceSpec(
            key="file", name=name, vendor="", arch=arch, sm_count=sm_count, memory_bytes=memory_bytes
        )
    return replace(
        spec,
        name=name,
        arch=arch or spec.arch,
        sm_count=sm_count or spec.sm_count,
        memory_bytes=memory_bytes or spec.memory_bytes,
        l2_bytes=l2_bytes or spec.l2_bytes,
        cache_bytes=max(l2_bytes, spec.cache_bytes or 0) if l2_bytes else spec.cache_bytes,
    )


def _roof(table: dict[str, Any], where: str) -> RoofPoints:
    _known(table, _ROOF_KEYS, where)
    resource = _text(table, "resource", where)
    if resource not in RATES + TIMES:
        raise InputError(f"{where}: resource must be one of {', '.join(RATES + TIMES)}")
    dtype = _text(table, "dtype", where)
    if resource == "compute" and dtype not in DTYPES:
        raise InputError(f"{where}: dtype of a compute roof must be one of {', '.join(DTYPES)}")
    if resource != "compute" and dtype:
        raise InputError(f"{where}: dtype belongs to compute roofs only")
    provenance = _text(table, "provenance", where, "assumed")
    if provenance not in PROVENANCES:
        raise InputError(f"{where}: provenance must be one of {', '.join(PROVENANCES)}")
    scale = _UNIT.get(resource, 1e9)
    peak = _positive(table["peak"], "peak", where) * scale if "peak" in table else None
    points = _points(table.get("sustained"), scale, where)
    if peak is None and not points:
        raise InputError(f"{where}: neither peak nor sustained is given")
    if resource in TIMES and len(points) > 1:
        raise InputError(f"{where}: sustained of {resource} is one number in µs")
    return RoofPoints(resource, dtype, peak, points, provenance, _text(table, "note", where))


def _points(value: Any, scale: float, where: str) -> tuple[tuple[float, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        return ((0.0, _positive(value, "sustained", where) * scale),)
    points: list[tuple[float, float]] = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise InputError(f"{where}: sustained must be a number or a list of [size, rate] pairs")
        size = _positive(pair[0], "a size in sustained", where)
        if points and size <= points[-1][0]:
            raise InputError(f"{where}: sizes in sustained must ascend")
        points.append((size, _positive(pair[1], "a rate in sustained", where) * scale))
    if not points:
        raise InputError(f"{where}: sustained is an empty list")
    return tuple(points)


def _with_peaks(spec: DeviceSpec, roofs: tuple[RoofPoints, ...]) -> DeviceSpec:
    """The file's peaks over the catalog's."""
    changes: dict[str, Any] = {}
    compute = dict(spec.peak_compute)
    attribute = {"hbm": "peak_bandwidth", "link_h2d": "link_h2d", "link_d2h": "link_d2h", "peer": "peer"}
    for roof in roofs:
        if roof.peak is None:
            continue
        if roof.resource == "compute":
            compute[roof.dtype] = roof.peak
        elif roof.resource in attribute:
            changes[attribute[roof.resource]] = roof.peak
    return replace(spec, peak_compute=compute, source="device file", **changes)
