"""Differences are named; those that change the work, the load or the measurement withhold the verdicts they touch."""

import pytest

from diagnose import contract as c
from diagnose.settle.compare import compare


def steps(build, ns=5_000_000, **buckets):
    return [build.step(i, hbm=ns, **(buckets or {"idle_launch": 2_000_000})) for i in range(8)]


def note(code):
    return c.Note(code=code, severity="info", message="")


def verdicts(result):
    return {m.metric: m.verdict for m in result.metrics}


@pytest.mark.parametrize("code", ["python-stacks", "profiler-slowdown", "profiler-overhead"])
def test_recording_that_slows_the_host_on_one_side(build, code):
    """Steps twice as long in idle, kernels the same: with stacks on one side only, nothing is said of the host."""
    after = build.result(steps(build, idle_launch=9_000_000), data_quality=[note(code)])
    result = compare([build.result(steps(build))], [after])
    assert verdicts(result) == {"step time": "withheld", "kernels": "no_change", "idle": "withheld"}
    assert result.verdict.overall == "inconclusive"
    both = compare([build.result(steps(build), data_quality=[note(code)])], [after])
    assert verdicts(both)["step time"] == "regressed"


def test_another_profiler(build):
    before, after = build.result(steps(build)), build.result(steps(build, idle_launch=9_000_000))
    after.source = [c.Source(path="t.sqlite", format="nsys", profiler="nsys")]
    result = compare([before], [after])
    assert verdicts(result)["idle"] == "withheld"
    assert verdicts(result)["kernels"] == "no_change"


def test_hidden_graph_kernels_withhold_kernels_too(build):
    result = compare(
        [build.result(steps(build))],
        [build.result(steps(build, 9_000_000), data_quality=[note("graph-mode")])],
    )
    assert set(verdicts(result).values()) == {"withheld"}


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        ({"name": "AMD Instinct MI300X"}, "device"),
        ({"model": {"name": "M", "tp": 4}}, "tensor parallel"),
        ({"engine_config": [{"key": "enforce_eager", "value": "true", "origin": "log"}]}, "enforce eager"),
        ({"engine_config": [{"key": "engine_version", "value": "0.12", "origin": "log"}]}, "engine version"),
    ],
)
def test_what_may_be_the_very_change_is_named_only(build, parts, what):
    config = [
        {"key": "enforce_eager", "value": "false", "origin": "log"},
        {"key": "engine_version", "value": "0.11", "origin": "log"},
    ]
    before = build.result(steps(build), model={"name": "M", "tp": 1}, engine_config=config)
    after = build.result(
        steps(build, 8_000_000), **{"model": {"name": "M", "tp": 1}, "engine_config": config, **parts}
    )
    result = compare([before], [after])
    assert what in [d.what for d in result.comparability]
    assert all(d.withholds == [] for d in result.comparability)
    assert verdicts(result)["step time"] == "regressed"


def test_another_model_by_its_size(build):
    sizes = {"hidden": 4096, "heads": 32}
    before = build.result(steps(build), model={"layers": 32, **sizes})
    after = build.result(steps(build, 9_000_000), model={"layers": 80, **sizes})
    assert set(verdicts(compare([before], [after])).values()) == {"withheld"}


def test_a_weight_format_is_no_other_model(build):
    before = build.result(steps(build), model={"name": "org/Llama-3-8B"})
    after = build.result(steps(build, 3_000_000), model={"name": "other/Llama-3-8B-FP8-dynamic"})
    result = compare([before], [after])
    assert [d for d in result.comparability if d.withholds] == []
    assert verdicts(result)["step time"] == "improved"


def test_precision_is_read_from_the_products(build):
    def run(dtype):
        rows = [
            build.kernel(
                "k", count=8, time_ns=40_000_000, role="gemm", op="o", shape="16x8 . 8x8", dtype=dtype
            )
        ]
        return build.result(steps(build), rows)

    (found,) = compare([run("bf16")], [run("fp8")]).comparability
    assert (found.what, found.before, found.after) == ("precision", "bf16", "fp8")


def test_repeats_that_are_none_withhold(build):
    before = [build.result(steps(build)), build.result(steps(build), name="NVIDIA A100")]
    result = compare(before, [build.result(steps(build))])
    assert set(verdicts(result).values()) == {"withheld"}
    assert "among the before runs" in result.comparability[0].what


def test_what_is_not_known_differs_from_nothing(build):
    before = build.result(steps(build), model={"name": "M"})
    assert compare([before], [build.result(steps(build))]).comparability == []


def encoder(build, rows, hidden, layers=12):
    """A window without steps or model: norms and products of one width, every shape known."""
    kernels = [
        build.kernel("norm", count=2 * layers, time_ns=2 * layers * 5_000, role="norm", family="norm", shape="1x64x512", phase="other"),
        build.kernel("mm", count=6 * layers, time_ns=6 * layers * 30_000, role="gemm", op="aten::mm", shape=f"{rows}x{hidden} . {hidden}x{hidden}", phase="other"),
    ]  # fmt: skip
    step = build.step(
        0,
        "other",
        sequences=None,
        context=None,
        provenance="window",
        hbm=sum(k.time_ns for k in kernels),
        idle_launch=10_000,
    )
    step.decode_tokens = step.prefill_tokens = None
    return build.result([step], kernels)


def test_windows_of_other_shapes_are_other_work_although_nothing_names_it(build):
    result = compare([encoder(build, 141, 512)], [encoder(build, 788, 768)])
    (found,) = [d for d in result.comparability if d.withholds]
    # Norms are 2 x 5 us of 2 x 5 + 6 x 30 a layer: 5 % of the time.
    assert (found.before, found.after) == ("5 %", "5 %")
    assert set(verdicts(result).values()) == {"withheld"}
    assert result.verdict.overall == "inconclusive"
    same = compare([encoder(build, 141, 512)], [encoder(build, 141, 512)])
    assert same.verdict.overall == "no_change"


def test_one_device_under_two_names_is_one_device(build):
    before, after = (
        build.result(steps(build), name=""),
        build.result(steps(build), name="NVIDIA H100 80GB HBM3"),
    )
    assert "device" not in [d.what for d in compare([before], [after]).comparability]
