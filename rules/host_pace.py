"""How fast the host alone could go: no step gets shorter than the work its launching thread does for it.

A change that makes kernels faster stops paying where the host's own time per step begins. That time is measured: from
one step's first launch to the next one's, less what the thread spent waiting for the device.
"""

from dataclasses import dataclass

from diagnose.store import Store
from diagnose.store.sqlfile import read_sql

LEAST_NOISE, MOST_NOISE = 0.05, 0.25
# Two means differ by the square root of two of one's standard error; 1.64 of that holds 90 %.
SPREAD = 2.3


@dataclass(frozen=True, slots=True)
class HostPace:
    """One phase on one device. `busy_share`: the launching thread's own work over the step's period (0..1).

    `launches`: launch calls a step, those of graphs included. `noise`: by how much the mean of as many steps of another run
    may differ, from how the steps of this one scatter.
    """

    busy_share: float
    launches: float
    noise: float = LEAST_NOISE


def host_pace(store: Store) -> dict[tuple[int, str], HostPace]:
    """Pace by (device, phase), where two steps in a row and their launches are in the trace; the CPU has none."""
    return {
        (row["device_id"], row["phase"]): HostPace(
            row["busy_ns"] / row["period_ns"],
            row["launches"],
            noise=min(MOST_NOISE, max(LEAST_NOISE, SPREAD * (row["standard_error"] or 0.0))),
        )
        for row in store.dicts(read_sql("diagnose.rules", "host_pace.sql"))
        if row["device_id"] >= 0
    }
