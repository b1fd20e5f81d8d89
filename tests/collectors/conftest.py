"""Small torch targets for the capture tests."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TINY = """
import sys
import torch
from torch import nn

class Cache:
    def __init__(self): self.n = 0
    def get_seq_length(self): return self.n

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = {"hidden_size": 32, "num_hidden_layers": 1, "_name_or_path": "/home/someone/model"}
        self.embed = nn.Embedding(50, 32)
        self.body = nn.Linear(32, 32)
        self.head = nn.Linear(32, 50)
    def forward(self, input_ids, past_key_values=None):
        if past_key_values is not None: past_key_values.n += input_ids.shape[1]
        return self.head(self.body(self.embed(input_ids))[:, -1:]).argmax(-1)

model = Tiny().eval()
cache = Cache()

@torch.inference_mode()
def loop(steps, batch=2, prompt=5):
    ids = model(torch.zeros(batch, prompt, dtype=torch.long), cache)
    for _ in range(steps):
        ids = model(ids, cache)
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Write a target script: the tiny model followed by the given lines."""

    def write(body: str, name: str = "target.py") -> Path:
        path = tmp_path / name
        path.write_text(TINY + body)
        return path

    return write


@pytest.fixture
def read_trace() -> Callable[[Path], dict[str, Any]]:
    """Read a gzip Kineto trace."""

    def read(path: Path) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        return document

    return read


@pytest.fixture
def leftovers() -> Callable[[Path], list[str]]:
    """Names of capture folders, whole or hidden, under a path."""

    def find(folder: Path) -> list[str]:
        return sorted(
            p.name for p in folder.iterdir() if p.is_dir() and (".run" in p.name or "partial" in p.name)
        )

    return find
