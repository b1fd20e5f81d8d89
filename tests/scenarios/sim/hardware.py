"""Devices and the time a kernel takes on them.

Peaks are the makers' dense data-sheet figures. The shape of the efficiency curves follows published measurements of
stock kernels: a fixed part (launch ramp, tail), a part that fades with size, and a plateau below the peak.
"""

from dataclasses import dataclass, replace

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. Rates are per second in bytes and FLOP; times in ns."""

    key: str
    name: str
    vendor: str  # nvidia | amd
    sms: int
    memory_bytes: int
    bandwidth: float  # data-sheet peak of the DRAM
    tensor: dict[str, float]  # dense matrix peak by dtype
    vector: float  # fp32 vector peak
    link: float  # host link, one direction, data-sheet
    peer: float  # device link, one direction
    capability: tuple[int, int]
    mem_fraction: float  # plateau of streaming kernels
    tensor_fraction: float  # plateau of large matrix kernels
    floor_ns: float  # smallest kernel
    ramp_ns: float  # extra fixed part of a matrix kernel that streams its weights
    attention_ns: float  # fixed part of a decode-attention kernel
    collective_ns: float  # smallest collective of 2 ranks
    l2_bytes: int

    @property
    def family(self) -> str:
        """amd, ampere, ada (FP8 units behind the older kernels' names), or nvidia for what came later."""
        if self.vendor == "amd" or self.capability[0] != 8:
            return self.vendor
        return "ada" if "fp8" in self.tensor else "ampere"

    def with_factor(self, *, compute: float = 1.0, memory: float = 1.0, link: float = 1.0) -> "Device":
        """The same device with faster (or slower) matrix units, DRAM or host link."""
        return replace(
            self,
            tensor={k: v * compute for k, v in self.tensor.items()},
            vector=self.vector * compute,
            bandwidth=self.bandwidth * memory,
            link=self.link * link,
        )


def _t(x: float) -> float:
    return x * 1e12


# NVIDIA H100/A100/H200/L4/RTX A6000 data sheets (dense figures), AMD Instinct MI300X data sheet. Plateaus: BabelStream logs,
# mamf-finder tables and aiconfigurator's published kernel tables (H100 bf16 weight streaming 87-92 % of peak, matrix
# 80 %; A100 85 % and 87 %; MI300X 80 % and 52 %).
DEVICES: dict[str, Device] = {
    "h100": Device("h100", "NVIDIA H100 80GB HBM3", "nvidia", 132, 85_018_279_936, 3.35e12,
                   {"bf16": _t(989.4), "fp16": _t(989.4), "fp8": _t(1978.9), "int8": _t(1978.9), "fp32": _t(494.7)},
                   _t(67), 64e9, 450e9, (9, 0), 0.92, 0.80, 1900.0, 3100.0, 10_500.0, 5900.0, 50 << 20),
    "h200": Device("h200", "NVIDIA H200", "nvidia", 132, 150_109_880_320, 4.8e12,
                   {"bf16": _t(989.4), "fp16": _t(989.4), "fp8": _t(1978.9), "int8": _t(1978.9), "fp32": _t(494.7)},
                   _t(67), 64e9, 450e9, (9, 0), 0.91, 0.79, 1900.0, 3300.0, 10_500.0, 5900.0, 60 << 20),
    "a100": Device("a100", "NVIDIA A100-SXM4-80GB", "nvidia", 108, 85_899_345_920, 2.039e12,
                   {"bf16": _t(312), "fp16": _t(312), "int8": _t(624), "fp32": _t(156)},
                   _t(19.5), 32e9, 300e9, (8, 0), 0.87, 0.87, 2300.0, 6500.0, 12_000.0, 7500.0, 40 << 20),
    "mi300x": Device("mi300x", "AMD Instinct MI300X", "amd", 304, 206_141_652_992, 5.325e12,
                     {"bf16": _t(1307.4), "fp16": _t(1307.4), "fp8": _t(2614.9), "int8": _t(2614.9), "fp32": _t(163.4)},
                     _t(163.4), 64e9, 448e9, (9, 4), 0.80, 0.52, 4200.0, 5000.0, 14_000.0, 9000.0, 256 << 20),
    "l4": Device("l4", "NVIDIA L4", "nvidia", 58, 23_609_475_072, 0.3e12,
                 {"bf16": _t(121), "fp16": _t(121), "fp8": _t(242.5), "int8": _t(242.5), "fp32": _t(60)},
                 _t(30.3), 32e9, 32e9, (8, 9), 0.86, 0.72, 2300.0, 4000.0, 11_000.0, 9000.0, 48 << 20),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel has to do. `quality` below 1 is a kernel that wastes the device (fallback, strided, dequantising)."""

    kind: str  # gemm | attn_decode | attn_prefill | stream
    flops: float
    bytes: float
    dtype: str = "bf16"
    quality: float = 1.0
    length: int = 0  # query length, for prefill attention
    share: float = 1.0  # of the time that is left when a chain of kernels is relieved as if it were one


def duration_ns(device: Device, work: Work, nominal: Device) -> float:
    """Time without noise.

    The two roofs are joined by a 6-norm (a soft knee). A kernel of low quality takes `1 / quality` of the time a good
    one takes on the `nominal` device: more bandwidth or more matrix units do not repair it.
    """
    good = _roofline_ns(device, work)
    if work.quality < 1.0:
        good = max(good, _roofline_ns(nominal, work) / work.quality)
    return good * work.share


def _roofline_ns(device: Device, work: Work) -> float:
    memory = work.bytes / (device.bandwidth * device.mem_fraction) * 1e9
    if work.kind == "stream":
        return device.floor_ns + max(memory, work.flops / (device.vector * 0.7) * 1e9)
    if work.kind == "attn_decode":
        compute = work.flops / (device.tensor[work.dtype] * 0.35) * 1e9
        return device.attention_ns + device.floor_ns + max(memory, compute)
    if work.kind == "attn_prefill":
        # Flash attention saturates with length: a third of its plateau at 512, four fifths at 4096.
        plateau = 0.66 * work.length / (work.length + 1000.0)
        compute = work.flops / (device.tensor[work.dtype] * max(plateau, 0.02)) * 1e9
        return device.floor_ns + 2500.0 + max(memory, compute)
    # FP8 products carry scales and reach less of their peak: H100 8192^2 at M = 16-64 takes 30-33 us against 46-47 us in
    # bf16 (1.4-1.56 x), 1.4-1.5 x at M = 512-4096; weights of 16-50 MB stream at half the DRAM's rate.
    low = work.dtype in ("fp8", "int8")
    compute = work.flops / (device.tensor[work.dtype] * device.tensor_fraction * (0.71 if low else 1.0)) * 1e9
    ramp = device.ramp_ns * (2.7 if low else 1.0) * work.bytes / (work.bytes + 8e6)
    return device.floor_ns + ramp + (memory**6 + compute**6) ** (1 / 6)


def collective_ns(device: Device, ranks: int, payload: float, speed: float = 1.0) -> float:
    """Ring all-reduce of `payload` bytes per rank: a latency that grows with ranks, then the slower of the links.

    Latency by ranks follows nccl-tests tables (2: 5.9, 4: 9.3, 8: 15.5 us on H100).
    """
    latency = device.collective_ns * (1.0 + 0.8 * (ranks - 2) / 3)
    wire = 2.0 * (ranks - 1) / ranks * payload / (device.peer * 0.9) * 1e9
    return (latency + wire) / speed


def copy_ns(device: Device, payload: float, pageable: bool) -> float:
    """A copy over the host link: set-up plus bytes; pageable memory is staged by the driver at a fraction of the rate."""
    rate = device.link * (0.82 if not pageable else 0.18)
    return (9000.0 if pageable else 1400.0) + payload / rate * 1e9
