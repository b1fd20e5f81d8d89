"""The closed loop on this processor: calibrate, capture, diagnose, predict, change, capture, verify.

    python benchmarks/closed_loop.py [--only NAME ...] [--repeat N] [--work FOLDER] [--python PY]

Six changes to `sample_traces/tiny_decoder.py`. For each, the before-run is captured and diagnosed; the prediction
is the sum over the diagnosed parts of the phase (`diagnose.rules.parts`) of time x the part's response to the
change; before- and after-runs are captured in turn, `--repeat` of each, and `diagnose verify`'s own judge settles
the bet. The runner-up's interval is what the same change would do if another resource were the limit. Responses are
physics or this machine's calibration, given with each change. Prints intervals, measured values and verdicts as they
come out. Needs torch; about five minutes.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from diagnose import pipeline
from diagnose.collectors import calibrate_load, process
from diagnose.collectors.torch_launch import TorchCapture, capture_torch
from diagnose.contract import Diagnosis, Experiment, Interval, RunnerUpPrediction
from diagnose.devices import Roofs
from diagnose.devices.device_file import load_device_file
from diagnose.errors import InputError
from diagnose.rules.experiments import Factor
from diagnose.rules.parts import parts_by_phase
from diagnose.settle import verify

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "sample_traces" / "tiny_decoder.py"
MS = 1e6
FLAT: Factor = (0.95, 1.05)
QUIET = 0.15  # share of the processor that others may use during a capture; more, and it is taken again


@dataclass(frozen=True)
class Loop:
    """One change. `response(part, roofs)` gives the factors on a part; `rival` those if the runner-up were the limit.

    `added_ms`: time that the change adds outside every part. `roofs` maps thread counts to measured roofs.
    """

    name: str
    why: str
    before: str
    after: str
    response: Callable[[str, "Machine"], Factor]
    rival_limit: str
    rival: Callable[[str, "Machine"], Factor]
    threads: tuple[int, int] = (1, 1)
    added_ms: Factor = (0.0, 0.0)
    rival_added_ms: Factor = (0.0, 0.0)
    warmup: int = 5
    steps: int = 20


@dataclass
class Machine:
    """Measured roofs by thread count."""

    files: dict[int, Path]
    roofs: dict[int, Roofs] = field(default_factory=dict)

    def rate_ratio(self, size: float = 16e6) -> float:
        """Memory rate of two threads over that of one."""
        two, one = self.roofs[2].bandwidth(size), self.roofs[1].bandwidth(size)
        return two / one if one and two else 1.0


def kernels(part: str) -> bool:
    return part.split(":", maxsplit=1)[0] in ("compute", "hbm", "inefficient", "unmodelled")


def by_kind(
    weights: Factor, cache: Factor, other: Factor, floor: Factor = FLAT, idle: Factor = FLAT
) -> Callable[[str, Machine], Factor]:
    """Factors by what a kernel part streams; floors and gaps apart."""

    def response(part: str, machine: Machine) -> Factor:
        if part.startswith("floor"):
            return floor
        if not kernels(part):
            return idle
        kind = part.split(":")[1] if ":" in part else "other"
        return {"weights": weights, "kv": cache}.get(kind, other)

    return response


def more_threads_undone(part: str, machine: Machine) -> Factor:
    """From two threads to one: what runs on both slows by the ratio of the measured rates; small operators do not."""
    if part.startswith("floor") or not kernels(part):
        return (0.85, 1.1)
    ratio = machine.rate_ratio()
    return (0.85 * ratio, 1.15 * ratio) if part.endswith("weights") else (0.9, 1.15 * max(ratio, 1.8))


TINY = "--dtype fp32 --hidden 64 --ffn 128 --heads 4 --kv-heads 4 --layers 6 --vocab 512 --unfused"

LOOPS = (
    Loop(
        "batch-x2",
        "weights are read once a step whatever the batch: products flat below the ridge, the rest grows at most twofold",
        "--dtype bf16 --batch 4", "--dtype bf16 --batch 8",
        by_kind(weights=(0.95, 1.12), cache=(1.0, 2.1), other=(0.95, 2.1)),
        "compute", by_kind(weights=(1.8, 2.1), cache=(1.0, 2.1), other=(0.95, 2.1)),
    ),
    Loop(
        "weights-half",
        "bf16 to int8 weights: half the bytes; unpacking may cost up to half of that gain",
        "--dtype bf16 --batch 1", "--dtype int8 --batch 1",
        by_kind(weights=(0.48, 0.75), cache=FLAT, other=(0.9, 1.1)),
        "launch_overhead", by_kind(weights=FLAT, cache=FLAT, other=FLAT),
    ),
    Loop(
        "context-x8",
        "attention reads the cache once a step: its time grows with the tokens held (143 to 1,039: x7.3, up to 30 % more once they leave the near caches)",
        "--dtype bf16 --batch 8", "--dtype bf16 --batch 8 --prompt 1024",
        by_kind(weights=FLAT, cache=(5.5, 9.5), other=(0.95, 1.1)),
        "hbm of the weights", by_kind(weights=FLAT, cache=FLAT, other=FLAT),
    ),
    Loop(
        "fewer-threads",
        "two threads to one: streaming slows by the ratio of the measured rates, operators at their floor do not",
        "--dtype fp32 --batch 1", "--dtype fp32 --batch 1",
        more_threads_undone,
        "launch_overhead", by_kind(weights=FLAT, cache=FLAT, other=FLAT),
        threads=(2, 1),
    ),
    Loop(
        "compile-tiny-ops",
        "fused operators: most launches and floors go, what is left is a call for each fused piece",
        TINY, f"{TINY} --compile",
        by_kind(weights=(0.3, 1.05), cache=(0.3, 1.05), other=(0.05, 0.6), floor=(0.05, 0.5), idle=(0.05, 0.5)),
        "kernel_inefficiency", by_kind(weights=(0.3, 0.9), cache=(0.3, 0.9), other=(0.3, 0.9), floor=FLAT),
        warmup=25,
    ),
    Loop(
        "wait-added",
        "a blocking wait of 3 ms in each of four layers (as a synchronisation is): 12 ms more, and up to 0.3 ms a wait of waking late",
        "--dtype fp32 --batch 1", "--dtype fp32 --batch 1 --wait-ms 3",
        by_kind(weights=FLAT, cache=FLAT, other=FLAT),
        "hidden behind other work", by_kind(weights=FLAT, cache=FLAT, other=FLAT),
        added_ms=(12.0, 13.2),
    ),
)  # fmt: skip


class Bench:
    """Runs captures in a work folder."""

    def __init__(self, work: Path, python: str, repeat: int) -> None:
        self.work, self.python, self.repeat = work, python, repeat
        self.machine = Machine({})

    def calibrate(self, counts: set[int]) -> None:
        """Roofs for those thread counts, unless the work folder holds them already."""
        for threads in sorted(counts):
            path = self.work / f"cpu{threads}.toml"
            if not path.is_file():
                line = [self.python, "-m", "diagnose.collectors.calibrate", str(path), str(threads)]
                if process.run(line, timeout_s=600, quiet=True) != 0:
                    raise InputError(f"calibration with {threads} threads failed")
            self.machine.files[threads] = path
            self.machine.roofs[threads] = Roofs.of(load_device_file(path))

    def capture(self, name: str, arguments: str, threads: int, loop: Loop) -> Path:
        """One capture; taken again, up to five times, while others use the processor."""
        length = str(loop.warmup + loop.steps + 5)
        line = (str(SCRIPT), *arguments.split(), "--threads", str(threads), "--steps", length)
        for attempt in range(5):
            folder = self.work / f"{name}.run"
            before, begin = calibrate_load.processor_busy(), time.perf_counter()
            spent = os.times()
            capture_torch(
                TorchCapture(line, folder, loop.warmup, loop.steps, self.python, 600.0, stop=True, force=True)
            )
            ours = sum(os.times()[2:4]) - sum(spent[2:4])
            share = others_share(before, ours, time.perf_counter() - begin)
            # What runs on a core that we leave free hardly disturbs us.
            if (
                self.repeat == 1
                or share <= QUIET + 1 - threads / len(os.sched_getaffinity(0))
                or attempt == 4
            ):
                break
        print(f"    {name}: others used {share:.0%} of the processor", file=sys.stderr)
        return folder

    def run(self, loop: Loop) -> dict[str, object]:
        """Before- and after-runs in turn, so that a drift of the machine meets both; the middle before-run bets."""
        machine = self.machine
        befores, after = [], []
        for n in range(self.repeat):
            for side, found in (("before", befores), ("after", after)):
                threads = loop.threads[0 if side == "before" else 1]
                line = loop.before if side == "before" else loop.after
                folder = self.capture(f"{loop.name}-{side}{n}", line, threads, loop)
                found.append(diagnose(folder, machine.files[threads]))
        befores.sort(key=lambda pair: step_ms(pair[0]))
        result, parts = befores[len(befores) // 2]
        steps = next(p.steps for p in result.phases if p.phase == "decode")
        low, high = predict(parts, lambda p: loop.response(p, machine), loop.added_ms, steps)
        rival = predict(parts, lambda p: loop.rival(p, machine), loop.rival_added_ms, steps)
        bet = make_bet(result, loop, (low, high), rival)
        settled = verify.settle(bet, [d for d, _ in after])
        return {
            "name": loop.name, "limit": result.verdict.limit, "why": loop.why, "before_ms": bet.baseline.get("value"),
            "all_before_ms": [round(step_ms(d), 3) for d, _ in befores],
            "all_after_ms": [round(step_ms(d), 3) for d, _ in after],
            "predicted_ms": [round(low, 3), round(high, 3)], "runner_up": loop.rival_limit,
            "runner_up_ms": [round(rival[0], 3), round(rival[1], 3)], "measured": settled.measured,
            "verdict": settled.verdict, "reason": settled.reason,
        }  # fmt: skip


def step_ms(result: Diagnosis) -> float:
    """Mean decode step in milliseconds."""
    values = verify.per_step_ms(result, "step time", "decode")
    return sum(values) / len(values)


def others_share(before: tuple[float, float] | None, ours: float, wall: float) -> float:
    after = calibrate_load.processor_busy()
    if before is None or after is None:
        return 0.0
    cores = len(os.sched_getaffinity(0))
    busy = (after[0] - before[0]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, (busy - ours) / (wall * cores))


def diagnose(folder: Path, device: Path) -> tuple[Diagnosis, dict[str, float]]:
    """The result and the decode phase's parts in ns."""
    options = pipeline.Options(device=str(device))
    analysed = pipeline.prepare(folder / "trace.json.gz", options)
    try:
        pipeline.finish(analysed, options)
        result = pipeline.conclude(analysed, options)
        parts = parts_by_phase(analysed.store)
    finally:
        analysed.store.close()
    return result, next(v for (_, phase), v in parts.items() if phase == "decode")


