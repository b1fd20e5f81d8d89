"""Calibrates a device and captures one transformer many ways; see gpu_run.sh. Needs torch and this checkout, nothing else."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "sample_traces"))
sys.path.insert(0, str(ROOT / "benchmarks"))

import nsys_scrub  # noqa: E402
import tiny_decoder  # noqa: E402
import torch  # noqa: E402

from diagnose.collectors import calibrate, capture, machine, nsys_capture  # noqa: E402
from diagnose.collectors.runfolder import write_json  # noqa: E402
from diagnose.errors import InputError, UsageError  # noqa: E402

MAX_BYTES = 16_000_000
LARGE = "--hidden 4096 --ffn 14336 --layers 32 --heads 32 --kv-heads 8 --vocab 128256"
MEDIUM = "--hidden 2048 --ffn 8192 --layers 16 --heads 32 --kv-heads 8 --vocab 32000"
TINY = "--hidden 64 --ffn 128 --layers 2 --heads 4 --kv-heads 2 --vocab 256"


@dataclass(frozen=True)
class Case:
    """One configuration to capture. `mode`: eager or graph (a replayed CUDA graph)."""

    name: str
    phase: str
    batch: int
    context: int
    dtype: str = "bf16"
    mode: str = "eager"


def cases(gpu: bool, quantised: str) -> Iterator[Case]:
    """The most telling first, since time may run out."""
    short, long = (512, 8192) if gpu else (16, 64)
    for batch in (1, 32):
        for mode in ("eager", "graph"):
            yield Case(f"decode_b{batch}_{mode}", "decode", batch, short, mode=mode)
    yield Case("prefill_b1", "prefill", 1, 4096 if gpu else 32)
    yield Case("decode_b32_long_graph", "decode", 32, long, mode="graph")
    yield Case(f"decode_b32_{quantised}_graph", "decode", 32, short, quantised, "graph")
    yield Case(f"decode_b1_{quantised}_graph", "decode", 1, short, quantised, "graph")
    for batch in (8, 64, 128, 256):
        yield Case(f"decode_b{batch}_graph", "decode", batch, short, mode="graph")
    yield Case("decode_b32_long_eager", "decode", 32, long)
    yield Case(f"prefill_b1_{quantised}", "prefill", 1, 4096 if gpu else 32, quantised)
    yield Case("decode_b1_long_graph", "decode", 1, long, mode="graph")


class Bench:
    """Builds the model once per dtype and runs cases on it."""

    def __init__(self, device: str, size: str, out: Path) -> None:
        self.device, self.size, self.out = device, size, out
        self.gpu = device.startswith("cuda")
        self.dtype = ""
        self.model: Any = None

    def build(self, dtype: str) -> Any:
        if dtype != self.dtype:
            self.release()
            line = [*self.size.split(), "--dtype", dtype, "--device", self.device, "--prompt", "8192"]
            self.model, self.dtype = tiny_decoder.build(tiny_decoder.parser().parse_args(line)), dtype
        return self.model

    def release(self) -> None:
        """Give the device's memory back, for another model or another process."""
        self.model, self.dtype = None, ""
        if self.gpu:
            torch.cuda.empty_cache()

    def step(self, case: Case) -> Callable[[], Any]:
        """What one step does; a decode step is repeated at one context, so that every one is the same."""
        model, where = self.build(case.dtype), torch.device(self.device)
        vocab = model.config.vocab_size
        if case.phase == "prefill":
            prompt = torch.randint(0, vocab, (case.batch, case.context), device=where)
            cache = tiny_decoder.Cache(model.config, case.batch, case.context, model.compute, where)

            def prefill() -> Any:
                cache.length = 0
                return model(prompt, cache)

            return prefill
        tokens = torch.randint(0, vocab, (case.batch, 1), device=where)
        cache = tiny_decoder.Cache(model.config, case.batch, case.context, model.compute, where)

        def decode() -> Any:
            cache.length = case.context - 1
            return model(tokens, cache)

        return self.graphed(decode) if case.mode == "graph" and self.gpu else decode

    def graphed(self, function: Callable[[], Any]) -> Callable[[], Any]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        return graph.replay

    def run(self, case: Case) -> dict[str, Any]:
        """Unprofiled step times, then a capture."""
        step = self.step(case)
        times = self.times(step)
        steps = 6 if case.mode == "graph" or case.phase == "decode" else 3
        new = case.batch * (case.context if case.phase == "prefill" else 1)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "o.run"
            with capture(folder, warmup=3, steps=steps, model=self.model) as cap:
                while not cap.done:
                    with cap.step(
                        case.phase, sequences=case.batch, tokens=new, context=case.batch * case.context
                    ):
                        step()
                        self.wait()
            trace = self.out / f"{case.name}.json.gz"
            shutil.move(folder / "trace.json.gz", trace)
            shutil.copyfile(folder / "config.json", self.out / f"config_{case.dtype}.json")
            told = json.loads((folder / "run.json").read_text())
        return {
            **asdict(case), "trace": trace.name if keep_small(trace) else None, "step_ms": times,
            "slowdown": told["slowdown"], "memory": told["memory"],
        }  # fmt: skip

    def times(self, step: Callable[[], Any]) -> dict[str, float]:
        for _ in range(3):
            step()
        self.wait()
        found = []
        end = time.perf_counter() + 1.0
        while len(found) < 20 and (len(found) < 3 or time.perf_counter() < end):
            begin = time.perf_counter()
            step()
            self.wait()
            found.append((time.perf_counter() - begin) * 1e3)
        return {"median": statistics.median(found), "min": min(found), "max": max(found), "count": len(found)}

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()


