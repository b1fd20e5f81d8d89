"""The noise model against independent computations."""

import random

import numpy as np
import pytest

from diagnose.settle.noise import SINGLE_RUN_FLOOR, block_bootstrap, estimate


def test_bootstrap_interval_is_near_the_theory_for_independent_values():
    # Mean of n = 400 normal values of sd 1: 95 % interval half-width 1.96 / 20 = 0.098.
    draw = random.Random(3)
    values = [10 + draw.gauss(0, 1) for _ in range(400)]
    low, high = block_bootstrap(values)
    assert (high - low) / 2 == pytest.approx(0.098, rel=0.2)
    assert low < np.mean(values) < high


def test_bootstrap_is_wider_for_values_that_drift_together():
    # AR(1) with 0.9: the variance of the mean is about (1 + 0.9) / (1 - 0.9) = 19 times that of independent values.
    draw = random.Random(5)
    values, x = [], 0.0
    for _ in range(400):
        x = 0.9 * x + draw.gauss(0, 1)
        values.append(x)
    low, high = block_bootstrap(values)
    shuffled = values[:]
    draw.shuffle(shuffled)
    flat_low, flat_high = block_bootstrap(shuffled)
    assert high - low > 1.8 * (flat_high - flat_low)


def test_bootstrap_repeats_exactly():
    values = [1.0, 2.0, 4.0, 3.0, 5.0]
    assert block_bootstrap(values) == block_bootstrap(values)


def test_one_quiet_run_keeps_the_floor():
    e = estimate([[10.0] * 50])
    assert (e.low, e.high) == pytest.approx((10 * (1 - SINGLE_RUN_FLOOR), 10 * (1 + SINGLE_RUN_FLOOR)))
    assert e.method == "floor"


def test_one_noisy_run_uses_its_own_noise():
    draw = random.Random(1)
    values = [10 + draw.choice((-6, 6)) for _ in range(30)]
    e = estimate([values])
    assert e.method == "bootstrap"
    assert e.high - e.low > 2 * SINGLE_RUN_FLOOR * e.value


def test_several_runs_use_students_t():
    # Means 10, 11, 12: sd 1, standard error 1 / sqrt 3, t(2) = 4.303.
    e = estimate([[9.0, 11.0], [11.0, 11.0], [12.0, 12.0]])
    assert e.value == pytest.approx(11)
    assert e.high - e.value == pytest.approx(4.303 / 3**0.5)
    assert e.method == "runs"


def test_nothing_measured_is_none():
    assert estimate([]) is None
    assert estimate([[]]) is None