def predict(
    parts: dict[str, float], response: Callable[[str], Factor], added_ms: Factor, steps: int
) -> tuple[float, float]:
    """Milliseconds a step after the change: the sum over parts of time x factor, and what the change adds."""
    low, high = (sum(ns * response(part)[side] for part, ns in parts.items()) / steps / MS for side in (0, 1))
    return low + added_ms[0], high + added_ms[1]


def make_bet(result: Diagnosis, loop: Loop, prediction: Factor, rival: Factor) -> verify.Bet:
    """A bet in the form that `diagnose verify` settles."""
    experiment = Experiment(
        change=f"{loop.before} -> {loop.after}", command=None, metric="step time",
        prediction=Interval(low=prediction[0], high=prediction[1], unit="ms"),
        under_runner_up=RunnerUpPrediction(limit=loop.rival_limit, low=rival[0], high=rival[1]),
        refuted_if="the step time lies outside the prediction", cost="a minute", phase="decode",
    )  # fmt: skip
    values = verify.per_step_ms(result, "step time", "decode")
    mine = verify.estimate([values])
    return verify.Bet(
        schema=verify.SCHEMA, hypothesis=loop.name, limit=result.verdict.limit, phase="decode",
        objective="step_time", statement=loop.why, experiment=experiment,
        baseline={"value": mine.value if mine else None}, context=verify.context_of(result, "decode"), source=[],
    )  # fmt: skip