def keep_small(path: Path) -> bool:
    """False, and the file gone, when it is larger than may be handed on."""
    if path.stat().st_size <= MAX_BYTES:
        return True
    path.unlink()
    return False


def quantised_dtype(gpu: bool) -> str:
    """fp8 where the GPU multiplies it, else int8."""
    if gpu and not torch.version.hip and torch.cuda.get_device_capability() >= (8, 9):
        return "fp8"
    return "int8"


def model_size(gpu: bool) -> str:
    if not gpu:
        return TINY
    return LARGE if torch.cuda.mem_get_info()[0] > 60e9 else MEDIUM


def nsys_run(out: Path, size: str, device: str) -> dict[str, Any]:
    """A capture under Nsight Systems of the same model, as a scrubbed SQLite export."""
    path = nsys_capture.find_nsys(None)
    if path is None:
        return {"nsys": "not installed"}
    line = (str(ROOT / "sample_traces" / "tiny_decoder.py"), *size.split(), "--batch", "32", "--prompt", "512",
            "--steps", "16", "--device", device)  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        request = nsys_capture.NsysCapture(
            line, Path(scratch) / "n.run", path, torch=True, warmup=4, steps=8, timeout_s=120.0
        )
        folder = nsys_capture.capture_nsys(request)
        export = Path(scratch) / "export.sqlite"
        subprocess.run(
            [path, "export", "--type=sqlite", f"--output={export}", str(folder / nsys_capture.REPORT)],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        target = out / "nsys_decode_b32_eager.sqlite"
        nsys_scrub.scrub(export, target)
    return {
        "nsys": nsys_capture.read_nsys(path).version,
        "trace": target.name if keep_small(target) else None,
    }


def bundle(out: Path) -> list[str]:
    """Traces and configs in as few .tar files under the limit as they fit in."""
    names: list[str] = []
    files = sorted(p for p in out.iterdir() if p.suffix in (".gz", ".sqlite") or p.name.startswith("config_"))
    group: list[Path] = []
    for path in [*files, None]:
        full = path is None or sum(p.stat().st_size + 2048 for p in [*group, path]) > MAX_BYTES - 20480
        if full and group:
            name = f"traces{len(names) + 1}.tar"
            with tarfile.open(out / name, "w") as tar:
                for member in group:
                    info = tar.gettarinfo(member, member.name)
                    info.uname = info.gname = ""
                    info.uid = info.gid = 0
                    with member.open("rb") as content:
                        tar.addfile(info, content)
                    member.unlink()
            names.append(name)
            group = []
        if path is not None:
            group.append(path)
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description="Calibrate a device and capture one transformer many ways.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--bundle", action="store_true")
    args = parser.parse_args()
    begin = time.monotonic()
    gpu = torch.cuda.is_available()
    device = "cuda:0" if gpu else "cpu"
    summary: dict[str, Any] = {"schema": "diagnose-gpu-run/1", "versions": machine.versions(),
                               "devices": machine.devices(), "cases": [], "errors": []}  # fmt: skip

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begin:5.0f} s] {text}", flush=True)

    def attempt(name: str, work: Callable[[], Any]) -> Any:
        say(name)
        try:
            return work()
        except (
            RuntimeError,
            OSError,
            ValueError,
            InputError,
            UsageError,
            subprocess.SubprocessError,
        ) as error:
            message = f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:300]}"
            summary["errors"].append(message.replace(str(Path.home()), "~"))
            say(f"  failed: {message}")
            return None

    attempt("calibrate", lambda: calibrate.calibrate(
        calibrate.Calibration(device, args.out / "device.toml", quick=not gpu, force=True)
    ))  # fmt: skip
    size = model_size(gpu)
    summary["model"] = size
    bench = Bench(device, size, args.out)
    nsys_at = 5  # after the most telling cases
    with torch.inference_mode():
        for number, case in enumerate(cases(gpu, quantised_dtype(gpu))):
            if time.monotonic() - begin > args.seconds:
                say(f"out of time before {case.name}")
                summary["errors"].append(f"{case.name}: out of time")
                continue
            found = attempt(case.name, lambda case=case: bench.run(case))  # type: ignore[misc]
            if found:
                summary["cases"].append(found)
            if number + 1 == nsys_at:
                bench.release()
                summary["nsys"] = attempt("nsys", lambda: nsys_run(args.out, size, device))
    if args.bundle:
        summary["bundles"] = bundle(args.out)
    summary["seconds"] = round(time.monotonic() - begin, 1)
    write_json(args.out / "summary.json", summary)
    say(f"{len(summary['cases'])} captures, {len(summary['errors'])} failures; wrote {args.out}")
    return 0 if summary["cases"] else 1


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
