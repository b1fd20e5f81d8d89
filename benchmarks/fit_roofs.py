"""Fit the sustained roofs and typical curves and write diagnose/devices/curves.toml (development time only).

    python benchmarks/fit_roofs.py [--measured DIR] [--write] [--search]

Reads latency tables by shape (see docs/roofs.md for their origin). Four fifths of the shapes, chosen by a hash, are fitted;
the rest are held out and reported. Without --write it only reports on the committed file.
"""

import argparse
import hashlib
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import duckdb
import numpy as np

from diagnose.devices.catalog import by_key
from diagnose.devices.curves import curves
from diagnose.devices.roofs import ACTIVATION_WIDTH, CACHE_SPEEDUP, CACHED_SHARE, Roofs
from diagnose.devices.tiles import tile_time_ns

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "diagnose" / "devices" / "curves.toml"
TABLES = {"a100-sxm-80": "a100", "h100-sxm": "h100", "h200-sxm": "h200"}
DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
WIDTH = {"bfloat16": 2, "fp8": 1}
ORIGIN = "aiconfigurator-core 0.12 tables (Apache-2.0), NVIDIA, vLLM {version}"
VERSION = {"a100-sxm-80": "0.14.0", "h100-sxm": "0.24.0", "h200-sxm": "0.24.0"}
# Shortest kernel seen: H100 0.896 µs (arange, nsys), A100 and H200 taken equal; the tables have no such kernels.
STREAM_FLOOR_NS = 900.0
GEMM_START_NS = 2000.0
# Share of fitted rows that an envelope may leave below it: small, but not the single luckiest row.
QUANTILE = 0.003
# Start values found by --search: whole waves on A100, fractional on Hopper.
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
    rows = table(
        measured / f"{TABLES[key]}_gemm_perf.parquet",
        "SELECT m, n, k, latency * 1e6 AS ns FROM $file WHERE gemm_dtype = ? ORDER BY m, n, k, ns",
        ["m", "n", "k"],
        dtype,
    ) if has(measured, key, dtype) else None
    if rows is None:
        return None
    m, n, k, width = rows["m"], rows["n"], rows["k"], WIDTH[dtype]
    rows.columns["bytes"] = width * (m * k + k * n) + 2 * m * n
    rows.columns["flops"] = 2 * m * n * k
    return rows


def has(measured: Path, key: str, dtype: str) -> bool:
    path = measured / f"{TABLES[key]}_gemm_perf.parquet"
    found = duckdb.connect().execute(
        f"SELECT count(*) FROM read_parquet('{path.as_posix()}') WHERE gemm_dtype = ?", [dtype]
    ).fetchone()
    return bool(found and found[0])


