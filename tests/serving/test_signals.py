"""Signals: unknown stays unknown, levels are of the loaded part, and every threshold has both sides."""

import pytest
from serving_forms import bench_json, vllm_log

from diagnose.serving.gap_laws import GapPoint, gap_law, stalls
from diagnose.serving.limit_types import THRESHOLDS
from diagnose.serving.limits import OBJECTIVES, TraceFacts, assess
from diagnose.serving.signals import Signals, derive_signals


def test_empty_evidence_knows_nothing(signals):
    s = signals(bench=bench_json(output_throughput=0.0, request_throughput=0.0))
    assert s.known() == []
    for objective in OBJECTIVES:
        a = assess(s, objective)
        assert a.limits == ["inconclusive"]
        assert a.missing


def test_ramps_do_not_dilute(signals):
    """A run that fills, holds and drains: the levels are those it held."""
    levels = [(5, 0, 5.0, 0), (20, 0, 30.0, 0), *[(80, 40, 99.0, 0)] * 6, (20, 0, 20.0, 0), (3, 0, 3.0, 0)]
    s = signals(log=vllm_log(levels, pool=100_000))
    assert s.running.value == 80
    assert s.kv_full_share.value == 1.0
    assert s.waiting_share.value == 1.0


def level(running=60, waiting=20, usage=95.0, n=20, **kw):
    return vllm_log([(running, waiting, usage, 0)] * n, pool=100_000, **kw)


@pytest.mark.parametrize(("usage", "limit"), [(90.0, True), (89.0, False)])
def test_full_pool_edge(signals, usage, limit):
    got = assess(signals(log=level(usage=usage)), "throughput").limits
    assert (got == ["kv_capacity"]) is limit


@pytest.mark.parametrize(("full", "limit"), [(10, True), (9, False)])
def test_sustained_edge(signals, full, limit):
    levels = [(60, 20, 99.0, 0)] * full + [(60, 20, 80.0, 0)] * (20 - full)
    got = assess(signals(log=vllm_log(levels, pool=100_000)), "throughput").limits
    assert ("kv_capacity" in got) is limit


@pytest.mark.parametrize(("waits", "limit"), [(1, True), (2, False)])
def test_idle_queue_edge(signals, waits, limit):
    levels = [(10, 1 if i < waits else 0, 10.0, 0) for i in range(20)]
    got = assess(signals(log=vllm_log(levels, pool=100_000, seqs=256)), "throughput").limits
    assert (got == ["demand"]) is limit


@pytest.mark.parametrize(("running", "status"), [(16, "supported"), (17, "possible")])
def test_small_batch_edge(signals, running, status):
    a = assess(signals(log=level(running=running, waiting=0, usage=10.0, seqs=256)), "throughput")
    assert next(c for c in a.candidates if c.limit == "demand").status == status


@pytest.mark.parametrize(("share", "status"), [(0.15, "supported"), (0.149, "refuted")])
def test_between_steps_edge(signals, share, status):
    a = assess(signals(log=level(waiting=0, usage=10.0)), "itl", TraceFacts(between_steps_share=share))
    assert next(c for c in a.candidates if c.cause.startswith("host")).status == status


@pytest.mark.parametrize(("gain", "limited"), [(1.10, True), (1.09, False)])
def test_marginal_gain_edge(signals, gain, limited):
    a = assess(signals(log=level()), "throughput", TraceFacts(doubling_gain=(1.0, gain)))
    assert ("kv_capacity" in a.limits) is limited


@pytest.mark.parametrize(("rate", "status"), [(1.9, "supported"), (1.89, "possible")])
def test_keeps_up_edge(signals, rate, status):
    log = level(running=40, waiting=0, usage=10.0, seqs=256)
    a = assess(signals(log=log, bench=bench_json(request_rate=2.0, request_throughput=rate)), "throughput")
    assert next(c for c in a.candidates if c.limit == "demand").status == status


def test_full_pool_with_nobody_waiting_is_not_yet_a_limit(signals):
    a = assess(signals(log=level(waiting=0, usage=95.0)), "throughput")
    assert a.limits == ["inconclusive"]
    assert next(c for c in a.candidates if c.cause == "kv_pool").status == "possible"


def test_deferred_requests_do_not_wait_for_the_pool(signals):
    log = level().replace("Waiting: 20 reqs", "Waiting: 20 reqs, Deferred: 20 reqs")
    a = assess(signals(log=log), "throughput")
    assert "kv_capacity" not in a.limits


def test_a_plateau_is_a_cap(signals):
    s = signals(log=level(running=24, waiting=40, usage=35.0))
    assert (s.slot_cap.value, s.slot_cap.provenance) == (24, "derived")
    assert assess(s, "throughput").limits == ["scheduling"]
    floating = vllm_log([(20 + i % 7, 40, 35.0, 0) for i in range(20)], pool=100_000)
    assert signals(log=floating).slot_cap is None


def test_every_threshold_has_its_origin():
    assert all(isinstance(value, float) and len(origin) > 15 for value, origin in THRESHOLDS.values())


