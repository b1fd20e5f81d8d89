"""Gains by arithmetic: phases weighed by their time, parts of a step by their law, queues by Little's law."""

import pytest

from diagnose.serving.limit_gain import (
    batch_relief,
    cap_relief,
    hardware_relief,
    interference_relief,
    load_relief,
    open_relief,
    queue_relief,
)
from diagnose.serving.limit_rank import by_gain, chance_first
from diagnose.serving.limit_sizes import set_sizes, step_limits, untraced_share
from diagnose.serving.limit_types import Candidate
from diagnose.serving.limit_window import PhaseTime, Window, doubling
from diagnose.serving.limits import TraceFacts, assess
from diagnose.serving.signal_types import Fact, Signals


def fact(value, unit="requests", text=""):
    return Fact(value, unit, "measured", text)


def decode(ns=80.0, steps=8, tokens=32.0, **parts):
    return PhaseTime("decode", ns, {"hbm": 0.4, "scheduling": 0.1}, 0.0, parts, tokens, steps)


def mixed(ns=20.0, steps=1, tokens=600.0, **parts):
    return PhaseTime("mixed", ns, {"compute": 0.45}, 0.0, parts, tokens, steps)


def test_itl_counts_mixed_steps_by_their_time():
    """80 ms of decode at 40 % and 20 ms of mixed steps at 45 %: 32 % and 9 % of every gap's time."""
    w = Window((decode(), mixed()))
    found = w.relief("itl")
    assert found["hbm"] == pytest.approx(0.8 * 0.4)
    assert found["compute"] == pytest.approx(0.2 * 0.45)
    # where mixed steps carry the time, their limit leads although decode steps are memory-bound
    heavy = Window((decode(ns=20.0), mixed(ns=80.0))).relief("itl")
    assert max(heavy, key=heavy.get) == "compute"


def test_first_token_counts_the_steps_that_compute_prompts():
    w = Window((decode(), mixed()))
    assert w.relief("ttft") == {"compute": pytest.approx(0.45)}
    assert Window((decode(),)).of("ttft") == ()


def test_an_only_prefill_window_has_no_gaps_between_tokens():
    assert Window((PhaseTime("prefill", 10.0, {"compute": 0.5}, steps=2),)).of("itl") == ()


def test_weights_are_shared_and_kv_is_not():
    """Half weights below the knee, half KV: twice the batch takes 0.5 x 0.5 + 0.5 = 0.75 of the time per token."""
    w = Window((decode(**{"hbm:weights": 0.5, "hbm:kv": 0.5}),), knee=256.0)
    low, high = w.time_factor(2.0)
    assert low < 0.75 < high
    assert high - low == pytest.approx(2 * 0.025 * 0.75)
    assert doubling(w)[0] < 1 / 0.75 < doubling(w)[1]


def test_beyond_the_knee_weights_cost_compute():
    """At 256 rows of a knee of 256, twice the rows take twice the time: nothing is gained."""
    w = Window((decode(tokens=256.0, **{"hbm:weights": 1.0}),), knee=256.0)
    assert sum(w.time_factor(2.0)) / 2 == pytest.approx(1.0, abs=0.02)


def test_launch_gaps_hide_the_growth_of_kernels():
    """60 % of the step waits for launches, 40 % is KV: twice the KV fits under the launches, so a step takes as long."""
    w = Window((decode(**{"idle_launch": 0.6, "hbm:kv": 0.4}),), knee=256.0)
    assert w.time_factor(2.0)[0] == pytest.approx(0.5)


def test_parts_of_unknown_law_widen_the_answer():
    sure = Window((decode(**{"hbm:weights": 1.0}),), knee=256.0).time_factor(2.0)
    loose = Window((decode(**{"unmodelled:other": 1.0}),), knee=256.0).time_factor(2.0)
    assert loose[1] - loose[0] > 3 * (sure[1] - sure[0])


def signals(running=20.0, waiting=60.0, offered=80.0, **more):
    s = Signals(
        running=fact(running), waiting=fact(waiting), waiting_mean=fact(waiting),
        waiting_share=fact(1.0 if waiting else 0.0, "share"), offered=fact(offered, text="client's cap on requests in flight"),
    )  # fmt: skip
    for name, value in more.items():
        setattr(s, name, value)
    return s


W = Window((decode(**{"hbm:weights": 0.8, "hbm:kv": 0.2}),), knee=256.0)


def test_pool_of_a_closed_loop():
    """20 of 80 run: twice of them take 0.5 x 0.8 + 0.2 = 0.6 of the time per token; 40 of the 60 in the queue are left, passing
    0.6 times as long: 0.4 of the queue's time."""
    s = signals(queue_share=fact(0.9, "share"))
    low, high = cap_relief(s, W, "throughput", 2.0)
    assert low < 0.4 < high
    low, high = cap_relief(s, W, "ttft", 2.0)
    assert low < 0.9 * (1 - 40 / 60 * 0.6) < high
    # a larger batch lengthens the gap between tokens: 2 x 0.6 of it
    assert sum(cap_relief(s, W, "itl", 2.0)) / 2 == pytest.approx(1 - 1.2, abs=0.03)
    # a request of a closed loop takes clients / throughput
    assert cap_relief(s, W, "e2e", 2.0) == cap_relief(s, W, "throughput", 2.0)


