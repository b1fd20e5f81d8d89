"""The rules of serving evidence, as pages: what each looks at, what supports and refutes it, what it needs, what would prove it.

They are judged together in `diagnose.serving.limits`, since a queue has one cause and gains compete; each keeps its own
evidence, thresholds, refuters and experiment, and `rule_of` names the rule of a candidate.
"""

from dataclasses import dataclass

from diagnose.rules.serving_experiments import SETTINGS
from diagnose.serving.limit_types import THRESHOLDS

METRICS = "running, waiting and KV usage over time: --metrics (the engine's /metrics scraped during the run) or --log (periodic lines)"
ALL = ("throughput", "ttft", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class ServingRule:
    """One rule. `causes`: the candidates it answers for; `thresholds`: names in `diagnose.serving.limit_types`; `settings`: its
    experiments, by name in `diagnose.rules.serving_experiments` (none: the experiments of the step's own rules)."""

    id: str
    limit: str
    title: str
    objectives: tuple[str, ...]
    doc: str
    causes: tuple[str, ...]
    needs: tuple[str, ...]
    thresholds: tuple[str, ...]
    refuters: tuple[str, ...]
    settings: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()


SERVING_RULES: tuple[ServingRule, ...] = (
    ServingRule(
        "serving-kv-pool", "kv_capacity", "KV pool", ALL,
        "The KV pool is full for most of the run while requests wait, or holds fewer sequences than are offered.\n\n"
        "Zero preemptions is no argument against it: an engine that does not admit does not preempt. Worth what a larger batch gains.",
        ("kv_pool",), (METRICS, "the pool's size: start-up lines (--log), or --model with the pool's bytes"),
        ("kv_full", "kv_tight", "kv_free", "sustained", "fits_slack", "offered_over_fits", "room", "marginal_gain", "recomputed"),
        ("usage below 0.7 at its peak", "nobody waits", "requests wait for something other than capacity", "a larger batch gains nothing",
         "ITL is asked about: a larger batch lengthens it"),
        ("kv_pool", "pool_and_slots"),
        ("Qwen2-7B on A100, pool of 93,872 against 464,848 tokens: 2,057 and 4,443 tok/s", "GLM-5.2 on B200: 742,528 tokens hold 80 requests, no preemption",
         "Qwen3-8B at concurrency 8: twice the pool, 1.0 x"),
    ),
    ServingRule(
        "serving-slot-cap", "scheduling", "Slot cap", ALL,
        "All slots (max_num_seqs, max_running_requests) are taken while requests wait.",
        ("slot_cap",), ("the slot cap: start-up lines of the server (--log)", METRICS),
        ("sustained", "batch_room", "room", "marginal_gain"),
        ("running stays below the cap", "no queue", "a larger batch gains nothing", "ITL is asked about: a larger batch lengthens it"),
        ("slot_cap", "pool_and_slots"),
        ("vLLM's default of 256 with a full pool of 464,848 tokens: both bind",),
    ),
    ServingRule(
        "serving-token-budget", "scheduling", "Token budget", ("throughput", "ttft", "e2e"),
        "Iterations are filled to their token budget, so prompts are computed a few tokens at a time.\n\n"
        "Worth what a full iteration costs once (weights below the knee, launches); a compute-bound one gains nothing in throughput, and in TTFT what "
        "longer iterations take from decoding.",
        ("token_budget",), ("tokens per iteration: vLLM --enable-logging-iteration-details, SGLang's prefill batch lines, or a trace of prompt steps",),
        ("sustained",), ("iterations stay below the budget", "prefill at the compute roof (throughput)"), ("token_budget",),
    ),
    ServingRule(
        "serving-conservative", "scheduling", "Cautious scheduler", ("throughput", "ttft", "e2e"),
        "Requests wait although pool, slots and budget have room: the scheduler holds blocks back for answers that never get as long.",
        ("conservative",), (METRICS,), ("kv_full", "sustained"),
        ("the pool is full", "another cap binds", "requests wait for a transfer", "prefill batches are full"), ("conservative",),
        ("SGLang's tuning guide: token usage below 0.9 with a queue",),
    ),
    ServingRule(
        "serving-preemption", "kv_capacity", "Preemption", ("itl", "e2e"),
        "Preempted requests stop streaming until they are computed again: the tail of the gaps between tokens, not their mean.",
        ("preemption",), ("preemptions: --metrics (num_preemptions, retractions) or the server's --log",), ("tail", "recomputed"),
        ("no preemption was counted", "the tail is no longer than the middle"), ("preemption",),
        ("0.5B, 1,600 blocks: 32 % of prompt tokens computed again",),
    ),
    ServingRule(
        "serving-prefill-interference", "scheduling", "Prefill in front of decodes", ("itl", "e2e"),
        "Running requests wait while prompts are computed: in steps of their own, or in iterations far longer than a decode step.",
        ("prefill_interference",), ("iterations by kind: vLLM --enable-logging-iteration-details, or a trace with annotated steps",),
        ("interference", "mixed_ratio", "tail"), ("mixed iterations are hardly longer than decode ones", "no tail"), ("prefill_interference",),
        ("9,100 tokens computed whole stall all streams for 0.8 s at an ITL of 10.5 ms",),
    ),
    ServingRule(
        "serving-host-per-step", "scheduling", "Host work between steps", ALL,
        "The device waits for the host: between steps (scheduling, output processing), or between logits and sampler (structured output).\n\n"
        "A gap that grows with the running requests is work per request; one that grows with the length of its sequences is work over their history, "
        "told apart by what runs in it; rare long ones are stalls, and `imbalance` where the other ranks sat in collectives.",
        ("host_per_step", "host_per_request", "host_per_sequence_length", "host_stalls", "structured_output"),
        ("host against device time: a trace of several steps, TensorRT-LLM iteration lines, or SGLang's forward counters",),
        ("host_over_device", "forward_share", "between_steps"), ("the device is busy between steps", "the forward pass fills the time"),
        ("host_per_step",),
        ("vLLM 0.6.0: API server 33 %, scheduling 29 % of the time", "vLLM RFC 6854: 5-13 ms a step", "SGLang 9241: 100-300 ms of garbage collection every 1.5 s"),
    ),
    ServingRule(
        "serving-front-end", "scheduling", "Front end", ("throughput", "ttft", "e2e"),
        "Requests wait in front of the engine: HTTP, tokenising, a router.",
        ("front_end",), ("the client's latencies beside the engine's: --bench and --metrics of the same run",), ("front_end", "in_engine"),
        ("the engine itself queues", "client and engine agree on TTFT", "the engine holds all requests in flight"), ("front_end",),
        ("vLLM 0.6.0: the API server takes a third of the time",),
    ),
    ServingRule(
        "serving-engines", "imbalance", "Uneven engines", ALL,
        "One engine of several queues while others have room.",
        ("engines",), ("running and waiting of every engine: --metrics of all of them",), ("engine_spread",),
        ("engines carry the same load", "nobody waits"), ("engines",),
    ),
    ServingRule(
        "serving-load", "demand", "The load", ("throughput",),
        "Nobody waits, slots and pool have room, and a larger batch would gain: throughput is what was asked for.",
        ("load",), (METRICS, "what a larger batch would gain: a trace, or --model"),
        ("idle_queue", "batch_room", "kv_full", "keeps_up", "in_engine", "sure_gain", "small_batch", "marginal_gain"),
        ("requests wait", "slots or pool are full", "twice the batch gains nothing"), ("load",),
    ),
    ServingRule(
        "serving-hardware", "hbm", "The steps themselves", ALL,
        "What limits the traced steps, each phase by the time it takes for the objective; the limit is the step rules' own.",
        ("trace", "hardware"), ("a profiler trace of the phases that the objective waits for",), (),
        ("throughput is the arrival rate: no faster step raises it", "the front end feeds the engine too slowly"),
    ),
)  # fmt: skip


def rule_of(cause: str) -> str:
    """The id of the rule that a candidate's cause belongs to."""
    for rule in SERVING_RULES:
        if cause in rule.causes or (cause.startswith("trace_") and "trace" in rule.causes):
            return rule.id
    return f"serving-{cause.replace('_', '-')}"


def document_serving(rule: ServingRule) -> str:
    """Markdown of one rule."""
    lines = [
        f"# {rule.id}",
        "",
        f"Limit: `{rule.limit}`. Objectives: {', '.join(rule.objectives)}.",
        "",
        rule.doc,
        "",
        "## Needs",
        "",
    ]
    lines += [f"- {need}" for need in rule.needs]
    if rule.thresholds:
        lines += ["", "## Thresholds", "", "| name | value | origin |", "| --- | --- | --- |"]
        lines += [f"| {name} | {THRESHOLDS[name][0]:g} | {THRESHOLDS[name][1]} |" for name in rule.thresholds]
    lines += ["", "## Refuted by", "", *[f"- {r}" for r in rule.refuters], "", "## Experiments", ""]
    for name in rule.settings:
        setting = SETTINGS[name]
        lines.append(f"- **{name}**: {setting.change}. Cost: {setting.cost}. Risk: {setting.risk}.")
    if not rule.settings:
        lines.append(
            "- Those of the step rule whose limit it is: `compute-roof`, `hbm-bandwidth`, `launch-gaps`, `slow-kernels` and the others."
        )
    lines.append("")
    if rule.cases:
        lines += ["## Real cases", "", *[f"- {c}" for c in rule.cases], ""]
    return "\n".join(lines)
