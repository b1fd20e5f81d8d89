"""Predictions: sums over parts, held above the host's own pace; each product at its own measured ratio."""

import pytest

from diagnose.rules.experiments import BY_ID
from diagnose.rules.host_pace import HostPace
from diagnose.rules.parts import steady
from diagnose.rules.predict import predict
from diagnose.rules.situation import Situation
from diagnose.rules.weight_products import WeightProduct


def test_a_prediction_is_a_sum_over_parts():
    # Graphs take 75-100 % of the launch gaps, leave kernels within 3 %: 60 + 40 ns -> 58.2..(61.8 + 10).
    low, high = predict(Situation({"hbm:weights": 60.0, "idle_launch": 40.0}), BY_ID["cuda-graphs"])
    assert low == pytest.approx(60 * 0.97)
    assert high == pytest.approx(60 * 1.03 + 40 * 0.25)


def test_quantising_is_never_promised_where_weights_are_not_the_traffic():
    # KV reads stay within noise; a launch-bound step can only lose, by the kernels that quantise activations.
    low, high = predict(Situation({"hbm:kv": 50.0, "idle_launch": 50.0}), BY_ID["quantise-weights"])
    assert low == pytest.approx(97)
    assert high > 103


def test_faster_kernels_stop_paying_at_the_hosts_own_pace():
    # Keeping weights resident would leave 40 of 100 ns; a host that works 90 of them cannot go below 0.95 x 90.
    parts = {"copy": 60.0, "hbm:weights": 40.0}
    free = predict(Situation(parts), BY_ID["keep-resident"])
    held = predict(Situation(parts, host=HostPace(0.9, 300)), BY_ID["keep-resident"])
    assert free[0] == pytest.approx(0.9 * 40)
    assert held == (pytest.approx(0.95 * 90), pytest.approx(1.05 * 90))


def test_a_kernel_more_per_product_costs_an_eager_host_launches():
    # 100 of 300 launches gain a kernel beside them: the host's 95 ns grow to at most 95 x (1 + 100 / 300) x 1.05.
    product = WeightProduct("hbm", 90.0, 8, 100.0, 100.0, in_graph=False)
    parts = {"hbm:weights": 90.0, "floor:other": 10.0}
    eager = predict(Situation(parts, HostPace(0.95, 300), (product,), "h100-sxm"), BY_ID["quantise-weights"])
    assert eager[1] == pytest.approx(95 * (1 + 100 / 300) * 1.05)
    replayed = WeightProduct("hbm", 90.0, 8, 100.0, 100.0, in_graph=True)
    graph = predict(Situation(parts, HostPace(0.05, 5), (replayed,), "h100-sxm"), BY_ID["quantise-weights"])
    assert graph[1] < 100


def test_each_product_changes_as_its_size_was_measured_to():
    # H100, 8 rows: matrices of 140 MB and more 1.47-2.10 x, of 16-50 MB 0.99-1.35 x (5th and 95th percentile).
    large = WeightProduct("hbm", 60.0, 8, 200.0, 1.0, in_graph=True)
    small = WeightProduct("hbm", 40.0, 8, 30.0, 1.0, in_graph=True)
    low, high = predict(
        Situation({"hbm:weights": 100.0}, products=(large, small), device="h100-sxm"),
        BY_ID["quantise-weights"],
    )
    # Middle of the two: 60 x (1 / 2.10 + 1 / 1.47) / 2 + 40 x (1 / 1.35 + 1 / 0.99) / 2; half-widths 6.12 and 5.39 ns add up
    # to 11.51 where both deviate alike, to 8.16 where they do not.
    a, b = 60 * (1 / 1.47 - 1 / 2.10) / 2, 40 * (1 / 0.99 - 1 / 1.35) / 2
    middle = 60 * (1 / 1.47 + 1 / 2.10) / 2 + 40 * (1 / 0.99 + 1 / 1.35) / 2
    half = (0.5 * (a + b) ** 2 + 0.5 * (a**2 + b**2)) ** 0.5
    assert (low, high) == (pytest.approx(middle - half), pytest.approx(middle + half))


@pytest.mark.parametrize(
    ("ranks", "ring"),
    # A ring moves (n - 1) / n of the payload: 4 -> 2 ranks (1/2) / (3/4), 8 -> 4 ranks (3/4) / (7/8).
    [(4, (1 / 2) / (3 / 4)), (8, (3 / 4) / (7 / 8))],
)
def test_half_the_ranks_leave_most_of_a_collective(ranks, ring):
    low, high = predict(Situation({"communication": 100.0}, ranks=ranks), BY_ID["local-collective"])
    assert low < 100 * ring <= high


def test_two_ranks_less_one_exchange_nothing():
    assert predict(Situation({"communication": 100.0}, ranks=2), BY_ID["local-collective"])[1] <= 3


def test_without_fp8_units_only_memory_can_gain():
    # 80 % of the time at the compute roof: bytes halve, arithmetic does not, and unpacking costs up to 30 %.
    parts = {"compute:weights": 80.0, "hbm:weights": 20.0}
    low, high = predict(Situation(parts, fp8=False), BY_ID["quantise-weights"])
    assert low == pytest.approx(80 * 0.93 + 20 / 1.8)
    assert high > 100


def test_a_window_of_n_steps_shows_n_minus_1_gaps():
    # 4 steps, 3 gaps of 10: a long run has 4.
    parts = {"hbm:weights": 100.0, "idle_scheduling": 30.0}
    assert steady(parts, 4, 1)["idle_scheduling"] == pytest.approx(40)
    assert steady(parts, 4, 0) == parts
    assert steady(parts, 1, 1) == parts
