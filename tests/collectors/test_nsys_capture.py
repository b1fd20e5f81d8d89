"""`diagnose capture nsys`: the command by version, a clean environment, and a real capture where nsys can
be had.
"""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose.collectors import nsys_capture
from diagnose.collectors.nsys_capture import (
    Nsys,
    NsysCapture,
    build_command,
    capture_nsys,
    clean_env,
    dry_run,
)
from diagnose.errors import InputError, UsageError

OLD = Nsys(
    "/x/nsys",
    "2023.4",
    nsys_capture.NEWEST_OPTIONS - {"--pytorch", "--gpu-metrics-devices"} | {"--gpu-metrics-device"},
)
NEW = Nsys("/x/nsys", "2026.4", nsys_capture.NEWEST_OPTIONS)
REPORT = Path("r.nsys-rep")


def options(request: NsysCapture, nsys: Nsys = NEW) -> list[str]:
    return build_command(request, nsys, REPORT, list(request.target))


def test_what_a_diagnosable_report_needs_is_asked_for() -> None:
    line = options(NsysCapture(("./serve", "--port", "1")))
    assert line[:2] == ["/x/nsys", "profile"] and line[-3:] == ["./serve", "--port", "1"]
    for wanted in ("--trace=cuda,nvtx,osrt,cublas", "--cuda-graph-trace=node", "--sample=none",
                   "--cpuctxsw=none",
                   "--trace-fork-before-exec=true", "--output=r.nsys-rep"):  # fmt: skip
        assert wanted in line


@pytest.mark.parametrize(
    ("nsys", "present", "absent"),
    [
        (OLD, "--gpu-metrics-device=all", "--pytorch=autograd-shapes-nvtx"),
        (NEW, "--gpu-metrics-devices=all", "--gpu-metrics-device=all"),
    ],
)
def test_options_follow_the_version(nsys: Nsys, present: str, absent: str) -> None:
    line = options(NsysCapture(("python", "x.py"), gpu_metrics=True), nsys)
    assert present in line and absent not in line
    assert ("--pytorch=autograd-shapes-nvtx" in line) is (nsys is NEW)


def test_unknown_options_are_left_out_and_needed_ones_refused() -> None:
    bare = Nsys("/x/nsys", "2020.1", frozenset({"--trace", "--output"}))
    assert options(NsysCapture(("a",)), bare) == [
        "/x/nsys", "profile", "--trace=cuda,nvtx,osrt,cublas", "--force-overwrite=true",
        "--output=r.nsys-rep", "a",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="has no GPU metrics"):
        options(NsysCapture(("a",), gpu_metrics=True), bare)


@pytest.mark.parametrize(
    ("capture_range", "expected"),
    [
        ("none", []),
        ("cuda", ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]),
        ("nvtx:decode", ["--capture-range=nvtx", "--nvtx-capture=decode@*", "--capture-range-end=stop",
                         "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0"]),
    ],
)  # fmt: skip
def test_capture_ranges(capture_range: str, expected: list[str]) -> None:
    line = options(NsysCapture(("a",), capture_range=capture_range))
    assert [o for o in line if "capture" in o or "env-var" in o] == expected


def test_a_bad_capture_range_is_refused() -> None:
    with pytest.raises(UsageError, match="auto, none, cuda or nvtx:NAME"):
        options(NsysCapture(("a",), capture_range="nvtx:"))


def test_the_environment_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    env = clean_env(())
    assert env["CUDA_VISIBLE_DEVICES"] == "3" and env["LANG"] == "C.UTF-8"
    assert "AWS_SECRET_ACCESS_KEY" not in env and "HF_TOKEN" not in env
    assert clean_env(("HF_TOKEN", "A=1=2"))["HF_TOKEN"] == "hf_x"
    assert clean_env(("A=1=2",))["A"] == "1=2"
    with pytest.raises(UsageError, match="not set here"):
        clean_env(("NOT_THERE_AT_ALL",))


def test_a_dry_run_needs_no_nsys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NSYS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nsys_capture, "INSTALLS", ())
    text = dry_run(NsysCapture(("my program", "--x"), gpu_metrics=True))
    assert "not installed here" in text and text.endswith("--output=report.nsys-rep 'my program' --x")
    with pytest.raises(UsageError, match="nsys is not installed"):
        capture_nsys(NsysCapture(("x",), output=tmp_path / "o.run"))
    assert list(tmp_path.iterdir()) == []


