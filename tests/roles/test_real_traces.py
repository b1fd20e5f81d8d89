"""Real traces: coverage from roles, agreement with hidden shapes and with capture traces, and where nothing may be assigned."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnose.costs.assign import assign_costs
from diagnose.model.link import public_views
from diagnose.pipeline import Analysed, Options, conclude, finish, prepare
from diagnose.roles.assign import assign_roles
from diagnose.roles.capture import assign_from_capture
from diagnose.serving.model_load import load_model

pytestmark = pytest.mark.shared_traces

SGLANG, SGLANG_CAPTURE, SGLANG_PREFILL = (
    "sglang_qwen3-8b_mi300x_decode_graph", "sglang_qwen3-8b_mi300x_decode_capture", "sglang_qwen3-8b_mi300x_prefill",
)  # fmt: skip
VLLM, VLLM_CAPTURE, B200 = (
    "vllm_gptoss_mi300x_decode_fullgraph", "vllm_gptoss_mi300x_decode_capture", "vllm_gptoss_b200_tp8_eager_prefill",
)  # fmt: skip


def file(shared: Path, name: str) -> Path:
    return shared / "kineto" / f"{name}.json.gz"


@pytest.fixture
def opened(shared: Path) -> Iterator[Callable[[str], Analysed]]:
    """Opens a trace with the costs that its own operators give."""
    held: list[Analysed] = []

    def of(name: str) -> Analysed:
        held.append(prepare(file(shared, name), Options()))
        assign_costs(held[-1].store)
        return held[-1]

    yield of
    for one in held:
        one.store.close()


def coverage(one: Analysed) -> float:
    costed, total = one.store.rows(
        "SELECT sum(k.dur_ns) FILTER (c.kernel_id IS NOT NULL), sum(k.dur_ns) FROM kernel k LEFT JOIN cost c USING (kernel_id)"
    )[0]
    return costed / total


@pytest.mark.parametrize(
    ("name", "model", "tp", "least"),
    [
        (SGLANG, "Qwen/Qwen3-8B", 1, 0.95),
        (VLLM, "openai/gpt-oss-20b", 1, 0.85),
        (B200, "openai/gpt-oss-120b", 8, 0.90),
    ],
)
def test_most_kernel_time_has_a_cost(opened: Any, name: str, model: str, tp: int, least: float) -> None:
    one = opened(name)
    before = coverage(one)
    outcome = assign_roles(one.store, load_model(model), tp=tp, roofs=one.roofs)
    assert coverage(one) >= least
    assert coverage(one) == pytest.approx(before + outcome.coverage)
    assert one.store.scalar("SELECT count(*) FROM cost") == one.store.scalar(
        "SELECT count(DISTINCT kernel_id) FROM cost"
    )


@pytest.mark.parametrize(
    ("name", "model", "tp"), [(SGLANG_PREFILL, "Qwen/Qwen3-8B", 1), (B200, "openai/gpt-oss-120b", 8)]
)
def test_hidden_shapes_come_back(opened: Any, name: str, model: str, tp: int) -> None:
    """Every cost and every recorded argument removed: the roles give the products their true shapes."""
    one = opened(name)
    con = one.store.con
    con.execute(
        "CREATE TABLE recorded AS SELECT * FROM cost; DELETE FROM cost; DROP TABLE signature; DROP VIEW op"
    )
    assign_roles(one.store, load_model(model), tp=tp, roofs=one.roofs)
    same, total, same_flops = one.store.rows(
        """SELECT sum(k.dur_ns) FILTER (c.m = r.m AND c.n = r.n AND c.k = r.k), sum(k.dur_ns),
                  sum(k.dur_ns) FILTER (c.flops = r.flops)
        FROM recorded r JOIN kernel k USING (kernel_id) LEFT JOIN cost c USING (kernel_id) WHERE r.m IS NOT NULL"""
    )[0]
    assert total > 0
    assert same >= 0.98 * total
    assert same_flops >= 0.98 * total
    if name == SGLANG_PREFILL:  # attention, norms, rotation and copies too: bytes within 2 %
        close, all_ = one.store.rows(
            """SELECT sum(k.dur_ns) FILTER (abs(c.bytes_min / r.bytes_min - 1) < 0.02), sum(k.dur_ns)
            FROM recorded r JOIN kernel k USING (kernel_id) LEFT JOIN cost c USING (kernel_id) WHERE r.source = 'shape'"""
        )[0]
        assert close >= 0.99 * all_


@pytest.mark.parametrize(
    ("name", "capture", "model"),
    [(SGLANG, SGLANG_CAPTURE, "Qwen/Qwen3-8B"), (VLLM, VLLM_CAPTURE, "openai/gpt-oss-20b")],
)
def test_roles_agree_with_the_capture_trace(
    opened: Any, shared: Path, name: str, capture: str, model: str
) -> None:
    """Two independent ways to the shapes of one replay: the config, and the operators recorded while capturing."""
    one = opened(name)
    assert assign_from_capture(one.store, file(shared, capture)).matched == 1
    one.store.con.execute(
        "CREATE TABLE captured AS SELECT * FROM cost WHERE source = 'capture'; DELETE FROM cost WHERE source = 'capture'"
    )
    assign_roles(one.store, load_model(model), roofs=one.roofs)
    same, total, kernels = one.store.rows(
        """SELECT sum(k.dur_ns) FILTER (c.m = r.m AND c.n = r.n AND c.k = r.k), sum(k.dur_ns), count(*)
        FROM captured r JOIN kernel k USING (kernel_id) LEFT JOIN cost c USING (kernel_id) WHERE r.m IS NOT NULL"""
    )[0]
    assert kernels >= 72
    assert same >= 0.98 * total


@pytest.mark.parametrize(
    ("name", "capture", "model"),
    [(SGLANG, SGLANG_CAPTURE, "Qwen/Qwen3-8B"), (VLLM, VLLM_CAPTURE, "openai/gpt-oss-20b")],
)
def test_capture_and_roles_together(shared: Path, name: str, capture: str, model: str) -> None:
    options = Options(model=model, capture=file(shared, capture))
    one = prepare(file(shared, name), options)
    try:
        finish(one, options)
        assert coverage(one) >= 0.95
        result = conclude(one, options)
        assert {"capture", "role"} <= set(result.coverage.by_source_ns)
        assert all(k.flags for k in result.kernels if (k.percent_of_roof or 0) > 100)
    finally:
        one.store.close()


@pytest.mark.parametrize(
    ("name", "wrong", "tp"),
    [
        (SGLANG, "meta-llama/Meta-Llama-3-8B", 1), (SGLANG, "Qwen/Qwen3-14B", 1), (SGLANG, "openai/gpt-oss-120b", 1),
        (SGLANG, "Qwen/Qwen3-8B", 2), (VLLM, "openai/gpt-oss-120b", 1), (VLLM, "Qwen/Qwen3-8B", 1), (VLLM, "Qwen/Qwen2.5-0.5B", 1),
        (VLLM, "openai/gpt-oss-20b", 2), (B200, "openai/gpt-oss-120b", 1), (B200, "openai/gpt-oss-120b", 4), (B200, "Qwen/Qwen3-4B", 8),
    ],
)  # fmt: skip
def test_another_model_gets_nothing(opened: Any, name: str, wrong: str, tp: int) -> None:
    one = opened(name)
    outcome = assign_roles(one.store, load_model(wrong), tp=tp, roofs=one.roofs)
    assert outcome.coverage == 0
    assert one.store.scalar("SELECT count(*) FROM cost WHERE source = 'role'") == 0
    assert any(severity == "warning" for _, severity, _, _ in outcome.notes)


def test_a_model_of_as_many_layers_is_told_by_its_grids(opened: Any) -> None:
    """Qwen3-4B has Qwen3-8B's layers, heads and vocabulary; with every recorded shape hidden the blocks of its products differ."""
    one = opened(SGLANG_PREFILL)
    one.store.con.execute("DELETE FROM cost")
    outcome = assign_roles(one.store, load_model("Qwen/Qwen3-4B"), roofs=one.roofs)
    assert outcome.coverage == 0
    assert "blocks" in outcome.notes[0][3]


