"""Fit the sustained roofs and typical curves and write diagnose/devices/curves.toml (development time only).

    python benchmarks/fit_roofs.py [--measured DIR] [--write]

Reads latency tables by shape (see docs/roofs.md for their origin). Four fifths of the shapes, chosen by a
hash, are fitted; the rest are held out and reported. Without --write it only reports on the committed file.
"""

import argparse
import hashlib
import math
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np

from diagnose.devices.catalog import by_key
from diagnose.devices.curves import curves
from diagnose.devices.roofs import RIDGE_POWER, Roofs
from diagnose.devices.tiles import tile_time_ns

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "diagnose" / "devices" / "curves.toml"
TABLES = {"a100-sxm-80": "a100", "h100-sxm": "h100", "h200-sxm": "h200"}
DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
WIDTH = {"bfloat16": 2, "fp8": 1}
ORIGIN = "aiconfigurator-core 0.12 tables (Apache-2.0), NVIDIA, vLLM {version}"
VERSION = {"a100-sxm-80": "0.14.0", "h100-sxm": "0.24.0", "h200-sxm": "0.24.0"}
# Shortest kernel seen: H100 0.896 µs (arange, nsys), A100 and H200 taken equal; the tables have no such
# kernels.
STREAM_FLOOR_NS = 900.0
GEMM_START_NS = 2000.0
# Share of fitted rows that an envelope may leave below it: small, but not the single luckiest row.
QUANTILE = 0.003
# Found by trying: whole waves fit A100 best and fractional ones Hopper, with these costs per tile.
MODEL = {"a100-sxm-80": (True, 2000.0), "h100-sxm": (False, 1000.0), "h200-sxm": (False, 1000.0)}

Array = np.ndarray


def held_out(parts: Iterable[object]) -> bool:
    """One shape in five, by a hash that depends on nothing but the shape."""
    text = ",".join(str(p) for p in parts).encode()
    return hashlib.sha256(text).digest()[0] % 5 == 0


class Rows:
    """A table as columns; `fit` marks the rows used for fitting."""

    def __init__(self, columns: dict[str, Array], shape: list[str]) -> None:
        self.columns = columns
        shapes = zip(*(columns[c] for c in shape), strict=True)
        self.fit = np.array([not held_out(s) for s in shapes], dtype=bool)

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.fit)

    def where(self, mask: Array) -> "Rows":
        out = object.__new__(Rows)
        out.columns = {k: v[mask] for k, v in self.columns.items()}
        out.fit = self.fit[mask]
        return out


def table(path: Path, sql: str, shape: list[str], *params: object) -> Rows:
    con = duckdb.connect()
    cursor = con.execute(sql.replace("$file", f"read_parquet('{path.as_posix()}')"), list(params))
    names = [d[0] for d in cursor.description]
    data = list(zip(*cursor.fetchall(), strict=True))
    return Rows({n: np.array(c, dtype=float) for n, c in zip(names, data, strict=True)}, shape)


def gemms(measured: Path, key: str, dtype: str) -> Rows | None:
    rows = (
        table(
            measured / f"{TABLES[key]}_gemm_perf.parquet",
            "SELECT m, n, k, latency * 1e6 AS ns FROM $file WHERE gemm_dtype = ? ORDER BY m, n, k, ns",
            ["m", "n", "k"],
            dtype,
        )
        if has(measured, key, dtype)
        else None
    )
    if rows is None:
        return None
    m, n, k, width = rows["m"], rows["n"], rows["k"], WIDTH[dtype]
    rows.columns["bytes"] = width * (m * k + k * n) + 2 * m * n
    rows.columns["flops"] = 2 * m * n * k
    return rows


def has(measured: Path, key: str, dtype: str) -> bool:
    path = measured / f"{TABLES[key]}_gemm_perf.parquet"
    found = (
        duckdb.connect()
        .execute(f"SELECT count(*) FROM read_parquet('{path.as_posix()}') WHERE gemm_dtype = ?", [dtype])
        .fetchone()
    )
    return bool(found and found[0])


def decode(measured: Path, key: str, kv: str) -> Rows:
    rows = table(
        measured / f"{TABLES[key]}_decode_attention_perf.parquet",
        """SELECT batch_size AS b, isl + step AS context, num_heads AS q, num_key_value_heads AS kv, head_dim
        AS d,
                  latency * 1e6 AS ns FROM $file WHERE window_size = 0 AND kv_cache_dtype = ?
           ORDER BY ALL""",
        ["b", "context", "q", "kv", "d"],
        kv,
    )
    b, c, q, kvh, d = (rows[x] for x in ("b", "context", "q", "kv", "d"))
    rows.columns["bytes"] = 2 * b * c * kvh * d * WIDTH[kv] + 2 * b * q * d * 2
    return rows


