"""The compact evidence set that limits are judged on: one fact a question, each with unit, provenance and
how it was found.

Levels are taken over the loaded part of a run (ramps at both ends would dilute them). A question that no
source answers stays None: absence of evidence is never read as zero.
"""

from statistics import fmean

from diagnose.serving.evidence_types import Evidence
from diagnose.serving.kv import engine_totals, paired, request_lengths, resident_tokens
from diagnose.serving.latency import distributions
from diagnose.serving.latency_split import itl_split, ttft_split
from diagnose.serving.signal_types import Fact, Signals
from diagnose.serving.signals_load import LOADED, loaded, of_the_load, of_the_run, stretches
from diagnose.serving.stats import quantile

__all__ = ["Fact", "Signals", "derive_signals"]

FULL = 0.90
"""A pool is full from here (SGLang tuning guide, llm-d metrics guide)."""
AT = 0.98
"""A level counts as at its cap from this share of it: a slot frees between two schedules."""
DEFAULT_SLOTS = (128, 256, 512, 1024)
"""Slot caps that engines use unless told otherwise; a plateau at exactly one of them is taken for it, as
assumed."""


FREE_SLOTS = 2
"""One or two slots are free at the moment a level is read, between a request's end and the next schedule."""
ALIKE = 1.05
PLATEAU_SAMPLES = 3
PLATEAU_SHARE = 0.75
"""Running at one and the same number in three of four loaded samples is a cap."""


def _number(evidence: Evidence, key: str) -> float | None:
    text = evidence.setting(key)
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _origin(evidence: Evidence, metric: str) -> str:
    origins = {s.origin for s in evidence.samples if s.metric == metric}
    return "metrics" if "metrics" in origins else "log" if "log" in origins else "bench"


def derive_signals(evidence: Evidence, pool_tokens: float | None = None) -> Signals:
    """All signals of the evidence. `pool_tokens`: a computed pool, used where no source states one."""
    cut = {x.origin: x.text() for x in stretches(evidence) if x.inside < x.total}
    evidence = of_the_load(of_the_run(evidence))
    s = Signals(engine=evidence.setting("engine"))
    _levels(s, evidence, cut)
    _load(s, evidence)
    _kv(s, evidence, pool_tokens)
    _slots(s, evidence)
    _budget(s, evidence)
    _latency(s, evidence)
    _host(s, evidence)
    _config(s, evidence)
    return s


def _levels(s: Signals, e: Evidence, cut: dict[str, str]) -> None:
    rows = loaded(e)
    origin = _origin(e, "running")
    if rows:
        n = len(rows)
        running, waiting = sorted(r for r, _ in rows), sorted(w for _, w in rows)
        said = f" ({cut[origin]} with requests)" if origin in cut else ""
        s.samples = Fact(n, "samples", "measured", f"loaded samples from {origin}{said}")
        s.running = Fact(
            quantile(running, 0.5), "requests", "measured", f"median running under load, {origin}"
        )
        s.running_peak = Fact(running[-1], "requests", "measured", f"most running, {origin}")
        s.waiting = Fact(
            quantile(waiting, 0.5), "requests", "measured", f"median waiting under load, {origin}"
        )
        s.waiting_peak = Fact(waiting[-1], "requests", "measured", f"most waiting, {origin}")
        s.waiting_mean = Fact(fmean(waiting), "requests", "measured", f"mean waiting under load, {origin}")
        share = sum(1 for w in waiting if w > 0) / n
        s.waiting_share = Fact(share, "share", "measured", "loaded samples with requests waiting")
    else:
        alone = sorted(v for _, v in engine_totals(e, "running") if v > 0)
        if alone:
            s.running = Fact(quantile(alone, 0.5), "requests", "measured", f"median running, {origin}")
            s.running_peak = Fact(alone[-1], "requests", "measured", f"most running, {origin}")
    deferred = [v for _, v in engine_totals(e, "waiting_deferred")]
    if deferred:
        s.waiting_deferred = Fact(
            max(deferred), "requests", "measured", "most waiting for another reason than capacity"
        )
    by_engine: dict[str, list[float]] = {}
    for x in e.samples:
        if x.metric == "running" and x.label("engine") is not None:
            by_engine.setdefault(str(x.label("engine")), []).append(x.value)
    if len(by_engine) > 1:
        means = [fmean(v) for v in by_engine.values()]
        if fmean(means) > 0:
            s.engine_spread = Fact(
                max(means) / fmean(means), "x", "measured", f"busiest of {len(means)} engines over their mean"
            )


