"""The page as text: complete, inert, self-contained, small. (test_browser.py opens it.)"""

import base64
import hashlib
import itertools
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from diagnose import contract as c
from diagnose.reports.html import SECTIONS, to_html
from diagnose.reports.json import to_json
from diagnose.reports.marker import embedded_json

EVIL = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}\x00\x1b[31m\u202e"
    "; DROP TABLE kernel;--"
)
HTML_LIMIT = 2_000_000


class _Page(HTMLParser):
    """Elements with their attributes, and the text outside scripts and style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in {"script", "style"}:
            self._inside = tag
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif self._inside is None:
            self.text += data


def test_verdict_block_holds_what_ten_seconds_need(case: Any) -> None:
    page = _Page(to_html(case("launch_bound")))
    text = " ".join(page.text.split())
    block = text[text.index("Verdict for") : text.index("Where the time went #")]
    for part in (
        "launch overhead",
        "confidence 0.93",
        "(uncalibrated)",
        "70.2 of 84.5 ms",
        "Try first",
        "14.2–46.0 ms",
        "79.0–84.5 ms",
        "38.0–70.2 ms",
        "Refuted if",
        "Ruled out",
        "Memory bandwidth: 0.4 %",
        "Could not be told",
        "--metrics FILE",
        "NVIDIA B200",
        "openai/gpt-oss-120b",
        "pytorch 2.9.0, vllm",
        "mxfp4",
        "batch 1, 888 context tokens",
        "44.0 %",
    ):
        assert part in block, part


def test_facts_that_are_not_known_say_so(case: Any) -> None:
    text = " ".join(_Page(to_html(case("two_devices_copy"))).text.split())
    for fact in ("model unknown", "precision unknown", "batch and context unknown"):
        assert fact in text
    assert "kernel time with a cost 0 %" in text


def test_every_section_is_there_with_a_permalink_and_headings_are_in_order(any_case: c.Diagnosis) -> None:
    page = _Page(to_html(any_case))
    ids = [attrs["id"] for _, attrs in page.elements if attrs.get("id")]
    assert len(ids) == len(set(ids))
    for id_, _ in SECTIONS:
        assert id_ in ids
    for tag, attrs in page.elements:
        if tag == "a" and (attrs.get("href") or "").startswith("#"):
            assert (attrs["href"] or "")[1:] in ids
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))


def test_sections_without_evidence_say_what_to_attach(case: Any) -> None:
    text = " ".join(_Page(to_html(case("launch_bound"))).text.split())
    for option in ("--bench FILE", "--metrics FILE", "--log FILE", "--model"):
        assert option in text
    assert "traces of all ranks" in text
    no_trace = " ".join(_Page(to_html(case("serving_only"))).text.split())
    assert "No trace was given" in no_trace


def test_charts_have_a_finding_an_alternative_and_their_data(any_case: c.Diagnosis) -> None:
    html = to_html(any_case)
    figures = re.findall(r"<figure.*?</figure>", html, re.DOTALL)
    assert figures
    for figure in figures:
        assert re.search(r'<h3 class="finding"[^>]*>[^<]*\d', figure)  # the title states a number, not a name
        assert re.search(r'role="img" aria-label="[^"]{40,}', figure)
        assert "<details" in figure
        assert "<table" in figure


def test_the_contract_is_embedded_once_as_it_is(any_case: c.Diagnosis) -> None:
    page = to_html(any_case).encode()
    assert page.count(b'id="diagnosis"') == 1
    assert json.loads(embedded_json(page)) == json.loads(to_json(any_case))


def test_thousands_of_rows_stay_under_the_limit_and_lose_nothing(many_kernels: c.Diagnosis) -> None:
    page = to_html(many_kernels).encode()
    assert len(to_json(many_kernels)) > HTML_LIMIT  # it would not fit as it is
    assert len(page) < HTML_LIMIT
    assert len(json.loads(embedded_json(page))["kernels"]) == len(many_kernels.kernels)
    assert page.count(b"<tr>") < 400  # the rest is drawn by the script when asked for


def test_nothing_is_loaded_and_only_hashed_scripts_run(any_case: c.Diagnosis) -> None:
    page = _Page(to_html(any_case))
    for tag, attrs in page.elements:
        assert (
            tag not in {"link", "iframe", "object", "embed", "base", "form"}
            or attrs.get("id") == "kernel-filter"
        )
        assert "src" not in attrs
        assert not [name for name in attrs if name.startswith("on")]
        if tag == "a":
            assert (attrs.get("href") or "").startswith("#")
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    script_rule = policy.split(";")[1]
    assert "unsafe-inline" not in script_rule
    code = [
        text
        for attrs, text in page.scripts
        if attrs.get("type") is None and text and not text.startswith(":root")
    ]
    assert len(code) == 2
    for text in code:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in script_rule


def _poison(value: Any) -> Any:
    """Every string of a result replaced by the hostile one, vocabulary and keys excepted."""
    if isinstance(value, dict):
        keep = {
            "bucket",
            "phase",
            "limit",
            "bound",
            "status",
            "severity",
            "objective",
            "direction",
            "provenance",
            "resource",
            "schema",
            "regime",
            "runner_up",
            "next",
            "dtype",
        }
        return {k: v if k in keep else _poison(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_poison(v) for v in value]
    return value + EVIL if isinstance(value, str) else value


def poisoned(d: c.Diagnosis) -> c.Diagnosis:
    import msgspec

    return msgspec.convert(_poison(msgspec.to_builtins(d)), c.Diagnosis)


def test_no_string_of_a_result_becomes_markup(any_case: c.Diagnosis) -> None:
    clean, dirty = to_html(any_case), to_html(poisoned(any_case))
    before, after = _Page(clean), _Page(dirty)
    # <details> appear for names that are now long; nothing else may appear, least of all scripts and images.
    count = lambda page, tag: sum(1 for t, _ in page.elements if t == tag)  # noqa: E731
    for tag in ("script", "img", "iframe", "svg", "a", "form", "style", "input"):
        assert count(before, tag) == count(after, tag), tag
    assert not [a for _, attrs in after.elements for a in attrs if a.startswith("on")]
    assert "49" not in re.findall(r"\{\{7\*7\}\}|(?<=&)49", dirty)  # no second round of templating
    assert "\x1b" not in dirty
    assert "\x00" not in dirty
    assert "\u202e" not in dirty
    for attrs, text in after.scripts:
        if attrs.get("type") == "application/json":
            assert "<" not in text
            if attrs.get("data-encoding") is None:
                json.loads(text)


def test_long_names_are_shortened_with_the_full_text_at_hand(case: Any) -> None:
    d = case("launch_bound")
    name = "void cutlass::Kernel<" + "cute::tuple<cute::C<128>, " * 80 + ">"
    assert len(name) > 2000
    d.kernels[0].name = name
    html = to_html(d)
    escaped = name.replace("<", "&lt;").replace(">", "&gt;")
    assert f'<code class="full">{escaped}</code>' in html
    assert re.search(r"<summary><code>void cutlass::Kernel&lt;[^<]{0,120}…[^<]*</code></summary>", html)


def test_nothing_private_is_added(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "s3cr3t-in-the-environment")
    monkeypatch.setattr(sys, "argv", ["diagnose", "s3cr3t-on-the-command-line"])
    html = to_html(case("launch_bound"))
    assert "s3cr3t" not in html
    assert str(Path(__file__).parents[2]) not in html


def test_a_run_near_its_roof_says_so(case: Any) -> None:
    text = " ".join(_Page(to_html(case("healthy"))).text.split())
    assert "Nothing is wrong" in text
    assert "No experiment is proposed: no hypothesis promises a gain." in text


def test_page_is_the_same_every_time(any_case: c.Diagnosis) -> None:
    assert to_html(any_case) == to_html(any_case)
