"""`diagnose capture serve`: a running server's metrics, settings and profiler traces, in one run folder.

The profiler is on only for a few seconds in the middle of the metrics window, so that the window can say
whether the traced steps are typical of the deploy. Everything that fails is said and recorded; what was
obtained is kept as long as it is whole.
"""

import json
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.collectors import serve_engines, serve_traces
from diagnose.collectors.runfolder import (
    RUN_FILE,
    RUN_SCHEMA,
    PartialFolder,
    choose_folder,
    now,
    tool_version,
    write_json,
)
from diagnose.collectors.serve_engines import Engine
from diagnose.collectors.serve_http import Server, ServerError
from diagnose.collectors.serve_scrape import PROMETHEUS, STATISTICS, Scraper
from diagnose.errors import InputError, UsageError

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class ServeCapture:
    """What `diagnose capture serve` was asked for. `trace_dir`: where the server writes its traces, seen
    from here.
    """

    url: str = DEFAULT_URL
    engine: str | None = None
    seconds: float = 30.0
    profile_seconds: float = 5.0
    profile: bool = True
    trace_dir: Path | None = None
    log: Path | None = None
    bench: Path | None = None
    output: Path | None = None
    force: bool = False
    interval_s: float = 1.0
    stop_timeout_s: float = 300.0
    trace_timeout_s: float = 120.0
    settle_s: float = 2.0  # a trace that has not grown for so long is complete


def check(request: ServeCapture) -> Server:
    """The server to ask. UsageError for anything that cannot work, before a request is sent."""
    if request.seconds <= 0 or request.profile_seconds <= 0:
        raise UsageError("--seconds and --profile-seconds are above 0")
    for option, path in (("--log", request.log), ("--bench", request.bench)):
        if path is not None and not path.is_file():
            raise UsageError(f"{option} {path}: no such file")
    if request.trace_dir is not None and not request.trace_dir.is_dir():
        raise UsageError(f"--trace-dir {request.trace_dir}: no such folder")
    if request.engine is not None and request.engine not in serve_engines.ENGINES:
        raise UsageError(f"--engine {request.engine}: one of {', '.join(serve_engines.ENGINES)}")
    return Server(request.url)


def dry_run(request: ServeCapture) -> str:
    """The requests that a capture would send, in order, without sending any."""
    server = check(request)
    engine = serve_engines.ENGINES.get(request.engine or "vllm")
    lines = [
        f"# {request.engine or 'engine told by its metrics; here as for vLLM'}",
        f"GET  {server.base}/metrics",
    ]
    lines += [
        f"GET  {server.base}{p}" for p in ("/version", "/v1/models", *(engine.info_paths if engine else ()))
    ]
    lines.append(f"GET  {server.base}/metrics  every {request.interval_s:g} s for {request.seconds:g} s")
    if request.profile and engine and engine.start_body:
        body = engine.start_body(request.trace_dir)
        lines.append(f"POST {server.base}/start_profile  {json.dumps(body) if body else ''}".rstrip())
        lines.append(
            f"POST {server.base}/stop_profile  after {min(request.profile_seconds, request.seconds):g} s"
        )
    return "\n".join(lines)


def capture_serve(request: ServeCapture) -> Path:
    """Run the capture; the run folder. Raises UsageError or InputError, and then leaves nothing behind."""
    server = check(request)
    engine, first = serve_engines.detect(server, request.engine)
    partial = PartialFolder(choose_folder(request.output, engine.name, request.force))
    try:
        session = _Session(request, server, engine, partial.path)
        session.run(has_metrics=first is not None)
        session.write()
        return partial.commit()
    finally:
        partial.discard()


