"""What binds each kernel, from its cost, its time and the device's sustained roofs.

A regime is only the side of the ridge; a bound needs the kernel to come near that roof. Writes `bound`.
"""

from dataclasses import dataclass
from typing import Any

from diagnose.costs.families import fallback_reason, family
from diagnose.devices import Roofs
from diagnose.model.clock import LOW_CLOCK, clock_shares
from diagnose.store import Store
from diagnose.store.sqlfile import read_sql

# Nearer than this to a sustained roof counts as bound by it. Nsight Compute's speed-of-light rule calls both units below
# 60 % "latency"; real kernels that its authors call bound sit at 65-95 % of what the same device sustains.
NEAR_ROOF = 0.60
# Work that a perfect kernel would finish within one floor, taking no more than a few of them, has nothing to win.
FLOOR_WORK = 1.0
FLOOR_TIME = 4.0
# A grid below the multiprocessor count cannot fill the device, whatever it computes; up to this many floors its time is
# latency of a few blocks. Longer, the missing parallelism is the inefficiency.
FEW_BLOCKS_TIME = 10.0
# A trace's own floor is the median of kernels with a quarter of a floor of work, from at least this many, up to this many
# catalogued floors (MI300X graph replays: 4-5 us); a kernel within half of it more, beyond its work, sits on it.
SMALL_KERNELS = 20
SMALL_CAP = 6.0
OVER_FLOOR = 1.5
# More than this above the datasheet peak, with a working set that no cache holds, and the cost cannot be right.
IMPOSSIBLE = 1.10

# Over the roof by this much at most is what the cache has to explain for a kernel to be called resident.
CACHE_PROBE = 1.15

COMM_FAMILIES = frozenset({"nccl", "custom_comm"})


def write_families(store: Store) -> None:
    """`name_family(name_id, family, is_comm)` for every kernel name."""
    rows = store.rows(
        "SELECT name_id, text FROM name WHERE name_id IN (SELECT DISTINCT name_id FROM activity WHERE kind = 'kernel')"
    )
    kinds = [family(text or "") for _, text in rows]
    store.insert_columns(
        "name_family",
        {"name_id": [r[0] for r in rows], "family": kinds, "is_comm": [k in COMM_FAMILIES for k in kinds]},
        {"name_id": "INTEGER", "family": "VARCHAR", "is_comm": "BOOLEAN"},
    )


@dataclass(frozen=True, slots=True)
class _Roofed:
    """Roof times of one distinct cost."""

    ideal_ns: float | None
    memory_ns: float | None
    compute_ns: float | None
    regime: str | None
    is_resident: bool
    peak_ns: float | None


def _roofed(roofs: Roofs | None, row: dict[str, Any], clock: float = 1.0) -> _Roofed:
    """Roof times of one cost. `clock`: SM clock over its nominal one; below 1 the compute roof is that much lower."""
    if roofs is None:
        return _Roofed(None, None, None, None, False, None)
    flops, nbytes, dtype = row["flops"], row["bytes_min"], row["dtype"]
    ideal = roofs.ideal_ns(
        flops, nbytes, dtype,
        m=row["m"], n=row["n"], k=row["k"], batch=row["batch"] or 1,
        attention_length=row["attention_length"], head_dim=row["head_dim"], causal=row["causal"],
    )  # fmt: skip
    if ideal is None:
        return _Roofed(None, None, None, None, False, None)
    ideal_ns, compute_ns, regime = ideal.ns, ideal.compute_ns, ideal.regime
    if clock < LOW_CLOCK and compute_ns is not None:
        compute_ns = ideal.floor_ns + max(0.0, compute_ns - ideal.floor_ns) / clock
        ideal_ns = max(ideal.memory_ns or 0.0, compute_ns)
        regime = "compute" if compute_ns >= (ideal.memory_ns or 0.0) else regime
    spec = roofs.spec
    at_peak = [0.0]
    # The lower edge of the traffic, so that a kernel whose operands sat in cache is not called impossible.
    if row["bytes_low"] and spec.peak_bandwidth:
        at_peak.append(row["bytes_low"] / spec.peak_bandwidth * 1e9)
    peak = spec.peak_compute.get(dtype) if dtype else None
    if flops and peak:
        at_peak.append(flops / peak * 1e9)
    # A rate above the roof that the last cache explains; the time is the one at which it would just exceed the roof.
    resident = nbytes is not None and roofs.cache_explains(nbytes, ideal_ns / CACHE_PROBE)
    return _Roofed(ideal_ns, ideal.memory_ns, compute_ns, regime, resident, max(at_peak) or None)


