"""Student's t against the published table and a numerical integral of its density."""

from math import gamma, pi, sqrt

import numpy as np
import pytest

from diagnose.settle.student import p_value, quantile, welch


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (30, 2.042), (120, 1.980)]
)
def test_published_table_of_two_sided_95_percent(freedom, t):
    assert p_value(t, freedom) == pytest.approx(0.05, abs=5e-5)
    assert quantile(0.95, freedom) == pytest.approx(t, abs=6e-4)


@pytest.mark.parametrize("freedom", [1.5, 3.0, 7.3, 25.0, 400.0])
@pytest.mark.parametrize("t", [0.3, 1.7, 4.1])
def test_p_value_is_the_integral_of_the_density(freedom, t):
    x = np.linspace(0, t, 200_001)
    front = np.exp(np.log(1.0) + 0.0)
    if freedom < 300:
        front = gamma((freedom + 1) / 2) / (sqrt(freedom * pi) * gamma(freedom / 2))
    else:  # Stirling's ratio of gammas; the exact ones overflow
        front = sqrt(freedom / 2) * (1 - 1 / (4 * freedom)) / sqrt(freedom * pi)
    density = front * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    assert p_value(t, freedom) == pytest.approx(1 - 2 * np.trapezoid(density, x), abs=2e-6)


def test_many_degrees_of_freedom_are_the_normal_distribution():
    assert p_value(1.959964, 1e6) == pytest.approx(0.05, abs=1e-6)


def test_welch_by_hand():
    # Equal errors 3 and 3 with 2 degrees each: sqrt(18); (18^2) / (81/2 + 81/2) = 4.
    assert welch(3, 2, 3, 2) == pytest.approx((18**0.5, 4))
    assert welch(0, 2, 0, 5) == (0.0, 5)
