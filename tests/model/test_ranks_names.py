"""Ranks of the traces in one call."""

import pytest

from diagnose.errors import UsageError
from diagnose.model.ranks_names import assign_ranks


def test_recorded_ranks_are_taken() -> None:
    assert assign_ranks(["b", "a"], [1, 0]) == [1, 0]


def test_order_where_nothing_is_recorded() -> None:
    assert assign_ranks(["b", "a", "c"], [None, None, None]) == [0, 1, 2]


def test_the_rest_takes_what_is_free() -> None:
    assert assign_ranks(["a", "b", "c"], [None, 0, None]) == [1, 0, 2]


def test_pattern_wins_over_what_is_recorded() -> None:
    assert assign_ranks(["x_rank7.json", "x_rank12.json"], [0, 0], r"rank(\d+)") == [7, 12]
    assert assign_ranks(["t.3.json"], [None], r"\d+") == [3]


@pytest.mark.parametrize(
    ("names", "recorded", "pattern", "message"),
    [
        (["a", "b"], [0, 0], None, "a and b are both rank 0"),
        (["a1", "b"], [None, None], r"(\d)", "finds no number in b"),
        (["a1"], [None], "(", "is no regular expression"),
        (["ax"], [None], "(x)", "finds no number in ax"),
    ],
)
def test_unusable(names: list[str], recorded: list[int | None], pattern: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        assign_ranks(names, recorded, pattern)
    assert "\n" not in str(caught.value)
