"""NVTX texts: what torch's emit_nvtx wrote becomes an operator with sizes, everything else stays an
annotation.

The suffixes are those of torch/csrc/profiler/util.cpp; names may hold commas and brackets of their own.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose.store import Store

Load = Callable[..., Store]
Make = Callable[..., Path]
Pack = tuple[Callable[[int], int], Callable[[int, int], int]]

OPERATORS = [
    ("aten::mm, seq = 12, op_id = 34, sizes = [[1, 4096], [4096, 4096]]", "aten::mm",
        "[[1,4096],[4096,4096]]"),
    ("aten::addmm, op_id = 7, sizes = [[4096], [8, 4096], [4096, 4096], [], []]", "aten::addmm",
     "[[4096],[8,4096],[4096,4096],[],[]]"),
    ("aten::cat, op_id = 8, sizes = [[[2, 3], [4, 3]], []], input_op_ids = [(1,0), (2,0)]", "aten::cat",
        "[[[2,3],[4,3]],[]]"),
    ("aten::to, op_id = 317177", "aten::to", None),
    ("aten::mul, seq = 45328, op_id = 990726", "aten::mul", None),
    ("aten::mul, seq = -1, op_id = 5", "aten::mul", None),
    ("aten::relu", "aten::relu", None),
    ("flash_attn::_flash_attn_forward, op_id = 990813", "flash_attn::_flash_attn_forward", None),
    ("AllToAll4D, seq = 46286, op_id = 993812", "AllToAll4D", None),
    ("autograd::engine::evaluate_function: MmBackward0, op_id = 4",
        "autograd::engine::evaluate_function: MmBackward0", None),
    ("record_param_comms, op_id = 9", "record_param_comms", None),
]  # fmt: skip
ANNOTATIONS = [
    ("FSDP::pre_forward (layers.0, shared), op_id = 3", "FSDP::pre_forward (layers.0, shared)"),
    ("nccl:all_to_all, op_id = 991144", "nccl:all_to_all"),
    ("execute_context_1(888)_generation_0(0), op_id = 12", "execute_context_1(888)_generation_0(0)"),
    ("execute_context_1(888)_generation_0(0)", "execute_context_1(888)_generation_0(0)"),
    # Text that only looks like a suffix, or has one in the middle, is a name.
    ("batch, sizes = [32, 64] tokens", "batch, sizes = [32, 64] tokens"),
    ("a, op_id = 3, then b", "a, op_id = 3, then b"),
    ("note, op_id = 4, b, op_id = 5", "note, op_id = 4, b"),
    ("ünïcode, op_id = 6", "ünïcode"),
]


@pytest.fixture
def ranges(export: Make, loaded: Load, pack: Pack) -> Callable[[list[str]], Store]:
    _, tid = pack

    def make(texts: list[str]) -> Store:
        rows = [
            {"start": 200 + i, "end": 300 + i, "eventType": 59, "text": text, "globalTid": tid(100, 101)}
            for i, text in enumerate(texts)
        ]
        return loaded(export(NVTX_EVENTS=rows))

    return make


def test_operators(ranges: Callable[[list[str]], Store]) -> None:
    store = ranges([text for text, _, _ in OPERATORS])
    assert store.rows(
        """SELECT n.text, s.input_dims FROM raw_op JOIN name n USING (name_id) LEFT JOIN signature s USING
        (signature_id) ORDER BY start_ns"""
    ) == [(name, dims) for _, name, dims in OPERATORS]
    assert store.count("annotation") == 0


def test_annotations(ranges: Callable[[list[str]], Store]) -> None:
    store = ranges([text for text, _ in ANNOTATIONS])
    assert store.rows("SELECT text FROM annotation ORDER BY start_ns") == [(name,) for _, name in ANNOTATIONS]
    assert store.count("raw_op") == 0


def test_equal_sizes_share_a_signature(ranges: Callable[[list[str]], Store]) -> None:
    store = ranges([f"aten::mm, op_id = {i}, sizes = [[1, {n}], [{n}, 8]]" for i, n in enumerate((4, 4, 5))])
    first, second, third = (s for (s,) in store.rows("SELECT signature_id FROM raw_op ORDER BY start_ns"))
    assert first == second != third


def test_texts_after_many_nulls(export: Make, loaded: Load, pack: Pack) -> None:
    """A reader that takes a column's type from its first 65,536 rows would call these texts numbers."""
    _, tid = pack
    row = {"eventType": 59, "globalTid": tid(100, 101)}
    rows = [{**row, "start": i, "end": i + 1, "text": None, "textId": 16} for i in range(66_000)]
    rows.append({**row, "start": 70_000, "end": 70_001, "text": "late, op_id = 1", "textId": None})
    store = loaded(export(NVTX_EVENTS=rows))
    assert store.rows("SELECT text, count(*) FROM annotation GROUP BY text ORDER BY text") == [
        ("decode step", 66_000),
        ("late", 1),
    ]


def test_start_end_ranges_are_told_apart(export: Make, loaded: Load, pack: Pack) -> None:
    _, tid = pack
    row = {"start": 200, "end": 300, "globalTid": tid(100, 101)}
    store = loaded(
        export(
            NVTX_EVENTS=[{**row, "eventType": 60, "text": "a"}, {**row, "eventType": 34, "text": "a mark"}]
        )
    )
    assert store.rows("SELECT origin, text FROM annotation") == [("nvtx_start_end", "a")]
