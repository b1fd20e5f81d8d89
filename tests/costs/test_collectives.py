"""Collectives: local traffic, wire bytes, bus factors (nccl-tests, PERFORMANCE.md)."""

import pytest

from diagnose.costs.collectives import algorithm_of, bus_factor, collective_cost, wire_bytes


def test_bus_factors() -> None:
    assert bus_factor("all_reduce", 8) == 2 * 7 / 8
    assert (
        bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == bus_factor("all_to_all", 8) == 7 / 8
    )
    assert bus_factor("broadcast", 8) == 1
    with pytest.raises(ValueError, match="unknown"):
        bus_factor("dance", 2)


def test_bus_bandwidth_of_a_measured_all_reduce() -> None:
    """268,435,456 half values on 8 H100 in 2,111 µs: 254 GB/s algorithm, 445 GB/s bus (NVLink4: 450 a direction)."""
    size = 268_435_456 * 2
    assert size / 2111e-6 == pytest.approx(254e9, rel=0.002)
    assert wire_bytes("all_reduce", size, 8) / 2111e-6 == pytest.approx(445e9, rel=0.002)


def test_algorithms() -> None:
    assert wire_bytes("all_reduce", 1000, 8, "one_shot") == 7000
    assert wire_bytes("all_reduce", 1000, 8, "multimem") == 1000
    assert wire_bytes("all_reduce", 1000, 8, "two_shot") == 1750
    assert algorithm_of("void vllm::cross_device_reduce_1stage<half, 8>") == "one_shot"
    assert algorithm_of("multimem_all_reduce_kernel<c10::BFloat16, 16>") == "multimem"
    assert algorithm_of("ncclDevKernel_AllGather_RING_LL") == "ring"


def test_recorded_collective(cost) -> None:
    """all-gather of 25,136 into 201,088 bf16 on 8 ranks: reads its part, writes the whole."""
    extra = {
        "Collective name": "_allgather_base",
        "dtype": "BFloat16",
        "In msg nelems": 25136,
        "Out msg nelems": 201088,
        "Group size": 8,
    }
    c = cost("record_param_comms", ((1, 25136), "bf16"), extra=extra)
    assert c.bytes_min == (25136 + 201088) * 2
    assert c.role == "all_gather"


def test_local_traffic_of_all_reduce(cost) -> None:
    c = cost("symm_mem::multimem_all_reduce_", ((2557440,), "bf16"), None, None)
    assert c.bytes_min == 2 * 2557440 * 2
    assert collective_cost("reduce_scatter", 800, 8).bytes_min == 900
