"""Nothing changed: verdicts must not appear. Something planted: it must. A seeded part of benchmarks/compare_null.py.

One run a side, judged with the single-run floor; `benchmarks/compare_null.py` has the long run and the one with repeats.
"""

from dataclasses import replace

import numpy as np
import pytest
from sim.pairs import planted, world_of

from diagnose.settle.compare import compare
from diagnose.settle.story import flagged

SEEDS = {1: "hbm-decode", 4: "host-sync-decode"}


@pytest.mark.parametrize("seed", list(SEEDS))
def test_simulated_pairs_through_the_whole_pipeline(traced, seed):
    world = world_of(seed, 6)
    before = traced(replace(world, again=0))
    null = compare([before], [traced(replace(world, again=100))])
    assert [m.verdict for m in null.metrics if m.verdict in ("improved", "regressed")] == []
    assert flagged(null) == []
    assert null.verdict.overall in ("no_change", "inconclusive")
    found = compare([before], [traced(replace(planted(seed, 1.08, 6), again=200))])
    head = next(m for m in found.metrics if m.headline)
    assert head.verdict == "regressed"
    assert found.verdict.overall == "regressed"


def run(build, draw, device, host, pace=1.0):
    """Twelve steps of 6 ms of kernels and 2 ms of idle, each with its own noise, on a run of its own pace."""
    kernels = 6e6 * pace * (1 + device * draw.standard_normal())
    idle = 2e6 * pace * (1 + host * draw.standard_normal())
    rows = []
    for i in range(12):
        rows.append(build.step(
            i, context=32_000 + 16 * i, hbm=round(kernels * (1 + 0.003 * draw.standard_normal())),
            idle_launch=round(idle * (1 + 0.05 * draw.standard_normal())),
        ))  # fmt: skip
    return build.result(rows)


@pytest.mark.parametrize(
    ("repeats", "device", "host"), [(1, 0.006, 0.02), (1, 0.015, 0.03), (3, 0.006, 0.02), (5, 0.015, 0.04)]
)
def test_two_hundred_null_pairs_and_planted_changes(build, repeats, device, host):
    """Run-level spread as the simulator's (0.6 % device, 2 % host) and twice it; one run, three and five a side."""
    draw = np.random.default_rng(11)
    false = found = 0
    for _ in range(200):
        before = [run(build, draw, device, host) for _ in range(repeats)]
        null = compare(before, [run(build, draw, device, host) for _ in range(repeats)])
        false += any(m.verdict in ("improved", "regressed") for m in null.metrics)
        slow = compare(before, [run(build, draw, device, host, 1.08) for _ in range(repeats)])
        found += slow.metrics[0].verdict == "regressed"
    assert false <= 10, "at most 5 % of 200 pairs with any false verdict"
    assert found >= 180, "8 % is found in at least 90 % of 200 pairs"
