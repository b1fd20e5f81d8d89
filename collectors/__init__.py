"""Code that runs in or around an inference process: captures and calibration, no analysis.

`from diagnose.collectors import capture` is the only name that user code needs. Importing this package is
cheap: torch is loaded when a capture starts.
"""

from diagnose.collectors.torch_capture import capture

__all__ = ["capture"]
