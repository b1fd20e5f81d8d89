"""What must be true of each real PyTorch profiler trace. Figures are from the traces' own description, or re-derived
here from the raw JSON with the standard library."""

import gzip
import json

import pytest

pytestmark = pytest.mark.shared_traces

ALL = [
    "hf_bert-small_h100", "hf_owlv2_h100", "hf_qwen1.5-0.5b_h100_prefill", "hf_qwen1.5-0.5b_mi300x_prefill", "hf_vit_h100",
    "sglang_qwen3-8b_mi300x_decode_capture", "sglang_qwen3-8b_mi300x_decode_graph", "sglang_qwen3-8b_mi300x_prefill",
    "vllm_gptoss_b200_tp8_eager_prefill", "vllm_gptoss_mi300x_decode_capture", "vllm_gptoss_mi300x_decode_fullgraph",
]  # fmt: skip


def share(d, bucket):
    return d.attribution_ns[bucket] / sum(d.attribution_ns.values())


def phase(d, name):
    return next(p for p in d.phases if p.phase == name)


@pytest.mark.parametrize("name", ALL)
def test_every_nanosecond_is_in_one_bucket(diagnose_real, name):
    d = diagnose_real(name)
    for device in d.devices:
        assert (
            sum(device.attribution_ns.values())
            == device.window.wall_ns
            == device.window.end_ns - device.window.start_ns
        )
    assert sum(d.attribution_ns.values()) == sum(device.window.wall_ns for device in d.devices)
    charged = sum(p.wall_ns for p in d.phases) + d.outside_steps.wall_ns
    assert charged == sum(d.attribution_ns.values())
    for p in d.phases:
        assert sum(p.attribution_ns.values()) == p.wall_ns
    assert sum(d.outside_steps.attribution_ns.values()) == d.outside_steps.wall_ns


@pytest.mark.parametrize("name", ALL)
def test_window_and_kernels_are_those_of_the_file(diagnose_real, shared, name):
    events = json.loads(gzip.decompress((shared / "kineto" / f"{name}.json.gz").read_bytes()))["traceEvents"]
    device = [
        e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and e.get("ph") == "X"
    ]
    start = min(round(e["ts"] * 1000) for e in device)
    end = max(round(e["ts"] * 1000) + round(e["dur"] * 1000) for e in device)
    d = diagnose_real(name)
    assert len(d.devices) == 1
    # ts is a float in this reading: a few ns of slack for its rounding.
    assert abs(d.devices[0].window.wall_ns - (end - start)) <= 4
    kernels = [k for k in d.kernels if k.family not in ("copy",)]
    assert sum(k.count for k in kernels) == sum(e["cat"] == "kernel" for e in device)


@pytest.mark.parametrize("name", ALL)
def test_nothing_exceeds_a_roof_without_a_flag(diagnose_real, name):
    for k in diagnose_real(name).kernels:
        if k.percent_of_roof is not None and k.percent_of_roof > 100:
            assert {"over_roof", "cache_resident", "joint"} & set(k.flags), (k.name, k.percent_of_roof)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("hf_bert-small_h100", {"launch_overhead"}, None),
        ("hf_vit_h100", {"launch_overhead"}, None),
        ("hf_owlv2_h100", {"host_input", "kernel_inefficiency"}, {"host_input", "kernel_inefficiency"}),
        ("hf_qwen1.5-0.5b_h100_prefill", {"kernel_inefficiency"}, {"compute", "hbm"}),
        ("hf_qwen1.5-0.5b_mi300x_prefill", {"kernel_inefficiency"}, None),
        ("sglang_qwen3-8b_mi300x_prefill", {"compute"}, None),
        ("vllm_gptoss_b200_tp8_eager_prefill", {"launch_overhead"}, None),
        # Graph replays carry no shapes: without the model's numbers the answer is a request.
        ("sglang_qwen3-8b_mi300x_decode_graph", {"inconclusive"}, None),
        ("vllm_gptoss_mi300x_decode_fullgraph", {"inconclusive"}, None),
        ("sglang_qwen3-8b_mi300x_decode_capture", {"inconclusive"}, None),
        ("vllm_gptoss_mi300x_decode_capture", {"inconclusive"}, None),
    ],
)
def test_verdict(diagnose_real, name, first, second):
    verdict = diagnose_real(name).verdict
    assert verdict.limit in first
    if second is not None:
        assert verdict.runner_up in second
        assert verdict.runner_up != verdict.limit


def test_graph_replay_asks_for_the_model(diagnose_real):
    for name in ("sglang_qwen3-8b_mi300x_decode_graph", "vllm_gptoss_mi300x_decode_fullgraph"):
        d = diagnose_real(name)
        assert "--model" in d.verdict.summary
        assert d.verdict.confidence is None


