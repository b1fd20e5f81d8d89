"""Packing a trace: whole, valid and without names."""

import gzip
import json
import zlib
from pathlib import Path

import pytest

from diagnose.collectors import trace_file


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_names_go_and_the_rest_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, chunk: int
) -> None:
    monkeypatch.setattr(trace_file, "_CHUNK", chunk)
    document = {
        "host_name": 'al"ice-laptop',
        "traceEvents": [
            {"name": "aten::mm", "args": {"Input Dims": [[1, 2], [2, 3]]}},
            {"name": "triton", "args": {"kernel_file": "/tmp/torchinductor_alice/ab/cab.py", "grid": "(1,)"}},
        ],
        "traceName": "/home/alice/trace.json",
    }
    source, target = tmp_path / "t.json", tmp_path / "out.json.gz"
    source.write_text(json.dumps(document, indent=indent))
    trace_file.pack(source, target)
    read = json.loads(gzip.decompress(target.read_bytes()))
    assert read["host_name"] == "" and read["traceName"] == ""
    assert read["traceEvents"][0] == document["traceEvents"][0]
    assert read["traceEvents"][1]["args"] == {"kernel_file": "cab.py", "grid": "(1,)"}


def test_a_truncated_gzip_leaves_nothing(tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps({"traceEvents": [{"name": str(i)} for i in range(5000)]}).encode())
    source = tmp_path / "t.json.gz"
    source.write_bytes(whole[: len(whole) // 2])
    with pytest.raises((EOFError, zlib.error)):
        trace_file.pack(source, tmp_path / "out.json.gz")
    assert [p.name for p in tmp_path.iterdir()] == ["t.json.gz"]
