"""Costs that need only the recorded tensors: everything read once, everything written once."""

from math import prod

from diagnose.costs import dtypes
from diagnose.costs.op import SECTOR, OpCall, OpCost, Tensor, same_order


def text(dims: tuple[int, ...]) -> str:
    """A shape as text, '16x559x1024'; '1' for a scalar."""
    return "x".join(str(d) for d in dims) or "1"


SHORT_RUN = 512
"""Bytes: contiguous runs at least this long (four 128-byte lines) cost a strided access nothing worth
naming."""


def common_run(a: Tensor, b: Tensor) -> float:
    """Bytes of the longest run, along the fastest dimension of both, that is contiguous in `a` and in `b`."""
    if a.strides is None or b.strides is None or len(a.dims) != len(b.dims):
        return min(a.run_bytes, b.run_bytes)
    axes = [i for i, d in enumerate(a.dims) if d > 1]
    order = sorted(axes, key=lambda i: (a.strides[i], -i))  # type: ignore[index]
    run = 1
    for i in order:
        if a.strides[i] != run or b.strides[i] != run:
            break
        run *= a.dims[i]
    return run * min(dtypes.size(a.dtype), dtypes.size(b.dtype))


def strided(tensors: list[Tensor]) -> bool:
    """Whether the tensors that span the whole iteration walk memory with gaps or in different orders, in
    short runs."""
    if not tensors:
        return False
    biggest = max(t.numel for t in tensors)
    full = [t for t in tensors if t.numel == biggest and t.touched == t.numel and t.numel > 1]
    if any(not t.dense and t.run_bytes < SHORT_RUN for t in full):
        return True
    others = [t for t in full[1:] if len(t.dims) == len(full[0].dims) and not same_order(full[0], t)]
    return any(common_run(full[0], t) < SHORT_RUN for t in others)


def sectors(t: Tensor, like: Tensor | None) -> float:
    """Bytes moved for `t` when its elements are visited in the memory order of `like`: up to a sector an
    element."""
    if like is None or t.strides is None or t.touched != t.numel or len(t.dims) != len(like.dims):
        return t.sector_bytes
    if same_order(t, like):
        return t.sector_bytes
    assert like.strides is not None
    axes = [i for i, d in enumerate(t.dims) if d > 1]
    if not axes:
        return t.bytes
    fastest = min(axes, key=lambda i: (like.strides[i], -i))  # type: ignore[index]
    e = dtypes.size(t.dtype)
    return t.numel * min(float(SECTOR), max(e, e * t.strides[fastest]))


def streaming(
    reads: list[Tensor],
    writes: list[Tensor],
    role: str,
    flops: float = 0.0,
    *,
    extra_bytes: float = 0.0,
    shape: str | None = None,
    dtype: str | None = None,
    families: frozenset[str] = frozenset(),
) -> OpCost:
    """Read each of `reads` once and write each of `writes` once; strided access widens the upper edge to
    sectors."""
    every = [*reads, *writes]
    minimum = sum(t.bytes for t in every) + extra_bytes
    like = max(writes or reads, key=lambda t: t.numel, default=None)
    high = sum(sectors(t, like) for t in every) + extra_bytes
    widest = max(every, key=lambda t: t.numel, default=None)
    return OpCost(
        flops,
        minimum,
        dtype if flops else None,
        shape if shape is not None else text(widest.dims if widest else ()),
        role,
        bytes_high=max(high, minimum * 1.1),
        strided=strided(every),
        families=families,
    )


def every_tensor(
    call: OpCall, role: str, flops_per_element: float = 0.0, in_place: tuple[int, ...] = ()
) -> OpCost | None:
    """All recorded tensors once, those at `in_place` twice (read and written); FLOPs per element of the
    widest one."""
    tensors = list(call.tensors)
    if not tensors:
        return None
    again = sum(t.bytes for i in in_place if (t := call.tensor(i)) is not None)
    widest = max(t.numel for t in tensors)
    return streaming(tensors, [], role, flops_per_element * widest, extra_bytes=again, dtype="fp32")


def output_like(dims: tuple[int, ...], dtype: str, like: Tensor | None = None) -> Tensor:
    """A fresh output: the layout of `like` where that is dense and of the same shape (TensorIterator), else
    row-major."""
    if like is not None and like.dims == dims and like.dense and like.touched == like.numel:
        return Tensor(dims, dtype, like.strides)
    if like is not None and like.dims == dims and like.strides is not None:
        return Tensor(dims, dtype, _compact(like))
    return Tensor(dims, dtype, row_major(dims))


def _compact(like: Tensor) -> tuple[int, ...]:
    """Dense strides in the order of `like`'s strides (TensorIterator allocates a permuted output for a
    permuted input)."""
    assert like.strides is not None
    order = sorted(range(len(like.dims)), key=lambda i: (like.strides[i], -i))  # type: ignore[index]
    strides, step = [0] * len(like.dims), 1
    for i in order:
        strides[i] = step
        step *= max(like.dims[i], 1)
    return tuple(strides)


def row_major(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(prod(dims[i + 1 :]) for i in range(len(dims)))
