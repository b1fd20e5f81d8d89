"""The measurements of a calibration: bandwidth, matrix products, floors, links. Each gives points of a
roof.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from diagnose.collectors.calibrate_timing import Clock, ColdPool
from diagnose.collectors.device_toml import Roof, envelope

MIB = 1 << 20
Points = list[tuple[float, float]]
Tell = Callable[[str], None]


def bandwidth(clock: Clock, pool: ColdPool, sizes: Sequence[int], floor_s: float, tell: Tell) -> Roof:
    """Memory rate by bytes moved (read + written), operands cold.

    The best of copy, triad, read and matrix-vector. The cost of calling, the time of the same operation on
    4 kB, is replaced by the kernel floor: rates are those of the kernel alone, its floor included.
    """
    by_kind: dict[str, Points] = {}
    for kind, run in (("copy", _copy), ("triad", _triad), ("read", _read), ("matvec", _matvec)):
        fixed = clock.seconds(run(clock, pool, 4096)[0])
        for size in sizes:
            tell(f"{kind} {_bytes(size)}")
            operation, moved = run(clock, pool, size)
            seconds = clock.seconds(operation)
            if seconds > 3 * fixed:
                rate = moved / (seconds - fixed + floor_s) / 1e9
                by_kind.setdefault(kind, []).append((float(size), rate))
    points = envelope([point for found in by_kind.values() for point in found])
    best = ", ".join(f"{kind} {max(rate for _, rate in found):.3g}" for kind, found in by_kind.items())
    return Roof("hbm", points=points, note=f"cold operands; highest {best} GB/s")


def _bytes(size: int) -> str:
    return f"{size / MIB:g} MiB" if size >= MIB else f"{size / 1024:g} KiB"


def _copy(clock: Clock, pool: ColdPool, size: int) -> tuple[Callable[[int], Any], int]:
    part = max(size // 2, 512)
    tensors = pool.pieces(part, clock.torch.float32, 0)
    half = len(tensors) // 2
    return lambda i: tensors[i % half].copy_(tensors[half + i % half]), 2 * part


def _triad(clock: Clock, pool: ColdPool, size: int) -> tuple[Callable[[int], Any], int]:
    part = max(size // 3 // 512, 1) * 512
    tensors = pool.pieces(part, clock.torch.float32, 0)
    third, torch = len(tensors) // 3, clock.torch

    def run(i: int) -> None:
        k = i % third
        torch.add(tensors[k], tensors[third + k], alpha=2.0, out=tensors[2 * third + k])

    return run, 3 * part


def _read(clock: Clock, pool: ColdPool, size: int) -> tuple[Callable[[int], Any], int]:
    tensors = pool.pieces(size, clock.torch.float32, 0)
    return lambda i: tensors[i % len(tensors)].sum(), size


def _matvec(clock: Clock, pool: ColdPool, size: int) -> tuple[Callable[[int], Any], int]:
    """One decoding token through a weight matrix: the read that inference is made of."""
    torch = clock.torch
    columns = 1024 if size >= 4 * MIB else 256
    rows = max(size // 4 // columns, 1)
    weights = [t.view(rows, columns) for t in pool.pieces(rows * columns * 4, torch.float32, 0)]
    x = torch.ones(columns, dtype=torch.float32, device=clock.device)
    return lambda i: torch.mv(weights[i % len(weights)], x), rows * columns * 4


def cache_capacity(clock: Clock, pool: ColdPool, sizes: Sequence[int]) -> int | None:
    """Bytes of the last cache that repeated reads really benefit from: the largest size read 1.3 times
    faster warm.

    A virtual machine may report its host's whole cache, of which it gets a share.
    """
    found = None
    for size in sizes:
        tensors = pool.pieces(size, clock.torch.float32, 0)
        if len(tensors) < 4:
            break
        warm_tensor = tensors[0]
        warm = clock.seconds(lambda _, t=warm_tensor: t.sum())  # type: ignore[misc]
        cold = clock.seconds(lambda i, ts=tensors: ts[i % len(ts)].sum())  # type: ignore[misc]
        if cold > 1.3 * warm:
            found = size
    return found


def products(clock: Clock, dtype: str, sizes: Sequence[int], floor_s: float, tell: Tell) -> Roof | None:
    """Rate of n x n x n products by FLOP; None where this device or torch cannot do them in `dtype`.

    As with bandwidth, the time of the smallest product stands for the cost of calling.
    """
    make = _product(clock, dtype)
    if make is None:
        return None
    try:
        fixed = clock.seconds(make(32))
    except (RuntimeError, NotImplementedError):
        return None
    points: Points = []
    for n in sizes:
        tell(f"{dtype} product {n}")
        try:
            seconds = clock.seconds(make(n))
        except (RuntimeError, NotImplementedError):
            break
        if seconds > 3 * fixed:
            points.append((2.0 * n**3, 2.0 * n**3 / (seconds - fixed + floor_s) / 1e12))
    return Roof("compute", dtype, envelope(points), note="square products, operands warm") if points else None


def _product(clock: Clock, dtype: str) -> Callable[[int], Callable[[int], Any]] | None:
    """For a size n, the product to run. Random values: zeros draw less power and run faster than data."""
    torch, device = clock.torch, clock.device
    kinds = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    if dtype in kinds:
        if dtype == "tf32" and not (clock.cuda and torch.version.cuda):
            return None

        def floating(n: int) -> Callable[[int], Any]:
            if clock.cuda:
                torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            a, b = (torch.randn(n, n, device=device).to(kinds[dtype]) for _ in range(2))
            out = torch.empty_like(a)
            return lambda _: torch.mm(a, b, out=out)

        return floating
    if dtype == "int8":

        def integer(n: int) -> Callable[[int], Any]:
            a, b = (torch.randint(-128, 127, (n, n), dtype=torch.int8, device=device) for _ in range(2))
            return lambda _: torch._int_mm(a, b)

        return integer
    if dtype == "fp8" and clock.cuda and hasattr(torch, "_scaled_mm"):
        kind = torch.float8_e4m3fnuz if torch.version.hip and "gfx94" in _gfx(clock) else torch.float8_e4m3fn

        def scaled(n: int) -> Callable[[int], Any]:
            a, b = (torch.randn(n, n, device=device).to(kind) for _ in range(2))
            one = torch.ones((), device=device)
            return lambda _: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16)

        return scaled
    return None


def _gfx(clock: Clock) -> str:
    return str(getattr(clock.torch.cuda.get_device_properties(clock.device), "gcnArchName", ""))


def floors(clock: Clock) -> Iterator[Roof]:
    """The smallest kernel as a profiler records it, and the host's time for one launch, in microseconds.

    Small operators run in the mix of a model's layer: one alone in a loop finds its code in the caches, and
    is two to three times faster than any model sees. On the processor an operator's recorded time stands
    for the kernel.
    """
    torch = clock.torch
    x, w = torch.ones(1, 64, device=clock.device), torch.ones(64, 64, device=clock.device)

    def layer() -> None:
        a = torch.mul(torch.add(x, x), x)
        b = torch.nn.functional.silu(torch.cat((a, x), -1).chunk(2, -1)[0]) @ w
        torch.neg(torch.softmax(b * torch.rsqrt(b.abs() + 1.0), -1))

    small = ("aten::add", "aten::mul", "aten::silu", "aten::abs", "aten::rsqrt", "aten::neg")
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CPU, activity.CUDA] if clock.cuda else [activity.CPU]
    for _ in range(20):
        layer()
    clock.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(200):
            layer()
        clock.synchronize()
    lows = []
    for name in small:
        events = [e for e in profile.events() if e.name == name]
        if clock.cuda:
            times = [k.duration for e in events for k in e.kernels]
        else:
            times = [e.time_range.elapsed_us() for e in events]
        if times:
            lows.append(_low(times))
    if lows:
        value = max(sorted(lows)[len(lows) // 2], 0.01)
        yield Roof(
            "kernel_floor", value=value, note="middle one of six small operators in a mix, as profiled"
        )
    if clock.cuda:
        yield Roof("launch", value=_launch_us(clock, x), note="host time of one launch, queue not full")
    else:
        yield Roof("launch", value=_launch_us(clock, x), note="host time of one small operator, not profiled")


def _low(values: list[float]) -> float:
    """The tenth percentile: low, yet not one lucky event."""
    ordered = sorted(values)
    return float(ordered[len(ordered) // 10])


def _launch_us(clock: Clock, x: Any) -> float:
    import time

    best = float("inf")
    for _ in range(20):
        clock.synchronize()
        begin = time.perf_counter()
        for _ in range(200):
            x.add_(1.0)
        best = min(best, (time.perf_counter() - begin) / 200)
    clock.synchronize()
    return best * 1e6


def links(clock: Clock, sizes: Sequence[int], tell: Tell) -> Iterator[Roof]:
    """Copies between pinned host memory and the GPU, each way, by bytes; the pageable rate in the note."""
    torch = clock.torch
    for resource in ("link_h2d", "link_d2h"):
        points: Points = []
        pageable = 0.0
        for size in sizes:
            tell(f"{resource} {_bytes(size)}")
            device = torch.empty(size, dtype=torch.uint8, device=clock.device)
            pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            ordinary = torch.ones(size, dtype=torch.uint8)
            to_device = resource == "link_h2d"
            source, target = (pinned, device) if to_device else (device, pinned)
            seconds = _copy_seconds(clock, source, target)
            points.append((float(size), size / seconds / 1e9))
            source, target = (ordinary, device) if to_device else (device, ordinary)
            pageable = max(pageable, size / _copy_seconds(clock, source, target) / 1e9)
        yield Roof(resource, points=envelope(points), note=f"pinned; pageable reaches {pageable:.3g} GB/s")


def _copy_seconds(clock: Clock, source: Any, target: Any) -> float:
    torch = clock.torch
    best = float("inf")
    for _ in range(8):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source, non_blocking=True)
        end.record()
        clock.synchronize()
        best = min(best, float(start.elapsed_time(end)) / 1e3)
    return best
