"""Operator name to cost model. One file a family of operators; each registers its names here."""

import importlib
from collections.abc import Callable
from functools import cache

from diagnose.costs.op import OpCall, OpCost

Model = Callable[[OpCall], OpCost | None]

_MODELS: dict[str, Model] = {}
_NEED_STEP: set[str] = set()

_MODULES = (
    "matmul", "scaled_matmul", "weight_only", "convolution", "attention", "paged_attention", "mla", "moe",
    "norms",
    "elementwise", "rope_activation", "quantize", "kv_cache", "copy_cat_gather", "reductions", "sampling",
    "ssm",
    "inductor", "collectives",
)  # fmt: skip


def model(*names: str, by_step: bool = False) -> Callable[[Model], Model]:
    """Register a function as the cost model of these operator names (as profilers print them,
    `namespace::op`).

    `by_step`: the arguments do not say enough; the model also reads the engine step that the call ran in.
    """

    def register(function: Model) -> Model:
        for name in names:
            if name in _MODELS:
                raise ValueError(f"two cost models for {name}")
            _MODELS[name] = function
            if by_step:
                _NEED_STEP.add(name)
        return function

    return register


@cache
def _load() -> None:
    for module in _MODULES:
        importlib.import_module(f"diagnose.costs.{module}")


def modelled_names() -> frozenset[str]:
    """Every operator name with a cost model (Inductor's `triton_*` names come on top)."""
    _load()
    return frozenset(_MODELS)


def needs_step(name: str) -> bool:
    """Whether the model of this operator reads the engine step."""
    _load()
    return name in _NEED_STEP


def model_of(name: str) -> Model | None:
    """The cost model of an operator name; Inductor's generated kernels are known by their prefix."""
    _load()
    found = _MODELS.get(name)
    if found is None and name.startswith("triton_"):
        return _MODELS.get("triton_")
    return found


def cost_of(call: OpCall) -> OpCost | None:
    """Cost of one call; None when no model knows the operator or the recorded arguments do not determine
    it."""
    function = model_of(call.name)
    if function is None:
        return None
    try:
        cost = function(call)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # Arguments of a shape that the model does not know (damaged, or another version of the operator): no
        # cost.
        return None
    if cost is None or cost.flops < 0 or cost.bytes_min < 0:
        return None
    return cost
