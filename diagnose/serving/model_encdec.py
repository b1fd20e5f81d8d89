"""Encoder–decoder models (T5, BART, Whisper): encoder layers and cross-attention beside the decoder's own
layers.

The cross-attention cache holds the encoder's tokens once a sequence: it does not grow while decoding.
Counts follow the public Hugging Face modules.
"""

from collections.abc import Mapping
from typing import Any

from diagnose.serving.model_config import Layer
from diagnose.serving.model_plan import first
from diagnose.serving.model_tensors import Inventory

Config = Mapping[str, Any]

KINDS = {"t5", "mt5", "umt5", "bart", "mbart", "whisper", "marian", "pegasus", "m2m_100", "blenderbot"}


def is_encoder_decoder(config: Config) -> bool:
    """Whether the config describes one of the known encoder–decoder families."""
    return config.get("model_type") in KINDS


def _attention(inv: Inventory, i: int, name: str, layer: Layer) -> None:
    h, d = inv.hidden, layer.head_dim
    bias = inv.fam.qkv_bias
    inv.linear("attention", "q", f"{name}.q_proj", layer.heads * d, h, "column", i, bias=bias)
    inv.linear(
        "attention", "k", f"{name}.k_proj", layer.heads * d, h, "kv", i, bias=bias and inv.kind != "whisper"
    )
    inv.linear("attention", "v", f"{name}.v_proj", layer.heads * d, h, "kv", i, bias=bias)
    inv.linear("attention", "o", f"{name}.o_proj", h, layer.heads * d, "row", i, bias=bias)


def add_encoder_decoder(
    inv: Inventory, config: Config, plan: tuple[Layer, ...], vocab: int, tied: bool
) -> int:
    """Add all tensors of an encoder–decoder model; returns the number of encoder layers.

    Encoder tensors carry no layer index: they are not part of a decode step.
    """
    h = inv.hidden
    t5 = inv.kind.endswith("t5")
    scale = 1 if t5 else 2
    inter = int(first(config, "d_ff", "decoder_ffn_dim") or 4 * h)
    enc_inter = int(first(config, "d_ff", "encoder_ffn_dim") or inter)
    encoder_layers = int(first(config, "encoder_layers", "num_layers", "num_hidden_layers") or len(plan))
    enc_heads = int(first(config, "encoder_attention_heads", "num_heads") or plan[0].heads)
    d_enc = int(config.get("d_kv") or h // enc_heads)
    for i, layer in enumerate(plan):
        _attention(inv, i, f"model.decoder.layers.{i}.self_attn", layer)
        _attention(inv, i, f"model.decoder.layers.{i}.encoder_attn", layer)
        inv.dense_mlp(i, inter)
        inv.vector("norm", "norm", "model.decoder.norm", 3 * h * scale, i)
    for _ in range(encoder_layers):
        attn = 4 * h * enc_heads * d_enc + (
            (4 if inv.kind != "whisper" else 3) * h if inv.fam.qkv_bias else 0
        )
        gated = 3 if config.get("feed_forward_proj", "").startswith("gated") else 2
        mlp = gated * h * enc_inter + (enc_inter + h if inv.fam.mlp_bias else 0)
        inv.vector("other", "encoder", "model.encoder", attn + mlp + 2 * h * scale, None)
    if t5:
        buckets = int(config.get("relative_attention_num_buckets", 32))
        inv.vector("other", "relative_bias", "model.relative", buckets * (enc_heads + plan[0].heads), None)
    elif inv.kind == "whisper":
        mels = int(config.get("num_mel_bins", 80))
        inv.vector("other", "conv", "model.encoder.conv", mels * h * 3 + h + h * h * 3 + h, None)
        inv.vector(
            "other",
            "positions",
            "model.encoder.embed_positions",
            int(config.get("max_source_positions", 1500)) * h,
            None,
        )
        inv.vector(
            "embed",
            "positions",
            "model.decoder.embed_positions",
            int(config.get("max_target_positions", 448)) * h,
            None,
        )
    else:
        rows = int(config.get("max_position_embeddings", 1024)) + 2
        inv.vector("embed", "positions", "model.embed_positions", 2 * rows * h, None)
        inv.vector("norm", "embed_norm", "model.layernorm_embedding", 2 * h * scale, None)
    if t5 or inv.kind == "whisper":
        inv.vector("norm", "final_norm", "model.norm", 2 * h * scale, None)
    inv.linear("embed", "embed", "model.shared", vocab, h, "vocab", None)
    if not tied:
        inv.linear("head", "head", "lm_head", vocab, h, "vocab", None)
    return encoder_layers
