"""A fitted curve made to fit another device.

A device without its own curve borrows the shape of the nearest fitted one and its own published fraction of
peak: sizes are scaled to equal time at peak (a device twice as fast needs twice the bytes to hide the same
latency), floors and per-tile costs are kept, and the plateau is replaced. Such numbers are `assumed`; a
device's own curve is `derived`.
"""

import math
from dataclasses import dataclass

from diagnose.devices.curves import AttentionCurve, DecodeCurve, GemmCurve, MemoryCurve, curves, read
from diagnose.devices.fractions import OWN_FRACTION, Fraction, sustained_fraction
from diagnose.devices.spec import DeviceSpec

# FLOP of a GEMM large enough to be on the plateau: 8192 cubed is 1.1e12, and clocks have settled by 1e13.
PLATEAU_FLOPS = 1e13
_BIG = 1e13  # bytes


def reference_key(spec: DeviceSpec) -> str:
    """The fitted device whose curves it borrows: Ampere's for older parts and Ada, Hopper's for the rest."""
    if spec.arch.startswith(("sm_7", "sm_8")):
        return "a100-sxm-80"
    if spec.key.startswith(("h200", "gh200")):
        return "h200-sxm"
    return "h100-sxm"


def _own(spec: DeviceSpec) -> bool:
    return spec.sm_share == 1.0 and spec.memory_share == 1.0


@dataclass(frozen=True)
class MemoryRoof:
    """Memory times of one device from a curve: sizes times `size_scale`, variable part times `time_scale`."""

    curve: MemoryCurve
    size_scale: float
    time_scale: float
    provenance: str
    origin: str

    @property
    def floor_ns(self) -> float:
        """Smallest weight-streaming GEMM."""
        return self.curve.floor_ns

    @property
    def stream_floor_ns(self) -> float:
        """Smallest kernel of any kind."""
        return self.curve.stream_floor_ns

    def variable_ns(self, nbytes: float) -> float:
        """Time beyond the floor on the envelope."""
        return (
            max(0.0, memory_curve_ns(self.curve, nbytes * self.size_scale) - self.curve.floor_ns)
            * self.time_scale
        )

    def typical_variable_ns(self, nbytes: float) -> float:
        """Time beyond the floor on the median curve."""
        points, size = self.curve.typical, nbytes * self.size_scale
        time = points[-1][1] * size / points[-1][0] if size > points[-1][0] else read(points, size)
        return max(0.0, time - self.curve.floor_ns) * self.time_scale

    @property
    def plateau(self) -> float:
        """Rate of the largest transfers, B/s."""
        return _BIG / self.variable_ns(_BIG) * 1e9


def memory_curve_ns(curve: MemoryCurve, nbytes: float) -> float:
    """Envelope time of `nbytes` on the fitted device; beyond the last point its rate holds."""
    last, time = curve.roof[-1]
    if nbytes > last:
        return curve.floor_ns + (time - curve.floor_ns) * nbytes / last
    return read(((1.0, curve.floor_ns), *curve.roof), max(nbytes, 1.0))


def _plateau(curve: MemoryCurve | GemmCurve) -> float:
    """The share of its own device's peak that a fitted curve ends at."""
    if isinstance(curve, MemoryCurve):
        return MemoryRoof(curve, 1.0, 1.0, "", "").plateau / curve.bandwidth
    return ComputeRoof(curve, curve.peak, 1.0, "", "").plateau / curve.peak


def memory_roof(spec: DeviceSpec) -> MemoryRoof | None:
    """The memory roof of `spec`, or None when its bandwidth is unknown."""
    if spec.peak_bandwidth is None:
        return None
    table = curves().memory
    fitted = table.get(spec.key)
    if fitted is not None and _own(spec):
        # a scale other than 1: a trace or a device file gives its own peak
        scale = fitted.bandwidth / spec.peak_bandwidth
        provenance = "derived" if math.isclose(scale, 1.0) else "assumed"
        return MemoryRoof(fitted, scale, 1.0, provenance, f"fitted: {fitted.origin}")
    if fitted is not None:
        fraction = Fraction(_plateau(fitted), "as the whole device")
    else:
        fraction = sustained_fraction(spec, "hbm")
    curve = table[reference_key(spec)]
    origin = f"{fraction.value:.2f} of peak ({fraction.source}), by size as {curve.device}"
    scale = curve.bandwidth / spec.peak_bandwidth
    return MemoryRoof(curve, scale, _plateau(curve) / fraction.value, "assumed", origin)


