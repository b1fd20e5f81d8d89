"""`--model FILE|NAME`: a Hugging Face config.json, or a name from the small catalog, as a ModelConfig."""

import difflib
import json
import re
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from diagnose.errors import InputError
from diagnose.serving.model_config import Layer, Mla, ModelConfig
from diagnose.serving.model_encdec import add_encoder_decoder, is_encoder_decoder
from diagnose.serving.model_families import family
from diagnose.serving.model_plan import build_plan, first
from diagnose.serving.model_state import state_layer
from diagnose.serving.model_tensors import Inventory
from diagnose.serving.quant import dtype_name, parse_quantization

MAX_CONFIG_BYTES = 16 * 1024 * 1024
_NESTED = (
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "thinker_config",
    "decoder",
)
_SUFFIXES = (
    "-instruct",
    "-chat",
    "-it",
    "-base",
    "-hf",
    "-pt",
    "-instruct-2507",
    "-thinking-2507",
    "-bf16",
    "-distill",
)
_RENAMES = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "kimi_k25": "kimi_k2",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
}


@cache
def _catalog() -> dict[str, dict[str, Any]]:
    text = resources.files("diagnose.serving").joinpath("models.toml").read_text(encoding="utf-8")
    return {m["name"]: m for m in tomllib.loads(text)["model"]}


def known_models() -> list[str]:
    """Names `load_model` knows without a file, in catalog order."""
    return list(_catalog())


def _key(name: str) -> str:
    text = name.lower().rsplit("/", 1)[-1].removeprefix("meta-").replace("_", "-").replace(" ", "-")
    changed = True
    while changed:
        changed = False
        for suffix in _SUFFIXES:
            if text.endswith(suffix):
                text, changed = text.removesuffix(suffix), True
    return re.sub(r"-v0\.\d$", "", text)


@cache
def _index() -> dict[str, str]:
    index = {}
    for name, row in _catalog().items():
        for alias in (name, *row.get("aliases", ())):
            index[_key(alias)] = name
    return index


def is_known(name: str) -> bool:
    """Whether a name (not a path) is one that `load_model` knows."""
    return _key(name) in _index()


def load_model(arg: str) -> ModelConfig:
    """The model of `--model`: a config.json (or the folder that holds it), else a known name,
    case-insensitive.

    InputError when it is neither; the message names the nearest known names.
    """
    path = Path(arg).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return model_from_config(read_config(path), name=None, source="config.json")
    if arg.endswith(".json"):
        raise InputError(f"{arg}: no such file; give the model's config.json or one of its known names")
    name = _index().get(_key(arg))
    if name is None:
        near = difflib.get_close_matches(_key(arg), _index(), n=3, cutoff=0.6)
        hint = f"; near: {', '.join(dict.fromkeys(_index()[n] for n in near))}" if near else ""
        raise InputError(f"model {arg!r} is not known here{hint}; give the path of its config.json")
    row = _catalog()[name]
    # An alias is another release with the same sizes: it keeps its own name.
    shown = name if _key(name) == _key(arg) else f"{arg} (sizes of {name})"
    return model_from_config(row["config"], name=shown, source=f"catalog: {row['source']}")


