"""The page in a real browser: charts drawn, nothing of a name runs, nothing goes out."""

import contextlib
import html
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnose import contract as c
from diagnose.reports.html import to_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: install it to test the page in a browser"),
]
EVIL = "</script><script>alert(1)</script><img src=https://evil.example/x.png onerror=document.title='owned'>"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--virtual-time-budget=20000",
)


def _chromium(profile: Path, url: str, *flags: str, timeout: float = 90) -> str:
    """Standard output of one headless run, with a profile of its own; ended with its children at the
    timeout."""
    assert CHROMIUM
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, url]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return out


@pytest.fixture
def dom(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """The DOM of a page after its scripts ran. `script` is appended as one more script the policy admits."""

    def render(page: str, *flags: str, script: str = "") -> str:
        if script:
            from base64 import b64encode
            from hashlib import sha256

            digest = b64encode(sha256(script.encode()).digest()).decode()
            page = page.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
            page = page.replace("</body>", f"<script>{script}</script></body>")
        file = tmp_path / "page.html"
        file.write_text(page)
        return _chromium(tmp_path / "profile", file.as_uri(), "--dump-dom", *flags)

    return render


def _svgs(page: str) -> list[str]:
    return re.findall(r'<div class="canvas[^>]*data-drawn="yes".*?<svg.*?</svg>', page, re.DOTALL)


def test_every_chart_is_drawn_with_its_values(any_case: c.Diagnosis, dom: Callable[..., str]) -> None:
    page = to_html(any_case)
    after = dom(page)
    assert 'data-charts="drawn"' in after
    assert 'data-drawn="failed"' not in after
    svgs = _svgs(after)
    assert len(svgs) == page.count('class="spec"')
    for svg in svgs:
        assert re.search(r"<(path|rect|line|text)\b", svg)
        assert "NaN" not in svg


def test_values_of_the_verdict_are_in_the_drawn_bars(case: Any, dom: Callable[..., str]) -> None:
    after = dom(to_html(case("launch_bound")))
    bars = next(s for s in _svgs(after) if "chart-time" in s)
    assert ">70.2</text>" in bars
    assert "#D55E00" in bars  # idle_launch
    assert "url(#hatch-unmodelled)" in bars.replace("&quot;", "").replace('"', "")
    assert "ms per step" in bars


def test_no_name_runs_or_loads_anything(case: Any, dom: Callable[..., str], tmp_path: Path) -> None:
    d = case("launch_bound")
    for kernel in d.kernels:
        kernel.name = kernel.name + EVIL
        kernel.reason = kernel.op = kernel.shape = EVIL
    d.source[0].path = d.devices[0].name = d.verdict.summary = d.hypotheses[0].statement = EVIL
    d.timeline[0].cause = d.phases[0].phase = "prefill"
    d.timeline[3].cause = EVIL
    d.model = {"name": EVIL, EVIL: EVIL}
    log = tmp_path / "net.json"
    after = dom(to_html(d), f"--log-net-log={log}", "--net-log-capture-mode=Everything")
    assert 'data-charts="drawn"' in after
    assert 'data-kernels="ready"' in after
    outside = re.sub(r"<script.*?</script>", "", after, flags=re.DOTALL)
    assert "<img" not in outside
    assert "<title>owned" not in after
    assert after.count("<script") == to_html(d).count("<script ") + to_html(d).count("<script>")
    assert "evil.example" not in re.sub(r"alert\(1\).*?owned", "", log.read_text()) or not _requests(log)
    assert _requests(log) == []


def _requests(log: Path) -> list[str]:
    """URLs that the browser asked the network for; its own housekeeping cannot be told to stop entirely."""
    text = log.read_text()
    own = ("google", "gstatic", "gvt1", "chromium.org")
    urls = set(re.findall(r'"url":"((?:https?|wss?|ftp):[^"]*)"', text))
    return sorted(u for u in urls if not any(name in u for name in own))


def test_policy_stops_a_script_that_got_in(case: Any, dom: Callable[..., str]) -> None:
    page = to_html(case("healthy")).replace("</main>", "<script>document.title='owned'</script></main>")
    page = page.replace("</main>", "<img src=x onerror=\"document.title='owned'\"></main>")
    assert "<title>owned" not in dom(page)


def test_kernel_table_sorts_filters_and_shows_more(
    many_kernels: c.Diagnosis, dom: Callable[..., str]
) -> None:
    script = """
    (async () => {
      const log = [];
      const rows = () => [...document.querySelectorAll('#kernel-table tbody tr')];
      const cell = (row, label) => row.querySelector(`[data-label^="${label}"]`).firstChild.textContent;
      const { port1, port2 } = new MessageChannel();
      port1.start();
      while (document.documentElement.dataset.kernels !== 'ready')
        await new Promise((r) => { port1.onmessage = r; port2.postMessage(0); });
      const before = rows().slice(0, 3).map((r) => r.textContent.replace(/\\s+/g, ''));
      const head = (key) => document.querySelector(`#kernel-table th[data-key="${key}"]`);
      head('count').querySelector('button').click();
      log.push(['sorted', head('count').getAttribute('aria-sort'), cell(rows()[0], 'Calls'), rows().length]);
      head('count').querySelector('button').click();
      log.push(['reversed', head('count').getAttribute('aria-sort'), cell(rows()[0], 'Calls')]);
      head('time_ns').querySelector('button').click();
      log.push(['same as before scripts', JSON.stringify(before) === JSON.stringify(
        rows().slice(0, 3).map((r) => r.textContent.replace(/\\s+/g, '')))]);
      const text = document.getElementById('kernel-text');
      text.value = 'FLASH bf16'; text.dispatchEvent(new Event('input'));
      log.push(['found', rows().length, cell(rows()[0], 'Bound')]);
      text.value = ''; text.dispatchEvent(new Event('input'));
      const bound = document.getElementById('kernel-bound');
      bound.value = '=floor'; bound.dispatchEvent(new Event('change'));
      log.push(['bound', new Set(rows().map((r) => cell(r, 'Bound'))).size, document.getElementById('kernel-
      count').textContent]);
      document.getElementById('kernel-more').click();
      log.push(['more', rows().length]);
      document.body.dataset.log = JSON.stringify(log);
    })();
    """
    after = dom(to_html(many_kernels), script=script)
    found = re.search(r'data-log="([^"]*)"', after)
    assert found
    log = {name: rest for name, *rest in json.loads(html.unescape(found.group(1)))}
    assert log["sorted"] == ["descending", "240", 200]
    assert log["reversed"] == ["ascending", "1"]
    assert log["same as before scripts"] == [True]
    assert log["found"] == [1, "inefficient"]
    assert log["bound"][0] == 1
    assert log["bound"][1].startswith("200 of 2,000 rows shown")  # every third of 6,000
    assert log["more"] == [400]


def test_the_download_is_the_contract(many_kernels: c.Diagnosis, dom: Callable[..., str]) -> None:
    from diagnose.reports.json import to_json

    script = """
    (async () => {
      let blob; URL.createObjectURL = (b) => { blob = b; return 'blob:none'; };
      HTMLAnchorElement.prototype.click = function () { document.body.dataset.name = this.download; };
      document.getElementById('download').click();
      // Decompression has a real thread: a task that is always ready keeps virtual time from running ahead.
      const { port1, port2 } = new MessageChannel();
      port1.start();
      while (!blob) await new Promise((r) => { port1.onmessage = r; port2.postMessage(0); });
      const digest = await crypto.subtle.digest('SHA-256', await blob.arrayBuffer());
      document.body.dataset.sha = [...new Uint8Array(digest)].map((b) => b.toString(16).padStart(2,
      '0')).join('');
    })();
    """
    from hashlib import sha256

    after = dom(to_html(many_kernels), script=script)
    assert f'data-sha="{sha256(to_json(many_kernels)).hexdigest()}"' in after
    assert 'data-name="trace.diagnosis.json"' in after


def test_nothing_is_wider_than_a_phone(any_case: c.Diagnosis, tmp_path: Path) -> None:
    # Headless windows have a minimum width, so the page is measured in a frame of 360 pixels.
    frame = tmp_path / "frame.html"
    frame.write_text(
        """<!doctype html><body><iframe id="phone" style="width:360px;height:800px;border:0"></iframe><script>
        (async () => {
          const phone = document.getElementById('phone');
          phone.srcdoc = PAGE;
          let root;
          do { await new Promise((r) => setTimeout(r, 50)); root = phone.contentDocument.documentElement; }
          while (root.dataset.charts !== 'drawn');
          for (const details of root.querySelectorAll('details')) details.open = true;
          const wide = [...root.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right >
          360.5
            && !e.closest('.scroll, nav, svg, pre, .defs, .sr, .skip, #vg-tooltip-element'));
          document.body.dataset.wide = wide.map((e) => e.tagName + '.' + e.className).join(' ') || 'none';
          document.body.dataset.width = root.clientWidth + ' ' + root.scrollWidth;
        })();
        </script></body>""".replace("PAGE", json.dumps(to_html(any_case)).replace("</", "<\\/"))
    )
    after = _chromium(tmp_path / "profile", frame.as_uri(), "--dump-dom")
    assert 'data-wide="none"' in after, re.findall(r'data-wide="[^"]*"', after)
    found = re.search(r'data-width="(\d+) (\d+)"', after)
    assert found
    assert int(found.group(2)) <= int(found.group(1)) <= 360


def test_prints_with_charts_and_open_details(case: Any, tmp_path: Path) -> None:
    file, pdf = tmp_path / "page.html", tmp_path / "page.pdf"
    file.write_text(to_html(case("launch_bound")))
    _chromium(tmp_path / "profile", file.as_uri(), f"--print-to-pdf={pdf}", "--no-pdf-header-footer")
    data = pdf.read_bytes()
    assert data.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 14
