"""A launch-bound prefill step and a decode step near the memory roof, modelled on real traces. Loaded by
conftest.py."""

from reports_builders import added, attribution, coverage, device, diagnosis, kernel, phase

from diagnose import contract as c


# --- launch-bound: one eager prefill step of a large MoE on B200, modelled on a real trace
# -------------------------
def launch_bound() -> c.Diagnosis:
    attr = attribution(
        inefficient=1_240_000,
        hbm=310_000,
        floor=1_906_000,
        unmodelled=6_500_000,
        communication=1_630_000,
        copy=14_000,
        idle_launch=70_210_000,
        idle_sync=1_350_000,
        idle_scheduling=900_000,
        idle_device=440_000,
    )
    wall = sum(attr.values())
    moe = (
        "void (anonymous "
        "namespace)::bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x8x512u2_s5_et128x8_m128x8x32_cga1x1x1_16dp256b_"
        + "TmaSf"
        * 30
    )
    hypotheses = [
        c.Hypothesis(
            id="launch-gaps",
            limit="launch_overhead",
            phase="prefill",
            objective="step_time",
            status="supported",
            confidence=0.93,
            rule="launch-gaps",
            gain=c.Gain("step_time", 38.0, 70.2, "ms", "this phase"),
            statement="The device waits for the host to launch its next kernel for 83 % of the step.",
            evidence=[
                c.Evidence(
                    "share of step idle while the host launches",
                    0.831,
                    "share",
                    0.3,
                    "above",
                    "measured",
                    "SELECT sum(end_ns - start_ns) FROM segment WHERE bucket = 'idle_launch'",
                ),
                c.Evidence("launch to start, median", 10_000, "ns", 20_000, "below", "measured"),
                c.Evidence("kernels per step", 3_219, "count", None, None, "measured"),
                c.Evidence("graph launches", 0, "count", 1, "below", "measured"),
            ],
            counter_evidence=[
                c.Evidence(
                    "python stacks recorded",
                    "yes",
                    "",
                    None,
                    None,
                    "measured",
                    None,
                    "inflates host time; the real gap is smaller",
                )
            ],
            missing=["A capture without Python stacks: with_stack=False"],
            experiment=c.Experiment(
                "Run the same prefill with CUDA graphs (drop --enforce-eager)",
                "vllm serve openai/gpt-oss-120b -tp 8",
                "step_time",
                c.Interval(14.2, 46.0, "ms"),
                c.RunnerUpPrediction("scheduling", 79.0, 84.5),
                "the step stays above 60 ms although the step is one graph launch",
                "one restart, a minute of capture",
                "graph memory lowers the KV pool",
                baseline=84.5,
                phase="prefill",
            ),
        ),
        c.Hypothesis(
            id="unfused-chain",
            limit="kernel_inefficiency",
            phase="prefill",
            objective="step_time",
            status="possible",
            confidence=0.31,
            gain=c.Gain("step_time", 0.2, 1.1, "ms", "this phase"),
            statement="Elementwise kernels around the experts run far from the memory roof.",
            evidence=[
                c.Evidence("time in inefficient kernels", 1_240_000, "ns", 845_000, "above", "derived")
            ],
        ),
        c.Hypothesis(
            id="hbm-roof",
            limit="hbm",
            phase="prefill",
            objective="step_time",
            status="refuted",
            confidence=0.02,
            gain=None,
            statement="Memory bandwidth is not the limit: 0.4 % of the step runs near its roof.",
            evidence=[
                c.Evidence("share of step near the HBM roof", 0.0037, "share", 0.4, "above", "derived")
            ],
        ),
        c.Hypothesis(
            id="kv-capacity",
            limit="kv_capacity",
            phase=None,
            objective="throughput",
            status="not_assessed",
            confidence=None,
            gain=None,
            statement="KV capacity was not assessed.",
            missing=[
                "engine metrics: --metrics FILE (a scrape of /metrics)",
                "or the server log: --log FILE",
            ],
        ),
    ]
    steps = [c.StepRow(0, 0, "prefill", 120_000, wall, 0, 1, 888, 0, 888, attr)]
    timeline = []
    at = 0
    for index in range(260):
        for bucket, cause, share in (
            ("idle_launch", "aten dispatch", 0.83),
            ("unmodelled", None, 0.09),
            ("communication", None, 0.03),
            ("floor", None, 0.05),
        ):
            length = int(wall / 260 * share * (1 + 0.4 * ((index * 7) % 5 - 2) / 2))
            timeline.append(c.TimelineSegment(0, at, at + length, bucket, cause, 0))
            at += length
    return diagnosis(
        source=[
            c.Source(
                "vllm_gptoss_b200_tp8_eager_prefill.json.gz",
                "kineto",
                "c0ffee" * 10 + "abcd",
                "kineto",
                None,
                "pytorch 2.9.0, vllm",
                "2025-10-02T09:14:33Z",
                0,
                8,
                41_000_000,
            )
        ],
        devices=[
            device(
                attr,
                rank=0,
                name="NVIDIA B200",
                catalog_key="b200-sxm",
                sm_count=148,
                memory_bytes=191_514_075_136,
                roofs=[
                    c.RoofRow("hbm", "", 8000.0, 6800.0, "GB/s", "assumed", note="peak × 0.85"),
                    c.RoofRow("compute", "bf16", 2250.0, 1620.0, "TFLOP/s", "assumed", note="peak × 0.72"),
                ],
            )
        ],
        coverage=coverage(
            11_600_000, 5_100_000, unmodelled_top=[{"name": moe, "time_ns": 3_400_000, "count": 72}]
        ),
        phases=[
            phase(
                "prefill",
                attr,
                limit="launch_overhead",
                confidence=0.93,
                runner_up="scheduling",
                tokens={"prefill": 888, "decode": 0, "accepted": None},
                sequences=1.0,
                context_tokens=888.0,
                ideal_step_ns=3_300_000.0,
                efficiency=0.04,
                mfu=0.012,
                mbu=0.06,
            )
        ],
        kernels=[
            kernel(moe, time_ns=3_400_000, count=72, family="moe", op="vllm::moe_forward", phase="prefill"),
            kernel(
                "nvjet_tst_128x64_64x9_2x1_v_bz_TNT",
                time_ns=1_240_000,
                count=144,
                family="gemm",
                op="aten::mm",
                shape="888×2880·2880×640",
                phase="prefill",
                bound="inefficient",
                reason="one-wave tail: 70 blocks on 148 SMs",
                flops=144 * 2 * 888 * 2880 * 640.0,
                bytes=144 * 2.0 * (888 * 2880 + 2880 * 640 + 888 * 640),
                percent_of_roof=23.5,
                regime="compute",
                cost_source="shapes",
                dtype="bf16",
            ),
            kernel(
                "void multimem_all_reduce_kernel<c10::BFloat16, 8>",
                time_ns=1_630_000,
                count=73,
                family="all_reduce",
                phase="prefill",
                bound="communication",
            ),
            kernel(
                "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
                time_ns=310_000,
                count=73,
                family="norm",
                op=None,
                phase="prefill",
                bound="hbm",
                reason="5.6 TB/s of 6.8 TB/s sustained",
                flops=73 * 5.0 * 888 * 2880,
                bytes=73 * 4.0 * 888 * 2880 * 2.3,
                percent_of_roof=82.0,
                regime="memory",
                cost_source="shapes",
                dtype="bf16",
            ),
            kernel(
                "vectorized_elementwise_kernel<4, FillFunctor<int>>",
                time_ns=1_906_000,
                count=1_020,
                family="elementwise",
                op="aten::fill_",
                phase="prefill",
                bound="floor",
                reason="1.9 µs, about the kernel floor",
                flops=0.0,
                bytes=1_020 * 3_552.0,
                cost_source="shapes",
                dtype="int32",
            ),
        ],
        hypotheses=hypotheses,
        steps=steps,
        steps_total=1,
        timeline=timeline,
        model={"name": "openai/gpt-oss-120b", "dtype": "mxfp4"},
        verdict=c.Verdict(
            limit="launch_overhead",
            phase="prefill",
            objective="step_time",
            confidence=0.93,
            summary="Prefill is limited by launch overhead: the device is idle for 83 % of the 84.5 ms step "
            "while the host "
            "launches 3,219 kernels one by one.",
            runner_up="scheduling",
            next="kernel_inefficiency",
            by_phase=[
                "prefill is limited by launch overhead (confidence 0.93): 70.2 of 84.5 ms the device waits "
                "for the "
                "host; replaying the step as one CUDA graph should take it to 14.2–46.0 ms."
            ],
            ruled_out=[
                "memory bandwidth: 0.4 % of the step runs near the HBM roof",
                "copies: 0.02 % of the step",
            ],
            could_not_tell=[
                "KV capacity: give the engine's metrics with --metrics FILE",
                "how much of the host time the profiler itself adds: capture again without Python stacks",
            ],
        ),
        data_quality=[
            c.Note(
                "python_stacks",
                "warning",
                "Python stacks were recorded; they inflate host time between launches.",
            ),
            c.Note(
                "few_steps", "warning", "One step was captured; its time has no spread. Capture 10 or more."
            ),
            c.Note("inactive_devices", "info", "8 devices are listed, one has activity."),
            c.Note("pdl_overlap", "info", "74 kernels overlap their predecessor on the same stream."),
        ],
    )


