"""Sizes of the candidates' reliefs on the traced window, and the limits inside the steps as candidates of their own."""

from dataclasses import replace

from diagnose.serving.limit_gain import Share, cap_relief, closed, factor, hardware_relief, keeps_up, room
from diagnose.serving.limit_queue import row
from diagnose.serving.limit_rank import TIE, WORTH
from diagnose.serving.limit_types import Candidate
from diagnose.serving.limit_window import PROMPT_PHASES, Window
from diagnose.serving.signals import AT, Fact, Signals

CAPS = ("kv_pool", "slot_cap")
STEP_QUALITY = 0.95
NEED_PROMPTS = "a profiler trace that holds prefill steps (those traced only decode)"
HIDDEN = (0.85, 1.2)
"""Share of the host's gap that goes when it runs beside the step: not all where work needs the sampled tokens; more than the
gap where part of the host's work was counted with the launches after it."""
UNCOUNTED = 0.08
"""A full pool may preempt without saying so in the log; published recomputation costs a tenth of online throughput."""
FEW = 3
"""Fewer traced steps than this say nothing of the others."""
OTHER_STEPS = 1.25
"""Tokens that come a quarter slower than the traced steps are made in other steps as well."""
SHOWN = 4
"""Limits inside the steps that are worth a line each."""


def with_prompt_steps(s: Signals, window: Window | None) -> Signals:
    """The signals, with how many of the traced prompt steps reach the token budget where no source counts iterations."""
    steps = window.prompt_steps if window is not None else ()
    if s.at_budget_share is not None or s.token_budget is None or len(steps) < FEW:
        return s
    full = sum(1 for n in steps if n >= AT * s.token_budget.value) / len(steps)
    return replace(
        s,
        at_budget_share=Fact(full, "share", "measured", "traced prompt steps whose tokens reach the budget"),
    )


def untraced_share(s: Signals, window: Window) -> float:
    """Share of the gaps between tokens that no traced kind of step explains: where only decode steps were traced and tokens
    come much slower than they do, prompts (or what else lies between) take the rest."""
    decode = next((p for p in window.phases if p.phase == "decode" and p.steps), None)
    if decode is None or s.tpot_ms is None or any(p.phase in PROMPT_PHASES for p in window.phases):
        return 0.0
    ratio = s.tpot_ms.value / (decode.ns / decode.steps / 1e6)
    return 1 - 1 / ratio if ratio > OTHER_STEPS else 0.0


def set_sizes(found: list[Candidate], s: Signals, window: Window | None, objective: str) -> None:
    """Set `relief` and `gain` of the caps, the budget, the cautious scheduler and the host, in place."""
    where = room(s)
    if window is None:
        return
    steps = _steps(found, s, window, objective)
    for c in found:
        if c.cause in CAPS and where is not None:
            stop = where.slots if c.cause == "kv_pool" else where.pool
            c.relief = cap_relief(s, window, objective, where.ratio(stop))
            if c.cause == "kv_pool" and c.relief:
                c.relief = _no_recompute(c.relief, s, window, objective)
        elif c.cause == "conservative" and where is not None:
            # how much is held back is not known: from twice the sequences to all that slots and pool hold
            least = cap_relief(s, window, objective, where.ratio(where.slots, where.pool))
            most = cap_relief(s, window, objective, where.ratio_to(where.queue))
            c.relief = (least[0], most[1]) if least is not None and most is not None else None
        elif c.cause == "front_end" and where is not None:
            c.relief = _front_relief(s, window, objective, where.ratio_to(where.queue))
        elif c.cause == "token_budget":
            c.relief = _budget_relief(s, window, objective)
        elif c.cause == "structured_output":
            idle = window.sampler_gap(objective)
            c.relief = (0.7 * idle, idle)
        elif c.limit in ("scheduling", "imbalance") and c.cause.startswith("host"):
            # a late rank's own gaps are counted as its lateness
            c.relief = max(steps.get("scheduling", (0.0, 0.0)), steps.get(c.limit, (0.0, 0.0)))

    for c in found:
        if c.relief is not None:
            c.gain = factor(c.relief)
        if c.limit == "scheduling" and c.cause.startswith("host") and window.of(objective):
            # asynchronous scheduling hides the host's work behind the device's step, as far as that is long enough
            hidden = window.overlapped(objective, "scheduling")
            c.gain = factor((HIDDEN[0] * hidden, HIDDEN[1] * hidden))
    _pair(found, s, window, objective)


