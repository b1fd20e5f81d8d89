"""Makes every sample trace of this folder: `python sample_traces/make.py [NAME ...]`.

`cpu_*` are real captures of `tiny_decoder.py` by the PyTorch profiler on the machine that runs this script;
they change with it, and the notes beside them (`*.md`) describe the ones committed. `generated_*` come from
`generate.py` and are the same bytes on every machine. Needs torch.
"""

import argparse
import gzip
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import generate  # noqa: E402
import tiny_decoder  # noqa: E402
import torch  # noqa: E402

WARMUP = 4


@dataclass(frozen=True)
class Capture:
    """One real capture: the command line of `tiny_decoder.py` and the part of its run to keep."""

    arguments: str
    phase: str
    steps: int


CAPTURES = {
    "cpu_prefill_fp32": Capture("--dtype fp32 --prompt 512 --steps 0", "prefill", 3),
    "cpu_prefill_bf16": Capture("--dtype bf16 --prompt 512 --steps 0", "prefill", 3),
    "cpu_decode_b1_fp32": Capture("--dtype fp32 --batch 1", "decode", 6),
    "cpu_decode_b1_bf16": Capture("--dtype bf16 --batch 1", "decode", 6),
    "cpu_decode_b8_bf16": Capture("--dtype bf16 --batch 8", "decode", 6),
    "cpu_decode_b1_int8": Capture("--dtype int8 --batch 1", "decode", 6),
    "cpu_decode_host_gap": Capture("--dtype bf16 --batch 1 --host-ms 20", "decode", 6),
    "cpu_decode_tiny_ops": Capture(
        "--dtype fp32 --hidden 64 --ffn 128 --heads 4 --kv-heads 4 --layers 6 --vocab 512 --unfused",
        "decode",
        6,
    ),
}


def annotation(batch: int, tokens: int, context: int) -> str:
    """The engine's detailed step annotation: requests, new tokens, KV tokens and their products."""
    sums = f"sq{batch * tokens}sk{batch * context}sqsq{batch * tokens**2}sqsk{batch * tokens * context}"
    none = "sq0sk0sqsq0sqsk0"
    if tokens > 1:
        return f"execute_{batch * tokens}_context_{batch}({sums})_generation_0({none})"
    return f"execute_{batch * tokens}_context_0({none})_generation_{batch}({sums})"


def steps(model: tiny_decoder.TinyDecoder, args: argparse.Namespace, phase: str, count: int) -> Any:
    """Yield before each of `count` steps of `phase`; the caller starts the profiler when it likes."""
    prompt = torch.randint(0, args.vocab, (args.batch, args.prompt))

    def cache() -> tiny_decoder.Cache:
        return tiny_decoder.Cache(
            model.config, args.batch, args.prompt + count + 1, model.compute, torch.device("cpu")
        )

    held = cache()
    tokens = model(prompt, held) if phase == "decode" else prompt
    for _ in range(count):
        if phase == "prefill":
            held, tokens = cache(), prompt
        yield
        text = annotation(args.batch, tokens.shape[1], held.length + tokens.shape[1])
        with torch.profiler.record_function(text):
            tokens = model(tokens, held)
            if args.sync:
                tokens.tolist()
        if args.host_ms:
            tiny_decoder.busy_wait(args.host_ms)


@torch.inference_mode()
def record(capture: Capture, path: Path) -> None:
    """Run one capture and write its trace."""
    args = tiny_decoder.parser().parse_args([*capture.arguments.split(), "--threads", "1"])
    model = tiny_decoder.build(args)
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, with_stack=False
    )
    with tempfile.TemporaryDirectory() as folder:
        for index, _ in enumerate(steps(model, args, capture.phase, WARMUP + capture.steps)):
            if index == WARMUP:
                profiler.start()
        profiler.stop()
        raw = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(raw))
        document = json.loads(raw.read_text())
    document["traceName"] = path.name  # the profiler writes the full path of its file here, and
    document.pop("host_name", None)  # the name of the machine here
    document["traceEvents"] = [e for e in document["traceEvents"] if e.get("ph") != "M"]  # process labels
    path.write_bytes(gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 9, mtime=0))


def main() -> None:
    """Make all samples, or the ones named."""
    names = sys.argv[1:]
    for name, capture in CAPTURES.items():
        if not names or name in names:
            path = HERE / f"{name}.json.gz"
            record(capture, path)
            print(path.name, path.stat().st_size)
    if not names or any(n.startswith("generated") for n in names):
        for path in generate.all_generated(HERE):
            print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
