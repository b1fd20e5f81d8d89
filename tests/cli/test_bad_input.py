"""Bad input: one clear line, exit 2, nothing written, the input untouched."""

import gzip
import hashlib
import json
import sqlite3

import pytest


def refuse(cli, path, *words, extra=()):
    folder = path.parent
    before = {p.name: p.stat().st_size for p in folder.iterdir()}
    code, out, err = cli(path, *extra)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    for word in words:
        assert word in err.lower(), err
    assert {p.name: p.stat().st_size for p in folder.iterdir()} == before


def test_missing_file(cli, tmp_path):
    refuse(cli, tmp_path / "no.json", "no such")


def test_empty_file(cli, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b"")
    refuse(cli, path, "empty")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"hello world, this is a note\n", "neither"),
        (b"{}", "trace"),
        (b'{"traceEvents": []}', "no "),
        (
            b'{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]}',
            "neither",
        ),
        (b'{"a": [1, 2, 3]}', "trace"),
        (b"[" * 100_000, "trace"),
        (b'{"traceEvents": [', "ends inside"),
        (b"\x00" * 5_000, "neither"),
    ],
    ids=["text", "object", "no-events", "only-metadata", "other-json", "brackets", "cut-at-start", "zeros"],
)
def test_not_a_usable_trace(cli, tmp_path, content, word):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    refuse(cli, path, word)


def test_gzip_of_nothing_and_cut_gzip(cli, tmp_path):
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b""))
    refuse(cli, path, "gzip")
    path.write_bytes(gzip.compress(b'{"traceEvents": []}')[:12])
    refuse(cli, path)


def test_sqlite_that_is_no_nsys_export(cli, tmp_path):
    path = tmp_path / "x.sqlite"
    con = sqlite3.connect(path)
    con.execute("CREATE TABLE t (a)")
    con.commit()
    con.close()
    refuse(cli, path, "nsys")


def test_empty_folder(cli, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    code, out, err = cli(folder)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "folder" in err


def test_unknown_device_model_and_options(cli, sample):
    refuse(cli, sample, "h100-sxm", extra=("--device", "h100-smx"))
    refuse(cli, sample, extra=("--device", sample.parent / "no.toml"))
    refuse(cli, sample, "qwen3-8b", extra=("--model", "Qwen/Qwen3-8BB"))
    refuse(cli, sample, "objective", extra=("--objective", "speed"))
    refuse(cli, sample, "regular expression", extra=("--step-annotation", "("))
    refuse(cli, sample, "matches no annotation", extra=("--step-annotation", "zzz"))
    refuse(cli, sample, "no-such-option", extra=("--no-such-option",))


def test_input_is_never_modified(cli, sample):
    before = hashlib.sha256(sample.read_bytes()).hexdigest(), sample.stat().st_mtime_ns
    assert cli(sample)[0] == 0
    assert (hashlib.sha256(sample.read_bytes()).hexdigest(), sample.stat().st_mtime_ns) == before


def test_cut_at_97_percent_is_diagnosed_and_says_what_is_lost(cli, plain, tmp_path):
    data = plain.read_bytes()
    cut = tmp_path / "cut.json"
    cut.write_bytes(data[: int(len(data) * 0.97)])
    code, out, _ = cli(cut, "--json", "-", "--no-html")
    assert code == 0
    d = json.loads(out)
    assert d["verdict"]["limit"] == "launch_overhead"
    lost = [
        n["message"]
        for n in d["data_quality"]
        if "cut" in n["message"] or "lost" in n["message"] or "truncat" in n["message"]
    ]
    assert lost
    assert any("%" in message for message in lost)


def test_gzip_cut_short_is_diagnosed(cli, sample, tmp_path):
    cut = tmp_path / "cut.json.gz"
    data = sample.read_bytes()
    cut.write_bytes(data[: int(len(data) * 0.9)])
    code, out, _ = cli(cut, "--json", "-", "--no-html")
    assert code == 0
    assert json.loads(out)["kernels"]
