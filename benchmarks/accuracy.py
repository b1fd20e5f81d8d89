"""How often the product is right: simulated runs whose limit is computed, through the whole pipeline.

    python benchmarks/accuracy.py --smoke              # 23 variants, under two minutes
    python benchmarks/accuracy.py --set report -n 1000 # what the README quotes
    python benchmarks/accuracy.py --set calibrate -n 600 --pairs out.jsonl

Seeds of the sets never meet: `develop` 1.., `calibrate` 100001.., `trial` 200001.., `report` 300001... Prints a confusion matrix for each
objective, abstentions, a reliability table with the expected calibration error, and for the experiments how often the
predicted interval holds the simulated after-value, how wide it is, and how often the runner-up's interval fails.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "scenarios"))

from accuracy_tables import calibration, report

# The product's serving settings by cause, and the simulator's change that carries each out.
SERVING_CHANGES = {
    "kv_pool": "kv-double", "slot_cap": "slots-double", "pool_and_slots": "kv-slots-double", "token_budget": "budget-double",
    "conservative": "admit-early",
    "prefill_interference": "chunks-of-512", "host_per_step": "async-scheduling", "load": "load-double",
}  # fmt: skip

OPEN = 10.0  # stands for an interval without an upper end: it counts as wide

# `trial` is spent: its results decided how confidence is interpolated, so that nothing may be reported on it.
SETS = {"develop": 0, "calibrate": 100_000, "trial": 200_000, "report": 300_000}


SMOKE = (
    "hbm-decode", "launch-eager-decode", "compute-prefill", "host-sync-decode", "scheduling-gap-decode", "host-input", "copy-offload",
    "communication-tp", "straggler-tp", "fallback-gemm", "unfused-prefill", "graph-with-model", "nsys-decode", "nsys-opaque-graph",
    "no-shapes", "cpu-only", "mixed-step", "moe-decode", "serve-kv-starved", "serve-slot-cap", "serve-low-demand", "serve-host-bound",
    "serve-trace-only",
)  # fmt: skip


SMOKE_FIGURES = (
    "first-limit accuracy, sufficient evidence",
    "wrong at confidence >= 0.9",
    "inconclusive or right, evidence withheld",
)


def variants(chosen: str, count: int, only: list[str]) -> Iterator[tuple[str, int]]:
    """(scenario, seed) in turn over all scenarios, so that any count covers them evenly."""
    from sim.registry import load_all

    known = load_all()
    names = [n for n in known if not only or n in only or any(o in n for o in only if o not in known)]
    for i in range(count):
        yield names[i % len(names)], SETS[chosen] + i // len(names) + 1


def assess(job: tuple[str, int, bool]) -> dict[str, Any]:
    """Generate one variant, diagnose it, and compare. Job: scenario, seed, and whether confidence is told as stated."""
    from sim.registry import generate

    from diagnose.rules import calibration as told

    name, seed, stated = job
    if stated:
        told.knots = lambda kind: ()  # type: ignore[assignment]
    row: dict[str, Any] = {"scenario": name, "seed": seed}
    with tempfile.TemporaryDirectory(prefix="accuracy-") as folder:
        made = generate(name, seed, Path(folder))
        truth = made.truth
        row |= {
            "objective": truth.objective,
            "limits": list(truth.limits),
            "gains": {k: round(v, 4) for k, v in truth.gains.items() if abs(v) > 1e-4},
            "paired": round(truth.paired_gain, 4),
            "sufficient": truth.sufficient,
            "borderline": truth.borderline,
            "why": truth.notes,
            "evidence": sorted(made.variant.evidence),
        }
        start = time.process_time()
        try:
            found = diagnose(made)
        except Exception as error:  # a crash is a result to report, not a reason to stop the benchmark
            return row | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        row["cpu_s"] = round(time.process_time() - start, 3)
        row |= {
            "verdict": found.verdict.limit,
            "runner_up": found.verdict.runner_up,
            "confidence": found.verdict.confidence,
            "summary": found.verdict.summary,
            "attribution": {k: v for k, v in (found.attribution_ns or {}).items() if v},
            "hypotheses": [
                {
                    "id": h.id,
                    "rule": h.rule,
                    "limit": h.limit,
                    "status": h.status,
                    "confidence": h.confidence,
                    "score": h.score,
                }
                for h in found.hypotheses
            ],
            "experiments": list(settle(made, found)),
        }
    return row


def diagnose(made: Any) -> Any:
    """Run the product on the files a user would have."""
    from diagnose import pipeline

    e = made.evidence
    serving = made.served is not None
    options = pipeline.Options(
        objective=made.truth.objective if serving else None,
        metrics=tuple(e.get("metrics", ())),
        log=tuple(e.get("log", ())),
        bench=tuple(e.get("bench", ())),
        model=str(e["config"][0]) if "config" in e else None,
    )
    return pipeline.run(list(made.traces), options)


def settle(made: Any, found: Any) -> Iterator[dict[str, Any]]:
    """Make each proposed change in the simulator and put the outcome beside the prediction."""
    from sim.outcome import serving_ratio

    from diagnose.rules.experiments import CHANGES
    from diagnose.rules.serving_experiments import SETTINGS

    ids = {c.change: c.id for c in CHANGES}
    ids |= {SETTINGS[cause].change: change for cause, change in SERVING_CHANGES.items() if cause in SETTINGS}
    done: dict[tuple[str, str, str | None, float], float | None] = {}
    for h in found.hypotheses:
        x = h.experiment
        if (
            x is None
            or not x.baseline
            or x.prediction.low is None
            or h.status not in ("supported", "possible")
        ):
            continue
        change = ids.get(x.change)
        if change is None:
            continue
        phase = x.phase if x.phase in ("prefill", "decode", "mixed") else None
        key = (change, x.metric, phase, x.baseline)
        if key not in done:
            if made.run is not None and _of_step(x.metric):
                done[key] = _trace_ratio(made, found, change, x, phase)
            elif made.served is not None and not _of_step(x.metric):
                done[key] = serving_ratio(made.variant.serve, change, made.truth.objective)
        ratio = done.get(key)
        if ratio is None:
            continue
        other = x.under_runner_up
        yield {
            "hypothesis": h.id, "limit": h.limit, "change": change, "metric": x.metric, "ratio": round(ratio, 4),
            "low": (x.prediction.low or 0.0) / x.baseline,
            "high": x.prediction.high / x.baseline if x.prediction.high is not None else OPEN,
            "other": other.limit if other else None,
            "other_low": (other.low or 0.0) / x.baseline if other and other.high is not None else None,
            "other_high": other.high / x.baseline if other and other.high is not None else None,
            "first": h.limit == found.verdict.limit,
        }  # fmt: skip


def _trace_ratio(made: Any, found: Any, change: str, x: Any, phase: str | None) -> float | None:
    """After-value of a step's metric over the value that the prediction starts from.

    Where recording distorted the run (Python stacks) the change is made in the run as it really was, and where no step was
    found the metric is the window's: before and after are compared with each other then, as verifying it would.
    """
    from sim.outcome import trace_outcome

    world = made.variant.real or made.run.world
    outcome = trace_outcome(world, change, x.metric, phase, None if made.variant.real else made.run)
    if outcome is None:
        return None
    before, after = outcome
    only_ratio = made.variant.real is not None or all(s.provenance == "window" for s in found.steps)
    return float(after / (before if only_ratio else x.baseline))


def _of_step(metric: str) -> bool:
    """Whether a metric is read from a trace's steps (the rest are a server's)."""
    return any(word in metric for word in ("step", "batch", "kernel"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=SETS, default="develop", help="which seeds")
    parser.add_argument("-n", type=int, default=200, help="variants")
    parser.add_argument("--only", nargs="*", default=[], help="scenarios whose name contains one of these")
    parser.add_argument("--smoke", action="store_true", help="one variant of the scenarios that matter most")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--pairs", type=Path, help="write every row as JSON Lines")
    parser.add_argument(
        "--fit", type=Path, help="write the maps from stated to observed confidence (rules/calibration.json)"
    )
    parser.add_argument("--show", action="store_true", help="print every wrong verdict")
    parser.add_argument("--limits", action="store_true", help="exit 1 when a promised figure is missed")
    args = parser.parse_args()
    count = len(SMOKE) if args.smoke else args.n
    chosen = variants(args.set, count, list(SMOKE) if args.smoke else args.only)
    jobs = [(name, seed, args.fit is not None) for name, seed in chosen]
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for row in pool.imap_unordered(assess, jobs, chunksize=2):
            rows.append(row)
            if sys.stderr.isatty():
                print(f"\r{len(rows)}/{count}", end="", file=sys.stderr)
    rows.sort(key=lambda r: (r["scenario"], r["seed"]))
    if args.pairs:
        args.pairs.write_text("".join(json.dumps(r) + "\n" for r in rows))
    if args.fit:
        seeds = f"{len(rows)} variants, {args.set} seeds from {SETS[args.set] + 1}"
        args.fit.write_text(json.dumps(calibration(rows, seeds), indent=1) + "\n")
    text, missed = report(rows, show=args.show)
    print(text)
    if args.smoke:
        # Two dozen variants say whether something broke, not how well intervals and confidence are sized.
        missed = [m for m in missed if m in SMOKE_FIGURES]
    if args.limits and (missed or any("error" in r for r in rows)):
        sys.exit(1)


if __name__ == "__main__":
    main()
