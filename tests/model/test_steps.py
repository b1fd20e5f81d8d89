"""Which step owns what, and steps without annotations. Times in ns."""

US = 1_000


def test_work_belongs_to_the_step_that_launched_it(run):
    # Launched in step 1, runs while step 2 is already annotated.
    run.annotate(0, 40 * US, "execute_context_0(0)_generation_2(2)")
    run.annotate(50 * US, 40 * US, "execute_context_0(0)_generation_3(3)")
    run.k(30 * US, 40 * US, launch=(20 * US, 5 * US))
    run.k(75 * US, 10 * US, launch=(60 * US, 5 * US))
    run.k(90 * US, 5 * US)
    run.steps()
    owners = run.store.rows(
        "SELECT k.start_ns, s.sequences FROM kernel k LEFT JOIN step s USING (step_id) ORDER BY 1"
    )
    assert owners == [(30 * US, 2), (75 * US, 3), (90 * US, None)]


def test_innermost_of_nested_annotations_owns(run):
    run.annotate(0, 100 * US, "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk500sqsq2sqsk500)")
    run.annotate(20 * US, 60 * US, "step[DECODE bs=2]")
    run.k(12 * US, 2 * US, launch=(5 * US, 2 * US))
    run.k(40 * US, 10 * US, launch=(30 * US, 5 * US))
    run.steps()
    rows = run.store.rows("SELECT start_ns, end_ns, context_tokens FROM step")
    assert rows == [(40 * US, 50 * US, 500)]


def test_an_outer_span_over_several_steps_lends_no_counts(run):
    run.annotate(0, 300 * US, "execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk999sqsq4sqsk999)")
    for i in range(2):
        run.annotate(10 * US + i * 100 * US, 80 * US, "step[DECODE bs=2]")
        run.k(30 * US + i * 100 * US, 10 * US, launch=(20 * US + i * 100 * US, 5 * US))
    run.steps()
    assert run.store.rows("SELECT DISTINCT context_tokens FROM step") == [(None,)]


def test_profiler_steps_are_not_engine_steps(run):
    run.annotate(0, 100 * US, "ProfilerStep#1")
    run.k(40 * US, 10 * US, launch=(30 * US, 5 * US))
    outcome = run.steps()
    assert outcome.source == "window"
    assert run.store.rows("SELECT phase FROM step") == [("other",)]


def test_a_decode_loop_without_annotations_is_found(run):
    """Six iterations of an embedding lookup and 60 layer kernels each, then a sampled token copied to the host."""
    at = 0
    for _ in range(6):
        names = (
            ["void at::native::vectorized_gather_kernel<16, long>"]
            + ["gemm_a", "norm_b", "attn_c"] * 20
            + ["argmax_d"]
        )
        for name in names:
            run.k(at, 2 * US, launch=(at - 20 * US, 2 * US), name=name)
            at += 3 * US
        at += 50 * US
    outcome = run.steps()
    assert outcome.source == "pattern"
    rows = run.store.rows("SELECT start_ns, end_ns FROM step ORDER BY 1")
    # 62 kernels 3 us apart: 61 x 3 + 2 = 185 us a step, a step every 62 x 3 + 50 = 236 us.
    assert rows == [(i * 236 * US, i * 236 * US + 185 * US) for i in range(6)]


def test_a_step_begins_behind_the_wait_before_it(run):
    """The only kernel that names iterations ends them: they begin where the device has waited, not at that kernel."""
    at = 0
    for _ in range(4):
        for name in ["gemm_a", *["norm_b", "attn_c", "gemm_a"] * 20, "ArgMaxOps_d"]:
            run.k(at, 2 * US, launch=(at - 20 * US, 2 * US), name=name)
            at += 3 * US
        at += 500 * US
    run.steps()
    rows = run.store.rows("SELECT start_ns, end_ns FROM step ORDER BY 1")
    # 62 kernels 3 us apart and the last 2 us long: 185 us, a batch every 62 x 3 + 500 = 686 us.
    assert rows == [(i * 686 * US, i * 686 * US + 185 * US) for i in range(4)]


def test_layers_of_one_forward_pass_are_not_steps(run):
    """36 equal layers, each with a lookup of its own: short segments, so the window stays one step."""
    at = 0
    for _ in range(36):
        for name in [
            "void at::native::vectorized_gather_kernel<16, long>",
            *["gemm_a", "norm_b", "attn_c"] * 4,
        ]:
            run.k(at, 2 * US, launch=(at - 20 * US, 2 * US), name=name)
            at += 3 * US
    outcome = run.steps()
    assert outcome.source == "window"
    assert run.store.scalar("SELECT count(*) FROM step") == 1


def test_graph_replays_mark_iterations(run):
    at = 0
    for _ in range(4):
        correlation = run.call(at, 10 * US, "cudaGraphLaunch")
        for i in range(30):
            run.k(at + 20 * US + i * 3 * US, 2 * US, correlation=correlation, name=f"layer_{i}")
        at += 200 * US
    outcome = run.steps()
    assert outcome.source == "pattern"
    assert run.store.scalar("SELECT count(*) FROM step") == 4


def test_user_ranges(run):
    run.annotate(0, 100 * US, "my iteration 7")
    run.k(40 * US, 10 * US, launch=(30 * US, 5 * US))
    outcome = run.steps(r"^my iteration \d+$")
    assert outcome.source == "annotation"
    assert run.store.rows("SELECT text FROM step") == [("my iteration 7",)]