class _Session:
    """One capture in progress; `notes` collects what did not work, in words for the user."""

    def __init__(self, request: ServeCapture, server: Server, engine: Engine, folder: Path) -> None:
        self.request, self.server, self.engine, self.folder = request, server, engine, folder
        self.notes: list[str] = []
        self.traces: list[str] = []
        self.profiled_s: float | None = None
        self.info: dict[str, Any] = {}
        self.fetch: tuple[Path, float] | None = None
        self.scraper = Scraper(server, folder, request.interval_s)

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(f"diagnose: {text}", file=sys.stderr)

    def run(self, *, has_metrics: bool) -> None:
        request = self.request
        self.info = serve_engines.describe(self.server, self.engine)
        if not has_metrics:
            self.note("the server has no /metrics" + (" (SGLang: start it with --enable-metrics)"
                      if self.engine.name == "sglang" else ""))  # fmt: skip
        started = time.monotonic()
        if has_metrics:
            self.scraper.start()
        try:
            profile_s = min(request.profile_seconds, request.seconds)
            time.sleep(max(0.0, (request.seconds - profile_s) / 2))
            if request.profile:
                self._profile(profile_s)
            time.sleep(max(0.0, started + request.seconds - time.monotonic()))
        except KeyboardInterrupt:
            raise InputError("interrupted: nothing captured") from None
        finally:
            if has_metrics:
                self.scraper.stop()
        if self.fetch is not None:
            self._fetch(*self.fetch)
        if has_metrics and self.scraper.failures:
            self.note(f"{self.scraper.failures} scrapes failed, the last: {self.scraper.last_error}")
        if not self.traces and self.scraper.count == 0:
            raise InputError(f"nothing captured from {self.server.base}: no metrics and no trace; see above")

    def _profile(self, seconds: float) -> None:
        """Profiler on, `seconds`, off."""
        if self.engine.start_body is None:
            self.note(self.engine.hint)
            return
        folder = self._trace_folder()
        since = time.time()
        try:
            self.server.post("/start_profile", self.engine.start_body(folder), timeout_s=60.0)
        except ServerError as error:
            self.note(f"the server did not start its profiler ({error}); {self.engine.hint}")
            return
        begin = time.monotonic()
        try:
            time.sleep(seconds)
        finally:
            stopped = self._stop()
        self.profiled_s = round(time.monotonic() - begin, 3) if stopped else None
        if not stopped:
            return
        if folder is None:
            self.note("the profiler ran, but where its traces lie is not known here; give --trace-dir")
            return
        self.fetch = (folder, since)

    def _fetch(self, folder: Path, since: float) -> None:
        """Take what the profiler wrote, once it is all there."""
        timeout = self.request.trace_timeout_s
        found, problem = serve_traces.wait_for_traces(folder, since, timeout, self.request.settle_s)
        if problem:
            self.note(f"{problem}; check --trace-dir")
            return
        self.traces, notes = serve_traces.take(found, self.folder)
        for text in notes:
            self.note(text)

    def _stop(self) -> bool:
        timeout = self.request.stop_timeout_s
        try:
            self.server.post("/stop_profile", None, timeout_s=timeout)
        except ServerError as error:
            self.note(
                f"the profiler did not stop ({error}); it may still be running and slow the server down: "
                f"POST {self.server.base}/stop_profile again, or restart the server. No trace was taken"
            )
            return False
        return True

    def _trace_folder(self) -> Path | None:
        """Where traces will appear. SGLang is told; vLLM has it from its start."""
        if self.request.trace_dir is not None:
            return self.request.trace_dir.resolve()
        if self.engine.name == "sglang" and self.server.local:
            inbox = self.folder / "inbox"
            inbox.mkdir(exist_ok=True)
            # The server may run as another user, who must be able to write here.
            self.folder.chmod(0o755)
            inbox.chmod(0o777)
            return inbox.resolve()
        return None

    def write(self) -> None:
        """Put the files that go with the traces into the folder."""
        shutil.rmtree(self.folder / "inbox", ignore_errors=True)
        if self.request.log is not None:
            shutil.copyfile(self.request.log, self.folder / "server.log")
        if self.request.bench is not None:
            _copy_bench(self.request.bench, self.folder)
        write_json(self.folder / "server.json", {"schema": "diagnose-server/1", **self.info})
        metrics = [name for name in (PROMETHEUS, STATISTICS) if (self.folder / name).is_file()]
        write_json(self.folder / RUN_FILE, {
            "schema": RUN_SCHEMA, "collector": "serve", "tool_version": tool_version(), "captured_at": now(),
            "traces": self.traces, "metrics": metrics, "server": "server.json",
            "window": {"seconds": self.request.seconds, "profiled_seconds": self.profiled_s,
                       "scrapes": self.scraper.count, "failed_scrapes": self.scraper.failures},
            "notes": self.notes,
        })  # fmt: skip


def _copy_bench(source: Path, folder: Path) -> None:
    """Keep a benchmark's numbers, not the texts that were generated or sent."""
    text = source.read_text(encoding="utf-8", errors="replace")
    try:
        value = json.loads(text)
    except ValueError:
        suffix = source.suffix if re.fullmatch(r"\.\w{1,6}", source.suffix) else ".txt"
        shutil.copyfile(source, folder / f"bench{suffix}")
        return
    if isinstance(value, dict):
        for key in ("generated_texts", "prompts", "input_texts", "errors"):
            value.pop(key, None)
    write_json(folder / "bench.json", value)
