"""Captures that must not carry a verdict."""

import gzip
import json
from pathlib import Path

from diagnose import pipeline

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "generated_h100_decode_launch.json.gz"


def test_a_gpu_run_without_device_events_is_no_cpu_run(tmp_path):
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    trace["traceEvents"] = [
        e
        for e in trace["traceEvents"]
        if e.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
    ]
    path = tmp_path / "host_only.json"
    path.write_text(json.dumps(trace))
    d = pipeline.run([path])
    assert d.verdict.limit == "inconclusive"
    assert "GPU" in d.verdict.summary
    assert all(p.limit == "inconclusive" for p in d.phases)


def test_a_window_shorter_than_a_step_carries_none(tmp_path):
    trace = json.loads(gzip.decompress(SAMPLE.read_bytes()))
    kernels = sorted((e for e in trace["traceEvents"] if e.get("cat") == "kernel"), key=lambda e: e["ts"])[:4]
    keep = {e["args"]["correlation"] for e in kernels}
    trace["traceEvents"] = [
        e
        for e in trace["traceEvents"]
        if e.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset") or e["args"].get("correlation") in keep
    ]
    path = tmp_path / "short.json"
    path.write_text(json.dumps(trace))
    d = pipeline.run([path])
    assert d.verdict.limit == "inconclusive"
    assert "too short" in d.verdict.summary
