"""The catalog against clock arithmetic and link standards."""

import pytest

from diagnose.devices import DTYPES, Roofs, by_key, catalog_keys, roofs_table
from diagnose.devices.catalog import catalog
from diagnose.errors import UsageError

# Tensor FLOP/s = SMs x multiply-adds per SM and clock x 2 x clock at which the vendor states the peak.
FORMULA = [
    ("a100-sxm-80", "bf16", 108 * 1024 * 2 * 1.410e9),
    ("h100-sxm", "bf16", 132 * 2048 * 2 * 1.830e9),
    ("h100-sxm", "fp8", 132 * 4096 * 2 * 1.830e9),
    ("h100-pcie", "bf16", 114 * 2048 * 2 * 1.620e9),
    ("v100-sxm2-16", "fp16", 80 * 512 * 2 * 1.530e9),
    ("l4", "bf16", 58 * 512 * 2 * 2.040e9),
    ("rtx4090", "bf16", 128 * 256 * 2 * 2.520e9),
    ("mi300x", "bf16", 304 * 1024 * 2 * 2.100e9),
    ("mi355x", "bf16", 256 * 2048 * 2 * 2.400e9),
]


@pytest.mark.parametrize(("key", "dtype", "flops"), FORMULA)
def test_peaks_are_dense_and_follow_the_clock(key, dtype, flops):
    assert by_key(key).peak_compute[dtype] == pytest.approx(flops, rel=0.005)


def test_every_row_is_complete_and_named_once():
    rows = catalog()
    assert len({r.spec.key for r in rows}) == len(rows)
    names = [n for r in rows for n in r.reported_names]
    assert len(set(names)) == len(names)
    for row in rows:
        spec = row.spec
        assert spec.source and spec.confidence and spec.vendor in {"NVIDIA", "AMD"}
        assert set(spec.peak_compute) <= set(DTYPES)
        assert spec.arch.startswith(("sm_", "gfx"))
        # drivers report at most a little over nominal, and never less than nine tenths
        assert 0.9 <= spec.memory_bytes / row.nominal_bytes <= 1.02


def test_links_are_per_direction():
    # NVLink 4 is sold as 900 GB/s for both directions; PCIe 5 x16: 32 GT/s x 16 lanes x 128/130 / 8 bits =
    # 63.0 GB/s
    h100 = by_key("h100-sxm")
    assert h100.peer == 450e9
    assert h100.link_h2d == pytest.approx(32e9 * 16 * 128 / 130 / 8, rel=0.001)
    assert by_key("a100-sxm-80").link_h2d == pytest.approx(16e9 * 16 * 128 / 130 / 8, rel=0.001)
    # Grace Hopper is not on PCIe
    assert by_key("gh200-96").link_kind == "nvlink-c2c"
    assert by_key("gh200-96").link_h2d == 450e9


def test_unpublished_bandwidth_stays_unknown():
    spec = by_key("h100-sxm-96")
    assert spec.peak_bandwidth is None
    roofs = Roofs(spec)
    assert roofs.memory_ns(1e9) is None
    assert roofs.ridge("bf16") is None
    assert roofs.ideal_ns(1e12, 1e9, "bf16").resource == "compute"


def test_unknown_key_suggests_near_ones():
    with pytest.raises(UsageError) as error:
        by_key("h100-sxn")
    assert "h100-sxm" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="diagnose roofs"):
        by_key("zzzz")


def test_every_device_has_printable_roofs():
    for key in catalog_keys():
        rows = roofs_table(by_key(key))
        if key == "cpu":
            assert rows == []
            continue
        for row in rows:
            assert set(row) == {
                "resource",
                "dtype",
                "peak",
                "sustained",
                "unit",
                "provenance",
                "note",
                "source",
            }
            assert row["provenance"] in {"measured", "derived", "assumed"}
            assert row["sustained"] > 0
            if row["peak"]:
                assert 0.25 < row["sustained"] / row["peak"] < 1.12
    assert [r["key"] for r in roofs_table()] == catalog_keys()[:-1]


def test_only_fitted_devices_claim_more_than_assumption():
    derived = {r["key"] for r in roofs_table() if r["provenance"] != "assumed"}
    assert derived == {"a100-sxm-80", "h100-sxm", "h200-sxm"}