def decode(measured: Path, key: str, kv: str) -> Rows:
    rows = table(
        measured / f"{TABLES[key]}_decode_attention_perf.parquet",
        """SELECT batch_size AS b, isl + step AS context, num_heads AS q, num_key_value_heads AS kv, head_dim AS d,
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


def binned(size: Array, value: Array, step: float, reduce: Callable[[Array], float], least: int = 8) -> list[list[float]]:
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
    ratio = binned(size, time / base, 0.5, lower, least=30)
    ratio = [r for r in ratio if r[0] >= 2**17]
    roof = [[r[0], (floor + r[0] / (0.93 * peak) * 1e9) * r[1]] for r in ratio]
    for before, after in zip(roof, roof[1:], strict=False):
        after[1] = max(after[1], before[1])
    # beyond the last point the last rate holds; a larger kernel must not get a lower rate than a smaller one
    best = 0.0
    for point in roof:
        best = max(best, point[0] / (point[1] - floor)) if point[1] > floor * 1.5 else best
        if point[0] > 2**27:
            point[1] = min(point[1], floor + point[0] / best)
    weights = parts[0]
    median = binned(weights["bytes"][weights.fit], weights["ns"][weights.fit], 0.5, lambda v: float(np.median(v)), 20)
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


def gemm_curve(key: str, dtype: str, rows: Rows, memory: dict[str, object], typical: bool = True) -> dict[str, object]:
    quantised, tile_ns = MODEL[key]
    base = tile_model(rows, key, dtype, quantised, tile_ns)
    mem = gemm_memory_time(memory, rows, by_key(key).cache_bytes or 0)
    compute_side = rows.fit & (base > 0.7 * mem)
    ratio = rows["ns"] / base
    level = binned(rows["flops"][compute_side], ratio[compute_side], 1.0, lower, least=40)
    best = binned(rows["flops"][rows.fit], (rows["flops"] / rows["ns"])[rows.fit], 1.0,
                  lambda v: float(np.quantile(v, 1 - QUANTILE)), 40)  # fmt: skip
    compute = base * interpolate(level, rows["flops"])
    roof = np.maximum(mem, compute)
    side = compute > mem
    sides = {}
    for name, mask in (("typical_memory", ~side), ("typical_compute", side)):
        use = rows.fit & mask
        sides[name] = binned(roof[use], (rows["ns"] / roof)[use], 0.25, lambda v: float(np.median(v)), 20)
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


def gemm_memory_time(memory: dict[str, object], rows: Rows, cache: float) -> Array:
    """As Roofs.gemm_memory_ns."""
    m, n, k, size = rows["m"], rows["n"], rows["k"], rows["bytes"]
    cold = memory_time(memory, size)
    cached = np.minimum(np.minimum(size, ACTIVATION_WIDTH * (m * k + m * n)), CACHED_SHARE * cache)
    at_cache_rate = float(memory["floor_ns"]) + size / (CACHE_SPEEDUP * float(memory["bandwidth"])) * 1e9  # type: ignore[arg-type]
    return np.minimum(cold, np.maximum(memory_time(memory, np.maximum(size - cached, 1)), at_cache_rate))


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
            inner = ", ".join(f'{k} = [{pairs(v)}]' for k, v in value.items())
            lines.append(f"{key} = {{ {inner} }}")
        elif isinstance(value, list):
            lines.append(f"{key} = [{pairs(value)}]")
        elif isinstance(value, bool):
            lines.append(f"{key} = {str(value).lower()}")
        elif isinstance(value, str):
            lines.append(f'{key} = "{value}"')
        else:
            lines.append(f"{key} = {number(float(value))}")  # type: ignore[arg-type]
    return "\n".join(lines) + "\n"


def pairs(points: list[list[float]]) -> str:
    return ", ".join(f"[{number(x)}, {number(y)}]" for x, y in points)


def fit(measured: Path) -> str:
    """All curves as TOML."""
    out = [
        "# Roof coefficients: written by benchmarks/fit_roofs.py, explained in docs/roofs.md. Sizes in bytes or FLOP,",
        "# times in ns, rates in FLOP/s. Fitted on four fifths of the shapes of the tables named in `origin`.\n",
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


def summary(name: str, roof: Array, typical: Array | None, rows: Rows, size: Array) -> None:
    """Held-out quality of a roof: too-fast rows, tightness, and the typical curve by size class."""
    ratio = roof / rows["ns"]
    out = ~rows.fit
    print(f"{name}: {out.sum()} held-out of {len(rows)} rows")
    for label, mask in (("held-out", out), ("fitted", rows.fit)):
        print(f"  {label:8} faster than roof by >5 %: {100 * (ratio[mask] > 1.05).mean():.3f} %, by >10 %: "
              f"{100 * (ratio[mask] > 1.10).mean():.3f} %; roof/measured median {np.median(ratio[mask]):.3f}, "
              f"p90 {np.quantile(ratio[mask], 0.9):.3f}, p99 {np.quantile(ratio[mask], 0.99):.3f}")  # fmt: skip
    bins = np.floor(np.log2(size) / 2).astype(int)
    worst = 0.0
    parts = []
    for b in np.unique(bins):
        use = out & (bins == b)
        if use.sum() < 10:
            continue
        text = f"{2.0 ** (2 * b):.0e} n={use.sum()} roof {np.median(ratio[use]):.2f}/{np.quantile(ratio[use], 0.99):.2f}"
        if typical is not None:
            # by size class: the typical curve against the median row
            t = float(np.median(typical[use] / rows["ns"][use]))
            worst = max(worst, abs(t - 1))
            text += f" typ {t:.2f}"
        parts.append(text)
    print("   " + "; ".join(parts))
    if typical is not None:
        print(f"  typical/measured median by size class: worst {100 * worst:.0f} % off")


def report(measured: Path) -> None:
    """Quality of the committed curves through the package's own functions."""
    for key in TABLES:
        roofs = Roofs(by_key(key))
        for dtype in DTYPES:
            rows = gemms(measured, key, dtype)
            if rows is None:
                continue
            ideal, usual = [], []
            for m, n, k, b, f in zip(*(rows[c] for c in ("m", "n", "k", "bytes", "flops")), strict=True):
                found = roofs.ideal_ns(f, b, DTYPES[dtype], m=int(m), n=int(n), k=int(k))
                ideal.append(found.ns if found else math.nan)
                usual.append(roofs.typical_gemm_ns(int(m), int(n), int(k), DTYPES[dtype]) or math.nan)
            summary(f"{key} GEMM {DTYPES[dtype]}, by FLOP", np.array(ideal), np.array(usual), rows, rows["flops"])
            small = rows["m"] <= 17
            summary(f"{key} GEMM {DTYPES[dtype]} M<=17, by bytes", np.array(ideal)[small],
                    np.array(usual)[small], rows.where(small), rows["bytes"][small])  # fmt: skip
        if key == "a100-sxm-80":
            continue
        for kv in DTYPES:
            rows = decode(measured, key, kv)
            roof = np.array([roofs.memory_ns(b) or math.nan for b in rows["bytes"]])
            usual_ = np.array([roofs.typical_decode_attention_ns(b, DTYPES[kv]) or math.nan for b in rows["bytes"]])
            summary(f"{key} decode attention {DTYPES[kv]} KV, by bytes", roof, usual_, rows, rows["bytes"])
        if key == "h100-sxm":
            rows = prefill(measured, key)
            args = list(zip(rows["flops"], rows["length"], rows["d"], strict=True))
            roof = np.array([roofs.attention_ns(f, "bf16", s, int(d)) or math.nan for f, s, d in args])
            usual_ = np.array([roofs.typical_attention_ns(f, "bf16", s, int(d)) or math.nan for f, s, d in args])
            big = rows["length"] >= 64
            summary(f"{key} prefill attention, by length", roof[big], usual_[big], rows.where(big), rows["length"][big])


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