def _load(s: Signals, e: Evidence) -> None:
    rate = e.stat_value("output_tok_s", "bench")
    s.output_tok_s = Fact(rate, "tok/s", "measured", "output throughput seen by the client") if rate else None
    done = e.stat_value("request_s", "bench")
    s.request_s = Fact(done, "req/s", "measured", "requests finished a second, client") if done else None
    asked = _number(e, "bench_request_rate")
    if asked is not None and asked != float("inf"):
        s.open_rate = Fact(asked, "req/s", "measured", "request rate the client offered")
    tpot = e.stat("tpot_ms", "mean", "bench") or e.stat("itl_ms", "mean", "bench")
    if s.running is None and rate and tpot:
        # Little's law: sequences decoding at a time = tokens a second x seconds a token
        s.running = Fact(
            rate * tpot / 1e3, "requests", "derived", "throughput x time per token (Little's law)"
        )
    cap = _number(e, "bench_max_concurrency")
    prompts = _number(e, "bench_prompts")
    in_flight = e.stat_value("concurrency_peak", "bench") or e.stat_value("concurrency", "bench")
    if cap:
        low = min(cap, prompts) if prompts else cap
        s.offered = Fact(low, "requests", "measured", "client's cap on requests in flight")
    elif in_flight:
        s.offered = Fact(in_flight, "requests", "measured", "requests in flight, client")
    elif asked == float("inf") and prompts:
        s.offered = Fact(prompts, "requests", "measured", "all requests sent at once")
    elif s.running and s.waiting and s.waiting_peak:
        text = "running + waiting, as the engine saw it"
        s.offered = Fact(s.running.value + s.waiting.value, "requests", "measured", text)
    if s.offered and s.offered.text.startswith("client") and s.running and s.waiting:
        inside = (s.running.value + s.waiting.value) / s.offered.value
        s.in_engine_share = Fact(
            inside, "share", "derived", "running + waiting over requests the client has in flight"
        )


def _kv(s: Signals, e: Evidence, computed: float | None) -> None:
    rows = paired(e, "kv_usage", "running")
    peak_run = max((r for _, r in rows), default=0.0)
    usage = sorted(u for u, r in rows if r >= LOADED * peak_run and r > 0)
    if not any(x.metric == "running" for x in e.samples):
        usage = sorted(e.values("kv_usage"))  # nothing tells the loaded samples apart
    if usage:
        origin = _origin(e, "kv_usage")
        s.kv_usage = Fact(quantile(usage, 0.5), "share", "measured", f"median KV usage under load, {origin}")
        s.kv_peak = Fact(usage[-1], "share", "measured", f"peak KV usage, {origin}")
        share = sum(1 for u in usage if u >= FULL) / len(usage)
        s.kv_full_share = Fact(
            share, "share", "measured", f"loaded samples with the pool at {FULL:.0%} or more"
        )
    pool = _number(e, "kv_pool_tokens")
    if pool:
        s.pool_tokens = Fact(pool, "tokens", "measured", "KV pool as the engine states it")
    elif computed:
        s.pool_tokens = Fact(computed, "tokens", "derived", "KV pool computed from its bytes and the model")
    resident = resident_tokens(e, s.pool_tokens.value if s.pool_tokens else None)
    lengths = request_lengths(e)
    if lengths:
        s.full_tokens = Fact(lengths[0] + lengths[1], "tokens", "measured", f"prompt + output, {lengths[2]}")
    if resident:
        s.resident_tokens = Fact(
            resident[0], "tokens", "derived", f"tokens a running sequence holds: {resident[1]}"
        )
    elif lengths:
        half = lengths[0] + lengths[1] / 2
        s.resident_tokens = Fact(
            half, "tokens", "assumed", "prompt + half the output: sequences at all stages of their growth"
        )
    if s.pool_tokens and s.resident_tokens:
        s.fits = Fact(
            s.pool_tokens.value / s.resident_tokens.value,
            "requests",
            "derived",
            "pool / tokens a sequence holds",
        )
    if s.pool_tokens and s.full_tokens:
        s.fits_full = Fact(
            s.pool_tokens.value / s.full_tokens.value, "requests", "derived", "pool / full length"
        )
    lost = [x for x in e.samples if x.metric == "preemptions"]
    total = sum(x.value for x in lost)
    if lost:
        s.preemptions = Fact(
            total, "events", "measured", f"preemptions or retractions, {_origin(e, 'preemptions')}"
        )
    elif e.samples and usage and _origin(e, "kv_usage") == "log":
        # not proof of none: some versions never print them, so zero is no argument against a full pool
        s.preemptions = Fact(0.0, "events", "assumed", "no preemption printed in the log")
    times = [x.ts for x in e.samples if x.metric in {"kv_usage", "running"} and x.ts is not None]
    if s.preemptions and len(times) > 1 and max(times) > min(times):
        s.preemption_rate = Fact(
            total / (max(times) - min(times)), "1/s", "derived", "preemptions over the time covered"
        )
    again = sum(x.value for x in e.samples if x.metric == "recomputed_tokens")
    prompts = sum(x.value for x in e.samples if x.metric == "prompt_tokens")
    submitted = e.stat_value("input_tokens", "bench")
    if again and prompts:
        s.recomputed_share = Fact(again / prompts, "share", "measured", "prompt tokens computed again")
    elif prompts and submitted and prompts > submitted * 1.02:
        text = "prompt tokens computed beyond those submitted"
        s.recomputed_share = Fact(1 - submitted / prompts, "share", "derived", text)
    elif total and prompts and s.resident_tokens:
        # counters of one source over one span; the victim's tokens are computed once more
        lost_tokens = total * s.resident_tokens.value
        text = "preemptions x the tokens a sequence holds, of all prompt tokens computed"
        s.recomputed_share = Fact(lost_tokens / (lost_tokens + prompts), "share", "derived", text)
    hits = sum(x.value for x in e.samples if x.metric == "prefix_hits")
    looked = sum(x.value for x in e.samples if x.metric == "prefix_queries")
    gauge = [v for _, v in engine_totals(e, "prefix_hit_rate")]
    if looked:
        s.prefix_hit = Fact(hits / looked, "share", "measured", "prefix cache hits over look-ups")
    elif gauge:
        s.prefix_hit = Fact(gauge[-1], "share", "measured", "prefix hit rate, last")


