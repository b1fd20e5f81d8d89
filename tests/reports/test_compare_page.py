"""A comparison's page, Markdown and terminal summary: complete, inert, self-contained, readable."""

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from diagnose.reports.compare_html import to_html
from diagnose.reports.compare_json import to_json
from diagnose.reports.compare_markdown import to_markdown
from diagnose.reports.compare_terminal import summary
from diagnose.reports.marker import MARKER, embedded_json
from diagnose.settle import comparison as k

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}\x00\x1b[31m\u202e|`*_[x](http://e.vil)@me"
SOURCE = {"path": "run.json.gz", "format": "kineto", "sha256": "ab" * 32, "profiler": "kineto"}


def side(**extra: Any) -> k.SideInfo:
    from diagnose.contract import Source

    values = {
        "runs": 1,
        "device": "NVIDIA H100 80GB HBM3",
        "devices": 1,
        "model": "org/Model-8B",
        "engine": "vllm 0.11",
        "precision": "bf16",
        "steps": {"decode": 40},
    }
    return k.SideInfo(source=[[Source(**SOURCE)]], **{**values, **extra})


def metric(name: str, before: float, after: float, verdict: str, **extra: Any) -> k.MetricChange:
    change = after / before - 1
    values: dict[str, Any] = {
        "phase": "decode", "unit": "ms", "low": change - 0.05, "high": change + 0.05, "change_abs": after - before, "low_abs": None, "high_abs": None,
        "better": "lower", "noise": "steps", "samples": [40, 40], "headline": True,
    }  # fmt: skip
    return k.MetricChange(
        metric=name, before=before, after=after, change=change, verdict=verdict, **{**values, **extra}
    )


def kernel(name: str, before: float, after: float, verdict: str) -> k.KernelChange:
    change = after / before - 1
    return k.KernelChange(
        phase="decode", role="gemm", op="aten::mm", shape="16x4096 . 4096x6144", name_before=name, name_after=name + "_v2", renamed=True,
        matched_by="shape", calls_before=32, calls_after=32, call_ns_before=before, call_ns_after=after, per="call", change=change,
        low=change - 0.05, high=change + 0.05, impact_ns=32 * (after - before), verdict=verdict, minor=False, bound_before="hbm", bound_after="inefficient",
    )  # fmt: skip


def full(text: str = "plain") -> k.Comparison:
    """A comparison that has something in every part; `text` is put wherever a string comes from the inputs."""
    from diagnose.contract import BUCKETS

    zero = dict.fromkeys(BUCKETS, 0)
    delta = k.Delta(
        per="step", unit="decode step", phase="decode", units_before=40, units_after=40, before_ns=8_000_000, after_ns=6_500_000, total_ns=-1_500_000,
        buckets={**zero, "hbm": -500_000, "idle_launch": -1_000_000}, buckets_before={**zero, "hbm": 6_000_000, "idle_launch": 2_000_000},
        buckets_after={**zero, "hbm": 5_500_000, "idle_launch": 1_000_000},
        roles=[
            k.RoleChange(role="idle_launch", kind="idle", before_ns=2_000_000, after_ns=1_000_000, change_ns=-1_000_000),
            k.RoleChange(role=text, kind="kernels", before_ns=6_000_000, after_ns=5_500_000, change_ns=-500_000, calls_before=32, calls_after=32),
        ],
    )  # fmt: skip
    quant = {
        "before": "bf16", "after": text, "kv_dtype": [None, None], "weights": {"bytes_before": 16e9, "bytes_after": 8.5e9, "ratio": 0.53},
        "phases": [{
            "phase": "decode", "products_share": 0.62, "streaming_share": 1.0, "products_speedup": 1.5,
            "bytes_nominal": {"before": 2.0, "after": 1.0, "ratio": 0.5}, "bytes_encoded": {"before": 7e9, "after": 3.6e9, "ratio": 0.51},
            "predicted": {"low": 1.17, "mid": 1.28, "high": 1.39}, "realised": {"speedup": 1.23, "low": 1.16, "high": 1.31},
            "reading": "the products that changed were 62 % of the time", "crossover_tokens": 512.0,
        }],
        "kv": {"text": "the KV budget went from 300,000 to 356,000 tokens"}, "quality": "quality was not measured",
        "added_kernels": [{"phase": "decode", "name": text, "work": "quantise", "ns_per_unit": 24_000.0}], "message": "bf16 to fp8",
    }  # fmt: skip
    batch = {
        "phase": "decode", "batch": [16.0, 64.0], "reuse": {"bytes_per_token_before": 5e8, "bytes_per_token_after": 1.3e8}, "itl_change": 0.27,
        "ttft_change": None, "throughput_change": 2.16, "slots": ["128", "256"], "waiting_max": [40.0, 3.0], "kv_headroom": [0.1, 0.4],
        "knee": {"tokens": 276.0, "dtype": "bf16", "batch_over_knee": [0.06, 0.23], "provenance": "derived"}, "message": "the batch went from 16 to 64",
        "what_if": {
            "batch": 64.0, "step_ms_low": 5.6, "step_ms_high": 6.1, "step_ms_measured": 5.3, "inside": False, "before": {"batch": 16.0, "step_ms": 4.1},
            "curve": [
                {"batch": b, "step_ms": y, "step_ms_low": y * 0.97, "step_ms_high": y * 1.03, "tok_s": b * 1e3 / y, "tok_s_low": 1.0, "tok_s_high": 2.0}
                for b, y in ((8.0, 3.9), (16.0, 4.1), (64.0, 5.8))
            ],
        },
    }  # fmt: skip
    task = {
        "task": text,
        "metric": "acc",
        "before": 0.7,
        "after": 0.6,
        "change": -0.1,
        "stderr": 0.014,
        "higher_is_better": True,
        "verdict": "regressed",
        "reason": None,
    }
    return k.Comparison(
        schema=k.SCHEMA, tool_version="0.1.0", before=side(model=text), after=side(),
        comparability=[
            k.Difference(what="precision", before="bf16", after=text),
            k.Difference(what="Python stacks", before="recorded", after="not recorded", withholds=["idle"], note="recording stacks slows the host"),
        ],
        verdict=k.OverallVerdict(
            overall="mixed", summary=f"Mixed: decode step time 8.00 → 6.50 ms (−19 %) got better, but TTFT got worse; {text}.",
            why=[f"because {text}"], cause="launch_overhead",
        ),
        metrics=[
            metric("step time", 8.0, 6.5, "improved"), metric("TTFT", 100.0, 120.0, "regressed", phase=None),
            metric("throughput", 500.0, 600.0, "improved", phase=None, unit="tok/s", better="higher", noise="assumed"),
            metric("idle", 2.0, 1.0, "withheld", headline=False, reason=text), metric("kernels", 6.0, 5.9, "no_change", headline=False),
            metric("communication", 0.1, 0.9, "inconclusive", headline=False, low=None, high=None, noise="single"),
        ],
        delta=delta, unmatched=[k.Unmatched(side="after", kind="kernel", name=text, detail=text, ns_per_unit=24_000.0, phase="decode")],
        kernels=[kernel(text, 80_000.0, 100_000.0, "regressed"), kernel("other", 50_000.0, 40_000.0, "improved")],
        limits=[k.LimitChange(phase="decode", objective="step_time", before="launch_overhead", after="hbm")],
        hypotheses=[k.BetOutcome(hypothesis="launch-gaps@decode", limit="launch_overhead", verdict="confirmed", reason=text)],
        quantization=quant, batching=batch, quality={"tasks": [task], "message": text, "only_on_one_side": []},
        points=[{"load": text, "metric": "TTFT", "unit": "ms", "before": 1.0, "after": 2.0, "change": 1.0, "verdict": "regressed"}], notes=[text],
    )  # fmt: skip


class _Page(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in {"script", "style"}:
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self.text += data


def test_ten_seconds_hold_the_verdict_the_metrics_and_what_differs() -> None:
    text = " ".join(_Page(to_html(full())).text.split())
    block = text[text.index("Before and after") : text.index("Metrics, with what is noise")]
    for part in (
        "Mixed: decode step time",
        "◆ mixed",
        "▲ improved",
        "▼ regressed",
        "8.00 → 6.50 ms",
        "−24 % to −14 %",
        "Python stacks",
        "No verdict on idle",
        "launch overhead",
        "NVIDIA H100",
    ):
        assert part in block, part


def test_headings_in_order_and_every_link_lands() -> None:
    page = _Page(to_html(full()))
    ids = [a["id"] for _, a in page.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    links = [
        (a.get("href") or "")[1:]
        for tag, a in page.elements
        if tag == "a" and (a.get("href") or "").startswith("#")
    ]
    assert set(links) <= set(ids)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_charts_state_a_finding_and_carry_their_table() -> None:
    figures = re.findall(r"<figure.*?</figure>", to_html(full()), re.DOTALL)
    assert len(figures) == 4  # metrics, both sides, what moved, the what-if curve
    for figure in figures:
        assert re.search(r'<h3 class="finding"[^>]*>[^<]*\d', figure)
        assert re.search(r'role="img" aria-label="[^"]{20,}', figure)
        assert "<table" in figure


def test_parts_without_evidence_are_left_out() -> None:
    c = full()
    c.quantization = c.batching = c.quality = c.delta = None
    c.kernels, c.unmatched, c.limits, c.hypotheses, c.points, c.metrics = [], [], [], [], [], []
    page = _Page(to_html(c))
    ids = {a.get("id") for _, a in page.elements}
    assert {"verdict", "metrics", "moved", "provenance"} <= ids
    assert not {"quantization", "batching", "quality", "kernels"} & ids


def test_strings_of_the_inputs_stay_text() -> None:
    html = to_html(full(EVIL))
    assert "<script>alert(1)" not in html
    assert html.count("<img") == to_html(full()).count("<img")  # the vendored bundle's own
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "{{7*7}}" in html  # not evaluated: it is text
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    policy = next(a for tag, a in _Page(html).elements if a.get("http-equiv") == "Content-Security-Policy")[
        "content"
    ]
    assert policy is not None
    assert "default-src 'none'" in policy
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    for tag, attrs in _Page(html).elements:
        assert tag not in {"img", "iframe", "link", "object"}
        assert "src" not in attrs
        assert (attrs.get("href") or "#").startswith("#")
    assert len(html.encode()) < 2_000_000


def test_embedded_json_is_what_json_writes() -> None:
    c = full(EVIL)
    assert json.loads(embedded_json(to_html(c).encode())) == json.loads(to_json(c))


def test_markdown_is_inert_and_complete() -> None:
    text = to_markdown(full(EVIL))
    assert text.startswith(MARKER)
    assert "](http" not in re.sub(r"`[^`]*`", "", text).replace("\\](", "")
    assert "<script" not in re.sub(r"`[^`]*`", "", text).replace("\\<", "")
    assert "\x1b" not in text
    for part in (
        "mixed",
        "8.00",
        "6.50",
        "### Kernels",
        "### Quantisation",
        "### Batching",
        "### Quality",
        "### The two sides",
    ):
        assert part in text
    # Every table row has as many cells as its header.
    for block in re.findall(r"(?:^\|.*\n)+", to_markdown(full()), re.MULTILINE):
        widths = {len(re.split(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1


@pytest.mark.parametrize("width", [60, 100])
def test_terminal_is_short_narrow_and_inert(width: int) -> None:
    text = summary(full(EVIL), width=width, color=False)
    lines = text.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= width
    assert "\x1b" not in text
    assert lines[0] == "◆ mixed"
    assert "\x1b[31m" in summary(full(), width=100, color=True)


@pytest.mark.browser
def test_browser_draws_all_charts_and_asks_for_nothing(browser: Any) -> None:
    page = browser.open(to_html(full(EVIL)))
    assert page.complaints() == []
    assert all(url.startswith("file:") for url in page.requests())
    assert page.run("document.querySelectorAll('.canvas[data-drawn=yes] svg').length") == 4
    assert page.run("document.querySelectorAll('.canvas .failed').length") == 0


@pytest.mark.browser
def test_browser_on_a_phone_does_not_scroll_sideways(browser: Any) -> None:
    page = browser.open(to_html(full()), width=360)
    assert page.run("document.documentElement.scrollWidth") <= 360
