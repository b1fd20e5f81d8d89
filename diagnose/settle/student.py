"""Student's t without a statistics package: two-sided p-values and quantiles."""

from math import exp, inf, lgamma, log, log1p, sqrt
from statistics import NormalDist

_NORMAL = NormalDist()
# Above this many degrees of freedom t and normal agree to 4 digits.
_NORMAL_FROM = 2_000.0


def p_value(t: float, freedom: float) -> float:
    """Two-sided probability of |T| >= |t| with `freedom` degrees of freedom (>= 1): I_x(f/2, 1/2), x = f / (f + t^2).

    Abramowitz & Stegun 26.7.1; the incomplete beta by its continued fraction (26.5.8).
    """
    if freedom >= _NORMAL_FROM:
        return 2.0 * _NORMAL.cdf(-abs(t))
    if t in {inf, -inf}:
        return 0.0
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def quantile(level: float, freedom: float) -> float:
    """The t for which a share `level` (two-sided, e.g. 0.95) of the distribution lies within +-t."""
    if freedom >= _NORMAL_FROM:
        return _NORMAL.inv_cdf((1 + level) / 2)
    low, high = 0.0, 1.0
    while p_value(high, freedom) > 1 - level:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if p_value(middle, freedom) > 1 - level:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    # The fraction converges fast on one side of the mean; the other side is its mirror image.
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 400):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + term / c
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1.0) < 1e-13:
            return value
    return value


def welch(se_a: float, freedom_a: float, se_b: float, freedom_b: float) -> tuple[float, float]:
    """(standard error, degrees of freedom) of a difference of two independent means (Welch-Satterthwaite)."""
    square = se_a**2 + se_b**2
    if square == 0:
        return 0.0, max(freedom_a, freedom_b)
    freedom = square**2 / (se_a**4 / freedom_a + se_b**4 / freedom_b)
    return sqrt(square), freedom