def test_facts_carry_provenance(signals):
    s = signals(log=level(seqs=64), bench=bench_json(max_concurrency=100, num_prompts=500, mean_tpot_ms=20.0))
    for name in s.known():
        fact = getattr(s, name)
        if hasattr(fact, "provenance"):
            assert fact.provenance in {"measured", "derived", "assumed"}, name
            assert fact.text


def test_all_objectives_answer_without_a_trace():
    for objective in OBJECTIVES:
        assert assess(Signals(), objective).limits == ["inconclusive"]


def test_gap_laws():
    flat = [GapPoint(5.0 + 0.1 * (i % 3), 8 + i % 32) for i in range(60)]
    assert gap_law(flat).law == "flat"
    same = [GapPoint(5.0 + 0.1 * (i % 3), 32) for i in range(60)]
    assert gap_law(same).law == "unclear"  # a batch that never changed shows no law
    grows = gap_law([GapPoint(2.0 + 0.05 * n, n) for n in range(10, 100)])
    assert (grows.law, grows.slope_ms, grows.fixed_ms) == (
        "per_request",
        pytest.approx(0.05),
        pytest.approx(2.0),
    )
    both = gap_law([GapPoint(1.0 + 0.1 * n, n, 10.0 * n) for n in range(10, 60)])
    assert both.law == "unclear"
    assert gap_law(flat[:5]).law == "unclear"


def test_stalls_are_rare_and_long():
    usual = [GapPoint(0.5, 8)] * 99
    assert len(stalls([*usual, GapPoint(200.0, 8)])) == 1
    assert stalls([*usual, GapPoint(20.0, 8)]) == []  # not long
    assert stalls([GapPoint(0.5, 8)] * 50 + [GapPoint(200.0, 8)] * 30) == []  # not rare
    assert stalls([]) == []


def test_cap_next_to_a_full_pool_is_named_with_it(signals):
    """36 of 40 slots run in a full pool: more pool alone would meet the cap after four requests."""
    a = assess(signals(log=level(running=36, waiting=60, usage=97.0, seqs=40)), "throughput")
    assert a.limits == ["kv_capacity", "scheduling"]
    a = assess(signals(log=level(running=30, waiting=60, usage=97.0, seqs=40)), "throughput")
    assert a.limits == ["kv_capacity"]


def test_a_closed_loop_without_graphs_is_not_called_demand(signals):
    log = level(running=4, waiting=0, usage=5.0, seqs=256)
    assert assess(signals(log=log), "throughput").limits == ["demand"]
    eager = vllm_log(
        [(4, 0, 5.0, 0)] * 20,
        pool=100_000,
        seqs=256,
        extra=["Initializing an LLM engine (v0.9.0) with config: enforce_eager=True"],
    )
    a = assess(signals(log=eager), "throughput")
    assert a.limits == ["inconclusive"]
    # an open arrival rate that is kept up with is the load's, whatever the steps cost
    bench = bench_json(request_rate=2.0, request_throughput=2.0)
    assert assess(signals(log=eager, bench=bench), "throughput").limits == ["demand"]


@pytest.mark.parametrize(("gain", "limit"), [(1.30, True), (1.29, False)])
def test_sure_gain_edge(signals, gain, limit):
    a = assess(
        signals(log=level(waiting=0, usage=10.0, seqs=256)),
        "throughput",
        TraceFacts(doubling_gain=(gain, 1.9)),
    )
    assert (a.limits == ["demand"]) is limit


@pytest.mark.parametrize(("usage", "limit"), [(80.0, True), (79.0, False)])
def test_tight_pool_edge(signals, usage, limit):
    """A pool of five requests: with one's tokens free it is as good as full."""
    log = vllm_log([(4, 30, usage, 0)] * 20, pool=10_000)
    bench = bench_json(
        max_concurrency=40, completed=10, total_input_tokens=10_000, total_output_tokens=10_000
    )
    assert (assess(signals(log=log, bench=bench), "throughput").limits == ["kv_capacity"]) is limit


def test_what_is_ruled_out_says_why(signals):
    a = assess(signals(log=level()), "throughput")
    demand = next(c for c in a.candidates if c.limit == "demand")
    assert demand.statement.startswith("not so: loaded samples with requests waiting: 100%")


@pytest.mark.parametrize(("running", "kept"), [(31, True), (30, False)])
def test_levels_of_another_load_are_left_out(make, signals, running, kept):
    """2,057 tok/s at 29.9 ms a token are 61.5 sequences decoding: a log whose levels say 30 is of another hour."""
    bench = bench_json(output_throughput=2057.0, mean_tpot_ms=29.9, max_concurrency=200, num_prompts=400)
    log = vllm_log([(running, 0, 3.0, 0)] * 10, pool=93_872)
    s = signals(log=log, bench=bench)
    assert (s.kv_usage is not None) is kept
    if not kept:
        assert s.running.value == pytest.approx(61.5, abs=0.1)
        e = make(log=log, bench=bench)
        derive_signals(e)
        assert any(n.code == "levels-of-another-load" for n in e.notes)


@pytest.mark.parametrize(("running", "limit"), [(14, True), (13, False)])
def test_free_slots_edge(signals, running, limit):
    a = assess(signals(log=vllm_log([(running, 61, 5.0, 0)] * 10, pool=2_000_000, seqs=16)), "throughput")
    assert (a.limits == ["scheduling"]) is limit
