"""The quantisation and batching views, and what becomes of hypotheses, on simulated runs whose change is known."""

from dataclasses import replace

import pytest
from sim.arch import ARCHS, StepPlan
from sim.model import Options, step_kernels
from sim.world import HostCosts, Profile, World

from diagnose import contract as c
from diagnose.settle.compare import compare

QUICK = HostCosts(
    op_ns=2_000.0, api_ns=2_000.0, sched_ns=100_000.0, sched_per_seq_ns=500.0, detok_per_token_ns=500.0
)


def world(batch=16, context=1000, prefill=0, **changes):
    """Six decode steps (and three prefill steps) of a Llama-3-8B cut to six layers, on an H100."""
    plans = tuple(StepPlan(decode=(context,) * batch).grown(i) for i in range(6))
    plans += tuple(StepPlan(prefill=((prefill, prefill),)) for _ in range(3 if prefill else 0))
    arch = replace(ARCHS["llama-3-8b"], layers=6)
    made = World(
        arch=arch, plans=plans, host=QUICK, profile=Profile(engine="vllm_detailed"), noise=0.01, seed=5
    )
    return replace(made, **changes)


@pytest.fixture(scope="module")
def fp8(traced):
    before = traced(world(prefill=2048))
    return compare([before], [traced(world(prefill=2048, options=Options(weights="fp8"), again=1))])


def test_quantised_products_are_the_same_work(fp8):
    view = fp8.quantization
    # Most of the products' time is fp8 now; the head, a tenth of it in six layers, stays bf16.
    assert view["before"] == "bf16"
    assert view["after"].split(" and ")[0] == "fp8"
    assert {row["phase"] for row in view["phases"]} == {"prefill", "decode"}
    products = [k for k in fp8.kernels if k.renamed and k.role == "gemm"]
    # qkv, o, gate and up, down; in both phases. The head stays bf16.
    assert len(products) == 8
    assert all(k.matched_by == "shape" for k in products)


def test_weight_bytes_halve_nominally_and_activations_do_not(fp8):
    by = {row["phase"]: row for row in fp8.quantization["phases"]}
    for row in by.values():
        assert row["bytes_nominal"]["ratio"] == 0.5
    # Decode, 16 rows: (m k + k n) x 1 + 2 m n against 2 (m k + k n + m n); weights dominate. At 2,048 rows they do not.
    m, shapes = 16, [(4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)]
    bf16 = sum(2 * (m * k + k * n + m * n) for k, n in shapes)
    fp8_bytes = sum(m * k + k * n + 2 * m * n for k, n in shapes)
    assert by["decode"]["bytes_encoded"]["ratio"] == pytest.approx(fp8_bytes / bf16, rel=0.02)
    assert by["prefill"]["bytes_encoded"]["ratio"] > by["decode"]["bytes_encoded"]["ratio"]


def test_weights_were_the_traffic_in_decode_and_not_in_prefill(fp8):
    by = {row["phase"]: row for row in fp8.quantization["phases"]}
    assert by["decode"]["streaming_share"] > 0.9
    assert by["prefill"]["streaming_share"] < 0.1
    assert "not what limited them" in by["prefill"]["reading"]


def test_prediction_is_share_times_measured_ratio_and_realised_is_the_step(fp8):
    decode = next(row for row in fp8.quantization["phases"] if row["phase"] == "decode")
    step = next(m for m in fp8.metrics if m.metric == "step time" and m.phase == "decode")
    assert decode["realised"]["speedup"] == pytest.approx(step.before / step.after)
    predicted, share = decode["predicted"], decode["products_share"]
    assert predicted["method"] == "fp8"
    assert 1 < predicted["low"] < predicted["high"] < 1 / (1 - share)
    assert ("within" in decode["reading"]) == (
        predicted["low"] <= decode["realised"]["speedup"] <= predicted["high"]
    )


def test_added_quantising_kernels_are_counted_by_phase(fp8):
    added = fp8.quantization["added_kernels"]
    assert {k["phase"] for k in added} == {"prefill", "decode"}
    assert all("quantise" in k["work"] for k in added)
    for phase in ("prefill", "decode"):
        delta = next(d for d in [fp8.delta, *fp8.deltas] if d.phase == phase)
        part = next(r for r in delta.roles if r.role == "quantise")
        mine = sum(k["ns_per_unit"] for k in added if k["phase"] == phase)
        assert part.before_ns == 0
        # As many as the simulated model launches; both readings are of the same calls.
        plan = world(prefill=2048).plans[-1 if phase == "prefill" else 0]
        launched = step_kernels(world().arch, plan, Options(weights="fp8"), "nvidia")
        assert part.calls_after == sum(k.role == "quant" for group in launched for k in group) > 0
        assert mine == pytest.approx(part.after_ns, rel=0.05)


