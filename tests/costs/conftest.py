"""Calls as a profiler records them, and small stores, for the tests of the cost models."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnose.costs.op import OpCall, OpCost, StepInfo
from diagnose.costs.registry import cost_of
from diagnose.store import Store
from diagnose.store.schema import BY_NAME

TYPES = {
    "bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float", "fp64": "double", "fp8": "c10::Float8_e4m3fn",
    "int8": "signed char", "uint8": "unsigned char", "int32": "int", "int64": "long int", "bool": "bool",
}  # fmt: skip


def _row_major(dims: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for d in reversed(dims):
        strides.append(step)
        step *= d
    return tuple(reversed(strides))


def make_call(name: str, *args: Any, **options: Any) -> OpCall:
    """`args` are (dims, dtype[, strides]) tuples, lists of dims for tensor lists, or scalars (recorded as text)."""
    dims, types, strides, scalars = [], [], [], []
    for arg in args:
        if isinstance(arg, tuple):
            dims.append(tuple(arg[0]))
            types.append(TYPES[arg[1]])
            strides.append(tuple(arg[2]) if len(arg) > 2 else _row_major(tuple(arg[0])))
            scalars.append("")
        elif isinstance(arg, list) and arg and isinstance(arg[0], tuple):
            dims.append(tuple(arg))
            types.append("TensorList")
            strides.append(tuple(_row_major(d) for d in arg))
            scalars.append("")
        else:
            dims.append(())
            types.append("" if arg is None else "Scalar")
            strides.append(())
            scalars.append("" if arg is None else str(arg))
    return OpCall(name, tuple(dims), tuple(types), tuple(strides), tuple(scalars), **options)


@pytest.fixture
def call() -> Callable[..., OpCall]:
    return make_call


@pytest.fixture
def cost() -> Callable[..., OpCost]:
    """The cost of a call; fails when there is none."""

    def of(name: str, *args: Any, **options: Any) -> OpCost:
        found = cost_of(make_call(name, *args, **options))
        assert found is not None, f"no cost for {name}"
        return found

    return of


@pytest.fixture
def no_cost() -> Callable[..., bool]:
    def of(name: str, *args: Any, **options: Any) -> bool:
        return cost_of(make_call(name, *args, **options)) is None

    return of


@pytest.fixture
def step() -> Callable[..., StepInfo]:
    return StepInfo


@pytest.fixture
def shared() -> Path:
    """Folder of the real traces; skips where it is absent."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("no real traces beside the repository")
    return folder


class Trace:
    """A store filled by hand: operators, kernels, copies."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.names: dict[str, int] = {}
        for table in ("name", "kernel", "op", "signature", "gpu_copy", "gpu_memset", "step"):
            store.con.execute(BY_NAME[table].ddl())

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = len(self.names)
            self.store.insert("name", [{"name_id": self.names[text], "text": text}])
        return self.names[text]

    def op(self, op_id: int, call: OpCall, parent: int | None = None, **fields: Any) -> None:
        def text(value: Any) -> str:
            return json.dumps(value)

        self.store.insert(
            "signature",
            [{
                "signature_id": op_id, "input_dims": text(call.dims), "input_dtypes": text(call.dtypes),
                "input_strides": text(call.strides), "scalar_args": text(call.scalars), "extra": text(dict(call.extra)),
            }],
        )  # fmt: skip
        self.store.insert(
            "op",
            [
                {
                    "op_id": op_id,
                    "parent_op_id": parent,
                    "name_id": self.name(call.name),
                    "signature_id": op_id,
                    **fields,
                }
            ],
        )

    def kernel(self, kernel_id: int, name: str, dur_ns: int, op: int | None = None, **fields: Any) -> None:
        self.store.insert(
            "kernel",
            [{
                "kernel_id": kernel_id, "device_id": 0, "stream": 7, "start_ns": kernel_id * 1_000_000, "dur_ns": dur_ns,
                "name_id": self.name(name), "grid": "[1,1,1]", "block": "[128,1,1]", "op_id": op,
                "link": "launch" if op is not None else "no_launch", **fields,
            }],
        )  # fmt: skip

    def costs(self) -> dict[int, dict[str, Any]]:
        return {row["kernel_id"]: row for row in self.store.dicts("SELECT * FROM cost ORDER BY kernel_id")}


@pytest.fixture
def trace() -> Iterator[Trace]:
    with Store() as store:
        yield Trace(store)
