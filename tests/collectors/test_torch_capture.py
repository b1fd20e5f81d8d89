"""`diagnose capture torch` and `capture` on real torch programs, the failing ones included."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diagnose.collectors.torch_launch import TorchCapture, capture_torch, check, child_env, command
from diagnose.errors import InputError, UsageError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

Script = Callable[[str], Path]
Leftovers = Callable[[Path], list[str]]
ReadTrace = Callable[[Path], dict[str, Any]]


def steps_of(trace: dict[str, Any]) -> list[str]:
    events = [e for e in trace["traceEvents"] if e.get("cat") == "user_annotation"]
    return [
        e["name"] for e in sorted(events, key=lambda e: e["ts"]) if not e["name"].startswith("ProfilerStep")
    ]


def test_an_unmodified_script_gives_a_whole_folder(
    script: Script, tmp_path: Path, read_trace: ReadTrace
) -> None:
    target = script("loop(8)\n")
    folder = capture_torch(TorchCapture((str(target),), tmp_path / "out.run", warmup=3, steps=4))
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "run.json", "trace.json.gz"]
    trace = read_trace(folder / "trace.json.gz")
    # Call 1 is the prefill of 5 tokens, so the recorded calls 4 to 7 read 2 sequences of 8, 9, 10 and 11
    # tokens.
    assert steps_of(trace) == [
        f"execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk{2 * n}sqsq2sqsk{2 * n})"
        for n in (8, 9, 10, 11)
    ]
    ops = [e for e in trace["traceEvents"] if e.get("cat") == "cpu_op"]
    assert any(e["args"].get("Input Dims") == [[50], [2, 32], [32, 50], [], []] for e in ops)  # shapes on
    assert not any(e.get("cat") == "python_function" for e in trace["traceEvents"])  # stacks off
    run = json.loads((folder / "run.json").read_text())
    assert run["window"] == {"warmup": 3, "steps_wanted": 4, "steps": 4}
    assert [s["context_tokens"] for s in run["steps"]] == [16, 18, 20, 22]
    assert run["versions"]["torch"] == torch.__version__
    assert run["devices"][-1]["name"] == "cpu"
    assert json.loads((folder / "config.json").read_text()) == {"hidden_size": 32, "num_hidden_layers": 1}


def test_nothing_private_is_written(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET_TOKEN", "hunter2-hunter2")
    target = script("loop(8)\n")
    arguments = (str(target), "--password", "correct-horse")
    folder = capture_torch(TorchCapture(arguments, tmp_path / "out.run", warmup=2, steps=2))
    import gzip

    blob = b"".join(
        gzip.decompress(p.read_bytes()) if p.suffix == ".gz" else p.read_bytes() for p in folder.iterdir()
    )
    for secret in (b"hunter2", b"correct-horse", str(tmp_path).encode(), b"someone"):
        assert secret not in blob
    host = os.uname().nodename
    assert f'"host_name": "{host}"'.encode() not in blob


def test_the_scripts_own_capture_wins(script: Script, tmp_path: Path, read_trace: ReadTrace) -> None:
    body = """
from diagnose.collectors import capture
with torch.inference_mode(), capture("ignored.run", warmup=1, steps=99) as cap:
    ids = torch.zeros(4, 1, dtype=torch.long)
    while not cap.done:
        with cap.step("decode", sequences=4, tokens=4, context=400):
            model(ids)
