"""Normalisations, alone and fused with a residual addition or quantisation: memory-bound, FLOPs for
information.

FLOPs per element (facts): RMSNorm 4, with residual 5, LayerNorm 8, GroupNorm and BatchNorm 8. Bytes: input
and output once, weights once; a fused residual is read and written as well.
"""

from dataclasses import replace

from diagnose.costs import dtypes
from diagnose.costs.common import output_like, streaming, text
from diagnose.costs.op import OpCall, OpCost, Tensor
from diagnose.costs.registry import model

RMS, RMS_ADD, LAYER, BATCH = 4.0, 5.0, 8.0, 8.0


def norm_cost(
    rows: int,
    width: int,
    dtype: str,
    *,
    dtype_out: str | None = None,
    residual: bool = False,
    bias: bool = False,
    flops_per_element: float = RMS,
    role: str = "norm",
) -> OpCost:
    """`rows` rows of `width`: x in, y out, weight (and bias) once; a residual is read and its sum written."""
    e, out = dtypes.size(dtype), dtypes.size(dtype_out or dtype)
    data = rows * width * (e + out + (2 * e if residual else 0.0)) + width * e * (2 if bias else 1)
    return OpCost(flops_per_element * rows * width, data, "fp32", f"{rows}x{width}", role)


def _plain(call: OpCall, x: Tensor | None, weights: list[Tensor | None], per_element: float) -> OpCost | None:
    if x is None or not x.dims:
        return None
    reads = [x, *(w for w in weights if w is not None)]
    return streaming(
        reads,
        [output_like(x.dims, x.dtype, x)],
        "norm",
        per_element * x.numel,
        dtype="fp32",
        shape=text(x.dims),
    )


@model("aten::native_layer_norm", "aten::layer_norm")
def layer_norm(call: OpCall) -> OpCost | None:
    """input, normalized_shape, weight, bias, eps."""
    return _plain(call, call.tensor(0), [call.tensor(2), call.tensor(3)], LAYER)


@model("aten::rms_norm", "aten::_fused_rms_norm")
def rms_norm(call: OpCall) -> OpCost | None:
    """input, normalized_shape, weight, eps."""
    return _plain(call, call.tensor(0), [call.tensor(2)], RMS)


@model("aten::native_group_norm", "aten::group_norm")
def group_norm(call: OpCall) -> OpCost | None:
    """input, weight, bias, ... (native); input, num_groups, weight, bias (functional). Statistics read the
    input once more."""
    x = call.tensor(0)
    weights = [t for i in range(1, 4) if (t := call.tensor(i)) is not None]
    cost = _plain(call, x, list(weights), LAYER)
    return None if cost is None or x is None else replace(cost, bytes_high=cost.high + x.bytes)


@model(
    "aten::native_batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::batch_norm",
    "aten::_native_batch_norm_legit_no_training",
)
def batch_norm(call: OpCall) -> OpCost | None:
    """input, weight, bias, running_mean, running_var, ..."""
    return _plain(call, call.tensor(0), [call.tensor(i) for i in range(1, 5)], BATCH)


@model(
    "_C::rms_norm", "sgl_kernel::rmsnorm", "sgl_kernel::gemma_rmsnorm", "aiter::rmsnorm",
    "trtllm::flashinfer_rmsnorm",
    "flashinfer::rmsnorm", "flashinfer::gemma_rmsnorm", "trtllm::flashinfer_gemma_rmsnorm",
)  # fmt: skip
def rms_out(call: OpCall) -> OpCost | None:
    """out, input, weight, eps; or input, weight, eps with a fresh result."""
    tensors = [t for t in call.tensors if t.dims]
    if (
        len(tensors) >= 3
        and len(tensors[1].dims) == len(tensors[0].dims)
        and tensors[0].numel == tensors[1].numel
    ):
        out, x, weight = tensors[:3]
        return streaming([x, weight], [out], "norm", RMS * x.numel, dtype="fp32", shape=text(x.dims))
    if len(tensors) >= 2:
        return _plain(call, tensors[0], [tensors[1]], RMS)
    return None


@model(
    "aiter::rms_norm", "aiter::rms_norm_cu", "vllm::rocm_aiter_rms_norm", "vllm::rocm_aiter_rmsnorm2d_fwd",
    "aiter::rmsnorm2d_fwd",
    "aiter::rmsnorm2d_fwd_ck", "aiter::layernorm2d_fwd", "vllm_ir::rms_norm", "trtllm::rms_norm",
)  # fmt: skip
def rms_fresh(call: OpCall) -> OpCost | None:
    """input, weight, eps (and bias): a fresh result."""
    tensors = [t for t in call.tensors if t.dims]
    return _plain(call, tensors[0], list(tensors[1:3]), RMS) if tensors else None


