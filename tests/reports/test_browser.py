"""The page in a real browser: charts drawn, nothing of a name runs, nothing goes out."""

import re
from hashlib import sha256
from typing import Any

import pytest

from diagnose import contract as c
from diagnose.reports.html import to_html
from diagnose.reports.json import to_json

pytestmark = pytest.mark.browser
EVIL = (
    "</script><script>document.title='owned'</script><img src=https://evil.example/x.png "
    "onerror=document.title='owned'>"
)
PHONE = 360


def test_every_chart_is_drawn(any_case: c.Diagnosis, browser: Any) -> None:
    html = to_html(any_case)
    page = browser.open(html)
    drawn = page.run("[...document.querySelectorAll('.canvas')].map((e) => [e.dataset.drawn, e.innerHTML])")
    assert len(drawn) == html.count('class="spec"')
    for state, inside in drawn:
        assert state == "yes", inside
        assert re.search(r"<svg[^>]*>.*<(path|rect|line|text)\b", inside, re.DOTALL)
        assert "NaN" not in inside
    assert page.complaints() == []
    assert [url[:7] for url in page.requests()] == ["file://"]


def test_nothing_moves_while_charts_are_drawn(case: Any, browser: Any) -> None:
    page = browser.open(to_html(case("prefill_inefficient")))
    heights = page.run(
        "[...document.querySelectorAll('.canvas')].map((e) => [e.style.height, "
        "e.getBoundingClientRect().height,"
        " e.querySelector('svg').getBoundingClientRect().height])"
    )
    for reserved, box, svg in heights:
        assert reserved == f"{box:g}px"
        assert svg <= box + 1


def test_values_of_the_verdict_are_in_the_drawn_bars(case: Any, browser: Any) -> None:
    bars = browser.open(to_html(case("launch_bound"))).run("document.getElementById('chart-time').innerHTML")
    assert ">70.2</text>" in bars
    assert "#D55E00" in bars  # idle_launch
    assert "url(#hatch-unmodelled)" in bars
    assert "ms per step" in bars


def test_no_name_runs_or_loads_anything(case: Any, browser: Any) -> None:
    d = case("launch_bound")
    for kernel in d.kernels:
        kernel.name = kernel.name + EVIL
        kernel.reason = kernel.op = kernel.shape = EVIL
    d.source[0].path = d.devices[0].name = d.verdict.summary = d.hypotheses[0].statement = EVIL
    d.hypotheses[0].evidence[0].query = d.hypotheses[0].experiment.command = EVIL
    d.timeline[0].cause = EVIL
    d.model = {"name": EVIL, EVIL: EVIL}
    html = to_html(d)
    page = browser.open(html)
    # Redraw every row from the data, and show a chart's tooltip, the one place that builds HTML from strings.
    page.run("document.querySelector('#kernel-table th[data-key=name] button').click()")
    page.run(
        """document.querySelectorAll('#chart-roofline svg path, #chart-timeline svg path').forEach((mark) =>
        mark.dispatchEvent(new MouseEvent('mousemove', {bubbles: true, clientX: 5, clientY: 5})))"""
    )
    assert "owned" not in page.run("document.title.replace(/<.*>/s, '')")
    assert page.run("document.images.length") == 0
    assert page.run("document.scripts.length") == len(re.findall("<script[ >]", html))
    assert [url[:7] for url in page.requests()] == ["file://"]
    assert EVIL[:9] in page.run("document.querySelector('#kernel-table tbody').textContent")


def test_policy_stops_a_script_that_got_in(case: Any, browser: Any) -> None:
    html = to_html(case("healthy")).replace(
        "</main>",
        "<script>document.title='owned'</script><p onclick=\"document.title='owned'\" id=p></p></main>",
    )
    page = browser.open(html.replace("</main>", "<img src=https://evil.example/x.png></main>"))
    page.run("document.getElementById('p').click()")
    assert page.run("document.title") != "owned"
    assert page.run("document.images[0].naturalWidth") == 0


