"""What a capture says of itself reaches the result, and nothing is made up where it says nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.errors import InputError
from diagnose.pipeline import run
from diagnose.run.told import Told, read_told

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def folder(path: Path, run_json: dict[str, Any], server: dict[str, Any] | None = None) -> Path:
    path.mkdir()
    sample = SAMPLES / "cpu_decode_tiny_ops.json.gz"
    (path / "trace.json.gz").write_bytes(sample.read_bytes())
    (path / "device.toml").write_text((SAMPLES / "cpu_1_thread.toml").read_text())
    (path / "run.json").write_text(json.dumps({"schema": "diagnose-run/1", "collector": "torch", **run_json}))
    if server is not None:
        (path / "server.json").write_text(json.dumps({"schema": "diagnose-server/1", **server}))
    return path


@pytest.mark.parametrize(("slowdown", "noted"), [(1.14, False), (1.16, True), (None, False)])
def test_what_recording_cost_is_a_note_when_it_matters(
    tmp_path: Path, slowdown: float | None, noted: bool
) -> None:
    given = {"slowdown": slowdown, "versions": {"torch": "2.13.0"}, "notes": ["no trace was taken"]}
    result = run([folder(tmp_path / "a.run", given)])
    notes = {n.code: n.message for n in result.data_quality}
    assert ("profiler-slowdown" in notes) is noted
    assert "skipped-file" not in notes
    assert notes["capture"] == "the capture says: no trace was taken"
    assert result.source[0].framework == "pytorch 2.13.0"
    assert {r.provenance for r in result.devices[0].roofs} == {"measured"}


def test_the_served_model_is_used_when_it_is_known(tmp_path: Path) -> None:
    server = {"engine": "vllm", "model": "Qwen/Qwen3-8B"}
    known = run([folder(tmp_path / "a.run", {}, server)])
    assert known.model is not None and "8b" in str(known.model.get("name", "")).lower()
    unknown = run([folder(tmp_path / "b.run", {}, {"engine": "vllm", "model": "our-own-finetune"})])
    assert unknown.model is None


def test_damaged_files_tell_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "run.json"
    for text in ("", "[]", "{", '{"schema": 3}', '{"schema": "diagnose-run/1", "slowdown": "x", "notes": 1}'):
        bad.write_text(text)
        assert read_told([bad, tmp_path / "absent.json"]) == Told()


def test_a_folder_of_words_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": "diagnose-run/1"}')
    with pytest.raises(InputError, match="no trace, metrics, log or benchmark"):
        run([tmp_path])