def test_an_empty_queue_gains_nothing_from_a_larger_pool():
    s = signals(waiting=0.0, offered=20.0)
    assert batch_relief(W, 1.0) == (0.0, 0.0)
    assert queue_relief(s, 2.0, (0.3, 0.4)) == (0.0, 0.0)


def test_load_stops_at_the_next_cap():
    free = load_relief(signals(waiting=0.0, offered=20.0), W)
    capped = load_relief(signals(waiting=0.0, offered=20.0, slot_cap=fact(24.0)), W)
    assert sum(capped) < sum(free)
    assert sum(free) / 2 == pytest.approx(0.4, abs=0.04)


def test_an_arrival_rate_that_is_kept_up_with_is_the_throughput():
    s = signals(running=4.0, waiting=0.0, open_rate=fact(2.0, "req/s"), request_s=fact(1.98, "req/s"))
    assert hardware_relief(s, W, "throughput", False) == {}
    # twice the arrivals make twice the tokens, within the luck of two draws
    assert open_relief(s, W)[0] <= 0.5 <= open_relief(s, W)[1] < 0.55
    assert hardware_relief(s, W, "itl", False)["hbm"]


def test_queue_of_a_cap_passes_as_the_service_does():
    """90 % of TTFT is queue behind a cap: it falls as the whole service gets faster, not as prompts do."""
    w = Window((decode(), mixed()))
    s = signals(queue_share=fact(0.9, "share"))
    behind = hardware_relief(s, w, "ttft", True)
    assert sum(behind["hbm"]) / 2 == pytest.approx(0.9 * 0.32, abs=0.01)
    free = hardware_relief(s, w, "ttft", False)
    assert "hbm" not in free
    assert sum(free["compute"]) / 2 == pytest.approx(0.45)


def test_prefill_alone_against_chunks():
    """One prompt step of 100 ms over 5,120 tokens, five decode steps of 10 ms.

    A 512-token chunk takes 10 ms of it, 11.76 at 85 % of whole prompts' efficiency. Ten chunks for five steps: every step carries
    one and takes 11.76 instead of 30 ms, which frees 60.8 %; 8 points less where waiting prompts thicken the mix.
    """
    w = Window(
        (
            PhaseTime("prefill", 100.0, tokens=5120.0, steps=1),
            PhaseTime("decode", 50.0, parts={"hbm:weights": 1.0}, tokens=16.0, steps=5),
        )
    )
    freed = 1 - 10 / 0.85 * 5 / 150
    assert interference_relief(w) == (pytest.approx(freed - 0.08), pytest.approx(freed + 0.02))
    assert interference_relief(W) is None


def test_a_sketch_spans_devices_and_what_is_not_explained():
    """A dense model at batch 8 of 1,000 tokens: weights 2 bytes x parameters, KV 131,072 bytes a token (Llama-3-8B).

    No prompts to speak of (1 token for 1,000 answers): known bytes are weights and KV alone, so at 5 % unexplained time
    the weights' part is 0.95 x weights / (weights + KV) and twice the batch takes half of that less.
    """
    from diagnose.serving.evidence_types import Evidence
    from diagnose.serving.limit_sketch import sketch
    from diagnose.serving.model_config import load_model

    model, e = load_model("llama-3-8b"), Evidence()
    e.add("input_tokens", 1.0, "bench")
    e.add("output_tokens", 1000.0, "bench")
    e.add("completed", 1.0, "bench")
    s = signals(running=8.0, waiting=0.0, resident_tokens=fact(1000.0, "tokens"))
    w = sketch(model, e, s)
    weights, kv = model.step_weight_bytes(8), 8 * 1000 * 131_072
    parts = w.variants[0].phases[0].parts
    assert parts["hbm:weights"] == pytest.approx(0.95 * weights / (weights + kv), rel=0.01)
    low, high = w.time_factor(2.0)
    share = weights / (weights + kv)
    assert low < 0.95 * (1 - share / 2) + 0.05 * 0.75 < high
    assert w.relief("throughput") == {}
    assert sketch(model, Evidence(), s) is None


def test_a_cap_is_weighed_against_a_sketched_step():
    """95 % weights: doubled bandwidth frees up to 45 % of the step, so a cap worth 10 % is no answer and one worth 48 % is."""
    from diagnose.serving.limit_sketch import against_the_steps

    one = Window(
        (
            PhaseTime(
                "decode", 1.0, parts={"hbm:weights": 0.95, "unmodelled:other": 0.05}, tokens=8.0, steps=1
            ),
        ),
        200.0,
    )
    drawn = Window(one.phases, variants=(one,))
    small, large = candidate("kv_capacity", 0.08, 0.12, 0.8), candidate("kv_capacity", 0.46, 0.5, 0.8)
    small.cause = large.cause = "kv_pool"
    against_the_steps([small, large], drawn, "throughput")
    assert (small.status, large.status) == ("possible", "supported")
    assert 0.6 < large.confidence < 0.8
    assert any("trace" in m for m in small.missing)


