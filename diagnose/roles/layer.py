"""Which projection each product of a layer is: the config gives the possible orders, the kernels must fit one.

Between two attentions lie the output projection, the MLP or router and experts, and the next layer's qkv.
Engines fuse q, k, v and gate, up or do not; the number of products and the norms and activations between them
decide which. Where more than one order fits, or none, nothing is assigned.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from diagnose.roles.kinds import (
    ACTIVATION,
    COMM,
    COPY,
    EXPERT,
    GEMM,
    KV,
    MOE,
    NORM,
    QUANT,
    ROPE,
    SPLIT_SUM,
)
from diagnose.roles.segment import NoAlignment, Template
from diagnose.serving.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Slot:
    """What a kernel of a template does: `role`, in this layer or (`after`) the next. `of` names the product that a
    helper serves, or the width of a copy or norm."""

    role: str
    after: bool
    of: str = ""


Order = tuple[str, ...]


def output_orders(model: ModelConfig, layer: int) -> list[Order]:
    """Products from attention to the residual."""
    return [("v_up", "o"), ("o",)] if model.plan[layer].attention == "mla" else [("o",)]


def mlp_orders(model: ModelConfig, layer: int) -> list[Order]:
    """Products of the MLP that are not expert kernels."""
    roles = {t.role for t in model.tensors if t.layer == layer and t.k > 1}
    dense: list[Order] = (
        [("gate_up", "down"), ("gate", "up", "down")] if "gate" in roles else [("up", "down")]
    )
    if model.plan[layer].mlp == "dense":
        return dense
    if model.plan[layer].mlp != "moe":
        return [()]
    if "shared_up" not in roles:
        return [("router",), ()]
    shared = ("shared_gate_up", "shared_down")  # engines that have expert kernels fuse gate and up
    # A shared expert may run on another stream, and the router inside a fused kernel.
    return [("router", *shared), (*shared, "router"), shared, ("router",), ()]


def input_orders(model: ModelConfig, layer: int) -> list[Order]:
    """Products from the input norm to attention."""
    if model.plan[layer].attention != "mla":
        if model.plan[layer].kv_shared:
            return [("q",)]
        return [("qkv",), ("q", "k", "v")]
    low = model.mla is not None and model.mla.q_lora_rank
    heads: list[Order] = (
        [("qkv_a", "q_b"), ("q_a", "kv_a", "q_b"), ("q_a", "q_b", "kv_a")] if low else [("q", "kv_a")]
    )
    return [(*head, tail) for head in heads for tail in ("k_up", "kv_b")]


_MLP = frozenset({"gate_up", "gate", "up", "down", "router", "shared_gate_up", "shared_down"})
_OUT = frozenset({"o", "v_up"})
_BEFORE_ACTIVATION = frozenset({"gate_up", "gate", "up", "shared_gate_up"})
_AFTER_ACTIVATION = frozenset({"down", "shared_down"})


def products(shape: Template, model: ModelConfig, layer: int, following: int | None) -> dict[int, Slot]:
    """Slot of every product in the template between the attentions of `layer` and `following` (None after the last).

    Raises NoAlignment when no order of the config fits, or several do.
    """
    at = [i for i, kind in enumerate(shape.kinds) if kind == GEMM]
    experts = [i for i, kind in enumerate(shape.kinds) if kind == EXPERT]
    _check_experts(model, layer, len(experts))
    before: list[Order] = input_orders(model, following) if following is not None else [()]
    fits = []
    for out, mlp, pre in product(output_orders(model, layer), mlp_orders(model, layer), before):
        if following is not None and ("v_up" in out) != ("k_up" in pre):
            continue  # latent attention is absorbed on both sides or on none
        order = (*out, *mlp, *pre)
        if len(order) == len(at) and _fits(shape, at, experts, order, len(pre)):
            fits.append((order, len(pre)))
    if not fits:
        raise NoAlignment(f"{len(at)} products between two attentions do not fit a layer of {model.name}")
    if len(set(fits)) > 1:
        raise NoAlignment("the order of a layer's products can be read in several ways")
    order, pre_count = fits[0]
    slots = {
        i: Slot(role, after=n >= len(order) - pre_count)
        for n, (i, role) in enumerate(zip(at, order, strict=True))
    }
    names = ("experts",) if len(experts) == 1 else ("experts_gate_up", "experts_down")
    if len(experts) in (1, 2):
        slots.update({i: Slot(role, after=False) for i, role in zip(experts, names, strict=True)})
    return slots


def _check_experts(model: ModelConfig, layer: int, found: int) -> None:
    moe = model.plan[layer].mlp == "moe"
    if found and not moe:
        raise NoAlignment(f"the layers run expert kernels, those of {model.name} have no experts")
    if moe and not found:
        raise NoAlignment(f"no expert kernels in a layer where {model.name} has experts")


def _fits(shape: Template, at: Sequence[int], experts: Sequence[int], order: Order, pre: int) -> bool:
    """Whether norms and activations lie where this order puts them. Norms inside fused kernels are not required."""
    norms = [i for i, kind in enumerate(shape.kinds) if kind == NORM]
    gates = [i for i, kind in enumerate(shape.kinds) if kind == ACTIVATION]
    roles = dict(zip(at, order, strict=True))
    out = [i for i in at if roles[i] in _OUT]
    middle = sorted([i for i in at if roles[i] in _MLP] + list(experts))
    inputs = at[len(at) - pre :] if pre else []
    if middle and out and max(out) > middle[0]:
        return False
    if inputs and middle and inputs[0] < middle[-1]:
        return False
    if experts and any(roles[i] == "router" and i > experts[0] for i in at):
        return False
    if norms and middle:
        if not any(max(out, default=-1) < i < middle[0] for i in norms):
            return False
        if inputs and not any(middle[-1] < i < inputs[0] for i in norms):
            return False
        if any(middle[0] < i < middle[-1] for i in norms):
            return False
    ups = [i for i in at if roles[i] in _BEFORE_ACTIVATION]
    downs = [i for i in at if roles[i] in _AFTER_ACTIVATION]
    if gates and ups and downs and not experts:
        return any(max(ups) < i < downs[0] for i in gates)
    if gates and ups and downs:  # a shared expert beside routed ones: its activation lies directly between
        return any(max(ups) < i < downs[0] for i in gates) and not any(
            max(ups) < i < downs[0] for i in at if roles[i] == "router"
        )
    return True


def boundary(shape: Template, slots: dict[int, Slot]) -> int:
    """First position that belongs to the next layer: the norm before its first product, else that product."""
    inputs = [i for i, s in slots.items() if s.after]
    if not inputs:
        return len(shape.kinds)
    first = min(inputs)
    last_of_mine = max((i for i, s in slots.items() if not s.after), default=-1)
    norms = [i for i in range(last_of_mine + 1, first) if shape.kinds[i] == NORM]
    return norms[-1] if norms else first


def helpers(shape: Template, slots: dict[int, Slot], edge: int, model: ModelConfig) -> dict[int, Slot]:
    """Slots of the other kernels whose kind and place say what they move. Raises NoAlignment on a contradiction."""
    out: dict[int, Slot] = {}
    order = sorted(slots)
    head_norms: list[int] = []
    expert_at = [i for i in order if slots[i].role.startswith("experts")]
    for i, kind in enumerate(shape.kinds):
        after = i >= edge
        previous = slots[max((j for j in order if j < i), default=-1)] if order and order[0] < i else None
        following = next((slots[j] for j in order if j > i), None)
        if kind == NORM:
            if after and previous is not None and previous.after:
                head_norms.append(i)
            else:
                out[i] = Slot("norm", after, "hidden")
        elif kind == ACTIVATION:
            if expert_at and expert_at[0] < i < expert_at[-1]:
                out[i] = Slot("moe_activation", after)
            elif previous is not None and previous.role.startswith("shared"):
                out[i] = Slot("activation", after, "shared")
            elif previous is not None and previous.role in _BEFORE_ACTIVATION:
                out[i] = Slot("activation", after, "mlp")
        elif kind in (ROPE, KV, MOE, COMM):
            out[i] = Slot({ROPE: "rope", KV: "kv_write", MOE: "moe_routing", COMM: "all_reduce"}[kind], after)
        elif kind == QUANT and following is not None:
            out[i] = Slot("quantise", after, following.role)
        elif kind == SPLIT_SUM and previous is not None:
            out[i] = Slot("split_k_sum", after, previous.role)
    out.update(_head_norms(shape, head_norms, model))
    return out


def _head_norms(shape: Template, at: list[int], model: ModelConfig) -> dict[int, Slot]:
    """Norms after the qkv product: of queries and keys by head, or of the two latent vectors."""
    if not at:
        return {}
    if model.mla is not None:
        names = ("q_a_norm", "kv_a_norm") if model.mla.q_lora_rank else ("kv_a_norm",)
        return {i: Slot(n, True) for i, n in zip(at, names, strict=True)} if len(at) == len(names) else {}
    if not any(t.role == "qk_norm" for t in model.tensors):
        raise NoAlignment(f"norms between the input projection and attention, {model.name} has none there")
    if len(at) == 1:
        return {at[0]: Slot("qk_norm", True)}
    if len(at) != 2:
        return {}
    out = {at[0]: Slot("q_norm", True), at[1]: Slot("k_norm", True)}
    for i, slot in list(out.items()):
        if i and shape.kinds[i - 1] == COPY:  # the rows it normalises, made contiguous
            out[i - 1] = Slot(slot.role.replace("norm", "copy"), True)
    return out
