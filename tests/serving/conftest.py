"""Files of evidence for the tests of this folder; the builders are importable as `serving_forms`."""

import sys
from pathlib import Path

import pytest

from diagnose.serving.evidence import read_evidence
from diagnose.serving.signals import derive_signals

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def make(tmp_path):
    """make(log=..., bench=..., metrics=...) -> Evidence; texts become files and are read back."""

    def build(log=None, bench=None, metrics=None):
        paths: dict[str, list[Path]] = {}
        for kind, text, name in (
            ("logs", log, "server.log"),
            ("benches", bench, "bench.json"),
            ("metrics", metrics, "m.prom"),
        ):
            if text is not None:
                path = tmp_path / name
                path.write_text(text)
                paths[kind] = [path]
        return read_evidence(**paths)

    return build


@pytest.fixture
def signals(make):
    """signals(log=..., ...) -> Signals."""

    def build(**kw):
        return derive_signals(make(**kw))

    return build
