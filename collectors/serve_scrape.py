"""`/metrics` once a second into one file.

Prometheus text: each scrape is a line `# scraped_at SECONDS` (epoch) and the exposition as it came.
Iteration statistics in JSON (TensorRT-LLM): one object a line with `scraped_at` added.
"""

import json
import threading
import time
from pathlib import Path
from typing import Any

from diagnose.collectors.serve_http import Server, ServerError

PROMETHEUS, STATISTICS = "metrics.prom", "iteration_stats.jsonl"


class Scraper(threading.Thread):
    """Scrapes until `stop`. `count` good scrapes, `failures` failed ones, `last_error` the latest reason."""

    def __init__(self, server: Server, folder: Path, interval_s: float = 1.0, timeout_s: float = 5.0) -> None:
        super().__init__(name="diagnose-scrape", daemon=True)
        self.server, self.folder, self.interval_s, self.timeout_s = server, folder, interval_s, timeout_s
        self.count = 0
        self.failures = 0
        self.last_error = ""
        self._stopped = threading.Event()

    def run(self) -> None:
        """One scrape an interval, by the clock, so that a slow answer does not shift the next."""
        due = time.monotonic()
        while True:
            self.scrape()
            due = max(due + self.interval_s, time.monotonic())
            if self._stopped.wait(due - time.monotonic()):
                return

    def scrape(self) -> None:
        """Take one scrape now and append it."""
        try:
            body = self.server.get("/metrics", self.timeout_s)
        except ServerError as error:
            self.failures += 1
            self.last_error = str(error)
            return
        now = time.time()
        if body.lstrip().startswith(("[", "{")):
            self._append(STATISTICS, _iterations(body, now))
        else:
            self._append(PROMETHEUS, f"# scraped_at {now:.3f}\n{body.rstrip()}\n")
        self.count += 1

    def _append(self, name: str, text: str) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(text)

    def stop(self) -> None:
        """End after the scrape in progress."""
        self._stopped.set()
        self.join(self.timeout_s + self.interval_s + 1.0)


def _iterations(body: str, now: float) -> str:
    try:
        parsed: Any = json.loads(body)
    except ValueError:
        return ""
    rows = parsed if isinstance(parsed, list) else [parsed]
    return "".join(
        json.dumps({"scraped_at": round(now, 3), **row}) + "\n"
        for row in rows
        if isinstance(row, dict) and row
    )
