"""Diagnosis objects shaped like real runs, built by hand: the writers' input in these tests.

Numbers are those of public traces rounded, or plain arithmetic; nothing here comes from running the pipeline.
"""

from collections.abc import Callable
from typing import Any

import pytest

from diagnose import contract as c

MS = 1_000_000


def attribution(**ns: int) -> c.Attribution:
    unknown = set(ns) - set(c.BUCKETS)
    assert not unknown, unknown
    return {**c.empty_attribution(), **ns}


def _sum(parts: list[c.Attribution]) -> c.Attribution:
    return {bucket: sum(part[bucket] for part in parts) for bucket in c.BUCKETS}


def device(attr: c.Attribution, *, id_: int = 0, rank: int | None = None, **extra: Any) -> c.Device:
    wall = sum(attr.values())
    roofs = [
        c.RoofRow(
            "hbm",
            "",
            3352.0,
            3010.0,
            "GB/s",
            "measured",
            note="2,100 GB/s at 16 MB",
            source="fit of public GEMM tables",
        ),
        c.RoofRow("compute", "bf16", 989.4, 720.0, "TFLOP/s", "measured"),
        c.RoofRow("compute", "fp32", 66.9, 60.2, "TFLOP/s", "assumed", note="peak × 0.90"),
        c.RoofRow("kernel_floor", "", None, 2.2, "µs", "assumed"),
    ]
    defaults: dict[str, Any] = {
        "name": "NVIDIA H100 80GB HBM3",
        "catalog_key": "h100-sxm",
        "roofs": roofs,
        "sm_count": 132,
        "memory_bytes": 85_018_279_936,
    }
    return c.Device(
        id=id_, rank=rank, window=c.Window(0, wall, wall), attribution_ns=attr, **{**defaults, **extra}
    )


def kernel(
    name: str, *, time_ns: int, count: int = 1, bound: str = "unmodelled", **extra: Any
) -> c.KernelRow:
    defaults: dict[str, Any] = dict.fromkeys(
        (
            "op",
            "role",
            "shape",
            "phase",
            "flops",
            "bytes",
            "tflops",
            "gbps",
            "intensity",
            "regime",
            "percent_of_roof",
            "reason",
            "cost_source",
        )
    )
    row: dict[str, Any] = {"family": "other", **defaults, **extra}
    flops, bytes_ = row["flops"], row["bytes"]
    if flops is not None:
        row["tflops"] = flops / time_ns / 1e3
    if bytes_ is not None:
        row["gbps"] = bytes_ / time_ns
    if flops and bytes_:
        row["intensity"] = flops / bytes_
    return c.KernelRow(name=name, count=count, time_ns=time_ns, bound=bound, **row)


def coverage(kernel_ns: int, cost_ns: int, **extra: Any) -> c.Coverage:
    values: dict[str, Any] = {
        "linked_to_op_ns": cost_ns,
        "in_graphs_ns": 0,
        "no_launch_ns": kernel_ns - cost_ns,
        "by_source_ns": {"shapes": cost_ns},
        **extra,
    }
    return c.Coverage(kernel_time_ns=kernel_ns, with_cost_ns=cost_ns, **values)


def phase(name: str, attr: c.Attribution, *, steps: int = 1, limit: str, **extra: Any) -> c.Phase:
    wall = sum(attr.values())
    values: dict[str, Any] = {
        "tokens": {"prefill": None, "decode": None, "accepted": None},
        "step_time_ns": {"p50": wall / steps, "p90": None, "p99": None},
        "ideal_step_ns": None,
        "efficiency": None,
        "mfu": None,
        "mbu": None,
        "confidence": None,
        **extra,
    }
    return c.Phase(phase=name, steps=steps, wall_ns=wall, attribution_ns=attr, limit=limit, **values)


