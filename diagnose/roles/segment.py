"""Finding the layers in a step's kernels: attention marks each layer, and what lies between two attentions repeats.

A forward pass launches one layer's kernels after the other. The kernels from one layer's attention to the next
one's are a segment; segments of layers of the same make must hold the same kernels by name. Where they do not,
nothing is said: a count alone is no evidence.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from diagnose.roles.kinds import ATTENTION, EXPERT, GEMM, MERGE

_ENDS_ATTENTION = frozenset({"gemm", "expert", "norm", "activation", "rope", "kv"})
_ESSENTIAL = frozenset({GEMM, EXPERT})
MIN_SAME_NAMES = 0.8
"""Share of the products between attentions that must repeat by name over layers of the same make."""


class NoAlignment(Exception):
    """The kernels do not fit the model's layers; the text says why."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """One layer's attention kernels: positions `first` to `last`, both included."""

    first: int
    last: int


def anchors(kinds: Sequence[str]) -> list[Anchor]:
    """Attention kernels with their merges, one group a layer: a product, norm or cache write ends a group."""
    out: list[Anchor] = []
    i, n = 0, len(kinds)
    while i < n:
        if kinds[i] != ATTENTION:
            i += 1
            continue
        last = i
        for k in range(i + 1, n):
            if kinds[k] in _ENDS_ATTENTION:
                break
            if kinds[k] in (ATTENTION, MERGE):
                last = k
        out.append(Anchor(i, last))
        i = last + 1
    return out


@dataclass(frozen=True, slots=True)
class Template:
    """The kernels between two attentions, as most layers of this make have them."""

    names: tuple[int, ...]
    kinds: tuple[str, ...]


def template(segments: Sequence[tuple[int, ...]], kinds: dict[int, str]) -> Template:
    """The most common sequence of names (the first one on a tie). `kinds` by name id."""
    names = Counter(segments).most_common(1)[0][0]
    return Template(names, tuple(kinds[n] for n in names))


def match(shape: Template, names: Sequence[int], kinds: Sequence[str]) -> list[int | None]:
    """For each of `names` its position in the template, None where it is no part of it.

    Equal names in order, first; between them, runs of the same kinds in the same order pair up (another tile
    for one layer, a norm without a residual in the first).
    """
    if tuple(names) == shape.names:
        return list(range(len(names)))
    found: list[int | None] = [None] * len(names)
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, shape.names, list(names), autojunk=False).get_opcodes():
        if tag == "equal" or (tag == "replace" and shape.kinds[i1:i2] == tuple(kinds[j1:j2])):
            found[j1:j2] = range(i1, i2)
        elif tag == "replace":
            _pair(shape.kinds, i1, i2, kinds, j1, j2, found)
    return found


def _pair(left: Sequence[str], i1: int, i2: int, right: Sequence[str], j1: int, j2: int,
          found: list[int | None]) -> None:  # fmt: skip
    """Pair what both runs have by kind, in order."""
    blocks = SequenceMatcher(None, left[i1:i2], right[j1:j2], autojunk=False).get_matching_blocks()
    for block in blocks:
        for step in range(block.size):
            found[j1 + block.b + step] = i1 + block.a + step


def check_match(shape: Template, names: Sequence[int], kinds: Sequence[str], found: list[int | None]) -> bool:
    """Whether every product of the template is there and no other."""
    have = {i for i in found if i is not None}
    if any(kind in _ESSENTIAL and i not in have for i, kind in enumerate(shape.kinds)):
        return False
    return not any(kind in _ESSENTIAL and at is None for kind, at in zip(kinds, found, strict=True))


def same_names(shape: Template, names: Sequence[int], found: list[int | None]) -> tuple[int, int]:
    """(products whose name equals the template's, products)."""
    pairs = [(names[j], shape.names[i]) for j, i in enumerate(found)
             if i is not None and shape.kinds[i] in _ESSENTIAL]  # fmt: skip
    return sum(a == b for a, b in pairs), len(pairs)
