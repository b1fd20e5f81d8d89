"""Leave Python frames out of a chunk of events before anything parses them.

With `with_stack` they are 50 to 90 % of a trace, and no stage uses them. Kineto writes them as one run, so a run is
cut out by its first and last event at the speed of a substring search; where they are mixed with other events, each
event is looked at. What is left is validated by the caller, so a wrong cut cannot go unnoticed: it would not parse,
and the caller then asks `drop_one_by_one`.
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
        if not other and not _is_frame(body[_start_of(body, len(body), start) :]):
            break  # the body may end inside a string of this frame
        end = _start_of(body, other.start(), first.end()) if other else len(body)
        run = body[start:end]
        if not _edges_hold(run, first.start() - start):
            break  # an edge of the run lies inside a name that looks like the space between two events
        count = run.count(b'"cat": "python_function"') + run.count(b'"cat":"python_function"')
        events = run.count(b'"ph"')
        if count != events and len(_CAT.findall(run)) != events:
            break  # not only Python frames: an event without a category lies in the run
        kept.append(body[at:start])
        dropped += events
        at = end
    return drop_one_by_one(body)


def _edges_hold(run: bytes, inside: int) -> bool:
    """Whether the run's first and last events are whole Python frames."""
    events = run.strip(b" \t\r\n,")
    found = _BETWEEN.search(events, inside)
    head = events[: found.start() + 1] if found else events
    return _is_frame(head) and _is_frame(events[_start_of(events, len(events), 0) :])


def _is_frame(event: bytes) -> bool:
    """A whole Python frame. The inside of a string is none: it has no quotes but escaped ones."""
    try:
        _LIST.decode(b"[" + event + b"]")
    except (msgspec.DecodeError, RecursionError):
        return False
    return _CAT.search(event) is not None


def _start_of(body: bytes, inside: int, low: int) -> int:
    """Where the event that contains `inside` starts: its brace, after the last boundary before it."""
    at = inside
    while (at := body.rfind(b"}", low, at)) >= 0:
        if found := _BETWEEN.match(body, at):
            return found.end() - 1
    return low


def drop_one_by_one(body: bytes) -> tuple[bytes, int]:
    """As `drop_python`, looking at each event; what does not parse is returned as it is."""
    try:
        raws = _LIST.decode(b"[" + body + b"]")
    except (msgspec.DecodeError, RecursionError):
        return body, 0
    kept = [raw for raw in map(bytes, raws) if _MARK not in raw or not _CAT.search(raw)]
    return b",".join(kept), len(raws) - len(kept)