def test_something_that_is_not_nsys_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "nsys"
    fake.write_text("#!/bin/sh\necho hello\n")
    fake.chmod(0o755)
    with pytest.raises(UsageError, match="is not nsys"):
        capture_nsys(NsysCapture(("x",), output=tmp_path / "o.run", nsys=str(fake)))


@pytest.fixture(scope="session")
def real_nsys() -> str:
    """A real nsys, unpacked once; skips where it cannot be had."""
    if given := os.environ.get("DIAGNOSE_TEST_NSYS"):
        return given
    script = Path(__file__).resolve().parents[2] / ".ci" / "nsys.sh"
    if not script.is_file():
        pytest.skip("no script to fetch nsys")
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, timeout=600, check=False)
    path = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    if not os.access(path, os.X_OK):
        pytest.skip(path or "nsys cannot be had here")
    return path


def patiently(request: NsysCapture) -> Path:
    """Capture; on a busy machine nsys itself sometimes does not get its agent up in time and has to be asked again."""
    for _ in range(2):
        try:
            return capture_nsys(request)
        except InputError as error:
            if "no report was written" not in str(error):
                raise
    return capture_nsys(request)


NVTX_SCRIPT = """
import time, nvtx
for i in range(5):
    with nvtx.annotate(f"decode step {i}"):
        time.sleep(0.002)
"""


@pytest.mark.nsys
def test_a_real_capture_of_a_script_with_nvtx(
    real_nsys: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("nvtx")
    monkeypatch.setenv("MY_SECRET_TOKEN", "hunter2-hunter2")
    script = tmp_path / "s.py"
    script.write_text(NVTX_SCRIPT)
    folder = patiently(
        NsysCapture((sys.executable, str(script)), output=tmp_path / "o.run", nsys=real_nsys, timeout_s=120)
    )
    assert sorted(p.name for p in folder.iterdir()) == ["report.nsys-rep", "run.json"]
    assert json.loads((folder / "run.json").read_text())["versions"]["nsys"] == "2023.4"
    report = (folder / "report.nsys-rep").read_bytes()
    assert report.startswith(b"NVIDIA Tegra Profiler Report")
    export = tmp_path / "e.sqlite"
    subprocess.run(
        [real_nsys, "export", "-t", "sqlite", "-o", str(export), str(folder / "report.nsys-rep")],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    with sqlite3.connect(export) as db:
        texts = [
            r[0] for r in db.execute(
                "SELECT coalesce(e.text, s.value) FROM NVTX_EVENTS e "
                "LEFT JOIN StringIds s ON s.id = e.textId "
                "WHERE e.eventType = 59 ORDER BY e.start"
            )
        ]  # fmt: skip
        environment = "".join(str(r) for r in db.execute("SELECT * FROM TARGET_INFO_SYSTEM_ENV"))
    assert texts == [f"decode step {i}" for i in range(5)]
    assert "LANG=C.UTF-8" in environment and "hunter2" not in environment


@pytest.mark.nsys
@pytest.mark.torch
def test_a_real_capture_marks_the_steps_of_a_torch_script(
    real_nsys: str, tmp_path: Path, script: Callable[[str], Path]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("nvtx")
    folder = patiently(
        NsysCapture((str(script("loop(8)\n")),), output=tmp_path / "o.run", nsys=real_nsys, torch=True,
                    warmup=2, steps=3, timeout_s=120)
    )  # fmt: skip
    run = json.loads((folder / "run.json").read_text())
    assert run["window"] == {"warmup": 2, "steps_wanted": 3, "steps": 3}
    assert [s["context_tokens"] for s in run["steps"]] == [14, 16, 18]  # 2 sequences of 7, 8 and 9 tokens
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 32


@pytest.mark.nsys
def test_a_target_that_never_ends_is_bounded(real_nsys: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="were ended after 2 s"):
        capture_nsys(NsysCapture(("sleep", "300"), output=tmp_path / "o.run", nsys=real_nsys, timeout_s=2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nsys
def test_a_range_that_is_never_entered_is_said(real_nsys: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="never entered the capture range"):
        capture_nsys(
            NsysCapture(
                ("true",), output=tmp_path / "o.run", nsys=real_nsys, timeout_s=60, capture_range="cuda"
            )
        )
    assert list(tmp_path.iterdir()) == []
