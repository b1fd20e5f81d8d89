"""Pairing the collectives of two ranks by their ends: skew, drift, lost events, and what cannot be told."""

import random

import pytest

from diagnose.model.ranks_align import align

MS = 1_000_000


def _ends(count: int, seed: int, step: int = 10 * MS, layers: int = 20) -> list[int]:
    """Ends of collectives in steps of `layers`, steps and layers both uneven."""
    noise = random.Random(seed)
    now, out = 0, []
    for i in range(count):
        now += step // layers + noise.randrange(100_000) + (noise.randrange(3 * MS) if i % layers == 0 else 0)
        out.append(now)
    return out


def _jitter(ends: list[int], seed: int, by: int = 20_000) -> list[int]:
    noise = random.Random(seed)
    return [e + noise.randrange(by) - by // 2 for e in ends]


@pytest.mark.parametrize("skew", [0, -3_600 * 10**9, 17_123_456_789])
def test_whole_sequences(skew: int) -> None:
    ends = _ends(400, 1)
    found = align(ends, [e + skew for e in _jitter(ends, 2)])
    assert found is not None
    assert found.pairs == [(i, i) for i in range(400)]
    assert found.skew_ns == pytest.approx(skew, abs=3_000)
    assert found.spread_ns < 10_000


@pytest.mark.parametrize(("skip_first", "skip_second"), [(0, 37), (37, 0), (60, 25)])
def test_captures_that_start_and_end_apart(skip_first: int, skip_second: int) -> None:
    ends = _ends(300, 3)
    first, second = ends[skip_first:], [e + 5 * 10**9 for e in _jitter(ends, 4)][skip_second : 300 - 11]
    found = align(first, second)
    assert found is not None
    # Element i of the whole is i - skip_first of the first, i - skip_second of the second.
    expected = [(i - skip_first, i - skip_second) for i in range(max(skip_first, skip_second), 300 - 11)]
    assert found.pairs == expected


def test_lost_events_cost_only_themselves() -> None:
    ends = _ends(200, 5)
    lost = {50, 51, 120}
    kept = [i for i in range(200) if i not in lost]
    found = align(ends, [e + 777_777 for i, e in enumerate(_jitter(ends, 6)) if i not in lost])
    assert found is not None
    assert found.pairs == [(i, j) for j, i in enumerate(kept)]


def test_clocks_that_drift() -> None:
    """20 parts per million over 4 s are 80 us, more than the ends of one collective scatter."""
    ends = _ends(400, 7)
    found = align(ends, [round(e * (1 + 20e-6)) for e in ends])
    assert found is not None and len(found.pairs) == 400


def test_even_steps_need_a_clock() -> None:
    """With steps exactly alike, every whole step fits; a common clock decides, else equal counts."""
    ends = [step * 10 * MS + layer * 300_000 for step in range(30) for layer in range(20)]
    later = [e + 40_000 for e in ends[20:]]
    found = align(ends, later, common_clock=True)
    assert found is not None and found.pairs[0] == (20, 0) and not found.unique
    assert found.skew_ns == 40_000
    same = align(ends, [e + 123 * MS for e in ends])
    assert same is not None and same.pairs[0] == (0, 0)


@pytest.mark.parametrize("common_clock", [False, True])
def test_regular_decode(common_clock: bool) -> None:
    """Graph replays: 128 collectives a step, 60 us apart, steps all but alike. A layer or a step off nearly fits.

    Later capture by 300 collectives, and ends that scatter by 10 us on a clock 1 s ahead.
    """
    noise = random.Random(11)
    now, ends = 0, []
    for i in range(4_000):
        now += 60_000 + noise.randrange(5_000) + (2 * MS if i % 128 == 0 else 0)
        ends.append(now)
    second = [e + 10**9 for e in _jitter(ends, 12)][300:]
    found = align(ends, second, common_clock=common_clock)
    assert found is not None and found.unique
    assert found.pairs == [(i + 300, i) for i in range(3_700)]


def test_a_known_skew_pins_short_sequences() -> None:
    found = align([10 * MS, 50 * MS], [50 * MS + 900, 90 * MS + 900], prior_ns=1_000.0)
    assert found is not None and found.pairs == [(1, 0)]
    assert align([10 * MS], [700 * MS], prior_ns=0.0) is None


def test_unrelated_sequences_do_not_fit() -> None:
    found = align(_ends(300, 8), _ends(300, 9))
    assert found is None or found.spread_ns > 200_000
