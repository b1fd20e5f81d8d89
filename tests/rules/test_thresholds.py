"""A rule changes its mind exactly at its threshold; ranking and experiments follow from time alone."""

from dataclasses import replace

import pytest

from diagnose.rules import (
    communication,
    compute,
    copies,
    hbm,
    host_input,
    host_sync,
    imbalance,
    launch_gaps,
    scheduling_gaps,
)
from diagnose.rules import kernel_inefficiency as inefficiency
from diagnose.rules.base import Context
from diagnose.rules.engine import Claim, _rank, choose_experiment, confidence
from diagnose.rules.experiments import CHANGES
from diagnose.rules.host_pace import HostPace
from diagnose.rules.verdict import _second, rank_limits

WALL = 100_000_000


def context(parts=None, **facts):
    return Context(
        "decode", 0, "step_time", WALL, 10, parts or {}, {"engine": "", "has_engine_steps": True, **facts}
    )


def row(**values):
    names = [
        "idle_launch_ns", "launch_call_ns", "launches", "queue_median_ns", "kernel_median_ns", "graph_share", "idle_ns", "gap_median_ns",
        "gap_batch_slope_us", "gaps", "top_cause", "top_ns", "longest_ns", "exposed_ns", "top_kind", "top_bytes", "copies", "pageable_share",
        "wait_ns", "matched", "collectives", "median_ns", "compute_ns", "hbm_ns", "busy_ns", "unmodelled_ns", "inefficient_ns", "floor_ns",
        "alone_above_ns", "fuse_high_ns", "fuse_low_ns", "floor_alone_ns", "chain_ns", "compute_tflops", "compute_percent", "top_compute",
        "hbm_gbps", "hbm_percent", "hbm_weights_ns", "hbm_kv_ns", "top_hbm", "inefficient_percent", "chains", "chain_kernels",
        "floor_kernels", "top_inefficient", "top_inefficient_ns", "top_reason", "top_reason_ns", "fuse_best_ns", "unpack_ns", "append_ns", "compute_relief_ns", "hbm_relief_ns",
        "payload_gbps",
        "inefficient_ideal_ns", "dram_percent", "tensor_percent",
        "long_share",
    ]  # fmt: skip
    # Far from the ridge twice the roof frees half of the time near it.
    relief = {f"{k}_relief_ns": values[f"{k}_ns"] / 2 for k in ("compute", "hbm") if f"{k}_ns" in values}
    return dict.fromkeys(names) | relief | values