@pytest.mark.parametrize(
    ("name", "model"),
    [(SGLANG, "Qwen/Qwen3-8B"), (VLLM, "openai/gpt-oss-20b"), (SGLANG_PREFILL, "Qwen/Qwen3-8B")],
)
@pytest.mark.parametrize("seed", range(3))
def test_shuffled_kernels_get_nothing(opened: Any, name: str, model: str, seed: int) -> None:
    one = opened(name)
    con = one.store.con
    con.execute("DELETE FROM cost")
    rows = one.store.rows("SELECT kernel_id, start_ns FROM activity_base WHERE kind = 'kernel' ORDER BY 1")
    starts = [start for _, start in rows]
    random.Random(seed).shuffle(starts)
    con.execute(
        """CREATE TABLE moved AS SELECT b.* REPLACE (coalesce(m.start_ns, b.start_ns) AS start_ns) FROM activity_base b
        LEFT JOIN (SELECT unnest(?::BIGINT[]) AS kernel_id, unnest(?::BIGINT[]) AS start_ns) m USING (kernel_id)""",
        [[k for k, _ in rows], starts],
    )
    con.execute("DROP TABLE activity_base; ALTER TABLE moved RENAME TO activity_base")
    public_views(one.store)
    assert assign_roles(one.store, load_model(model), roofs=one.roofs).coverage == 0
    assert one.store.count("cost") == 0