def test_host_bound_traces(diagnose_real):
    assert share(diagnose_real("hf_bert-small_h100"), "idle_launch") >= 0.83
    assert share(diagnose_real("hf_vit_h100"), "idle_launch") >= 0.80
    b200 = diagnose_real("vllm_gptoss_b200_tp8_eager_prefill")
    assert share(b200, "idle_launch") == pytest.approx(0.86, abs=0.01)
    assert any("stacks" in n.message.lower() for n in b200.data_quality)
    assert any("stacks" in line.lower() for line in b200.verdict.could_not_tell)
    # 74 same-stream overlaps, all of programmatic dependent launch: busy time is still 11.6 ms.
    idle = sum(ns for b, ns in b200.attribution_ns.items() if b.startswith("idle"))
    assert (b200.devices[0].window.wall_ns - idle) / 1e6 == pytest.approx(11.6, abs=0.1)


def test_owlv2_waits_for_its_data_loader(diagnose_real):
    d = diagnose_real("hf_owlv2_h100")
    assert 0.45 <= share(d, "idle_scheduling") <= 0.46
    claim = next(h for h in d.hypotheses if h.limit == "host_input" and h.status == "supported")
    assert "DataLoader" in claim.statement
    slow = {k.op: k for k in reversed(d.kernels) if k.op in ("aten::_softmax", "aten::bmm")}
    kernel_ns = d.coverage.kernel_time_ns
    for op, part in (("aten::_softmax", 0.47), ("aten::bmm", 0.42)):
        mine = [k for k in d.kernels if k.op == op]
        assert sum(k.time_ns for k in mine) / kernel_ns == pytest.approx(part, abs=0.01)
        assert slow[op].bound == "inefficient"
    assert "align1" in slow["aten::bmm"].reason


def test_sglang_decode_is_a_slice(diagnose_real):
    d = diagnose_real("sglang_qwen3-8b_mi300x_decode_graph")
    assert d.attribution_ns["unobserved"] / 1e6 == pytest.approx(463, abs=1)
    decode = phase(d, "decode")
    assert decode.steps == 1
    step = decode.step_time_ns["p50"]
    assert step / 1e6 == pytest.approx(10.4, abs=0.05)
    idle = sum(ns for b, ns in decode.attribution_ns.items() if b.startswith("idle"))
    assert idle / step == pytest.approx(0.065, abs=0.003)
    # Not in the step, not in the verdict.
    assert decode.attribution_ns["unobserved"] == 0
    assert "98" not in d.verdict.summary
    assert decode.tokens["decode"] == 32
    assert decode.context_tokens == 32_785


def test_sglang_prefill(diagnose_real):
    d = diagnose_real("sglang_qwen3-8b_mi300x_prefill")
    assert phase(d, "prefill").tokens["prefill"] == 15_360
    assert d.attribution_ns["unobserved"] / 1e6 == pytest.approx(493, abs=1)
    products = [k for k in d.kernels if k.op == "aten::mm"]
    ns = sum(k.time_ns for k in products)
    assert ns / d.coverage.kernel_time_ns == pytest.approx(0.85, abs=0.01)
    assert sum(k.flops for k in products) / ns / 1e3 == pytest.approx(508, rel=0.01)


def test_qwen_h100_rows(diagnose_real):
    d = diagnose_real("hf_qwen1.5-0.5b_h100_prefill")
    assert sum(k.count for k in d.kernels if k.family != "copy") == 1_465
    assert d.coverage.no_launch_ns / 1e6 == pytest.approx(13.67, abs=0.01)
    assert d.coverage.kernel_time_ns / 1e6 == pytest.approx(45.43, abs=0.01)
    mm = next(k for k in d.kernels if k.op == "aten::mm" and k.shape == "8944x1024 . 1024x2816")
    # 2 x 8944 x 1024 x 2816 FLOP; (8944 x 1024 + 1024 x 2816 + 8944 x 2816) elements of 2 bytes.
    assert mm.flops / mm.count == 2 * 8944 * 1024 * 2816 == pytest.approx(51.58e9, rel=1e-3)
    assert (
        mm.bytes / mm.count
        == 2 * (8944 * 1024 + 1024 * 2816 + 8944 * 2816)
        == pytest.approx(74.46e6, rel=1e-3)
    )
    assert mm.bound == "compute"
    # The trace's description quotes one call, 84.48 us: 610.6 TFLOP/s. The 48 linked calls take 81.5-86.0 us, 83.66 on
    # average, and a row holds totals: 51.58e9 / 83.66e-6 = 616.6 TFLOP/s.
    assert mm.count == 48
    assert mm.tflops == pytest.approx(616.6, abs=0.5)
    assert mm.flops / mm.count / 84.48e-6 / 1e12 == pytest.approx(610.6, abs=0.5)
    flash = next(k for k in d.kernels if k.op == "aten::_flash_attention_forward")
    assert flash.flops / flash.count == pytest.approx(10.24e9, rel=0.01)
    assert flash.time_ns / flash.count / 1e3 == pytest.approx(113.4, abs=0.5)
    assert flash.bound == "inefficient"
    mul = next(k for k in d.kernels if k.op == "aten::mul" and k.shape == "16x559x1024 , 16x559x1")
    assert mul.bound == "hbm"
    assert mul.gbps == pytest.approx(2_200, rel=0.03)
    strided = [
        k for k in d.kernels
        if k.op in ("aten::copy_", "aten::mul") and k.gbps is not None and 1_100 <= k.gbps <= 1_320 and k.time_ns > 500_000
    ]  # fmt: skip
    assert len(strided) >= 2
    assert all(k.bound == "inefficient" for k in strided)