def _steps(found: list[Candidate], s: Signals, window: Window, objective: str) -> dict[str, Share]:
    """Reliefs inside the steps, less what never reaches the objective: an engine that its front end feeds too slowly makes
    no more tokens with faster steps, and a first token waits in front of it all the same."""
    capped = any(c.cause in CAPS and c.status == "supported" for c in found)
    sizes = hardware_relief(s, window, objective, capped)
    if not any(c.cause == "front_end" and c.status == "supported" for c in found) or objective == "itl":
        return sizes
    left = 0.1 if objective != "ttft" or s.front_end_share is None else 1 - s.front_end_share.value
    return {limit: (left * low, left * high) for limit, (low, high) in sizes.items()}


def _front_relief(s: Signals, window: Window, objective: str, ratio: float) -> Share | None:
    """Without the front end's queue all clients' requests run, as far as slots and pool hold them."""
    if objective == "ttft":
        share = s.front_end_share.value if s.front_end_share else None
        return (0.85 * share, min(0.98, 1.02 * share)) if share is not None else None
    return cap_relief(s, window, objective, ratio) if objective != "itl" else (0.0, 0.0)


def _pair(found: list[Candidate], s: Signals, window: Window, objective: str) -> None:
    """Pool and slots that stop the batch together: neither alone helps, so both stand for what both would free."""
    caps = [c for c in found if c.cause in CAPS and c.status == "supported" and c.relief is not None]
    both = pair_relief(s, window, objective)
    both = _no_recompute(both, s, window, objective) if both is not None else None
    if len(caps) == 2 and both is not None and sum(both) > 2 * max(sum(c.relief or (0, 0)) for c in caps):
        for c in caps:
            # two changes at once: they come first where they gain TIE more than any one change
            c.relief = (both[0] - TIE, both[1] - TIE)
            c.gain, c.change = factor(both), "pool_and_slots"


def pair_relief(s: Signals, window: Window, objective: str) -> Share | None:
    """Relief of pool and slots together: the batch grows until the queue is empty, at most to twice."""
    where = room(s)
    return cap_relief(s, window, objective, where.ratio()) if where is not None else None


def _no_recompute(relief: Share, s: Signals, window: Window, objective: str) -> Share:
    """With a pool that holds them no tokens are computed twice: their share of the prompt steps goes too."""
    if objective not in ("throughput", "e2e"):
        return relief
    uncounted = s.preemptions is None or s.preemptions.provenance == "assumed"
    if s.recomputed_share is None and uncounted and s.kv_full_share and s.kv_full_share.value > 0:
        return relief[0], relief[1] + UNCOUNTED
    if s.recomputed_share is None:
        return relief
    # part of a mixed step is its decodes', and the blocks set free let others in as well
    again = s.recomputed_share.value * _prompt_share(window)
    return relief[0] + 0.25 * again, relief[1] + 0.8 * again


def _prompt_share(window: Window) -> float:
    whole = sum(p.ns for p in window.phases)
    return sum(p.ns for p in window.phases if p.phase in PROMPT_PHASES) / whole if whole else 0.0


def _budget_relief(s: Signals, window: Window, objective: str) -> Share | None:
    """Twice the tokens an iteration: what a full iteration costs once (weights below the knee, launches) is shared by twice
    the tokens. A first token also waits less because decodes wait more: in a closed loop a request takes clients /
    throughput, so TTFT loses what the longer iterations add to decoding."""
    if objective == "itl" or s.at_budget_share is None:
        return None
    full = min(1.0, s.at_budget_share.value)
    ends = [full * _shared(v, s.token_budget) for v in window.variants or (window,)]
    if objective == "ttft" and s.ttft_ms and s.e2e_ms and closed(s) and s.e2e_ms.value > s.ttft_ms.value > 0:
        decoding = s.e2e_ms.value - s.ttft_ms.value
        traded = [1 - (1 - gain) * (s.e2e_ms.value - 2 * decoding) / s.ttft_ms.value for gain in ends]
        # finite runs and short queues give about three quarters of what the steady state says
        ends = [min(0.95, max(gain, 0.75 * more)) for gain, more in zip(ends, traded, strict=True)]
    return 0.65 * min(ends), min(0.95, 1.1 * max(ends))


