"""Sums over sequences whose lengths are not known, against enumeration."""

from itertools import product

import pytest

from diagnose.roles.numbers import StepNumbers, decode_keys, prefill_keys, windowed_sum


@pytest.mark.parametrize("total", [5, 9, 14, 20])
@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("longest", [None, 8])
def test_windowed_sum_holds_every_spread(total: int, window: int, longest: int | None) -> None:
    sequences, top = 3, longest or total
    sums = [
        sum(min(window, c) for c in lengths)
        for lengths in product(range(1, top + 1), repeat=sequences)
        if sum(lengths) == total
    ]
    equal, low, high = windowed_sum(float(total), sequences, window, longest)
    assert low == min(sums)
    assert max(sums) <= high
    assert (
        equal == min(total, sequences * window) == high
    )  # equal lengths, where they divide evenly, read most


def test_no_window_reads_everything() -> None:
    assert windowed_sum(1000.0, 4, None) == (1000.0, 1000.0, 1000.0)


def test_speculative_decode_counts_each_verified_token() -> None:
    step = StepNumbers(rows=16, decode_sequences=4, decode_tokens=16, context=4000.0)
    keys = decode_keys(step, None, None)
    assert keys is not None
    assert (keys.keys, keys.pairs) == (4000.0, 16000.0)


def test_windowed_prefill_of_one_sequence_is_exact() -> None:
    new, length, window = 40, 100, 32
    pairs = sum(min(window, p) for p in range(length - new + 1, length + 1))
    step = StepNumbers(
        rows=new, prefill_sequences=1, prefill_tokens=new, prefill_context=float(length),
        prefill_pairs=float(sum(range(length - new + 1, length + 1))),
    )  # fmt: skip
    keys = prefill_keys(step, window)
    assert keys is not None
    assert keys.pairs == pairs
    assert keys.keys == keys.low == keys.high == new + window - 1


def test_unknown_context_gives_nothing() -> None:
    assert decode_keys(StepNumbers(rows=8, decode_sequences=8, decode_tokens=8), None, None) is None
    assert prefill_keys(StepNumbers(rows=8, prefill_tokens=8), None) is None
