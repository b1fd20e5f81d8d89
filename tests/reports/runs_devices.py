"""An inefficient prefill, a healthy one, and copies on two devices, modelled on real traces. Loaded by
conftest.py."""

from reports_builders import added, attribution, coverage, device, diagnosis, kernel, phase

from diagnose import contract as c


# --- H100 prefill with many kernels
# ---------------------------------------------------------------------------------
def prefill_inefficient(rows: int = 0) -> c.Diagnosis:
    attr = attribution(
        compute=12_100_000,
        hbm=8_900_000,
        inefficient=23_400_000,
        floor=410_000,
        unmodelled=620_000,
        idle_device=900_000,
    )
    kernels = [
        kernel(
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
            time_ns=48 * 84_480,
            count=48,
            family="gemm",
            op="aten::mm",
            shape="8944×1024·1024×2816",
            phase="prefill",
            flops=48 * 2.0 * 8944 * 1024 * 2816,
            bytes=48 * 2.0 * (8944 * 1024 + 1024 * 2816 + 8944 * 2816),
            bound="compute",
            reason="611 of 720 TFLOP/s sustained",
            percent_of_roof=84.8,
            regime="compute",
            cost_source="shapes",
            dtype="bf16",
        ),
        kernel(
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
            "cutlass::bfloat16_t>>",
            time_ns=24 * 113_400,
            count=24,
            family="attention",
            op="aten::_flash_attention_forward",
            shape="16×16×559×64 causal",
            phase="prefill",
            flops=24 * 10.24e9,
            bytes=24 * 73.3e6,
            bound="inefficient",
            reason="9 % of the compute roof and 20 % of HBM",
            percent_of_roof=20.1,
            regime="memory",
            cost_source="shapes",
            dtype="bf16",
        ),
        kernel(
            "void at::native::elementwise_kernel<128, 2, "
            "at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda>>",
            time_ns=9_300_000,
            count=240,
            family="elementwise",
            op="aten::copy_",
            shape="16×559×16×64 strided",
            phase="prefill",
            flops=0.0,
            bytes=9_300_000 * 1_150.0,
            bound="inefficient",
            reason="strided access: 1.15 TB/s of 3.0",
            percent_of_roof=38.2,
            regime="memory",
            cost_source="shapes",
            dtype="bf16",
        ),
        kernel(
            "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, "
            "float>>",
            time_ns=8_900_000,
            count=196,
            family="elementwise",
            op="aten::mul",
            shape="16×559×1024",
            phase="prefill",
            flops=8_900_000 * 2_200.0 / 12,
            bytes=8_900_000 * 2_200.0,
            bound="hbm",
            reason="2.2 TB/s: the roof at 110 MB",
            percent_of_roof=92.0,
            regime="memory",
            cost_source="shapes",
            dtype="fp32",
        ),
    ]
    for i in range(rows):
        kernels.append(
            kernel(
                f"void generated::kernel_{i}<Traits<{i % 97}, {i % 13}>, "
                + "at::native::Functor<c10::BFloat16>, " * (4 + i % 9)
                + ">",
                time_ns=1_000 + 37 * (i % 911),
                count=1 + i % 7,
                family="elementwise",
                op="aten::add",
                shape=f"{i % 64}×1024",
                phase="prefill",
                flops=1e6 * (1 + i % 50),
                bytes=4e6 * (1 + i % 30),
                bound=("hbm", "inefficient", "floor")[i % 3],
                reason="generated row",
                percent_of_roof=float(i % 100),
                regime="memory",
                cost_source="shapes",
                dtype="bf16",
            )
        )
    return diagnosis(
        devices=[device(attr)],
        coverage=coverage(45_430_000, 31_140_000),
        phases=[
            phase(
                "other",
                attr,
                limit="kernel_inefficiency",
                confidence=0.66,
                runner_up="compute",
                ideal_step_ns=21_000_000.0,
                efficiency=0.45,
                mfu=0.2,
                mbu=0.3,
            )
        ],
        kernels=kernels,
        hypotheses=[
            c.Hypothesis(
                id="strided-copies",
                limit="kernel_inefficiency",
                phase="other",
                objective="step_time",
                status="supported",
                confidence=0.66,
                gain=c.Gain("step_time", 8.0, 14.5, "ms", "end to end"),
                statement="Strided copies, unfused elementwise chains and a short flash attention take half "
                "of the time.",
                evidence=[
                    c.Evidence(
                        "share of window in inefficient kernels", 0.505, "share", 0.3, "above", "derived"
                    )
                ],
                experiment=c.Experiment(
                    "Compile the model",
                    "torch.compile(model)",
                    "step_time",
                    c.Interval(31.0, 38.0, "ms"),
                    c.RunnerUpPrediction("compute", 44.0, 46.5),
                    "the step stays above 42 ms",
                    "one run and a compile",
                    None,
                    46.3,
                    "other",
                ),
            )
        ],
        verdict=c.Verdict(
            "kernel_inefficiency",
            "other",
            "step_time",
            0.66,
            "Inefficient kernels limit the run: 23.4 of 46.3 ms run far below both roofs.",
            "compute",
            "compute",
            [],
            ["launch overhead: kernels wait 1.2 ms in the queue"],
            [],
        ),
        data_quality=[c.Note("no_launch", "warning", "436 kernels (13.67 ms) have no launch in the file.")],
    )


