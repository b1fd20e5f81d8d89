"""Quality beside speed: deltas with standard errors, by arithmetic."""

import json

import pytest

from diagnose.errors import InputError
from diagnose.settle.evals import quality, read_eval, scores


def harness(acc, stderr=0.01, *, shots=5, version=1.0, ppl=10.0):
    """A results file as lm-evaluation-harness 0.4 writes it."""
    return {
        "results": {
            "gsm8k": {
                "alias": "gsm8k",
                "exact_match,strict-match": acc,
                "exact_match_stderr,strict-match": stderr,
            },
            "wikitext": {
                "alias": "wikitext",
                "word_perplexity,none": ppl,
                "word_perplexity_stderr,none": "N/A",
                "sample_len": 100,
            },
        },
        "versions": {"gsm8k": version, "wikitext": 2.0},
        "n-shot": {"gsm8k": shots, "wikitext": 0},
        "higher_is_better": {"gsm8k": {"exact_match": True}, "wikitext": {"word_perplexity": False}},
    }


def by_task(result):
    return {t["task"]: t for t in result["tasks"]}


def test_scores_and_their_direction():
    assert scores(harness(0.7)) == {
        ("gsm8k", "exact_match (strict-match)"): (0.7, 0.01, True),
        ("wikitext", "word_perplexity"): (10.0, None, False),
    }


def test_a_loss_beyond_both_errors_is_told():
    # 0.70 -> 0.60 with 0.01 a side: z = 0.1 / 0.0141 = 7.
    task = by_task(quality(harness(0.70), harness(0.60)))["gsm8k"]
    assert (task["verdict"], task["change"]) == ("regressed", pytest.approx(-0.1))
    assert task["stderr"] == pytest.approx(0.01 * 2**0.5)
    assert by_task(quality(harness(0.60), harness(0.70)))["gsm8k"]["verdict"] == "improved"


def test_a_loss_within_the_errors_is_not_called_equal():
    result = quality(harness(0.70), harness(0.69))
    assert by_task(result)["gsm8k"]["verdict"] == "inconclusive"
    # The message says what would have shown: 1.96 x 0.0141 = 0.0277.
    assert "0.0277" in result["message"]


def test_scores_without_an_error_are_shown_and_not_judged():
    task = by_task(quality(harness(0.7, ppl=10.0), harness(0.7, ppl=11.0)))["wikitext"]
    assert (task["verdict"], task["change"]) == ("inconclusive", pytest.approx(1.0))


@pytest.mark.parametrize(
    ("change", "what"), [({"shots": 0}, "number of shots"), ({"version": 2.0}, "task version")]
)
def test_other_shots_or_versions_withhold(change, what):
    task = by_task(quality(harness(0.7), harness(0.5, **change)))["gsm8k"]
    assert task["verdict"] == "withheld"
    assert what in task["reason"]


def test_holm_over_tasks():
    def many(shift):
        rows = {
            f"t{i}": {"acc,none": 0.5 + (shift if i == 0 else 0), "acc_stderr,none": 0.01} for i in range(20)
        }
        return {"results": rows}

    # z = 2.12 has p = 0.034: alone it would be told, among twenty tasks it is what chance brings.
    assert by_task(quality(many(0), many(-0.03)))["t0"]["verdict"] == "inconclusive"


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "{", '{"results": 3}'])
def test_garbage_is_one_line(tmp_path, text):
    path = tmp_path / "e.json"
    path.write_text(text)
    with pytest.raises(InputError, match="lm-evaluation-harness"):
        read_eval(path)
    path.write_text(json.dumps(harness(0.7)))
    assert read_eval(path)["n-shot"]["gsm8k"] == 5
