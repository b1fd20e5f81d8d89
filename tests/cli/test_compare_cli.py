"""`diagnose compare` as its user meets it: inputs, outputs, exit codes, one-line errors."""

import gzip
import json
from pathlib import Path

import pytest

from diagnose.cli import main
from diagnose.reports.marker import MARKER, embedded_json, is_own_report

SAMPLES = Path(__file__).parents[2] / "sample_traces"
HBM = SAMPLES / "generated_h100_decode_hbm.json.gz"


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """Saved diagnoses of a sample and of the same with every kernel 10 % longer (device times only, so gaps shrink)."""
    folder = tmp_path_factory.mktemp("sides")
    doc = json.loads(gzip.decompress(HBM.read_bytes()))
    first = min(e["ts"] for e in doc["traceEvents"] if "ts" in e)
    for e in doc["traceEvents"]:
        if "ts" in e:
            e["ts"] = first + 1.10 * (e["ts"] - first)
            if "dur" in e:
                e["dur"] *= 1.10
    slow = folder / "slow.json"
    slow.write_text(json.dumps(doc))
    for name, path in (("before", HBM), ("after", slow)):
        assert main([str(path), "--json", str(folder / f"{name}.json"), "--no-html"]) == 0
    return folder / "before.json", folder / "after.json"


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_summary_on_stdout_and_a_page_named_after_both(sides, cwd, capsys):
    assert main(["compare", *map(str, sides)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("▼ regressed")
    assert "+10 %" in out
    assert len(out.splitlines()) <= 25
    page = cwd / "before-after.compare.html"
    assert err.splitlines()[-1] == f"Wrote {page.name}"
    assert is_own_report(page)
    assert json.loads(embedded_json(page.read_bytes()))["schema"] == "diagnose-compare/1"


def test_json_on_stdout_is_all_of_stdout_and_the_same_as_embedded(sides, cwd, capsys):
    assert main(["compare", *map(str, sides), "--json", "-", "-o", "c.html"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out) == json.loads(embedded_json((cwd / "c.html").read_bytes()))
    assert main(["compare", *map(str, sides), "--markdown", "-", "--no-html"]) == 0
    assert capsys.readouterr().out.startswith(MARKER)
    assert sorted(p.name for p in cwd.iterdir()) == ["c.html"]


def test_traces_and_saved_results_mix(sides, cwd, capsys):
    assert main(["compare", str(HBM), str(sides[0]), "--json", "-", "--no-html"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"]["overall"] == "no_change"
    assert result["delta"]["total_ns"] == 0


def test_repeats_are_lists(sides, cwd, capsys):
    before, after = map(str, sides)
    assert (
        main(
            [
                "compare",
                "--before",
                before,
                before,
                "--after",
                after,
                after,
                after,
                "--json",
                "-",
                "--no-html",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert (result["before"]["runs"], result["after"]["runs"]) == (2, 3)
    assert result["metrics"][0]["noise"] == "runs"


def test_fail_on(sides, cwd, capsys):
    before, after = map(str, sides)
    plain = ["--no-html"]
    assert main(["compare", before, after, *plain, "--fail-on", "regressed"]) == 1
    assert "failed: decode step time" in capsys.readouterr().err
    assert main(["compare", after, before, *plain, "--fail-on", "regressed"]) == 0
    assert main(["compare", before, after, *plain, "--fail-on", "step:5%"]) == 1
    assert main(["compare", before, after, *plain, "--fail-on", "step:25%", "--fail-on", "idle:50%"]) == 0
    capsys.readouterr()
    assert main(["compare", before, after, *plain, "--fail-on", "ITL:5%"]) == 2
    assert "measured: step time" in capsys.readouterr().err


def test_only_earlier_reports_are_overwritten(sides, cwd, capsys):
    mine = cwd / "notes.html"
    mine.write_text("precious")
    assert main(["compare", *map(str, sides), "-o", str(mine)]) == 2
    assert mine.read_text() == "precious"
    assert "--force" in capsys.readouterr().err
    assert main(["compare", *map(str, sides), "-o", str(mine), "--force"]) == 0
    assert main(["compare", *map(str, sides), "-o", str(mine)]) == 0
    assert main(["compare", *map(str, sides), "-o", str(sides[0])]) == 2
    assert "is an input" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "two inputs"),
        (["{a}"], "1 given"),
        (["{a}", "{b}", "{a}"], "3 given"),
        (["--before", "{a}"], "--after is missing"),
        (["{a}", "--before", "{a}", "--after", "{b}", "-o", "x.html"], "not both"),
        (["{a}", "missing.json"], "missing.json"),
        (["{a}", "{b}", "--fail-on", "worse"], "METRIC:PERCENT"),
        (["{a}", "{b}", "--eval", "{a}"], "two files"),
        (["{a}", "{b}", "--eval", "{a}", "{b}"], "lm-evaluation-harness"),
        (["{a}", "{b}", "--json", "-", "--markdown", "-"], "standard output"),
    ],
)
def test_bad_use_is_one_line_and_writes_nothing(sides, cwd, capsys, arguments, said):
    given = [a.format(a=sides[0], b=sides[1]) for a in arguments]
    assert main(["compare", *given]) == 2
    _, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert said in err
    assert list(cwd.iterdir()) == []


def test_a_comparison_is_no_input(sides, cwd, capsys):
    assert main(["compare", *map(str, sides), "--json", "c.json", "--no-html"]) == 0
    capsys.readouterr()
    assert main(["compare", "c.json", str(sides[1])]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_quality_beside_speed(sides, cwd, capsys):
    for name, acc in (("e1.json", 0.70), ("e2.json", 0.60)):
        Path(name).write_text(json.dumps({"results": {"gsm8k": {"acc,none": acc, "acc_stderr,none": 0.01}}}))
    assert (
        main(["compare", *map(str, sides), "--eval", "e1.json", "e2.json", "--json", "-", "--no-html"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["quality"]["tasks"][0]["verdict"] == "regressed"


def test_nothing_private_is_written(sides, cwd, capsys, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hunter2-compare")
    assert main(["compare", *map(str, sides), "--json", "c.json", "--markdown", "c.md"]) == 0
    for path in cwd.iterdir():
        text = path.read_text()
        assert "hunter2-compare" not in text
        assert str(sides[0].parent) not in text


def test_documented_options_exist(capsys):
    """docs/compare.md names no option that the command does not have, and the checks it names can be parsed."""
    import re

    from diagnose.settle.gate import parse_gate

    text = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    assert main(["compare", "--help"]) == 0
    shown = capsys.readouterr().out
    lines = [
        line
        for block in re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
        for line in block.splitlines()
        if "diagnose compare" in line
    ]
    assert len(lines) >= 3
    for option in {o for line in lines for o in re.findall(r"--[a-z][a-z-]+", line)} | {
        "--force",
        "--no-html",
        "--json",
        "--markdown",
    }:
        assert option in shown, option
    for gate in re.findall(r"--fail-on ([\w:.%]+)", text):
        parse_gate(gate)
