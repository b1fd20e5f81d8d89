"""Cut a Kineto JSON stream into chunks of whole events without building an object per event.

A chunk is cut at the last `}`, `{` of what was read and then validated: the cut pieces parse as a JSON list only if
the cut lay between two events (inside a string or a nested object quotes or brackets would not balance). So any
layout works. What does not validate goes, that chunk only, to `diagnose.ingest.kineto.repair`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from diagnose.errors import InputError
from diagnose.ingest.kineto.python_events import drop_one_by_one, drop_python
from diagnose.ingest.kineto.repair import START, Damage, clean
from diagnose.ingest.source import MAX_HEAD_BYTES, ByteSource

CHUNK_BYTES = 4 << 20
# Chunks until they grow to twice the size: the statement that reads a chunk costs as much as half a megabyte of events,
# but two chunks of a small trace are read side by side.
GROW_AFTER = 16
MAX_EVENT_BYTES = 64 << 20
MAX_TAIL_BYTES = 64 << 20
MAX_CUTS = 8  # an uncapped search on one damaged chunk did not end in minutes

_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_ARRAY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_BYTE = re.compile(r"\(byte (\d+)\)")


@dataclass(slots=True)
class Chunk:
    """Whole events, comma separated, without the list's brackets; `offset` is where they start in the stream."""

    body: bytes
    offset: int
    events: int


@dataclass(slots=True)
class Stream:
    """What was seen around the events."""

    head: bytes = b""
    tail: bytes = b""
    events: int = 0
    python_events: int = 0
    truncated: bool = False  # the list of events never closes
    tail_cut: bool = False  # it does, but what follows is incomplete
    cut_event: bool = False  # its last event is incomplete
    damage: Damage = field(default_factory=Damage)


@dataclass(slots=True)
class _Probe:
    """`events` >= 0 when the body is a list's inside; `end` where the list closes early; else `position` of the fault."""

    events: int = -1
    end: int = -1
    position: int = -1


def _probe(body: bytes) -> _Probe:
    try:
        return _Probe(events=len(_LIST.decode(b"[" + body + b"]")))
    except RecursionError:
        return _Probe(position=0)
    except msgspec.DecodeError as error:
        text = str(error)
        found = _BYTE.search(text)
        position = int(found[1]) - 1 if found else -1
        if "trailing characters" in text:
            end = body.rfind(b"]", 0, position)
            return _Probe(end=end)
        return _Probe(position=position if found else len(body))


