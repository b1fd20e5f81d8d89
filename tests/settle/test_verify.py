"""Bets are settled by where the measured interval lies."""

import json
from pathlib import Path

import msgspec
import pytest

from diagnose import pipeline
from diagnose.cli import main
from diagnose.contract import Experiment, Interval, RunnerUpPrediction
from diagnose.errors import UsageError
from diagnose.settle.verify import Bet, make_bet, settle

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture(scope="module")
def launch_bound():
    return pipeline.run([SAMPLES / "generated_h100_decode_launch.json.gz"])


def bet(low, high, rival_low, rival_high, phase="decode"):
    return Bet(
        schema="diagnose-experiment/1", hypothesis="launch-gaps@decode", limit="launch_overhead", phase=phase, objective="step_time",
        statement="", baseline={"value": 6.4}, context={}, source=[],
        experiment=Experiment(
            change="x", command=None, metric="step time", prediction=Interval(low=low, high=high, unit="ms"),
            under_runner_up=RunnerUpPrediction(limit="hbm", low=rival_low, high=rival_high), refuted_if="", cost="", baseline=6.4,
        ),
    )  # fmt: skip


def test_confirmed_refuted_inconclusive(launch_bound):
    steps = [sum(s.attribution_ns.values()) / 1e6 for s in launch_bound.steps]
    now = sum(steps) / len(steps)
    # Four steps of one run: the interval is 5 % either side of the mean.
    assert settle(bet(0.9 * now, 1.1 * now, 2 * now, 3 * now), [launch_bound]).verdict == "confirmed"
    assert settle(bet(2 * now, 3 * now, 0.9 * now, 1.1 * now), [launch_bound]).verdict == "refuted"
    # Between the prediction and the runner-up's, or beyond the runner-up's: refuted; beyond the prediction, away from it: open.
    assert settle(bet(2 * now, 3 * now, 0.1 * now, 0.2 * now), [launch_bound]).verdict == "refuted"
    assert settle(bet(2 * now, 3 * now, 4 * now, 5 * now), [launch_bound]).verdict == "inconclusive"
    assert settle(bet(0.9 * now, 1.0 * now, 1.02 * now, 1.2 * now), [launch_bound]).verdict == "inconclusive"
    assert settle(bet(1, 2, 3, 4, phase="prefill"), [launch_bound]).verdict == "inconclusive"


def test_unchanged_run_refutes_its_own_bet(launch_bound, tmp_path, capsys):
    diagnosis = tmp_path / "d.json"
    diagnosis.write_bytes(msgspec.json.encode(launch_bound))
    file = tmp_path / "bet.json"
    top = launch_bound.hypotheses[0].id
    assert main(["experiment", str(diagnosis), top, "-o", str(file)]) == 0
    capsys.readouterr()
    assert main(["verify", str(file), str(diagnosis), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == "refuted"
    assert result["changed"] == []
    assert main(["verify", str(file), str(diagnosis), "--fail-on", "refuted"]) == 1


def test_unknown_hypothesis_names_the_near_one(launch_bound):
    with pytest.raises(UsageError, match="launch-gaps@decode"):
        make_bet(launch_bound, "launch-gap@decode")


def test_garbage_experiment_file_is_one_line(tmp_path, capsys):
    file = tmp_path / "x.json"
    file.write_text("{}")
    assert main(["verify", str(file), str(SAMPLES / "generated_h100_decode_launch.json.gz")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "diagnose experiment" in error
