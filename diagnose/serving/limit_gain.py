"""What relieving a limit of the service is worth: the (low, high) share of the objective's time that it frees.

A cap on the batch (KV pool, slots) is relieved by twice of it, the load by twice the clients: the batch then grows until the
queue is empty or the next cap is met, and the traced step's parts say what a larger batch gains. In a closed loop of N
clients Little's law ties the figures: a request takes N / X, so its latency falls as throughput X rises, and the queue in
front of B running requests takes (N - B) / X. A gain that no source bounds is None.
"""

from dataclasses import dataclass

from diagnose.serving.limit_types import threshold
from diagnose.serving.limit_window import Window
from diagnose.serving.signals import Signals

Share = tuple[float, float]
DOUBLED = 2.0
HALF = 0.53
"""Twice the arrivals halve the time per token; two draws of the same rate differ by a few percent."""
RAMP = 0.02
"""Start and end of a benchmark run dilute what the steady part gains."""
QUEUE_DOUBT = 0.05
"""Queue time by Little's law holds for a steady load; bursts and drains of real runs leave it by about this."""
UNEVEN = 0.12


@dataclass(frozen=True, slots=True)
class Room:
    """How far the batch can grow, as factors on the sequences running now; None is unknown (no bound).

    `queue`: all that waits running too; `slots` and `pool`: up to that cap.
    """

    queue: float | None
    slots: float | None
    pool: float | None

    def ratio(self, *caps: float | None) -> float:
        """Growth when a cap is doubled: twice, unless the queue empties or another cap stops it first."""
        return max(1.0, min([DOUBLED, *(c for c in (self.queue, *caps) if c is not None)]))

    def ratio_to(self, want: float | None) -> float:
        """Growth to `want` times the sequences, unless a cap stops it first."""
        return max(1.0, min((c for c in (want, self.slots, self.pool) if c is not None), default=1.0))


def room(s: Signals) -> Room | None:
    """The room of the batch; None when the running requests are unknown."""
    if s.running is None or s.running.value <= 0:
        return None
    now = s.running.value
    waiting = s.waiting_mean or s.waiting
    queue = (now + waiting.value) / now if waiting else None
    if s.offered and (queue is None or closed(s)):
        # clients that wait for an answer may be queued in front of the engine as well
        queue = max(1.0, queue or 1.0, s.offered.value / now)
    slots = s.slot_cap.value / now if s.slot_cap else None
    pool = s.fits.value / now if s.fits else None
    return Room(queue, slots, pool)


def batch_relief(window: Window, ratio: float) -> Share:
    """Share of the time per output token that goes at `ratio` times the sequences."""
    low, high = window.time_factor(ratio)
    if ratio <= 1.0:
        return 0.0, 0.0
    return 1 - high - RAMP, 1 - low


def factor(relief: Share) -> Share:
    """The (low, high) factor on the objective of freeing a share of its time."""
    low, high = (1 / (1 - min(0.98, max(-0.5, x))) for x in relief)
    return low, high


def closed(s: Signals) -> bool:
    """Whether clients wait for their answers before they ask again (a fixed number in flight)."""
    return bool(s.offered and s.open_rate is None and s.offered.text.startswith("client's cap"))


def cap_relief(s: Signals, window: Window | None, objective: str, ratio: float) -> Share | None:
    """Share of the objective's time freed when a cap lets `ratio` times the sequences run; below 0 where it costs."""
    if window is None:
        return None
    low, high = batch_relief(window, ratio)
    if objective == "throughput" or (objective == "e2e" and closed(s)):
        return low, high
    itl = _itl_change(window, ratio)
    if objective == "itl":
        return itl
    first = queue_relief(s, ratio, (low, high))
    if first is None or objective == "ttft":
        return first
    share = first_share(s)
    if share is None:
        return None
    return tuple(share * first[i] + (1 - share) * itl[i] for i in (0, 1))  # type: ignore[return-value]


def _itl_change(window: Window, ratio: float) -> Share:
    """The gap between tokens is the step: at `ratio` times the batch it takes ratio x the time per token."""
    low, high = window.time_factor(ratio)
    return 1 - ratio * high, 1 - ratio * low


def queue_relief(s: Signals, ratio: float, gain: Share) -> Share | None:
    """Share of mean TTFT freed: `ratio` times the sequences run, each step of the queue passing faster by `gain`."""
    share, where = queue_part(s), room(s)
    if share is None or where is None or where.queue is None:
        return None
    waiting = where.queue - 1.0
    if waiting <= 0 or ratio <= 1:
        return 0.0, 0.0
    left = max(0.0, where.queue - ratio) / waiting
    # a queue that nearly empties does so unevenly: bunched arrivals leave more of it than its mean says
    most = left + UNEVEN * (1 - left)
    after = (left * (1 - gain[1]) * (1 - QUEUE_DOUBT), most * (1 - gain[0]) * (1 + QUEUE_DOUBT / 2))
    return max(0.0, share * (1 - after[1])), min(0.98, share * (1 - after[0]))


def queue_part(s: Signals) -> float | None:
    """Queue time as a share of mean TTFT; 0 where nobody waits."""
    if s.queue_share is not None:
        return s.queue_share.value
    if s.waiting_share is not None and s.waiting_share.value <= threshold("idle_queue"):
        return 0.0
    return None


def first_share(s: Signals) -> float | None:
    """Mean TTFT as a share of the whole request; None where either is unknown."""
    if s.ttft_ms is None or s.e2e_ms is None or s.e2e_ms.value <= 0:
        return None
    return min(1.0, s.ttft_ms.value / s.e2e_ms.value)


