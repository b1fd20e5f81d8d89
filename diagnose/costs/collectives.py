"""Collectives: local memory traffic, bytes on the wire, and the factor from algorithm to bus bandwidth
(nccl-tests).

With n ranks and S bytes of the full tensor a rank: bus bandwidth = S / t · f, f = 2(n − 1)/n for all-reduce,
(n − 1)/n for all-gather, reduce-scatter and all-to-all (S the total size), 1 for broadcast, reduce and
send/receive. Compare it with one direction of a link. Local HBM traffic is at least one read and one write of
what a rank holds and receives.
"""

from math import prod

from diagnose.costs import dtypes
from diagnose.costs.op import OpCall, OpCost
from diagnose.costs.registry import model

_KINDS = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allgather": "all_gather",
    "all_gather": "all_gather", "_allgather_base": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather", "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reducescatter": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all",
    "all_to_allv": "all_to_all", "alltoall_base": "all_to_all", "broadcast": "broadcast", "reduce": "reduce",
    "send": "send", "recv": "recv",
    "gather": "gather", "scatter": "scatter", "barrier": "barrier",
}  # fmt: skip


def bus_factor(kind: str, ranks: int) -> float:
    """Bus bandwidth ÷ algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md). Raises ValueError for an unknown
    kind."""
    if kind == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    if kind in ("broadcast", "reduce", "send", "recv"):
        return 1.0
    raise ValueError(f"unknown collective {kind}")


def wire_bytes(kind: str, size: float, ranks: int, algorithm: str = "ring") -> float:
    """Bytes a rank sends in each direction for a tensor of `size` bytes (full tensor).

    ring: bus factor · size; one_shot: each rank reads (n − 1) · size; two_shot: as ring; multimem: the switch
    reduces, about size.
    """
    if algorithm == "one_shot":
        return (ranks - 1) * size
    if algorithm == "multimem":
        return float(size)
    return bus_factor(kind, ranks) * size


def algorithm_of(kernel_name: str) -> str:
    """one_shot, two_shot, multimem or ring, from a kernel's name."""
    lowered = kernel_name.lower()
    if "1stage" in lowered or "one_shot" in lowered or "oneshot" in lowered:
        return "one_shot"
    if "2stage" in lowered or "two_shot" in lowered or "twoshot" in lowered:
        return "two_shot"
    return "multimem" if "multimem" in lowered or "nvls" in lowered else "ring"


def collective_cost(kind: str, size: float, ranks: int | None) -> OpCost:
    """Local traffic of a collective on a full tensor of `size` bytes: what a rank reads plus what it writes.

    all_reduce 2 S; all_gather S/n + S; reduce_scatter S + S/n; all_to_all 2 S/n·n = 2 S of its own; others S.
    """
    n = ranks or 1
    local = {
        "all_reduce": 2.0 * size,
        "all_gather": size + size / n,
        "reduce_scatter": size + size / n,
        "all_to_all": 2.0 * size,
        "barrier": 0.0,
    }.get(kind, size)
    members = f" x{ranks}" if ranks else ""
    return OpCost(
        0.0,
        local,
        None,
        f"{kind} {size:.0f} B{members}",
        kind,
        families=frozenset({"nccl", "custom_comm", "other", "copy_cat", "elementwise"}),
    )


@model("record_param_comms")
def recorded(call: OpCall) -> OpCost | None:
    """Kineto's own record: collective name, element type, elements in and out, group size."""
    kind = _KINDS.get(str(call.extra.get("Collective name", "")).lower())
    dtype = dtypes.recorded(str(call.extra.get("dtype", "")))
    if kind is None or dtype is None:
        return None
    try:
        elements = max(int(call.extra.get("In msg nelems", 0)), int(call.extra.get("Out msg nelems", 0)))
        ranks = int(call.extra.get("Group size", 0)) or None
    except (TypeError, ValueError):
        return None
    return collective_cost(kind, elements * dtypes.size(dtype), ranks)


@model(
    "vllm::all_reduce", "_C_custom_ar::all_reduce", "symm_mem::multimem_all_reduce_",
    "symm_mem::one_shot_all_reduce", "sgl_kernel::all_reduce",
    "symm_mem::two_shot_all_reduce_", "_C_custom_ar::qr_all_reduce", "sgl_kernel::mscclpp_allreduce",
    "aiter::all_reduce", "sglang::inplace_all_reduce",
    "sglang::outplace_all_reduce", "sgl_kernel::qr_all_reduce", "c10d::allreduce_",
    "_c10d_functional::all_reduce", "_c10d_functional::all_reduce_",
)  # fmt: skip
def all_reduce(call: OpCall) -> OpCost | None:
    """The reduced tensor is the first floating-point tensor with elements."""
    x = next((t for t in call.tensors if t.dtype in dtypes.FLOATS and t.numel), None)
    if x is None:
        x = (
            next((t for t in call.tensor_list(0, "bf16") if t.numel), None)
            if call.kernels and "BFloat16" in call.kernels[0]
            else None
        )
    return None if x is None else collective_cost("all_reduce", x.bytes, None)


@model("vllm::all_gather", "c10d::_allgather_base_", "_c10d_functional::all_gather_into_tensor")
def all_gather(call: OpCall) -> OpCost | None:
    """vLLM: input, dim, world size, group; c10d: output, input, group."""
    tensors = [t for t in call.tensors if t.numel]
    if not tensors:
        return None
    if len(tensors) >= 2:
        whole, part = sorted(tensors[:2], key=lambda t: -t.numel)
        return collective_cost("all_gather", whole.bytes, max(1, round(whole.numel / part.numel)))
    ranks = next((v for i in (1, 2, 3) if (v := call.integer(i)) is not None and v > 1), None)
    return None if ranks is None else collective_cost("all_gather", tensors[0].bytes * ranks, ranks)


@model("vllm::reduce_scatter", "c10d::_reduce_scatter_base_", "_c10d_functional::reduce_scatter_tensor")
def reduce_scatter(call: OpCall) -> OpCost | None:
    """vLLM: input, dim, world size; c10d: output, input."""
    tensors = [t for t in call.tensors if t.numel]
    if not tensors:
        return None
    whole = max(tensors[:2], key=lambda t: t.numel)
    if len(tensors) >= 2:
        return collective_cost(
            "reduce_scatter", whole.bytes, max(1, round(whole.numel / min(prod(t.dims) for t in tensors[:2])))
        )
    ranks = next((v for i in (1, 2, 3) if (v := call.integer(i)) is not None and v > 1), None)
    return None if ranks is None else collective_cost("reduce_scatter", whole.bytes, ranks)