def test_larger_iterations_share_what_a_step_costs_once():
    """Weights below the knee and floors halve; compute does not; weights that cross the knee save less."""
    p = mixed(tokens=64.0)
    w = Window((p,), knee=128.0)
    assert w.saved_by_larger_steps("hbm:weights", p) == pytest.approx(0.5)
    assert w.saved_by_larger_steps("floor:other", p) == 0.5
    assert w.saved_by_larger_steps("compute:weights", p) == 0.0
    # 96 tokens, knee at 128: 192 tokens take 1.5 times as long, 0.75 of the time a token
    q = mixed(tokens=96.0)
    assert Window((q,), knee=128.0).saved_by_larger_steps("hbm:weights", q) == pytest.approx(0.25)


def test_a_token_budget_is_sized_and_trades_decoding_for_the_first_token():
    """All iterations full, 80 % of the step weights below the knee: 40 % of the time. Compute-bound, TTFT still loses what
    longer iterations add to decoding: 1 s of 3 s, at three quarters for short runs."""
    s = signals(at_budget_share=fact(1.0, "share"), ttft_ms=fact(3000.0, "ms"), e2e_ms=fact(4000.0, "ms"))
    once = Candidate("scheduling", "token_budget", "supported", 0.9, "")
    set_sizes(
        [once],
        s,
        Window((mixed(tokens=64.0, **{"hbm:weights": 0.8, "compute:kv": 0.2}),), 128.0),
        "throughput",
    )
    assert once.relief[0] < 0.4 < once.relief[1]
    traded = Candidate("scheduling", "token_budget", "supported", 0.9, "")
    set_sizes([traded], s, Window((mixed(**{"compute:weights": 1.0}),), 128.0), "ttft")
    assert traded.relief[0] < 0.75 * 1 / 3 < traded.relief[1]
    nothing = Candidate("scheduling", "token_budget", "supported", 0.9, "")
    set_sizes([nothing], s, Window((mixed(**{"compute:weights": 1.0}),), 128.0), "throughput")
    assert nothing.relief == (0.0, 0.0)


def test_an_engine_starved_by_its_front_end_gains_nothing_from_faster_steps():
    s = signals(running=10.0, waiting=0.0, offered=80.0, front_end_share=fact(0.8, "share"))
    front = Candidate("scheduling", "front_end", "supported", 0.8, "")
    set_sizes([front], s, W, "throughput")
    assert step_limits([], s, W, "throughput")
    assert step_limits([front], s, W, "throughput") == []
    # eight times the sequences: 0.8 / 8 + 0.2 of the time per token
    assert front.relief[0] < 0.7 < front.relief[1]


def test_decode_steps_alone_do_not_explain_slower_tokens():
    """Ten decode steps of 8 ms; tokens come every 16 ms: half of the time was spent in steps nobody traced."""
    w = Window((PhaseTime("decode", 80e6, {"hbm": 0.45}, tokens=32.0, steps=10),))
    assert untraced_share(signals(tpot_ms=fact(16.0, "ms")), w) == pytest.approx(0.5)
    assert untraced_share(signals(tpot_ms=fact(9.0, "ms")), w) == 0.0
    both = Window((*w.phases, mixed()))
    assert untraced_share(signals(tpot_ms=fact(16.0, "ms")), both) == 0.0
    # more unknown than any known limit holds: no answer, and what to trace
    a = assess(signals(waiting=0.0, offered=20.0, tpot_ms=fact(24.0, "ms")), "itl", TraceFacts(window=w))
    assert a.limits == ["inconclusive"]
    assert "compute prompts" in a.missing[0]


def candidate(limit, low, high, confidence=0.95):
    c = Candidate(limit, limit, "supported", confidence, "")
    c.relief = (low, high)
    return c


def test_the_larger_gain_is_surer():
    big, small = candidate("kv_capacity", 0.35, 0.45), candidate("hbm", 0.15, 0.25)
    by_gain([big, small])
    assert big.confidence > 0.9
    assert small.confidence < 0.1


def test_a_tie_is_both():
    a, b = candidate("hbm", 0.25, 0.35), candidate("compute", 0.25, 0.35)
    assert chance_first(a, [b]) == chance_first(b, [a]) > 0.7


def test_wide_gains_are_less_sure():
    narrow = chance_first(candidate("a", 0.38, 0.42), [candidate("b", 0.28, 0.32)])
    wide = chance_first(candidate("a", 0.2, 0.6), [candidate("b", 0.1, 0.5)])
    assert narrow > wide > 0.5


def test_unknown_time_takes_confidence():
    c = candidate("hbm", 0.2, 0.3)
    assert chance_first(c, [], 0.4) < chance_first(c, [])


def test_little_to_gain_is_no_limit():
    c = candidate("scheduling", 0.0, 0.04)
    by_gain([c])
    assert c.status == "possible"
