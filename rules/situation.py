"""What a prediction reads about one phase of one device."""

from dataclasses import dataclass

from diagnose.rules.host_pace import HostPace
from diagnose.rules.weight_products import WeightProduct


@dataclass(frozen=True, slots=True)
class Situation:
    """`parts_ns`: the phase's time by part (see `diagnose.rules.parts`); `host`: the launching thread's pace, None where it
    is not in the trace; `products`: the matrix products that stream weights; `device`: key of the device's catalog row;
    `ranks`: size of the group that its collectives span, None where unknown; `kernels`: kernels of the phase,
    whose name is `phase`; `fp8`: the device multiplies FP8 itself.
    """

    parts_ns: dict[str, float]
    host: HostPace | None = None
    products: tuple[WeightProduct, ...] = ()
    device: str = ""
    ranks: int | None = None
    kernels: int = 0
    phase: str = ""
    fp8: bool = True

    @property
    def total_ns(self) -> float:
        """The phase's time now."""
        return sum(self.parts_ns.values())
