"""Experiments for limits that serving evidence shows: one setting changed, the objective's predicted interval.

The interval is the present value times the gain that the arithmetic of this run gives; where it gives none, the metric
must move by more than noise in the stated direction, and the interval says only that.
"""

from dataclasses import dataclass

from diagnose.contract import Experiment, Interval, RunnerUpPrediction

NOISE = 0.05
# Mean rates and latencies of the same load from run to run: a gain is known no better than the run that shows it.
RUN = 0.03
"""Two runs of the same load differ by a few percent in throughput and mean latency; more than this is a change."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A change by cause: words, command by engine, cost, risk."""

    change: str
    commands: dict[str, str]
    cost: str
    risk: str


SETTINGS: dict[str, Setting] = {
    "kv_pool": Setting(
        "give the KV cache more tokens: more memory for the pool, or FP8 KV where quality allows",
        {"vllm": "--gpu-memory-utilization 0.95   (or --kv-cache-dtype fp8)", "sglang": "--mem-fraction-static +0.03   (or --kv-cache-dtype fp8_e5m2)",
         "trtllm": "kv_cache_config: {free_gpu_memory_fraction: 0.95}"},
        "a restart", "less headroom for activations: watch for out-of-memory; more sequences share a step, so ITL rises",
    ),
    "pool_and_slots": Setting(
        "enlarge the KV pool and raise the cap on concurrent sequences together",
        {"vllm": "--gpu-memory-utilization 0.95 --max-num-seqs 2x   (or --kv-cache-dtype fp8 with it)",
         "sglang": "--mem-fraction-static +0.03 --max-running-requests 2x   (or --kv-cache-dtype fp8_e5m2 with it)",
         "trtllm": "kv_cache_config: {free_gpu_memory_fraction: 0.95} and max_batch_size: 2x"},
        "a restart", "ITL rises with the batch; less headroom for activations",
    ),
    "preemption": Setting(
        "stop preemption: lower the number of concurrent sequences, or enlarge the pool",
        {"vllm": "--max-num-seqs (below the running peak)", "sglang": "--schedule-conservativeness 1.3"},
        "a restart", "requests wait in the queue instead of being recomputed",
    ),
    "slot_cap": Setting(
        "raise the cap on concurrent sequences",
        {"vllm": "--max-num-seqs 2x", "sglang": "--max-running-requests 2x", "trtllm": "max_batch_size: 2x"},
        "a restart", "ITL rises with the batch; the KV pool may bind next",
    ),
    "token_budget": Setting(
        "change the tokens computed per iteration",
        {"vllm": "--max-num-batched-tokens 2x", "sglang": "--chunked-prefill-size 2x", "trtllm": "max_num_tokens: 2x"},
        "a restart", "longer iterations raise the tail of ITL",
    ),
    "conservative": Setting(
        "let the scheduler admit requests earlier",
        {"sglang": "--schedule-conservativeness 0.3", "vllm": "--scheduler-reserve-full-isl=false"},
        "a restart", "more preemption when the guess is wrong",
    ),
    "prefill_interference": Setting(
        "compute prompts in chunks of 512 tokens beside the decodes",
        {"vllm": "--enable-chunked-prefill --max-num-batched-tokens 512", "sglang": "--chunked-prefill-size 512 --enable-mixed-chunk",
         "trtllm": "enable_chunked_prefill: true, max_num_tokens: 512"},
        "a restart", "TTFT rises with smaller chunks",
    ),
    "host_per_step": Setting(
        "overlap the host's work with the device's step",
        {"vllm": "--async-scheduling", "sglang": "# start the server without --disable-overlap-schedule"},
        "a restart", "some structured-output features do not overlap",
    ),
    "front_end": Setting(
        "run more front-end processes",
        {"vllm": "--api-server-count 2x", "sglang": "--tokenizer-worker-num 2x"},
        "a restart", "more host memory and cores",
    ),
    "load": Setting(
        "offer twice the load (concurrency or arrival rate) with the same requests",
        {"*": "vllm bench serve --max-concurrency 2x"}, "minutes", "none for the service under test",
    ),
    "engines": Setting(
        "balance the load over engines or ranks: swap the placement of the late one",
        {}, "a restart", "none",
    ),
}  # fmt: skip


def experiment_for(
    cause: str,
    engine: str,
    metric: str,
    unit: str,
    baseline: float | None,
    gain: tuple[float | None, float | None] | None,
    runner_up: str | None,
) -> Experiment | None:
    """The experiment of a cause; None where no setting answers it. Better is more for throughput, less for latencies."""
    setting = SETTINGS.get(cause)
    if setting is None:
        return None
    low, high = _predicted(baseline, gain, unit)
    flat = (baseline * (1 - NOISE), baseline * (1 + NOISE)) if baseline is not None else (None, None)
    better = "rises" if unit == "tok/s" else "falls"
    refuted = (
        f"{metric} stays within {100 * NOISE:.0f} % of {baseline:.4g} {unit}"
        if baseline is not None
        else f"{metric} neither {better} nor moves by more than {100 * NOISE:.0f} %"
    )
    if baseline is not None and low is not None and high is not None and low < flat[1] and high > flat[0]:  # type: ignore[operator]
        refuted = f"{metric} leaves {low:.4g}-{high:.4g} {unit}; the gain is near the noise of one run: repeat both sides"
    return Experiment(
        change=setting.change,
        command=setting.commands.get(engine, setting.commands.get("*")),
        metric=metric,
        prediction=Interval(low=low, high=high, unit=unit),
        under_runner_up=RunnerUpPrediction(
            limit=runner_up or "nothing this setting touches", low=flat[0], high=flat[1]
        ),
        refuted_if=refuted,
        cost=setting.cost,
        risk=setting.risk,
        baseline=baseline,
    )


def _predicted(
    baseline: float | None, gain: tuple[float | None, float | None] | None, unit: str
) -> tuple[float | None, float | None]:
    if baseline is None:
        return None, None
    low, high = gain if gain is not None else (None, None)
    if unit == "tok/s":
        factors = low, high
        # Never inside the noise of no change, or the experiment could not refute anything; unless the whole gain is: then
        # the interval says so, and `refuted_if` asks for repeats.
        if high is None or high > 1 + NOISE:
            factors = max((low or 0.0) * (1 - RUN), 1 + NOISE), None if high is None else high * (1 + RUN)
    else:
        factors = (1 / high if high else None), (1 / low if low else None)
        if factors[0] is None or factors[0] < 1 - NOISE:
            factors = (
                None if factors[0] is None else factors[0] * (1 - RUN),
                min((factors[1] or 1.0) * (1 + RUN), 1 - NOISE),
            )
    return tuple(None if f is None else baseline * f for f in factors)  # type: ignore[return-value]