def load_relief(s: Signals, window: Window | None) -> Share | None:
    """Share of the time per token freed by twice the load, where nobody waits: the batch grows until a cap is met."""
    where = room(s)
    if window is None or where is None:
        return None
    return batch_relief(window, max(1.0, min(c for c in (DOUBLED, where.slots, where.pool) if c is not None)))


def open_relief(s: Signals, window: Window | None) -> Share:
    """The same for an arrival rate that is kept up with: throughput is the rate, so twice of it halves the time per token
    as far as the batch may grow for it."""
    where = room(s)
    if window is None or where is None:
        return 0.3, HALF
    top = min(c for c in (8.0, where.slots, where.pool) if c is not None)
    low, high = batch_relief(window, max(1.0, top))
    # between its requests the server idles, which no trace of its steps shows: it can serve more than they say
    return min(0.45, max(0.0, low)), HALF if high > 0.3 else max(0.0, high) + RAMP


def hardware_relief(s: Signals, window: Window, objective: str, queue_is_a_cap: bool) -> dict[str, Share]:
    """Share of the objective's time freed by each limit inside the steps, by limit."""
    out: dict[str, Share] = {}
    if objective == "throughput" and keeps_up(s):
        return out  # throughput is the arrival rate, whatever the device does
    if objective == "e2e" and not closed(s):
        return _mixed(s, window, queue_is_a_cap)
    whole = "throughput" if objective in ("throughput", "e2e") else objective
    if objective == "ttft":
        return _first(s, window, queue_is_a_cap)
    for limit, share in window.relief(whole).items():
        out[limit] = _about(share, window.spread(whole, limit))
    return out


def keeps_up(s: Signals) -> bool:
    """Whether an open arrival rate is served as it comes."""
    if s.open_rate is None:
        return False
    if s.waiting_share is not None and s.waiting_share.value <= threshold("idle_queue"):
        return True  # nobody waits: the rate of a short run falls short by its last requests alone
    return bool(s.request_s and s.request_s.value >= threshold("keeps_up") * s.open_rate.value)


def _about(share: float, spread: float) -> Share:
    doubt = max(0.08 * share, spread)
    return max(0.0, share - doubt), min(0.98, share + doubt)


def _first(s: Signals, window: Window, queue_is_a_cap: bool) -> dict[str, Share]:
    """A prompt's own steps, and the queue: behind a cap it passes as the service does, else as prompts are computed."""
    part = queue_part(s)
    if part is None:
        return {}
    own, service = window.relief("ttft"), window.relief("throughput")
    queue = service if queue_is_a_cap else own
    if not own and part < threshold("queue_share"):
        return {}
    out = {}
    for limit in set(own) | set(queue):
        share = part * queue.get(limit, 0.0) + (1 - part) * own.get(limit, 0.0)
        kind = "throughput" if queue_is_a_cap else "ttft"
        out[limit] = _about(
            share, part * window.spread(kind, limit) + (1 - part) * window.spread("ttft", limit)
        )
    return out


def _mixed(s: Signals, window: Window, queue_is_a_cap: bool) -> dict[str, Share]:
    """The whole request of an open load: first token and decode by their share of the time."""
    share = first_share(s)
    if share is None:
        return {}
    first, rest = _first(s, window, queue_is_a_cap), hardware_relief(s, window, "itl", queue_is_a_cap)
    out = {}
    for limit in set(first) | set(rest):
        a, b = first.get(limit, (0.0, 0.0)), rest.get(limit, (0.0, 0.0))
        out[limit] = (share * a[0] + (1 - share) * b[0], share * a[1] + (1 - share) * b[1])
    return out


def interference_relief(window: Window) -> Share | None:
    """Share of mean ITL freed by computing prompts in chunks of CHUNK tokens beside the decodes instead of in steps of their
    own, for which every running request waits. None without such steps, or without a decode step to compare.

    The gap becomes that of the new mix: chunk steps (the longer of the chunk and the decode's weights, and its KV) as often as
    there are chunks a step. A chunk costs more than its part of a whole prompt, and prompts that wait longer leave the mix a
    little thicker than the window's.
    """
    alone = next((p for p in window.phases if p.phase == "prefill"), None)
    decode = next((p for p in window.phases if p.phase == "decode"), None)
    if alone is None or decode is None or not (alone.tokens and alone.steps and decode.steps):
        return None
    whole = alone.ns + decode.ns
    chunk = alone.ns / alone.steps * min(1.0, CHUNK / alone.tokens) / CHUNK_EFFICIENCY
    step = decode.ns / decode.steps
    kv = sum(share for part, share in decode.parts.items() if part.endswith(":kv"))
    often = min(1.0, alone.tokens * alone.steps / CHUNK / decode.steps)
    mixed = max(chunk, step * (1 - kv)) + step * kv
    freed = 1 - (often * mixed + (1 - often) * step) * decode.steps / whole
    return max(0.0, freed - CHUNK_DOUBT[0]), max(0.0, freed + CHUNK_DOUBT[1])


CHUNK = 512.0
"""Tokens of a chunk that keeps the device busy and streams flowing (vLLM's first default)."""
CHUNK_EFFICIENCY = 0.85
"""Of whole prompts' efficiency: Sarathi measures a loss of at most 10-20 % for chunks of 512-256 tokens."""
CHUNK_DOUBT = (0.08, 0.02)
"""By how much less and more of the gaps runs with chunks freed in simulation (14 runs of the development and calibration
seeds): prompts that wait longer leave the mix thicker than the window's."""
