"""Read what is left of a damaged chunk: event by event, repaired where the intent is clear, else quarantined.

Profiler writers of several years put names into JSON without escaping them. What is met in real files: lone
backslashes, control characters, broken UTF-8, unescaped quotes, duplicate keys, bare nan / inf / N/A, `0.-05`,
trailing and missing commas. A repaired event keeps its times exactly; nothing is guessed about times.
"""

import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from diagnose.ingest.kineto.columns import INT_ARGS, TEXT_ARGS

START = re.compile(rb'\}\s*,?\s*(\{\s*"(?:ph|name|cat|args|pid|tid|ts|dur|id|bp|s)"\s*:)')
_FRAME = re.compile(rb'"cat"\s*:\s*"python_function"')
_CLOSE = re.compile(rb"\}\s*\]")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_FIXES = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*")'
    r"|(?P<bare>[+-]?\b(?:nan|inf|infinity|none|undefined|n/a)\b)"
    r"|(?P<whole>-?\d+)\.-(?P<part>\d+)"
    r"|,(?=\s*[}\]])",
    re.IGNORECASE | re.DOTALL,
)
_MOST_DIGITS = 17  # DECIMAL(20,3) holds no more before its point, nor does any clock in microseconds
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_KEY_END = re.compile(r'"(?=\s*:)')
_VALUE_END = re.compile(r'"(?=\s*(?:,\s*"[^"\\]*"\s*:|\}\s*(?:[,}\]]|$)))')
_ITEM_END = re.compile(r'"(?=\s*[,\]])')
_QUOTE = re.compile(r'(?<!\\)"')


class _Event(msgspec.Struct):
    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"null")
    dur: msgspec.Raw = msgspec.Raw(b"null")
    args: Any = None


_DECODER = msgspec.json.Decoder(_Event)
_ENCODER = msgspec.json.Encoder()


@dataclass(slots=True)
class Damage:
    """How many events were repaired and how many given up; where the first given-up ones start.

    `first` is where the first of either kind starts.
    """

    repaired: int = 0
    quarantined: int = 0
    offsets: list[int] = field(default_factory=list)
    first: int | None = None

    def repair(self, offset: int) -> None:
        """Count an event that was repaired."""
        self.repaired += 1
        self._met(offset)

    def quarantine(self, offset: int, events: int = 1) -> None:
        """Count events from `offset` on that could not be read."""
        self.quarantined += events
        self._met(offset)
        if len(self.offsets) < 3:
            self.offsets.append(offset)

    def merge(self, other: "Damage") -> None:
        """Add another part's counts."""
        self.repaired += other.repaired
        self.quarantined += other.quarantined
        self.offsets = sorted(self.offsets + other.offsets)[:3]
        if other.first is not None:
            self._met(other.first)

    def _met(self, offset: int) -> None:
        self.first = offset if self.first is None else min(self.first, offset)


@dataclass(slots=True)
class Cleaned:
    """Valid events with known fields only; `end` is where the list closes inside the body, else -1."""

    body: bytes = b""
    events: int = 0
    python_events: int = 0
    end: int = -1


def clean(body: bytes, offset: int, damage: Damage, drop_python: bool = True) -> Cleaned:
    """Split a damaged body at what looks like starts of events and read each alone.

    `offset` is the body's place in the decompressed stream; `damage` is added to.
    """
    starts = [0, *(found.end() - len(found[1]) for found in START.finditer(body)), len(body)]
    result = Cleaned()
    kept: list[bytes] = []
    for start, stop in pairwise(starts):
        piece = body[start:stop].strip(b" \t\r\n,")
        if not piece:
            continue
        frame = drop_python and _FRAME.search(piece) is not None
        event, repaired = (None, False) if frame else _read(piece)
        end = -1
        if event is None and _CLOSE.search(piece) and (end := _list_end(piece)) >= 0:
            event, repaired = (None, False) if frame else _read(piece[:end].rstrip(b"] \t\r\n"))
            result.end = start + body[start:stop].index(piece) + end - 1
        if frame:
            result.python_events += 1
        elif event is not None:
            if repaired:
                damage.repair(offset + start)
            kept.append(_ENCODER.encode(event))
        elif piece != b"]":
            damage.quarantine(offset + start)
        if end >= 0:
            break
    result.events = len(kept)
    result.body = b",".join(kept)
    return result


def value_end(text: bytes) -> int:
    """Where the first JSON object or list of `text` ends, -1 when it does not."""
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in b"{[":
            depth += 1
        elif token[0] in b"}]":
            depth -= 1
            if depth <= 0:
                return token.end() if depth == 0 else -1
    return -1


