"""The tile model against arithmetic done by hand. One SM or few, 1 TFLOP/s each, so that 1,000 FLOP take 1
ns."""

import pytest

from diagnose.devices.tiles import tile_time_ns


def time(m, n, k, batch=1, *, sms=1, tile_ns=0.0, quantised=True):
    return tile_time_ns(m, n, k, batch, sm_count=sms, peak=sms * 1e12, tile_ns=tile_ns, quantised=quantised)


def test_an_exact_fit_costs_its_flops():
    assert time(64, 64, 64) == pytest.approx(2 * 64 * 64 * 64 / 1e3)


def test_one_row_more_pads_to_the_finest_tile():
    # 65 rows on tiles of 16: 80 rows
    assert time(65, 64, 64) == pytest.approx(2 * 80 * 64 * 64 / 1e3)


def test_whole_waves():
    # 256 x 64 on 3 SMs: 4 tiles of 64 x 64 need 2 waves, 8 of 32 x 64 need 3 of half the size: 3 x 262.144 ns
    assert time(256, 64, 64, sms=3) == pytest.approx(3 * 2 * 32 * 64 * 64 / 1e3)
    # without whole waves the work spreads evenly over the 3 SMs
    assert time(256, 64, 64, sms=3, quantised=False) == pytest.approx(2 * 256 * 64 * 64 / 3 / 1e3)


def test_few_tiles_leave_sms_idle():
    # 16 x 64 x 64 is one tile at the finest: 100 SMs do not help
    assert time(16, 64, 64, sms=100, quantised=False) == pytest.approx(2 * 16 * 64 * 64 / 1e3)
    # but a batch of them does
    assert time(16, 64, 64, batch=100, sms=100) == time(16, 64, 64)


def test_splitting_k_uses_idle_sms_at_a_price():
    # k = 4096 in 32 parts of 128 on 32 SMs: 262 ns of tiles instead of 8,389, plus a 1,000 ns start and the
    # partial sums, 32 x 16 x 64 x 8 B at 6 TB/s = 44 ns
    whole = 2 * 16 * 64 * 4096 / 1e3
    assert time(16, 64, 4096) == pytest.approx(whole)
    assert time(16, 64, 4096, sms=32) == pytest.approx(whole / 32 + 1000 + 32 * 16 * 64 * 8 / 6e12 * 1e9)


def test_per_tile_cost_favours_large_tiles():
    # one tile of 256 x 256 pays 1,000 ns once
    assert time(256, 256, 64, tile_ns=1000.0) == pytest.approx(1000 + 2 * 256 * 256 * 64 / 1e3)