def _alike(s: Signals) -> bool:
    """Whether a standstill of all engines together is one of each: one engine, or several that carry the same."""
    return s.engine_spread is None or s.engine_spread.value < ALIKE


def _slots(s: Signals, e: Evidence) -> None:
    stated = _number(e, "max_num_seqs")
    rows = loaded(e)
    running = [r for r, _ in rows] or ([s.running.value] if s.running else [])
    engines = max(1, int(_number(e, "kv_engines") or 1))
    if stated:
        s.slot_cap = Fact(stated * engines, "requests", "measured", "slot cap as configured")
    elif running and s.waiting_peak and s.waiting_peak.value > 0 and _alike(s):
        top = max(running)
        steady = sum(1 for r in running if r == top) / len(running)
        # a pool of a few requests also holds their number still: it must have room for two more
        free = s.kv_usage is not None and s.kv_usage.value < FULL
        free = free and (s.fits is None or s.fits.value >= top + 2)
        if top in DEFAULT_SLOTS and steady >= 0.5:
            text = f"running stands at exactly {top:.0f}, a default slot cap"
            s.slot_cap = Fact(top, "requests", "assumed", text)
        elif free and len(running) >= PLATEAU_SAMPLES and steady >= PLATEAU_SHARE:
            # a pool or a client lets the number float; only a cap holds it still while others wait
            text = f"running stands still at {top:.0f} while requests wait and the pool has room"
            s.slot_cap = Fact(top, "requests", "derived", text)
    if s.slot_cap and running and s.running and s.running.provenance == "measured":
        edge = min(AT * s.slot_cap.value, s.slot_cap.value - FREE_SLOTS)
        share = sum(1 for r in running if r >= edge) / len(running)
        s.at_cap_share = Fact(share, "share", "measured", "loaded samples with all slots taken")


def _budget(s: Signals, e: Evidence) -> None:
    budget = _number(e, "max_num_batched_tokens")
    if budget is None:
        return
    s.token_budget = Fact(budget, "tokens", "measured", "token budget of an iteration, as configured")
    rows = paired(e, "step_generation_tokens", "step_context_tokens")
    if not rows:
        rows = paired(e, "step_generation_requests", "step_context_tokens")
    if rows:
        share = sum(1 for g, c in rows if g + c >= AT * budget) / len(rows)
        s.at_budget_share = Fact(share, "share", "measured", "iterations whose tokens reach the budget")
        return
    fresh = e.values("prefill_new_tokens")
    if fresh:
        share = sum(1 for t in fresh if t >= AT * budget) / len(fresh)
        s.at_budget_share = Fact(share, "share", "measured", "prefill batches whose tokens reach the budget")


