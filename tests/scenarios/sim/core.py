"""The event loop, a GPU with streams and engines, and collectives. Time is integer nanoseconds.

Host threads are generators that yield either a number of nanoseconds to spend or a `Signal` to wait for.
"""

import heapq
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

Host = Generator["int | Signal", None, None]


class Loop:
    """A heap of (time, order, callback); equal times run in the order they were asked for."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0

    def at(self, time: int, fn: Callable[[], None]) -> None:
        """Call `fn` at `time`, not before now."""
        self._order += 1
        heapq.heappush(self._heap, (max(time, self.now), self._order, fn))

    def spawn(self, host: Host) -> None:
        """Start a host thread at the current time."""
        self.at(self.now, lambda: self._step(host))

    def _step(self, host: Host) -> None:
        try:
            wanted = next(host)
        except StopIteration:
            return
        if isinstance(wanted, Signal):
            wanted.then(lambda: self._step(host))
        else:
            self.at(self.now + max(0, int(wanted)), lambda: self._step(host))

    def run(self) -> int:
        """Run until nothing is left; returns the final time."""
        while self._heap:
            time, _, fn = heapq.heappop(self._heap)
            self.now = time
            fn()
        return self.now


class Signal:
    """Fires once; remembers when."""

    __slots__ = ("_waiting", "loop", "time")

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.time: int | None = None
        self._waiting: list[Callable[[], None]] = []

    def fire(self) -> None:
        """Mark as done now and wake whoever waits."""
        self.time = self.loop.now
        for fn in self._waiting:
            self.loop.at(self.loop.now, fn)
        self._waiting.clear()

    def then(self, fn: Callable[[], None]) -> None:
        """Run `fn` when done (at once, through the loop, if it already is)."""
        if self.time is not None:
            self.loop.at(self.loop.now, fn)
        else:
            self._waiting.append(fn)


class Engine:
    """Something activities occupy: the compute array (shares), a copy engine (whole)."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.used = loop, 0.0
        self._waiting: deque[Callable[[], None]] = deque()

    def acquire(self, share: float, retry: Callable[[], None]) -> bool:
        """Take a share if it fits beside what runs (an empty engine takes anything); otherwise retry on release."""
        if self.used > 0 and self.used + share > 1.0 + 1e-9:
            self._waiting.append(retry)
            return False
        self.used += share
        return True

    def release(self, share: float) -> None:
        """Give a share back and let the waiting try again in order."""
        self.used = max(0.0, self.used - share)
        waiting, self._waiting = self._waiting, deque()
        for retry in waiting:
            self.loop.at(self.loop.now, retry)


class Collective:
    """Ends on every rank at the same moment: when the last one has begun, plus the transfer."""

    def __init__(self, loop: Loop, ranks: int, transfer_ns: int) -> None:
        self.loop, self.ranks, self.transfer_ns = loop, ranks, transfer_ns
        self._finish: list[Callable[[], None]] = []

    def begin(self, finish: Callable[[], None]) -> None:
        """A rank's kernel starts."""
        self._finish.append(finish)
        if len(self._finish) == self.ranks:
            for fn in self._finish:
                self.loop.at(self.loop.now + self.transfer_ns, fn)


@dataclass(slots=True)
class Activity:
    """Work on a device, and after the run its times. `launch` indexes the rank's host calls."""

    kind: str  # kernel | HtoD | DtoH | DtoD | memset
    name: str
    stream: int
    duration_ns: int
    engine: str  # compute | h2d | d2h
    share: float
    ready_at: int
    signal: Signal
    correlation: int
    external: int
    gap_ns: int
    grid: int = 0
    threads: int = 0
    bytes: int = 0
    pageable: bool = False
    waits: "tuple[Signal, ...]" = ()
    collective: Collective | None = None
    pdl: bool = False
    graph: tuple[int, int] | None = None
    role: str = ""
    tensor_share: float = 0.0  # of the tensor peak, while it runs
    dram_share: float = 0.0  # of the DRAM peak
    step: int = -1
    start: int = -1
    end: int = -1


@dataclass(slots=True)
class _Stream:
    queue: deque[Activity] = field(default_factory=deque)
    running: bool = False
    free_at: int = -(1 << 60)
    armed: int = -1


class Gpu:
    """One device: in-order streams over a shared compute array and two copy engines."""

    PDL_NS = 900

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.engines = {k: Engine(loop) for k in ("compute", "h2d", "d2h")}
        self.streams: dict[int, _Stream] = {}
        self.activities: list[Activity] = []

    def enqueue(self, activity: Activity) -> None:
        """Append to its stream."""
        stream = self.streams.setdefault(activity.stream, _Stream())
        stream.queue.append(activity)
        self.activities.append(activity)
        self._pump(stream)

    def last(self, stream: int | None) -> Signal | None:
        """The signal of the newest unfinished activity of a stream, or of the whole device."""
        found = None
        for a in reversed(self.activities):
            if a.end < 0 and (stream is None or a.stream == stream):
                found = a.signal
                break
            if stream is not None and a.stream == stream:
                break
        return found

    def _pump(self, stream: _Stream) -> None:
        if stream.running or not stream.queue:
            return
        a, now = stream.queue[0], self.loop.now
        early = a.pdl and a.ready_at <= stream.free_at - self.PDL_NS
        due = max(a.ready_at, stream.free_at if early else stream.free_at + a.gap_ns)
        if due > now:
            if stream.armed != due:
                stream.armed = due
                self.loop.at(due, lambda: self._armed(stream, due))
            return
        for wait in a.waits:
            if wait.time is None:
                wait.then(lambda: self._pump(stream))
                return
        if not self.engines[a.engine].acquire(a.share, lambda: self._pump(stream)):
            return
        stream.running = True
        a.start = now - self.PDL_NS if early and a.collective is None else now

        def finish() -> None:
            a.end = self.loop.now
            self.engines[a.engine].release(a.share)
            stream.queue.popleft()
            stream.running, stream.free_at = False, a.end
            a.signal.fire()
            self._pump(stream)

        if a.collective is not None:
            a.collective.begin(finish)
        else:
            self.loop.at(now + a.duration_ns, finish)

    def _armed(self, stream: _Stream, due: int) -> None:
        if stream.armed == due:
            stream.armed = -1
        self._pump(stream)
