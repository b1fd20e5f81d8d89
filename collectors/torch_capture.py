"""`capture`: a bounded, properly configured PyTorch-profiler window around the steps of an inference loop.

    from diagnose.collectors import capture

    with capture("my.run", warmup=3, steps=20, model=model) as cap:
        for batch in batches:
            with cap.step("decode", sequences=8, tokens=8, context=8 * 1024):
                model(batch)

or, where a framework takes a callback at the end of each iteration, `callback=cap.callback`. Shapes are
recorded and Python stacks are not; the first `warmup` steps run unrecorded; after `steps` recorded ones the
trace is written and the loop goes on undisturbed. The folder appears only when it is complete.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from diagnose.collectors import machine, ranges, trace_file
from diagnose.collectors.lazy import torch_module
from diagnose.collectors.runfolder import (
    RUN_FILE,
    RUN_SCHEMA,
    PartialFolder,
    choose_folder,
    now,
    public_config,
    tool_version,
    write_json,
)
from diagnose.collectors.step_text import Step
from diagnose.errors import UsageError


@dataclass
class Settings:
    """What a capture does. The runner of `diagnose capture torch` puts its own in `active`, which win."""

    active: ClassVar["Settings | None"] = None
    stand_down: ClassVar[Callable[[], None] | None] = (
        None  # ends the runner's own capture when user code makes one
    )

    folder: Path | None
    warmup: int
    steps: int
    shapes: bool = True
    memory: bool = False
    profiler: str = "kineto"
    force: bool = False
    partial: Path | None = None  # a working folder that somebody else will move into place
    stop: bool = False  # end the process once the window is written


class capture:
    """One capture; see the module's text.

    `folder`: where to write, default a free `capture.run`. `warmup`: steps before recording, at least 1
    (the first profiled step pays for the profiler's own start). `steps`: recorded steps. `model`: an object
    whose `.config` goes into `config.json`. `memory`: record allocator events (more overhead). `profiler`:
    "kineto", or "nsys" to mark the window for Nsight Systems instead of recording. Raises UsageError for
    settings that cannot work.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        warmup: int = 5,
        steps: int = 20,
        model: Any = None,
        shapes: bool = True,
        memory: bool = False,
        profiler: str = "kineto",
        force: bool = False,
    ) -> None:
        own = Settings(Path(folder) if folder else None, warmup, steps, shapes, memory, profiler, force)
        if Settings.stand_down is not None:
            Settings.stand_down()
        self.settings = Settings.active or own
        if self.settings.warmup < 1 or self.settings.steps < 1:
            raise UsageError("a capture needs at least 1 warm-up step and 1 recorded step")
        if self.settings.profiler not in ("kineto", "nsys"):
            raise UsageError(f"unknown profiler {self.settings.profiler!r}: kineto or nsys")
        self.model = model
        self.path: Path | None = None
        self.recorded: list[dict[str, Any]] = []
        self.unrecorded: list[dict[str, Any]] = []
        self.seen = 0
        self._partial: PartialFolder | None = None
        self._profile: Any = None
        self._open: AbstractContextManager[None] | None = None
        self._finished = False
        self._begin = 0.0

    @property
    def done(self) -> bool:
        """True once the window is written (or given up): further steps are only passed through."""
        return self._finished

    def __enter__(self) -> "capture":
        import torch

        s = self.settings
        if s.profiler == "kineto":
            if s.partial is None:
                final = choose_folder(s.folder, "capture", s.force)
                self._partial = PartialFolder(final)
            self._profile = torch.profiler.profile(
                activities=_activities(),
                schedule=torch.profiler.schedule(wait=s.warmup - 1, warmup=1, active=s.steps, repeat=1),
                on_trace_ready=self._ready,
                record_shapes=s.shapes,
                profile_memory=s.memory,
                with_stack=False,
            )
            self._profile.start()
        else:
            self._profile = ranges.NsightWindow(s.warmup, s.steps, s.shapes, self._marked)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._finished:
            return
        self._close_open()
        if kind is not None or not self.recorded:
            self._abandon()
            if kind is None:
                print(
                    f"diagnose: nothing captured: the loop ended after {self.seen} steps, and the first "
                    f"{self.settings.warmup} are warm-up; run more steps or lower warmup",
                    file=sys.stderr,
                )
            return
        self._profile.stop()  # a window cut short by the end of the loop is still a window

    @contextmanager
    def step(
        self,
        phase: str = "other",
        *,
        sequences: int | None = None,
        tokens: int | None = None,
        context: int | None = None,
    ) -> Iterator[None]:
        """One engine iteration. `tokens`: new tokens, `context`: KV tokens read, both summed over
        `sequences`.
        """
        if self._finished:
            yield
            return
        step = Step(phase, sequences, tokens, context)
        begin = time.perf_counter()
        with ranges.marked(step.text()):
            yield
        self.end_step(step, time.perf_counter() - begin)

    def callback(self, *_: Any, **__: Any) -> None:
        """Marks the end of one iteration and the start of the next; takes and ignores any arguments."""
        if self._finished:
            return
        if self._open is not None:
            self._close_open()
            self.end_step(Step(), time.perf_counter() - self._begin)
        else:
            self.end_step(None, 0.0)
        if not self._finished:
            self._open = ranges.marked(Step().text())
            self._open.__enter__()
            self._begin = time.perf_counter()

    def end_step(self, step: Step | None, seconds: float) -> None:
        """Advance the window by one step (`step` None: one without an annotation of its own)."""
        self.seen += 1
        if step is not None:
            steps = self.recorded if self.seen > self.settings.warmup else self.unrecorded
            steps.append({
                "phase": step.phase, "sequences": step.sequences, "tokens": step.tokens,
                "context_tokens": step.context, "host_ms": round(seconds * 1e3, 4), "annotation": step.text(),
            })  # fmt: skip
        self._profile.step()
        if self._finished and self.settings.stop:
            raise SystemExit(0)

    def withdraw(self) -> None:
        """Give up without a word: another capture takes over."""
        if not self._finished:
            self._close_open()
            self._abandon()

    def _slowdown(self) -> float | None:
        """Recorded step time over unrecorded step time on the host, of steps with the same work; None unknown.

        The first steps pay for allocations and compilation, so the least unrecorded time of a kind counts, and
        the median of the recorded ones.
        """
        ratios: list[float] = []
        for kind in {(s["phase"], s["sequences"], s["tokens"]) for s in self.recorded}:
            before, during = (
                [s["host_ms"] for s in steps if (s["phase"], s["sequences"], s["tokens"]) == kind]
                for steps in (self.unrecorded[1:], self.recorded)
            )
            if len(before) >= 2 and min(before) > 0:
                ratios += [statistics.median(during) / min(before)] * len(during)
        return round(statistics.median(ratios), 4) if ratios else None

    def _close_open(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None

    def _ready(self, profile: Any) -> None:
        """The profiler's window is complete: write everything and move it into place."""
        if self._finished:
            return
        folder = self.settings.partial or (self._partial.path if self._partial else None)
        if folder is None:
            return
        trace = _trace_name()
        try:
            raw = folder / ".trace.json"
            profile.export_chrome_trace(str(raw))
            trace_file.pack(raw, folder / trace)
            raw.unlink()
            self._describe(folder, [trace])
        except BaseException:
            self._abandon()
            raise
        self._finish()

    def _marked(self) -> None:
        """The window that Nsight Systems records is over: leave word of it."""
        if not self._finished and self.settings.partial is not None:
            self._describe(self.settings.partial, [])
        self._finish()

    def _describe(self, folder: Path, traces: list[str]) -> None:
        config = public_config(getattr(self.model, "config", None))
        if config:
            write_json(folder / "config.json", config)
        write_json(
            folder / RUN_FILE,
            {
                "schema": RUN_SCHEMA, "collector": "torch", "tool_version": tool_version(),
                "captured_at": now(), "traces": traces,
                "versions": machine.versions(), "devices": machine.devices(),
                "model_config": "config.json" if config else None,
                "window": {"warmup": self.settings.warmup, "steps_wanted": self.settings.steps,
                           "steps": len(self.recorded)},
                "profiler": {"name": self.settings.profiler, "record_shapes": self.settings.shapes,
                             "with_stack": False, "profile_memory": self.settings.memory},
                "slowdown": self._slowdown(), "steps": self.recorded,
                "unrecorded_steps": self.unrecorded, "memory": machine.memory_statistics(),
            },
        )  # fmt: skip

    def _finish(self) -> None:
        self._finished = True
        self._close_open()
        if self._partial is not None:
            self.path = self._partial.commit()
            self._partial = None
        elif self.settings.partial is not None:
            self.path = self.settings.partial

    def _abandon(self) -> None:
        """Stop recording and leave nothing behind."""
        self._finished = True
        try:
            self._profile.on_trace_ready = None
            self._profile.stop()
        except Exception as error:  # the profiler's state does not matter any more; the loop's error does
            print(f"diagnose: the profiler did not stop cleanly: {error}", file=sys.stderr)
        if self._partial is not None:
            self._partial.discard()
            self._partial = None


def _activities() -> list[Any]:
    torch = torch_module()

    kinds = torch.profiler.supported_activities()
    wanted = [torch.profiler.ProfilerActivity.CPU]
    for name in ("CUDA", "XPU"):
        kind = getattr(torch.profiler.ProfilerActivity, name, None)
        if kind is not None and kind in kinds and (name != "CUDA" or torch.cuda.is_available()):
            wanted.append(kind)
    return wanted


def _trace_name() -> str:
    """`trace.json.gz`, with the rank in it when there are several."""
    world, rank = os.environ.get("WORLD_SIZE", "1"), os.environ.get("RANK", "0")
    return "trace.json.gz" if world == "1" else f"trace.rank{int(rank)}.json.gz"
