"""Each rule of the gap table, on a run small enough to do by hand. Times in ns; US is a microsecond.

Without roofs every compute kernel is `unmodelled`: these tests look at the idle time only.
"""

US = 1_000


def test_next_kernel_not_launched_yet_is_launch_time(run):
    # One window step. Kernel 1 runs 0-10, kernel 2 starts at 60 and was launched by a call 52-55: 45 us until the launch
    # is the host's, the 5 us of launch latency go with it.
    run.k(0, 10 * US, launch=(-20 * US, 5 * US))
    run.k(60 * US, 10 * US, launch=(52 * US, 3 * US))
    assert run.build().buckets() == {"unmodelled": 20 * US, "idle_launch": 50 * US}


def test_queued_kernel_waits_on_the_device(run):
    # Launched at -10, long before the gap 10-12 ended: dispatch.
    run.k(0, 10 * US, launch=(-20 * US, 5 * US))
    run.k(12 * US, 10 * US, launch=(-15 * US, 5 * US))
    assert run.build().buckets() == {"unmodelled": 20 * US, "idle_device": 2 * US}


def test_long_wait_after_launch_is_unobserved(run):
    # Launch ends at 30; the kernel starts at 530. The host's part is 10-30, the other 500 us nothing explains.
    run.k(0, 10 * US, launch=(-20 * US, 5 * US))
    run.k(530 * US, 10 * US, launch=(25 * US, 5 * US))
    assert run.build().buckets() == {"unmodelled": 20 * US, "idle_launch": 20 * US, "unobserved": 500 * US}


def test_launch_outside_the_trace_is_unobserved(run):
    run.k(0, 10 * US, launch=(-20 * US, 5 * US))
    run.k(15 * US, 10 * US)
    assert run.build().buckets() == {"unmodelled": 20 * US, "unobserved": 5 * US}


def test_no_host_events_at_all(run):
    run.k(0, 10 * US)
    run.k(15 * US, 10 * US)
    assert run.build().buckets() == {"unmodelled": 20 * US, "idle_other": 5 * US}


def test_blocking_call_that_drained_the_queue(run):
    # Synchronise 2-13 waits for kernel 1 (ends 10). Then 17 us of Python, launch 30-33, start 35.
    # 10-13 inside the call and 13-35 after it are both the sync's: without it the host would have run ahead.
    run.k(0, 10 * US, launch=(-20 * US, 5 * US))
    run.call(2 * US, 11 * US, "cudaStreamSynchronize", blocking=True)
    run.k(35 * US, 10 * US, launch=(30 * US, 3 * US))
    assert run.build().buckets() == {"unmodelled": 20 * US, "idle_sync": 25 * US}
    causes = dict(run.store.rows("SELECT cause, sum(ns)::BIGINT FROM phase_cause GROUP BY 1"))
    assert causes == {
        "blocked in cudaStreamSynchronize": 3 * US,
        "after cudaStreamSynchronize drained the queue": 22 * US,
    }


def test_blocking_call_after_the_device_ran_dry(run):
    # The device is idle from 10; a synchronise 20-24 returns at once: only its own 4 us are a wait.
    run.k(0, 10 * US, launch=(-20 * US, 5 * US))
    run.call(20 * US, 4 * US, "cudaDeviceSynchronize", blocking=True)
    run.k(50 * US, 10 * US, launch=(45 * US, 3 * US))
    assert run.build().buckets() == {"unmodelled": 20 * US, "idle_sync": 4 * US, "idle_launch": 36 * US}


def test_other_threads_blocking_is_not_ours(run):
    run.k(0, 10 * US, launch=(-20 * US, 5 * US))
    run.call(2 * US, 30 * US, "cudaEventSynchronize", thread=2, blocking=True)
    run.k(50 * US, 10 * US, launch=(45 * US, 3 * US))
    assert run.build().buckets() == {"unmodelled": 20 * US, "idle_launch": 40 * US}