def test_kernel_table_sorts_filters_and_shows_more(many_kernels: c.Diagnosis, browser: Any) -> None:
    page = browser.open(to_html(many_kernels))
    rows = "[...document.querySelectorAll('#kernel-table tbody tr')]"
    texts = f"{rows}.slice(0, 25).map((r) => r.textContent.replace(/\\s+/g, ' ').trim())"
    before = page.run(texts)

    def cell(label: str) -> str:
        text: str = page.run(f"{rows}[0].querySelector('[data-label^=\"{label}\"]').firstChild.textContent")
        return text

    def head(key: str) -> Any:
        header = f"document.querySelector('#kernel-table th[data-key={key}]')"
        page.run(f"{header}.querySelector('button').click()")
        return page.run(f"{header}.getAttribute('aria-sort')")

    assert head("count") == "descending"
    assert cell("Calls") == "240"
    assert page.run(f"{rows}.length") == 200
    assert head("count") == "ascending"
    assert cell("Calls") == "1"
    assert head("time_ns") == "descending"
    assert page.run(texts) == before  # the script writes rows exactly as the page had them

    def enter(id_: str, value: str, event: str) -> None:
        page.run(
            f"(() => {{ const e = document.getElementById('{id_}'); e.value = '{value}';"
            f" e.dispatchEvent(new Event('{event}')); }})()"
        )

    enter("kernel-text", "FLASH bf16", "input")
    assert page.run(f"{rows}.length") == 1
    assert cell("Bound") == "inefficient"
    enter("kernel-text", "", "input")
    enter("kernel-bound", "=floor", "change")
    note = page.run("document.getElementById('kernel-count').textContent")
    assert note.startswith("200 of 2,000 rows shown")  # every third of 6,000
    assert page.run(f"new Set({rows}.map((r) => r.querySelector('.why').firstChild.textContent)).size") == 1
    page.run("document.getElementById('kernel-more').click()")
    assert page.run(f"{rows}.length") == 400


def test_everything_is_reached_by_keyboard(case: Any, browser: Any) -> None:
    page = browser.open(to_html(case("launch_bound")))
    reached = set()
    for _ in range(90):
        for kind in ("rawKeyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.add(
            page.run(
                "(document.activeElement.id || document.activeElement.className || "
                "document.activeElement.textContent).trim()"
            )
        )
    for wanted in ("skip", "Roofline", "copy", "kernel-text", "kernel-bound", "Time", "download"):
        assert any(wanted in item for item in reached), (wanted, reached)


def test_a_permalink_opens_what_hides_its_target(case: Any, browser: Any) -> None:
    page = browser.open(to_html(case("launch_bound")))
    assert page.run("document.getElementById('hypothesis-kv-capacity').closest('details').open") is False
    page.run("location.hash = '#hypothesis-kv-capacity'")
    assert page.run(
        "new Promise((r) => setTimeout(() => "
        "r(document.getElementById('hypothesis-kv-capacity').closest('details').open), 50))"
    )


def test_the_download_is_the_contract(many_kernels: c.Diagnosis, browser: Any) -> None:
    page = browser.open(to_html(many_kernels))
    name, digest = page.run(
        """(async () => {
          let blob, name;
          URL.createObjectURL = (b) => { blob = b; return 'blob:none'; };
          HTMLAnchorElement.prototype.click = function () { name = this.download; };
          document.getElementById('download').click();
          while (!name) await new Promise((r) => setTimeout(r, 5));
          const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', await blob.arrayBuffer()));
          return [name, [...hash].map((b) => b.toString(16).padStart(2, '0')).join('')];
        })()"""
    )
    assert name == "trace.diagnosis.json"
    assert digest == sha256(to_json(many_kernels)).hexdigest()


def test_nothing_is_wider_than_a_phone(any_case: c.Diagnosis, browser: Any) -> None:
    page = browser.open(to_html(any_case), width=PHONE, height=800)
    page.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    wide = page.run(
        """[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth
        + 1
        && !e.closest('.scroll, nav, svg, pre, .defs, .sr, .skip, #vg-tooltip-element'))
        .map((e) => e.tagName + '.' + e.className)"""
    )
    assert wide == []
    assert page.run("innerWidth") == PHONE
    assert page.run("document.documentElement.scrollWidth") == PHONE


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_aa_contrast(case: Any, browser: Any, dark: bool) -> None:
    page = browser.open(to_html(case("serving_only")), dark=dark)
    poor = page.run(
        """(() => {
          const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
          const channel = (v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
          const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
          const behind = (e) => { for (; e; e = e.parentElement) { const c =
          parse(getComputedStyle(e).backgroundColor);
            if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
          const poor = new Set();
          const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
          while (walker.nextNode()) {
            const e = walker.currentNode.parentElement;
            const skip = e.closest('script, style, noscript, .canvas, .anchor');
            if (skip || !walker.currentNode.textContent.trim()) continue;
            const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
            if ((a + 0.05) / (b + 0.05) < 4.5) poor.add(e.tagName + '.' + e.className);
          }
          return [...poor];
        })()"""
    )
    assert poor == []


def test_opens_in_under_a_second(case: Any, browser: Any) -> None:
    # Processor seconds to the last chart, because a shared machine's clock would measure its neighbours.
    page = browser.open(to_html(case("prefill_inefficient")))
    assert 0.01 < page.cpu_seconds() < 1


def test_prints_with_charts_and_open_details(case: Any, browser: Any) -> None:
    page = browser.open(to_html(case("launch_bound")), dark=True)
    data = page.pdf()
    assert data.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 14
    page.call("Emulation.setEmulatedMedia", media="print")
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run("document.querySelectorAll('details:not([open]):not(.long)').length") == 0
    assert (
        page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )  # never dark on paper
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run("document.querySelectorAll('details[open]').length") == 0
