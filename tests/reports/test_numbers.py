"""Three significant digits, one unit a column."""

import pytest

from diagnose.reports import numbers as n


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (84.531, "84.5"),
        (1465.2, "1,470"),
        (9.996, "10.0"),
        (0.99951, "1.00"),
        (0.012345, "0.0123"),
        (0, "0"),
        (-3.14159, "-3.14"),
        (123456.0, "123,000"),
        (999.6, "1,000"),
        (1.0, "1.00"),
        (2e-7, "2.00e-07"),
        (None, "unknown"),
        (float("nan"), "unknown"),
        (float("inf"), "unknown"),
    ],
)
def test_sig3(value: float | None, text: str) -> None:
    assert n.sig3(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.8634, "86.3 %"),
        (0.9999, "> 99.9 %"),
        (0.0001, "< 0.1 %"),
        (1.0, "100 %"),
        (0.0, "0 %"),
        (0.023, "2.30 %"),
        (None, "unknown"),
        (0.9994, "99.9 %"),
        (13.5, "1,350 %"),
    ],
)
def test_percent_never_rounds_to_all_or_nothing(share: float | None, text: str) -> None:
    assert n.percent(share) == text


def test_a_column_has_one_unit() -> None:
    unit = n.time_unit([84_500_000, 12_000, None])
    assert (unit.name, unit.text(84_500_000), unit.text(12_000), unit.text(None)) == (
        "ms",
        "84.5",
        "0.0120",
        "unknown",
    )


@pytest.mark.parametrize(
    ("low", "high", "unit", "text"),
    [
        (14.6, 15.44, "ms", "14.6–15.4 ms"),
        (None, 3.0, "ms", "at most 3.00 ms"),
        (3.0, None, "ms", "at least 3.00 ms"),
        (None, None, "ms", "unknown"),
        (-2.0, 1.0, "ms", "-2.00 to 1.00 ms"),
        (14.6e6, 15.4e6, "ns", "14.6–15.4 ms"),
        (0.1, 0.2, "share", "10.0–20.0 %"),
        (1.85, 1.95, "ratio", "1.85–1.95 ×"),
        (2.0, 2.0, "s", "about 2.00 s"),
    ],
)
def test_interval(low: float | None, high: float | None, unit: str, text: str) -> None:
    assert n.interval(low, high, unit) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.831, "share", "83.1 %"),
        (10_000, "ns", "10.0 µs"),
        (25.5e9, "B", "25.5 GB"),
        (3219, "count", "3,219"),
        (3219.0, "kernels", "3,219 kernels"),
        ("yes", "", "yes"),
        (None, "ms", "unknown"),
        (1.5, "ratio", "1.50 ×"),
        (27.66, "GB/s", "27.7 GB/s"),
        (6.0, "copies", "6 copies"),
        (1.0, "copies", "1 copy"),
        (1.0, "gaps", "1 gap"),
        (44.2, "gaps", "44.2 gaps"),
        (0.0061, "GB", "6.10 MB"),
        (70_400.0, "µs", "70.4 ms"),
        (0.000976, "ms", "976 ns"),
        (2560.0, "GB/s", "2,560 GB/s"),
        (85.0, "% of observed time", "85.0 % of observed time"),
    ],
)
def test_quantity(value: float | str | None, unit: str, text: str) -> None:
    assert n.quantity(value, unit) == text