def read_config(path: Path) -> dict[str, Any]:
    """A config.json as a dict; InputError when it cannot be read or is not one."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(
                f"{path.name}: {path.stat().st_size} bytes is no model config; give the model's config.json"
            )
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path.name}: not valid JSON ({str(error)[:80]}); give the model's config.json"
        ) from error
    except OSError as error:
        raise InputError(
            f"{path.name}: cannot be read ({error.strerror}); give the model's config.json"
        ) from error
    if not isinstance(data, dict):
        raise InputError(f"{path.name}: a model config is a JSON object; give the model's config.json")
    return data


def looks_like_config(data: Any) -> bool:
    """Whether parsed JSON is a Hugging Face model config."""
    if not isinstance(data, dict):
        return False
    sizes = (
        "hidden_size",
        "n_embd",
        "d_model",
        "text_config",
        "llm_config",
        "thinker_config",
        "language_config",
    )
    return any(k in data for k in sizes) and ("model_type" in data or "architectures" in data)


def _flatten(config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The text model's config with what the outer one adds, and what was left out."""
    notes: list[str] = []
    inner = config
    for _ in range(3):
        for key in _NESTED:
            if isinstance(inner.get(key), dict) and (key != "decoder" or "hidden_size" not in inner):
                outer, inner = inner, dict(inner[key])
                for keep in (
                    "quantization_config",
                    "torch_dtype",
                    "dtype",
                    "tie_word_embeddings",
                    "compression_config",
                    "vocab_size",
                ):
                    if keep in outer and keep not in inner:
                        inner[keep] = outer[keep]
                inner.setdefault("model_type", str(outer.get("model_type", "")))
                notes.append("weights outside the text model (vision or audio towers) are not counted")
                break
        else:
            break
    for key in ("attn_config", "ffn_config"):
        if isinstance(inner.get(key), dict):
            inner = {**inner, **{f"{key}.{k}": v for k, v in inner[key].items()}}
    inner["model_type"] = _RENAMES.get(str(inner.get("model_type", "")), str(inner.get("model_type", "")))
    return inner, list(dict.fromkeys(notes))


def _kv_heads(config: dict[str, Any], heads: int) -> int:
    kind = config["model_type"]
    if kind == "falcon":
        if config.get("new_decoder_architecture"):
            return int(config.get("num_kv_heads") or heads)
        return 1 if config.get("multi_query", True) else heads
    if kind == "gpt_bigcode":
        return 1 if config.get("multi_query", True) else heads
    if kind == "chatglm":
        return (
            int(config.get("multi_query_group_num", heads)) if config.get("multi_query_attention") else heads
        )
    return int(first(config, "num_key_value_heads", "attn_config.kv_n_heads", "num_kv_heads") or heads)


def _require(config: dict[str, Any], what: str, *keys: str) -> int:
    value = first(config, *keys)
    if not isinstance(value, int) or value <= 0:
        raise InputError(
            f"model config has no usable {what} ({' or '.join(keys)}); give the model's full config.json"
        )
    return value