def test_device_of_an_unnamed_gpu(diagnose_real):
    d = diagnose_real("vllm_gptoss_mi300x_decode_fullgraph")
    assert d.devices[0].name == ""
    assert d.devices[0].catalog_key == "mi300x"


@pytest.mark.parametrize("name", ["sglang_qwen3-8b_mi300x_prefill", "vllm_gptoss_b200_tp8_eager_prefill"])
def test_step_bounds_without_annotations(diagnose_real, shared, name):
    from diagnose import pipeline

    found = diagnose_real(name)
    with_text = found.steps[0]
    stripped = pipeline.prepare(shared / "kineto" / f"{name}.json.gz", pipeline.Options())
    try:
        from diagnose.model.steps import build_steps

        stripped.store.con.execute(
            "CREATE OR REPLACE TABLE annotation AS SELECT * FROM annotation WHERE false"
        )
        build_steps(stripped.store, None, tuple(stripped.roofs))
        rows = stripped.store.rows("SELECT start_ns, end_ns FROM step")
    finally:
        stripped.store.close()
    assert len(rows) == 1
    # Without annotations nothing tells the work launched just outside the step: within 0.1 % of its length.
    length = with_text.end_ns - with_text.start_ns
    assert rows[0][0] == pytest.approx(with_text.start_ns, abs=length * 1e-3)
    assert rows[0][1] == pytest.approx(with_text.end_ns, abs=length * 1e-3)


def with_model(shared, name, model, tp=1):
    from diagnose import pipeline

    return pipeline.run([shared / "kineto" / f"{name}.json.gz"], pipeline.Options(model=model, tp=tp))


@pytest.mark.parametrize(
    ("name", "model", "tp", "limits", "covered"),
    [
        ("sglang_qwen3-8b_mi300x_decode_graph", "Qwen/Qwen3-8B", 1, ["hbm", "kernel_inefficiency"], 0.95),
        (
            "vllm_gptoss_mi300x_decode_fullgraph",
            "openai/gpt-oss-20b",
            1,
            ["kernel_inefficiency", "hbm"],
            0.85,
        ),
        ("vllm_gptoss_b200_tp8_eager_prefill", "openai/gpt-oss-120b", 8, ["launch_overhead"], 0.90),
    ],
)
def test_the_model_gives_graph_kernels_their_costs(shared, name, model, tp, limits, covered):
    d = with_model(shared, name, model, tp)
    assert d.coverage.with_cost_ns >= covered * d.coverage.kernel_time_ns
    assert d.verdict.limit == limits[0]
    if len(limits) > 1:
        assert d.verdict.runner_up == limits[1]
    for k in d.kernels:
        if k.percent_of_roof is not None and k.percent_of_roof > 100:
            assert k.flags


def test_sglang_decode_roof_is_weights_and_kv(shared):
    # 8.19e9 bf16 parameters less the embedding table (151,936 x 4,096) and 32,785 x 147,456 B of KV, at about 4.26 TB/s
    # sustained: (16.38e9 - 1.24e9 + 4.83e9) / 4.26e12 = 4.7 ms, of a step of 10.4.
    d = with_model(shared, "sglang_qwen3-8b_mi300x_decode_graph", "Qwen/Qwen3-8B")
    streamed = sum(
        k.bytes
        for k in d.kernels
        if k.bytes and (k.family in ("gemm", "gemv") or k.family.startswith("attn"))
    )
    assert streamed == pytest.approx(16.38e9 - 1.245e9 + 4.834e9, rel=0.03)


def test_a_wrong_model_is_refused(shared):
    d = with_model(shared, "sglang_qwen3-8b_mi300x_decode_graph", "meta-llama/Meta-Llama-3-8B")
    assert d.verdict.limit == "inconclusive"
    assert d.coverage.with_cost_ns < 0.05 * d.coverage.kernel_time_ns
    assert "does not fit" in d.verdict.summary