@model(
    "_C::fused_add_rms_norm", "sgl_kernel::fused_add_rmsnorm", "sgl_kernel::gemma_fused_add_rmsnorm",
    "flashinfer::fused_add_rmsnorm",
    "trtllm::flashinfer_fused_add_rmsnorm", "flashinfer::gemma_fused_add_rmsnorm",
    "trtllm::flashinfer_gemma_fused_add_rmsnorm",
)  # fmt: skip
def add_rms_in_place(call: OpCall) -> OpCost | None:
    """input, residual, weight, eps: both are read, and both written in place: 4·T·D·e + D·e."""
    x, residual, weight = (call.tensor(i) for i in range(3))
    if x is None or residual is None or weight is None or x.numel != residual.numel:
        return None
    return streaming(
        [x, residual, weight], [x, residual], "norm_add", RMS_ADD * x.numel, dtype="fp32", shape=text(x.dims)
    )


@model(
    "aiter::add_rmsnorm", "aiter::rmsnorm2d_fwd_with_add", "aiter::rmsnorm2d_fwd_with_add_ck",
    "aiter::fused_add_rms_norm_cu",
    "aiter::layernorm2d_fwd_with_add",
)  # fmt: skip
def add_rms_out(call: OpCall) -> OpCost | None:
    """out, input, residual in, residual out, weight: two read, two written."""
    wide = [t for t in call.tensors if len(t.dims) >= 2]
    if len(wide) == 4 and len({t.numel for t in wide}) == 1:
        weights = [t for t in call.tensors if len(t.dims) == 1]
        return streaming(
            [wide[1], wide[2], *weights],
            [wide[0], wide[3]],
            "norm_add",
            RMS_ADD * wide[0].numel,
            dtype="fp32",
            shape=text(wide[1].dims),
        )
    if len(wide) == 2:
        return add_rms_in_place(call)
    return None


@model("vllm::rocm_aiter_rmsnorm2d_fwd_with_add", "vllm_ir::fused_add_rms_norm")
def add_rms_fresh(call: OpCall) -> OpCost | None:
    """input, residual, weight, eps: results are fresh."""
    return add_rms_in_place(call)


@model(
    "_C::rms_norm_static_fp8_quant", "_C::fused_add_rms_norm_static_fp8_quant",
    "_C::rms_norm_dynamic_per_token_quant",
    "_C::rms_norm_per_block_quant", "sgl_kernel::rmsnorm_quant", "aiter::rmsnorm2d_fwd_with_dynamicquant",
    "aiter::rmsnorm2d_fwd_with_smoothquant",
    "aiter::rmsnorm2d_fwd_with_add_dynamicquant", "aiter::rmsnorm_quant", "aiter::add_rmsnorm_quant",
)  # fmt: skip
def norm_quant(call: OpCall) -> OpCost | None:
    """A narrow out, input, maybe a residual (in place, or in and out apart), weight, scales."""
    wide = [t for t in call.tensors if len(t.dims) >= 2]
    out = next((t for t in wide if t.dtype in ("fp8", "int8", "uint8")), None)
    if out is None:
        return None
    rows = [t for t in wide if t is not out and t.numel == out.numel]
    small = [t for t in call.tensors if t is not out and t not in rows]
    if not rows:
        return None
    add = len(rows) >= 2
    writes = [out] + (rows[1:2] if len(rows) == 2 else [])  # one residual: updated in place
    per = RMS_ADD + 2 if add else RMS + 2
    return streaming(
        [*rows, *small], writes, "norm_quant", per * out.numel, dtype="fp32", shape=text(out.dims)
    )


@model("vllm::flashinfer_trtllm_fused_allreduce_norm", "trtllm::allreduce")
def allreduce_norm(call: OpCall) -> OpCost | None:
    """All-reduce fused with the residual addition and norm: local memory traffic of both (wire bytes:
    `collectives`)."""
    wide = [t for t in call.tensors if len(t.dims) >= 2]
    if not wide:
        return None
    x = wide[0]
    rows = [t for t in wide if t.numel == x.numel]
    weights = [t for t in call.tensors if len(t.dims) == 1 and t.numel == x.dims[-1]]
    return OpCost(
        RMS_ADD * x.numel,
        2 * x.bytes + sum(2 * t.bytes for t in rows[1:2]) + sum(t.bytes for t in weights[:1]),
        "fp32",
        text(x.dims),
        "all_reduce_norm",
    )
