"""Data movement: copies, conversions, concatenation, gathers, fills. No FLOPs.

Copy: elements · (e_source + e_target); concatenation: twice the total; gather: twice what is taken plus the
indices (the table itself is not traversed); fill: the target once. Strided sources or targets move up to a
32-byte sector an element.
"""

from dataclasses import replace
from math import prod

from diagnose.costs import dtypes
from diagnose.costs.common import SHORT_RUN, output_like, streaming, text
from diagnose.costs.op import OpCall, OpCost, Tensor
from diagnose.costs.registry import model


def copy_cost(elements: float, dtype: str, dtype_out: str | None = None) -> OpCost:
    """Read `elements` of one type, write them in another."""
    return OpCost(
        0.0, elements * (dtypes.size(dtype) + dtypes.size(dtype_out or dtype)), None, f"{elements:g}", "copy"
    )


def gather_cost(rows: int, width: int, dtype: str, *, index_bytes: int = 8) -> OpCost:
    """`rows` rows of `width` taken by index."""
    return OpCost(
        0.0, 2.0 * rows * width * dtypes.size(dtype) + index_bytes * rows, None, f"{rows}x{width}", "gather"
    )


@model("aten::copy_")
def copy(call: OpCall) -> OpCost | None:
    """self (target), src (maybe broadcast or of another type)."""
    target, source = call.tensor(0), call.tensor(1)
    if target is None or source is None:
        return None
    kind = "cast" if target.dtype != source.dtype else "copy"
    return streaming([source], [target], kind)


@model("aten::clone", "aten::contiguous", "aten::_to_copy", "aten::to")
def clone(call: OpCall) -> OpCost | None:
    """self, maybe a type as argument 1."""
    x = call.tensor(0)
    if x is None:
        return None
    target = dtypes.scalar_type(call.scalar(1)) if call.name in ("aten::_to_copy", "aten::to") else None
    dtype = target or x.dtype
    out = output_like(x.dims, dtype, x) if target else output_like(x.dims, dtype)
    return streaming([x], [out], "cast" if dtype != x.dtype else "copy")


def _list_dtype(call: OpCall) -> str | None:
    """The element type of a tensor list is not recorded: kernels name its width (OpaqueType<2u>)."""
    for kernel in call.kernels:
        for width, dtype in ((1, "uint8"), (2, "bf16"), (4, "fp32"), (8, "int64")):
            if f"OpaqueType<{width}u>" in kernel or f"OpaqueType<(unsigned int){width}>" in kernel:
                return dtype
        if "CatArray" in kernel:
            for token, dtype in (
                ("BFloat16", "bf16"),
                ("Half", "fp16"),
                ("<float", "fp32"),
                ("<long", "int64"),
            ):
                if token in kernel:
                    return dtype
    return None


@model("aten::cat", "aten::_cat", "aten::stack", "aten::concat", "aten::hstack", "aten::vstack")
def cat(call: OpCall) -> OpCost | None:
    """A list of tensors and a dimension: every element read and written once. Role `cat_append`: a long tensor is copied to
    add a little to its end, as a cache without room does every step."""
    dtype = _list_dtype(call)
    members = call.tensor_list(0, dtype) or call.tensor_list(1, dtype)
    members = tuple(m for m in members if m.numel)
    if not members:
        return None
    total = sum(m.numel for m in members)
    out = Tensor((total,), members[0].dtype, (1,))
    axis = call.integer(1)
    shape = text(members[0].dims) if axis is None else _joined(members, axis)
    cost = streaming([*members], [out], "cat_append" if _appends(members, axis) else "cat", shape=shape)
    e = dtypes.size(members[0].dtype)
    moved = sum(m.sector_bytes for m in members) + total * e
    return replace(
        cost,
        bytes_high=max(moved, cost.bytes_min * 1.1),
        strided=any(not m.dense and m.run_bytes < SHORT_RUN for m in members),
    )


APPENDED = 16
"""A tensor this many times as long as what is added to it is copied for the sake of the addition."""


