"""How often `compare` is wrong: pairs of simulated runs with nothing changed, and with a known change planted.

    python benchmarks/compare_null.py --smoke                  # a few pairs, half a minute
    python benchmarks/compare_null.py --pairs 200              # one run a side
    python benchmarks/compare_null.py --pairs 60 --repeats 3   # repeats a side: the noise is measured

A null pair is the same run twice: new noise in every kernel and every piece of host work, and a new pace of the whole
device (0.6 % from run to run) and the whole host (2 %), as repeats on one machine show. Counted as false: any metric or
any kernel that moves the step with a verdict, or an overall verdict other than no change or inconclusive. The planted
change makes every host and device duration 8 % longer; it is found when the step time has a verdict `regressed`. A
slower kernel (one role, 10 %) is found when that role is flagged and nothing gets a verdict the other way.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "scenarios"))

STEPS = 12
FACTOR = 1.08


def diagnosed(folder: Path, world: Any, runs: range) -> list[Any]:
    """Results of some repetitions of a world, through the whole pipeline."""
    from dataclasses import replace

    from sim.kineto import write_kineto
    from sim.steps import simulate

    from diagnose import pipeline

    out = []
    for again in runs:
        path = folder / f"{again}.json"
        write_kineto(world, simulate(replace(world, again=again)).ranks[0], path)
        out.append(pipeline.run([path]))
        path.unlink()
    return out


def one(job: tuple[int, int, bool]) -> dict[str, Any]:
    """One null pair and, where asked, the same before-side against the planted change."""
    from sim.pairs import planted, world_of

    from diagnose.settle.compare import compare
    from diagnose.settle.story import flagged

    seed, repeats, with_planted = job
    from sim import rng
    from sim.pairs import FAMILIES

    row: dict[str, Any] = {"seed": seed, "family": rng.choice(FAMILIES, seed, 120)}
    with tempfile.TemporaryDirectory(prefix="compare-null-") as name:
        folder = Path(name)
        world = world_of(seed, STEPS)
        before = diagnosed(folder, world, range(repeats))
        null = compare(before, diagnosed(folder, world, range(100, 100 + repeats)))
        row["metrics"] = [
            f"{m.phase} {m.metric}" for m in null.metrics if m.verdict in ("improved", "regressed")
        ]
        row["kernels"] = [k.role for k in flagged(null)]
        row["overall"] = null.verdict.overall
        row["false"] = bool(row["metrics"] or row["kernels"]) or null.verdict.overall not in (
            "no_change",
            "inconclusive",
        )
        row["change"] = {f"{m.phase} {m.metric}": round(m.change or 0, 4) for m in null.metrics}
        if with_planted:
            found = compare(
                before, diagnosed(folder, planted(seed, FACTOR, STEPS), range(200, 200 + repeats))
            )
            heads = [m for m in found.metrics if m.headline]
            row["planted"] = [m.verdict for m in heads]
            row["found"] = any(m.verdict == "regressed" for m in heads) and not any(
                m.verdict == "improved" for m in heads
            )
            row["planted_change"] = [round(m.change or 0, 4) for m in heads]
    return row


def report(rows: list[dict[str, Any]], repeats: int) -> str:
    """The counts, and which metrics the false verdicts were of."""
    false = [r for r in rows if r["false"]]
    lines = [
        f"{len(rows)} null pairs, {repeats} run{'s' if repeats > 1 else ''} a side: "
        f"{len(false)} with any false verdict ({100 * len(false) / len(rows):.1f} %)"
    ]
    overall = Counter(r["overall"] for r in rows)
    lines.append("  overall: " + ", ".join(f"{word} {n}" for word, n in overall.most_common()))
    if false:
        what = Counter(x for r in false for x in (*r["metrics"], *(f"kernel {k}" for k in r["kernels"])))
        lines.append("  false verdicts: " + ", ".join(f"{name} {n}" for name, n in what.most_common()))
        lines.append(
            "  by family: "
            + ", ".join(f"{name} {n}" for name, n in Counter(r["family"] for r in false).most_common())
        )
    planted = [r for r in rows if "found" in r]
    if planted:
        found = sum(r["found"] for r in planted)
        lines.append(
            f"{len(planted)} planted changes of {100 * (FACTOR - 1):.0f} %: {found} found ({100 * found / len(planted):.1f} %)"
        )
        missed = Counter(r["family"] for r in planted if not r["found"])
        if missed:
            lines.append(
                "  missed by family: " + ", ".join(f"{name} {n}" for name, n in missed.most_common())
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--no-planted", action="store_true")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--out", type=Path, help="rows as JSON Lines")
    parser.add_argument("--smoke", action="store_true", help="four pairs, to see that it runs")
    given = parser.parse_args()
    pairs = 4 if given.smoke else given.pairs
    jobs = [(given.first + i, given.repeats, not given.no_planted) for i in range(pairs)]
    rows = []
    with multiprocessing.get_context("spawn").Pool(min(given.jobs, pairs)) as pool:
        for row in pool.imap_unordered(one, jobs):
            rows.append(row)
            if given.out:
                with given.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{len(rows)} of {pairs}")
    print(report(rows, given.repeats))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
