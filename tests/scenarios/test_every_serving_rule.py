"""Every rule of serving evidence: one simulated deployment makes it fire, one refutes it, one leaves it not assessed."""

from dataclasses import replace
from functools import cache

import pytest
from sim.registry import generate, load_all

from diagnose import pipeline
from diagnose.rules.serving_rules import SERVING_RULES, rule_of
from diagnose.serving.limit_types import Candidate

# scenario, seed, objective and what is written down (None: what the scenario draws)
FIRES = {
    "serving-kv-pool": ("serve-kv-starved", 6, "throughput", None),
    "serving-slot-cap": ("serve-slot-cap", 5, "throughput", None),
    "serving-token-budget": ("serve-token-budget", 1, "throughput", None),
    "serving-conservative": ("serve-conservative", 4, "throughput", None),
    "serving-preemption": ("serve-kv-starved", 1, "itl", {"metrics", "log", "bench"}),
    "serving-prefill-interference": ("serve-prefill-blocks-decode", 2, "itl", None),
    "serving-host-per-step": ("serve-host-bound", 2, "itl", None),
    "serving-front-end": ("serve-front-end", 1, "throughput", None),
    "serving-engines": ("serve-uneven-engines", 4, "throughput", None),
    "serving-load": ("serve-low-demand", 6, "throughput", None),
    "serving-hardware": ("serve-prefill-heavy", 2, "ttft", None),
}
REFUTED = {
    "serving-kv-pool": ("serve-slot-cap", 5, "throughput", None),
    "serving-slot-cap": ("serve-kv-starved", 6, "throughput", None),
    "serving-token-budget": ("serve-sglang", 2, "throughput", None),
    "serving-conservative": ("serve-kv-starved", 6, "throughput", None),
    "serving-preemption": ("serve-low-demand", 6, "itl", {"metrics", "log", "bench"}),
    "serving-prefill-interference": ("serve-low-demand", 6, "itl", {"metrics", "log", "bench"}),
    "serving-host-per-step": ("serve-prefill-heavy", 2, "ttft", None),
    "serving-front-end": ("serve-slot-cap", 5, "throughput", {"metrics", "log", "bench"}),
    "serving-engines": ("serve-even-engines", 1, "throughput", None),
    "serving-load": ("serve-slot-cap", 5, "throughput", None),
    "serving-hardware": ("serve-low-demand", 1, "throughput", {"trace", "log", "bench", "config"}),
}
# A benchmark's result alone says nothing of the engine; the load itself says whether prompts stall decodes only by its tail.
NOT_ASSESSED = dict.fromkeys(FIRES, ("serve-kv-starved", 6, "throughput", {"bench"})) | {
    "serving-preemption": ("serve-kv-starved", 6, "itl", {"bench"}),
    "serving-prefill-interference": ("serve-kv-starved", 6, "itl", {"log"}),
    "serving-hardware": ("serve-kv-starved", 6, "itl", {"log", "bench"}),
}
# What the verdict must be where a rule fires on sufficient evidence is the truth's; preemption only makes ITL's tail.
ONLY_POSSIBLE = {"serving-preemption"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    known = load_all()

    @cache
    def diagnosed(scenario, seed, objective, evidence):
        v = known[scenario].variant(seed)
        v = replace(v, objective=objective, evidence=frozenset(evidence) if evidence else v.evidence)
        made = generate(scenario, seed, tmp_path_factory.mktemp(scenario), v)
        e = made.evidence
        options = pipeline.Options(
            objective=objective, metrics=tuple(e.get("metrics", ())), log=tuple(e.get("log", ())), bench=tuple(e.get("bench", ())),
            model=str(e["config"][0]) if "config" in e else None,
        )  # fmt: skip
        return made.truth, pipeline.run(list(made.traces), options)

    return lambda case: diagnosed(*case[:3], tuple(sorted(case[3])) if case[3] else None)


def statuses(d, rule):
    return {h.status for h in d.hypotheses if h.rule == rule}


RULES = [r.id for r in SERVING_RULES]


def test_every_serving_rule_is_covered():
    assert set(RULES) == set(FIRES) == set(REFUTED) == set(NOT_ASSESSED)


@pytest.mark.parametrize("rule", RULES)
def test_fires(rule, run):
    truth, d = run(FIRES[rule])
    if rule in ONLY_POSSIBLE:
        assert "possible" in statuses(d, rule)
        return
    assert "supported" in statuses(d, rule)
    # it fires where the simulator's own reliefs say that it is the limit
    assert truth.sufficient
    assert d.verdict.limit in truth.limits
    # and it carries a bet that can be lost
    assert all(h.experiment is not None for h in d.hypotheses if h.rule == rule and h.status == "supported")


@pytest.mark.parametrize("rule", RULES)
def test_is_refuted_and_says_by_what(rule, run):
    _, d = run(REFUTED[rule])
    told = [h for h in d.hypotheses if h.rule == rule and h.status == "refuted"]
    assert told
    assert all(h.counter_evidence or h.statement for h in told)
    first = next((h for h in d.hypotheses if h.limit == d.verdict.limit and h.status == "supported"), None)
    assert first is None or first.rule != rule


@pytest.mark.parametrize("rule", RULES)
def test_is_not_assessed_and_says_what_would_assess_it(rule, run):
    _, d = run(NOT_ASSESSED[rule])
    told = [h for h in d.hypotheses if h.rule == rule]
    assert {h.status for h in told} == {"not_assessed"}
    assert all(h.missing for h in told)


def test_every_hypothesis_of_serving_evidence_belongs_to_a_rule(run):
    for case in (*FIRES.values(), *REFUTED.values()):
        _, d = run(case)
        assert {h.rule for h in d.hypotheses if (h.rule or "").startswith("serving-")} <= set(RULES)


def test_a_cause_without_a_page_keeps_its_own_name():
    assert (
        rule_of(Candidate("scheduling", "something_new", "possible", 0.5, "").cause)
        == "serving-something-new"
    )