def _latency(s: Signals, e: Evidence) -> None:
    def pick(metric: str, stat: str) -> Fact | None:
        for source, row in distributions(e, metric).items():
            if row.get(stat) is not None:
                return Fact(row[stat], "ms", "measured", f"{stat} {metric.removesuffix('_ms')}, {source}")
        return None

    s.ttft_ms, s.itl_p50, s.itl_p99 = pick("ttft_ms", "mean"), pick("itl_ms", "p50"), pick("itl_ms", "p99")
    s.tpot_ms = pick("tpot_ms", "mean") or pick("itl_ms", "mean")
    s.e2e_ms = pick("e2e_ms", "mean")
    lengths = request_lengths(e)
    if s.e2e_ms is None and s.ttft_ms and s.tpot_ms and lengths:
        whole = s.ttft_ms.value + max(0.0, lengths[1] - 1) * s.tpot_ms.value
        s.e2e_ms = Fact(whole, "ms", "derived", "mean TTFT + (output tokens - 1) x mean time per token")
    if s.itl_p50 and s.itl_p99 and s.itl_p50.value > 0 and s.itl_p50.text[-6:] == s.itl_p99.text[-6:]:
        s.itl_tail = Fact(
            s.itl_p99.value / s.itl_p50.value, "x", "derived", "p99 / p50 of inter-token latency"
        )
    split = ttft_split(e)
    if split["queue_ms"] is not None:
        s.queue_ms = Fact(split["queue_ms"], "ms", "measured", "mean queue time, engine")
        if split["queue_share"] is not None:
            s.queue_share = Fact(
                min(1.0, split["queue_share"]), "share", "derived", "mean queue time / mean TTFT"
            )
    elif s.waiting_mean and s.request_s and s.request_s.value > 0 and s.ttft_ms:
        # Little's law on the queue; a run that only drains a burst overstates it, hence the cap at the whole
        # TTFT
        wait = s.waiting_mean.value / s.request_s.value * 1e3
        s.queue_ms = Fact(
            min(wait, s.ttft_ms.value), "ms", "derived", "mean waiting / requests a second (Little's law)"
        )
        s.queue_share = Fact(
            min(1.0, wait / s.ttft_ms.value), "share", "derived", "queue time by Little's law / mean TTFT"
        )
    both = distributions(e, "ttft_ms")
    if len(both) == 2 and both["client"]["mean"] and both["engine"]["mean"]:
        outside = max(0.0, 1 - both["engine"]["mean"] / both["client"]["mean"])
        s.front_end_share = Fact(
            outside, "share", "derived", "part of the client's TTFT that the engine did not see"
        )


def _host(s: Signals, e: Evidence) -> None:
    parts = itl_split(e)
    if parts["source"] == "iteration lines":
        whole = parts["decode_step_ms"] + parts["prefill_interference_ms"]
        s.interference_share = Fact(
            parts["prefill_interference_ms"] / whole,
            "share",
            "derived",
            "part of mean ITL spent beside prefill",
        )
        s.mixed_share = Fact(
            parts["mixed_share"], "share", "measured", "tokens made in iterations that also prefill"
        )
        if parts["mixed_step_p50_ms"] and parts["decode_step_p50_ms"]:
            ratio = parts["mixed_step_p50_ms"] / parts["decode_step_p50_ms"]
            s.mixed_over_decode = Fact(
                ratio, "x", "derived", "median mixed iteration over median pure decode iteration"
            )
    pairs = [(h, d) for h, d in paired(e, "host_step_ms", "device_step_ms") if d > 0]
    if len(pairs) >= 5:
        # the device time printed with an iteration is of the one before
        hosts = [h for h, _ in pairs][:-1]
        devices = [d for _, d in pairs][1:]
        ratio = sum(hosts) / sum(devices)
        s.host_over_device = Fact(ratio, "x", "measured", "host time over device time of the same iterations")
    forward = [x for x in e.samples if x.metric == "forward_s" and x.label("interval_s")]
    if forward:
        wall = sum(float(x.label("interval_s") or 0) for x in forward)
        idle = sum(x.value for x in e.samples if x.metric == "scheduler_idle_s" and x.label("interval_s"))
        if wall - idle > 0:
            share = min(1.0, sum(x.value for x in forward) / (wall - idle))
            s.forward_share = Fact(share, "share", "measured", "time in the forward pass over time not idle")


def _config(s: Signals, e: Evidence) -> None:
    eager = e.setting("enforce_eager")
    s.eager = None if eager is None else eager == "true"
    s.backend = e.setting("attention_backend")
    top = _number(e, "graph_max_batch")
    if top:
        s.graph_max_batch = Fact(top, "requests", "measured", "largest captured batch")
    replayed = e.values("graph_replay")
    if replayed:
        s.graph_share = Fact(
            fmean(replayed), "share", "measured", "decode batches that replayed a captured graph"
        )
    kept = e.values("spec_accept_len")
    if kept:
        s.spec_accept_len = Fact(fmean(kept), "tokens", "measured", "tokens kept a verification step")
