"""From roles to costs: one lane's kernels priced by the model, the step's numbers and what their names add."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from diagnose.costs.families import family
from diagnose.costs.op import OpCost
from diagnose.roles.align import Alignment, Role, common_rows
from diagnose.roles.check import Placed
from diagnose.roles.numbers import StepNumbers
from diagnose.roles.read import Lane
from diagnose.roles.segment import NoAlignment
from diagnose.roles.work import Work


class Pricer:
    """Costs by (layer's make, role, name, numbers), computed once each."""

    def __init__(self, work: Work, texts: dict[int, str]) -> None:
        self.work, self.texts = work, texts
        self._costs: dict[tuple[Any, ...], OpCost | None] = {}
        self._like = self._same_layers()

    def _same_layers(self) -> list[int]:
        """The first layer with the same plan and the same stored weights, for every layer."""
        model, out = self.work.model, []
        first: dict[tuple[Any, ...], int] = {}
        sizes: dict[int, list[tuple[str, float]]] = defaultdict(list)
        for t in model.tensors:
            if t.layer is not None and t.k > 1:
                sizes[t.layer].append((t.role, model.tensor_bytes(t, self.work.tp, self.work.ep)[0]))
        for i, plan in enumerate(model.plan):
            out.append(first.setdefault((plan, tuple(sizes[i])), i))
        return out

    def rows(self, lane: Lane, found: Alignment, step: StepNumbers) -> StepNumbers:
        """The step's numbers with the rows that kernels show. Raises NoAlignment where they contradict its tokens."""
        known = Counter(s[0] for at, r in found.roles.items()
                        if (s := lane.shape[at]) is not None and self.work.gemm(r.layer, r.role) is not None and r.role != "head")  # fmt: skip
        shown = known.most_common(1)[0][0] if known else common_rows(lane.rows0, found.roles)
        if shown is None:
            if step.rows is None:
                raise NoAlignment(
                    "the step's tokens are not known: no engine annotation, no grids that show them"
                )
            return step
        if step.rows is not None and shown < step.rows:
            raise NoAlignment(f"the annotation says {step.rows} tokens, the kernels work on {shown} rows")
        return replace(step, rows=shown)

    def cost(self, role: Role, name_id: int, step: StepNumbers) -> OpCost | None:
        """Cost of one kernel with this role; None where its role does not say enough."""
        layer = self._like[role.layer]
        key = (layer, role.role, role.of, name_id, self._matters(role.role, step))
        if key not in self._costs:
            self._costs[key] = self._price(layer, role, self.texts[name_id], step)
        return self._costs[key]

    @staticmethod
    def _matters(role: str, step: StepNumbers) -> object:
        """The numbers that a role's cost depends on."""
        if role in ("attention", "attention_merge"):
            return step
        if role in ("head", "logits_cast"):
            return step.rows, step.heads_out, step.prefill_tokens > 0
        return (step.rows, step.tokens) if role.startswith("experts") else step.rows

    def _price(self, layer: int, role: Role, name: str, step: StepNumbers) -> OpCost | None:
        work, rows = self.work, step.rows
        if role.role == "attention":
            return work.attention(layer, step, (name,))
        if role.role == "attention_merge":
            return work.merge(layer, step)
        if rows is None:
            return None
        if role.role.startswith("experts"):
            return work.experts(layer, role.role, step, name)
        if role.role in ("head", "logits_cast"):
            out = step.heads_out
            if out is None:
                return None
            out = max(out, rows) if not step.prefill_tokens else out
            return work.product(layer, "head", out, name) if role.role == "head" else work.logits_cast(out)
        plain: dict[str, Callable[[], OpCost | None]] = {
            "norm": lambda: work.norm(layer, role.role, rows, name),
            "rope": lambda: work.rope(layer, rows),
            "kv_write": lambda: work.kv_write(layer, rows, name),
            "activation": lambda: work.activation(layer, role.of, rows),
            "moe_activation": lambda: work.moe_activation(layer, rows),
            "moe_routing": lambda: work.routing(rows, name),
            "quantise": lambda: work.quantise(layer, role.of, rows),
            "split_k_sum": lambda: work.split_sum(layer, role.of, rows),
            "all_reduce": lambda: work.all_reduce(rows, name),
            "embedding": lambda: work.embedding(rows),
            "q_copy": lambda: work.head_copy(layer, role.role, rows),
            "k_copy": lambda: work.head_copy(layer, role.role, rows),
        }
        for head in ("q_norm", "k_norm", "qk_norm", "q_a_norm", "kv_a_norm"):
            plain[head] = lambda: work.norm(layer, role.role, rows, name)
        if role.role in plain:
            return plain[role.role]()
        return work.product(layer, role.role, rows, name)

    def price(self, lane: Lane, found: Alignment, step: StepNumbers) -> dict[int, OpCost]:
        """Cost by position in the lane, for every kernel with a role that says enough (those with a cost too)."""
        out: dict[int, OpCost] = {}
        attention: dict[int, list[int]] = defaultdict(list)
        for at, role in found.roles.items():
            if role.role == "attention":
                attention[role.layer].append(at)
            elif (cost := self.cost(role, lane.name_id[at], step)) is not None:
                out[at] = cost
        for layer, places in attention.items():
            out.update(self._attention(self._like[layer], places, lane, step))
        return out

    def _attention(self, layer: int, places: list[int], lane: Lane, step: StepNumbers) -> dict[int, OpCost]:
        """One layer's attention over its kernels: by side where their families say so, else in proportion to time."""
        if len(places) == 1:
            cost = self.cost(Role(layer, "attention"), lane.name_id[places[0]], step)
            return {} if cost is None else {places[0]: cost}
        kinds = [family(self.texts[lane.name_id[at]]) for at in places]
        if step.prefill_tokens and step.decode_tokens and sorted(kinds) == ["attn_decode", "attn_prefill"]:
            sides = {at: self.work.attention(layer, step, (self.texts[lane.name_id[at]],), k.removeprefix("attn_"))
                     for at, k in zip(places, kinds, strict=True)}  # fmt: skip
            return {at: cost for at, cost in sides.items() if cost is not None}
        if len(set(kinds)) > 1:
            return {}
        whole = self.work.attention(layer, step, tuple(self.texts[lane.name_id[at]] for at in places))
        time = sum(lane.dur_ns[at] for at in places)
        if whole is None or not time:
            return {}
        return {at: whole.scaled(lane.dur_ns[at] / time) for at in places}

    def placed(self, lane: Lane, found: Alignment, costs: dict[int, OpCost]) -> list[Placed]:
        """Every kernel with a role, for the checks."""
        return [
            Placed(
                r.layer,
                r.role,
                self.texts[lane.name_id[at]],
                lane.dur_ns[at],
                lane.shape[at],
                lane.blocks[at],
                costs.get(at),
            )
            for at, r in found.roles.items()
        ]
