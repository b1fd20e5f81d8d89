"""The child process of `diagnose capture torch`: runs the target under a capture, in the target's own
interpreter.

    python -m diagnose.collectors.torch_runner SETTINGS.json script.py [ARGS ...]
    python -m diagnose.collectors.torch_runner SETTINGS.json -m package.module [ARGS ...]

The target sees the `sys.argv` and `sys.path[0]` it would have on its own. If it uses
`diagnose.collectors.capture` itself, its window is taken and these settings apply; else its model's forward
calls are the steps.
"""

import json
import runpy
import sys
from pathlib import Path

NOTHING_CAPTURED, NO_TORCH = 90, 91


def main(arguments: list[str]) -> int:
    """Run the target; the exit status is the target's, or one of the two above."""
    raw = json.loads(Path(arguments[0]).read_text())
    try:
        import torch  # noqa: F401
    except ImportError:
        return NO_TORCH
    from diagnose.collectors import torch_capture
    from diagnose.collectors.torch_hooks import ForwardSteps

    settings = torch_capture.Settings(
        folder=None, warmup=raw["warmup"], steps=raw["steps"], memory=raw["memory"], profiler=raw["profiler"],
        partial=Path(raw["partial"]), stop=raw["stop"],
    )  # fmt: skip
    torch_capture.Settings.active = settings
    cap = torch_capture.capture()
    hooks = ForwardSteps(cap)

    def stand_down() -> None:
        torch_capture.Settings.stand_down = None
        hooks.remove()
        cap.withdraw()

    torch_capture.Settings.stand_down = stand_down
    cap.__enter__()
    hooks.install()
    status = 0
    try:
        _run(arguments[1:])
    except SystemExit as stop:
        status = _status(stop)
        if status:
            hooks.remove()
            cap.__exit__(SystemExit, stop, None)
            raise
    except BaseException as error:
        hooks.remove()
        cap.__exit__(type(error), error, None)
        raise
    hooks.remove()
    cap.__exit__(None, None, None)
    return status


def _status(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    return stop.code if isinstance(stop.code, int) else 1


def _run(target: list[str]) -> None:
    """Execute the target as `__main__`."""
    if target[0] == "-m":
        sys.argv = target[1:]
        runpy.run_module(target[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = target
    sys.path.insert(0, str(Path(target[0]).resolve().parent))
    runpy.run_path(target[0], run_name="__main__")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
