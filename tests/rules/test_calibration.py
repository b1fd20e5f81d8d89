"""From stated to told confidence."""

import json
from importlib import resources

import pytest

from diagnose.rules import calibration
from diagnose.rules.calibration import CEILING, beside, observed


@pytest.fixture
def fitted(monkeypatch):
    monkeypatch.setattr(calibration, "knots", lambda kind: ((0.5, 0.8), (0.7, 0.9), (0.9, 0.99)))


def test_linear_between_knots_and_from_nothing(fitted):
    assert observed(0.25, "trace") == pytest.approx(0.4)
    assert observed(0.5, "trace") == pytest.approx(0.8)
    assert observed(0.6, "trace") == pytest.approx(0.85)


def test_no_claim_is_told_above_the_ceiling(fitted):
    assert observed(0.9, "trace") == observed(1.0, "trace") == CEILING


def test_without_a_map_confidence_is_as_stated(monkeypatch):
    monkeypatch.setattr(calibration, "knots", lambda kind: ())
    assert observed(0.63, "serving") == 0.63
    assert not calibration.calibrated("serving")


def test_what_is_not_first_gets_what_the_first_leaves():
    # A tie (stated 0.5) gets all of the 0.2 that the first one leaves, half as near half of it.
    assert beside(0.5, 0.8) == pytest.approx(0.2)
    assert beside(0.25, 0.8) == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["trace", "serving"])
def test_the_shipped_maps_rise_and_say_where_they_are_from(kind):
    text = resources.files("diagnose.rules").joinpath("calibration.json").read_text()
    shipped = json.loads(text)
    assert "calibrate seeds" in shipped["source"]
    stated, right = zip(*calibration.knots(kind), strict=True)
    assert list(stated) == sorted(stated) and list(right) == sorted(right)
    assert shipped[kind]["claims"] == sum(pool[3] for pool in shipped[kind]["pools"])
