"""The change splits exactly: buckets and roles add up to the total, whatever the numbers."""

import random

import pytest

from diagnose import contract as c
from diagnose.settle.compare import compare
from diagnose.settle.side import OBSERVED
from diagnose.settle.split import exact


def test_rounding_goes_to_the_largest_part():
    # 1/3 + 1/3 + 10 1/3 = 11: rounded parts 0 + 0 + 10 miss one, which the largest gets.
    assert exact({"a": 1 / 3, "b": 1 / 3, "c": 31 / 3}, {"a": 2.0, "b": 0.0, "c": 3.0}) == {
        "a": (0, 2),
        "b": (0, 0),
        "c": (11, 3),
    }


def random_result(build, draw, steps):
    rows = []
    for i in range(steps):
        buckets = {b: draw.randrange(0, 3_000_000) for b in c.BUCKETS}
        kernels = [
            b for b in ("compute", "hbm", "floor", "inefficient", "unmodelled", "communication", "comm_wait")
        ]
        left = sum(buckets[b] for b in kernels)
        roles = {}
        for role in ("gemm", "attention", "nccl", "norm"):
            roles[role] = draw.randrange(0, left + 1)
            left -= roles[role]
        roles["elementwise"] = left
        rows.append(build.step(i, roles=roles, **buckets))
    return build.result(rows)


@pytest.mark.parametrize("seed", range(25))
def test_parts_add_up_to_the_nanosecond(build, seed):
    draw = random.Random(seed)
    before, after = (
        random_result(build, draw, draw.randrange(2, 9)),
        random_result(build, draw, draw.randrange(2, 9)),
    )
    delta = compare([before], [after]).delta
    assert delta.per == "step"
    assert delta.total_ns == delta.after_ns - delta.before_ns
    assert sum(delta.buckets.values()) == delta.total_ns
    assert sum(r.change_ns for r in delta.roles) == delta.total_ns
    assert sum(delta.buckets_before.values()) == delta.before_ns == sum(r.before_ns for r in delta.roles)
    assert sum(delta.buckets_after.values()) == delta.after_ns == sum(r.after_ns for r in delta.roles)
    assert set(delta.buckets) == set(c.BUCKETS)


def test_per_step_means_are_plain_arithmetic(build):
    before = build.result(
        [build.step(i, hbm=5_000_000, idle_launch=1_000_000, roles={"gemm": 5_000_000}) for i in range(4)]
    )
    after = build.result(
        [build.step(i, hbm=5_000_000, idle_launch=3_000_000, roles={"gemm": 5_000_000}) for i in range(6)]
    )
    delta = compare([before], [after]).delta
    assert (delta.before_ns, delta.after_ns) == (6_000_000, 8_000_000)
    assert delta.buckets["idle_launch"] == 2_000_000
    assert {r.role: r.change_ns for r in delta.roles} == {"gemm": 0, "idle_launch": 2_000_000}


def test_unobserved_time_counts_for_nothing(build):
    before = build.result([build.step(i, hbm=5_000_000, unobserved=50_000_000) for i in range(4)])
    after = build.result([build.step(i, hbm=5_000_000, unobserved=400_000_000) for i in range(4)])
    result = compare([before], [after])
    assert result.delta.total_ns == 0
    assert result.verdict.overall == "no_change"


def test_another_batch_is_counted_per_token(build):
    # 8 ms for 16 tokens is 0.5 ms a token; 12 ms for 64 is 0.1875.
    before = build.result([build.step(i, sequences=16, context=16_000, hbm=8_000_000) for i in range(5)])
    after = build.result([build.step(i, sequences=64, context=64_000, hbm=12_000_000) for i in range(5)])
    result = compare([before], [after])
    assert (result.delta.per, result.delta.before_ns, result.delta.after_ns) == ("token", 500_000, 187_500)
    assert {m.metric: m.verdict for m in result.metrics} == {
        "step time": "regressed",
        "time per token": "improved",
    }
    assert result.verdict.overall == "mixed"
    assert "but" in result.verdict.summary
    assert result.batching["batch"] == [16.0, 64.0]


def test_speculation_counts_accepted_tokens(build):
    def run(accepted, hbm):
        made = build.result([build.step(i, hbm=hbm) for i in range(6)])
        made.phases[0].tokens = {"prefill": 0, "decode": 96, "accepted": accepted}
        return made

    # The step grows by a fifth, and keeps 2.5 times the tokens: 10 ms / 16 = 0.625 ms, 12 / 40 = 0.3 ms.
    result = compare([run(96, 10_000_000)], [run(240, 12_000_000)])
    token = next(m for m in result.metrics if m.metric == "time per token")
    assert (token.before, token.after) == pytest.approx((0.625, 0.3))
    assert token.verdict == "improved"
    assert result.verdict.overall == "improved"


def test_older_results_without_roles_still_add_up(build):
    before = build.result([build.step(i, hbm=5_000_000, copy=7, roles={}) for i in range(4)])
    after = build.result([build.step(i, hbm=6_000_000, copy=9, roles={}) for i in range(4)])
    delta = compare([before], [after]).delta
    assert sum(r.change_ns for r in delta.roles) == delta.total_ns == 1_000_002
    assert set(OBSERVED) < set(c.BUCKETS)
