"""Sampling over the vocabulary: at least one read of the logits.

Sorting depends on passes that no argument shows (radix: about four to eight passes over keys and indices):
its lower edge is one read and one write, its upper edge eight passes.
"""

from math import prod

from diagnose.costs import dtypes
from diagnose.costs.common import every_tensor, streaming, text
from diagnose.costs.op import OpCall, OpCost
from diagnose.costs.registry import model

SORT_PASSES = 8


def sampling_cost(rows: int, vocabulary: int, dtype: str = "fp32", *, writes: bool = False) -> OpCost:
    """One read of the logits or probabilities (and one write when they are changed in place)."""
    data = rows * vocabulary * dtypes.size(dtype)
    return OpCost(
        float(rows * vocabulary),
        data * (2 if writes else 1),
        "fp32",
        f"{rows}x{vocabulary}",
        "sampling",
        bytes_high=data * 8,
    )


@model("aten::sort", "aten::argsort", "aten::msort")
def sort(call: OpCall) -> OpCost | None:
    """self: keys and int64 indices, read and written at least once (all the passes' kernels share it)."""
    x = next(iter(call.tensors), None)
    if x is None:
        return None
    once = x.bytes * 2 + 8.0 * x.numel
    return OpCost(
        0.0, once, None, text(x.dims), "sort", bytes_high=SORT_PASSES * (x.bytes * 2 + 16.0 * x.numel)
    )


@model("aten::topk", "aten::kthvalue")
def topk(call: OpCall) -> OpCost | None:
    """self, k, dim: one read, k values and indices written; radix select reads up to eight times."""
    x, k = call.tensor(0), call.integer(1)
    if x is None or not x.dims or k is None:
        return None
    rows = prod(x.dims[:-1])
    found = rows * k * (dtypes.size(x.dtype) + 8)
    return OpCost(
        float(x.numel),
        x.bytes + found,
        "fp32",
        f"{text(x.dims)} top{k}",
        "topk",
        bytes_high=SORT_PASSES * x.bytes + found,
    )


@model(
    "aten::multinomial",
    "aten::exponential_",
    "aten::uniform_",
    "aten::normal_",
    "aten::random_",
    "aten::bernoulli_",
    "aten::rand",
    "aten::randn",
)
def random(call: OpCall) -> OpCost | None:
    """multinomial reads the probabilities; the generators write their target once."""
    x = call.tensor(0)
    if x is None:
        return None
    if call.name == "aten::multinomial":
        return streaming(
            [x], [], "sampling", float(x.numel), extra_bytes=8.0 * prod(x.dims[:-1]), dtype="fp32"
        )
    return streaming([], [x], "random", float(x.numel), dtype="fp32")


@model(
    "sgl_kernel::top_k_top_p_sampling_from_probs", "sgl_kernel::top_p_sampling_from_probs",
    "sgl_kernel::min_p_sampling_from_probs",
    "sgl_kernel::top_k_renorm_probs", "sgl_kernel::top_p_renorm_probs", "sgl_kernel::top_k_mask_logits",
    "sgl_kernel::tree_speculative_sampling_target_only",
    "sgl_kernel::verify_tree_greedy", "flashinfer::top_k_top_p_sampling_from_probs",
    "flashinfer::top_p_sampling_from_probs",
    "flashinfer::sampling_from_probs", "flashinfer::softmax", "_C::apply_repetition_penalties_",
    "_C::top_k_per_row_decode",
    "_C::top_k_per_row_prefill", "_C::apply_penalties",
)  # fmt: skip
def sampling(call: OpCall) -> OpCost | None:
    """Probabilities or logits (rows, vocabulary) and small per-row arguments: one read each (in place also
    written)."""
    rows = [i for i in range(len(call.dims)) if (t := call.tensor(i)) is not None and len(t.dims) >= 2]
    if not rows:
        return None
    changed = (
        call.name.endswith("_") or "renorm" in call.name or "mask" in call.name or "softmax" in call.name
    )
    return every_tensor(call, "sampling", 1.0, tuple(rows[:1]) if changed and call.name.endswith("_") else ())


@model(
    "aten::unique_dim",
    "aten::_unique2",
    "aten::bincount",
    "aten::histc",
    "aten::searchsorted",
    "aten::bucketize",
)
def counting(call: OpCall) -> OpCost | None:
    """Small integer work: arguments once."""
    return every_tensor(call, "counting")
