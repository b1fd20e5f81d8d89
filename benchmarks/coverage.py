"""Share of kernel time with a cost, by source, and the biggest names without one: `python
benchmarks/coverage.py TRACE...`.

`--model`, `--tp` and `--capture` go with the traces in order (`-` for none): with a model, costs from roles are
added, and where products have recorded shapes these are hidden once and compared with what the roles say.
"""

import argparse
import sys
import time
from itertools import zip_longest
from pathlib import Path

from diagnose.costs.assign import assign_costs
from diagnose.pipeline import Analysed, Options, prepare
from diagnose.roles.assign import assign_roles
from diagnose.roles.supplement import supplement
from diagnose.serving.model_config import ModelConfig
from diagnose.serving.model_load import load_model

TOP = 8


def agreement(analysed: Analysed, model: ModelConfig, tp: int) -> str | None:
    """How much of the time of products with recorded shapes has the shape that the roles give when it is hidden."""
    con = analysed.store.con
    con.execute("CREATE OR REPLACE TABLE recorded AS SELECT * FROM cost")
    con.execute("DELETE FROM cost")
    outcome = assign_roles(analysed.store, model, tp=tp, roofs=analysed.roofs)
    same, known = analysed.store.rows(
        """SELECT sum(k.dur_ns) FILTER (c.m = r.m AND c.n = r.n AND c.k = r.k), sum(k.dur_ns)
        FROM recorded r JOIN kernel k USING (kernel_id) LEFT JOIN cost c USING (kernel_id)
        WHERE r.m IS NOT NULL AND r.source = 'shape'"""
    )[0]
    con.execute("DELETE FROM cost; INSERT INTO cost SELECT * FROM recorded; DROP TABLE recorded")
    if not known:
        return None
    if not outcome.aligned:
        return f"with shapes hidden the roles abstain: {outcome.notes[0][3]}"
    return f"with shapes hidden the roles agree for {100 * (same or 0) / known:.2f} % of the products' time"


def report(
    path: Path, top: int = TOP, model: ModelConfig | None = None, tp: int = 1, capture: Path | None = None
) -> dict[str, float]:
    """Print one trace's coverage; the shares by source (and 'total')."""
    analysed = prepare(path, Options())
    store = analysed.store
    arch = next((r.spec.arch for r in analysed.roofs.values() if r is not None), None)
    try:
        started = time.process_time()
        assign_costs(store, arch=arch)
        agreed = agreement(analysed, model, tp) if model is not None else None
        store.ensure_tables()
        supplement(store, model, tp=tp, capture=capture, roofs=analysed.roofs, arch=arch)
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
        if agreed is not None:
            print(f"    {agreed}")
        for code, message in store.rows(
            "SELECT code, message FROM ingest_note WHERE code LIKE 'roles-a%' OR code LIKE 'roles-c%'"
        ):
            print(f"    {code}: {message}")
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
    parser.add_argument("--model", action="append", default=[], help="of the traces in order, - for none")
    parser.add_argument("--tp", action="append", default=[], help="of the traces in order")
    parser.add_argument("--capture", action="append", default=[], help="of the traces in order, - for none")
    options = parser.parse_args()
    for path, model, tp, capture in zip_longest(
        options.traces, options.model, options.tp, options.capture, fillvalue="-"
    ):
        report(
            path, options.top, None if model == "-" else load_model(model), 1 if tp == "-" else int(tp),
            None if capture == "-" else Path(capture),
        )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
