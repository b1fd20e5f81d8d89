"""Serving evidence and ranks in words and tables."""

from typing import Any

from diagnose.reports import evidence


def test_the_straggler_is_named_with_its_cause(case: Any) -> None:
    # 3.3 of 70 ms in common are 4.7 %
    assert evidence.straggler(case("eight_ranks")) == (
        "Rank 5 causes 100 % of the waiting: steadily slower, last into 71 of 73 collectives, 3.30 ms "
        "(4.71 % of the time in common) for a typical other rank. It spends 3.30 ms more than the others in "
        "idle: launching (launching)."
    )
    assert evidence.straggler(case("healthy")) == ""


def test_ranks_side_by_side(case: Any) -> None:
    (table,) = evidence.rank_tables(case("eight_ranks"))
    assert [row[0] for row in table.rows] == [f"rank {r}" for r in range(8)]
    assert table.rows[5] == ["rank 5", "73", "73", "8.00", "0", "0", "23.1", "71", "6.00"]
    assert table.rows[4] == ["rank 4", "73", "73", "8.00", "3.30", "4.71", "0", "0", "4.80"]


def test_quantiles_of_a_histogram_are_told_as_its_bucket(case: Any) -> None:
    table = evidence.latency_sources(case("serving_only"))
    assert table
    engine = next(row for row in table.rows if row[1] == "engine")
    told = ["250–500", "1,000–2,500", "above 2,500"]
    assert engine == ["time to first token", "engine", "498", *told, "unknown"]


def test_latency_remarks(case: Any) -> None:
    remarks = evidence.latency_remarks(case("serving_only"))
    assert remarks == [
        "1,000 requests completed at 3.20 per second; 3 failed.",
        "Client and engine disagree on mean time to first token: 512 against 402 ms. The difference can sit in "
        "the front end.",
        "To split it further: queue time: the engine's histogram (--metrics).",
    ]


def test_what_a_split_leaves_is_told(case: Any) -> None:
    d = case("serving_only")
    d.latency["split_detail"] = {"ttft": {"prefix_hit_share": 0.25}, "itl": {"rest_ms": 0.7}}
    remarks = evidence.latency_remarks(d)
    assert any("25.0 % of the prompt tokens" in r for r in remarks)
    assert (
        "The parts of the token gap leave 0.700 ms of its mean: streaming, detokenising or preemption."
        in remarks
    )


def test_representative(case: Any) -> None:
    message, table, notes = evidence.representative(case("serving_only"))
    assert message == "The traced steps differ from the run in batch."
    assert table
    assert table.rows == [["batch", "8 sequences", "p50 61.0", "2", "no"]]
    assert len(notes) == 1
    assert evidence.representative(case("healthy")) == ("", None, [])


def test_parts_of_another_shape_do_not_break_the_page(case: Any) -> None:
    d = case("healthy")
    d.rank_summary = {"ranks": None, "straggler": None, "pipeline": [], "experts": {}}
    d.latency = {"ttft_ms": None, "split": {"ttft": {}}, "split_detail": {}}
    d.representative = {}
    assert evidence.rank_tables(d) == []
    assert evidence.latency_remarks(d) == []
    assert evidence.latency_sources(d) is None
