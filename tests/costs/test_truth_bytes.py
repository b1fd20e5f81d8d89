"""DRAM bytes measured by Nsight Compute on 1,381 fp32 linears (A100) against bytes_min and its band."""

import csv
from pathlib import Path
from statistics import median, quantiles

import pytest

from diagnose.costs.matmul import gemm_cost
from diagnose.costs.op import band

pytestmark = pytest.mark.shared_traces


@pytest.fixture
def rows(shared: Path) -> list[tuple[int, int, int, float, float]]:
    with (shared / "measured" / "a100_linear1381_ncu.csv").open(encoding="utf-8") as file:
        return [
            (int(r["N"]), int(r["cin"]), int(r["cout"]), float(r["dram__bytes.sum"]), float(r["all FLOPs"]))
            for r in csv.DictReader(file)
        ]


def test_anchors() -> None:
    """(1,4096,4096): 4·(4096 + 4096² + 4096) = 67,141,632, measured 67,142,912; (1,8192,4096): 134,266,880, measured 134,270,336."""
    for cin, cout, ideal, measured in (
        (4096, 4096, 67_141_632, 67_142_912),
        (8192, 4096, 134_266_880, 134_270_336),
    ):
        c = gemm_cost(1, cout, cin, "fp32")
        assert c.bytes_min == ideal
        assert measured / c.bytes_min == pytest.approx(1.0, abs=1e-4)
        assert c.low < measured < c.high


def test_distribution(rows: list[tuple[int, int, int, float, float]]) -> None:
    """Above 40 MB the median ratio is 1.00 ± 0.03, and the band holds nine of ten measurements at every size."""
    assert len(rows) == 1381
    large, inside = [], []
    for n, cin, cout, measured, _ in rows:
        c = gemm_cost(n, cout, cin, "fp32")
        if c.bytes_min > 40e6:
            large.append(measured / c.bytes_min)
        low, high = band(c.bytes_min)
        inside.append(low <= measured <= high)
    assert median(large) == pytest.approx(1.0, abs=0.03)
    edges = quantiles(large, n=20)
    assert edges[0] == pytest.approx(0.68, abs=0.05)
    assert edges[-1] == pytest.approx(1.75, abs=0.05)
    assert sum(inside) / len(inside) >= 0.88


def test_flops(rows: list[tuple[int, int, int, float, float]]) -> None:
    """Executed FLOPs over 2·M·N·K: median 1.06 (padding and epilogues on top of the product)."""
    ratios = [executed / gemm_cost(n, cout, cin, "fp32").flops for n, cin, cout, _, executed in rows]
    assert median(ratios) == pytest.approx(1.06, abs=0.02)
