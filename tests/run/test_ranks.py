"""Several ranks of one job through the whole pipeline, on simulated traces."""

import sys
from pathlib import Path

import pytest

from diagnose import pipeline

sys.path.insert(0, str(Path(__file__).parents[1] / "scenarios"))


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    from sim.registry import generate

    folder = tmp_path_factory.mktemp("ranks")
    truth = generate("straggler-tp", 1, folder)
    return folder, truth


def test_straggler_is_named_and_nothing_is_averaged(eight):
    folder, _truth = eight
    traces = sorted(
        p
        for p in folder.iterdir()
        if p.name.endswith((".json", ".json.gz", ".sqlite")) and "truth" not in p.name
    )
    d = pipeline.run(traces)
    if len(traces) > 1:
        assert len(d.ranks) == len(traces)
    assert d.rank_summary is not None
    assert d.rank_summary["straggler"] is not None
    assert d.verdict.limit == "imbalance"
    late = d.rank_summary["straggler"]["label"]
    assert late in d.verdict.summary
    for rank in d.ranks or []:
        for device in rank.devices:
            assert sum(device.attribution_ns.values()) == device.window.wall_ns
