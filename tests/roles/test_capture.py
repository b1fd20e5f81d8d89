"""Capture traces beside replays: by name and order, by node, launches without names; and every way not to match."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnose.costs.assign import assign_costs
from diagnose.pipeline import Options, prepare
from diagnose.roles.capture import assign_from_capture, match, of_kind
from diagnose.roles.capture_read import Recorded
from diagnose.store import Store

GEMM, NORM, ROPE = (
    "nvjet_tst_64x8_64x16_2x1_v_bz_TNT",
    "void rms_norm_kernel<c10::BFloat16>(x)",
    "void rotary_embedding_kernel<x>(y)",
)
Work = tuple[str, str, list[list[int]]]


def linear(m: int, n: int, k: int, name: str = GEMM) -> Work:
    return name, "aten::mm", [[m, k], [k, n]]


def norm(m: int, d: int) -> Work:
    return NORM, "aten::rms_norm", [[m, d], [], [d], []]


def op_event(name: str, dims: list[list[int]], ts: float, external: int) -> dict[str, Any]:
    strides = [[d[1], 1] if len(d) == 2 else [1] * len(d) for d in dims]
    args = {"External id": external, "Input Dims": dims, "Input type": ["c10::BFloat16" if d else "Scalar" for d in dims],
            "Input Strides": strides, "Concrete Inputs": ["" for _ in dims]}  # fmt: skip
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 8.0, "args": args}


def call(name: str, ts: float, correlation: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 1.0,
            "args": {"correlation": correlation, "External id": 0, **args}}  # fmt: skip


def captured(
    works: list[Work], *, named: bool, label: str = "", at: float = 100.0, first: int = 1
) -> list[dict[str, Any]]:
    """Launches recorded into one graph: no kernel runs."""
    events = [call("cudaStreamBeginCapture", at - 5, first * 1000)]
    for i, (kernel, op, dims) in enumerate(works):
        ts = at + 10 * i
        events.append(op_event(op, dims, ts, first + i))
        extra = {"kernel": kernel} if named else {}
        events.append(
            call("hipLaunchKernel" if named else "cudaLaunchKernel", ts + 2, first * 1000 + 1 + i, **extra)
        )
    end = at + 10 * len(works)
    events.append(call("cudaStreamEndCapture", end, first * 1000 + 900))
    if label:
        events.append({"ph": "X", "cat": "user_annotation", "name": label, "pid": 1, "tid": 1, "ts": at - 6, "dur": end - at + 8,
                       "args": {"External id": 0}})  # fmt: skip
    return events


def replayed(names: list[str], batch: int = 8, nodes: bool = False) -> list[dict[str, Any]]:
    """One decode step that replays a graph of these kernels."""
    text = f"execute_{batch}_context_0(sq0sk0sqsq0sqsk0)_generation_{batch}(sq{batch}sk800sqsq{batch}sqsk800)"
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": text,
            "pid": 1,
            "tid": 1,
            "ts": 1.0,
            "dur": 50.0,
            "args": {"External id": 0},
        },
        call("cudaGraphLaunch", 5.0, 7),
    ]
    for i, name in enumerate(names):
        args = {
            "correlation": 7,
            "device": 0,
            "stream": 7,
            "External id": 0,
            "grid": [8, 1, 1],
            "block": [128, 1, 1],
        }
        if nodes:
            args.update({"graph id": 1, "graph node id": 100 + i})
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": name,
                "pid": 0,
                "tid": 7,
                "ts": 20.0 + 10 * i,
                "dur": 9.0,
                "args": args,
            }
        )
    return events


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., tuple[Any, list[tuple[Any, ...]]]]]:
    """(replay events, capture events) -> outcome and (name, role, m, n, k, source) of the replay's kernels in order."""
    stores: list[Store] = []

    def go(
        replay: list[dict[str, Any]], capture: list[dict[str, Any]], **options: Any
    ) -> tuple[Any, list[tuple[Any, ...]]]:
        for name, events in (("replay", replay), ("capture", capture)):
            (tmp_path / f"{name}.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
        store = prepare(tmp_path / "replay.json", Options()).store
        stores.append(store)
        assign_costs(store)
        outcome = assign_from_capture(store, tmp_path / "capture.json", **options)
        rows = store.rows(
            """SELECT n.text, c.role, c.m, c.n, c.k, c.source FROM kernel k JOIN name n USING (name_id)
            LEFT JOIN cost c USING (kernel_id) ORDER BY k.start_ns"""
        )
        return outcome, rows

    yield go
    for store in stores:
        store.close()


WORKS = [
    norm(8, 256),
    linear(8, 768, 256),
    linear(8, 256, 256),
    norm(8, 256),
    linear(8, 1024, 256),
    linear(8, 256, 512),
]


def test_names_in_order_tell_products_of_one_kernel_apart(run: Any) -> None:
    outcome, rows = run(replayed([w[0] for w in WORKS]), captured(WORKS, named=True))
    assert (outcome.replays, outcome.matched, outcome.kernels) == (1, 1, 6)
    assert outcome.coverage == pytest.approx(1.0)
    assert [r[2:5] for r in rows if r[0] == GEMM] == [
        (8, 768, 256),
        (8, 256, 256),
        (8, 1024, 256),
        (8, 256, 512),
    ]
    assert {r[5] for r in rows} == {"capture"}


def test_another_kernel_sequence_gives_nothing(run: Any) -> None:
    names = [w[0] for w in WORKS]
    outcome, rows = run(replayed([*names[:3], ROPE, ROPE, *names[3:]]), captured(WORKS, named=True))
    assert outcome.matched == 0
    assert outcome.notes[0][0] == "capture-unmatched"
    assert {r[5] for r in rows} == {None}


def test_reversed_order_gives_nothing(run: Any) -> None:
    works = [linear(8, 64 * (i + 1), 256, f"nvjet_tst_{i}x8_64x16") for i in range(6)]
    outcome, _ = run(replayed([w[0] for w in works][::-1]), captured(works, named=True))
    assert outcome.matched == 0


def test_the_batch_that_was_replayed_is_chosen(run: Any) -> None:
    """Graphs for 4, 8 and 16 sequences have the same kernels: a batch of 7 was padded to 8."""
    events: list[dict[str, Any]] = []
    for number, size in enumerate((4, 8, 16)):
        works = [norm(size, 256), linear(size, 768, 256), linear(size, 256, 256)]
        events += captured(
            works, named=True, label=f"capture_{size}_FULL", at=100.0 + 1000 * number, first=10 * number + 1
        )
    names = [NORM, GEMM, GEMM]
    _, rows = run(replayed(names, batch=7), events)
    assert [r[2] for r in rows] == [None, 8, 8]


def test_two_graphs_that_differ_in_shape_only_are_ambiguous(run: Any) -> None:
    events = captured([linear(4, 64, 64)] * 3, named=True) + captured(
        [linear(8, 64, 64)] * 3, named=True, at=900.0, first=50
    )
    outcome, _ = run(replayed([GEMM] * 3), events)
    assert outcome.matched == 0


def test_launches_without_names_need_operators_of_their_kind(run: Any) -> None:
    names = [w[0] for w in WORKS]
    outcome, rows = run(replayed(names), captured(WORKS, named=False))
    assert outcome.matched == 1
    assert [r[2:5] for r in rows if r[0] == GEMM] == [
        (8, 768, 256),
        (8, 256, 256),
        (8, 1024, 256),
        (8, 256, 512),
    ]
    mixed = [names[1], names[0], *names[2:]]  # as many kernels, but a product where a norm was recorded
    outcome, rows = run(replayed(mixed), captured(WORKS, named=False))
    assert outcome.matched == 0
    assert {r[5] for r in rows} == {None}
    outcome, _ = run(replayed(names[:-1]), captured(WORKS, named=False))
    assert outcome.matched == 0


def test_an_eager_pass_serves_as_capture(run: Any) -> None:
    """Kernels that ran under operators, in a trace of its own."""
    events: list[dict[str, Any]] = []
    for i, (kernel, op, dims) in enumerate(WORKS):
        ts = 100.0 + 10 * i
        events += [
            op_event(op, dims, ts, 1 + i),
            call("cudaLaunchKernel", ts + 2, 50 + i, **{"External id": 1 + i}),
        ]
        args = {
            "correlation": 50 + i,
            "device": 0,
            "stream": 7,
            "External id": 1 + i,
            "grid": [1, 1, 1],
            "block": [128, 1, 1],
        }
        events.append(
            {
                "ph": "X",
                "cat": "kernel",
                "name": kernel,
                "pid": 0,
                "tid": 7,
                "ts": ts + 4,
                "dur": 3.0,
                "args": args,
            }
        )
    outcome, rows = run(replayed([w[0] for w in WORKS]), events)
    assert outcome.matched == 1
    assert [r[2:5] for r in rows if r[0] == GEMM] == [
        (8, 768, 256),
        (8, 256, 256),
        (8, 1024, 256),
        (8, 256, 512),
    ]


def test_nodes_match_whatever_the_order() -> None:
    record = Recorded(names=["a", "b", "c"], costs=[None] * 3, nodes=[5, 6, 7], ops=[()] * 3)
    assert match(["c", "a", "b"], [7, 5, 6], record) == [2, 0, 1]
    assert match(["c", "a", "b"], [5, 6, 7], record) is None  # the nodes are other kernels: another graph


def test_operators_must_tell_enough() -> None:
    assert not of_kind([GEMM] * 3, [("aten::mm",)] * 3)
    assert of_kind([GEMM] * 6, [("aten::mm",)] * 6)
    assert not of_kind([GEMM] * 6, [("aten::mm",)] * 5 + [("aten::copy_",)])


def test_no_replay_needs_no_capture(run: Any) -> None:
    outcome, _ = run([*captured(WORKS, named=True), {"ph": "X", "cat": "kernel", "name": GEMM, "pid": 0, "tid": 7, "ts": 9.0, "dur": 3.0,
                      "args": {"device": 0, "stream": 7}}], captured(WORKS, named=True))  # fmt: skip
    assert outcome.notes[0][0] == "capture-unused"


def attention_capture(kernels: list[str]) -> list[dict[str, Any]]:
    works: list[Work] = []
    for kernel in kernels:
        works += [
            linear(8, 1536, 1024),
            (kernel, "vllm::unified_attention_with_output", [[8, 8, 128], [8, 2, 128], [8, 2, 128]]),
        ]
    return captured(works, named=True)


def test_attention_takes_the_context_of_the_replay(run: Any) -> None:
    kernel = "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64>>(x)"
    names = [GEMM, kernel, GEMM, kernel]
    _, rows = run(replayed(names), attention_capture([kernel, kernel]))
    assert [r[1] for r in rows] == ["gemm", "attention_decode"] * 2
    _, rows = run(replayed(names), attention_capture([kernel, kernel]), by_step=False)
    assert [r[1] for r in rows] == ["gemm", None] * 2


def test_layers_that_attend_with_different_kernels_are_left_out(run: Any) -> None:
    """Same operator, same arguments, other kernels: a window that no argument names."""
    kernels = [
        f"void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, {n}>>(x)" for n in (64, 128)
    ]
    _, rows = run(replayed([GEMM, kernels[0], GEMM, kernels[1]]), attention_capture(kernels))
    assert [r[1] for r in rows] == ["gemm", None] * 2