@dataclass(frozen=True)
class ComputeRoof:
    """Matrix rates of one device and dtype from a GEMM curve scaled to its peak."""

    curve: GemmCurve
    peak: float
    time_scale: float
    provenance: str
    origin: str

    def _size(self, flops: float) -> float:
        return flops * self.curve.peak / self.peak

    def shaped_ns(self, flops: float, tiles_ns: float) -> float:
        """Time of a product whose tiles take `tiles_ns` at peak; its start is a latency and does not
        scale."""
        return read(self.curve.level, self._size(flops)) * (self.curve.start_ns + tiles_ns * self.time_scale)

    def variable_ns(self, flops: float) -> float:
        """Time beyond the smallest GEMM's of the best shape of that size."""
        size = self._size(flops)
        first = self.curve.rate[0]
        smallest = first[0] / first[1] * 1e9
        return max(0.0, size / read(self.curve.rate, size) * 1e9 - smallest) * self.time_scale

    @property
    def plateau(self) -> float:
        """FLOP/s of the best large GEMM."""
        return PLATEAU_FLOPS / self.variable_ns(PLATEAU_FLOPS) * 1e9


def compute_roof(spec: DeviceSpec, dtype: str) -> ComputeRoof | None:
    """The compute roof of `spec` for `dtype`, or None when its peak is unknown."""
    peak = spec.peak_compute.get(dtype)
    if peak is None:
        return None
    table = curves().gemm
    kind = "bf16" if dtype == "fp16" else dtype
    fitted = table.get((spec.key, kind))
    if fitted is not None and _own(spec):
        provenance = "derived" if math.isclose(peak, fitted.peak) else "assumed"
        return ComputeRoof(fitted, peak, 1.0, provenance, f"fitted: {fitted.origin}")
    like = table.get((spec.key, "fp8")) if dtype == "int8" else None
    if fitted is not None:
        fraction = Fraction(_plateau(fitted), "as the whole device")
    elif like is not None:
        fraction = Fraction(_plateau(like), "as fp8")
    elif (spec.key, "bf16") in table and dtype not in OWN_FRACTION:
        fraction = Fraction(_plateau(table[spec.key, "bf16"]), "as bf16")
    else:
        fraction = sustained_fraction(spec, "compute", dtype)
    # Other dtypes and devices take bf16's shape: the fp8 table is of one library, slow at small shapes.
    curve = table[spec.key if (spec.key, "bf16") in table else reference_key(spec), "bf16"]
    origin = f"{fraction.value:.2f} of peak ({fraction.source}), by size as {curve.device} bf16"
    return ComputeRoof(curve, peak, _plateau(curve) / fraction.value, "assumed", origin)


@dataclass(frozen=True)
class AttentionRoof:
    """Causal prefill attention rates scaled to a device."""

    curve: AttentionCurve
    rate_scale: float
    length_scale: float
    provenance: str
    origin: str

    def rate(self, length: float, head_dim: int | None, *, typical: bool = False) -> float:
        """FLOP/s at that length; the next larger fitted head dimension where the exact one is not."""
        table = self.curve.typical if typical else self.curve.roof
        wanted = head_dim or 128
        chosen = min((d for d in table if d >= wanted), default=max(table))
        return read(table[chosen], max(length, 1.0) * self.length_scale) * self.rate_scale


def attention_roof(spec: DeviceSpec, dtype: str) -> AttentionRoof | None:
    """Attention rates of `spec`, from H100's by length; fp8 is taken to gain 1.6 of its 2 times peak."""
    compute = compute_roof(spec, dtype)
    curve = curves().attention["h100-sxm"]
    if compute is None:
        return None
    sms = spec.sm_count or 132
    per_sm = spec.peak_compute[dtype] / sms
    reference = curve.peak / 132
    same = spec.key in {"h100-sxm", "h200-sxm"} and _own(spec)
    bf16 = curves().gemm["h100-sxm", "bf16"]
    plateau = _plateau(bf16) * bf16.peak
    rate = 1.0 if same else compute.plateau / plateau
    if dtype == "fp8":
        rate = 0.8 * spec.peak_compute["fp8"] / curve.peak if same else 0.8 * rate
    # A tile's fixed costs weigh less where an SM computes slower: equal efficiency comes at shorter lengths.
    length = 1.0 if same else max(1.0, reference / per_sm)
    fitted = spec.key == "h100-sxm" and same and dtype in {"bf16", "fp16"}
    return AttentionRoof(
        curve,
        rate,
        length,
        "derived" if fitted else "assumed",
        f"fitted: {curve.origin}" if fitted else f"by length as h100-sxm, {compute.origin}",
    )


def decode_curve(spec: DeviceSpec, kv_dtype: str) -> tuple[DecodeCurve, float] | None:
    """The median decode-attention curve nearest to `spec`, and the factor from its bytes to the curve's."""
    if spec.peak_bandwidth is None:
        return None
    table = curves().decode
    kind = "fp8" if kv_dtype in {"fp8", "int8"} else "bf16"
    curve = table.get((spec.key, kind)) or table["h100-sxm", kind]
    return curve, curve.bandwidth / spec.peak_bandwidth