def test_freed_weights_do_not_double_the_pool(served):
    from serving_forms import vllm_log

    def run(pool, gib, weights, name):
        log = vllm_log(
            [(10, 0, 40.0, 0)] * 5,
            pool=pool,
            gib=gib,
            extra=(f"Model loading took {weights} GiB memory and 3.1 seconds",),
        )
        return served({"mean_ttft_ms": 50.0, "completed": 100, "model_id": name}, log)

    view = compare(
        [run(300_000, 40.0, 15.0, "org/M-7B")], [run(356_000, 47.5, 7.5, "org/M-7B-FP8")]
    ).quantization
    assert view["weights"]["ratio"] == pytest.approx(0.5)
    assert view["kv"]["ratio"] == pytest.approx(356 / 300)
    assert "does not double it" in view["kv"]["text"]
    assert "40 %" in view["kv"]["text"]


def test_nothing_quantised_no_view(traced):
    before = traced(world())
    assert compare([before], [traced(world(again=1))]).quantization is None


def test_evaluations_stand_beside_the_speed(fp8, traced):
    rows = [{"results": {"t": {"acc,none": acc, "acc_stderr,none": 0.01}}} for acc in (0.7, 0.5)]
    before = traced(world(prefill=2048))
    result = compare(
        [before], [traced(world(prefill=2048, options=Options(weights="fp8"), again=1))], (rows[0], rows[1])
    )
    assert result.quality["tasks"][0]["verdict"] == "regressed"
    assert "worse: t acc" in result.quantization["quality"]


@pytest.fixture(scope="module")
def batched(traced):
    before = traced(world(batch=16))
    return compare([before], [traced(world(batch=64, again=1))])


def test_batching_gains_reuse_and_costs_the_gap(batched):
    view = batched.batching
    assert view["batch"] == [16, 64]
    # Weights are read once a step: the products' bytes a token fall by nearly the factor of the batch.
    reuse = view["reuse"]
    assert 3.5 < reuse["bytes_per_token_before"] / reuse["bytes_per_token_after"] < 4.0
    by = {m.metric: m for m in batched.metrics}
    assert view["itl_change"] == by["step time"].change > 0
    token = by["time per token"]
    assert view["throughput_change"] == pytest.approx(token.before / token.after - 1)
    assert batched.verdict.overall == "mixed"
    assert batched.delta.per == "token"


def test_both_points_on_the_what_if_curve(batched):
    curve = batched.batching["what_if"]
    assert curve["before"]["batch"] == 16
    assert curve["batch"] == 64
    step = next(m for m in batched.metrics if m.metric == "step time")
    assert curve["step_ms_measured"] == step.after
    assert curve["inside"] == (curve["step_ms_low"] <= step.after <= curve["step_ms_high"])
    assert {16.0, 64.0} <= {row["batch"] for row in curve["curve"]}


def test_knee_is_the_ridge_of_the_roofs(batched):
    from diagnose.devices import resolve

    knee = batched.batching["knee"]
    assert knee["tokens"] == resolve("h100-sxm").ridge("bf16")
    assert knee["batch_over_knee"] == pytest.approx([16 / knee["tokens"], 64 / knee["tokens"]])


def bet(limit, bucket_ns, prediction=(1.0, 2.0)):
    return c.Hypothesis(
        id=f"{limit}@decode", limit=limit, phase="decode", objective="step_time", status="supported", confidence=0.9, gain=None, statement="",
        experiment=c.Experiment(
            change="x", command=None, metric="step time", prediction=c.Interval(low=prediction[0], high=prediction[1], unit="ms"),
            under_runner_up=None, refuted_if="", cost="", baseline=bucket_ns,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        # Idle falls from 4 to 1 ms and the step with it; idle falls and comes back as kernels; idle stays.
        ({"hbm": 5_000_000, "idle_launch": 1_000_000}, "confirmed"),
        ({"hbm": 8_000_000, "idle_launch": 1_000_000}, "refuted"),
        ({"hbm": 5_000_000, "idle_launch": 3_900_000}, "not_tested"),
    ],
)
def test_a_hypothesis_is_settled_by_what_its_relief_did(build, after, expected):
    before = build.result([build.step(i, hbm=5_000_000, idle_launch=4_000_000) for i in range(8)])
    before.hypotheses = [bet("launch_overhead", 4e6, (5.5, 6.5))]
    (found,) = compare([before], [build.result([build.step(i, **after) for i in range(8)])]).hypotheses
    assert found.verdict == expected
    if expected == "confirmed":
        assert "inside the 5.5–6.5" in found.reason


def test_kernels_that_change_class_without_getting_shorter_test_nothing(build):
    before = build.result([build.step(i, hbm=5_000_000) for i in range(8)])
    before.hypotheses = [bet("hbm", 5e6)]
    after = build.result([build.step(i, inefficient=5_000_000) for i in range(8)])
    (found,) = compare([before], [after]).hypotheses
    assert (found.verdict, "another class" in found.reason) == ("not_tested", True)