def test_gap_across_a_step_boundary_is_scheduling(run):
    # Two engine steps, annotated 0-40 and 100-140 on the host. The device idles 60-115: the launch of step 2 ends at 113.
    run.annotate(0, 40 * US, "execute_context_0(0)_generation_4(4)")
    run.annotate(100 * US, 40 * US, "execute_context_0(0)_generation_4(4)")
    run.k(20 * US, 40 * US, launch=(10 * US, 5 * US))
    run.k(115 * US, 40 * US, launch=(110 * US, 3 * US))
    assert run.build().buckets() == {"unmodelled": 80 * US, "idle_scheduling": 55 * US}
    # The gap is charged to the later step, so the decode phase shows it: 55 + 40; the first step has no gap before it.
    steps = run.store.rows("SELECT gap_before_ns FROM step ORDER BY step_id")
    assert steps == [(0,), (55 * US,)]
    assert run.store.rows("SELECT wall_ns FROM step_time ORDER BY step_id") == [(40 * US,), (95 * US,)]


def test_sync_inside_a_boundary_gap_keeps_its_part(run):
    # Same two steps; the host sits in a synchronise 50-70, of which 60-70 is idle time.
    run.annotate(0, 40 * US, "execute_context_0(0)_generation_4(4)")
    run.annotate(100 * US, 40 * US, "execute_context_0(0)_generation_4(4)")
    run.k(20 * US, 40 * US, launch=(10 * US, 5 * US))
    run.call(50 * US, 20 * US, "cudaEventSynchronize", blocking=True)
    run.k(115 * US, 40 * US, launch=(110 * US, 3 * US))
    assert run.build().buckets() == {"unmodelled": 80 * US, "idle_sync": 10 * US, "idle_scheduling": 45 * US}


def test_data_loader_is_outside_every_step(run):
    text = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    run.k(0, 10 * US, launch=(-20 * US, 5 * US))
    run.annotate(20 * US, 400 * US, text)
    run.k(450 * US, 10 * US, launch=(440 * US, 3 * US))
    built = run.build()
    # 10-20 before the loader and 420-450 after it are launching inside the one window step; 400 us are input.
    assert built.buckets() == {"unmodelled": 20 * US, "idle_launch": 40 * US, "idle_scheduling": 400 * US}
    assert built.store.rows("SELECT sum(end_ns - start_ns)::BIGINT FROM segment WHERE step_id IS NULL") == [
        (400 * US,)
    ]


def test_blocking_copy_is_launched_when_its_call_starts(run):
    # A synchronous copy called at 15 waits 463 ms for something the file does not show, then copies: the wait is neither
    # idle nor busy. Of the gap 10-463,010 the first 5 us are the host's, launch latency (20 us) goes with them.
    run.k(0, 10 * US, launch=(-20 * US, 5 * US))
    correlation = run.call(15 * US, 463_000 * US, "hipMemcpyWithStream", blocking=True)
    run.copy(463_010 * US, 2 * US, "HtoD", correlation=correlation)
    run.k(463_020 * US, 10 * US, launch=(463_016 * US, 2 * US))
    buckets = run.build().buckets()
    assert buckets["unobserved"] == (463_010 - 35) * US
    assert buckets["copy"] == 2 * US
    assert sum(buckets.values()) == 463_030 * US


def test_graph_replay_shares_one_launch(run):
    correlation = run.call(0, 10 * US, "cudaGraphLaunch")
    run.k(12 * US, 5 * US, correlation=correlation)
    run.k(18 * US, 5 * US, correlation=correlation)
    run.k(24 * US, 5 * US, correlation=correlation)
    assert run.build().buckets() == {"unmodelled": 15 * US, "idle_device": 2 * US}
    assert {r[0] for r in run.store.rows("SELECT link FROM kernel")} == {"graph"}


def test_waiting_for_another_device_is_explained(run):
    # Device 1's kernel starts 1 us after device 0's ended; it had been launched 400 us before.
    run.k(0, 10 * US, launch=(-20 * US, 5 * US), device=1)
    run.k(0, 500 * US, launch=(-30 * US, 5 * US), device=0)
    run.k(501 * US, 10 * US, launch=(50 * US, 5 * US), device=1)
    buckets = run.build().buckets(1)
    assert buckets == {"unmodelled": 20 * US, "idle_launch": 45 * US, "idle_device": 446 * US}
