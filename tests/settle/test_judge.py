"""Verdicts: floors, intervals, and a family whose false verdicts stay below 5 %."""

import numpy as np
import pytest

from diagnose.settle.judge import Change, holm, judge, overall
from diagnose.settle.noise import between_error, block_bootstrap, block_length, mean_error
from diagnose.settle.student import welch


def change(before, after, se, freedom=1e6, **extra):
    return Change(before, after, se, freedom, before, **extra)


def one(c):
    return judge([c])[0]


def test_holm_steps_down():
    # Sorted 0.01, 0.02, 0.03, 0.2 against 0.05/4, 0.05/3, 0.05/2, 0.05: 0.01 <= 0.0125 falls, 0.02 > 0.0167 stops it.
    assert holm([0.03, 0.01, 0.2, 0.02]) == [False, True, False, False]
    assert holm([0.01, 0.015, 0.02]) == [True, True, True]
    assert holm([]) == []


def test_holm_with_weights_gives_what_matters_more_room():
    # Weights 3, 1, 1: 0.02 <= 0.05 x 3/5, then 0.02 <= 0.05 x 1/2, then 0.2 is above 0.05.
    assert holm([0.02, 0.02, 0.2], weights=[3, 1, 1]) == [True, True, False]
    assert holm([0.02, 0.02, 0.2]) == [False, False, False]


def test_one_run_a_side_needs_five_percent():
    assert one(change(100, 104.7, 0.1)).verdict == "no_change"
    # 4.9 is real but below the floor, and with its own noise of 0.2 it may be more than 5: neither can be claimed.
    assert one(change(100, 104.9, 0.1)).verdict == "inconclusive"
    assert one(change(100, 105.1, 0.1)).verdict == "regressed"
    assert one(change(100, 94.9, 0.1)).verdict == "improved"
    assert one(change(100, 94.9, 0.1, higher_is_better=True)).verdict == "regressed"


def test_interval_of_a_single_run_is_never_narrower_than_the_floor():
    j = one(change(100, 120, 0.1))
    assert (j.low, j.high) == pytest.approx((15, 25))
    wide = one(change(100, 120, 4.0))
    assert (wide.low, wide.high) == pytest.approx((20 - 1.96 * 4, 20 + 1.96 * 4), abs=0.01)


def test_noisy_changes_are_inconclusive_not_no_change():
    assert one(change(100, 101, 3.0)).verdict == "inconclusive"
    assert one(change(100, 108, 5.0)).verdict == "inconclusive"


def test_repeats_find_small_changes_and_ignore_tiny_ones():
    assert one(change(100, 102, 0.3, single=False)).verdict == "regressed"
    assert one(change(100, 100.9, 0.1, single=False)).verdict == "no_change"


def test_parts_are_judged_against_the_step_they_are_part_of():
    # Idle doubles from 0.1 to 0.2 ms in a 10 ms step: 1 % of it.
    part = Change(0.1, 0.2, 0.001, 1e6, 10.0)
    assert judge([part])[0].verdict == "no_change"


def test_unknown_noise_is_inconclusive_and_says_why():
    j = one(Change(1.0, 2.0, None, 1.0, 1.0, why_unknown="one step a side"))
    assert (j.verdict, j.low, j.reason) == ("inconclusive", None, "one step a side")


def test_same_recording_is_exactly_no_change():
    j = one(Change(1.0, 1.0, None, 1.0, 1.0, same=True))
    assert (j.verdict, j.low, j.high) == ("no_change", 0.0, 0.0)


def test_overall():
    assert overall(["improved", "no_change"]) == "improved"
    assert overall(["improved", "regressed", "inconclusive"]) == "mixed"
    assert overall(["no_change", "no_change"]) == "no_change"
    assert overall(["no_change", "inconclusive"]) == "inconclusive"
    assert overall([]) == "inconclusive"


def test_family_of_null_metrics_keeps_its_error_rate():
    """Three repeats a side, four independent metrics, no floor in the way: at most 5 % of families have a false verdict."""
    draw = np.random.default_rng(1)
    false = 0
    for _ in range(1000):
        changes = []
        for _ in range(4):
            a, b = draw.normal(100, 10, 3), draw.normal(100, 10, 3)
            se, freedom = welch(*between_error(list(a)), *between_error(list(b)))
            changes.append(Change(a.mean(), b.mean(), se, freedom, 100.0, single=False))
        false += any(j.verdict in ("improved", "regressed") for j in judge(changes))
    # 1,000 families at 5 % have a standard deviation of 0.7 %.
    assert false / 1000 <= 0.06


def test_single_pairs_with_run_to_run_spread_of_one_and_a_half_percent():
    """What the floor is for: runs that differ by 1.5 % each. P(|d| > 5 %) of a difference with sd 2.12 % is 1.8 %."""
    draw = np.random.default_rng(2)
    false = found = 0
    for _ in range(2000):
        a, b = 100 * (1 + 0.015 * draw.standard_normal(2))
        false += one(change(a, b, 0.2)).verdict in ("improved", "regressed")
        found += one(change(a, 1.08 * b, 0.2)).verdict == "regressed"
    assert false / 2000 == pytest.approx(0.018, abs=0.008)
    assert found / 2000 >= 0.90


def test_mean_error_is_s_over_root_n_for_short_series():
    values = [3.0, 5.0, 4.0, 8.0]
    se, freedom = mean_error(values)
    assert se == pytest.approx(np.std(values, ddof=1) / 2)
    assert freedom == 3


def test_mean_error_agrees_with_resampling():
    draw = np.random.default_rng(4)
    values, x = [], 0.0
    for _ in range(300):
        x = 0.5 * x + draw.standard_normal()
        values.append(10 + x)
    low, high = block_bootstrap(values)
    se, _ = mean_error(values)
    assert se == pytest.approx((high - low) / 2 / 1.96, rel=0.15)


def test_steps_that_alternate_average_out():
    assert block_length(40) % 2 == 0
    se, _ = mean_error([1.0, 3.0] * 20)
    assert se == 0
    assert mean_error([1.0]) is None
