"""Whether what was written down can decide the question: what a careful reader could know, not what the run was.

A kernel whose operands nobody recorded (no shapes, a graph replay without the model's config, decode attention without
the number of KV tokens) may be at a roof or far from it. Its time is unknown to any reader; a limit is decidable when
it stays ahead wherever that unknown time falls.
"""

from sim.serving import Serve, Served
from sim.steps import Run, union_ns
from sim.truth import Truth
from sim.world import World

MARGIN = 0.08  # around the edge of what is decidable neither answer is wrong
DEVICE_LIMITS = ("compute", "hbm", "kernel_inefficiency")


def unknown_share(run: Run, config: bool, form: str = "kineto") -> float:
    """Share of the run's time in kernels of which neither shapes nor role and model are known."""
    w = run.world
    kv_known = w.profile.engine == "vllm_detailed" or w.options.style == "hf"
    spans = []
    for a in run.ranks[0].activities:
        if a.kind != "kernel" or a.collective is not None:
            continue
        shaped = w.profile.shapes and a.graph is None
        attention = a.role == "attention_decode"
        known = (
            (shaped and not attention)
            or (shaped and attention and kv_known)
            or (config and (kv_known or not attention))
        )
        if w.opaque_graphs and a.graph is not None and form == "nsys":
            known = False
        if not known:
            spans.append((a.start, a.end))
    return union_ns(spans) / max(1, run.ranks[0].activities[-1].end)


def judge_trace(truth: Truth, run: Run, config: bool, ranks_written: int, form: str) -> None:
    """Set `truth.sufficient`, with a note when it is not."""
    w = run.world
    unknown = unknown_share(run, config, form)
    best = max(truth.gains.get(truth.limit, 0.0), truth.paired_gain)
    others = max((g for k, g in truth.gains.items() if k not in truth.limits), default=0.0)
    # Time of unknown nature could be at a roof (half recoverable) or in a bad kernel (most of it).
    own = best - 0.5 * unknown if truth.limit in DEVICE_LIMITS else best
    margin = own - max(others, 0.7 * unknown)
    if unknown > 0.1 and margin < MARGIN:
        truth.sufficient = False
        truth.borderline = margin > -MARGIN
        truth.notes.append(f"{unknown:.0%} of the time is in kernels whose work nobody recorded")
    if ranks_written < w.ranks and {"communication", "imbalance"} & set(truth.limits):
        truth.sufficient = False
        truth.notes.append("transfer and waiting cannot be told apart with one rank")
    if best < 0.05:
        truth.sufficient = False
        truth.notes.append("no single relief helps by 5 %")


def judge_serving(truth: Truth, s: Serve, run: Served, evidence: frozenset[str], world: World | None) -> None:
    """As `judge_trace`, for a deployment and any subset of its evidence."""
    counters = bool(evidence & {"metrics", "log"})
    trace = "trace" in evidence and world is not None
    graph_known = world is not None and (not world.graphs or "config" in evidence)
    if truth.objective == "throughput" and not counters:
        truth.sufficient = False
        truth.notes.append("queue, KV usage and running requests were not recorded")
    if truth.limit in (*DEVICE_LIMITS, "launch_overhead", "communication", "host_sync") and not (
        trace and graph_known
    ):
        truth.sufficient = False
        truth.notes.append("what the device does inside a step was not recorded")
    prompts = world is not None and any(p.prefill for p in world.plans)
    decodes = world is not None and any(p.decode for p in world.plans)
    if truth.limit in DEVICE_LIMITS and (
        (truth.objective == "ttft" and not prompts) or (truth.objective == "itl" and not decodes)
    ):
        truth.sufficient = False
        truth.notes.append("no step of the kind that decides this objective was captured")
    if (
        truth.limit == "scheduling"
        and _first_cause(truth) == "front_end"
        and not (counters and "bench" in evidence)
    ):
        truth.sufficient = False
        truth.notes.append("what the clients saw beside what the engine saw was not recorded")
    if truth.limit == "scheduling" and not _by_counters(truth) and not trace:
        truth.sufficient = False
        truth.notes.append("time between steps was not recorded")
    if max(truth.gains.get(truth.limit, 0.0), truth.paired_gain) < 0.05:
        truth.sufficient = False
        truth.notes.append("no single relief helps by 5 %")


def _by_counters(truth: Truth) -> bool:
    """Whether the cause behind `scheduling` shows in counters (a cap) rather than in time between steps."""
    return _first_cause(truth) in ("slot_cap", "token_budget", "conservative", "front_end")


def _first_cause(truth: Truth) -> str:
    """The cause of scheduling that helps most (notes name causes by gain, largest first)."""
    causes = (
        "slot_cap", "token_budget", "conservative", "host_between_steps", "prefill_interference", "front_end",
    )  # fmt: skip
    return next((n.split(":")[0] for n in truth.notes if n.split(":")[0] in causes), "")


__all__ = ["judge_serving", "judge_trace", "unknown_share"]
