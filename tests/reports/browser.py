"""A headless chromium driven over its debugging pipe with the standard library alone. Loaded by
conftest.py."""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One chromium process; `open` gives a page of its own."""

    def __init__(self, folder: Path, timeout: float = 60) -> None:
        assert CHROMIUM
        self.folder = folder
        self.timeout = timeout
        self.pages = 0
        self.messages = 0
        self.events: list[dict[str, Any]] = []
        self.buffer = b""
        from_us, self.to_browser = os.pipe()
        self.from_browser, from_it = os.pipe()

        def descriptors() -> None:  # the debugging pipe is descriptors 3 and 4 by definition
            low, high = os.dup(from_us), os.dup(from_it)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self.process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=descriptors,  # noqa: PLW1509
            close_fds=False,
            start_new_session=True,
        )
        os.close(from_us)
        os.close(from_it)

    def close(self) -> None:
        """End the process with its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)

    def call(self, method: str, session: str | None = None, **params: Any) -> Any:
        """Send a command and wait for its result; events that come meanwhile are kept."""
        self.messages += 1
        own = self.messages
        message: dict[str, Any] = {"id": own, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.timeout
        while True:
            answer = self._read(deadline, method)
            if answer.get("id") == own:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def _read(self, deadline: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.from_browser], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no answer to {waiting_for} within {self.timeout} s"
            chunk = os.read(self.from_browser, 1 << 20)
            assert chunk, "the browser went away"
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, html: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> "Page":
        """Write the page to a file, open that file and wait until its charts are drawn."""
        self.pages += 1
        file = self.folder / f"page{self.pages}.html"
        file.write_text(html, encoding="utf-8")
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        page.call("Network.enable")
        page.call("Page.enable")
        page.call("Runtime.enable")
        page.call("Performance.enable", timeDomain="threadTicks")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        page.call("Page.navigate", url=file.as_uri())
        ready = (
            f"location.href === {json.dumps(file.as_uri())} && document.documentElement?.dataset.charts === "
            f"'drawn' && "
            "(!document.getElementById('kernel-table') || document.documentElement.dataset.kernels === "
            "'ready')"
        )
        deadline = time.monotonic() + self.timeout
        while not page.run(ready):
            assert time.monotonic() < deadline, "the page never finished drawing"
            time.sleep(0.02)
        return page


class Page:
    """One open page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self.session = session

    def call(self, method: str, **params: Any) -> Any:
        """A command to this page."""
        return self.browser.call(method, self.session, **params)

    def run(self, expression: str) -> Any:
        """Value of a JavaScript expression, awaited when it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def dom(self) -> str:
        """The document as it is now."""
        text: str = self.run("document.documentElement.outerHTML")
        return text

    def requests(self) -> list[str]:
        """URLs this page asked for, its own file included."""
        return [
            e["params"]["request"]["url"]
            for e in self.browser.events
            if e.get("sessionId") == self.session and e["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Exceptions and console messages of the page."""
        return [
            json.dumps(e["params"])
            for e in self.browser.events
            if e.get("sessionId") == self.session
            and e["method"] in {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        ]

    def cpu_seconds(self) -> float:
        """Processor time of the page's main thread so far: parsing, scripts, style, layout."""
        metrics = self.call("Performance.getMetrics")["metrics"]
        return float(next(m["value"] for m in metrics if m["name"] == "TaskDuration"))

    def picture(self) -> bytes:
        """The whole page as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def pdf(self) -> bytes:
        """The page printed to A4."""
        answer = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])
