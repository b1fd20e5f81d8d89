"""What a role costs: FLOPs and bytes of a layer's kernel from the model's numbers and the step's.

Formulas are those of `diagnose.costs`; weights count as the checkpoint stores them (packed values, scales, zeros),
experts by the number that uniform routing is expected to touch, E·(1 − (1 − k/E)^T), with the least and most as
bytes_low and bytes_high.
"""

import re
from dataclasses import replace
from functools import cache

from diagnose.costs import dtypes
from diagnose.costs.attention import attention_cost
from diagnose.costs.collectives import collective_cost
from diagnose.costs.families import math_dtype
from diagnose.costs.kv_cache import kv_write_cost, mla_write_cost
from diagnose.costs.matmul import gemm_cost, helpers
from diagnose.costs.mla import mla_decode_cost, mla_prefill_cost
from diagnose.costs.norms import RMS, RMS_ADD, norm_cost
from diagnose.costs.op import OpCost, band
from diagnose.costs.rope_activation import gated_activation_cost, rope_cost
from diagnose.roles.kinds import adds_residual, fuses_activation, kv_dtype
from diagnose.roles.numbers import Keys, StepNumbers, decode_keys, prefill_keys
from diagnose.serving.model_config import FUSED, Gemm, ModelConfig

UNFUSED = frozenset({"q", "k", "v", "gate", "up", "q_a", "kv_a"})


