"""The terminal summary: short, complete, safe."""

import re
from typing import Any

import pytest

from diagnose import contract as c
from diagnose.reports.terminal import MAX_LINES, summary


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("color", [False, True])
def test_short_and_within_the_width(
    any_case: c.Diagnosis, width: int, color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = summary(any_case, width=width, color=color)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert len(plain.splitlines()) <= MAX_LINES
    assert max(map(len, plain.splitlines())) <= width
    assert ("\x1b[" in text) is color


def test_says_what_matters(case: Any) -> None:
    text = summary(case("launch_bound"), width=100, color=False)
    for part in (
        "limited by launch overhead",
        "confidence 0.93",
        "(uncalibrated)",
        "idle: launching 83.1 %",
        "runner-up scheduling",
        "memory bandwidth: 0.4 %",
        "--metrics FILE",
        "CUDA graphs",
        "$ vllm serve openai/gpt-oss-120b -tp 8",
        "14.2–46.0 ms",
        "79.0–84.5 ms",
        "refuted if",
        "Python stacks",
        "+3 more",
        "NVIDIA B200",
        "44.0 %",
    ):
        assert part in " ".join(text.split()), part


def test_unobserved_time_outside_steps_is_told(case: Any) -> None:
    text = " ".join(summary(case("decode_unobserved"), width=100, color=False).split())
    assert "Outside every step" in text
    assert "not observed 463 ms" in text


def test_works_without_a_trace(case: Any) -> None:
    text = summary(case("serving_only"), width=90, color=False)
    assert "no trace was given: kernel-level limits are not assessed" in " ".join(text.split())
    assert "TTFT p50 301 ms, p99 2.91 s" in text
    assert "1,870 tokens/s" in text
    assert "pool 93,872 tokens" in text
    assert "Llama-3.3-70B" in text
    assert "device unknown" in text


def test_no_color_wins(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in summary(case("healthy"), width=80, color=True)


def test_many_of_everything_still_fits(case: Any) -> None:
    d = case("launch_bound")
    d.phases = d.phases * 6
    d.verdict.ruled_out = ["a long reason for ruling something out " * 4] * 9
    d.verdict.could_not_tell = ["a long request for one more capture " * 4] * 9
    d.verdict.summary = "word " * 300
    d.hypotheses[0].experiment.change = "change " * 100
    d.hypotheses[0].experiment.command = "vllm serve " + "x" * 3000
    text = summary(d, width=80, color=False)
    assert len(text.splitlines()) <= MAX_LINES
    assert max(map(len, text.splitlines())) <= 80
    assert "refuted if" in text  # the experiment is not what gets cut


def test_escape_sequences_of_a_trace_do_not_reach_the_terminal(case: Any) -> None:
    d = case("launch_bound")
    evil = "\x1b]0;owned\x07\x1b[2J\r\n\u202e"
    d.verdict.summary = d.source[0].framework = d.devices[0].name = d.data_quality[0].message = evil
    d.hypotheses[0].experiment.command = evil
    text = summary(d, width=80, color=False)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