def diagnosis(**parts: Any) -> c.Diagnosis:
    devices: list[c.Device] = parts.get("devices", [])
    values: dict[str, Any] = {
        "schema": c.SCHEMA,
        "tool_version": "0.1.0",
        "objective": "step_time",
        "devices": devices,
        "attribution_ns": _sum([d.attribution_ns for d in devices]) if devices else None,
        "coverage": None,
        "phases": [],
        "outside_steps": None,
        "kernels": [],
        "latency": None,
        "kv": None,
        "hypotheses": [],
        "data_quality": [],
        "source": [
            c.Source(
                "trace.json.gz", "kineto", sha256="ab" * 32, profiler="kineto", framework="pytorch 2.8.0"
            )
        ],
        **parts,
    }
    return c.Diagnosis(**values)


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
    whole = _sum([step, outside])
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
            phase("other", _sum([one, two]), steps=2, limit="copy", confidence=0.95, runner_up="host_sync")
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


# --- serving evidence alone
# -------------------------------------------------------------------------------------------
def serving_only() -> c.Diagnosis:
    return diagnosis(
        source=[
            c.Source("bench.json", "vllm-bench", "55" * 32, None, None, "vllm 0.6.3"),
            c.Source("server.log", "vllm-log", "56" * 32, None, None, "vllm 0.6.3"),
        ],
        objective="throughput",
        latency={
            "ttft_ms": {
                "count": 1000,
                "mean": 512.0,
                "p50": 301.2,
                "p90": 1200.0,
                "p99": 2912.5,
                "histogram": [
                    {"low": 0, "high": 250, "count": 400},
                    {"low": 250, "high": 500, "count": 310},
                    {"low": 500, "high": 1000, "count": 170},
                    {"low": 1000, "high": 3000, "count": 120},
                ],
            },
            "itl_ms": {"p50": 31.4, "p90": 44.0, "p99": 180.0},
            "e2e_ms": {"p50": 8123.0, "p99": 14_211.0},
            "throughput_tok_s": 1874.3,
            "split": {
                "ttft": {"queue": 180.3, "prefill": 110.2, "other": 10.7},
                "itl": {"decode step": 27.9, "prefill interference": 2.2, "gap between steps": 1.3},
            },
            "provenance": "measured",
        },
        kv={
            "bytes_per_token": 327_680,
            "budget_tokens": 93_872,
            "peak_used_share": 0.994,
            "waiting_max": 128,
            "preemptions": 0,
            "provenance": "measured",
        },
        memory={
            "total_bytes": 85e9,
            "parts": [
                {"name": "weights", "bytes": 35.3e9, "provenance": "derived"},
                {"name": "activations", "bytes": 4.1e9, "provenance": "assumed"},
                {"name": "CUDA graphs", "bytes": 1.3e9, "provenance": "measured"},
                {"name": "KV pool", "bytes": 30.8e9, "provenance": "measured"},
                {"name": "outside the engine's share", "bytes": 8.5e9, "provenance": "derived"},
                {"name": "free", "bytes": 5.0e9, "provenance": "derived"},
            ],
        },
        what_if=[
            {
                "batch": b,
                "step_ms": 22 + 0.11 * b,
                "step_ms_low": 20 + 0.1 * b,
                "step_ms_high": 24 + 0.13 * b,
                "tok_s": 1000 * b / (22 + 0.11 * b),
                "tok_s_low": 1000 * b / (24 + 0.13 * b),
                "tok_s_high": 1000 * b / (20 + 0.1 * b),
                "kv_used_share": b / 75,
                "provenance": "derived",
                "marks": {64: ["measured here"], 75: ["KV wall"]}.get(b, []),
                "slo_itl_ms": 30.0,
            }
            for b in (1, 2, 4, 8, 16, 32, 64, 75, 96, 128)
        ],
        representative={
            "verdict": "no trace",
            "message": "No trace was given, so kernels were not assessed.",
        },
        engine_config=[
            {"key": "max_num_seqs", "value": 256, "origin": "server.log"},
            {"key": "enforce_eager", "value": False, "origin": "server.log"},
        ],
        model={"name": "meta-llama/Llama-3.3-70B-Instruct", "dtype": "bf16"},
        hypotheses=[
            c.Hypothesis(
                id="kv-full",
                limit="kv_capacity",
                phase="decode",
                objective="throughput",
                status="supported",
                confidence=0.88,
                gain=c.Gain("throughput", 1.5, 2.1, "ratio", "end to end"),
                statement="The KV pool is 99.4 % full while up to 128 requests wait.",
                evidence=[
                    c.Evidence("KV pool used, peak", 0.994, "share", 0.95, "above", "measured"),
                    c.Evidence("requests waiting, peak", 128, "requests", 1, "above", "measured"),
                    c.Evidence("preemptions", 0, "count", None, None, "measured"),
                ],
            ),
            c.Hypothesis(
                id="hbm-roof",
                limit="hbm",
                phase="decode",
                objective="throughput",
                status="not_assessed",
                confidence=None,
                gain=None,
                statement="Memory bandwidth was not assessed.",
                missing=["a trace of five decode steps"],
            ),
        ],
        verdict=c.Verdict(
            "kv_capacity",
            "decode",
            "throughput",
            0.88,
            "Throughput is limited by KV-cache capacity: the pool of 93,872 tokens is 99.4 % full with 128 "
            "requests waiting.",
            "scheduling",
            "hbm",
            [],
            ["demand: requests wait throughout"],
            ["kernel limits: no trace was given"],
        ),
    )


