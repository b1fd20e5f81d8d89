"""Least time of transfers that leave the device: host links and collectives on one node.

Collectives follow the usual accounting (NCCL tests): bytes on the wire per rank = share(kind, ranks) x
payload, at a bus bandwidth that depends on the number of ranks, plus a floor. Constants measured on 8 x H100
and H200 with NVLink 4; other devices scale the bus bandwidth by their peer link and keep the floors, labelled
assumed.
"""

from diagnose.devices.curves import Points, read

LINK_FLOOR_NS = 1000.0
NVLINK4 = 450e9  # bytes/s per direction: the link of the measured systems

# NCCL 2.29 in the aiconfigurator tables: shortest call by ranks, ns.
NCCL_FLOOR_NS: dict[str, dict[int, float]] = {
    "all_reduce": {2: 5900.0, 4: 9300.0, 8: 15500.0},
    "all_gather": {2: 5100.0, 4: 7100.0, 8: 10100.0},
    "reduce_scatter": {2: 5000.0, 4: 7000.0, 8: 10200.0},
    "all_to_all": {2: 6200.0, 4: 6500.0, 8: 7100.0},
}
# Large-message bus bandwidth of all-reduce, bytes/s, same tables; other collectives are taken to reach it.
BUS_BANDWIDTH = {2: 318e9, 4: 350e9, 8: 445e9}
# Fastest known all-reduce on 8 ranks: vLLM's one- and two-shot kernels replayed from a graph (payload bytes,
# ns), then NCCL's largest message. Fewer ranks keep the floor.
BEST_ALL_REDUCE_8: Points = ((8e3, 4700.0), (2.097e6, 18100.0), (1.678e7, 87000.0), (5.369e8, 2.111e6))
# Median NCCL all-reduce on 8 ranks, same accounting.
NCCL_ALL_REDUCE_8: Points = (
    (5.24e5, 20100.0), (2.097e6, 38000.0), (1.678e7, 122000.0), (5.369e8, 2.111e6),
)  # fmt: skip
BEST_FLOOR_NS = 4700.0


def wire_share(kind: str, ranks: int) -> float | None:
    """Bytes on the wire per rank over the payload; None for an unknown collective.

    The payload is the whole tensor: the reduced buffer, the gathered output, the scattered input.
    """
    if ranks < 2:
        return 0.0
    ring = (ranks - 1) / ranks
    return {
        "all_reduce": 2 * ring,
        "all_gather": ring,
        "reduce_scatter": ring,
        "all_to_all": ring,
        "broadcast": 1.0,
        "reduce": 1.0,
        "send": 1.0,
        "recv": 1.0,
    }.get(kind)


def collective_time_ns(
    kind: str, nbytes: float, ranks: int, peer: float | None, *, typical: bool
) -> float | None:
    """Least (or, with `typical`, usual NCCL) time on one node.

    None for an unknown kind, an unknown link, or more ranks than a node holds.
    """
    share = wire_share(kind, ranks)
    if share is None or peer is None or ranks > 8:
        return None
    if ranks < 2 or nbytes <= 0:
        return 0.0
    scale = peer / NVLINK4
    if kind == "all_reduce" and ranks > 4:
        usual = _eight(NCCL_ALL_REDUCE_8, NCCL_FLOOR_NS[kind][8], nbytes, scale)
        return usual if typical else min(usual, _eight(BEST_ALL_REDUCE_8, BEST_FLOOR_NS, nbytes, scale))
    steps = 2 if ranks <= 2 else 4 if ranks <= 4 else 8
    floor = NCCL_FLOOR_NS.get(kind, NCCL_FLOOR_NS["all_gather"])[steps] if typical else BEST_FLOOR_NS
    return floor + share * nbytes / (BUS_BANDWIDTH[steps] * scale) * 1e9


def _eight(curve: Points, floor: float, nbytes: float, scale: float) -> float:
    """An all-reduce curve; below its first point the floor holds, beyond its last that rate."""
    last, time = curve[-1]
    if nbytes > last:
        time = floor + (time - floor) * nbytes / last
    else:
        time = max(floor, read(curve, nbytes)) if nbytes > curve[0][0] else floor
    return floor + (time - floor) / scale
