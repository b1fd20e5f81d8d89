"""A calibration made here is used by later diagnoses of that device, unless another one is given."""

from pathlib import Path

import pytest

from diagnose.collectors.device_toml import DeviceFile, Roof, store_path
from diagnose.collectors.step_text import PHASES, Step
from diagnose.model.step_text import parse_step
from diagnose.pipeline import Options, run

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "generated_h100_decode_hbm.json.gz"


def test_later_diagnoses_prefer_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    plain = run([SAMPLE]).devices[0]
    assert next(r for r in plain.roofs if r.resource == "hbm").sustained != 2977.0
    path = store_path("NVIDIA H100 80GB HBM3")
    path.parent.mkdir(parents=True)
    file = DeviceFile("NVIDIA H100 80GB HBM3", "sm_90", 132, 85018279936)
    file.roofs = [Roof("hbm", points=[(1e6, 1000.0), (1e8, 2977.0)])]
    path.write_text(file.toml())
    kept = run([SAMPLE]).devices[0]
    hbm = next(r for r in kept.roofs if r.resource == "hbm")
    assert (hbm.sustained, hbm.provenance) == (2977.0, "measured")
    assert "calibrated here" in (kept.match_note or "")
    given = run([SAMPLE], Options(device="h100-sxm")).devices[0]
    assert next(r for r in given.roofs if r.resource == "hbm").sustained != 2977.0


@pytest.mark.parametrize("phase", PHASES)
def test_what_captures_write_is_read_back(phase: str) -> None:
    known = parse_step(Step(phase, 4, 12 if phase == "prefill" else 4, 400).text())
    assert known is not None and known.phase == phase
    if phase in ("prefill", "decode"):
        assert known.sequences == 4
    unknown = parse_step(Step(phase).text())
    assert unknown is not None and unknown.phase == phase


def test_sums_of_a_lockstep_batch() -> None:
    # 4 sequences of 3 new tokens and 100 held: sq 12, sk 400, sqsq 4 x 9, sqsk 4 x 300.
    assert Step("prefill", 4, 12, 400).text().startswith("execute_12_context_4(sq12sk400sqsq36sqsk1200)")
    read = parse_step(Step("prefill", 4, 12, 400).text())
    assert read is not None and (read.prefill_tokens, read.prefill_context_tokens) == (12, 400)
    plain = parse_step(Step("decode", 8, 8).text())
    assert plain is not None and (plain.decode_tokens, plain.context_tokens) == (8, None)
