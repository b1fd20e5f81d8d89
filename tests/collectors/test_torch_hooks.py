"""What is read from one call of a model, and which module of a script is taken for the model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diagnose.collectors.step_text import Step
from diagnose.collectors.torch_capture import capture
from diagnose.collectors.torch_hooks import ForwardSteps, read_step

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class SomethingForCausalLM:
    """Stands for a decoder."""


class BertModel:
    """Stands for an encoder."""


class StaticCache:
    """Counts its tokens on the device, so it must not be asked."""

    def get_seq_length(self) -> int:
        raise AssertionError("a static cache was asked for its length")


class DynamicCache:
    """Knows its length from shapes."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def get_seq_length(self) -> Any:
        return self.length


def ids(batch: int, tokens: int) -> Any:
    return torch.zeros(batch, tokens, dtype=torch.long)


LM = SomethingForCausalLM()


@pytest.mark.parametrize(
    ("module", "args", "kwargs", "counted", "expected"),
    [
        # A prompt without a cache: nothing was held before it.
        (LM, (ids(2, 7),), {}, None, Step("prefill", 2, 14, 14)),
        # A chunk of a prompt on top of 32 cached tokens.
        (LM, (), {"input_ids": ids(2, 8), "past_key_values": DynamicCache(32)}, None, Step("prefill", 2, 16, 80)),
        (LM, (), {"input_ids": ids(4, 1), "past_key_values": DynamicCache(99)}, None, Step("decode", 4, 4, 400)),
        # The mask spans what is held and what is new: 10 tokens each.
        (LM, (), {"input_ids": ids(3, 1), "attention_mask": torch.ones(3, 10), "past_key_values": StaticCache()}, None,
         Step("decode", 3, 3, 30)),
        # Counted along from the call before, while the batch stays the same.
        (LM, (ids(3, 1),), {}, (3, 20), Step("decode", 3, 3, 63)),
        (LM, (ids(2, 1),), {}, (3, 20), Step("decode", 2, 2, None)),
        # A length that is a tensor would have to be read from the device.
        (LM, (ids(2, 1),), {"past_key_values": DynamicCache(torch.tensor(5))}, None, Step("decode", 2, 2, None)),
        (LM, (), {"inputs_embeds": torch.zeros(2, 6, 8)}, None, Step("prefill", 2, 12, 12)),
        (BertModel(), (ids(2, 7),), {}, None, Step("encode", 2, 14)),
        (LM, (torch.zeros(1, 3, 8, 8),), {}, None, Step("encode")),
        (LM, (3.0,), {}, None, Step("other")),
        (LM, (torch.zeros(5, dtype=torch.long),), {}, None, Step("prefill", 1, 5, 5)),
    ],
)  # fmt: skip
def test_one_call(
    module: Any, args: Any, kwargs: Any, counted: tuple[int, int] | None, expected: Step
) -> None:
    assert read_step(module, args, kwargs, counted)[0] == expected


def test_a_tuple_cache_tells_its_length_by_its_shape() -> None:
    layer = (torch.zeros(2, 4, 30, 8), torch.zeros(2, 4, 30, 8))
    step, counted = read_step(LM, (ids(2, 1),), {"past_key_values": (layer, layer)}, None)
    assert step == Step("decode", 2, 2, 62) and counted == (2, 31)


def test_the_largest_outermost_module_is_the_model_and_everything_is_put_back(tmp_path: Path) -> None:
    small, large = torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Linear(64, 4))
    before = torch.nn.Module.__call__
    with capture(tmp_path / "a.run", warmup=3, steps=4) as cap:
        steps = ForwardSteps(cap)
        steps.install()
        for _ in range(9):
            small(torch.zeros(1, 4))
            large(torch.zeros(1, 4))
            if cap.done:
                break
        assert steps.model is large
        assert cap.path is not None and len(cap.recorded) == 4
    assert torch.nn.Module.__call__ is before
    assert "__call__" not in vars(torch.nn.Sequential) and "__call__" not in vars(torch.nn.Linear)


def test_an_error_in_the_model_goes_through_and_is_no_step(tmp_path: Path) -> None:
    class Failing(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            raise ValueError("mine")

    model = Failing()
    with capture(tmp_path / "a.run", warmup=1, steps=1) as cap:
        steps = ForwardSteps(cap)
        steps.install()
        with pytest.raises(ValueError, match="mine"):
            model(ids(1, 1))
        steps.remove()
        assert cap.seen == 0
    assert cap.path is None


def test_a_config_is_public(tmp_path: Path) -> None:
    from diagnose.collectors.runfolder import public_config

    config = SimpleNamespace(
        hidden_size=8, _name_or_path="/home/alice/m", torch_dtype=torch.bfloat16, tokenizer="~/tok", url="http://x/y",
        rope={"theta": 1e4, "_private": 1}, repo="Qwen/Qwen3-8B", mail="a@b.c", layers=("full", "sliding"),
    )  # fmt: skip
    assert public_config(config) == {
        "hidden_size": 8, "torch_dtype": "bfloat16", "rope": {"theta": 1e4}, "repo": "Qwen/Qwen3-8B",
        "layers": ["full", "sliding"],
    }  # fmt: skip
    assert public_config(None) is None
