"""Running the target of a capture: in its own session, bounded in time, never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

GRACE_S = 10.0


class Interrupted(Exception):
    """Ctrl-C or a termination signal reached us while the target ran; the target has been ended."""


def run(
    command: Sequence[str],
    *,
    timeout_s: float | None,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> int | None:
    """Run `command` to its end; its exit status, or None when `timeout_s` passed and it was ended.

    Raises Interrupted after ending it on Ctrl-C or SIGTERM, and OSError when it cannot be started. `quiet`
    sends its output to nowhere, otherwise it goes to stderr (ours is for results).
    """
    out = subprocess.DEVNULL if quiet else sys.stderr.fileno()
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        child = subprocess.Popen(
            command, env=env, start_new_session=True, stdout=out, stderr=out if quiet else None
        )
        try:
            return child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            end(child)
            return None
        except (KeyboardInterrupt, _Terminated):
            end(child, signal.SIGINT)
            raise Interrupted from None
    finally:
        signal.signal(signal.SIGTERM, previous)


class _Terminated(BaseException):
    """SIGTERM as an exception, so that `finally` blocks run."""


def _terminated(number: int, frame: FrameType | None) -> None:
    raise _Terminated


def end(child: "subprocess.Popen[bytes]", first: signal.Signals = signal.SIGTERM) -> None:
    """End a child and everything in its session: `first`, then SIGTERM, then SIGKILL."""
    for number in (first, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue
        break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)  # what the target itself had started
    child.wait()


def describe(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with exit status {status}"
