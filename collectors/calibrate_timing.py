"""How long an operation takes on a device: the least of several windows, so that other load counts least."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from diagnose.collectors.lazy import torch_module

Operation = Callable[
    [int], Any
]  # called with the number of the repetition, so that it can use fresh operands


WINDOW_S = 0.002


class Clock:
    """Seconds per operation on one device. `budget_s`: time spent on one measurement."""

    def __init__(self, device: str, budget_s: float) -> None:
        self.torch = torch_module()
        self.device = self.torch.device(device)
        self.budget_s = budget_s
        self._calls = (
            0  # counts on from window to window, so that every call meets operands last used long ago
        )

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU (CUDA or ROCm)."""
        return bool(self.device.type == "cuda")

    def synchronize(self) -> None:
        """Wait for everything launched so far."""
        if self.cuda:
            self.torch.cuda.synchronize(self.device)

    def seconds(self, operation: Operation) -> float:
        """Least seconds per call over at least five windows."""
        operation(0)
        self.synchronize()
        once = min(self._window(operation, 1) for _ in range(3))
        # Windows shorter than a scheduler's time slice: with other load some of them run undisturbed.
        calls = max(1, min(2000, round(WINDOW_S / max(once, 1e-7))))
        run = self._graph(operation, calls) if self.cuda else None
        deadline = time.perf_counter() + self.budget_s
        best, windows = once, 0
        while windows < 5 or (time.perf_counter() < deadline and windows < 1000):
            best = min(best, run() if run else self._window(operation, calls))
            windows += 1
        return best

    def _window(self, operation: Operation, calls: int) -> float:
        """Seconds per call of `calls` calls in a row."""
        first = self._calls
        self._calls += calls
        if not self.cuda:
            begin = time.perf_counter()
            for index in range(first, first + calls):
                operation(index)
            return (time.perf_counter() - begin) / calls
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for index in range(first, first + calls):
            operation(index)
        end.record()
        self.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls

    def _graph(self, operation: Operation, calls: int) -> Callable[[], float] | None:
        """The calls as one CUDA graph, so that launching does not count; None where that cannot be
        captured.
        """
        torch = self.torch
        calls = min(calls, 200)
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        try:
            with torch.cuda.stream(stream):
                operation(0)
            torch.cuda.current_stream(self.device).wait_stream(stream)
            self.synchronize()
            with torch.cuda.graph(graph):
                for index in range(calls):
                    operation(index)
        except RuntimeError:
            self.synchronize()
            return None

        def replay() -> float:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            self.synchronize()
            return float(start.elapsed_time(end)) / 1e3 / calls

        replay()
        return replay


class ColdPool:
    """One large allocation handed out in pieces in turn, so that a piece has left the caches when it comes
    again.
    """

    def __init__(self, clock: Clock, nbytes: int) -> None:
        torch = clock.torch
        self.memory = torch.empty(nbytes, dtype=torch.uint8, device=clock.device)
        self.memory.fill_(1)  # touches every page

    def pieces(self, nbytes: int, dtype: Any, count: int) -> Sequence[Any]:
        """Up to `count` disjoint tensors of `nbytes` each, all of the pool when count is 0."""
        fit = max(1, self.memory.numel() // nbytes)
        number = min(fit, count) if count else fit
        return [self.memory[i * nbytes : (i + 1) * nbytes].view(dtype) for i in range(number)]
