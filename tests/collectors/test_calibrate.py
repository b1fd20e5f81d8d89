"""Calibration: the file it writes, the points it keeps, and a real quick run on the processor."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from diagnose.collectors import calibrate, calibrate_load, device_toml
from diagnose.collectors.calibrate import Calibration
from diagnose.collectors.device_toml import DeviceFile, Roof, envelope
from diagnose.devices.device_file import load_device_file
from diagnose.errors import UsageError


def test_the_file_reads_back(tmp_path: Path) -> None:
    file = DeviceFile(
        'NVIDIA "X" 80GB', "sm_90", 132, 85018279936, 50 << 20,
        [
            Roof("hbm", points=[(1e6, 100.5), (134217728.0, 2900.0)], note="a\nb"),
            Roof("compute", "bf16", [(1e9, 500.0)], peak=989.4),
            Roof("kernel_floor", value=2.0),
        ],
        ["made\nhere"],
    )  # fmt: skip
    path = tmp_path / "d.toml"
    path.write_text(file.toml())
    raw = tomllib.loads(path.read_text())
    assert raw["device"]["name"] == 'NVIDIA "X" 80GB' and raw["device"]["sm_count"] == 132
    assert path.read_text().startswith("# made here\n")
    loaded = load_device_file(path)
    assert loaded.spec.memory_bytes == 85018279936
    by_resource = {(r.resource, r.dtype): r for r in loaded.roofs}
    assert by_resource["hbm", ""].points == ((1e6, 100.5e9), (134218000.0, 2900e9))  # six digits of a size
    assert by_resource["compute", "bf16"].peak == 989.4e12
    assert by_resource["kernel_floor", ""].points == ((0.0, 2000.0),)
    assert all(r.provenance == "measured" for r in loaded.roofs)


def test_an_envelope_never_falls_and_keeps_the_best_of_a_size() -> None:
    points = [(4.0, 9.0), (1.0, 5.0), (2.0, 8.0), (2.0, 3.0), (8.0, 7.0)]
    assert envelope(points) == [(1.0, 5.0), (2.0, 8.0), (4.0, 9.0), (8.0, 9.0)]


def test_where_calibrations_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert (
        device_toml.store_path("NVIDIA H100 80GB HBM3")
        == tmp_path / "diagnose/devices/nvidia-h100-80gb-hbm3.toml"
    )
    assert device_toml.store_path("cpu", 2).name == "cpu-2-threads.toml"


def test_throttling_and_other_load_are_noted() -> None:
    assert calibrate_load.gpu_notes({"utilisation": 0}, {"throttle": 0x1}) == []  # idle is no throttling
    notes = calibrate_load.gpu_notes(
        {"utilisation": 63.0}, {"throttle": float(0x4 | 0x40), "clock": 1200, "clock_max": 1980}
    )
    assert notes[0].startswith("the GPU was 63 % busy before")
    assert "power cap, hardware thermal limit" in notes[1] and "1200 of 1980 MHz" in notes[1]


def test_load_of_others_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    hertz, cores = os.sysconf("SC_CLK_TCK"), len(os.sched_getaffinity(0))
    # 10 s passed on all cores; all of them were busy for half of it, and 1 second was ours.
    monkeypatch.setattr(calibrate_load, "processor_busy", lambda: (5.0 * cores * hertz, 10.0 * cores * hertz))
    notes = calibrate_load.cpu_notes((0.0, 0.0), own_s=1.0, wall_s=10.0)
    assert f"other load took {(5.0 * cores - 1.0) / (10.0 * cores):.0%}" in notes[0]
    assert calibrate_load.cpu_notes((0.0, 0.0), own_s=5.0 * cores, wall_s=10.0) == []


def test_plans_stay_within_memory() -> None:
    assert calibrate.plan("cpu", False, 4 << 30, 480 << 20).pool == 1 << 30
    assert calibrate.plan("cpu", False, 64 << 30, 480 << 20).pool == 1 << 30
    assert calibrate.plan("cpu", False, 64 << 30, 2 << 30).pool == 4 << 30
    small = calibrate.plan("cuda", False, 3 << 30, None)
    assert small.pool == 1 << 30 and max(small.bandwidth) <= small.pool // 3


@pytest.mark.torch
def test_requests_that_cannot_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for device in ("tpu", "cuda:x", "cuda:99"):
        with pytest.raises(UsageError, match="--device"):
            calibrate.calibrate(Calibration(device, tmp_path / "d.toml"))
    with pytest.raises(UsageError, match="no such folder"):
        calibrate.calibrate(Calibration("cpu", tmp_path / "absent" / "d.toml", quick=True))
    mine = tmp_path / "d.toml"
    mine.write_text("mine")
    with pytest.raises(UsageError, match="no device file of ours"):
        calibrate.calibrate(Calibration("cpu", mine, quick=True))
    assert mine.read_text() == "mine"


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ImportError

    monkeypatch.setattr(calibrate, "torch_module", absent)
    with pytest.raises(UsageError, match=r"pip install 'llm-diagnose\[collect\]'"):
        calibrate.calibrate(Calibration())


@pytest.mark.torch
def test_a_quick_run_on_the_processor_gives_usable_roofs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    small = calibrate.Plan((1 << 20, 1 << 24), (64, 256), (), (), 256 << 20, 0.02)
    monkeypatch.setattr(calibrate, "plan", lambda *_: small)
    try:
        path = calibrate.calibrate(Calibration("cpu", tmp_path / "cpu.toml", quick=True, threads=1))
    finally:
        torch.set_num_threads(threads)
    loaded = load_device_file(path)
    assert loaded.spec.name == "cpu"
    by_resource = {(r.resource, r.dtype): r for r in loaded.roofs}
    assert {("hbm", ""), ("compute", "fp32"), ("kernel_floor", ""), ("launch", "")} <= by_resource.keys()
    # Any processor that can run torch moves 0.05 to 2000 GB/s and multiplies at 0.1 GFLOP/s to 100 TFLOP/s.
    assert 0.05e9 < by_resource["hbm", ""].points[-1][1] < 2000e9
    assert 1e8 < by_resource["compute", "fp32"].points[-1][1] < 1e14
    assert 100 < by_resource["kernel_floor", ""].points[0][1] < 1e6  # ns
    assert [p.name for p in tmp_path.iterdir()] == ["cpu.toml"]


def test_a_gpu_is_described_as_the_trace_will_report_it() -> None:
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, total_memory=85018279936,
        L2_cache_size=52428800, gcnArchName="",
    )  # fmt: skip
    torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda _: properties))
    file = calibrate._describe(torch, "cuda:0")
    assert (file.name, file.arch, file.sm_count, file.l2_bytes) == (
        "NVIDIA H100 80GB HBM3",
        "sm_90",
        132,
        52428800,
    )
