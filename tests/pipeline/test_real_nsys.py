"""What must be true of each real nsys export; figures re-derived here with plain sqlite3."""

import hashlib
import sqlite3

import pytest

from diagnose import pipeline

pytestmark = pytest.mark.shared_traces


def diagnose(shared, name, **options):
    return pipeline.run([shared / "nsys" / f"{name}.sqlite"], pipeline.Options(**options))


def test_fastvideo_is_limited_by_copies(shared):
    path = shared / "nsys" / "fastvideo_h100x2_textencoder_offload.sqlite"
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    d = diagnose(shared, "fastvideo_h100x2_textencoder_offload")
    assert d.verdict.limit == "copy"
    device = next(x for x in d.devices if x.id == 0)
    assert device.window.wall_ns / 1e6 == pytest.approx(969.4, abs=0.1)
    idle = sum(ns for b, ns in device.attribution_ns.items() if b.startswith("idle") or b == "unobserved")
    assert idle / device.window.wall_ns == pytest.approx(0.007, abs=0.001)
    con = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    nbytes, ns = con.execute(
        "SELECT sum(bytes), sum(end - start) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE deviceId = 0 AND copyKind = 1"
    ).fetchone()
    assert nbytes / 1e9 == pytest.approx(25.5, abs=0.05)
    assert nbytes / ns == pytest.approx(27.7, abs=0.1)
    claim = next(h for h in d.hypotheses if h.limit == "copy" and h.status == "supported")
    facts = {e.metric: e.value for e in claim.evidence}
    assert facts["HtoD bytes"] == pytest.approx(nbytes / 1e9, rel=0.01)
    assert facts["HtoD rate"] == pytest.approx(nbytes / ns, rel=0.01)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def test_graph_mode_is_inconclusive_and_says_how_to_recapture(shared):
    d = diagnose(shared, "rtx3060_graphmode_2025.5.2")
    assert d.verdict.limit == "inconclusive"
    assert any("--cuda-graph-trace=node" in n.message for n in d.data_quality)
    graphs = [k for k in d.kernels if k.name == "(graph replay)"]
    assert sum(k.count for k in graphs) == 2
    assert {k.bound for k in graphs} == {"unmodelled"}


@pytest.mark.parametrize("name", ["diffusion_h100x2_before", "diffusion_h100x2_after"])
def test_every_nanosecond_is_in_one_bucket(shared, name):
    d = diagnose(shared, name)
    assert len(d.devices) == 2
    for device in d.devices:
        assert sum(device.attribution_ns.values()) == device.window.wall_ns


def test_diffusion_idle_grows_on_device_0(shared):
    idle = {}
    for name in ("before", "after"):
        d = diagnose(shared, f"diffusion_h100x2_{name}")
        device = next(x for x in d.devices if x.id == 0)
        idle[name] = (
            sum(ns for b, ns in device.attribution_ns.items() if b.startswith("idle") or b == "unobserved")
            / 1e6
        )
    assert idle["before"] == pytest.approx(26.0, abs=0.2)
    assert idle["after"] == pytest.approx(59.1, abs=0.2)