def prefill(measured: Path, key: str) -> Rows:
    rows = table(
        measured / f"{TABLES[key]}_prefill_attention_perf.parquet",
        """SELECT batch_size AS b, isl AS length, num_heads AS q, num_key_value_heads AS kv, head_dim AS d,
                  latency * 1e6 AS ns FROM $file WHERE window_size = 0 AND kv_cache_dtype = 'bfloat16'
           ORDER BY ALL""",
        ["b", "length", "q", "kv", "d"],
    )
    b, length, q, d = (rows[x] for x in ("b", "length", "q", "d"))
    rows.columns["flops"] = 4 * b * q * length * length * d / 2
    return rows


def binned(
    size: Array, value: Array, step: float, reduce: Callable[[Array], float], least: int = 8
) -> list[list[float]]:
    """(2^centre, reduced value) for each bin of log2(size) that holds enough rows."""
    bins = np.round(np.log2(size) / step).astype(int)
    return [
        [float(2.0 ** (b * step)), float(reduce(value[bins == b]))]
        for b in np.unique(bins)
        if (bins == b).sum() >= least
    ]


def lower(values: Array) -> float:
    return float(np.quantile(values, QUANTILE))


def interpolate(points: list[list[float]], size: Array) -> Array:
    x, y = np.array(points).T
    return np.exp(np.interp(np.log(size), np.log(x), np.log(y)))


def memory_curve(key: str, parts: list[Rows]) -> dict[str, object]:
    """Envelope of the memory-side rows: a straight line corrected by half octaves, then made monotone."""
    spec = by_key(key)
    peak = spec.peak_bandwidth or 0.0
    size = np.concatenate([p["bytes"][p.fit] for p in parts])
    time = np.concatenate([p["ns"][p.fit] for p in parts])
    floor = lower(time[size < 2**16])
    base = floor + size / (0.93 * peak) * 1e9  # any sensible line: the correction absorbs it
    ratio = binned(size, time / base, 0.5, lower)
    ratio = [r for r in ratio if r[0] >= 2**17]
    roof = [[r[0], (floor + r[0] / (0.93 * peak) * 1e9) * r[1]] for r in ratio]
    for before, after in pairwise(roof):
        after[1] = max(after[1], before[1])
    # beyond the last point the last rate holds; a larger kernel must not get a lower rate than a smaller one
    best = 0.0
    for point in roof:
        best = max(best, point[0] / (point[1] - floor)) if point[1] > floor * 1.5 else best
        if point[0] > 2**27:
            point[1] = min(point[1], floor + point[0] / best)
    weights = parts[0]
    median = binned(
        weights["bytes"][weights.fit], weights["ns"][weights.fit], 0.5, lambda v: float(np.median(v)), 20
    )
    return {
        "device": key, "bandwidth": peak, "floor_ns": floor, "stream_floor_ns": STREAM_FLOOR_NS,
        "roof": roof, "typical": [p for p in median if p[0] >= 2**14],
        "origin": ORIGIN.format(version=VERSION[key]),
    }  # fmt: skip


def tile_model(rows: Rows, key: str, dtype: str, quantised: bool, tile_ns: float) -> Array:
    spec = by_key(key)
    peak = spec.peak_compute[DTYPES[dtype]]
    return np.array([
        GEMM_START_NS + tile_time_ns(int(m), int(n), int(k), 1, sm_count=spec.sm_count or 1, peak=peak,
                                     tile_ns=tile_ns, quantised=quantised)
        for m, n, k in zip(rows["m"], rows["n"], rows["k"], strict=True)
    ])  # fmt: skip


