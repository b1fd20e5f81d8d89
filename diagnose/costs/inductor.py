"""Inductor's generated Triton kernels: cost from the pointer arguments and the iteration sizes that the trace
records.

Each pointer is read or written once, at most as many elements as the kernel iterates over (a pointwise kernel
that gathers from a table touches no more than one element an iteration). In-out pointers are read and
written; the trace does not say which they are, so the lower edge counts each once and the upper edge adds the
largest once more.
"""

from math import prod

from diagnose.costs import dtypes
from diagnose.costs.common import text
from diagnose.costs.matmul import gemm_cost, multiply_dtype, solve
from diagnose.costs.op import OpCall, OpCost, Tensor
from diagnose.costs.registry import model


def iterations(call: OpCall) -> int | None:
    """Product of the recorded numels: Inductor passes them last (xnumel, or xnumel and rnumel, or ynumel and
    xnumel)."""
    kind = call.name.removeprefix("triton_")[:3]
    numbers = []
    for i in range(len(call.dims) - 1, -1, -1):
        value = call.integer(i)
        if call.tensor(i) is not None or value is None:
            break
        numbers.append(value)
    wanted = 2 if kind in ("red", "per", "spl") else 1
    if not numbers or any(n <= 0 for n in numbers[:wanted]):
        return None
    if kind in ("red", "per", "spl") and len(numbers) < 2:
        return None
    return prod(numbers[:wanted])


@model("triton_")
def triton(call: OpCall) -> OpCost | None:
    """triton_{poi,red,per,tem}_fused_<ops>_<n>: pointers, then sizes. Without a recorded size (it was a
    constant) every pointer counts whole."""
    tensors = [t for t in call.tensors if t.dims]
    if not tensors:
        return None
    if call.name.startswith("triton_tem_"):
        return _template(call, tensors)
    steps = iterations(call)
    if steps is None:
        # a constant size: the widest output bounds it, the result being the last pointer
        steps = max(tensors[-1].numel, 1) if call.name.startswith("triton_poi") else None
    touched = [min(t.touched, steps) if steps is not None else t.touched for t in tensors]
    sizes = [n * dtypes.size(t.dtype) for n, t in zip(touched, tensors, strict=True)]
    work = float(steps if steps is not None else max(touched))
    numbers = any(t.dtype in dtypes.FLOATS for t in tensors)
    widest = max(tensors, key=lambda t: min(t.touched, steps) if steps is not None else t.touched)
    fused = call.name.split("_fused_", 1)[1].count("_") if "_fused_" in call.name else 1
    flops = work * max(1, fused) if numbers else 0.0
    return OpCost(
        flops,
        sum(sizes),
        "fp32" if numbers else None,
        text(widest.dims) if widest.touched <= work else f"{int(work)} elements",
        "fused",
        bytes_high=(sum(sizes) + max(sizes)) * 1.1,
    )


def _template(call: OpCall, tensors: list[Tensor]) -> OpCost | None:
    """A Triton GEMM template: two operands and the result, with an epilogue's extra pointers read once."""
    if not any(token in call.name for token in ("mm", "linear")):
        return None
    matrices = [t for t in tensors if len(t.dims) in (2, 3)]
    found = solve(matrices[:2] + matrices[-1:]) if len(matrices) > 3 else solve(matrices)
    if found is None:
        return None
    batch, m, n, k, a, b, out = found
    others = [t for t in tensors if t is not a and t is not b and t is not out]
    return gemm_cost(
        m,
        n,
        k,
        a.dtype,
        b.dtype,
        out.dtype if out else a.dtype,
        batch=batch,
        extra_bytes=sum(t.bytes for t in others),
        math=multiply_dtype(call, a, b),
    )
