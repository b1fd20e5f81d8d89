"""The run's samples are found between idle ones, and that some were left out is said."""

import pytest

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.signals import derive_signals
from diagnose.serving.signals_load import of_the_run, stretches


def levels(rows, origin="log", step=10.0):
    """Evidence with (running, waiting, usage) every `step` seconds."""
    e = Evidence()
    for i, (running, waiting, usage) in enumerate(rows):
        for metric, value in (("running", running), ("waiting", waiting), ("kv_usage", usage)):
            e.add(metric, value, origin, 100.0 + i * step)
    return e


IDLE = (0, 0, 0.0)
BUSY = (20, 40, 0.97)


@pytest.mark.parametrize("after", [0, 30, 300])
def test_idle_samples_change_nothing(after):
    """However long a server idles before and after, the run reads the same."""
    s = derive_signals(levels([IDLE] * 12 + [BUSY] * 8 + [IDLE] * after))
    assert (s.running.value, s.waiting_mean.value) == (20, 40)
    assert (s.waiting_share.value, s.kv_full_share.value) == (1.0, 1.0)
    assert s.samples.value == 8
    assert f"8 of {20 + after} samples, 70 s" in s.samples.text


def test_requests_that_wait_while_none_runs_are_load():
    """A queue in front of an engine that runs nothing yet is part of the run."""
    (found,) = stretches(levels([IDLE] * 3 + [(0, 5, 0.0)] + [BUSY] * 3 + [IDLE] * 3))
    assert (found.first, found.last) == (130.0, 160.0)


def test_a_light_load_has_idle_moments():
    rows = [(1, 0, 0.01), IDLE, (2, 0, 0.02), IDLE, IDLE, (1, 0, 0.01)]
    (found,) = stretches(levels([IDLE] * 4 + rows + [IDLE] * 4))
    assert found.inside == 6


def test_of_two_loads_the_larger_counts():
    """A short warm-up of one request is another stretch."""
    s = derive_signals(levels([(1, 0, 0.01)] * 4 + [IDLE] * 5 + [BUSY] * 4 + [IDLE] * 5))
    assert (s.running.value, s.running_peak.value) == (20, 20)
    assert s.kv_usage.value == 0.97


def test_each_source_is_cut_by_its_own_clock():
    e = levels([IDLE] * 4 + [BUSY] * 4, "log")
    e.extend(levels([BUSY] * 4 + [IDLE] * 4, "metrics", 1.0))
    assert {x.origin: (x.first, x.last) for x in stretches(e)} == {
        "log": (140.0, 170.0),
        "metrics": (100.0, 103.0),
    }


def test_what_was_left_out_is_said_and_nothing_where_nothing_was():
    e = levels([BUSY] * 4)
    assert of_the_run(e) is e
    assert not e.notes
    e = levels([IDLE] * 4 + [BUSY] * 4)
    assert len(of_the_run(e).samples) == 12
    (note,) = e.notes
    assert note.code == "idle-samples"
    assert "log: 4 of 8 samples, 30 s" in note.message


def test_a_server_that_was_never_busy_has_no_run():
    assert stretches(levels([IDLE] * 6)) == []
    assert derive_signals(levels([IDLE] * 6)).running is None
