"""What a capture costs the run it watches: `python benchmarks/overhead.py [--steps N] [--repeat N]`.

Decode steps of `sample_traces/tiny_decoder.py` on one thread, plain and under the profiler as `diagnose capture torch` sets
it (shapes), with allocator events, and with Python stacks (which we never record), interleaved. Processor seconds per
step, so that other load on the machine counts little. Prints the median step, the added time per step and per
operator, and the size of the trace. Needs torch.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "sample_traces"))

import tiny_decoder  # noqa: E402
import torch  # noqa: E402

from diagnose.collectors import capture  # noqa: E402

MODELS = {
    "large operators (1024 wide, 4 layers)": "--dtype fp32",
    "tiny operators (64 wide, 6 layers, unfused)": (
        "--dtype fp32 --hidden 64 --ffn 128 --heads 4 --kv-heads 4 --layers 6 --vocab 512 --unfused"
    ),
}
WARMUP = 3


def step_seconds(model: tiny_decoder.TinyDecoder, cache: tiny_decoder.Cache, tokens: torch.Tensor) -> float:
    begin = time.process_time()
    model(tokens, cache)
    return time.process_time() - begin


def plain(model: tiny_decoder.TinyDecoder, steps: int) -> list[float]:
    cache = tiny_decoder.Cache(model.config, 1, 512, model.compute, torch.device("cpu"))
    tokens = torch.zeros(1, 1, dtype=torch.long)
    return [step_seconds(model, cache, tokens) for _ in range(WARMUP + steps)][WARMUP:]


def captured(model: tiny_decoder.TinyDecoder, steps: int, memory: bool) -> tuple[list[float], int]:
    """Step times in the recorded window, and the bytes of the trace."""
    cache = tiny_decoder.Cache(model.config, 1, 512, model.compute, torch.device("cpu"))
    tokens = torch.zeros(1, 1, dtype=torch.long)
    times = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "o.run"
        with capture(folder, warmup=WARMUP, steps=steps, memory=memory) as cap:
            for index in range(WARMUP + steps):
                with cap.step("decode", sequences=1, tokens=1, context=index + 1):
                    times.append(step_seconds(model, cache, tokens))
        return times[WARMUP:], (folder / "trace.json.gz").stat().st_size


def with_stacks(model: tiny_decoder.TinyDecoder, steps: int) -> list[float]:
    cache = tiny_decoder.Cache(model.config, 1, 512, model.compute, torch.device("cpu"))
    tokens = torch.zeros(1, 1, dtype=torch.long)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, record_shapes=True, with_stack=True):
        return [step_seconds(model, cache, tokens) for _ in range(WARMUP + steps)][WARMUP:]


def operators(model: tiny_decoder.TinyDecoder) -> int:
    """Operators of one step."""
    cache = tiny_decoder.Cache(model.config, 1, 512, model.compute, torch.device("cpu"))
    tokens = torch.zeros(1, 1, dtype=torch.long)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(tokens, cache)
    return sum(1 for e in profile.events() if e.name.startswith("aten::"))


def main() -> None:
    parser = argparse.ArgumentParser(description="What a capture costs the run it watches.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="one short round, to see that it runs")
    args = parser.parse_args()
    if args.smoke:
        args.steps, args.repeat = 3, 1
    for title, line in MODELS.items():
        model = tiny_decoder.build(tiny_decoder.parser().parse_args([*line.split(), "--threads", "1"]))
        times: dict[str, list[float]] = {
            "plain": [],
            "captured": [],
            "with memory events": [],
            "with stacks": [],
        }
        size = 0
        with torch.inference_mode():
            count = operators(model)
            for _ in range(args.repeat):
                times["plain"] += plain(model, args.steps)
                found, size = captured(model, args.steps, False)
                times["captured"] += found
                times["with memory events"] += captured(model, args.steps, True)[0]
                times["with stacks"] += with_stacks(model, args.steps)
        base = statistics.median(times["plain"])
        print(f"{title}: {count} operators a step, {size / args.steps / 1024:.1f} KiB of trace a step")
        for kind, found in times.items():
            step = statistics.median(found)
            added = (step - base) * 1e6
            print(
                f"  {kind:20} {step * 1e3:8.3f} ms a step  {step / base - 1:+7.1%}  "
                f"{added:+8.0f} us a step  {added / count:+6.2f} us an operator"
            )


if __name__ == "__main__":
    main()
