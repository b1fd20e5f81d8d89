"""Time of a matrix product on tiles: the shape half of the compute roof.

A GEMM is cut into tiles of tm x tn outputs, each worth 2*tm*tn*k FLOP on one SM, so its time is

    start + waves * (per-tile cost + tile FLOP / (peak / SMs)),   waves = tiles / SMs

with waves rounded up where the library schedules whole waves (A100 cuBLAS: 768 and 1024 rows take the same
time), and at least one wave otherwise (Hopper's persistent kernels with many tile shapes smooth the tail).
The best of the usual tile shapes and split-K factors counts: the roof is what a good library could pick, not
what it did pick. Splitting K costs one more kernel's start and a pass over fp32 partial sums, most of it in
L2.
"""

import math

TILES: tuple[tuple[int, int], ...] = (
    (256, 256), (256, 128), (128, 256), (192, 128), (128, 192), (128, 128), (64, 256), (256, 64),
    (128, 64), (64, 128), (64, 64), (32, 128), (128, 32), (32, 64), (64, 32), (16, 128), (128, 16),
    (16, 64), (64, 16),
)  # fmt: skip
SPLITS = (1, 2, 4, 8, 16, 32)
SPLIT_START_NS = 1000.0
# fp32 partials written and read once each, at an L2 rate of about 6 TB/s: constants of the model.
SPLIT_BYTES, L2_RATE = 8.0, 6e12


def tile_time_ns(
    m: int, n: int, k: int, batch: int, *, sm_count: int, peak: float, tile_ns: float, quantised: bool
) -> float:
    """Least modelled time (ns, start excluded) of `batch` products m x k by k x n; `peak` is the device's."""
    per_flop = sm_count / peak * 1e9
    best = math.inf
    for tm, tn in TILES:
        tiles = math.ceil(m / tm) * math.ceil(n / tn) * batch
        flop_ns = 2.0 * tm * tn * k * per_flop
        for split in SPLITS:
            if split > 1 and k // split < 64:
                break
            waves = tiles * split / sm_count
            waves = math.ceil(waves) if quantised else max(waves, 1.0)
            time = waves * (tile_ns + flop_ns / split)
            if split > 1:
                time += SPLIT_START_NS + split * batch * m * n * SPLIT_BYTES / L2_RATE * 1e9
            best = min(best, time)
            if tiles * split >= 4 * sm_count:
                break
    return best