def _appends(members: tuple[Tensor, ...], axis: int | None) -> bool:
    if axis is None or len(members) != 2 or len(members[0].dims) != len(members[1].dims):
        return False
    long, short = members[0].dims, members[1].dims
    return -len(long) <= axis < len(long) and long[axis] >= APPENDED * short[axis]


def _joined(members: tuple[Tensor, ...], axis: int) -> str:
    first = members[0].dims
    if not -len(first) <= axis < len(first):
        return text(first)
    dims = list(first)
    dims[axis] = sum(m.dims[axis] for m in members if len(m.dims) == len(first))
    return text(tuple(dims))


@model("aten::index_select", "aten::embedding")
def index_select(call: OpCall) -> OpCost | None:
    """index_select: self, dim, index; embedding: weight, indices."""
    table = call.tensor(0)
    index = call.tensor(1) if call.name == "aten::embedding" else call.tensor(2)
    if table is None or index is None or not table.dims:
        return None
    dim = 0 if call.name == "aten::embedding" else (call.integer(1) or 0)
    dim %= len(table.dims)
    taken = index.numel * prod(d for i, d in enumerate(table.dims) if i != dim)
    e = dtypes.size(table.dtype)
    unique = min(taken * e, table.bytes)  # rows taken more than once may come from cache
    return OpCost(
        0.0,
        2 * taken * e + index.bytes,
        None,
        f"{index.numel} of {text(table.dims)}",
        "gather",
        bytes_low=(taken * e + index.bytes) * 0.38,
        bytes_high=(taken * e + unique + index.bytes) * 1.5,
    )


@model("aten::gather", "aten::take_along_dim", "aten::take")
def gather(call: OpCall) -> OpCost | None:
    """self, dim, index: one element an index; an expanded index (embedding lookups) is read once."""
    table = call.tensor(0)
    index = call.tensor(2) if call.name != "aten::take" else call.tensor(1)
    if table is None or index is None:
        return None
    data = 2 * index.numel * dtypes.size(table.dtype) + index.bytes
    return OpCost(0.0, data, None, f"{text(index.dims)} of {text(table.dims)}", "gather")


@model(
    "aten::fill_",
    "aten::zero_",
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::zeros_like",
    "aten::ones_like",
    "aten::new_zeros",
    "aten::full_like",
)
def fill(call: OpCall) -> OpCost | None:
    """self: written once. (Factories without a tensor argument launch `fill_`, which has one.)"""
    x = call.tensor(0)
    if x is None:
        return None
    return streaming([], [x], "fill")


