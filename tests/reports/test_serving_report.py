"""A served run in words: every number shown is one of the result's, told once."""

from typing import Any

from diagnose.reports import serving, serving_lines
from diagnose.reports.charts.other_device import other_device_figures
from diagnose.reports.html import to_html
from diagnose.reports.markdown import to_markdown


def test_ceiling_in_a_sentence_or_why_there_is_none(case: Any) -> None:
    d = case("serving_only")
    text = serving.ceiling_text(d)
    for part in ("batch 64", "1,300 tokens", "35.3 GB", "27.3 GB", "21.4 ms", "2,990 tokens/s", "62.7 %"):
        assert part in text, part
    d.ceiling |= {"tok_s": None, "conditions": [
        {"condition": "below the knee", "holds": False, "detail": "512 tokens a step; weights cost compute from about 276"},
        {"condition": "context known", "holds": True, "detail": "x"},
    ]}  # fmt: skip
    assert serving.ceiling_text(d) == (
        "No decode ceiling is given: not below the knee (512 tokens a step; weights cost compute from about 276)."
    )
    assert serving_lines.outlook_line(d).startswith("useful batch 72")


def test_batch_worth_running(case: Any) -> None:
    lines = serving.batch_remarks(case("serving_only"))
    assert lines[0] == "Useful batch: 72, 75 at best, stopped by the inter-token target; now 64."
    assert "1.40–1.60 ×" in lines[1]
    assert "the KV pool holds 75" in lines[2]
    assert "at least 61.0 ms" in lines[3] and "queueing" in lines[3]
    d = case("serving_only")
    d.useful_batch |= {"batch": None, "batch_at_best": None, "stopped_by": None}
    assert serving.batch_remarks(d)[0].startswith("Nothing that is known stops the batch (now 64)")
    d.useful_batch |= {"stopped_by": "slo_itl"}
    assert (
        serving.batch_remarks(d)[0]
        == "No batch meets the inter-token target of 30.0 ms for certain (now 64)."
    )


def test_quantising_says_losses_and_what_was_not_measured(case: Any) -> None:
    table = serving.quantisation_table(case("serving_only"))
    assert table is not None
    assert table.rows[0] == ["FP8 weights", "prefill", "0.650–1.50", "1,300", "97.0", "120,000"]
    assert "10.0 % of the step" in serving.quantisation_remarks(case("serving_only"))[0]


def test_other_device_keeps_what_does_not_scale(case: Any) -> None:
    figure = other_device_figures(case("serving_only"))[0]
    assert figure.title == "Decode on NVIDIA H200: 30.0 ms become 23.0–26.0 ms a step, 1.15–1.30 ×"
    rows = next(r for r in figure.spec["datasets"].values() if r and "x2" in r[0])
    bars = [(r["device"], r["x"], r["x2"]) for r in rows]
    assert bars == [
        ("NVIDIA H100 80GB HBM3 (now)", 0, 6), ("NVIDIA H100 80GB HBM3 (now)", 6, 30),
        ("NVIDIA H200", 0, 6), ("NVIDIA H200", 6, 23), ("NVIDIA H200", 23, 26),
    ]  # fmt: skip
    assert "0–4 %" in figure.note and "same batch and context" in figure.note


def test_page_and_ticket_tell_the_same(case: Any) -> None:
    d = case("serving_only")
    page, ticket = to_html(d).replace("\u00a0", " "), to_markdown(d)
    for part in (
        "2,990 tokens/s",
        "Useful batch: 72",
        "FP8 weights",
        "NVIDIA H200",
        "0.650–1.50",
        "median running under load",
    ):
        assert part in page, part
        assert part in ticket.replace("\\", ""), part


def test_lines_of_the_terminal(case: Any) -> None:
    d = case("serving_only")
    assert serving_lines.latency_line(d) == (
        "TTFT p50 301 ms, p99 2.91 s · ITL p50 31.4 ms, p99 180 ms · E2E p50 8.12 s, p99 14.2 s · 1,870 tokens/s"
    )
    assert "most used 99.4 %" in serving_lines.kv_line(d)
    assert serving_lines.load_line(d) == "running 64, waiting 128"
    assert serving_lines.kv_line(case("healthy")) == serving_lines.outlook_line(case("healthy")) == ""


def test_prefill_against_decode(case: Any) -> None:
    d = case("serving_only")
    d.latency["prefill_decode_ratio"] = {
        "tokens": {
            "prompt": 1000.0,
            "output": 200.0,
            "computed_prompt": 600.0,
            "ratio": 3.0,
            "source": "engine counters",
        },
        "time": {"prefill_share": 0.4, "decode_share": 0.6, "source": "iteration lines"},
    }
    first, second = serving.ratio_remarks(d)
    assert "1,000 prompt, 600 of them computed to 200 output, 3.00 : 1" in first
    assert "prefill 40.0 %, decode 60.0 %" in second and "20.0 %" in second and "30.0 %" in second