class Splitter:
    """Iterate over the chunks of a source; `stream` then tells what was around and what was lost."""

    def __init__(self, source: ByteSource, chunk_bytes: int = CHUNK_BYTES, keep_python: bool = False) -> None:
        self.source = source
        self.chunk_bytes = chunk_bytes
        self.keep_python = keep_python
        self.stream = Stream()
        self._grow_at = GROW_AFTER * chunk_bytes
        self._buffer = b""
        self._offset = 0  # of the buffer's first byte in the decompressed stream
        self._closed = False  # the event list's own end was seen
        self._object = True  # the list is a member of an object; not a bare list

    def __iter__(self) -> Iterator[Chunk]:
        self._open()
        skipping = False
        while not self._closed:
            more = self.source.read(max(self.chunk_bytes - len(self._buffer), self.chunk_bytes // 4, 64))
            self._buffer += more
            if skipping and not (skipping := not self._skip_to_start()):
                self.stream.damage.quarantine(self._offset)
            if not more:
                yield from self._last()
                break
            if skipping:
                continue
            chunk = self._take()
            if chunk:
                yield chunk
            elif len(self._buffer) > MAX_EVENT_BYTES and not self._closed:
                skipping = True
        self._read_tail()

    def _open(self) -> None:
        head = b""
        while True:
            more = self.source.read(self.chunk_bytes)
            head += more
            text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
            if text[:1] == b"[":
                self._object = False
                self._start(head, head.index(b"[") + 1, b"")
                return
            if text and text[:1] != b"{":
                raise InputError(
                    f"{self.source.path}: not JSON; give a PyTorch profiler trace or an nsys report"
                )
            for found in _ARRAY.finditer(head):
                self._start(head, found.end(), head[: found.start()])
                return
            if not more:
                self._no_events(head)
            if len(head) > MAX_HEAD_BYTES:
                raise InputError(
                    f"{self.source.path}: no traceEvents in its first {len(head) >> 20} MB; no Kineto trace"
                )

    def _no_events(self, head: bytes) -> None:
        path = self.source.path
        if self.source.damage:
            raise InputError(f"{path}: {self.source.damage}, before any event; copy or capture it again")
        try:
            msgspec.json.decode(head)
        except (msgspec.DecodeError, RecursionError):
            raise InputError(f"{path}: cut or damaged before any event; copy or capture it again") from None
        raise InputError(
            f"{path}: JSON, but no profiler trace (no traceEvents); give the file that torch.profiler wrote"
        )

    def _start(self, head: bytes, at: int, kept: bytes) -> None:
        self.stream.head = kept
        self._buffer = head[at:]
        self._offset = at

    def _take(self) -> Chunk | None:
        """The longest run of whole events in the buffer, or None when it holds no full event yet."""
        buffer = self._buffer
        tried = 0
        at = len(buffer)
        while tried < MAX_CUTS and (at := buffer.rfind(b"}", 0, at)) >= 0:
            found = _BETWEEN.match(buffer, at)
            if not found:
                continue
            tried += 1
            chunk, probe = self._validate(buffer[: at + 1])
            if chunk:
                self._advance(found.end() - 1)
                return chunk
            if probe.end >= 0:
                return self._close(probe.end)
            if probe.position < at - 1 and probe.position >= 0:
                break  # the fault lies inside: an earlier cut would not remove it
        return self._sound_part() or self._damaged() if tried else self._close_early()

    def _close_early(self) -> Chunk | None:
        """No boundary between events in the buffer: it may hold the last event, and the list's end."""
        probe = _probe(self._buffer)
        return self._close(probe.end) if probe.end >= 0 else None

    def _validate(self, body: bytes) -> tuple[Chunk | None, _Probe]:
        dropped = 0
        kept = body
        if not self.keep_python:
            kept, dropped = drop_python(body)
        probe = _probe(kept) if kept.strip() else _Probe(events=0)
        if probe.events < 0 and dropped:
            kept, dropped = drop_one_by_one(body)
            probe = _probe(kept) if kept.strip() else _Probe(events=0)
        if probe.events < 0:
            return None, probe
        self.stream.events += probe.events + dropped
        self.stream.python_events += dropped
        return Chunk(kept, self._offset, probe.events), probe

    def _close(self, end: int) -> Chunk | None:
        """The list closes at `end` of the buffer: its events are a chunk, the rest is the tail."""
        chunk, _ = self._validate(self._buffer[:end])
        self._closed = True
        self._advance(end + 1)
        return chunk

    def _sound_part(self) -> Chunk | None:
        """The whole events before the first fault, so that only what follows it is repaired."""
        fault = _probe(self._buffer).position
        at = min(max(fault, 0), len(self._buffer))
        while (at := self._buffer.rfind(b"}", 0, at)) >= 0:
            if found := START.match(self._buffer, at):
                chunk, _ = self._validate(self._buffer[: at + 1])
                if chunk:
                    self._advance(found.end() - len(found[1]))
                return chunk
        return None

    def _damaged(self) -> Chunk | None:
        """Repair event by event up to the last boundary that looks like the start of an event."""
        last = None
        at = len(self._buffer)
        while (at := self._buffer.rfind(b"}", 0, at)) >= 0:
            if last := START.match(self._buffer, at):
                break
        if last is None:
            return None
        return self._repair(self._buffer[: at + 1], last.end() - len(last[1]))

    def _repair(self, body: bytes, consumed: int) -> Chunk:
        damage = self.stream.damage
        result = clean(body, self._offset, damage, drop_python=not self.keep_python)
        self.stream.events += result.events + result.python_events
        self.stream.python_events += result.python_events
        chunk = Chunk(result.body, self._offset, result.events)
        if result.end >= 0:
            self._closed = True
            consumed = result.end + 1
        self._advance(consumed)
        return chunk

    def _advance(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._offset += count
        if self._grow_at and self._offset >= self._grow_at:
            self.chunk_bytes *= 2
            self._grow_at = 0

    def _skip_to_start(self) -> bool:
        """Inside an event too large to be one: drop bytes up to the next start of an event."""
        found = START.search(self._buffer)
        if found:
            self._advance(found.end() - len(found[1]))
            return True
        self._advance(max(0, len(self._buffer) - 256))
        return False

    def _last(self) -> Iterator[Chunk]:
        """The stream has ended; the buffer holds the last events and, unless it was cut, the tail."""
        probe = _probe(self._buffer)
        if probe.end >= 0:
            if chunk := self._close(probe.end):
                yield chunk
            return
        while self._buffer.strip(b" \t\r\n,") and not self._closed:
            before = len(self._buffer)
            chunk = self._take()
            if chunk:
                yield chunk
            if len(self._buffer) == before:
                break
        if not self._closed and self._buffer.strip(b" \t\r\n,"):
            given_up = self.stream.damage.quarantined
            yield self._repair(self._buffer, len(self._buffer))
            self.stream.cut_event = not self._closed and self.stream.damage.quarantined > given_up
        self.stream.truncated = not self._closed

    def _read_tail(self) -> None:
        parts = [self._buffer]
        size = len(self._buffer)
        while more := self.source.read(1 << 20):
            size += len(more)
            if size <= MAX_TAIL_BYTES:
                parts.append(more)
        if self._closed:
            self.stream.tail = b"".join(parts)
            rest = self.stream.tail.strip()
            whole = rest.endswith(b"}") or size > MAX_TAIL_BYTES or not self._object
            self.stream.tail_cut = not whole
