"""Named ranges that every profiler sees: torch's `record_function` for Kineto, NVTX for Nsight Systems."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from diagnose.collectors.lazy import torch_module


@cache
def _nvtx() -> tuple[Callable[[str], Any], Callable[[], Any]] | None:
    """Push and pop of NVTX: torch's own with CUDA, else the `nvtx` package where installed."""
    torch = torch_module()

    if torch.version.cuda and torch.cuda.is_available():
        return torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    try:
        import nvtx
    except ImportError:
        return None
    return nvtx.push_range, nvtx.pop_range


@contextmanager
def marked(text: str) -> Iterator[None]:
    """Everything inside belongs to a range called `text`, in both worlds."""
    torch = torch_module()

    nvtx = _nvtx()
    with torch.profiler.record_function(text):
        if nvtx is None:
            yield
            return
        nvtx[0](text)
        try:
            yield
        finally:
            nvtx[1]()


class NsightWindow:
    """Marks a window for `nsys --capture-range=cudaProfilerApi`; the same calls as a torch profiler.

    With CUDA every operator becomes an NVTX range with its input sizes. Without CUDA there is no profiler
    API to call: nsys then records the whole run and the step ranges alone tell the window.
    """

    def __init__(self, warmup: int, steps: int, shapes: bool, finished: Callable[[], None]) -> None:
        self.warmup, self.steps, self.shapes, self.finished = warmup, steps, shapes, finished
        self.seen = 0
        self._emit: Any = None
        self._on = False

    def step(self) -> None:
        """One step is over."""
        self.seen += 1
        if self.seen == self.warmup:
            self._start()
        elif self.seen == self.warmup + self.steps:
            self.stop()

    def _start(self) -> None:
        torch = torch_module()

        self._on = True
        if torch.version.cuda and torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            self._emit = torch.autograd.profiler.emit_nvtx(record_shapes=self.shapes)
            self._emit.__enter__()

    def stop(self) -> None:
        """End the window."""
        torch = torch_module()

        if self._emit is not None:
            torch.cuda.synchronize()
            self._emit.__exit__(None, None, None)
            torch.cuda.profiler.stop()
            self._emit = None
        if self._on:
            self._on = False
            self.finished()
