"""One step's kernels against the model's layers: every kernel's layer and role, or the reason why not."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from diagnose.roles import layer as layers
from diagnose.roles.kinds import ATTENTION, COPY, GATHER, GEMM, NORM, kind
from diagnose.roles.layer import Slot
from diagnose.roles.segment import (
    MIN_SAME_NAMES,
    Anchor,
    NoAlignment,
    Template,
    anchors,
    check_match,
    match,
    same_names,
    template,
)
from diagnose.serving.model_config import Layer, ModelConfig

Key = tuple[str, str, bool]


@dataclass(frozen=True, slots=True)
class Role:
    """A kernel's place: layer (of the whole model), what it does, and what it serves (`Slot.of`)."""

    layer: int
    role: str
    of: str = ""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Roles by position in the lane, the layers it holds and the kernels of one layer (by make)."""

    roles: dict[int, Role]
    first_layer: int
    layers: int
    period: tuple[int, ...]


def stage(model: ModelConfig, found: int, pp: int) -> tuple[int, int]:
    """(first layer, layers) of the part of the model that has `found` attentions. Raises NoAlignment."""
    if any(p.attention in ("mamba", "linear", "none", "parallel") for p in model.plan):
        raise NoAlignment(f"{model.name} has layers without attention, which are not told apart yet")
    if model.mla is not None and model.mla.index_dim:
        raise NoAlignment("sparse attention with an indexer is not told apart yet")
    if pp <= 1:
        if found == model.layers:
            return 0, model.layers
        if found and found % model.layers == 0:
            raise NoAlignment(
                f"the step holds {found // model.layers} passes over {model.layers} layers: its tokens cannot be told apart"
            )
        raise NoAlignment(f"{found} attention kernels, {model.name} has {model.layers} layers")
    spans = []
    for number in range(pp):
        mine = [i for i in range(model.layers) if model.stage_of(i, pp) == number]
        if len(mine) == found:
            spans.append((mine[0], found))
    if not spans:
        raise NoAlignment(f"{found} attention kernels fit no stage of {model.name} over {pp}")
    makes = {tuple(make(model.plan[i]) for i in range(a, a + n)) for a, n in spans}
    if len(makes) > 1:
        raise NoAlignment(f"which of the {pp} stages this is cannot be told")
    return spans[0]


def make(layer: Layer) -> tuple[str, str, bool]:
    """What distinguishes layers by their kernels."""
    return layer.mlp, layer.attention, layer.window is not None


def align(names: Sequence[int], texts: dict[int, str], model: ModelConfig, pp: int = 1) -> Alignment:
    """Roles of one step's kernels (`names` are name ids in order, `texts` their text). Raises NoAlignment."""
    kinds_of = {n: kind(texts[n]) for n in set(names)}
    kinds = [kinds_of[n] for n in names]
    marks = anchors(kinds)
    if not marks:
        raise NoAlignment("the step has no attention kernel that marks its layers")
    start, count = stage(model, len(marks), pp)
    if count < 2:
        raise NoAlignment("a single layer does not repeat")
    groups: dict[Key, list[int]] = defaultdict(list)
    for i in range(count - 1):
        here, following = model.plan[start + i], model.plan[start + i + 1]
        groups[here.mlp, following.attention, following.window is not None].append(i)
    spans = [(a.last + 1, b.first) for a, b in pairwise(marks)]
    roles: dict[int, Role] = {}
    templates: dict[Key, tuple[Template, dict[int, Slot], int]] = {}
    same = total = 0
    for key, members in groups.items():
        shape = template([tuple(names[spans[i][0] : spans[i][1]]) for i in members], kinds_of)
        slots = layers.products(shape, model, start + members[0], start + members[0] + 1)
        edge = layers.boundary(shape, slots)
        slots = {**layers.helpers(shape, slots, edge, model), **slots}
        templates[key] = shape, slots, edge
        for i in members:
            a, b = spans[i]
            found = match(shape, names[a:b], kinds[a:b])
            if not check_match(shape, names[a:b], kinds[a:b], found):
                raise NoAlignment(f"the products of layer {start + i} are not those of the other layers")
            equal, all_ = same_names(shape, names[a:b], found)
            same, total = same + equal, total + all_
            _place(roles, a, found, slots, start + i)
    if same < MIN_SAME_NAMES * total:
        raise NoAlignment("the layers' kernels do not repeat by name")
    for i, mark in enumerate(marks):
        for at in range(mark.first, mark.last + 1):
            if kinds[at] in (ATTENTION, "merge"):
                roles[at] = Role(start + i, "attention" if kinds[at] == ATTENTION else "attention_merge")
    _head(roles, names, kinds, marks[-1], templates, model, start + count - 1)
    _tail(roles, names, kinds, marks[0], templates, model, start)
    period = tuple(
        sorted(
            {
                len(shape.names) + m.last - m.first + 1
                for (shape, _, _), m in zip(templates.values(), marks, strict=False)
            }
        )
    )
    return Alignment(roles, start, count, period)