def build_bounds(store: Store, roofs: dict[int, Roofs | None], archs: dict[int, str | None]) -> None:
    """Write `bound` for every activity. `roofs` and `archs` by device id; a device without roofs stays unmodelled."""
    store.con.execute(read_sql("diagnose.model", "share.sql"))
    distinct = store.dicts(
        """SELECT DISTINCT a.device_id, c.flops, c.bytes_min, c.bytes_low, c.dtype, c.m, c.n, c.k, c.batch, c.attention_length, c.head_dim,
            contains(coalesce(c.shape, ''), ' causal') AS causal
        FROM cost c JOIN activity a USING (kernel_id)"""
    )
    clocks = clock_shares(store, roofs)
    results = [
        _roofed(roofs.get(row["device_id"]), row, clocks.get(row["device_id"], 1.0)) for row in distinct
    ]
    columns: dict[str, list[Any]] = (
        {key: [row[key] for row in distinct] for key in distinct[0]} if distinct else {}
    )
    key_types = {
        "device_id": "INTEGER", "flops": "DOUBLE", "bytes_min": "DOUBLE", "bytes_low": "DOUBLE", "dtype": "VARCHAR", "m": "BIGINT",
        "n": "BIGINT", "k": "BIGINT", "batch": "BIGINT", "attention_length": "DOUBLE", "head_dim": "BIGINT", "causal": "BOOLEAN",
    }  # fmt: skip
    types = {
        **key_types, "ideal_ns": "DOUBLE", "memory_ns": "DOUBLE", "compute_ns": "DOUBLE", "regime": "VARCHAR",
        "is_resident": "BOOLEAN", "peak_ns": "DOUBLE",
    }  # fmt: skip
    for name in key_types:
        columns.setdefault(name, [])
    for name in ("ideal_ns", "memory_ns", "compute_ns", "regime", "is_resident", "peak_ns"):
        columns[name] = [getattr(result, name) for result in results]
    store.insert_columns("roofed", columns, types)
    _write_devices(store, roofs)
    _write_name_reasons(store, archs)
    sql = read_sql("diagnose.model", "bound.sql")
    for key, value in (
        ("{near}", NEAR_ROOF), ("{floor_work}", FLOOR_WORK), ("{floor_time}", FLOOR_TIME),
        ("{small_kernels}", SMALL_KERNELS), ("{small_cap}", SMALL_CAP), ("{over_floor}", OVER_FLOOR),
        ("{few_blocks_time}", FEW_BLOCKS_TIME), ("{impossible}", IMPOSSIBLE),
    ):  # fmt: skip
        sql = sql.replace(key, repr(float(value)))
    store.con.execute(sql)


def _write_devices(store: Store, roofs: dict[int, Roofs | None]) -> None:
    ids = list(roofs)
    store.insert_columns(
        "device_roof",
        {
            "device_id": ids,
            "floor_ns": [r.kernel_floor_ns if r else None for r in roofs.values()],
            "sm_count": [r.spec.sm_count if r else None for r in roofs.values()],
            "has_roofs": [r is not None and bool(r.rows()) for r in roofs.values()],
        },
        {"device_id": "INTEGER", "floor_ns": "DOUBLE", "sm_count": "INTEGER", "has_roofs": "BOOLEAN"},
    )


def _write_name_reasons(store: Store, archs: dict[int, str | None]) -> None:
    """Reasons that a kernel's name shows, by device architecture."""
    rows = store.rows(
        "SELECT DISTINCT a.device_id, n.name_id, n.text FROM activity a JOIN name n USING (name_id) WHERE a.kind = 'kernel'"
    )
    reasons = [fallback_reason(text or "", archs.get(device)) for device, _, text in rows]
    store.insert_columns(
        "name_reason",
        {"device_id": [r[0] for r in rows], "name_id": [r[1] for r in rows], "reason": reasons},
        {"device_id": "INTEGER", "name_id": "INTEGER", "reason": "VARCHAR"},
    )