# --- eight ranks
# ------------------------------------------------------------------------------------------------------
def eight_ranks() -> c.Diagnosis:
    def rank(r: int) -> c.Diagnosis:
        late = r == 5
        attr = attribution(
            hbm=52_000_000,
            communication=8_000_000,
            comm_wait=0 if late else 3_300_000,
            floor=2_000_000,
            idle_launch=4_700_000 + (3_300_000 if late else 0),
        )
        return diagnosis(
            source=[c.Source(f"rank{r}.json.gz", "kineto", f"{r}{r}" * 32, "kineto", rank=r, world_size=8)],
            devices=[device(attr, id_=0, rank=r)],
            coverage=coverage(62_000_000, 60_000_000),
            phases=[phase("decode", attr, steps=5, limit="imbalance" if late else "hbm", confidence=0.8)],
            verdict=c.Verdict(
                "imbalance" if late else "hbm",
                "decode",
                "step_time",
                0.8,
                "Rank 5 is late: its host launches 5 % slower." if late else "Waits for rank 5.",
            ),
        )

    top = rank(5)
    top.ranks = [rank(r) for r in range(8)]
    top.rank_summary = {
        "slowest_rank": 5,
        "message": "Rank 5 is last into 71 of 73 collectives.",
        "skew_ns": 1200,
    }
    top.counters = [
        {"device": 0, "metric": metric, "unit": "%", "ts_ns": t * 1_000_000, "value": base + (t * 37 % 11)}
        for metric, base in (("DRAM read", 60), ("tensor active", 12), ("SM active", 75))
        for t in range(60)
    ]
    top.steps = [
        c.StepRow(
            s,
            0,
            "decode",
            s * 14_000_000,
            s * 14_000_000 + 13_200_000,
            800_000,
            16,
            0,
            16,
            16_000 + 16 * s,
            {b: v // 5 for b, v in top.devices[0].attribution_ns.items()},
        )
        for s in range(5)
    ]
    top.steps_total = 5
    return top


CASES: dict[str, Callable[[], c.Diagnosis]] = {
    "launch_bound": launch_bound,
    "decode_unobserved": decode_unobserved,
    "prefill_inefficient": prefill_inefficient,
    "healthy": healthy,
    "two_devices_copy": two_devices_copy,
    "serving_only": serving_only,
    "eight_ranks": eight_ranks,
}


@pytest.fixture(params=list(CASES))
def any_case(request: pytest.FixtureRequest) -> c.Diagnosis:
    """Each of the modelled runs in turn."""
    return CASES[request.param]()


@pytest.fixture
def many_kernels() -> c.Diagnosis:
    """A run with 6,004 rows of long names: more JSON than a page may hold."""
    return prefill_inefficient(6000)


@pytest.fixture
def case() -> Callable[[str], c.Diagnosis]:
    """A modelled run by name."""
    return lambda name: CASES[name]()