class Work:
    """Costs of one model on one rank of `tp` (and experts over `ep`). `kv` is the cache's type where names do not
    say it (default: what the checkpoint asks for)."""

    def __init__(self, model: ModelConfig, tp: int = 1, ep: int = 1, kv: str | None = None) -> None:
        self.model, self.tp, self.ep = model, tp, ep
        self.kv = model.kv_dtype(kv)
        self.e = dtypes.size(model.dtype)
        self.weights = cache(self._weights)
        self.gemm = cache(self._gemm)

    # ---- projections

    def _gemm(self, layer: int, role: str) -> Gemm | None:
        """Outputs and inputs of a projection on this rank, fused or single."""
        model = self.model
        if role == "head":
            return model.head_gemm(self.tp)
        if role in ("k_up", "v_up") and model.mla is not None:
            plan = model.plan[layer]
            pair = (model.mla.kv_lora_rank, model.mla.nope), (plan.v_head_dim, model.mla.kv_lora_rank)
            return Gemm(role, *(pair[0] if role == "k_up" else pair[1]))
        if role in UNFUSED:
            for t in model.tensors:
                if t.layer == layer and t.role == role and t.k > 1:
                    n, k, _ = model.local_shape(t, self.tp, self.ep)
                    return Gemm(role, n, k)
            return None
        return next((g for g in model.layer_gemms(layer, self.tp, self.ep) if g.role == role), None)

    def _weights(self, layer: int, role: str) -> float | None:
        """Stored bytes of a projection's weights on this rank (of one expert, for experts); biases included."""
        if role == "head":
            g = self.model.head_gemm(self.tp)
            return g.n * g.k * self.e
        total = 0.0
        for t in self.model.tensors:
            if t.layer != layer:
                continue
            base = t.role.removesuffix("_bias")
            if role in (base, FUSED.get(base, base)):
                copies = self.model.local_shape(t, self.tp, self.ep)[2]
                total += self.model.tensor_bytes(t, self.tp, self.ep)[0] / copies
        return total or None

    def act_bytes(self, layer: int, role: str) -> float:
        """Bytes of one activation element that a projection reads."""
        return 1.0 if self.weight_bits(layer, role, activations=True) == 8 else self.e

    def weight_bits(self, layer: int, role: str, *, activations: bool = False) -> float | None:
        """Bits of a stored weight (or of the activations it is multiplied by); None when kept in the model's dtype."""
        quant = self.model.quant
        if quant is None:
            return None
        for t in self.model.tensors:
            if t.layer == layer and t.k > 1 and role in (t.role, FUSED.get(t.role, t.role)):
                fmt = quant.format_for(t.module, t.component)
                return None if fmt is None else fmt.act_bits if activations else fmt.bits
        return None

    def _format(self, layer: int, role: str) -> str:
        """Short name of how a projection's weights are stored."""
        for t in self.model.tensors:
            if t.layer == layer and t.k > 1 and role in (t.role, FUSED.get(t.role, t.role)):
                fmt = self.model.quant.format_for(t.module, t.component) if self.model.quant else None
                return fmt.label if fmt is not None else self.model.dtype
        return self.model.dtype

    def product(self, layer: int, role: str, rows: int, name: str) -> OpCost | None:
        """A dense projection of `rows` rows."""
        g = self.gemm(layer, role)
        if g is None:
            return None
        math = math_dtype(name) or self._math(layer, role)
        if role in ("k_up", "v_up"):
            heads = max(1, self.model.plan[layer].heads // self.tp)
            return replace(
                gemm_cost(rows, g.n, g.k, self.model.dtype, batch=heads, math=math, role=role), parts=()
            )
        weights = self.weights(layer, role)
        if weights is None:
            return None
        cost = gemm_cost(rows, g.n, g.k, self.model.dtype, math=math, role=role)
        data = rows * g.k * self.act_bytes(layer, role) + rows * g.n * self.e + weights
        return replace(cost, bytes_min=data, parts=())

    def _math(self, layer: int, role: str) -> str:
        if self.weight_bits(layer, role, activations=True) == 8:
            label = self.model.quant.rules[0][1].label if self.model.quant and self.model.quant.rules else ""
            return "int8" if "int" in label else "fp8"
        return self.model.dtype

    def experts(self, layer: int, role: str, step: StepNumbers, name: str) -> OpCost | None:
        """Grouped product of the routed tokens with the experts they touch; `experts` is the whole fused layer."""
        if step.rows is None:
            return None
        tokens = step.tokens or step.rows
        parts = [
            r for r in ("experts_gate_up", "experts_up", "experts_down") if self.gemm(layer, r) is not None
        ]
        if role == "experts":
            found = [self._expert(layer, r, tokens, name, fused=True) for r in parts]
            costs = [c for c in found if c is not None]
            if not costs or len(costs) < len(found):
                return None
            first, *rest = costs
            for one in rest:
                first = replace(
                    first, flops=first.flops + one.flops, bytes_min=first.bytes_min + one.bytes_min,
                    bytes_low=first.low + one.low, bytes_high=first.high + one.high, role=role,
                )  # fmt: skip
            return first
        if role == "experts_gate_up" and role not in parts:
            role = "experts_up"
        return self._expert(layer, role, tokens, name, fused=fuses_activation(name))

    def _expert(self, layer: int, role: str, tokens: int, name: str, *, fused: bool) -> OpCost | None:
        model, g = self.model, self.gemm(layer, role)
        one = self.weights(layer, role)
        if g is None or one is None:
            return None
        rows = tokens * model.experts_per_token / self.ep
        local = model.experts / self.ep
        touched = model.expected_experts(tokens) / self.ep
        first = role != "experts_down"
        read = min(float(tokens), rows) if first else rows  # gate and up index the tokens, no copy of them
        out = g.n / 2 if first and fused and model.gated_mlp else g.n
        data = (read * g.k + rows * out) * self.e
        least, most = max(1.0, min(model.experts_per_token, local) / self.ep), min(local, max(1.0, rows))
        fmt = self._format(layer, role)
        return OpCost(
            2.0 * rows * g.n * g.k,
            data + touched * one,
            math_dtype(name) or self._math(layer, role),
            f"{tokens}x{g.k} top{model.experts_per_token}/{model.experts} {fmt} -> {g.n}",
            "moe_gate_up" if first else "moe_down",
            bytes_low=min(least, touched) * one * 0.9 + data * 0.5,
            bytes_high=(max(most, touched) * one + data) * 1.1,
        )

    # ---- attention

    def attention(
        self, layer: int, step: StepNumbers, names: tuple[str, ...], side: str = ""
    ) -> OpCost | None:
        """One layer's attention: both sides of the step, or only `side` ("prefill", "decode")."""
        plan, model = self.model.plan[layer], self.model
        decode = decode_keys(step, plan.window, model.max_context) if side != "prefill" else None
        prefill = prefill_keys(step, plan.window) if side != "decode" else None
        if (step.decode_tokens and side != "prefill" and decode is None) or (
            step.prefill_tokens and side != "decode" and prefill is None
        ):
            return None
        if decode is None and prefill is None:
            return None
        kv = next((d for n in names if (d := kv_dtype(n)) is not None), None) or self.kv
        if plan.attention == "mla":
            return self._mla(layer, step, decode, prefill, kv)
        both = [k for k in (decode, prefill) if k is not None]
        queries = (step.decode_tokens if decode else 0) + (step.prefill_tokens if prefill else 0)
        heads, kv_heads = max(1, plan.heads // self.tp), max(1, plan.kv_heads // self.tp)
        keys = sum(k.keys for k in both)
        what = "mixed" if len(both) == 2 else ("decode" if decode else "prefill")
        length = None
        if decode is None and step.prefill_sequences:
            length = (step.prefill_context or step.prefill_tokens) / step.prefill_sequences
        cost = attention_cost(
            sum(k.pairs for k in both), queries, keys, heads, kv_heads, plan.head_dim, plan.v_head_dim,
            dtype=model.dtype, dtype_kv=kv, role="attention_decode" if what == "decode" else "attention",
            shape=f"{what} {queries} tokens {keys:g} kv h{heads}/{kv_heads} d{plan.head_dim}"
            + (f" window {plan.window}" if plan.window else "") + (" causal" if what == "prefill" else ""),
            length=length if plan.window is None else None,
            math=next((d for n in names if (d := math_dtype(n)) == "fp8"), None),
        )  # fmt: skip
        each = kv_heads * (plan.head_dim + plan.v_head_dim) * dtypes.size(kv)
        spread = sum(k.keys - k.low for k in both) * each, sum(k.high - k.keys for k in both) * each
        low, high = band(cost.bytes_min)
        return replace(cost, bytes_low=max(0.0, low - spread[0]), bytes_high=high + spread[1])

    def keys_read(self, layer: int, step: StepNumbers, side: str) -> float | None:
        """Cached tokens that one layer's attention reads for one side of the step."""
        plan = self.model.plan[layer]
        if side == "decode":
            found = decode_keys(step, plan.window, self.model.max_context)
        else:
            found = prefill_keys(step, plan.window)
        return None if found is None else found.keys

    def _mla(
        self, layer: int, step: StepNumbers, decode: Keys | None, prefill: Keys | None, kv: str
    ) -> OpCost | None:
        model, plan = self.model, self.model.plan[layer]
        assert model.mla is not None
        heads = max(1, plan.heads // self.tp)
        if decode is not None and prefill is None:
            row = model.kv_layer_bytes(plan, kv)
            return mla_decode_cost(
                decode.pairs, step.decode_tokens, heads, model.mla.kv_lora_rank, model.mla.rope, dtype=model.dtype,
                bytes_per_token=row * decode.keys / decode.pairs,
            )  # fmt: skip
        if prefill is not None and decode is None:
            return mla_prefill_cost(
                prefill.pairs, step.prefill_tokens, prefill.keys, heads, model.mla.nope, model.mla.rope,
                plan.v_head_dim, dtype=model.dtype,
            )  # fmt: skip
        return None

    def merge(self, layer: int, step: StepNumbers) -> OpCost | None:
        """Sum of split attention's partial results: at least two are read (fp32), one result is written."""
        plan = self.model.plan[layer]
        queries = step.decode_tokens or step.rows
        if queries is None:
            return None
        heads = max(1, plan.heads // self.tp)
        part = heads * queries * (plan.v_head_dim * 4.0 + 4.0)
        return OpCost(3.0 * heads * queries * plan.v_head_dim, 2 * part + heads * queries * plan.v_head_dim * self.e,
                      "fp32", f"{queries} tokens h{heads} d{plan.v_head_dim}, 2 splits or more", "attention_merge",
                      bytes_high=32 * part)  # fmt: skip

    # ---- the rest of a layer

    def norm(self, layer: int, role: str, rows: int, name: str) -> OpCost | None:
        """Norm over the hidden size, with the residual where the name says so; over heads for q and k."""
        model, plan = self.model, self.model.plan[layer]
        heads, kv_heads = max(1, plan.heads // self.tp), max(1, plan.kv_heads // self.tp)
        if role == "norm":
            add = adds_residual(name)
            cost = norm_cost(
                rows, model.hidden, model.dtype, residual=add, flops_per_element=RMS_ADD if add else RMS,
                role="norm_add" if add else "norm",
            )  # fmt: skip
            # Where the name is silent a residual may ride along: two more passes at most.
            return cost if add else replace(cost, bytes_high=max(cost.high, 2.0 * cost.bytes_min))
        if model.mla is not None:
            width = {"q_a_norm": model.mla.q_lora_rank, "kv_a_norm": model.mla.kv_lora_rank}.get(role)
            return norm_cost(rows, width, model.dtype, role=role) if width else None
        count = {"q_norm": heads, "k_norm": kv_heads, "qk_norm": heads + kv_heads}.get(role)
        return norm_cost(rows * count, plan.head_dim, model.dtype, role=role) if count else None

    def head_copy(self, layer: int, role: str, rows: int) -> OpCost:
        """Queries or keys made contiguous: read and written once."""
        plan = self.model.plan[layer]
        heads = max(1, (plan.heads if role == "q_copy" else plan.kv_heads) // self.tp)
        width = heads * plan.head_dim
        return OpCost(0.0, 2.0 * rows * width * self.e, None, f"{rows}x{width}", "copy")

    def rope(self, layer: int, rows: int) -> OpCost:
        """Rotation of queries and keys in place."""
        plan, mla = self.model.plan[layer], self.model.mla
        heads, kv_heads = max(1, plan.heads // self.tp), max(1, plan.kv_heads // self.tp)
        if mla is not None:
            return rope_cost(rows, heads, 1, mla.rope, self.model.dtype)
        return rope_cost(rows, heads, kv_heads, plan.head_dim, self.model.dtype)

    def kv_write(self, layer: int, rows: int, name: str) -> OpCost:
        """Write of new keys and values into the cache."""
        plan, model = self.model.plan[layer], self.model
        kv = kv_dtype(name) or self.kv
        if plan.attention == "mla" and model.mla is not None:
            return mla_write_cost(rows, model.mla.kv_lora_rank, model.mla.rope, model.dtype, kv)
        return kv_write_cost(rows, max(1, plan.kv_heads // self.tp), plan.head_dim, model.dtype, kv)

    def activation(self, layer: int, of: str, rows: int) -> OpCost | None:
        """Gated activation between two projections: reads both halves, writes their product."""
        down = self.gemm(layer, "shared_down" if of == "shared" else "down")
        if down is None:
            return None
        if not self.model.gated_mlp:
            return OpCost(
                8.0 * rows * down.k, 2.0 * rows * down.k * self.e, "fp32", f"{rows}x{down.k}", "activation"
            )
        return gated_activation_cost(rows, down.k, self.model.dtype)

    def moe_activation(self, layer: int, rows: int) -> OpCost | None:
        """Activation of the routed rows between the two expert products."""
        down = self.gemm(layer, "experts_down")
        if down is None:
            return None
        routed = round(rows * self.model.experts_per_token / self.ep)
        return replace(gated_activation_cost(routed, down.k, self.model.dtype), role="moe_activation")

    def quantise(self, layer: int, of: str, rows: int) -> OpCost | None:
        """Activations of a product converted to one byte an element."""
        g = self.gemm(layer, "experts_gate_up" if of.startswith("experts") else of)
        if g is None:
            return None
        return OpCost(2.0 * rows * g.k, rows * g.k * (self.e + 1.0), "fp32", f"{rows}x{g.k}", "quantise")

    def split_sum(self, layer: int, of: str, rows: int) -> OpCost | None:
        """Sum of a split-K product's partials."""
        g = self.gemm(layer, of)
        if g is None:
            return None
        part = helpers(float(rows * g.n), self.model.dtype)[0]
        return OpCost(
            part.flops, part.bytes_min, "fp32", f"{rows}x{g.n}", part.role, bytes_high=part.bytes_high
        )

    def routing(self, rows: int, name: str) -> OpCost | None:
        """Kernels around the experts, by what their names say."""
        model = self.model
        routed = rows * model.experts_per_token
        wide = rows * model.hidden * self.e
        choice = OpCost(5.0 * rows * model.experts, rows * model.experts * self.e + 8.0 * routed, "fp32",
                        f"{rows}x{model.experts} top{model.experts_per_token}", "moe_routing")  # fmt: skip
        for pattern, cost in (
            (r"constant_pad|FillFunctor", OpCost(0.0, 2.0 * wide, None, f"{rows}x{model.hidden}", "moe_pad")),
            (r"[Ff]inalize|moe_sum", OpCost(rows * model.hidden * float(model.experts_per_token),
             (routed + rows) * model.hidden * self.e, "fp32", f"{rows}x{model.hidden}", "moe_sum")),
            (r"moe_permute|expandInputRows|shuffle_rows", OpCost(0.0, (rows + routed) * model.hidden * self.e, None,
             f"{rows}x{model.hidden}", "moe_permute")),
            (r"Scores|topk|TopK|top_k|softmax|[Gg]ating|fused_gate", choice),
            (r"align|[Ss]ort|count|[Hh]istogram|Offsets|bitmatrix|combined_routing|routingIndices",
             OpCost(0.0, 8.0 * routed + 4.0 * model.experts, None, f"{routed} choices", "moe_sort",
                    bytes_high=64.0 * routed + 4096.0)),
        ):  # fmt: skip
            if re.search(pattern, name):
                return cost
        return None

    def all_reduce(self, rows: int, name: str) -> OpCost | None:
        """The hidden rows reduced over the tensor-parallel ranks."""
        if self.tp <= 1 or not re.search(
            r"all_?reduce|cross_device_reduce|multimem_all_reduce", name, re.IGNORECASE
        ):
            return None
        return collective_cost("all_reduce", rows * self.model.hidden * self.e, self.tp)

    def embedding(self, rows: int) -> OpCost:
        """One row of the table a token, read and written."""
        wide = rows * self.model.hidden * self.e
        return OpCost(0.0, 2.0 * wide + 8.0 * rows, None, f"{rows}x{self.model.hidden}", "embedding")

    def logits_cast(self, rows: int) -> OpCost:
        """Logits from 16 bits to fp32."""
        n = self.model.head_gemm(self.tp).n
        return OpCost(0.0, rows * n * (self.e + 4.0), None, f"{rows}x{n}", "cast")
