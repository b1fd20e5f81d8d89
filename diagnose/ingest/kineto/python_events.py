"""Leave Python frames out of a chunk of events before anything parses them.

With `with_stack` they are 50 to 90 % of a trace, and no stage uses them. Kineto writes them as one run, so a run is
cut out by its first and last event at the speed of a substring search; where they are mixed with other events, each
event is looked at. What is left is validated by the caller, so a wrong cut cannot go unnoticed: it would not parse.
"""

import re

import msgspec

_MARK = b'"python_function"'
_CAT = re.compile(rb'"cat"\s*:\s*"python_function"')
_OTHER = re.compile(rb'"cat"\s*:\s*"(?!python_function")')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_MAX_RUNS = 64
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


def drop_python(body: bytes) -> tuple[bytes, int]:
    """(the events without Python frames, how many were left out) of comma-separated events."""
    if _MARK not in body:
        return body, 0
    kept: list[bytes] = []
    dropped = 0
    at = 0
    for _ in range(_MAX_RUNS):
        first = _CAT.search(body, at)
        if not first:
            kept.append(body[at:])
            return b",".join(k for part in kept if (k := part.strip(b" \t\r\n,"))), dropped
        start = _start_of(body, first.start(), at)
        other = _OTHER.search(body, first.end())
        end = _start_of(body, other.start(), first.end()) if other else len(body)
        run = body[start:end]
        count = run.count(_MARK)
        if count != run.count(b'"ph"'):
            break  # not only Python frames, each with its category
        kept.append(body[at:start])
        dropped += count
        at = end
    return _one_by_one(body)


def _start_of(body: bytes, inside: int, low: int) -> int:
    """Where the event that contains `inside` starts: its brace, after the last boundary before it."""
    at = inside
    while (at := body.rfind(b"}", low, at)) >= 0:
        if found := _BETWEEN.match(body, at):
            return found.end() - 1
    return low


def _one_by_one(body: bytes) -> tuple[bytes, int]:
    try:
        raws = _LIST.decode(b"[" + body + b"]")
    except (msgspec.DecodeError, RecursionError):
        return body, 0
    kept = [raw for raw in map(bytes, raws) if _MARK not in raw or not _CAT.search(raw)]
    return b",".join(kept), len(raws) - len(kept)
