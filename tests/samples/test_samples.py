"""Every shipped sample gets the diagnosis its note reasons out, and the buckets that its events add up to.

`sample_traces/expected.json` is written by hand from the notes. Window and busy time are recomputed here from the raw
events, without the package.
"""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diagnose.contract import Diagnosis
from diagnose.pipeline import Options, run

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
EXPECTED: dict[str, dict[str, Any]] = json.loads((SAMPLES / "expected.json").read_text())
BUSY = ("compute", "hbm", "floor", "inefficient", "unmodelled", "communication", "comm_wait", "copy")

each_sample = pytest.mark.parametrize("name", sorted(EXPECTED))


@cache
def diagnosis(name: str) -> Diagnosis:
    device = EXPECTED[name]["device"]
    return run([SAMPLES / f"{name}.json.gz"], Options(device=str(SAMPLES / device) if device else None))


@cache
def events(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress((SAMPLES / f"{name}.json.gz").read_bytes()))[
        "traceEvents"
    ]
    return found


def activities(name: str) -> list[tuple[int, int]]:
    """Start and end in ns of what runs on the device; operators where there is no GPU."""
    kinds = ("kernel", "gpu_memcpy", "gpu_memset") if name.startswith("generated") else ("cpu_op",)
    found = [e for e in events(name) if e.get("ph") == "X" and e["cat"] in kinds]
    return sorted((round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000)) for e in found)


def union(spans: list[tuple[int, int]]) -> int:
    total, reach = 0, spans[0][0]
    for start, end in spans:
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def test_every_trace_has_a_note_and_an_expectation() -> None:
    traces = {p.name.removesuffix(".json.gz") for p in SAMPLES.glob("*.json.gz")}
    assert traces == set(EXPECTED) == {p.stem for p in SAMPLES.glob("*.md")}
    for path in SAMPLES.glob("*.md"):
        text = path.read_text()
        assert "## Expected diagnosis" in text and f"**{EXPECTED[path.stem]['limit']}**" in text
        assert ("Generated, not captured" in text) is path.stem.startswith("generated")


def test_the_samples_are_small_and_name_nobody() -> None:
    files = [p for p in SAMPLES.iterdir() if p.is_file()]
    assert sum(p.stat().st_size for p in files) <= 2 << 20
    for path in SAMPLES.glob("*.json.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        assert not document.get("host_name")
        assert "/" not in document.get("traceName", "")


@each_sample
def test_the_verdict_is_the_notes(name: str) -> None:
    expected, found = EXPECTED[name], diagnosis(name)
    assert (found.verdict.limit, found.verdict.phase) == (expected["limit"], expected["phase"]), (
        found.verdict.summary
    )
    if "runner_up" in expected:
        assert found.verdict.runner_up == expected["runner_up"]


@each_sample
def test_steps_and_tokens(name: str) -> None:
    phases = [p for p in diagnosis(name).phases if p.steps]
    assert [(p.phase, p.steps) for p in phases] == [(EXPECTED[name]["phase"], EXPECTED[name]["steps"])]
    tokens = phases[0].tokens
    assert {k: tokens.get(k) or 0 for k in ("prefill", "decode")} == EXPECTED[name]["tokens"]


@each_sample
def test_the_buckets_add_up_to_the_window_and_its_busy_time(name: str) -> None:
    spans = activities(name)
    window = max(end for _, end in spans) - spans[0][0]
    attribution = diagnosis(name).attribution_ns
    assert attribution is not None
    assert sum(attribution.values()) == window
    # Times are whole nanoseconds on both sides; rounding start and end apart can shift each event by one.
    assert abs(sum(attribution[b] for b in BUSY) - union(spans)) <= len(spans)


@each_sample
def test_the_largest_kernel_or_gap_is_the_one_the_note_names(name: str) -> None:
    expected, found = EXPECTED[name], diagnosis(name)
    if "top_kernel" in expected:
        times: dict[tuple[str, str], int] = {}
        for row in found.kernels:
            key = (row.op or row.name if name.startswith("cpu") else row.name, row.bound)
            times[key] = times.get(key, 0) + row.time_ns
        (kernel, bound), _ = max(times.items(), key=lambda item: item[1])
        assert kernel.startswith(expected["top_kernel"]) and bound == expected["top_bound"]
    if "idle_bucket" in expected:
        idle = {
            k: v for k, v in (found.attribution_ns or {}).items() if k.startswith("idle") or k == "unobserved"
        }
        assert max(idle, key=lambda k: idle[k]) == expected["idle_bucket"]


# (inputs, outputs) of the products of a layer, and of the head.
LAYER = ((1024, 1536), (1024, 1024), (1024, 5632), (2816, 1024))
HEAD = (1024, 8192)


@pytest.mark.parametrize(
    ("name", "products", "rows", "weight_width", "width"),
    [
        ("cpu_decode_b1_fp32", "aten::mm", 1, 4, 4),
        ("cpu_decode_b8_bf16", "aten::mm", 8, 2, 2),
        ("cpu_decode_b1_int8", "aten::_weight_int8pack_mm", 1, 1, 2),
        ("cpu_prefill_fp32", "aten::mm", 512, 4, 4),
    ],
)
def test_costs_of_the_products(name: str, products: str, rows: int, weight_width: int, width: int) -> None:
    # The head sees the last token only: as many rows as there are sequences.
    shapes = [(rows, k, n) for k, n in LAYER * 4] + [(1 if rows == 512 else rows, *HEAD)]
    flops = sum(2 * m * k * n for m, k, n in shapes)
    nbytes = sum(weight_width * k * n + width * (m * k + m * n) for m, k, n in shapes)
    if weight_width == 1:
        nbytes += sum(2 * n for _, _, n in shapes)  # a bf16 scale for each output
    # A product's cost belongs to the outermost operator and is shared by what runs inside it.
    found = [k for k in diagnosis(name).kernels if k.flops and " . " in (k.shape or "")]
    assert max(found, key=lambda k: k.time_ns).op == products
    steps = EXPECTED[name]["steps"]
    assert sum(k.flops or 0 for k in found) == pytest.approx(steps * flops, rel=1e-9)
    assert sum(k.bytes or 0 for k in found) == pytest.approx(steps * nbytes, rel=1e-9)


def test_no_rate_above_a_roof_is_unflagged() -> None:
    for name in EXPECTED:
        for row in diagnosis(name).kernels:
            if (row.percent_of_roof or 0) > 105:
                assert row.flags, (name, row.name, row.shape, row.percent_of_roof)


def test_the_generated_samples_are_what_the_generator_writes(tmp_path: Path) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate", SAMPLES / "generate.py")
    assert spec and spec.loader
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for path in generate.all_generated(tmp_path):
        # Compressed bytes depend on the zlib at hand, what is in them does not.
        assert gzip.decompress(path.read_bytes()) == gzip.decompress((SAMPLES / path.name).read_bytes())
