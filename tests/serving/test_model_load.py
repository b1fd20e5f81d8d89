"""`--model FILE|NAME`: names, files, bad input, quantisation formats."""

import json

import pytest

from diagnose.errors import InputError
from diagnose.serving.model_load import load_model, looks_like_config, model_from_config

TINY = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("qwen/qwen3-8b", "Qwen/Qwen3-8B"), ("Llama-3.3-70B-Instruct", "Llama-3.3-70B-Instruct (sizes of meta-llama/Meta-Llama-3-70B)"),
        ("mistral-7b", "mistralai/Mistral-7B-v0.1"), ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b"),
        ("GPT-OSS-20B", "openai/gpt-oss-20b"), ("google/gemma-2-9b-it", "google/gemma-2-9b"),
    ],
)  # fmt: skip
def test_names_are_forgiving(asked, name):
    assert load_model(asked).name == name


def test_unknown_name_suggests():
    with pytest.raises(InputError, match="Qwen/Qwen3-8B") as error:
        load_model("qwen3-8x")
    assert "\n" not in str(error.value)


def test_a_quantised_name_is_not_taken_for_the_plain_model():
    with pytest.raises(InputError, match=r"config\.json"):
        load_model("Qwen/Qwen3-8B-AWQ")


def test_file_and_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    assert load_model(str(tmp_path)).layers == load_model(str(tmp_path / "config.json")).layers == 2


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"hidden_size": 8}',
        b'{"model_type":"llama","hidden_size":"x"}',
        b"\xff\xfe",
        b"[" * 100000,
    ],
)
def test_bad_files_say_one_line(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_model(str(path))
    assert "\n" not in str(error.value)
    assert "config.json" in str(error.value)


def test_missing_file():
    with pytest.raises(InputError, match="no such file"):
        load_model("nowhere/config.json")


def test_looks_like_config():
    assert looks_like_config(TINY)
    assert not looks_like_config({"traceEvents": []})
    assert not looks_like_config([TINY])


def mlp_bytes(quant):
    return model_from_config({**TINY, "quantization_config": quant}).weight_bytes()


N = 2 * 3 * 512 * 1024  # MLP weights of both layers; gate and up are 1024 x 512, down 512 x 1024


def test_gptq_and_awq_carry_scales_and_zeros():
    w = mlp_bytes({"quant_method": "gptq", "bits": 4, "group_size": 128})
    groups = N / 128
    assert w.mlp == N / 2 + groups * 2 + groups * 0.5
    w = mlp_bytes({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True})
    assert w.mlp == N / 2 + groups * 2 + groups * 0.5
    assert w.embed == 1000 * 512 * 2  # embedding and head stay bf16
    assert w.head == 1000 * 512 * 2


def test_fp8_per_tensor_and_block():
    assert mlp_bytes({"quant_method": "fp8"}).mlp == N + 6 * 4
    w = mlp_bytes({"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert w.mlp == N + N / (128 * 128) * 4


def test_compressed_tensors_w8a8_and_nvfp4():
    def group(weights, acts):
        return {
            "quant_method": "compressed-tensors",
            "ignore": ["lm_head"],
            "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": acts}
            },
        }

    w = mlp_bytes(
        group({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}, {"num_bits": 8})
    )
    assert w.mlp == N + 2 * (1024 * 2 + 512) * 4
    w = mlp_bytes(
        group({"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}, {"num_bits": 4})
    )
    assert w.mlp == N / 2 + N / 16 + 6 * 4


def test_skip_lists():
    w = mlp_bytes({"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.mlp.gate_proj"]})
    one = 512 * 1024
    assert w.mlp == N + one + 5 * 4
    w = mlp_bytes({"quant_method": "fp8", "ignore": ["re:.*mlp.*"]})
    assert w.mlp == 2 * N


def test_bitsandbytes():
    assert mlp_bytes({"quant_method": "bitsandbytes", "load_in_4bit": True}).mlp == N / 2 + N / 64 * 4
    assert (
        mlp_bytes({"quant_method": "bitsandbytes", "load_in_8bit": True}).mlp == N + 2 * (1024 * 2 + 512) * 4
    )


def test_unknown_quantisation_is_said():
    m = model_from_config({**TINY, "quantization_config": {"quant_method": "mystery"}})
    assert "not known" in m.notes[-1]


def test_unknown_family_is_said():
    m = model_from_config({**TINY, "model_type": "brandnew"})
    assert not m.params_exact
    assert "brandnew" in m.notes[0]
