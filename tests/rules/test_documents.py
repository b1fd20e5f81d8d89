"""Rule pages come from the rules; every shipped rule declares what a rule must."""

from pathlib import Path

import pytest

from diagnose.cli import main
from diagnose.contract import LIMITS
from diagnose.rules.document import document
from diagnose.rules.registry import load, shipped
from diagnose.rules.serving_rules import SERVING_RULES, document_serving

DOCS = Path(__file__).parents[2] / "docs" / "rules"


@pytest.mark.parametrize("rule", shipped(), ids=lambda r: r.id)
def test_page_is_current(rule):
    page = DOCS / f"{rule.id}.md"
    assert page.exists(), "run `python -m diagnose.rules.document docs/rules`"
    assert page.read_text(encoding="utf-8") == document(rule) + "\n", (
        "run `python -m diagnose.rules.document docs/rules`"
    )


def test_no_page_without_a_rule():
    assert {p.stem for p in DOCS.glob("*.md")} == {r.id for r in (*shipped(), *SERVING_RULES)}


@pytest.mark.parametrize("rule", SERVING_RULES, ids=lambda r: r.id)
def test_page_of_a_serving_rule_is_current(rule):
    page = DOCS / f"{rule.id}.md"
    assert page.read_text(encoding="utf-8") == document_serving(rule) + "\n", (
        "run `python -m diagnose.rules.document docs/rules`"
    )
    assert rule.limit in LIMITS
    assert rule.needs
    assert rule.refuters


@pytest.mark.parametrize("rule", shipped(), ids=lambda r: r.id)
def test_declaration_is_whole(rule):
    assert rule.limit in LIMITS
    assert rule.experiments
    assert rule.doc
    assert rule.refuters
    for threshold in rule.thresholds.values():
        assert threshold.origin
        assert threshold.direction in ("above", "below")


def test_rules_command_lists_and_explains(capsys):
    assert main(["rules"]) == 0
    listed = capsys.readouterr().out
    assert all(rule.id in listed for rule in shipped())
    assert all(rule.id in listed for rule in SERVING_RULES)
    assert main(["rules", "serving-kv-pool"]) == 0
    assert "Zero preemptions" in capsys.readouterr().out
    assert main(["rules", "launch-gaps"]) == 0
    assert "Refuted by" in capsys.readouterr().out
    assert main(["rules", "launch-gap"]) == 2
    assert "launch-gaps" in capsys.readouterr().err


def test_user_rules_load_and_broken_ones_are_reported(tmp_path):
    (tmp_path / "mine.py").write_text(
        '"""My own rule."""\n'
        "from diagnose.rules.base import Assessment, Rule\n"
        'RULE = Rule(id="mine", limit="copy", title="Mine", phases=("*",), objectives=("step_time",),\n'
        '    sql="SELECT 1 AS one", thresholds={}, assess=lambda row, context, t: Assessment(status="refuted"),\n'
        '    experiments=("keep-resident",))\n'
    )
    (tmp_path / "bad.py").write_text("raise RuntimeError('no')\n")
    (tmp_path / "no_experiment.py").write_text(
        "from diagnose.rules.base import Assessment, Rule\n"
        'RULE = Rule(id="x", limit="copy", title="x", phases=("*",), objectives=(), sql="", thresholds={}, assess=None, experiments=())\n'
    )
    rules, broken = load(tmp_path)
    assert "mine" in {r.id for r in rules}
    assert len(rules) == len(shipped()) + 1
    assert len(broken) == 2
    assert any("bad.py" in line for line in broken)
    assert any("experiment" in line for line in broken)
