"""Numbers of one step that costs need: rows of the products, queries and keys of attention."""

from dataclasses import dataclass

from diagnose.costs.op import StepInfo

Step = StepInfo


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys that the layer's attention reads, and what is not known about them: sums do not say how they spread."""

    pairs: float
    keys: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """One step as the costs see it; None is unknown.

    rows: rows of every projection (the tokens, padded to the graph's size where kernels show it); heads_out:
    rows of the vocabulary projection; decode and prefill: sequences, tokens, KV tokens and pairs of each side.
    """

    rows: int | None
    heads_out: int | None = None
    decode_sequences: int = 0
    decode_tokens: int = 0
    context: float | None = None
    prefill_sequences: int | None = None
    prefill_tokens: int = 0
    prefill_context: float | None = None
    prefill_pairs: float | None = None

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return self.decode_tokens + self.prefill_tokens


def numbers(
    step: Step, prefill_sequences: int | None, decode_sequences: int | None, rows: int | None
) -> StepNumbers:
    """From a row of table `step`; `rows` as kernels show them (None: the step's tokens)."""
    prefill, decode = step.prefill_tokens, step.decode_tokens
    known = prefill is not None and decode is not None
    tokens = (prefill or 0) + (decode or 0) if known else None
    if decode_sequences is None and not prefill:
        decode_sequences = step.sequences
    if prefill_sequences is None and not decode:
        prefill_sequences = step.sequences
    heads_out = None
    if known and tokens:
        heads_out = (decode or 0) + (prefill_sequences or 0 if prefill else 0)
        if prefill and prefill_sequences is None:
            heads_out = None
    return StepNumbers(
        rows=rows or tokens or None,
        heads_out=heads_out,
        decode_sequences=(decode_sequences or decode or 0) if decode else 0,
        decode_tokens=(decode or 0) if known else 0,
        context=None if step.context_tokens is None else float(step.context_tokens),
        prefill_sequences=prefill_sequences,
        prefill_tokens=(prefill or 0) if known else 0,
        prefill_context=None if step.prefill_context_tokens is None else float(step.prefill_context_tokens),
        prefill_pairs=step.prefill_pairs,
    )


def windowed_sum(
    total: float, sequences: int, window: int | None, longest: int | None = None
) -> tuple[float, float, float]:
    """Σ min(window, length) over `sequences` lengths that sum to `total`: (when all are equal, least, most).

    min is concave, so equal lengths give the most; the least has as many sequences as possible at `longest`
    (default: all tokens in one sequence) and the others at one token.
    """
    if window is None or sequences <= 0:
        return total, total, total
    most = min(total, float(sequences * window))
    top = float(min(longest or total, total))
    rest = total - sequences  # each has one token at least
    if top <= 1 or rest <= 0:
        return most, most, most
    long_ones = int(rest // (top - 1))
    spare = rest - long_ones * (top - 1)
    least = long_ones * min(window, top)
    if long_ones < sequences:
        least += min(window, 1 + spare) + (sequences - long_ones - 1)
    return most, min(least, most), most


def decode_keys(step: StepNumbers, window: int | None, longest: int | None) -> Keys | None:
    """Keys and query-key pairs of the decoding side; None where the context is not recorded."""
    if not step.decode_tokens or step.context is None:
        return None
    each = step.decode_tokens / max(1, step.decode_sequences)
    most, least, high = windowed_sum(step.context, step.decode_sequences, window, longest)
    return Keys(most * each, most, least, high)


def prefill_keys(step: StepNumbers, window: int | None) -> Keys | None:
    """Keys and causal pairs of the prefilling side: exact for one sequence, else sequences of equal length assumed
    under a window (pairs without one are recorded)."""
    if not step.prefill_tokens or step.prefill_pairs is None:
        return None
    keys = step.prefill_context if step.prefill_context is not None else float(step.prefill_tokens)
    if window is None:
        return Keys(step.prefill_pairs, keys, keys, keys)
    sequences = step.prefill_sequences
    if not sequences:
        return None
    new, length = step.prefill_tokens / sequences, keys / sequences
    pairs = sequences * _window_pairs(new, length, window)
    read = sequences * min(length, new + window - 1)
    if sequences == 1:
        return Keys(min(pairs, step.prefill_pairs), read, read, read)
    # Every new token is a key itself; no sequence reads more than its length.
    return Keys(min(pairs, step.prefill_pairs), read, float(step.prefill_tokens), keys)


def _window_pairs(new: float, length: float, window: int) -> float:
    """Σ min(window, keys seen) of `new` queries that end at `length`; lengths may be means, so not whole numbers."""
    first = length - new + 1
    if length <= window:
        return new * (first + length) / 2
    inside = max(0.0, window - first + 1)
    return inside * (first + window) / 2 + (new - inside) * window
