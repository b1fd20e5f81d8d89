"""`--fail-on`: what fails a check, and what cannot be checked."""

import pytest

from diagnose.errors import UsageError
from diagnose.settle.compare import compare
from diagnose.settle.gate import Gate, failures, parse_gate


def test_forms():
    assert parse_gate("regressed") == Gate()
    assert parse_gate("ITL:5%") == Gate("itl", 0.05)
    assert parse_gate("throughput:2.5") == Gate("throughput", 0.025)
    for bad in ("worse", "ITL", "ITL:x%", "foo:5%", "ITL:-5%"):
        with pytest.raises(UsageError, match="METRIC:PERCENT"):
            parse_gate(bad)


@pytest.fixture
def pair(served):
    def run(ttft, tpot, tok_s):
        return served(
            {"mean_ttft_ms": ttft, "mean_tpot_ms": tpot, "output_throughput": tok_s, "completed": 100}
        )

    return lambda *after: compare([run(100.0, 20.0, 500.0)], [run(*after)])


def test_any_regression_fails_also_a_mixed_one(pair):
    assert failures(Gate(), pair(100.0, 20.0, 500.0)) == []
    assert failures(Gate(), pair(80.0, 20.0, 500.0)) == []
    assert len(failures(Gate(), pair(80.0, 24.0, 500.0))) == 1
    assert len(failures(Gate(), pair(120.0, 24.0, 400.0))) == 3


def test_a_named_metric_may_get_worse_by_its_limit(pair):
    worse = pair(100.0, 22.0, 500.0)
    assert failures(parse_gate("ITL:5%"), worse)
    assert failures(parse_gate("ITL:15%"), worse) == []
    assert failures(parse_gate("TTFT:5%"), worse) == []
    # Less throughput is worse.
    assert failures(parse_gate("throughput:5%"), pair(100.0, 20.0, 450.0))
    assert failures(parse_gate("throughput:5%"), pair(100.0, 20.0, 550.0)) == []


def test_worse_within_the_noise_does_not_fail(pair):
    assert failures(parse_gate("ITL:2%"), pair(100.0, 20.6, 500.0)) == []


def test_kernel_regression_fails_the_plain_check(decode_results):
    result = compare([decode_results[0]], [decode_results[1]])
    assert failures(Gate(), result) == [result.verdict.summary]


def test_a_metric_that_was_not_measured_is_no_silent_pass(decode_results):
    result = compare([decode_results[0]], [decode_results[1]])
    with pytest.raises(UsageError, match="step time"):
        failures(parse_gate("TTFT:5%"), result)