def show(row: dict[str, object]) -> None:
    measured = row["measured"] if isinstance(row["measured"], dict) else {}
    low, high = row["predicted_ms"]  # type: ignore[misc]
    r_low, r_high = row["runner_up_ms"]  # type: ignore[misc]
    print(f"{row['name']}: {row['verdict'].upper()}")  # type: ignore[union-attr]
    print(f"  before {row['before_ms']:.2f} ms, limited by {row['limit']}; {row['why']}")
    print(f"  predicted {low:.2f}-{high:.2f} ms; if {row['runner_up']}: {r_low:.2f}-{r_high:.2f} ms")
    if measured:
        print(f"  measured {measured['value']:.2f} ms ({measured['low']:.2f}-{measured['high']:.2f})")
    print(f"  runs before {row['all_before_ms']}, after {row['all_after_ms']} ms")
    print(f"  {row['reason']}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Calibrate, capture, diagnose, predict, change, capture, verify."
    )
    parser.add_argument("--only", nargs="*", choices=[loop.name for loop in LOOPS])
    parser.add_argument("--repeat", type=int, default=3, help="before- and after-runs of each change")
    parser.add_argument("--work", type=Path, help="keep calibrations and runs here")
    parser.add_argument("--python", default=sys.executable, help="interpreter for the captured script")
    parser.add_argument("--json", type=Path, help="write the results here too")
    parser.add_argument("--smoke", action="store_true", help="one change once, to see that it runs")
    args = parser.parse_args()
    if args.smoke:
        args.only, args.repeat = ["wait-added"], 1
    with tempfile.TemporaryDirectory() as scratch:
        work = args.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        bench = Bench(work, args.python, args.repeat)
        chosen = [loop for loop in LOOPS if not args.only or loop.name in args.only]
        bench.calibrate({threads for loop in chosen for threads in loop.threads})
        rows = []
        for loop in chosen:
            rows.append(bench.run(loop))
            show(rows[-1])
    confirmed = sum(1 for row in rows if row["verdict"] == "confirmed")
    print(f"{confirmed} of {len(rows)} confirmed")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