def model_from_config(
    config: dict[str, Any], name: str | None = None, source: str = "config.json"
) -> ModelConfig:
    """A ModelConfig from a parsed config.json. InputError when layers, heads, width or vocabulary are
    missing."""
    outer_name = name or str(config.get("_name_or_path") or "").rsplit("/", 1)[-1] or None
    c, notes = _flatten(config)
    kind = c["model_type"]
    fam, known = family(kind)
    if not known:
        notes.append(
            f"model_type {kind or 'absent'!r} is not a known family; weights assume Llama-like layers"
        )
    encdec = is_encoder_decoder(c)
    layer_keys = ("decoder_layers", "num_decoder_layers") if encdec else ()
    layers = _require(c, "layer count", *layer_keys, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    hidden = _require(c, "hidden size", "hidden_size", "n_embd", "d_model")
    heads = _require(
        c,
        "head count",
        *(("decoder_attention_heads", "num_heads") if encdec else ()),
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
    )
    vocab = _require(c, "vocabulary size", "padded_vocab_size", "vocab_size")
    head_dim = int(first(c, "head_dim", "kv_channels", "d_kv", "attention_head_dim") or hidden // heads)
    v_dim = head_dim
    mla = None
    if c.get("kv_lora_rank"):
        mla = Mla(
            int(c["kv_lora_rank"]), int(c.get("qk_rope_head_dim", 64)), int(c.get("qk_nope_head_dim", 128)),
            int(c["q_lora_rank"]) if c.get("q_lora_rank") else None,
            int(c.get("index_n_heads") or 0), int(c.get("index_head_dim") or 0),
        )  # fmt: skip
        v_dim = int(c.get("v_head_dim", 128))
        head_dim = mla.nope + mla.rope
    kv_heads = heads if encdec else _kv_heads(c, heads)
    inter = first(
        c,
        "intermediate_size",
        "ffn_hidden_size",
        "n_inner",
        "ffn_dim",
        "d_ff",
        "decoder_ffn_dim",
        "ffn_config.ffn_hidden_size",
    )
    if isinstance(inter, list):
        inter = max(inter)
    inter = int(inter or int(c.get("expansion_ratio", 4)) * hidden)
    experts = int(
        first(
            c,
            "num_local_experts",
            "n_routed_experts",
            "num_experts",
            "moe_num_experts",
            "ffn_config.moe_num_experts",
        )
        or 0
    )
    per_token = first(
        c,
        "num_experts_per_tok",
        "moe_k",
        "experts_per_token",
        "top_k_experts",
        "moe_topk",
        "ffn_config.moe_top_k",
    )
    per_token = int(per_token[0] if isinstance(per_token, list) else per_token or 1) if experts else 0
    moe_inter = (
        int(
            first(c, "moe_intermediate_size", "expert_ffn_hidden_size", "ffn_config.ffn_hidden_size") or inter
        )
        if experts
        else 0
    )
    said = c.get("tie_word_embeddings")
    tied = said if isinstance(said, bool) else fam.tied
    if kind in {"mpt", "gpt_bigcode"}:
        tied = True
    base = Layer(heads=heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=v_dim)
    plan = build_plan(c, layers, base, experts)
    inv = Inventory(c, fam, hidden, plan, mla)
    shared = int(first(c, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts") or 0)
    shared_inter = int(
        first(c, "shared_expert_intermediate_size", "shared_intermediate_size") or shared * moe_inter
    )
    if kind == "llama4_text":
        shared, shared_inter = 1, inter
    exact, state, encoder_layers = known, 0.0, 0
    if encdec:
        encoder_layers = add_encoder_decoder(inv, c, plan, vocab, tied)
    else:
        for i, layer in enumerate(plan):
            if layer.attention in {"mamba", "linear", "parallel"}:
                elements = state_layer(inv, i, c)
                if elements is None:
                    exact = False
                    notes.append(
                        "state-space layers of this family are not modelled: weights and state are missing"
                    )
                else:
                    state += elements
            if layer.attention not in {"mamba", "linear", "none"}:
                inv.attention(i, layer)
            if layer.mlp == "moe":
                inv.moe(i, experts, moe_inter, shared_inter)
            elif layer.mlp == "dense":
                dense = int(c.get("intermediate_size_mlp") or inter) if kind == "llama4_text" else inter
                if kind == "granitemoehybrid":
                    dense = shared_inter or inter
                inv.dense_mlp(i, dense)
            inv.norms(i, layer)
        inv.ends(vocab, tied)
    if any(layer.kv_shared for layer in plan):
        exact = False
        notes.append(
            "layers share caches and have per-layer extras that are not counted; parameters are an estimate"
        )
    dtype = dtype_name(str(first(c, "torch_dtype", "dtype") or "bfloat16")) or "bf16"
    quant = parse_quantization(c.get("quantization_config") or c.get("compression_config"))
    if quant and quant.note:
        notes.append(quant.note)
    window = first(c, "sliding_window", "attention_chunk_size")
    return ModelConfig(
        name=outer_name or kind or "model", model_type=kind, source=source, hidden=hidden, heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim, v_head_dim=v_dim, intermediate=inter, vocab=vocab, tied=tied, plan=plan,
        tensors=tuple(inv.out), dtype=dtype, experts=experts, experts_per_token=per_token,
        moe_intermediate=moe_inter,
        shared_experts=shared, first_k_dense=int(c.get("first_k_dense_replace") or 0),
        sliding_window=int(window) if window and any(layer.window for layer in plan) else None, mla=mla,
        quant=quant,
        max_context=first(c, "max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
        state_bytes_per_sequence=state * 2.0, cross_layers=layers if encdec else 0,
        encoder_layers=encoder_layers,
        gated_mlp=fam.gated, params_exact=exact, notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip
