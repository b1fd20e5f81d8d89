"""Whose work a gap is, read from simulated traces beside a log: structured output, work per request, per length, rare stalls.

The traces come from the simulator of tests/scenarios, which shares no code with the product.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from diagnose import pipeline
from diagnose.serving.gap_laws import GapPoint
from diagnose.serving.limits import TraceFacts, assess

sys.path.insert(0, str(Path(__file__).parents[1] / "scenarios"))

from serving_forms import vllm_log
from sim.arch import ARCHS, StepPlan
from sim.hardware import DEVICES
from sim.registry import Variant, generate
from sim.world import HostCosts, Profile, World

HOST = HostCosts(
    op_ns=4_000.0, sched_ns=150_000.0, sched_per_seq_ns=2_000.0, detok_per_token_ns=3_000.0, jitter=0.02
)
LOG = vllm_log([(16, 0, 30.0, 0)] * 8, pool=400_000, seqs=256)


def same(batch, steps=12, context=600):
    """Decode steps of one batch, each sequence growing by a token a step."""
    return tuple(StepPlan(decode=(context + i,) * batch) for i in range(steps))


def world(plans, **host):
    return World(
        device=DEVICES["h100"], arch=ARCHS["llama-3.2-1b"], plans=plans, host=replace(HOST, **host), graphs=True,
        profile=Profile(engine="vllm_detailed"), seed=5, noise=0.01,
    )  # fmt: skip


def hypotheses(folder, made, only=()):
    """Serving hypotheses for ITL, by the name of their cause."""
    files = generate("gaps", 5, folder / "run", Variant(world=made, only_ranks=only))
    log = folder / "server.log"
    log.write_text(LOG)
    d = pipeline.run(list(files.traces), pipeline.Options(objective="itl", log=(log,)))
    return d, {h.id.split("@")[0]: h for h in d.hypotheses if h.id.startswith("serving-")}


def test_a_mask_between_logits_and_sampler_is_structured_output(tmp_path):
    """16 sequences x 200 us of grammar between logits and sampler, in steps of about 3 ms."""
    d, found = hypotheses(tmp_path, world(same(16), mask_ns=200_000.0))
    h = found["serving-structured-output"]
    assert h.status == "supported"
    assert d.verdict.limit == "scheduling"
    share = next(e.value for e in h.evidence if e.metric == "sampler_gap_share")
    idle = 16 * 0.2
    wall = [(s.end_ns - s.start_ns + s.gap_before_ns) / 1e6 for s in d.steps]
    assert share == pytest.approx(idle / (sum(wall) / len(wall)), rel=0.15)


def test_without_a_mask_nothing_lies_between_logits_and_sampler(tmp_path):
    d, found = hypotheses(tmp_path, world(same(16)))
    assert "serving-structured-output" not in found
    assert max(sum(s.sampler_gap_ns.values()) for s in d.steps) < 100_000


def test_a_gap_that_grows_with_the_batch_is_work_per_request(tmp_path):
    """120 us a request over batches of 4 to 48."""
    plans = tuple(StepPlan(decode=(600,) * n) for n in (4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48))
    _, found = hypotheses(tmp_path, world(plans, sched_per_seq_ns=120_000.0))
    h = found["serving-host-per-request"]
    assert h.status == "supported"
    slope = float(h.statement.split("running requests: ")[1].split(" ms")[0])
    assert slope == pytest.approx(0.12, rel=0.25)


@pytest.mark.parametrize(
    ("op", "said"),
    [("aten::cat", "a cache or history grown by concatenation"), ("aten::bincount", "token histories for penalties"),
     ("tokenizer::batch_decode", "detokenising")],
)  # fmt: skip
def test_a_gap_that_grows_with_length_is_told_by_what_runs_in_it(tmp_path, op, said):
    """300 ns a token held, eight sequences growing from 200 to 4,600 tokens."""
    plans = tuple(StepPlan(decode=(200 + 400 * i,) * 8) for i in range(12))
    _, found = hypotheses(tmp_path, world(plans, history_ns=300.0, history_op=op))
    h = found["serving-host-per-sequence-length"]
    assert h.status == "supported"
    assert said in h.statement
    # 300 ns x 8 sequences x 1,000 tokens
    slope = float(h.statement.split("sequences: ")[1].split(" ms")[0])
    assert slope == pytest.approx(2.4, rel=0.1)


def test_growth_with_length_asks_for_stacks_where_nothing_was_recorded(signals):
    gaps = tuple(GapPoint(0.5 + 0.004 * n, 8, float(n)) for n in range(0, 2000, 50))
    a = assess(signals(log=LOG), "itl", TraceFacts(between_steps_share=0.3, gaps=gaps))
    assert any("with_stack" in m for m in a.first.missing)


def stalled(ranks=2):
    """One collection of 200 ms before the eighth of fourteen steps, on rank 1."""
    w = world(same(16, steps=14), gc_every=8, gc_ns=2e8)
    return replace(w.with_options(tp=ranks), straggler=1)


def test_rare_stalls_of_one_rank_while_the_others_wait(tmp_path):
    d, found = hypotheses(tmp_path, stalled())
    h = found["serving-host-stalls"]
    assert (h.status, h.limit) == ("supported", "imbalance")
    assert any(e.metric == "stalls" and e.value == 1 for e in h.evidence)
    assert d.verdict.limit == "imbalance"


def test_stalls_of_a_single_captured_rank_ask_for_the_others(tmp_path):
    _, found = hypotheses(tmp_path, stalled(), only=(1,))
    h = found["serving-host-stalls"]
    assert h.limit == "scheduling"
    assert any("all ranks" in m for m in h.missing)
