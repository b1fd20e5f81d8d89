"""The launching thread's own work per step, from plain rows."""

import pytest

from diagnose.rules.host_pace import host_pace
from diagnose.rules.parts import unseen_gaps


def step(run, at: int, wait: int) -> None:
    """20 launches of 10 ns every 40 ns from `at`, then a wait for the device that ends `wait` ns later."""
    run.annotate(at, 1000, "execute_context_0(0)_generation_8(8)")
    for i in range(20):
        run.k(at + 100 + 50 * i, 40, launch=(at + 40 * i, 10))
    run.call(at + 850, wait, "cudaStreamSynchronize", blocking=True)


def test_waiting_for_the_device_is_no_work(run):
    for i in range(3):
        step(run, 2000 * i, wait=700)
    run.build()
    pace = host_pace(run.store)[0, "decode"]
    # From first launch to first launch 2,000 ns, 700 of them in cudaStreamSynchronize; 20 launches a step.
    assert pace.busy_share == pytest.approx(1300 / 2000)
    assert pace.launches == 20
    # Two steps of exactly the same work: the least a run differs from another is told.
    assert pace.noise == 0.05


def test_steps_that_scatter_make_another_run_less_certain(run):
    # Five steps whose host works 1,300, 1,500, 1,300 and 1,500 ns (the last has no next one).
    for i, wait in enumerate((700, 500, 700, 500, 700)):
        step(run, 2000 * i, wait)
    run.build()
    pace = host_pace(run.store)[0, "decode"]
    assert pace.busy_share == pytest.approx(1400 / 2000)
    # Sample deviation 115.5 ns, standard error 57.7 ns of 1,400: 4.1 %, times 2.3.
    assert pace.noise == pytest.approx(2.3 * (4 * 100**2 / 3) ** 0.5 / 2 / 1400)


def test_a_launch_that_waits_for_room_in_the_queue_is_waiting(run):
    for i in range(3):
        step(run, 2000 * i, wait=100)
    # Ten times the usual 10 ns are work, the other 300 of 400 are the full queue.
    run.k(900, 40, launch=(500 + 450, 400))
    run.build()
    pace = host_pace(run.store)[0, "decode"]
    assert pace.busy_share == pytest.approx((2 * 1900 - 300) / 4000)


def test_the_first_step_of_a_window_has_no_gap_before_it(run):
    for i in range(3):
        step(run, 2000 * i, wait=100)
    run.build()
    assert unseen_gaps(run.store) == {(0, "decode"): 1}
