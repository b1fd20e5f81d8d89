"""Markdown for a ticket: complete, and inert whatever a trace holds."""

import re
from typing import Any

from markdown_it import MarkdownIt

from diagnose import contract as c
from diagnose.reports.markdown import to_markdown
from diagnose.reports.marker import MARKER

EVIL = "x</script><script>alert(1)</script>|[a](http://evil)@team `--` *b*\n# head\x1b[31m"


def test_starts_with_the_marker_and_is_complete(case: Any) -> None:
    text = to_markdown(case("launch_bound"))
    assert text.startswith(MARKER + "\n")
    for part in (
        "## Limited by launch overhead",
        "Confidence 0.93 (uncalibrated)",
        "**Try first:**",
        "14.2–46.0 ms",
        "79.0–84.5 ms",
        "```sh\nvllm serve openai/gpt-oss-120b -tp 8\n```",
        "**Ruled out:**",
        "**Could not be told:**",
        "data-quality notes 4",
        "| idle: launching | 70.2 | 83.1 |",
        "### Hypotheses, ranked",
        "supports when above 30.0 %",
        "Counter-evidence",
        "Ruled out or not assessed",
        "### Kernels",
        "### Data quality",
        "SHA-256",
        "● measured",
    ):
        assert part in text, part


def test_every_case_has_well_formed_tables(any_case: c.Diagnosis) -> None:
    for block in re.findall(r"(?:^\|.*\|\n?)+", to_markdown(any_case), re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.strip().splitlines()}
        assert len(widths) == 1, block


def test_names_cannot_become_markup(case: Any) -> None:
    d = case("launch_bound")
    for kernel in d.kernels:
        kernel.name = kernel.reason = EVIL
    d.source[0].path = d.devices[0].name = d.verdict.summary = d.hypotheses[0].statement = EVIL
    d.verdict.ruled_out = d.verdict.by_phase = d.verdict.could_not_tell = [EVIL]
    d.hypotheses[0].evidence[0].metric = d.hypotheses[0].experiment.change = d.data_quality[0].message = EVIL
    text = to_markdown(d)
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text.removeprefix(MARKER))
    inline = [child for token in tokens for child in (token.children or [])]
    kinds = {token.type for token in tokens} | {child.type for child in inline}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "em_open"}
    assert [t.content for t in tokens if t.type == "inline" and t.content.startswith("head")] == []
    prose = " ".join(child.content for child in inline if child.type == "text")
    assert "@team" not in prose  # an invisible joiner keeps trackers from linking these
    assert "http://" not in prose
    assert "\x1b" not in text


def test_a_command_cannot_close_its_fence(case: Any) -> None:
    d = case("launch_bound")
    d.hypotheses[0].experiment.command = "run\n```\n<img src=x>"
    assert "````sh\nrun\n```\n<img src=x>\n````" in to_markdown(d)
