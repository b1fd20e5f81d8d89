"""Share of kernel time with a cost, by source, and the biggest names without one: `python
benchmarks/coverage.py TRACE...`."""

import argparse
import sys
import time
from pathlib import Path

from diagnose.costs.assign import assign_costs
from diagnose.pipeline import Options, prepare

TOP = 8


def report(path: Path, top: int = TOP) -> dict[str, float]:
    """Print one trace's coverage; the shares by source (and 'total')."""
    analysed = prepare(path, Options())
    store = analysed.store
    try:
        started = time.process_time()
        assign_costs(store)
        seconds = time.process_time() - started
        total = store.scalar("SELECT sum(dur_ns) FROM kernel") or 0
        by_source = dict(
            store.rows(
                """SELECT coalesce(c.source, 'none'), sum(k.dur_ns) FROM kernel k LEFT JOIN cost c USING
                (kernel_id)
                GROUP BY ALL ORDER BY 2 DESC"""
            )
        )
        shares = {s: ns / total for s, ns in by_source.items()} if total else {}
        covered = 1 - shares.get("none", 0.0) if total else 0.0
        sources = ", ".join(f"{s} {100 * share:.2f} %" for s, share in shares.items())
        print(f"{path.name}: {100 * covered:.2f} % of {total / 1e6:.2f} ms ({sources}); {seconds:.2f} CPU s")
        missing = store.rows(
            """SELECT n.text, any_value(o.text), any_value(k.link), count(*), sum(k.dur_ns) FROM kernel k
            JOIN name n ON n.name_id = k.name_id
            LEFT JOIN op p ON p.op_id = k.op_id LEFT JOIN name o ON o.name_id = p.name_id
            ANTI JOIN cost c ON c.kernel_id = k.kernel_id GROUP BY n.text ORDER BY 5 DESC LIMIT ?""",
            top,
        )
        for name, op, link, count, ns in missing:
            print(f"    {100 * ns / total:6.2f} %  {count:5d} x {name[:90]}  [{op or link}]")
        return {**shares, "total": covered}
    finally:
        store.close()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--top", type=int, default=TOP)
    options = parser.parse_args()
    for path in options.traces:
        report(path, options.top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
