"""Intervals of serving experiments: never inverted, never inside the noise unless the whole gain is, and then said."""

import pytest

from diagnose.rules.serving_experiments import NOISE, SETTINGS, experiment_for


def made(gain, unit="tok/s", baseline=1000.0):
    return experiment_for("kv_pool", "vllm", "output throughput", unit, baseline, gain, "demand")


@pytest.mark.parametrize("unit", ["tok/s", "ms"])
@pytest.mark.parametrize("gain", [(1.0, 1.0), (0.98, 1.02), (1.01, 1.3), (1.2, 1.6), (2.0, 2.5), (0.9, 1.04)])
def test_low_end_is_never_above_the_high_end(gain, unit):
    e = made(gain, unit)
    assert e.prediction.low <= e.prediction.high


def test_a_gain_beyond_noise_stays_clear_of_no_change():
    # 1.01-1.30 x of 1,000, each end 3 % wider for the run that shows it: at least 5 % up. A latency: 1000 / 1.3 = 769 to 950.
    up = made((1.01, 1.3)).prediction
    assert (up.low, up.high) == pytest.approx((1000 * (1 + NOISE), 1300 * 1.03))
    down = made((1.01, 1.3), "ms").prediction
    assert (down.low, down.high) == pytest.approx((1000 / 1.3 * 0.97, 1000 * (1 - NOISE)))


def test_a_gain_inside_the_noise_asks_for_repeats():
    e = made((0.98, 1.02))
    assert (e.prediction.low, e.prediction.high) == pytest.approx((980, 1020))
    assert "repeat both sides" in e.refuted_if
    assert "repeat both sides" not in made((1.2, 1.6)).refuted_if


def test_unknown_gain_predicts_a_direction_only():
    up = made(None).prediction
    assert (up.low, up.high) == (1000 * (1 + NOISE), None)
    down = made(None, "ms").prediction
    assert (down.low, down.high) == (None, pytest.approx(1000 * (1 - NOISE)))
    assert made((1.2, 1.6), baseline=None).prediction.low is None


def test_every_cause_has_words():
    assert all(s.change and s.cost and s.risk for s in SETTINGS.values())
    assert experiment_for("no_such_cause", "", "m", "ms", 1.0, None, None) is None
