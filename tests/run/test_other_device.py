"""The step on another device: what is at a roof scales with it, the rest stays."""

from pathlib import Path

import pytest

from diagnose import pipeline
from diagnose.cli import main
from diagnose.devices import resolve

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "generated_h100_decode_hbm.json.gz"


def test_only_the_memory_bound_share_gains_from_more_bandwidth():
    d = pipeline.run([SAMPLE], pipeline.Options(what_if_device=("h200-sxm",)))
    row = next(r for r in d.what_if_devices if r["phase"] == "decode")
    phase = next(p for p in d.phases if p.phase == "decode")
    split = {b: ns / phase.steps / 1e6 for b, ns in phase.attribution_ns.items()}
    now = sum(split.values())
    assert row["step_ms_here"] == pytest.approx(now, rel=1e-6)
    # Bandwidth grows by the ratio of the sustained plateaus; everything off the memory roof is kept.
    ratio = resolve("h100-sxm").plateau_bandwidth / resolve("h200-sxm").plateau_bandwidth
    ideal = now - split["hbm"] * (1 - ratio)
    assert row["step_ms"][0] <= ideal * 1.02
    assert row["step_ms"][1] >= ideal * 0.98
    assert row["speedup"][1] < 1 / ratio


def test_the_same_device_changes_nothing_much():
    d = pipeline.run([SAMPLE], pipeline.Options(what_if_device=("h100-sxm",)))
    row = next(r for r in d.what_if_devices if r["phase"] == "decode")
    assert row["step_ms"][0] == pytest.approx(row["step_ms_here"], rel=0.05)


def test_unknown_device_is_one_line(capsys, tmp_path):
    assert main([str(SAMPLE), "--what-if-device", "h200x", "-o", str(tmp_path / "x.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