def gemm_curve(key: str, dtype: str, rows: Rows, memory: dict[str, object]) -> dict[str, object]:
    quantised, tile_ns = MODEL[key]
    base = tile_model(rows, key, dtype, quantised, tile_ns)
    mem = memory_time(memory, rows["bytes"])
    compute_side = rows.fit & (base > 0.7 * mem)
    ratio = rows["ns"] / base
    level = binned(rows["flops"][compute_side], ratio[compute_side], 1.0, lower, least=40)
    best = binned(rows["flops"][rows.fit], (rows["flops"] / rows["ns"])[rows.fit], 1.0,
                  lambda v: float(np.quantile(v, 1 - QUANTILE)), 40)  # fmt: skip
    compute = base * interpolate(level, rows["flops"])
    both = (compute**RIDGE_POWER + mem**RIDGE_POWER) ** (1 / RIDGE_POWER)
    side = compute > mem
    sides = {}
    for name, mask in (("typical_memory", ~side), ("typical_compute", side)):
        use = rows.fit & mask
        sides[name] = binned(both[use], (rows["ns"] / both)[use], 0.25, lambda v: float(np.median(v)), 20)
    return {
        "device": key, "dtype": DTYPES[dtype], "peak": by_key(key).peak_compute[DTYPES[dtype]],
        "quantised": quantised, "start_ns": GEMM_START_NS, "tile_ns": tile_ns, "level": level,
        "rate": [[f, r * 1e9] for f, r in best], **sides, "origin": ORIGIN.format(version=VERSION[key]),
    }  # fmt: skip


def memory_time(memory: dict[str, object], size: Array) -> Array:
    points: list[list[float]] = memory["roof"]  # type: ignore[assignment]
    floor = float(memory["floor_ns"])  # type: ignore[arg-type]
    x, y = np.array([[1.0, floor], *points]).T
    inside = np.exp(np.interp(np.log(size), np.log(x), np.log(y)))
    last = points[-1]
    beyond = floor + (last[1] - floor) * size / last[0]
    return np.where(size > last[0], beyond, inside)


def attention_curve(key: str, rows: Rows) -> dict[str, object]:
    rate = rows["flops"] / rows["ns"] * 1e9
    roof, typical = {}, {}
    for d in np.unique(rows["d"]):
        if d not in {64, 128, 192, 256}:
            continue
        r, t = [], []
        for length in np.unique(rows["length"]):
            use = rows.fit & (rows["d"] == d) & (rows["length"] == length)
            if length < 64 or use.sum() < 15:
                continue
            r.append([float(length), float(rate[use].max())])
            t.append([float(length), float(np.median(rate[use]))])
        roof[str(int(d))], typical[str(int(d))] = r, t
    return {"device": key, "peak": by_key(key).peak_compute["bf16"], "roof": roof, "typical": typical,
            "origin": ORIGIN.format(version=VERSION[key])}  # fmt: skip


def decode_curve(key: str, kv: str, rows: Rows) -> dict[str, object]:
    median = binned(rows["bytes"][rows.fit], rows["ns"][rows.fit], 1.0, lambda v: float(np.median(v)), 20)
    return {"device": key, "kv_dtype": DTYPES[kv], "bandwidth": by_key(key).peak_bandwidth, "typical": median,
            "origin": ORIGIN.format(version=VERSION[key])}  # fmt: skip


def number(value: float) -> str:
    """Four significant digits."""
    if value == 0:
        return "0.0"
    digits = 3 - math.floor(math.log10(abs(value)))
    text = f"{round(value, digits):.{max(digits, 1)}f}" if abs(value) < 1e6 else f"{value:.3e}"
    return text


def toml(name: str, entry: dict[str, object]) -> str:
    lines = [f"[[{name}]]"]
    for key, value in entry.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{k} = [{pairs(v)}]" for k, v in value.items())
            lines.append(f"{key} = {{ {inner} }}")
        elif isinstance(value, list):
            lines.append(f"{key} = [{pairs(value)}]")
        elif isinstance(value, bool):
            lines.append(f"{key} = {str(value).lower()}")
        elif isinstance(value, str):
            lines.append(f'{key} = "{value}"')
        else:
            lines.append(f"{key} = {float(value):.6g}")  # type: ignore[arg-type]
    return "\n".join(lines) + "\n"


def pairs(points: list[list[float]]) -> str:
    return ", ".join(f"[{number(x)}, {number(y)}]" for x, y in points)


def fit(measured: Path) -> str:
    """All curves as TOML."""
    out = [
        "# Roof coefficients: written by benchmarks/fit_roofs.py, explained in docs/roofs.md. Sizes in bytes",
        "# or FLOP, times in ns, rates in FLOP/s. Fitted on four fifths of the shapes named in `origin`.\n",
    ]
    for key in TABLES:
        tables = {d: rows for d in DTYPES if (rows := gemms(measured, key, d)) is not None}
        thin = [r.where(r["m"] <= 17) for r in tables.values()]
        attention = [decode(measured, key, kv) for kv in DTYPES] if key != "a100-sxm-80" else []
        memory = memory_curve(key, thin + attention)
        out.append(toml("memory", memory))
        for dtype, rows in tables.items():
            out.append(toml("gemm", gemm_curve(key, dtype, rows, memory)))
        for kv, rows in zip(DTYPES, attention, strict=False):
            out.append(toml("decode", decode_curve(key, kv, rows)))
        if key == "h100-sxm":
            out.append(toml("attention", attention_curve(key, prefill(measured, key))))
    return "\n".join(out)


