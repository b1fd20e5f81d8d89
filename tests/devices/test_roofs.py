"""Properties that every roof must have, on every catalogued device."""

import pytest

from diagnose.devices import DTYPES, Roofs, by_key, catalog_keys
from diagnose.devices.curves import read

KEYS = [k for k in catalog_keys() if k != "cpu"]
SIZES = [10**e * s for e in range(2, 11) for s in (1, 2, 5)]


def test_curves_read_straight_in_log_log_and_flat_outside():
    points = ((10.0, 1.0), (1000.0, 4.0))
    assert read(points, 100.0) == pytest.approx(2.0)
    assert read(points, 1.0) == 1.0
    assert read(points, 1e9) == 4.0


@pytest.mark.parametrize("key", KEYS)
def test_memory_time_grows_with_bytes_and_never_beats_the_peak_beyond_the_floor(key, roofs_of):
    roofs = roofs_of(key)
    peak = roofs.spec.peak_bandwidth
    if peak is None:
        return
    times = [roofs.memory_ns(size) for size in SIZES]
    assert times == sorted(times)
    # the caches of the measured loops lift small sizes a little over the datasheet rate, large ones never
    for size, time in zip(SIZES, times, strict=True):
        if size >= 1e8:
            assert size / (time - roofs.kernel_floor_ns) * 1e9 <= peak * 1.001
    assert roofs.memory_ns(0) == roofs.kernel_floor_ns


@pytest.mark.parametrize("key", KEYS)
def test_compute_time_grows_with_the_product_and_stays_under_the_peak(key, roofs_of):
    roofs = roofs_of(key)
    for dtype in DTYPES:
        peak = roofs.spec.peak_compute.get(dtype)
        if peak is None:
            assert roofs.compute_ns(1e12, dtype) is None
            continue
        before = 0.0
        for edge in (128, 512, 1024, 2048, 4096, 8192, 16384):
            flops = 2.0 * edge**3
            time = roofs.compute_ns(flops, dtype, m=edge, n=edge, k=edge)
            assert time > before
            # GeForce parts boost above the clock their peak is stated for, by up to 10 % (see sustained.csv)
            assert flops / time * 1e9 <= 1.15 * peak
            before = time


@pytest.mark.parametrize("key", KEYS)
def test_attention_gets_faster_with_length_and_head_dim(key, roofs_of):
    roofs = roofs_of(key)
    dtype = "bf16" if "bf16" in roofs.spec.peak_compute else "fp16"
    if dtype not in roofs.spec.peak_compute:
        return
    times = [roofs.attention_ns(1e12, dtype, length, 128) for length in (128, 512, 1024, 4096, 16384)]
    assert times == sorted(times, reverse=True)
    assert roofs.attention_ns(1e12, dtype, 4096, 64) > roofs.attention_ns(1e12, dtype, 4096, 128)
    assert roofs.attention_ns(1e12, dtype, 512, 128, causal=False) < roofs.attention_ns(1e12, dtype, 512, 128)
    assert 1e12 / times[-1] * 1e9 < roofs.spec.peak_compute[dtype]


def test_ideal_is_the_larger_side_and_names_it(roofs_of):
    roofs = roofs_of("h100-sxm")
    wide = roofs.ideal_ns(2 * 8192.0**3, 3 * 2 * 8192.0**2, "bf16", m=8192, n=8192, k=8192)
    assert (wide.resource, wide.regime) == ("compute", "compute")
    assert wide.ns == wide.compute_ns > wide.memory_ns
    thin = roofs.ideal_ns(2 * 8192.0**2, 2 * 8192.0**2, "bf16", m=1, n=8192, k=8192)
    assert (thin.resource, thin.regime) == ("hbm", "memory")
    assert thin.ns == thin.memory_ns > thin.compute_ns
    assert thin.provenance == "derived"
    tiny = roofs.ideal_ns(100.0, 1e3, "fp32")
    assert tiny.resource == "floor"
    assert tiny.ns == pytest.approx(roofs.kernel_floor_ns, rel=0.05)
    # a device whose peak for that dtype is unknown, a kernel without FLOPs, and one without any cost
    assert roofs.ideal_ns(1e9, 1e8, "fp4").compute_ns is None
    assert roofs.ideal_ns(None, 1e8, None).resource == "hbm"
    assert roofs.ideal_ns(None, None, "bf16") is None


