"""Measure reading a large Nsight Systems SQLite export: make one from a small export, then load it.

    python benchmarks/ingest_nsys.py EXPORT.sqlite [--mb 950] [--keep BIG.sqlite]

The export's activity tables are repeated with shifted times, renumbered correlations and operator ids until
the file has the size asked for. Loading runs in a process of its own, so that its peak memory is its own; the
file's hash is compared before and after.
"""

import argparse
import hashlib
import json
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

REPEATED = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    "NVTX_EVENTS",
)  # fmt: skip
COPIED = ("StringIds", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_GPU")

LOAD = """
import json, resource, sys, time
from pathlib import Path
start = time.perf_counter()
from diagnose.ingest.nsys import load_nsys
from diagnose.store import Store
with Store() as store:
    load_nsys(Path(sys.argv[1]), store)
    wall = time.perf_counter() - start
    tables = ("raw_kernel", "raw_gpu_copy", "raw_gpu_memset", "raw_host_call", "raw_op", "annotation", "sync")
    rows = {t: store.count(t) for t in tables}
print(json.dumps({
    "wall_s": round(wall, 2), "cpu_s": round(time.process_time(), 2),
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, "rows": rows,
}))
"""


def make(small: Path, big: Path, megabytes: float) -> int:
    """Write `big` from `small`; how often the activity was repeated."""
    with closing(sqlite3.connect(big)) as out:
        out.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA page_size = 4096;")
        out.execute("ATTACH ? AS small", (f"{small.resolve().as_uri()}?mode=ro&immutable=1",))
        have = {
            name: sql
            for name, sql in out.execute("SELECT name, sql FROM small.sqlite_master WHERE type = 'table'")
        }
        for table in (*COPIED, *REPEATED):
            if table in have:
                out.execute(have[table])
        for table in COPIED:
            if table in have:
                out.execute(f'INSERT INTO "{table}" SELECT * FROM small."{table}"')
        repeated = [table for table in REPEATED if table in have]
        spans = [out.execute(f'SELECT min(start), max("end") FROM small."{t}"').fetchone() for t in repeated]
        first, last = min(a for a, _ in spans if a is not None), max(b for _, b in spans if b is not None)
        times = 0
        while (
            out.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()[
                0
            ]
            < megabytes * 1e6
        ):
            for table in repeated:
                columns = [row[1] for row in out.execute(f'PRAGMA small.table_info("{table}")')]
                shifted = {
                    "start": f"start + {times * (last - first)}",
                    "end": f'"end" + {times * (last - first)}',
                    "correlationId": f"correlationId + {times * 100_000_000}",
                    # A run never repeats an operator id: keep the texts as distinct as real ones.
                    "text": f"replace(text, 'op_id = ', 'op_id = {times}')",
                }
                values = ", ".join(shifted.get(c, f'"{c}"') for c in columns)
                out.execute(f'INSERT INTO "{table}" SELECT {values} FROM small."{table}"')
            out.commit()
            times += 1
    return times


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def measure(path: Path) -> dict[str, object]:
    """Load `path` in a fresh process; wall and CPU seconds, peak memory, rows a table."""
    done = subprocess.run([sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True, check=True)
    result: dict[str, object] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("export", type=Path)
    parser.add_argument("--mb", type=float, default=950)
    parser.add_argument("--keep", type=Path, help="write the large file here and leave it")
    args = parser.parse_args()
    small = measure(args.export)
    print(f"{args.export.name}: {args.export.stat().st_size / 1e6:.1f} MB {json.dumps(small)}")
    with tempfile.TemporaryDirectory() as folder:
        big = args.keep or Path(folder) / "big.sqlite"
        if not big.exists():
            make(args.export, big, args.mb)
        before = sha256(big)
        result = measure(big)
        size = big.stat().st_size / 1e6
        print(f"{size:.0f} MB: {size / float(str(result['wall_s'])):.0f} MB/s {json.dumps(result)}")
        print("hash unchanged" if sha256(big) == before else "THE INPUT CHANGED")


if __name__ == "__main__":
    main()