def summary(name: str, roof: Array, typical: Array, rows: Rows, size: Array) -> None:
    """Held-out quality: rows faster than the roof, its tightness, and the typical curve by size class."""
    ratio = roof / rows["ns"]
    print(f"{name}: {(~rows.fit).sum()} held-out of {len(rows)} rows")
    for label, mask in (("held-out", ~rows.fit), ("fitted", rows.fit)):
        some = ratio[mask]
        fast = ", ".join(f"by >{p} % {100 * (some > 1 + p / 100).mean():.3f} %" for p in (5, 10))
        spread = ", ".join(f"p{round(100 * q)} {np.quantile(some, q):.3f}" for q in (0.5, 0.9, 0.99))
        print(f"  {label:8} faster than the roof {fast}; roof/measured {spread}")
    bins = np.floor(np.log2(size) / 2).astype(int)
    classes = [use for b in np.unique(bins) if (use := ~rows.fit & (bins == b)).sum() >= 10]
    medians = [float(np.median((typical / rows["ns"])[use])) for use in classes]
    print(
        "  by size class, roof p50 and p99, typical p50: "
        + "; ".join(
            f"{size[u].min():.0e} {np.median(ratio[u]):.2f} {np.quantile(ratio[u], 0.99):.2f} {t:.2f}"
            for u, t in zip(classes, medians, strict=True)
        )
    )
    near = np.abs(np.log(typical / rows["ns"])[~rows.fit]) < math.log(1.2)
    print(f"  typical: worst class {100 * max(abs(t - 1) for t in medians):.0f} % off; "
          f"{100 * near.mean():.0f} % of rows within 20 %")  # fmt: skip


def report(measured: Path) -> None:
    """Quality of the committed curves through the package's own functions."""
    for key in TABLES:
        roofs = Roofs(by_key(key))
        for name, dtype in DTYPES.items():
            rows = gemms(measured, key, name)
            if rows is None:
                continue
            ideal, usual = [], []
            for m, n, k, b, f in zip(*(rows[c] for c in ("m", "n", "k", "bytes", "flops")), strict=True):
                found = roofs.ideal_ns(f, b, dtype, m=int(m), n=int(n), k=int(k))
                ideal.append(found.ns if found else math.nan)
                usual.append(roofs.typical_gemm_ns(int(m), int(n), int(k), dtype) or math.nan)
            roof, typical = np.array(ideal), np.array(usual)
            summary(f"{key} GEMM {dtype}, by FLOP", roof, typical, rows, rows["flops"])
            thin = rows["m"] <= 17
            part = rows.where(thin)
            summary(f"{key} GEMM {dtype} M<=17, by bytes", roof[thin], typical[thin], part, part["bytes"])
        if key == "a100-sxm-80":
            continue
        for name, kv in DTYPES.items():
            rows = decode(measured, key, name)
            size = rows["bytes"]
            roof = np.array([roofs.memory_ns(b) or math.nan for b in size])
            typical = np.array([roofs.typical_decode_attention_ns(b, kv) or math.nan for b in size])
            summary(f"{key} decode attention {kv} KV, by bytes", roof, typical, rows, size)
        if key == "h100-sxm":
            rows = prefill(measured, key)
            rows = rows.where(rows["length"] >= 64)
            args = list(zip(rows["flops"], rows["length"], rows["d"], strict=True))
            roof = np.array([roofs.attention_ns(f, "bf16", s, int(d)) or math.nan for f, s, d in args])
            typical = np.array(
                [roofs.typical_attention_ns(f, "bf16", s, int(d)) or math.nan for f, s, d in args]
            )
            summary(f"{key} prefill attention, by length", roof, typical, rows, rows["length"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measured", type=Path, default=ROOT.parent / "shared" / "traces" / "measured")
    parser.add_argument("--write", action="store_true", help="fit and write curves.toml before reporting")
    args = parser.parse_args()
    if not args.measured.is_dir():
        print(f"no tables at {args.measured}", file=sys.stderr)
        return 2
    if args.write:
        OUT.write_text(fit(args.measured), encoding="utf-8")
        curves.cache_clear()
    report(args.measured)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