def _place(
    roles: dict[int, Role], offset: int, found: Sequence[int | None], slots: dict[int, Slot], layer: int
) -> None:
    for j, i in enumerate(found):
        if i is not None and (slot := slots.get(i)) is not None:
            roles[offset + j] = Role(layer + slot.after, slot.role, slot.of)


def _head(roles: dict[int, Role], names: Sequence[int], kinds: Sequence[str], last: Anchor,
          templates: dict[Key, tuple[Template, dict[int, Slot], int]], model: ModelConfig, layer: int) -> None:  # fmt: skip
    """After the last attention: the rest of its layer, the last norm, the vocabulary projection."""
    fitting = [t for key, t in templates.items() if key[0] == model.plan[layer].mlp]
    if not fitting:
        return
    shape, slots, edge = fitting[0]
    part = Template(shape.names[:edge], shape.kinds[:edge])
    offset = last.last + 1
    window = slice(offset, offset + 3 * edge + 8)
    found = match(part, names[window], kinds[window])
    placed = {i for i in found if i is not None}
    if any(kind in ("gemm", "expert") and i not in placed for i, kind in enumerate(part.kinds)):
        raise NoAlignment(
            f"the products after the last attention are not those of the other layers of {model.name}"
        )
    _place(roles, offset, found, slots, layer)
    end = offset + max((j for j, i in enumerate(found) if i is not None), default=-1) + 1
    rest = range(end, len(names))
    products = [i for i in rest if kinds[i] == GEMM]
    stop = products[0] if products else len(names)
    norms = [i for i in range(end, stop) if kinds[i] == NORM]
    if norms:
        roles[norms[0]] = Role(layer, "norm", "hidden")
    if len(products) == 1 and layer == model.layers - 1:
        roles[products[0]] = Role(layer, "head")
        after = products[0] + 1
        if after < len(names) and kinds[after] == COPY:
            roles[after] = Role(layer, "logits_cast")


def _tail(roles: dict[int, Role], names: Sequence[int], kinds: Sequence[str], first: Anchor,
          templates: dict[Key, tuple[Template, dict[int, Slot], int]], model: ModelConfig, layer: int) -> None:  # fmt: skip
    """Before the first attention: the embedding, and the beginning of the first layer, which ends like the others'."""
    plan = model.plan[layer]
    fitting = [t for key, t in templates.items() if key[1:] == (plan.attention, plan.window is not None)]
    if not fitting:
        return
    shape, slots, edge = fitting[0]
    part = Template(shape.names[edge:], shape.kinds[edge:])
    offset = max(0, first.first - 3 * len(part.names) - 8)
    found = match(part, names[offset : first.first], kinds[offset : first.first])
    placed = {i for i in found if i is not None}
    if any(kind == GEMM and i not in placed for i, kind in enumerate(part.kinds)):
        raise NoAlignment(
            f"the products before the first attention are not those of the other layers of {model.name}"
        )
    _place(roles, offset, [None if i is None else i + edge for i in found], slots, layer - 1)
    begin = offset + min((j for j, i in enumerate(found) if i is not None), default=0)
    gathers = [i for i in range(begin) if kinds[i] == GATHER]
    if layer == 0 and len(gathers) == 1:
        roles[gathers[0]] = Role(layer, "embedding")


def common_rows(lane_rows: Sequence[int], roles: dict[int, Role]) -> int | None:
    """Rows that the grids of norms, rotations and cache writes agree on (they launch one block a token)."""
    by_role: dict[str, Counter[int]] = defaultdict(Counter)
    for at, role in roles.items():
        if role.role in ("norm", "rope", "kv_write") and lane_rows[at]:
            by_role[role.role][lane_rows[at]] += 1
    tops = [c.most_common(1)[0] for c in by_role.values()]
    values = Counter(value for value, count in tops if count >= 2)
    if not values:
        return None
    value, votes = values.most_common(1)[0]
    return value if votes >= 2 else None