def _list_end(piece: bytes) -> int:
    """Just after the `]` that follows the piece's first object, -1 when none does."""
    end = value_end(piece)
    if end < 0:
        return -1
    rest = piece[end:].lstrip()
    return len(piece) - len(rest) + 1 if rest[:1] == b"]" else -1


def _read(piece: bytes) -> tuple[dict[str, Any] | None, bool]:
    """(the event with known fields, whether it had to be repaired)."""
    try:
        event = _DECODER.decode(piece)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _repaired(piece), True
    return _known(
        event.ph, event.cat, event.name, event.pid, event.tid, bytes(event.ts), bytes(event.dur), event.args
    ), False


def _repaired(piece: bytes) -> dict[str, Any] | None:
    text = piece.decode("utf-8", "replace")
    for fix in (str, _fix_tokens, _fix_quotes):
        try:
            found = (
                json.loads(fixed, strict=False, parse_float=str, parse_constant=_nothing)
                if (fixed := fix(text))
                else None
            )
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and "ph" in found:
            get = found.get
            times = [str(get(key)).encode() for key in ("ts", "dur")]
            return _known(
                get("ph"), get("cat"), get("name"), get("pid"), get("tid"), times[0], times[1], get("args")
            )
    return None


def _nothing(_: str) -> None:
    return None


def _fix_tokens(text: str) -> str:
    """Escape lone backslashes, null bare non-numbers, mend `0.-05` (-5 ns), drop trailing commas."""

    def fix(found: re.Match[str]) -> str:
        if found["string"]:
            return _escape(found["string"])
        if found["bare"]:
            return "null"
        if found["part"]:
            whole = found["whole"].lstrip("-")
            return f"-{whole}.{found['part'].rjust(3, '0')}"
        return ""

    return _FIXES.sub(fix, text)


def _escape(text: str) -> str:
    """Double the backslashes that begin no JSON escape."""
    return _ESCAPE.sub(lambda found: found[0] if found[1] else "\\\\", text)


def _fix_quotes(text: str) -> str | None:
    """Escape the quotes inside strings: a string ends where what follows it can follow a string."""
    out: list[str] = []
    inside: list[str] = []
    value = False
    at = 0
    while at < len(text):
        char = text[at]
        if char == '"':
            in_object = bool(inside) and inside[-1] == "{"
            ends = (_VALUE_END if value else _KEY_END) if in_object else _ITEM_END
            end = ends.search(text, at + 1)
            if not end:
                return None
            body = _escape(text[at + 1 : end.start()].removesuffix("\\"))
            out.append('"' + _QUOTE.sub(r"\"", body) + '"')
            at = end.end()
            continue
        if char in "{[":
            inside.append(char)
            value = False
        elif char in "}]" and inside:
            inside.pop()
        elif char == ":":
            value = True
        elif char == ",":
            value = False
        out.append(char)
        at += 1
    return _fix_tokens("".join(out))


def _known(
    ph: Any, cat: Any, name: Any, pid: Any, tid: Any, ts: bytes, dur: bytes, args: Any
) -> dict[str, Any]:
    """The event's known fields in types that the columnar reader accepts."""
    known: dict[str, Any] = {
        "ph": _text(ph), "cat": _text(cat), "name": _text(name), "pid": _text(pid), "tid": _text(tid),
        "ts": _number(ts), "dur": _number(dur),
    }  # fmt: skip
    if isinstance(args, dict):
        kept: dict[str, Any] = {}
        for key, item in args.items():
            if key in INT_ARGS:
                kept[key] = _integer(item)
            elif key in TEXT_ARGS and item is not None:
                kept[key] = item if not isinstance(item, str) else _text(item)
        known["args"] = kept
    return known


def _text(item: Any) -> str | None:
    if item is None:
        return None
    return str(item).encode("utf-8", "replace").decode("utf-8")


def _number(raw: bytes) -> msgspec.Raw | None:
    text = raw.decode("ascii", "replace").strip().strip('"')
    fits = _NUMBER.fullmatch(text) and len(text.partition(".")[0]) <= _MOST_DIGITS
    return msgspec.Raw(text.encode()) if fits else None


def _integer(item: Any) -> int | None:
    try:
        number = int(item) if not isinstance(item, str) else int(float(item)) if "." in item else int(item, 0)
    except (ValueError, TypeError, OverflowError):
        return None
    return number if -(2**63) <= number < 2**63 else (number + 2**63) % 2**64 - 2**63
