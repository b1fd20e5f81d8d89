"""Every shipped rule that reads a trace: one simulated run makes it fire, one refutes it, one leaves it not assessed."""

from functools import cache
from pathlib import Path

import pytest
from sim.registry import generate, load_all

from diagnose import pipeline
from diagnose.rules.registry import shipped
from diagnose.run.no_trace import without_trace

FIRES = {
    "compute-roof": "compute-prefill",
    "hbm-bandwidth": "hbm-decode",
    "slow-kernels": "fallback-gemm",
    "launch-gaps": "launch-eager-decode",
    "host-sync": "plan-read-back",
    "scheduling-gaps": "scheduling-gap-decode",
    "host-input": "host-input",
    "exposed-copies": "copy-offload",
    "exposed-communication": "communication-tp",
    "late-rank": "straggler-tp",
    "clock-drift": "throttled-prefill",
}
# An input pipeline refutes itself inside the steps, where none of its time lies.
REFUTED = dict.fromkeys(FIRES, "copy-offload") | {
    "exposed-copies": "compute-prefill",
    "host-input": "host-input",
    "late-rank": "nccl-one-stream",
    "clock-drift": "compute-prefill",
}
TRACE_RULES = sorted(rule.id for rule in shipped() if rule.id != "kv-capacity")


@pytest.fixture(scope="module")
def statuses(tmp_path_factory):
    load_all()

    @cache
    def found(scenario: str) -> dict[str, set[str]]:
        folder: Path = tmp_path_factory.mktemp(scenario)
        result = pipeline.run(list(generate(scenario, 1, folder).traces), pipeline.Options())
        told: dict[str, set[str]] = {}
        for h in [*result.hypotheses, *(h for rank in result.ranks or [] for h in rank.hypotheses)]:
            told.setdefault(h.rule, set()).add(h.status)
        return told

    return found


@pytest.mark.parametrize("rule", TRACE_RULES)
def test_fires(rule, statuses):
    assert "supported" in statuses(FIRES[rule])[rule]


@pytest.mark.parametrize("rule", TRACE_RULES)
def test_is_refuted(rule, statuses):
    assert "refuted" in statuses(REFUTED[rule])[rule]


@pytest.mark.parametrize("rule", TRACE_RULES)
def test_is_not_assessed_without_a_trace_and_says_what_would_assess_it(rule):
    (told,) = [h for h in without_trace("throughput") if h.rule == rule]
    assert told.status == "not_assessed"
    assert told.missing
