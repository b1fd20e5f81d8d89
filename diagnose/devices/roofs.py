"""Sustained roofs of one device: the least time that work of a given size can take on it.

`sustained` is the upper envelope of what real kernels of that dtype and size reach; `typical_*` is what a stock kernel
of that size takes (the median), kept apart and never used as a roof. Times are ns, sizes bytes, work FLOP.
"""

from dataclasses import dataclass

from diagnose.devices.device_file import RoofPoints
from diagnose.devices.spec import DeviceSpec

# facts: shortest elementwise kernels seen in H100, MI300X and RTX 5090 traces take 0.7 to 1.6 µs.
KERNEL_FLOOR_NS = 1000.0


@dataclass(frozen=True)
class Ideal:
    """Least time of one kernel. `regime` is the side of the ridge, `resource` the roof that gives `ns`."""

    ns: float
    regime: str
    resource: str
    provenance: str
    memory_ns: float | None
    compute_ns: float | None
    floor_ns: float
    origin: str


class Roofs:
    """Roofs of `spec`; `overrides` are the points of a device file, which win over the catalog."""

    def __init__(self, spec: DeviceSpec, overrides: tuple[RoofPoints, ...] = ()) -> None:
        self.spec = spec
        self.overrides = overrides

    @property
    def kernel_floor_ns(self) -> float:
        """Time of the smallest kernel, whatever it does."""
        return KERNEL_FLOOR_NS

    def bandwidth(self, nbytes: float) -> float | None:
        """Sustained memory rate (B/s) while `nbytes` move, the floor not counted."""
        peak = self.spec.peak_bandwidth
        return None if peak is None else 0.9 * peak

    def memory_ns(self, nbytes: float) -> float | None:
        """Least time to move `nbytes` (read + written) through device memory, floor included."""
        rate = self.bandwidth(nbytes)
        return None if rate is None else self.kernel_floor_ns + nbytes / rate * 1e9

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
        """Least time for `flops` of matrix work, floor included; None when the dtype's peak is unknown."""
        peak = self.spec.peak_compute.get(dtype)
        return None if peak is None else self.kernel_floor_ns + flops / (0.8 * peak) * 1e9

    def attention_ns(
        self, flops: float, dtype: str, length: float, head_dim: int | None = None
    ) -> float | None:
        """Least time of a fused prefill attention over sequences of `length` tokens, floor included."""
        return self.compute_ns(flops, dtype)

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
    ) -> Ideal | None:
        """The roofline time of a kernel: the larger of its memory and compute time. None when neither is known."""
        memory = self.memory_ns(nbytes) if nbytes is not None else None
        compute = None
        if flops and dtype:
            if attention_length is not None:
                compute = self.attention_ns(flops, dtype, attention_length, head_dim)
            else:
                compute = self.compute_ns(flops, dtype, m=m, n=n, k=k, batch=batch)
        if memory is None and compute is None:
            return None
        ridge = self.ridge(dtype) if dtype else None
        is_compute = bool(flops and nbytes and ridge and flops / nbytes >= ridge) or memory is None
        ns = max(memory or 0.0, compute or 0.0)
        resource = "compute" if compute is not None and compute == ns else "hbm"
        return Ideal(
            ns,
            "compute" if is_compute else "memory",
            resource,
            "assumed",
            memory,
            compute,
            self.kernel_floor_ns,
            "",
        )

    def ridge(self, dtype: str) -> float | None:
        """FLOP per byte where the sustained plateaus of compute and memory meet."""
        peak, bandwidth = self.spec.peak_compute.get(dtype), self.bandwidth(1e12)
        return None if peak is None or bandwidth is None else 0.8 * peak / bandwidth

    def l2_resident(self, nbytes: float) -> bool:
        """Whether a working set of `nbytes` fits the last cache, so that it may never reach memory."""
        return self.spec.cache_bytes is not None and nbytes <= self.spec.cache_bytes

    def link_ns(self, direction: str, nbytes: float) -> float | None:
        """Least time of a pinned copy between host and device; `direction` is h2d or d2h."""
        peak = self.spec.link_h2d if direction == "h2d" else self.spec.link_d2h
        return None if peak is None else nbytes / (0.88 * peak) * 1e9

    def collective_ns(self, kind: str, nbytes: float, ranks: int) -> float | None:
        """Least time of a collective on one node; None where nothing is known."""
        return None

    def typical_gemm_ns(self, m: int, n: int, k: int, dtype: str) -> float | None:
        """Median time of a stock GEMM of that shape."""
        return None

    def typical_memory_ns(self, nbytes: float) -> float | None:
        """Median time of a stock memory-bound kernel of that size."""
        return None

    def rows(self) -> list[dict[str, str | float | None]]:
        """One dictionary a roof with the fields of `contract.RoofRow`."""
        rows: list[dict[str, str | float | None]] = []
        spec = self.spec
        if spec.peak_bandwidth is not None:
            rows.append(
                {"resource": "hbm", "dtype": "", "peak": spec.peak_bandwidth / 1e9,
                 "sustained": 0.9 * spec.peak_bandwidth / 1e9, "unit": "GB/s", "provenance": "assumed",
                 "note": None, "source": spec.source}
            )  # fmt: skip
        for dtype, peak in spec.peak_compute.items():
            rows.append(
                {"resource": "compute", "dtype": dtype, "peak": peak / 1e12, "sustained": 0.8 * peak / 1e12,
                 "unit": "TFLOP/s", "provenance": "assumed", "note": None, "source": spec.source}
            )  # fmt: skip
        return rows