def test_sliding_layers_are_charged_their_window(opened: Any) -> None:
    """32 sequences with 55,086 tokens: twelve layers read at most 128 a sequence; at full length they would beat the
    datasheet's 5.3 TB/s."""
    one = opened(VLLM)
    assign_roles(one.store, load_model("openai/gpt-oss-20b"), roofs=one.roofs)
    rows = one.store.rows(
        """SELECT n.text, count(*), any_value(c.bytes_min), median(c.bytes_min / k.dur_ns), median(k.dur_ns)
        FROM cost c JOIN kernel k USING (kernel_id) JOIN name n USING (name_id) WHERE c.role = 'attention_decode' GROUP BY 1 ORDER BY 1"""
    )
    own = 2 * 32 * 64 * 64 * 2
    windowed, full = rows
    assert windowed[:3] == ("kernel_unified_attention_2d", 12, 32 * 128 * 2 * 8 * 64 * 2 + own)
    assert full[:3] == ("kernel_unified_attention_3d", 12, 55086 * 2 * 8 * 64 * 2 + own)
    assert full[2] / windowed[4] > 5300  # GB/s, were the windowed layers charged the whole cache
    assert full[3] < 5300 and windowed[3] < 5300


@pytest.mark.parametrize(
    ("name", "model", "tp", "first"),
    [
        (SGLANG, "Qwen/Qwen3-8B", None, {"hbm", "kernel_inefficiency"}),
        (VLLM, "openai/gpt-oss-20b", None, {"kernel_inefficiency", "hbm"}),
    ],
)
def test_verdicts_with_the_model(
    shared: Path, name: str, model: str, tp: int | None, first: set[str]
) -> None:
    options = Options(model=model, tp=tp)
    one = prepare(file(shared, name), options)
    try:
        finish(one, options)
        result = conclude(one, options)
    finally:
        one.store.close()
    assert {result.verdict.limit, result.verdict.runner_up} == first
    if name == VLLM:
        assert result.verdict.limit == "kernel_inefficiency"
    codes = {n.code for n in result.data_quality}
    assert "roles" in codes
    assert all(k.flags for k in result.kernels if (k.percent_of_roof or 0) > 100)
