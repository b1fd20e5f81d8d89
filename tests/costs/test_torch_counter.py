"""FLOPs against torch's own flop counter, for what it covers, on meta tensors (nothing is computed)."""

from collections.abc import Callable
from typing import Any

import pytest

from diagnose.costs.op import OpCall
from diagnose.costs.registry import cost_of

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

pytestmark = pytest.mark.torch

KINETO = {
    torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half", torch.float32: "float", torch.float64: "double",
    torch.float8_e4m3fn: "c10::Float8_e4m3fn", torch.int64: "long int", torch.bool: "bool",
}  # fmt: skip


class _Recorder(TorchDispatchMode):
    """Records each operator as the profiler would: name, dims, types, strides, scalars of every argument."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[OpCall] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = []
        for i, schema in enumerate(func._schema.arguments):
            value = args[i] if i < len(args) else (kwargs or {}).get(schema.name, schema.default_value)
            arguments.append(value)
        tensors = [isinstance(a, torch.Tensor) for a in arguments]
        self.calls.append(
            OpCall(
                func.name().split(".")[0],
                tuple(tuple(a.shape) if t else () for a, t in zip(arguments, tensors, strict=True)),
                tuple(KINETO[a.dtype] if t else "Scalar" for a, t in zip(arguments, tensors, strict=True)),
                tuple(tuple(a.stride()) if t else () for a, t in zip(arguments, tensors, strict=True)),
                tuple("" if t else str(a) for a, t in zip(arguments, tensors, strict=True)),
            )
        )
        return func(*args, **(kwargs or {}))


def measure(function: Callable[[], Any]) -> tuple[float, float, list[OpCall]]:
    """(ours, torch's, calls): sums over the operators that torch dispatched."""
    with FlopCounterMode(display=False) as counter:
        function()
    recorder = _Recorder()
    with recorder:
        function()
    ours = sum(c.flops for call in recorder.calls if (c := cost_of(call)) is not None)
    return ours, float(counter.get_total_flops()), recorder.calls


def meta(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    "function",
    [
        lambda: meta(37, 64) @ meta(64, 19),
        lambda: torch.addmm(meta(19), meta(37, 64), meta(64, 19)),
        lambda: torch.bmm(meta(5, 37, 64), meta(5, 64, 19)),
        lambda: torch.baddbmm(meta(5, 37, 19), meta(5, 37, 64), meta(5, 64, 19)),
        lambda: torch.nn.functional.linear(meta(3, 7, 64), meta(32, 64)),
        lambda: torch.nn.functional.linear(meta(3, 7, 64), meta(32, 64), meta(32)),
        lambda: torch.einsum("bhid,bhjd->bhij", meta(2, 3, 17, 64), meta(2, 3, 11, 64)),
        lambda: torch.matmul(meta(2, 3, 17, 64), meta(64, 5)),
    ],
    ids=["mm", "addmm", "bmm", "baddbmm", "linear", "linear-bias", "einsum", "matmul"],
)
def test_products(function: Callable[[], Any]) -> None:
    ours, theirs, _ = measure(function)
    assert theirs > 0
    assert ours == theirs


def test_scaled_mm() -> None:
    """fp8 product with one scale an operand; our bytes: (64·128 + 128·32)·1 + 64·32·2 + 2·4."""
    one = torch.tensor(1.0, device="meta")
    a, b = meta(64, 128, dtype=torch.float8_e4m3fn), meta(32, 128, dtype=torch.float8_e4m3fn).t()
    ours, theirs, calls = measure(
        lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    )
    assert ours == theirs == 2 * 64 * 128 * 32
    product = next(
        c for call in calls if call.name == "aten::_scaled_mm" and (c := cost_of(call)) is not None
    )
    assert product.bytes_min == 64 * 128 + 128 * 32 + 64 * 32 * 2 + 8
    assert product.dtype == "fp8"


@pytest.mark.parametrize(
    ("x", "weight", "options"),
    [
        ((4, 3, 224, 224), (768, 3, 16, 16), {"stride": 16}),
        ((2, 16, 33, 35), (24, 16, 3, 3), {"padding": 1, "stride": 2}),
        ((2, 16, 33, 35), (32, 4, 3, 5), {"padding": (1, 2), "groups": 4}),
        ((2, 16, 40, 40), (24, 16, 3, 3), {"dilation": 2}),
    ],
    ids=["patch", "strided", "grouped", "dilated"],
)
def test_convolution(x: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any]) -> None:
    ours, theirs, _ = measure(lambda: torch.nn.functional.conv2d(meta(*x), meta(*weight), **options))
    assert ours == theirs > 0


def test_convolution_in_one_and_three_dimensions() -> None:
    for function in (
        lambda: torch.nn.functional.conv1d(meta(2, 8, 100), meta(16, 8, 7), padding=3),
        lambda: torch.nn.functional.conv3d(meta(1, 4, 9, 10, 11), meta(6, 4, 2, 3, 3)),
    ):
        ours, theirs, _ = measure(function)
        assert ours == theirs > 0


def test_transposed_convolution() -> None:
    ours, theirs, _ = measure(
        lambda: torch.nn.functional.conv_transpose2d(
            meta(2, 16, 9, 9), meta(16, 8, 4, 4), stride=2, padding=1
        )
    )
    assert ours == theirs > 0


def test_attention_full_and_causal() -> None:
    """torch counts causal attention in full; ours counts the triangle: L·(L + 1)/2 of L² pairs."""
    q = meta(2, 8, 96, 64)
    forms = (
        lambda causal: torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.0, causal),
        lambda causal: torch.ops.aten._scaled_dot_product_efficient_attention(
            q, q, q, None, False, 0.0, causal
        ),
        lambda causal: torch.ops.aten._scaled_dot_product_cudnn_attention(q, q, q, None, False, 0.0, causal),
    )
    for form in forms:
        ours, theirs, _ = measure(lambda form=form: form(False))
        assert ours == theirs == 4 * 2 * 8 * 96 * 96 * 64
        ours, theirs, _ = measure(lambda form=form: form(True))
        assert theirs == 4 * 2 * 8 * 96 * 96 * 64
        assert ours == theirs * (96 * 97 / 2) / (96 * 96)


def test_grouped_query_attention_with_other_value_size() -> None:
    q, k, v = meta(2, 8, 40, 64), meta(2, 8, 56, 64), meta(2, 8, 56, 32)
    ours, theirs, _ = measure(
        lambda: torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, False, 0.0, False)
    )
    assert ours == theirs == 2 * 2 * 8 * 40 * 56 * (64 + 32)


def test_a_whole_block() -> None:
    """A small decoder block end to end: only what torch counts (products and attention) is compared."""

    def block() -> Any:
        x = meta(2, 48, 128)
        qkv = torch.nn.functional.linear(x, meta(3 * 128, 128))
        q, k, v = (t.reshape(2, 48, 4, 32).transpose(1, 2) for t in qkv.chunk(3, dim=-1))
        a = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, False, 0.0, False)[0]
        x = x + torch.nn.functional.linear(a.transpose(1, 2).reshape(2, 48, 128), meta(128, 128))
        h = torch.nn.functional.linear(x, meta(512, 128))
        return torch.nn.functional.linear(h, meta(128, 512))

    recorder_total, theirs, calls = measure(block)
    products = {"aten::mm", "aten::addmm", "aten::bmm", "aten::_scaled_dot_product_efficient_attention"}
    ours = sum(c.flops for call in calls if call.name in products and (c := cost_of(call)) is not None)
    assert ours == theirs
    assert recorder_total >= ours