def test_regime_is_the_side_of_the_ridge(roofs_of):
    roofs = roofs_of("h100-sxm")
    ridge = roofs.ridge("bf16")
    # plateaus of about 875 TFLOP/s and 3.18 TB/s
    assert ridge == pytest.approx(roofs.plateau_compute("bf16") / roofs.plateau_bandwidth)
    assert 250 < ridge < 300
    for factor, regime in ((0.99, "memory"), (1.01, "compute")):
        assert roofs.ideal_ns(1e9 * ridge * factor, 1e9, "bf16").regime == regime


def test_elementwise_work_is_not_charged_a_gemm_start(roofs_of):
    # fp32 multiply over 1,024 elements: 1 kFLOP must not cost more than the smallest kernel
    roofs = roofs_of("h100-sxm")
    assert roofs.compute_ns(1024, "fp32") == pytest.approx(roofs.kernel_floor_ns, rel=0.01)


def test_activations_may_come_from_cache_weights_may_not(roofs_of):
    roofs = roofs_of("h100-sxm")
    # equal bytes: 16 MiB of activations with a thin weight, or 16 MiB of weights with a thin activation
    activations = roofs.gemm_memory_ns(2.0 * (8192 * 1024 + 1024 * 16 + 8192 * 16), 8192, 16, 1024)
    weights = roofs.gemm_memory_ns(2.0 * (8192 * 1024 + 1024 * 16 + 8192 * 16), 16, 8192, 1024)
    assert activations < 0.75 * weights
    # far above the cache it makes little difference
    big = 2.0 * (262144 * 4096 + 4096 * 16 + 262144 * 16)
    assert roofs.gemm_memory_ns(big, 262144, 16, 4096) > 0.97 * roofs.memory_ns(big, gemm=True)


def test_cache_explains_only_what_fits(roofs_of):
    roofs = roofs_of("h100-sxm")
    assert roofs.l2_resident(50e6) and not roofs.l2_resident(60e6)
    # 55 MB in 17 µs (3.2 TB/s): 52 MB of it may sit in L2
    assert roofs.memory_ns(55e6) > 17.06e3
    assert roofs.cache_explains(55e6, 17.06e3)
    # 1 GB at 5 TB/s: at most 52 MB of it can
    assert not roofs.cache_explains(1e9, 200e3)
    # 20 MB in 1 µs: no cache delivers 20 TB/s
    assert not roofs.cache_explains(20e6, 1e3)
    # the Infinity Cache counts on AMD: 73 MB in 14 µs
    assert roofs_of("mi300x").cache_explains(73e6, 14e3)


def test_slower_twin_is_slower_everywhere(roofs_of):
    fast, slow = roofs_of("h100-sxm"), roofs_of("h100-pcie")
    for size in SIZES:
        assert slow.memory_ns(size) >= fast.memory_ns(size)
    for edge in (256, 1024, 8192):
        args = {"m": edge, "n": edge, "k": edge}
        assert slow.compute_ns(2.0 * edge**3, "bf16", **args) >= fast.compute_ns(
            2.0 * edge**3, "bf16", **args
        )


def test_published_fractions_become_the_plateau(roofs_of):
    # BabelStream copy on MI300X 4,269 GB/s; AMD's maximum achievable bf16 708 TFLOP/s; MAMF on B200 1,745
    assert roofs_of("mi300x").plateau_bandwidth == pytest.approx(4269e9, rel=0.01)
    assert roofs_of("mi300x").plateau_compute("bf16") == pytest.approx(708e12, rel=0.01)
    assert roofs_of("b200").plateau_compute("bf16") == pytest.approx(1745e12, rel=0.01)
    assert roofs_of("h100-pcie").plateau_compute("bf16") == pytest.approx(499.5e12, rel=0.01)
    for key in ("mi300x", "b200"):
        assert roofs_of(key).provenance("compute", "bf16")[0] == "assumed"


def test_unknown_sm_count_falls_back_to_size_alone(roofs_of):
    roofs = roofs_of("gb300")
    assert roofs.spec.sm_count is None
    assert roofs.compute_ns(2 * 4096.0**3, "bf16", m=4096, n=4096, k=4096) == roofs.compute_ns(
        2 * 4096.0**3, "bf16"
    )


def test_link_time(roofs_of):
    # 25.5 GB over PCIe 5 at 0.88 of 63 GB/s
    assert roofs_of("h100-sxm").link_ns("h2d", 25.5e9) == pytest.approx(
        25.5e9 / (0.88 * 63e9) * 1e9, rel=1e-3
    )
    assert roofs_of("gh200-96").link_rate("h2d") > 5 * roofs_of("h100-sxm").link_rate("h2d")
    assert Roofs(by_key("cpu")).link_ns("h2d", 1e9) is None
