"""Run the command line in this process, as a user would."""

import gzip
import shutil
from pathlib import Path

import pytest

from diagnose.cli import main

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture
def cli(capsys):
    def call(*arguments):
        code = main([str(a) for a in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def sample(tmp_path):
    """A copy of a small generated trace in a folder of its own."""
    path = tmp_path / "run.json.gz"
    shutil.copy(SAMPLES / "generated_h100_decode_launch.json.gz", path)
    return path


@pytest.fixture
def plain(sample, tmp_path):
    path = tmp_path / "plain.json"
    path.write_bytes(gzip.decompress(sample.read_bytes()))
    return path
