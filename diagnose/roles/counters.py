"""Hardware counters over formulas: kernels that Nsight Compute measured take its DRAM bytes.

Matched by kernel name and grid; FLOPs keep the formula where there is one (executed FLOPs include tile padding), else
the counter's. Times are never taken from there.
"""

import re
from functools import lru_cache

from diagnose.costs.families import family, math_dtype
from diagnose.store import Store

Note = tuple[str, str, int, str]


@lru_cache(maxsize=65536)
def normal(name: str) -> str:
    """A kernel's name as two profilers can agree on it: no spaces, no return type, no casts of template values."""
    text = re.sub(r"\((?:int|bool|unsigned int|long|unsigned long|unsigned char)\)(-?\d+)", r"\1", name)
    text = re.sub(r"(?<![\w.])(\d+)(?:ul|u|l)(?!\w)", r"\1", text)
    text = re.sub(r"(?<![\w:])(true)(?!\w)", "1", text)
    text = re.sub(r"(?<![\w:])(false)(?!\w)", "0", text)
    text = text.replace("> >", ">>").replace("(anonymous namespace)", "<unnamed>")
    if text.startswith("void "):
        text = text[5:]
    return re.sub(r"\s+", "", text)


def apply_counters(store: Store) -> list[Note]:
    """Put measured bytes into `cost` (source `counter`) for kernels that `kernel_counter` knows; what matched, as notes."""
    measured: dict[tuple[str, str | None], dict[str, list[float]]] = {}
    for name, grid, metric, value in store.rows("SELECT name, grid, metric, value FROM kernel_counter"):
        measured.setdefault((normal(name), grid), {}).setdefault(metric, []).append(value)
    names = {
        n: t or ""
        for n, t in store.rows("SELECT name_id, text FROM name WHERE name_id IN (SELECT name_id FROM kernel)")
    }
    columns: dict[str, list[object]] = {k: [] for k in ("name_id", "grid", "bytes", "flops", "dtype", "role")}
    matched = set()
    for name_id, grid in store.rows("SELECT DISTINCT name_id, grid FROM kernel WHERE device_id >= 0"):
        key = (normal(names.get(name_id, "")), grid)
        found = measured.get(key)
        if grid is None or found is None or not found.get("dram_bytes"):
            continue
        matched.add(key)
        several = found["dram_bytes"]
        executed = found.get("flops")
        columns["name_id"].append(name_id)
        columns["grid"].append(grid)
        columns["bytes"].append(sum(several) / len(several))
        columns["flops"].append(sum(executed) / len(executed) if executed else None)
        columns["dtype"].append(math_dtype(names[name_id]) or "fp32")
        columns["role"].append(family(names[name_id]))
    total = len({k for k, v in measured.items() if v.get("dram_bytes")})
    if not columns["name_id"]:
        return [("counters-unmatched", "warning", total,
                 f"none of the {total} kernels measured by Nsight Compute is in the trace by name and grid: its counters are not used")]  # fmt: skip
    types = {
        "name_id": "INTEGER",
        "grid": "VARCHAR",
        "bytes": "DOUBLE",
        "flops": "DOUBLE",
        "dtype": "VARCHAR",
        "role": "VARCHAR",
    }
    store.insert_columns("counter_match", columns, types)
    store.con.execute(
        """UPDATE cost SET bytes_min = m.bytes, bytes_low = m.bytes, bytes_high = m.bytes, source = 'counter'
        FROM kernel k JOIN counter_match m ON m.name_id = k.name_id AND m.grid = k.grid
        WHERE k.kernel_id = cost.kernel_id AND k.device_id >= 0"""
    )
    store.con.execute(
        """INSERT INTO cost BY NAME
        SELECT k.kernel_id, m.flops, m.bytes AS bytes_min, m.bytes AS bytes_low, m.bytes AS bytes_high,
               CASE WHEN m.flops > 0 THEN m.dtype END AS dtype, m.role, 'counter' AS source, k.grid AS shape
        FROM kernel k JOIN counter_match m ON m.name_id = k.name_id AND m.grid = k.grid
        ANTI JOIN cost c ON c.kernel_id = k.kernel_id WHERE k.device_id >= 0"""
    )
    count = store.scalar("SELECT count(*) FROM cost WHERE source = 'counter'") or 0
    store.con.execute("DROP TABLE counter_match")
    return [("counters", "info", int(count),
             f"{count} kernels take their bytes from Nsight Compute counters ({len(matched)} of {total} measured kernels are in the trace); times are the trace's")]  # fmt: skip
