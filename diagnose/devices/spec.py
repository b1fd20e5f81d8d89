"""One device: what it is and its datasheet peaks, in SI base units."""

from dataclasses import dataclass, field

DTYPES: tuple[str, ...] = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")


@dataclass(frozen=True)
class DeviceSpec:
    """Peaks of one device as the driver reports it (one die of an MI250X, one MIG slice).

    Rates are dense, per direction, in base units: B/s and FLOP/s (a multiply-add counts 2; int8 in OP/s).
    None or a missing dtype is unknown, never 0. `cache_bytes` is the last cache before memory (L2, or the
    Infinity Cache). `peer` connects up to `peer_ranks` devices (2 for a bridge). `sm_share` and
    `memory_share` are below 1 for a MIG slice. Peaks come from the catalog, so their provenance is `assumed`,
    unless a trace or a device file reported them.
    """

    key: str
    name: str
    vendor: str
    arch: str
    sm_count: int | None
    memory_bytes: int | None
    l2_bytes: int | None = None
    cache_bytes: int | None = None
    peak_bandwidth: float | None = None
    peak_compute: dict[str, float] = field(default_factory=dict)
    link_kind: str | None = None
    link_h2d: float | None = None
    link_d2h: float | None = None
    peer: float | None = None
    peer_ranks: int = 0
    confidence: str = "unknown"
    notes: str = ""
    provenance: str = "assumed"
    source: str = ""
    sm_share: float = 1.0
    memory_share: float = 1.0

    @property
    def is_cpu(self) -> bool:
        """Whether this is the host processor, where operators stand in for kernels."""
        return self.key == "cpu"
