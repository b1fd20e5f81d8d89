"""The script for a machine with a GPU runs to its end without one, and what it hands on names nobody."""

import gzip
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.torch
def test_it_runs_to_its_end_on_a_processor(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    env = {**os.environ, "OUT": str(tmp_path), "PYTHON": sys.executable, "SECONDS_MAX": "1", "BUNDLE": "1"}
    env.pop("NSYS", None)
    done = subprocess.run(
        ["bash", str(ROOT / "benchmarks" / "gpu_run.sh")], env=env, capture_output=True, text=True, timeout=480,
        check=False,
    )  # fmt: skip
    # One second is over before the first capture: everything is counted as out of time, and nothing is lost.
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["cases"] == [] and done.returncode == 1
    assert len([e for e in summary["errors"] if "out of time" in e]) == 15
    assert (tmp_path / "device.toml").read_text().startswith("# Measured by diagnose calibrate")


@pytest.mark.torch
def test_a_case_leaves_a_scrubbed_trace_and_step_times(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    gpu_run = load("gpu_run")
    bench = gpu_run.Bench("cpu", gpu_run.TINY, tmp_path)
    import torch

    with torch.inference_mode():
        row = bench.run(gpu_run.Case("d", "decode", 2, 16))
    assert row["trace"] == "d.json.gz" and row["step_ms"]["min"] > 0
    text = gzip.decompress((tmp_path / "d.json.gz").read_bytes()).decode()
    assert "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk32sqsq2sqsk32)" in text
    assert str(ROOT) not in text and f'"host_name": "{os.uname().nodename}"' not in text
    names = gpu_run.bundle(tmp_path)
    assert names == ["traces1.tar"]
    with tarfile.open(tmp_path / "traces1.tar") as tar:
        assert sorted(tar.getnames()) == ["config_bf16.json", "d.json.gz"]
        assert {(m.uname, m.uid) for m in tar.getmembers()} == {("", 0)}


def test_an_export_is_scrubbed(tmp_path: Path) -> None:
    source, target = tmp_path / "e.sqlite", tmp_path / "s.sqlite"
    with sqlite3.connect(source) as db:
        db.executescript("""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            INSERT INTO StringIds VALUES (1, 'kernel_a'), (2, '/home/alice/secret.py'), (3, 'decode step');
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, shortName INTEGER);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 1);
            CREATE TABLE NVTX_EVENTS (start INTEGER, textId INTEGER);
            INSERT INTO NVTX_EVENTS VALUES (5, 3);
            CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);
            INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'alice-box');
            CREATE TABLE PROCESSES (name TEXT);
            INSERT INTO PROCESSES VALUES ('/home/alice/bin/python');
            CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
            INSERT INTO META_DATA_CAPTURE VALUES ('DEVICE_DISPLAY_NAME', 'alice-box'),
                ('PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE', 'Node');
        """)
    db.close()
    load("nsys_scrub").scrub(source, target)
    with sqlite3.connect(target) as db:
        tables = {r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables == {"StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "META_DATA_CAPTURE"}
        assert db.execute("SELECT * FROM StringIds ORDER BY id").fetchall() == [
            (1, "kernel_a"),
            (3, "decode step"),
        ]
        assert db.execute("SELECT value FROM META_DATA_CAPTURE").fetchall() == [("Node",)]
    db.close()
    blob = target.read_bytes()
    assert b"alice" not in blob