def _shared(window: Window, budget: Fact | None) -> float:
    """Share of the time that goes when full iterations compute twice the tokens: of the traced prompt steps; of a sketch,
    the step with the budget's tokens, whose products hide under the weights below the knee."""
    prompts = [p for p in window.phases if p.phase in PROMPT_PHASES]
    whole = sum(p.ns for p in window.phases)
    if (
        not prompts
        and budget is not None
        and window.phases
        and window.phases[0].phase == "decode"
        and window.knee
    ):
        p = replace(window.phases[0], tokens=budget.value)
        parts = {part: share for part, share in p.parts.items() if not part.startswith("compute")}
        return sum(share * window.saved_by_larger_steps(part, p) for part, share in parts.items()) / sum(
            parts.values()
        )
    return sum(
        p.ns / whole * share * window.saved_by_larger_steps(part, p)
        for p in prompts
        for part, share in p.parts.items()
    )


def step_limits(found: list[Candidate], s: Signals, window: Window | None, objective: str) -> list[Candidate]:
    """A candidate for each limit inside the steps that relief would make felt, largest first."""
    if window is None:
        return []
    sizes = _steps(found, s, window, objective)
    made: list[Candidate] = []
    for limit, (low, high) in sorted(sizes.items(), key=lambda x: -sum(x[1])):
        told = limit == "scheduling" or any(c.cause == "host_stalls" and c.limit == limit for c in found)
        if told or low + high < 2 * WORTH or len(made) == SHOWN:
            continue
        c = Candidate(
            limit,
            f"trace_{limit}",
            "supported",
            STEP_QUALITY,
            _statement(window, objective, limit, low, high),
        )
        c.relief, c.gain = (low, high), factor((low, high))
        share = Fact(
            (low + high) / 2,
            "share",
            "derived",
            f"time that relief of {limit} frees, phases by their time for {objective}",
        )
        c.evidence.append(row("relief", share))
        for p in window.of(objective):
            if p.relief.get(limit, 0.0) > 0.02:
                fact = Fact(p.relief[limit], "share", "derived", f"of the {p.phase} steps, {p.steps} traced")
                c.evidence.append(row(f"relief in {p.phase}", fact))
        made.append(c)
    if not made and objective == "throughput" and keeps_up(s) and s.open_rate and s.request_s:
        c = Candidate(
            "hbm", "hardware", "refuted", 0.9, "throughput is the arrival rate: no faster step raises it"
        )
        c.limit = max(window.relief(objective).items(), key=lambda x: x[1], default=("hbm", 0.0))[0]
        c.against.append(row("request_s", s.request_s, s.open_rate.value, "below"))
        made.append(c)
    if not made and objective == "ttft" and not window.of("ttft"):
        c = Candidate(
            "inconclusive", "hardware", "not_assessed", 0.0, "the device's own limit of the first token"
        )
        c.missing.append(NEED_PROMPTS)
        made.append(c)
    return made


def _statement(window: Window, objective: str, limit: str, low: float, high: float) -> str:
    phases = [p.phase for p in window.of(objective) if p.relief.get(limit, 0.0) > WORTH]
    where = f"by the traced {' and '.join(phases)} steps" if phases else "by the traced steps"
    what = RELIEVED.get(limit, f"relief of {limit.replace('_', ' ')}")
    return f"{what} would free {100 * max(0.0, low):.0f}-{100 * high:.0f} % of the time, {where}"


RELIEVED = {
    "hbm": "twice the memory bandwidth", "compute": "twice the compute", "kernel_inefficiency": "kernels at their roof",
    "launch_overhead": "launches that cost nothing", "host_sync": "steps without blocking reads", "communication": "links twice as fast",
    "copy": "copies twice as fast", "imbalance": "ranks that keep step", "host_input": "input that is ready in time",
    "power": "clocks that hold",
}  # fmt: skip
"""What relieves each limit inside the steps, in words."""