# --- near the roof with nothing wrong
# -------------------------------------------------------------------------------
def healthy() -> c.Diagnosis:
    attr = attribution(compute=93_000_000, hbm=4_000_000, idle_device=1_000_000)
    return diagnosis(
        devices=[device(attr)],
        coverage=coverage(97_000_000, 96_800_000),
        phases=[
            phase(
                "prefill",
                attr,
                steps=10,
                limit="compute",
                confidence=0.9,
                runner_up="hbm",
                sequences=8.0,
                context_tokens=16_384.0,
                tokens={"prefill": 163_840, "decode": 0, "accepted": None},
                ideal_step_ns=9_100_000.0,
                efficiency=0.929,
                mfu=0.66,
                mbu=0.2,
                step_time_ns={"p50": 9.8e6, "p90": 9.9e6, "p99": 10.1e6},
            )
        ],
        kernels=[
            kernel(
                "nvjet_gemm",
                time_ns=93_000_000,
                count=640,
                family="gemm",
                phase="prefill",
                bound="compute",
                flops=93e6 * 6.6e5,
                bytes=93e6 * 900.0,
                percent_of_roof=92.0,
                regime="compute",
                cost_source="shapes",
                dtype="bf16",
                reason="660 of 720 TFLOP/s sustained",
            )
        ],
        verdict=c.Verdict(
            "compute",
            "prefill",
            "step_time",
            0.9,
            "Nothing is wrong: prefill runs at 93 % of what this device sustains.",
            "hbm",
            "hbm",
            [
                "prefill runs at the compute roof (confidence 0.90); only fewer or cheaper FLOPs (FP8) or a "
                "faster device shorten it."
            ],
            ["launch overhead", "host synchronisation"],
            [],
        ),
    )


# --- copies on two devices
# --------------------------------------------------------------------------------------------
def two_devices_copy() -> c.Diagnosis:
    one = attribution(
        unmodelled=22_000_000, copy=920_900_000, hbm=19_700_000, idle_sync=4_200_000, idle_device=2_600_000
    )
    two = attribution(
        unmodelled=21_500_000, copy=905_000_000, hbm=18_000_000, comm_wait=3_000_000, idle_sync=9_200_000
    )
    return diagnosis(
        source=[c.Source("fastvideo.sqlite", "nsys-sqlite", "77" * 32, "nsys", "2026.2.1", "pytorch")],
        devices=[device(one), device(two, id_=1, name="NVIDIA H100 80GB HBM3")],
        coverage=coverage(43_500_000, 0, linked_to_op_ns=11_000_000),
        phases=[
            phase("other", added([one, two]), steps=2, limit="copy", confidence=0.95, runner_up="host_sync")
        ],
        kernels=[
            kernel(
                "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                time_ns=3_000_000,
                count=4,
                bound="communication",
            ),
            kernel(
                "memcpy HtoD (pinned)",
                time_ns=1_825_900_000,
                count=940,
                bound="copy",
                family="copy",
                bytes=50.6e9,
                cost_source="measured bytes",
                reason="27.7 GB/s, half of a Gen5 link",
            ),
        ],
        verdict=c.Verdict(
            "copy",
            "other",
            "step_time",
            0.95,
            "Host-to-device copies limit the run: 921 of 969 ms on device 0 move 25.5 GB at 27.7 GB/s.",
            "host_sync",
            None,
            [],
            ["launch overhead: 0 % of the window"],
            [],
        ),
    )
