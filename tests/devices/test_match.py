"""From reported names, memory and SM counts to a device, or to an honest 'unknown'."""

import pytest

from diagnose.devices import Roofs, by_key, match_device

MIB = 2**20

KNOWN = [
    ("NVIDIA H100 80GB HBM3", 85018279936, 132, "h100-sxm"),
    ("AMD Instinct MI300X VF", 205571227648, 304, "mi300x"),
    ("AMD Instinct MI300X", 206141652992, 304, "mi300x"),
    ("", 206141652992, 304, "mi300x"),
    ("NVIDIA B200", 191503138816, 148, "b200"),
    ("NVIDIA H100", 102085492736, 132, "h100-sxm-96"),
    ("NVIDIA H100 NVL", 99961274368, 132, "h100-nvl"),
    ("NVIDIA A100-SXM4-80GB", 81920 * MIB, 108, "a100-sxm-80"),
    ("A100-SXM4-40GB", None, None, "a100-sxm-40"),
    ("Tesla V100-SXM2-16GB", 16160 * MIB, 80, "v100-sxm2-16"),
    ("NVIDIA_H200", 143156 * MIB, 132, "h200-sxm"),
    ("NVIDIA A10G", 22515 * MIB, 80, "a10g"),
    ("NVIDIA GH200 480GB", 97280 * MIB, 132, "gh200-96"),
    ("NVIDIA GH200 120GB", 97280 * MIB, 132, "gh200-96"),
]


@pytest.mark.parametrize(("name", "memory", "sms", "key"), KNOWN)
def test_reported_devices(name, memory, sms, key):
    found = match_device(name, memory, sms)
    assert found.spec is not None, found.note
    assert found.spec.key == key
    assert key in found.note


UNKNOWN = [
    (
        "NVIDIA H100",
        85018279936,
        132,
    ),  # an 80 GB H100 that does not say which: not the 96 GB one, not mapped to SXM
    ("NVIDIA H100", None, None),
    ("NVIDIA H100 80GB HBM3", 102085492736, 132),  # name and memory contradict each other
    ("NVIDIA H100 80GB HBM3", 85018279936, 114),  # name and SM count contradict each other
    ("AMD Instinct MI300X", 206141652992 // 8, 38),  # a partition
    ("NVIDIA GeForce GTX 1080", None, None),
    ("", None, None),
    ("", 12 * 2**30, 20),
]


@pytest.mark.parametrize(("name", "memory", "sms"), UNKNOWN)
def test_contradictions_stay_unknown_and_say_what_to_do(name, memory, sms):
    found = match_device(name, memory, sms)
    assert found.spec is None
    assert "--device" in found.note


def test_reported_bandwidth_alone_gives_an_hbm_roof():
    # RTX 3060 as nsys reports it
    found = match_device("NVIDIA GeForce RTX 3060", 12488343552, 28, bandwidth=360048000000)
    assert found.spec.peak_bandwidth == 360048000000
    assert found.spec.provenance == "measured"
    roofs = Roofs(found.spec)
    assert roofs.compute_ns(1e12, "bf16") is None
    # the default fraction is 0.85
    assert roofs.plateau_bandwidth == pytest.approx(0.85 * 360.048e9, rel=1e-6)


def test_reported_bandwidth_fills_or_corrects_the_catalog():
    filled = match_device("NVIDIA H100", 102085492736, 132, bandwidth=3.9e12)
    assert filled.spec.peak_bandwidth == 3.9e12
    near = match_device("NVIDIA H100 80GB HBM3", 85018279936, 132, bandwidth=3.352e12)
    assert near.spec.peak_bandwidth == 3350e9
    far = match_device("NVIDIA H100 80GB HBM3", 85018279936, 132, bandwidth=2.0e12)
    assert far.spec.peak_bandwidth == 2.0e12
    assert "2000 GB/s" in far.note


def test_mig_slice_scales_by_sms_and_memory_slices():
    found = match_device("NVIDIA A100 80GB PCIe MIG 1g.10gb", 9728 * MIB, 14)
    parent = by_key("a100-pcie-80")
    spec = found.spec
    assert "MIG" in found.note
    assert spec.sm_count == 14
    # 14 of 108 SMs; 10 of 80 GB is one memory slice of eight
    assert spec.peak_compute["bf16"] == pytest.approx(312e12 * 14 / 108)
    assert spec.peak_bandwidth == pytest.approx(1935e9 / 8)
    assert spec.l2_bytes == parent.l2_bytes // 8
    roofs = Roofs(spec)
    assert roofs.provenance("hbm")[0] == "assumed"
    assert roofs.plateau_bandwidth == pytest.approx(Roofs(parent).plateau_bandwidth / 8, rel=0.01)


@pytest.mark.parametrize(
    ("name", "sms", "sm_share", "memory_share"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 60, 60 / 132, 4 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", 16, 16 / 132, 2 / 8),
        ("NVIDIA H200 MIG 1g.18gb", None, 1 / 7, 1 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", 132, 1.0, 1.0),
    ],
)
def test_mig_profiles(name, sms, sm_share, memory_share):
    spec = match_device(name, None, sms).spec
    assert spec.sm_share == pytest.approx(sm_share)
    assert spec.memory_share == pytest.approx(memory_share)


def test_cpu_has_no_roofs_until_calibrated():
    found = match_device("cpu", None, None)
    assert found.spec.is_cpu
    assert "calibrate" in found.note
    roofs = Roofs(found.spec)
    assert roofs.rows() == []
    assert roofs.ideal_ns(1e9, 1e6, "fp32", m=10, n=10, k=10) is None
