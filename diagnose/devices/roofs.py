"""Sustained roofs of one device: the least time that work of a given size and shape can take on it.

`sustained` is the upper envelope of what real kernels of that dtype and size reach; `typical_*` is what a
stock kernel of that size takes (the median), kept apart and never used as a roof. Times are ns, sizes bytes,
work FLOP. docs/roofs.md says what was fitted, from what, and how well it holds.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from diagnose.devices import links, scaled
from diagnose.devices.curves import read
from diagnose.devices.device_file import DeviceFile, RoofPoints
from diagnose.devices.fractions import sustained_fraction
from diagnose.devices.spec import DeviceSpec
from diagnose.devices.tiles import tile_time_ns

DEFAULT_FLOOR_NS = 900.0
DEFAULT_GEMM_FLOOR_NS = 2500.0
# Activations of a product were usually just written, and its output is read next: up to half the last cache
# of them may never cost memory time (the measured tall, thin products run above the datasheet bandwidth), but
# the cache itself is at most this many times faster than memory. Weights are read cold.
CACHED_SHARE = 0.5
CACHE_SPEEDUP = 2.0
ACTIVATION_WIDTH = 2
# No last-level cache of the catalogued devices delivers more than this many times the memory rate (MI300X:
# 17.2 TB/s of Infinity Cache over 5.3); a kernel faster than that has a wrong cost.
CACHE_EXPLAINS = 3.3
RIDGE_POWER = 4


@dataclass(frozen=True)
class Ideal:
    """Least time of one kernel and where it comes from.

    `regime` is the side of the ridge its intensity falls on (`compute`, `memory`); `resource` is the roof
    that gives `ns`: `compute`, `hbm`, or `floor` when at least half of `ns` is the floor. Both parts include
    the floor.
    """

    ns: float
    regime: str
    resource: str
    provenance: str
    memory_ns: float | None
    compute_ns: float | None
    floor_ns: float
    origin: str


class Roofs:
    """Roofs of `spec`; `overrides` are the points of a device file, which win over catalog and curves."""

    def __init__(self, spec: DeviceSpec, overrides: tuple[RoofPoints, ...] = ()) -> None:
        self.spec = spec
        self.overrides = {(o.resource, o.dtype): o for o in overrides if o.points}
        self.memory = scaled.memory_roof(spec)
        self._compute: dict[str, scaled.ComputeRoof | None] = {}
        self._tiles = lru_cache(maxsize=65536)(self._tile_ns)

    @classmethod
    def of(cls, file: DeviceFile) -> "Roofs":
        """Roofs of a device file."""
        return cls(file.spec, file.roofs)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a roof with the fields of `contract.RoofRow`; empty when nothing is known."""
        from diagnose.devices.table import roof_rows

        return roof_rows(self)

    # floors

    def _file_floor(self) -> float | None:
        found = self.overrides.get(("kernel_floor", ""))
        return found.points[0][1] if found else None

    @property
    def kernel_floor_ns(self) -> float:
        """Time of the smallest kernel, whatever it does."""
        measured = self._file_floor()
        if measured is not None:
            return measured
        return self.memory.stream_floor_ns if self.memory else DEFAULT_FLOOR_NS

    @property
    def gemm_floor_ns(self) -> float:
        """Time of the smallest GEMM, longer than the smallest kernel: pipelines have to fill and drain."""
        measured = self._file_floor()
        if measured is not None:
            return measured
        return self.memory.floor_ns if self.memory else DEFAULT_GEMM_FLOOR_NS

    @property
    def launch_ns(self) -> float | None:
        """Least host time of one launch, where a device file gives it."""
        found = self.overrides.get(("launch", ""))
        return found.points[0][1] if found else None

    # memory

    def memory_ns(self, nbytes: float, *, gemm: bool = False) -> float | None:
        """Least time to move `nbytes` (read + written) through device memory, floor included.

        With `gemm` the floor is the smallest GEMM's. None when the bandwidth is unknown.
        """
        floor = self.gemm_floor_ns if gemm else self.kernel_floor_ns
        if override := self.overrides.get(("hbm", "")):
            return _override_ns(override, nbytes, floor)
        return None if self.memory is None else floor + self.memory.variable_ns(nbytes)

    def gemm_memory_ns(self, nbytes: float, m: int, n: int, k: int, batch: int = 1) -> float | None:
        """Least memory time of a product m x k by k x n, with activations from cache as far as they fit."""
        cold = self.memory_ns(nbytes, gemm=True)
        cache, peak = self.spec.cache_bytes, self.spec.peak_bandwidth
        if cold is None or not cache or not peak:
            return cold
        activations = min(float(nbytes), ACTIVATION_WIDTH * batch * float(m * k + m * n))
        cached = min(activations, CACHED_SHARE * cache)
        warm = self.memory_ns(nbytes - cached, gemm=True)
        at_cache_rate = self.gemm_floor_ns + nbytes / (CACHE_SPEEDUP * peak) * 1e9
        return cold if warm is None else min(cold, max(warm, at_cache_rate))

    def bandwidth(self, nbytes: float) -> float | None:
        """Sustained memory rate (B/s) while `nbytes` move, the floor not counted."""
        if override := self.overrides.get(("hbm", "")):
            return read(override.points, nbytes)
        if self.memory is None or nbytes <= 0:
            return None
        variable = self.memory.variable_ns(nbytes)
        return nbytes / variable * 1e9 if variable > 0 else None

    @property
    def plateau_bandwidth(self) -> float | None:
        """Sustained memory rate (B/s) of the largest kernels."""
        if override := self.overrides.get(("hbm", "")):
            return override.points[-1][1]
        return self.memory.plateau if self.memory else None

    def l2_resident(self, nbytes: float) -> bool:
        """Whether a working set of `nbytes` fits the last cache, so that it may never reach memory."""
        return self.spec.cache_bytes is not None and nbytes <= self.spec.cache_bytes

    def cache_explains(self, nbytes: float, ns: float) -> bool:
        """Whether a time below the memory roof can be the cache's doing: what fits it never left it."""
        cache, peak, roof = self.spec.cache_bytes, self.spec.peak_bandwidth, self.memory_ns(nbytes)
        if not cache or not peak or roof is None:
            return False
        rest = self.memory_ns(max(0.0, nbytes - cache)) or 0.0
        return ns >= max(rest, nbytes / (CACHE_EXPLAINS * peak) * 1e9)

    # compute

    def _roof(self, dtype: str) -> scaled.ComputeRoof | None:
        if dtype not in self._compute:
            self._compute[dtype] = scaled.compute_roof(self.spec, dtype)
        return self._compute[dtype]

    def _tile_ns(self, m: int, n: int, k: int, batch: int, dtype: str) -> float:
        roof = self._roof(dtype)
        assert roof is not None and self.spec.sm_count
        return tile_time_ns(
            m,
            n,
            k,
            batch,
            sm_count=self.spec.sm_count,
            peak=roof.peak,
            tile_ns=roof.curve.tile_ns,
            quantised=roof.curve.quantised,
        )

    def plateau_compute(self, dtype: str) -> float | None:
        """Sustained FLOP/s of the best large GEMM."""
        if override := self.overrides.get(("compute", dtype)):
            return override.points[-1][1]
        roof = self._roof(dtype)
        return roof.plateau if roof else None

    def compute_ns(
        self,
        flops: float,
        dtype: str,
        *,
        m: int | None = None,
        n: int | None = None,
        k: int | None = None,
        batch: int = 1,
    ) -> float | None:
        """Least time for `flops` of matrix work, floor included; None when the dtype's peak is unknown.

        With the shape of the product, tile and wave quantisation on this device's SMs; without it, the rate
        of the best shape of that size.
        """
        if override := self.overrides.get(("compute", dtype)):
            return _override_ns(override, flops, self.gemm_floor_ns)
        roof = self._roof(dtype)
        if roof is None:
            return None
        if m and n and k and self.spec.sm_count:
            return max(self.kernel_floor_ns, roof.shaped_ns(flops, self._tiles(m, n, k, batch, dtype)))
        return self.kernel_floor_ns + roof.variable_ns(flops)

    def attention_ns(
        self, flops: float, dtype: str, length: float, head_dim: int | None = None, *, causal: bool = True
    ) -> float | None:
        """Least time of fused attention over sequences of `length` tokens, floor included.

        `flops` counts half the square when `causal`; without the mask the same length does twice the work a
        tile, so its rate is that of twice the length.
        """
        if ("compute", dtype) in self.overrides:
            return self.compute_ns(flops, dtype)
        roof = scaled.attention_roof(self.spec, dtype)
        if roof is None:
            return None
        rate = roof.rate(length if causal else 2 * length, head_dim)
        return self.kernel_floor_ns + flops / rate * 1e9

    # both

    def ridge(self, dtype: str) -> float | None:
        """FLOP per byte where the sustained plateaus of compute and memory meet."""
        compute, bandwidth = self.plateau_compute(dtype), self.plateau_bandwidth
        return None if compute is None or bandwidth is None else compute / bandwidth

    def provenance(self, resource: str, dtype: str = "") -> tuple[str, str]:
        """(provenance, origin) of the sustained roof of `hbm` or `compute`."""
        if override := self.overrides.get((resource, dtype)):
            return override.provenance, override.note or "device file"
        roof = self.memory if resource == "hbm" else self._roof(dtype)
        return (roof.provenance, roof.origin) if roof else ("assumed", "unknown")

    def ideal_ns(
        self,
        flops: float | None,
        nbytes: float | None,
        dtype: str | None,
        *,
        m: int | None = None,
        n: int | None = None,
        k: int | None = None,
        batch: int = 1,
        attention_length: float | None = None,
        head_dim: int | None = None,
        causal: bool = True,
    ) -> Ideal | None:
        """The roofline time of a kernel: the larger of its memory and compute time; None if neither is known.

        `m`, `n`, `k` (and `batch`) are a matrix product's shape; `attention_length` marks fused prefill
        attention.
        """
        gemm = bool(m and n and k)
        memory = None
        if nbytes is not None:
            memory = self.gemm_memory_ns(nbytes, m, n, k, batch) if m and n and k else self.memory_ns(nbytes)
        compute = None
        if flops and dtype:
            if attention_length is not None:
                compute = self.attention_ns(flops, dtype, attention_length, head_dim, causal=causal)
            else:
                compute = self.compute_ns(flops, dtype, m=m, n=n, k=k, batch=batch)
        if memory is None and compute is None:
            return None
        ns = max(memory or 0.0, compute or 0.0)
        by_compute = compute is not None and compute == ns
        provenance, origin = self.provenance("compute", dtype or "") if by_compute else self.provenance("hbm")
        floor = self.gemm_floor_ns if gemm else self.kernel_floor_ns
        resource = "compute" if by_compute else "hbm"
        if 2 * floor >= ns:
            resource = "floor"
        ridge = self.ridge(dtype) if dtype else None
        intense = bool(flops and nbytes and ridge and flops / nbytes >= ridge)
        regime = "compute" if intense or memory is None else "memory"
        return Ideal(ns, regime, resource, provenance, memory, compute, floor, origin)

    # links

    def link_rate(self, direction: str) -> float | None:
        """Sustained rate (B/s) of pinned copies; `direction` is h2d or d2h."""
        if override := self.overrides.get((f"link_{direction}", "")):
            return override.points[-1][1]
        peak = self.spec.link_h2d if direction == "h2d" else self.spec.link_d2h
        if peak is None:
            return None
        kind = "c2c" if self.spec.link_kind == "nvlink-c2c" else "pcie"
        return peak * sustained_fraction(self.spec, f"link_{direction}", kind).value

    def link_ns(self, direction: str, nbytes: float) -> float | None:
        """Least time of a pinned copy between host and device."""
        if override := self.overrides.get((f"link_{direction}", "")):
            return _override_ns(override, nbytes, links.LINK_FLOOR_NS)
        rate = self.link_rate(direction)
        return None if rate is None else links.LINK_FLOOR_NS + nbytes / rate * 1e9

    def collective_ns(self, kind: str, nbytes: float, ranks: int) -> float | None:
        """Least time of a collective over `nbytes` of payload on one node; None where nothing is known.

        `kind`: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, send, recv. The payload
        is the whole tensor (the gathered output, the scattered input).
        """
        return links.collective_time_ns(kind, nbytes, ranks, self._peer(ranks), typical=False)

    def typical_collective_ns(self, kind: str, nbytes: float, ranks: int) -> float | None:
        """Usual NCCL time of the same."""
        return links.collective_time_ns(kind, nbytes, ranks, self._peer(ranks), typical=True)

    def _peer(self, ranks: int) -> float | None:
        """Link between `ranks` devices, B/s per direction: their own, or the host's where it does not reach
        all."""
        if self.spec.peer is not None and ranks <= self.spec.peer_ranks:
            return self.spec.peer
        return self.link_rate("h2d")

    # typical: medians, never a roof

    def typical_gemm_ns(
        self, m: int, n: int, k: int, dtype: str, nbytes: float | None = None
    ) -> float | None:
        """Median time of a stock GEMM of that shape; `nbytes` for other operand widths than the dtype's."""
        roof = self._roof(dtype)
        if roof is None:
            return None
        width = {"fp64": 8, "fp32": 4, "tf32": 4, "fp8": 1, "int8": 1, "fp4": 0.5}.get(dtype, 2)
        if nbytes is None:
            nbytes = width * (m * k + k * n) + max(2, width) * m * n
        flops = 2.0 * m * n * k
        compute = self.compute_ns(flops, dtype, m=m, n=n, k=k) or 0.0
        memory = self.memory_ns(nbytes, gemm=True) or 0.0
        curve = roof.curve.typical_compute if compute > memory else roof.curve.typical_memory
        # Near the ridge both resources slow a kernel down: a smooth maximum predicts the median better.
        both = (compute**RIDGE_POWER + memory**RIDGE_POWER) ** (1 / RIDGE_POWER)
        return float(both * read(curve, both))

    def typical_memory_ns(self, nbytes: float) -> float | None:
        """Median time of a stock weight-streaming kernel (GEMM of at most 17 rows) of that size."""
        return None if self.memory is None else self.gemm_floor_ns + self.memory.typical_variable_ns(nbytes)

    def typical_attention_ns(
        self, flops: float, dtype: str, length: float, head_dim: int | None = None, *, causal: bool = True
    ) -> float | None:
        """Median time of fused prefill attention in a serving engine."""
        roof = scaled.attention_roof(self.spec, dtype)
        if roof is None:
            return None
        rate = roof.rate(length if causal else 2 * length, head_dim, typical=True)
        return self.kernel_floor_ns + flops / rate * 1e9

    def typical_decode_attention_ns(self, nbytes: float, kv_dtype: str) -> float | None:
        """Median time of paged decode attention (every kernel of the call) that reads `nbytes` of KV.

        fp8 KV takes far more than half the time of bf16 for the same tokens: its kernels reach a lower
        bandwidth.
        """
        found = scaled.decode_curve(self.spec, kv_dtype)
        if found is None:
            return None
        curve, factor = found
        size, (last, time) = nbytes * factor, curve.typical[-1]
        return time * size / last if size > last else read(curve.typical, size)


def _override_ns(override: RoofPoints, size: float, floor: float) -> float:
    """Time from measured (size, rate) points, whose rates include the floor; a single number excludes it."""
    points = override.points
    first, rate = points[0]
    if first == 0.0:
        return floor + size / rate * 1e9
    if size < first:
        at_first = max(floor, first / rate * 1e9)
        return floor + (at_first - floor) * size / first
    return max(floor, size / read(points, size) * 1e9)