@model("aten::arange", "aten::linspace")
def arange(call: OpCall) -> OpCost | None:
    """start, end, step, out: the out form knows its type; its recorded size is from before it is resized."""
    out = call.tensor(3)
    numbers = [float(call.scalar(i)) for i in range(3)]
    if out is None or numbers[2] == 0:
        return None
    count = max(0.0, -(-(numbers[1] - numbers[0]) // numbers[2]))
    return OpCost(0.0, count * dtypes.size(out.dtype), None, f"{int(count)}", "fill")


@model("aten::constant_pad_nd", "aten::pad")
def pad(call: OpCall) -> OpCost | None:
    """self, pad (pairs from the last dimension): the input read, the padded result written."""
    x, pads = call.tensor(0), call.integers(1)
    if x is None or len(pads) % 2 or len(pads) > 2 * len(x.dims):
        return None
    dims = list(x.dims)
    for i in range(len(pads) // 2):
        dims[len(dims) - 1 - i] += pads[2 * i] + pads[2 * i + 1]
    return streaming([x], [output_like(tuple(dims), x.dtype)], "pad")


@model("aten::repeat", "aten::repeat_interleave", "aten::tile")
def repeat(call: OpCall) -> OpCost | None:
    """self, repeats: the source once, the result once."""
    x, times = call.tensor(0), call.integers(1)
    if x is None or not times:
        return None
    return OpCost(0.0, x.bytes + x.numel * prod(times) * dtypes.size(x.dtype), None, text(x.dims), "copy")


@model("aten::roll", "aten::flip", "aten::pixel_shuffle", "aten::pixel_unshuffle", "aten::channel_shuffle")
def permute_copy(call: OpCall) -> OpCost | None:
    """self to a result of the same size."""
    x = call.tensor(0)
    return None if x is None else streaming([x], [output_like(x.dims, x.dtype)], "copy")


@model("aten::scatter_", "aten::scatter", "aten::scatter_add_", "aten::scatter_add", "aten::scatter_reduce_")
def scatter(call: OpCall) -> OpCost | None:
    """self, dim, index, src: index and source read, as many elements written (read too when added)."""
    target, index, source = call.tensor(0), call.tensor(2), call.tensor(3)
    if target is None or index is None:
        return None
    e = dtypes.size(target.dtype)
    touched = index.numel * e * (2 if "add" in call.name or "reduce" in call.name else 1)
    whole = 0.0 if call.name.endswith("_") else 2 * target.bytes
    return OpCost(
        0.0,
        index.bytes + (source.bytes if source is not None and source.dims else 0.0) + touched + whole,
        None,
        f"{text(index.dims)} of {text(target.dims)}",
        "scatter",
    )


@model("aten::index_put_", "aten::_index_put_impl_", "aten::index_put")
def index_put(call: OpCall) -> OpCost | None:
    """self, indices (a list), values, accumulate: values read and written once; not told when they are one
    broadcast number."""
    values = call.tensor(2)
    if values is None or not values.dims:
        return None
    return OpCost(0.0, (3 if call.flag(3) else 2) * values.bytes, None, text(values.dims), "scatter")


@model("aten::index_copy_", "aten::index_add_")
def index_copy(call: OpCall) -> OpCost | None:
    """self, dim, index, source: the source read and written at the index (read too when added)."""
    index, source = call.tensor(2), call.tensor(3)
    if index is None or source is None:
        return None
    return OpCost(
        0.0, (3 if "add" in call.name else 2) * source.bytes + index.bytes, None, text(source.dims), "scatter"
    )


@model(
    "_C_cache_ops::swap_blocks",
    "_C_cache_ops::copy_blocks",
    "sgl_kernel::transfer_kv_per_layer",
    "sgl_kernel::transfer_kv_all_layer",
)
def transfer(call: OpCall) -> OpCost | None:
    """Whole cache blocks by index: how many is in the index's length, their size in the pool's trailing
    dimensions."""
    pools = [t for t in call.tensors if len(t.dims) >= 3]
    index = [t for t in call.tensors if t.dtype in ("int64", "int32") and len(t.dims) in (1, 2)]
    if not pools or not index:
        return None
    block = prod(pools[0].dims[1:]) * dtypes.size(pools[0].dtype)
    return OpCost(0.0, 2.0 * index[0].dims[0] * block, None, f"{index[0].dims[0]} blocks", "kv_transfer")


@model(
    "aten::max_pool2d_with_indices", "aten::avg_pool2d", "aten::max_pool2d", "aten::adaptive_avg_pool2d",
    "aten::_adaptive_avg_pool2d",
       "aten::upsample_bilinear2d", "aten::upsample_bicubic2d", "aten::upsample_nearest2d",
       "aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa")  # fmt: skip
def resample(call: OpCall) -> OpCost | None:
    """self, output size or kernel: the input read once; the result where its size is an argument."""
    x = call.tensor(0)
    size = call.integers(1)
    if x is None or len(x.dims) < 3 or not size:
        return None
    if "max_pool" in call.name or call.name == "aten::avg_pool2d":
        stride, padding = call.integers(2) or size, call.integers(3) or (0,)
        space = tuple(
            (d + 2 * padding[i % len(padding)] - size[i % len(size)]) // stride[i % len(stride)] + 1
            for i, d in enumerate(x.dims[-2:])
        )
        out = prod(x.dims[:-2]) * prod(space)
        work = float(out * prod(size * 2 if len(size) == 1 else size))
        extra = out * (8 if "indices" in call.name else 0)
    else:
        out, extra = prod(x.dims[:-2]) * prod(size * 2 if len(size) == 1 else size), 0
        work = 4.0 * out
    return streaming(
        [x],
        [],
        "resample",
        work,
        extra_bytes=out * dtypes.size(x.dtype) + extra,
        dtype="fp32",
        shape=text(x.dims),
    )
