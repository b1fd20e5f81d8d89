"""A pool that holds all that is offered is no confident limit, however full it runs."""

import pytest

from diagnose.serving.limit_queue import kv_candidate
from diagnose.serving.limits import TraceFacts
from diagnose.serving.signals import Fact, Signals


def signals(fits, offered):
    def fact(value, unit="requests"):
        return Fact(value, unit, "measured", "")

    return Signals(
        running=fact(34), waiting=fact(2), waiting_share=fact(0.8, "share"), waiting_peak=fact(4), kv_usage=fact(0.97, "share"),
        kv_peak=fact(1.0, "share"), kv_full_share=fact(0.9, "share"), preemptions=fact(5, "count"), fits=fact(fits), offered=fact(offered),
        samples=fact(20, "samples"),
    )  # fmt: skip


@pytest.mark.parametrize(("offered", "sure"), [(36, False), (37, False), (60, True)])
def test_confidence_follows_whether_the_load_fits(offered, sure):
    found = kv_candidate(signals(37, offered), TraceFacts(doubling_gain=(1.5, 1.8)))
    assert found.status == "supported"
    assert (found.confidence > 0.6) is sure