CASES = [
    (launch_gaps, "idle_launch_ns", "idle_share", {}),
    (scheduling_gaps, "idle_ns", "idle_share", {}),
    (host_sync, "idle_ns", "idle_share", {}),
    (host_input, "idle_ns", "idle_share", {}),
    (copies, "exposed_ns", "time_share", {}),
    (communication, "exposed_ns", "time_share", {"matched": 1}),
    (imbalance, "wait_ns", "wait_share", {}),
    (compute, "compute_ns", "time_share", {"busy_ns": WALL}),
    (hbm, "hbm_ns", "time_share", {"busy_ns": WALL}),
    (inefficiency, "alone_above_ns", "recover_share", {"busy_ns": WALL, "inefficient_ns": WALL // 2}),
]


@pytest.mark.parametrize(("module", "column", "threshold", "extra"), CASES, ids=[c[0].RULE.id for c in CASES])
def test_both_sides_of_the_threshold(module, column, threshold, extra):
    at = module.THRESHOLDS[threshold].value
    above = module.assess(row(**extra, **{column: int((at + 0.01) * WALL)}), context(), module.THRESHOLDS)
    below = module.assess(row(**extra, **{column: int((at - 0.01) * WALL)}), context(), module.THRESHOLDS)
    assert above.status == "supported"
    assert below.status == "refuted"
    assert above.share > below.share


@pytest.mark.parametrize("module", [compute, hbm, inefficiency], ids=lambda m: m.RULE.id)
def test_mostly_unmodelled_kernels_decide_nothing(module):
    at = module.THRESHOLDS["cost_share"].value
    dark = module.assess(
        row(busy_ns=WALL, unmodelled_ns=int((1 - at + 0.01) * WALL)), context(), module.THRESHOLDS
    )
    lit = module.assess(
        row(busy_ns=WALL, unmodelled_ns=int((1 - at - 0.01) * WALL)), context(), module.THRESHOLDS
    )
    assert dark.status == "possible"
    assert lit.status == "refuted"
    assert dark.quality < lit.quality


def test_queue_and_graphs_speak_against_launching():
    both = launch_gaps.assess(
        row(idle_launch_ns=WALL // 2, queue_median_ns=16_000, graph_share=0.95),
        context(),
        launch_gaps.THRESHOLDS,
    )
    neither = launch_gaps.assess(
        row(idle_launch_ns=WALL // 2, queue_median_ns=14_000, graph_share=0.85),
        context(),
        launch_gaps.THRESHOLDS,
    )
    assert len(both.counter) == 2
    assert not neither.counter
    assert both.quality < neither.quality


def test_one_rank_caps_communication():
    alone = communication.assess(row(exposed_ns=WALL // 2, matched=0), context(), communication.THRESHOLDS)
    matched = communication.assess(row(exposed_ns=WALL // 2, matched=10), context(), communication.THRESHOLDS)
    assert alone.quality == communication.SINGLE_RANK_CAP < matched.quality
    assert any("all ranks" in line for line in alone.missing)


def test_python_stacks_lower_trust_in_host_time():
    clean = launch_gaps.assess(row(idle_launch_ns=WALL // 2), context(), launch_gaps.THRESHOLDS)
    stacked = launch_gaps.assess(
        row(idle_launch_ns=WALL // 2), context(python_stacks=True), launch_gaps.THRESHOLDS
    )
    assert stacked.quality < clean.quality
    assert any("stacks" in d for d in stacked.doubts)


def test_confidence_is_half_at_a_tie_and_grows_with_the_margin():
    assert confidence(0.4, 0.4, 0.0, 1.0, 10) == 0.5
    assert confidence(0.6, 0.2, 0.0, 1.0, 10) > confidence(0.6, 0.4, 0.0, 1.0, 10) > 0.5
    assert confidence(0.2, 0.6, 0.0, 1.0, 10) < 0.5
    # What nobody saw counts like a rival; a single step is worth less than many; a distorted capture too.
    assert confidence(0.4, 0.1, 0.4, 1.0, 10) == 0.5
    assert confidence(0.6, 0.2, 0.0, 1.0, 1) < confidence(0.6, 0.2, 0.0, 1.0, 10)
    assert confidence(0.6, 0.2, 0.0, 0.6, 10) < confidence(0.6, 0.2, 0.0, 1.0, 10)


def claim_of(module, share, parts, runner_up=None):
    found = module.assess(row(), context(parts), module.THRESHOLDS)
    found.share, found.recover_ns = share, (0.4 * WALL, 0.5 * WALL)
    return Claim(module.RULE, context(parts), found, runner_up=runner_up)


def test_chosen_experiment_separates_the_runner_up():
    parts = {"compute:weights": 0.6 * WALL, "hbm:other": 0.3 * WALL, "idle_launch": 0.1 * WALL}
    rival = claim_of(hbm, 0.15, parts)
    chosen = choose_experiment(claim_of(compute, 0.3, parts, rival), "", 10)
    assert chosen.under_runner_up.limit == "hbm"
    mine, other = chosen.prediction, chosen.under_runner_up
    assert mine.high < other.low or other.high < mine.low
    # At 80 % clock compute time grows by 19-26 %: 6 ms of 10 ms a step -> at least +1 ms.
    assert mine.low > chosen.baseline


def test_batch_doubling_is_no_experiment():
    # It leaves weight-bound, launch-bound and floor-bound steps flat alike, so it cannot separate them.
    assert not any("double" in c.change or "batch x2" in c.change for c in CHANGES)


@pytest.mark.parametrize(
    ("module", "column", "sampled"),
    [(hbm, "hbm_ns", "dram_percent"), (compute, "compute_ns", "tensor_percent")],
)
def test_sampled_counters_speak_for_or_against(module, column, sampled):
    name = "dram_share" if module is hbm else "tensor_share"
    edge = 100 * module.THRESHOLDS[name].value * 0.6
    base = {"busy_ns": WALL, column: int(0.6 * WALL)}
    for_it = module.assess(row(**base, **{sampled: edge + 1}), context(), module.THRESHOLDS)
    against = module.assess(row(**base, **{sampled: edge - 1}), context(), module.THRESHOLDS)
    assert not for_it.counter
    assert len(against.counter) == 1
    assert against.quality < for_it.quality


def test_uneven_collectives_of_one_rank_are_a_question_not_a_claim():
    at = communication.THRESHOLDS["scatter"].value
    waits = communication.assess(
        row(exposed_ns=WALL // 2, matched=0, long_share=at + 0.01), context(), communication.THRESHOLDS
    )
    # 200 GB/s of payload over 8 ranks move 350 GB/s each way, of 450 the link has: the payload explains the time.
    steady = communication.assess(
        row(exposed_ns=WALL // 2, matched=0, long_share=at - 0.01, payload_gbps=200.0, median_ns=500_000),
        context(group_size=8, link_peer=450e9),
        communication.THRESHOLDS,
    )
    matched = communication.assess(
        row(exposed_ns=WALL // 2, matched=9, long_share=at + 0.01), context(), communication.THRESHOLDS
    )
    assert (waits.status, steady.status, matched.status) == ("possible", "supported", "supported")
    assert waits.counter


@pytest.mark.parametrize(
    ("payload", "median_us", "status"),
    # 60 GB/s of payload is 105 GB/s on the link, 23 % of it; an all-reduce of 8 ranks takes 15.5 us whatever it carries.
    [(200.0, 500, "supported"), (60.0, 500, "possible"), (0.5, 25, "supported"), (None, 500, "possible")],
)
def test_one_ranks_collectives_need_a_payload_that_explains_them(payload, median_us, status):
    found = communication.assess(
        row(exposed_ns=WALL // 2, matched=0, payload_gbps=payload, median_ns=1000 * median_us),
        context(group_size=8, link_peer=450e9),
        communication.THRESHOLDS,
    )
    assert found.status == status
    assert any("all ranks" in line for line in found.missing)


def test_imbalance_is_worth_the_lead_of_the_second_to_last_rank():
    free = imbalance.assess(row(wait_ns=WALL // 2), context(imbalance_relief=0.05), imbalance.THRESHOLDS)
    held = imbalance.assess(row(wait_ns=WALL // 2), context(imbalance_relief=0.9), imbalance.THRESHOLDS)
    assert free.share == pytest.approx(0.05)
    assert held.share == pytest.approx(0.5)


def test_a_gap_the_window_does_not_show_is_counted():
    # 10 steps show 9 gaps of 2 ms: 18 ms of 100; a longer run has 20 ms of 102.
    seen = context()
    cut = replace(seen, unseen_gaps=1)
    found = scheduling_gaps.assess(row(idle_ns=18_000_000), cut, scheduling_gaps.THRESHOLDS)
    assert found.share == pytest.approx(20 / 102)
    whole = scheduling_gaps.assess(row(idle_ns=18_000_000), seen, scheduling_gaps.THRESHOLDS)
    assert whole.share == pytest.approx(18 / 100)


def test_pauses_are_answered_by_the_collector_and_a_slow_host_by_another():
    stalls = imbalance.assess(row(wait_ns=WALL // 2), context(straggler_pauses=True), imbalance.THRESHOLDS)
    slow = imbalance.assess(row(wait_ns=WALL // 2), context(), imbalance.THRESHOLDS)
    assert (stalls.experiments, slow.experiments) == (("gc-freeze",), ("straggler-swap",))


def test_unpacking_for_a_product_can_go_altogether():
    # 30 ms in kernels that only dequantise, near a roof or not: fused into the product nothing of them is left.
    found = inefficiency.assess(row(busy_ns=WALL, unpack_ns=30_000_000), context(), inefficiency.THRESHOLDS)
    assert found.status == "supported"
    assert found.share == pytest.approx(0.3)
    assert found.recover_ns == (pytest.approx(21_000_000), pytest.approx(30_000_000))


def claims_of(*pairs, host, **facts):
    seen = replace(context(**facts), host=HostPace(host, 300))
    made = []
    for module, share in pairs:
        found = module.assess(row(), seen, module.THRESHOLDS)
        found.status, found.share = "supported", share
        made.append(Claim(module.RULE, seen, found))
    _rank(made)
    return {c.rule.limit: c for c in made}


def test_a_faster_device_frees_no_more_than_the_host_leaves():
    # The host works 95 % of the step: twice the bandwidth frees 5 %, not 30, and launching with 20 % comes first.
    found = claims_of((hbm, 0.30), (launch_gaps, 0.20), host=0.95)
    assert found["hbm"].found.share == pytest.approx(0.05)
    assert found["launch_overhead"].confidence > 0.5 > found["hbm"].confidence
    # A host that keeps ahead holds nothing back.
    assert claims_of((hbm, 0.30), (launch_gaps, 0.20), host=0.5)["hbm"].found.share == 0.30


def test_stacks_that_slow_the_host_make_its_lead_a_question():
    # Without stacks the host may take half: 95 % less 47.5 % leaves no launch gaps beside the memory's 30 %.
    found = claims_of((hbm, 0.30), (launch_gaps, 0.40), host=0.95, python_stacks=True)
    assert found["launch_overhead"].found.status == "possible"
    assert any("with_stack=False" in line for line in found["launch_overhead"].found.missing)
    clear = claims_of((hbm, 0.05), (launch_gaps, 0.80), host=0.95, python_stacks=True)
    assert clear["launch_overhead"].found.status == "supported"


def test_near_the_ridge_the_other_roof_binds_before_half_is_gone():
    # 60 ms near the compute roof of which doubling it frees 12: the memory roof lies at 80 % of the time.
    found = compute.assess(
        row(busy_ns=WALL, compute_ns=60_000_000, compute_relief_ns=12_000_000), context(), compute.THRESHOLDS
    )
    assert found.share == pytest.approx(0.12)
    assert "60 %" in found.statement


def test_what_the_host_holds_back_is_what_comes_next():
    # 30 % to free from memory once launching no longer sets the pace: next, though now it would free 5 %.
    found = claims_of((hbm, 0.30), (launch_gaps, 0.60), host=0.95)
    ranked, wall, _ = rank_limits(list(found.values()), 0)
    assert [r.limit for r in ranked] == ["launch_overhead", "hbm"]
    assert _second(ranked[0], ranked, wall).limit == "hbm"
    assert ranked[1].later_ns == pytest.approx(0.30 * WALL)
