"""Every annotation form of the engines, with counts worked out by hand."""

import re

import pytest

from diagnose.errors import UsageError
from diagnose.model.step_text import compile_user, is_graph_capture, is_loader, parse_step


def test_vllm_detailed_decode():
    read = parse_step("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)")
    assert (read.phase, read.sequences, read.decode_tokens, read.context_tokens) == ("decode", 32, 32, 32785)
    assert read.prefill_pairs == 0


def test_vllm_detailed_prefill_counts_causal_pairs():
    # 15 prompts of 1,024: q = kv = 1024 each. Pairs a prompt: 1024 x 1025 / 2 = 524,800; 15 x 524,800 = 7,872,000.
    read = parse_step(
        "execute_15360_context_15(sq15360sk15360sqsq15728640sqsk15728640)_generation_0(sq0sk0sqsq0sqsk0)"
    )
    assert read.phase == "prefill"
    assert read.prefill_tokens == 15_360
    assert read.prefill_pairs == 15 * 1024 * 1025 / 2


def test_vllm_detailed_chunk_at_the_end_of_its_context():
    # One chunk of 4 queries with 10 keys in all: keys seen 7, 8, 9, 10 = 34 pairs.
    read = parse_step("execute_4_context_1(sq4sk10sqsq16sqsk40)_generation_0(sq0sk0sqsq0sqsk0)")
    assert read.prefill_pairs == 7 + 8 + 9 + 10


def test_vllm_mixed_default():
    read = parse_step("execute_context_2(300)_generation_30(30)")
    assert (read.phase, read.sequences, read.prefill_tokens, read.decode_tokens) == ("mixed", 32, 300, 30)
    # The default form carries no KV tokens: unknown, not 0.
    assert read.context_tokens is None


def test_vllm_squared_form():
    # 888 tokens of one prompt: 888 x 889 / 2 = 394,716 pairs.
    read = parse_step("execute_context_1(888_788544)_generation_0(0)")
    assert (read.phase, read.prefill_tokens) == ("prefill", 888)
    assert read.prefill_pairs == 888 * 889 / 2


def test_vllm_counts_form_knows_no_tokens():
    read = parse_step("execute_new_0_cached_64")
    assert (read.phase, read.sequences, read.decode_tokens) == ("decode", 64, None)
    assert parse_step("execute_new_1_cached_64").phase == "mixed"


@pytest.mark.parametrize(
    ("text", "phase", "sequences", "prefill", "decode"),
    [
        ("step[EXTEND bs=15 toks=15360]", "prefill", 15, 15_360, 0),
        ("step[DECODE bs=32]", "decode", 32, 0, 32),
        ("step[MIXED bs=9]", "mixed", 9, None, None),
        ("step[VERIFY bs=4 toks=20]", "decode", 4, 0, 20),
        ("step[DRAFT bs=4]", "draft", 4, 0, None),
    ],
)
def test_sglang(text, phase, sequences, prefill, decode):
    read = parse_step(text)
    assert (read.phase, read.sequences, read.prefill_tokens, read.decode_tokens) == (
        phase,
        sequences,
        prefill,
        decode,
    )


def test_sglang_detailed_decode_sums():
    read = parse_step("step[DECODE bs=2 g_sq=2 g_sqsq=2 g_sqsk=300 g_sk=300]")
    assert read.context_tokens == 300


def test_inner_span_takes_counts_from_the_outer():
    outer = parse_step("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)")
    inner = parse_step("step[DECODE bs=32]").filled_from(outer)
    assert inner.context_tokens == 32_785
    assert inner.form == "sglang+vllm-detailed"


@pytest.mark.parametrize(
    "text",
    [
        "ProfilerStep#6",
        "enumerate(DataLoader)#x.__next__",
        "## Call CompiledFxGraph f ##",
        "nccl:all_reduce",
        "decoder",
        "prefill_cache",
        "step",
    ],
)
def test_not_steps(text):
    assert parse_step(text) is None


def test_plain_phase_names():
    for text in ("prefill", "decode", "decode_step 12", "Decode #3"):
        assert parse_step(text).phase in ("prefill", "decode")


def test_user_pattern_and_its_groups():
    user = re.compile(r"^iter (?P<phase>\w+) n=(?P<decode_tokens>\d+) b=(?P<sequences>\d+)$")
    read = parse_step("iter decode n=8 b=8", user)
    assert (read.form, read.phase, read.decode_tokens, read.sequences) == ("user", "decode", 8, 8)
    with pytest.raises(UsageError):
        compile_user("(")


def test_loaders_and_captures():
    assert is_loader("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
    assert not is_loader("decode")
    assert is_graph_capture("capture_32_FULL")
    assert not is_graph_capture("capture_now")
