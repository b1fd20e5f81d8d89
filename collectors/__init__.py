"""Code that runs in or around an inference process: captures and calibration, no analysis.

`from diagnose.collectors import capture` is the only name that user code needs. Importing this package is
cheap: the capture's code is loaded when it is asked for, torch when a capture starts.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diagnose.collectors.torch_capture import capture

__all__ = ["capture"]


def __getattr__(name: str) -> Any:
    if name == "capture":
        from diagnose.collectors.torch_capture import capture

        return capture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
