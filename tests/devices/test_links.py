"""Collectives against published timings (NCCL 2.29 on 8 x H100, vLLM's kernels on 8 x H200)."""

import pytest

# (ranks, shortest NCCL all-reduce in µs, large-message bus bandwidth in GB/s)
ALL_REDUCE = [(2, 5.9, 318), (4, 9.3, 350), (8, 15.5, 445)]


@pytest.mark.parametrize(("ranks", "floor_us", "bus"), ALL_REDUCE)
def test_all_reduce_floor_and_bus_bandwidth(ranks, floor_us, bus, roofs_of):
    roofs = roofs_of("h100-sxm")
    assert roofs.typical_collective_ns("all_reduce", 1024, ranks) == pytest.approx(floor_us * 1e3, rel=0.01)
    # 268,435,456 halves: wire bytes 2 (r - 1) / r x 537 MB
    payload = 2 * 268435456
    time = roofs.typical_collective_ns("all_reduce", payload, ranks)
    assert 2 * (ranks - 1) / ranks * payload / time == pytest.approx(bus, rel=0.02)
    assert roofs.collective_ns("all_reduce", payload, ranks) <= time


def test_mid_sizes_on_eight_ranks(roofs_of):
    roofs = roofs_of("h200-sxm")
    # vLLM's kernel in a graph: 18.1 µs at 1 Mi halves, 87 µs at 8 Mi; NCCL 38 and 122 µs
    assert roofs.collective_ns("all_reduce", 2 * 2**20, 8) == pytest.approx(18.1e3, rel=0.02)
    assert roofs.collective_ns("all_reduce", 2 * 2**23, 8) == pytest.approx(87e3, rel=0.02)
    assert roofs.typical_collective_ns("all_reduce", 2 * 2**20, 8) == pytest.approx(38e3, rel=0.02)
    assert roofs.typical_collective_ns("all_reduce", 2 * 2**23, 8) == pytest.approx(122e3, rel=0.02)
    # 8 KB in a graph takes 5.2 µs: no faster than the roof, and near it
    assert 0.85 * 5.2e3 < roofs.collective_ns("all_reduce", 8192, 8) <= 5.2e3


def test_time_grows_with_payload_and_never_beats_the_roof(roofs_of):
    for key in ("h100-sxm", "a100-sxm-80", "mi300x", "l4"):
        roofs = roofs_of(key)
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send"):
            for ranks in (2, 4, 8):
                sizes = [10.0**e for e in range(2, 11)]
                best = [roofs.collective_ns(kind, s, ranks) for s in sizes]
                usual = [roofs.typical_collective_ns(kind, s, ranks) for s in sizes]
                assert best == sorted(best)
                assert usual == sorted(usual)
                assert all(b <= u for b, u in zip(best, usual, strict=True))


def test_links_bound_the_rate(roofs_of):
    # A100 NVLink is 300 GB/s per direction against 450 on H100: bus bandwidth scales with it
    a100, h100 = (roofs_of(k).collective_ns("all_gather", 1e9, 8) for k in ("a100-sxm-80", "h100-sxm"))
    assert (a100 - 4700) / (h100 - 4700) == pytest.approx(450 / 300)
    # a bridge joins two cards; four of them meet over PCIe
    a30 = roofs_of("a30")
    assert a30.collective_ns("all_gather", 1e9, 4) > 3 * a30.collective_ns("all_gather", 1e9, 2)


def test_what_is_not_known_is_none(roofs_of):
    roofs = roofs_of("h100-sxm")
    assert roofs.collective_ns("all_reduce", 1e6, 16) is None
    assert roofs.collective_ns("gossip", 1e6, 8) is None
    assert roofs.collective_ns("all_reduce", 1e6, 1) == 0.0
    assert roofs_of("cpu").collective_ns("all_reduce", 1e6, 2) is None
