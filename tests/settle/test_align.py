"""Steps of the same work, and nothing else, are compared."""

import pytest

from diagnose.settle.align import align, assign, distance, why_other_work
from diagnose.settle.compare import compare
from diagnose.settle.side import Work, sides


def work(sequences=16, tokens=16, context=1000, first=False, phase="decode"):
    return Work(phase, sequences, tokens, context, first, {"hbm": 1}, {})


def test_distance_knows_batch_tokens_and_context():
    assert distance(work(), work()) == 0
    assert distance(work(), work(context=1099)) is not None
    assert distance(work(), work(context=1101)) is None
    assert distance(work(), work(sequences=17)) is None
    assert distance(work(tokens=100), work(tokens=104)) is not None
    assert distance(work(), work(phase="prefill")) is None
    assert distance(work(context=None), work()) == 0


def test_a_first_step_has_no_gap_before_it_and_only_meets_another_first():
    assert distance(work(first=True), work()) is None
    assert distance(work(first=True), work(first=True)) == 0


def test_nearest_first_and_leftovers_join_their_nearest():
    reference = [work(context=1000), work(context=2000)]
    other = [work(context=2010), work(context=1004), work(context=1050), work(context=9000)]
    assert assign(reference, other) == [[1, 2], [0]]


def test_equal_steps_keep_their_order():
    assert assign([work()] * 4, [work()] * 4) == [[0], [1], [2], [3]]


def test_steps_of_other_work_are_left_out_and_counted(build):
    same = [build.step(i, context=32_000 + 16 * i, hbm=5_000_000) for i in range(4)]
    before = build.result([*same, build.step(4, sequences=64, hbm=9_000_000)])
    after = build.result([*same, build.step(4, sequences=4, hbm=1_000_000)])
    found = align("decode", *sides([before], [after]))
    assert found.steps == 4
    assert (found.left_before, found.left_after) == (1, 1)
    result = compare([before], [after])
    assert result.metrics[0].before == pytest.approx(5.0)
    assert [(u.side, u.kind) for u in result.unmatched] == [("before", "steps"), ("after", "steps")]


def test_longer_run_adds_certainty_and_no_bias(build):
    before = build.result([build.step(i, hbm=1_000_000 * (4 + i % 2)) for i in range(4)])
    after = build.result([build.step(i, hbm=1_000_000 * (4 + i % 2)) for i in range(40)])
    found = align("decode", *sides([before], [after]))
    mean = sum(t.total for t in found.after[0]) / found.steps
    # Means of 4, 5, 4, 5 and of each step's ten partners, which alternate as well: the first step meets the first only.
    assert mean / 1e6 == pytest.approx(4.5, abs=0.15)


def test_context_that_differs_withholds_the_verdict(build):
    before = build.result([build.step(i, context=32_000, hbm=5_000_000) for i in range(4)])
    after = build.result([build.step(i, context=128_000, hbm=9_000_000) for i in range(4)])
    assert (
        why_other_work("decode", sides([before], [after])[0].first, sides([before], [after])[1].first)[0]
        == "context"
    )
    result = compare([before], [after])
    assert result.metrics[0].verdict == "withheld"
    assert "128,000" in result.metrics[0].reason
    assert result.verdict.overall == "inconclusive"
    assert result.delta is None


def test_same_device_and_rank_on_both_sides(build):
    def two(slow_device):
        return build.result([
            build.step(i, device=d, hbm=6_000_000 if d == slow_device else 5_000_000, idle_launch=1) for d in (0, 1) for i in range(4)
        ])  # fmt: skip

    before, after = sides([two(0)], [two(1)])
    assert (before.first.device, after.first.device) == (0, 0)