# --- decode near the memory roof with an unobserved wait before it
# --------------------------------------------------
def decode_unobserved() -> c.Diagnosis:
    step = attribution(hbm=7_410_000, inefficient=1_650_000, floor=660_000, idle_device=675_000)
    outside = attribution(floor=8_000, unobserved=463_000_000)
    whole = added([step, outside])
    return diagnosis(
        source=[
            c.Source(
                "sglang_decode_graph.json.gz", "kineto", "12" * 32, "kineto", None, "pytorch 2.7, sglang"
            )
        ],
        devices=[
            device(
                whole,
                name="AMD Instinct MI300X",
                catalog_key="mi300x",
                sm_count=304,
                memory_bytes=206_141_652_992,
                roofs=[
                    c.RoofRow("hbm", "", 5300.0, 4240.0, "GB/s", "assumed", note="peak × 0.80"),
                    c.RoofRow("compute", "bf16", 1307.4, 690.0, "TFLOP/s", "assumed"),
                ],
            )
        ],
        coverage=coverage(
            9_728_000,
            9_400_000,
            linked_to_op_ns=8_000,
            in_graphs_ns=9_720_000,
            no_launch_ns=0,
            by_source_ns={"role assignment": 9_400_000},
        ),
        phases=[
            phase(
                "decode",
                step,
                limit="hbm",
                confidence=0.71,
                runner_up="kernel_inefficiency",
                sequences=32.0,
                context_tokens=32_785.0,
                tokens={"prefill": 0, "decode": 32, "accepted": None},
                ideal_step_ns=4_700_000.0,
                efficiency=0.452,
                mbu=0.40,
                mfu=0.04,
                ideal_note="weights and KV on the sustained HBM roof",
            )
        ],
        outside_steps=c.OutsideSteps(sum(outside.values()), outside),
        kernels=[
            kernel(
                "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x16x256",
                time_ns=4_100_000,
                count=144,
                family="gemm",
                role="gate_up_proj",
                phase="decode",
                bound="hbm",
                dtype="bf16",
                regime="memory",
                flops=144 * 2 * 32 * 4096 * 12288.0,
                bytes=144 * 2.0 * 4096 * 12288,
                percent_of_roof=83.0,
                reason="3.5 TB/s of 4.2 TB/s sustained",
                cost_source="role assignment",
            ),
            kernel(
                "void aiter::paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16>",
                time_ns=1_650_000,
                count=36,
                family="attention",
                role="attention",
                phase="decode",
                bound="inefficient",
                dtype="bf16",
                regime="memory",
                flops=36 * 4.0 * 32_785 * 4096,
                bytes=36 * 2.0 * 32_785 * 2048,
                percent_of_roof=69.0,
                reason="32 blocks of work on 304 CUs",
                cost_source="role assignment",
            ),
        ],
        steps=[
            c.StepRow(
                0, 0, "decode", 463_008_000, 463_008_000 + 10_395_000, 463_000_000, 32, 0, 32, 32_785, step
            )
        ],
        steps_total=1,
        timeline=[
            c.TimelineSegment(0, 0, 8_000, "floor", None, None),
            c.TimelineSegment(0, 8_000, 463_008_000, "unobserved", "queued_unseen", None),
            c.TimelineSegment(0, 463_008_000, 470_418_000, "hbm", None, 0),
            c.TimelineSegment(0, 470_418_000, 471_093_000, "idle_device", "dispatch", 0),
            c.TimelineSegment(0, 471_093_000, 473_403_000, "inefficient", None, 0),
        ],
        hypotheses=[
            c.Hypothesis(
                id="hbm-roof",
                limit="hbm",
                phase="decode",
                objective="step_time",
                status="supported",
                confidence=0.71,
                gain=c.Gain("step_time", 3.1, 5.7, "ms", "end to end"),
                statement="Decode streams weights and KV at 83 % of the sustained roof for 71 % of the step.",
                evidence=[
                    c.Evidence("share of step near the HBM roof", 0.713, "share", 0.4, "above", "derived")
                ],
                experiment=c.Experiment(
                    "Double the decode batch",
                    "--max-running-requests 64",
                    "step_time",
                    c.Interval(10.6, 11.9, "ms"),
                    c.RunnerUpPrediction("kernel_inefficiency", 13.0, 18.0),
                    "the step grows beyond 12.5 ms",
                    "one run",
                    None,
                    10.4,
                    "decode",
                ),
            )
        ],
        verdict=c.Verdict(
            "hbm",
            "decode",
            "step_time",
            0.71,
            "Decode is limited by memory bandwidth: 71 % of the 10.4 ms step streams weights and KV at 83 % "
            "of the sustained roof.",
            "kernel_inefficiency",
            "kernel_inefficiency",
            [
                "decode is limited by memory bandwidth (confidence 0.71); doubling the batch should leave "
                "the "
                "step at 10.6–11.9 ms."
            ],
            ["launch overhead: the step is one graph launch, 0 % of it waits for a launch"],
            ["463 ms before the step: the file is a slice, work launched earlier is not in it"],
        ),
        data_quality=[
            c.Note("unobserved", "warning", "463 ms of the window is not observed and counts for no verdict.")
        ],
    )