"""
    folder = capture_torch(
        TorchCapture((str(script(body)),), tmp_path / "out.run", warmup=2, steps=3, timeout_s=60)
    )
    names = steps_of(read_trace(folder / "trace.json.gz"))
    assert names == ["execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk400sqsq4sqsk400)"] * 3


@pytest.mark.parametrize(
    "how", ["model = torch.compile(model, backend='eager')", "model.compile(backend='eager')"]
)
def test_a_compiled_model_is_still_counted(
    script: Script, tmp_path: Path, read_trace: ReadTrace, how: str
) -> None:
    body = f"{how}\nloop(6)\n"
    folder = capture_torch(TorchCapture((str(script(body)),), tmp_path / "out.run", warmup=2, steps=3))
    assert len(steps_of(read_trace(folder / "trace.json.gz"))) == 3


def test_a_failing_target_leaves_a_message_and_no_folder(
    script: Script, tmp_path: Path, leftovers: Leftovers
) -> None:
    target = script("loop(4)\nraise RuntimeError('boom')\n")
    with pytest.raises(InputError, match="exit status 1 before the window was complete"):
        capture_torch(TorchCapture((str(target),), tmp_path / "out.run", warmup=3, steps=20))
    assert leftovers(tmp_path) == []


def test_a_target_that_fails_after_the_window_keeps_it(
    script: Script, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = script("loop(9)\nsys.exit(3)\n")
    folder = capture_torch(TorchCapture((str(target),), tmp_path / "out.run", warmup=2, steps=3))
    assert (folder / "trace.json.gz").stat().st_size > 0
    assert "exit status 3 after the window was complete" in capfd.readouterr().err


def test_a_killed_target_leaves_a_message_and_no_folder(
    script: Script, tmp_path: Path, leftovers: Leftovers
) -> None:
    target = script("loop(4)\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(InputError, match="was killed by SIGKILL"):
        capture_torch(TorchCapture((str(target),), tmp_path / "out.run", warmup=2, steps=20))
    assert leftovers(tmp_path) == []


def test_a_target_that_never_ends_is_bounded(script: Script, tmp_path: Path, leftovers: Leftovers) -> None:
    target = script("import time\nloop(2)\ntime.sleep(600)\n")
    start = time.monotonic()
    with pytest.raises(InputError, match="no complete window within 4 s"):
        capture_torch(TorchCapture((str(target),), tmp_path / "out.run", warmup=2, steps=20, timeout_s=4))
    assert time.monotonic() - start < 30
    assert leftovers(tmp_path) == []


def test_stop_ends_a_target_that_would_run_on(script: Script, tmp_path: Path) -> None:
    target = script("import time\nloop(9)\ntime.sleep(600)\n")
    folder = capture_torch(TorchCapture((str(target),), tmp_path / "out.run", warmup=2, steps=3, stop=True))
    assert json.loads((folder / "run.json").read_text())["window"]["steps"] == 3


def test_too_few_steps_says_so(script: Script, tmp_path: Path, leftovers: Leftovers) -> None:
    with pytest.raises(InputError, match="ended before step 11"):
        capture_torch(TorchCapture((str(script("loop(3)\n")),), tmp_path / "out.run", warmup=10))
    assert leftovers(tmp_path) == []


def test_a_short_run_keeps_the_steps_there_were(script: Script, tmp_path: Path) -> None:
    folder = capture_torch(
        TorchCapture((str(script("loop(5)\n")),), tmp_path / "out.run", warmup=2, steps=50)
    )
    assert json.loads((folder / "run.json").read_text())["window"] == {
        "warmup": 2,
        "steps_wanted": 50,
        "steps": 4,
    }


def test_interrupting_the_capture_ends_the_target_and_leaves_nothing(
    script: Script, tmp_path: Path, leftovers: Leftovers
) -> None:
    target = script("import time, os\nopen('pid', 'w').write(str(os.getpid()))\nloop(1)\ntime.sleep(600)\n")
    code = (
        "import sys; from pathlib import Path; from diagnose.collectors.torch_launch import *\n"
        "from diagnose.errors import InputError\n"
        "try: capture_torch(TorchCapture((sys.argv[1],), Path(sys.argv[2])))\n"
        "except InputError as e: print(e)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(target), str(tmp_path / "out.run")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
    )
    pid_file = tmp_path / "pid"
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    parent.send_signal(signal.SIGTERM)
    out, _ = parent.communicate(timeout=60)
    assert b"interrupted before the window was complete" in out
    assert leftovers(tmp_path) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_what_recording_costs_is_measured(tmp_path: Path) -> None:
    from diagnose.collectors import capture

    cap = capture(tmp_path / "x.run", warmup=5, steps=3)
    kind = {"phase": "decode", "sequences": 1, "tokens": 1}
    # The very first step is left out; of the others of that kind the least counts (10 ms), and the median of the
    # recorded ones (12 ms). A kind with fewer than two unrecorded steps says nothing.
    cap.unrecorded = [{**kind, "host_ms": m} for m in (5.0, 11.0, 10.0)] + [
        {**kind, "tokens": 9, "host_ms": 1.0}
    ]
    cap.recorded = [{**kind, "host_ms": m} for m in (12.0, 11.5, 30.0)] + [
        {**kind, "tokens": 9, "host_ms": 9.0}
    ]
    assert cap._slowdown() == 1.2
    cap.unrecorded = []
    assert cap._slowdown() is None


def test_bad_requests_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give the script"):
        check(TorchCapture(()))
    with pytest.raises(UsageError, match="no such script"):
        check(TorchCapture((str(tmp_path / "absent.py"),)))
    with pytest.raises(UsageError, match="leave the interpreter out"):
        check(TorchCapture(("python", "x.py")))


def test_the_command_names_the_interpreter_asked_for() -> None:
    line = command(TorchCapture(("a.py", "--b", "1"), python="/opt/py"), "settings.json")
    assert line == ["/opt/py", "-m", "diagnose.collectors.torch_runner", "settings.json", "a.py", "--b", "1"]


def test_another_interpreter_sees_diagnose_and_nothing_else_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert child_env(None, tmp_path) is None and child_env(sys.executable, tmp_path) is None
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    env = child_env("/opt/other/bin/python", tmp_path)
    assert env is not None
    ours, theirs = env["PYTHONPATH"].split(os.pathsep)
    assert theirs == "/theirs" and [p.name for p in Path(ours).iterdir()] == ["diagnose"]


def test_an_interpreter_without_torch_says_what_to_install(script: Script, tmp_path: Path) -> None:
    # The wrapper hides torch from the child as an environment without it would.
    python = tmp_path / "python"
    hidden = tmp_path / "hidden" / "torch"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('no torch here')")
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{hidden.parent}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.raises(UsageError, match="torch is not installed for"):
        capture_torch(TorchCapture((str(script("loop(9)\n")),), tmp_path / "out.run", python=str(python)))


def test_capture_in_process_with_a_callback(tmp_path: Path, read_trace: ReadTrace) -> None:
    from diagnose.collectors import capture

    layer = torch.nn.Linear(8, 8)
    with capture(tmp_path / "in.run", warmup=2, steps=3) as cap:
        for index in range(8):
            layer(torch.zeros(1, 8))
            cap.callback(index, loss=None)
    assert cap.done and cap.path == tmp_path / "in.run"
    assert steps_of(read_trace(tmp_path / "in.run" / "trace.json.gz")) == ["other step"] * 3


def test_an_exception_inside_the_loop_leaves_nothing(tmp_path: Path, leftovers: Leftovers) -> None:
    from diagnose.collectors import capture

    with pytest.raises(ValueError, match="mine"), capture(tmp_path / "in.run", warmup=1, steps=9) as cap:
        for index in range(5):
            with cap.step("decode"):
                if index == 3:
                    raise ValueError("mine")
    assert leftovers(tmp_path) == []


def test_the_overhead_of_finished_captures_is_nil(tmp_path: Path) -> None:
    from diagnose.collectors import capture

    with capture(tmp_path / "in.run", warmup=1, steps=1) as cap:
        for _ in range(5):
            with cap.step("decode"):
                pass
        assert cap.done and cap.seen == 2  # later steps are passed through uncounted
