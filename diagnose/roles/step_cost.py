"""Step arithmetic: what one engine step computes, reads and writes, from the model's numbers and the step's.

Weights count once a step as stored (all dense ones, the experts that uniform routing is expected to touch), KV by
context, activations by tokens. The roof is the sum over operations of the larger of compute and memory time:
attention and projections do not overlap. The larger of the two sums is only the absolute bound.
"""

from dataclasses import dataclass

from diagnose.costs.op import OpCost
from diagnose.roles.numbers import StepNumbers
from diagnose.roles.work import Work
from diagnose.serving.model_config import ModelConfig
from diagnose.serving.step_ops import Op, RoofsLike, StepRoof, step_roof


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step on one rank. Bytes and FLOPs are totals; `ops` lists operations with their count.

    weight_bytes: weights touched, embedding rows included; kv_read_bytes, kv_write_bytes: the cache; activation_bytes:
    inputs and outputs of the listed operations (norms and other passes between them are not: fused, they vanish).
    """

    ops: tuple[Op, ...]
    flops: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    activation_bytes: float

    @property
    def bytes(self) -> float:
        """Everything that moves."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes

    def roof(self, roofs: RoofsLike) -> StepRoof | None:
        """Least time on a device (ms): `sum_ms` over operations, `bound_ms` the absolute bound; None where a roof is
        unknown."""
        return step_roof(self.ops, roofs)


def step_cost(
    model: ModelConfig, step: StepNumbers, *, tp: int = 1, ep: int = 1, kv_dtype: str | None = None
) -> StepCost | None:
    """Cost of one step; None when its tokens, or the context its attention reads, are not known.

    UsageError when `tp` does not split the model's heads, or `kv_dtype` is unknown.
    """
    model.check_tp(tp)
    if not step.rows or not step.tokens or step.heads_out is None:
        return None
    work = Work(model, tp, ep, kv_dtype)
    counted: dict[tuple[str, str, OpCost], int] = {}
    weights = kv_read = kv_write = 0.0
    for i, plan in enumerate(model.plan):
        for gemm in model.layer_gemms(i, tp, ep):
            expert = gemm.role.startswith("experts_")
            cost = (
                work.experts(i, gemm.role, step, "swiglu")
                if expert
                else work.product(i, gemm.role, step.tokens, "")
            )
            if cost is None:
                continue
            counted[gemm.role, "weights", cost] = counted.get((gemm.role, "weights", cost), 0) + 1
            stored = work.weights(i, gemm.role) or 0.0
            weights += stored * (model.expected_experts(step.tokens) / ep if expert else 1.0)
        per_token = model.kv_layer_bytes(plan, kv_dtype, tp)
        kv_write += per_token * step.tokens
        for side, kind in (("decode", "kv"), ("prefill", "prefill_attention")):
            if not (step.decode_tokens if side == "decode" else step.prefill_tokens) or not plan.cached:
                continue
            attention = work.attention(i, step, (), side)
            if attention is None:
                return None
            name = f"attention_{side}"
            counted[name, kind, attention] = counted.get((name, kind, attention), 0) + 1
            kv_read += per_token * (work.keys_read(i, step, side) or 0.0)
    head = work.product(model.layers - 1, "head", step.heads_out, "")
    assert head is not None
    counted["head", "weights", head] = 1
    weights += work.weights(model.layers - 1, "head") or 0.0
    ops = tuple(
        Op(name, kind, c.flops, c.bytes_min, c.dtype or model.dtype, count, c.m, c.n, c.k)
        for (name, kind, c), count in counted.items()
    )
    moved = sum(op.bytes * op.count for op in ops)
    return StepCost(
        ops=ops,
        flops=sum(op.flops * op.count for op in ops),
        weight_bytes=weights + step.tokens * model.hidden * work.e,
        kv_read_bytes=kv_read,
        kv_write_bytes=kv_write,
        activation_bytes=moved - weights - kv_read,
    )
