"""State-space and linear-attention layers: their tensors, and the constant state each sequence keeps.

Shapes follow the public Hugging Face modules of Jamba (Mamba 1), Bamba, Nemotron-H, Granite and Falcon-H1
(Mamba 2) and Qwen3-Next (gated delta net). The state does not grow with the context: 0 bytes a token.
"""

import math
from collections.abc import Mapping
from typing import Any

from diagnose.serving.model_plan import first
from diagnose.serving.model_tensors import Inventory

Config = Mapping[str, Any]


def _mamba2(inv: Inventory, i: int, c: Config) -> float:
    h = inv.hidden
    heads = int(first(c, "mamba_n_heads", "mamba_num_heads") or 0)
    dim = first(c, "mamba_d_head", "mamba_head_dim")
    inner = int(c.get("mamba_d_ssm") or 0) or int(int(first(c, "mamba_expand", "expand") or 2) * h)
    if isinstance(dim, int) and heads:
        inner = heads * dim
    elif heads:
        dim = inner // heads
    state = int(first(c, "mamba_d_state", "ssm_state_size") or 128)
    groups = int(first(c, "mamba_n_groups", "n_groups") or 1)
    kernel = int(first(c, "mamba_d_conv", "conv_kernel") or 4)
    bias = bool(first(c, "mamba_proj_bias", "use_bias") or False)
    conv = inner + 2 * groups * state
    name = f"model.layers.{i}.mamba"
    inv.linear("attention", "ssm_in", f"{name}.in_proj", inner + conv + heads, h, "column", i, bias=bias)
    inv.linear("other", "ssm_conv", f"{name}.conv1d", conv, kernel, "column", i)
    if first(c, "mamba_conv_bias", "use_conv_bias") in {None, True}:
        inv.vector("other", "ssm_conv_bias", name, conv, i)
    inv.vector("other", "ssm_heads", name, 3 * heads, i)
    if inv.kind != "falcon_h1" or c.get("mamba_rms_norm"):
        inv.vector("norm", "ssm_norm", name, inner, i)
    inv.linear("attention", "ssm_out", f"{name}.out_proj", h, inner, "row", i, bias=bias)
    return inner * state + conv * (kernel - 1)


def _mamba1(inv: Inventory, i: int, c: Config) -> float:
    h = inv.hidden
    inner = int(c.get("mamba_expand", 2)) * h
    state, kernel = int(c.get("mamba_d_state", 16)), int(c.get("mamba_d_conv", 4))
    rank = c.get("mamba_dt_rank", "auto")
    rank = math.ceil(h / 16) if rank == "auto" else int(rank)
    bias = bool(c.get("mamba_proj_bias", False))
    name = f"model.layers.{i}.mamba"
    inv.linear("attention", "ssm_in", f"{name}.in_proj", 2 * inner, h, "column", i, bias=bias)
    inv.linear("other", "ssm_conv", f"{name}.conv1d", inner, kernel, "column", i)
    if c.get("mamba_conv_bias", True):
        inv.vector("other", "ssm_conv_bias", name, inner, i)
    inv.linear("attention", "ssm_x", f"{name}.x_proj", rank + 2 * state, inner, "row", i)
    inv.linear("attention", "ssm_dt", f"{name}.dt_proj", inner, rank, "column", i, bias=True)
    inv.vector("other", "ssm_a", name, inner * state + inner, i)
    inv.vector("norm", "ssm_norm", name, rank + 2 * state, i)
    inv.linear("attention", "ssm_out", f"{name}.out_proj", h, inner, "row", i, bias=bias)
    return inner * state + inner * (kernel - 1)


def _delta_net(inv: Inventory, i: int, c: Config) -> float:
    h = inv.hidden
    k_heads, v_heads = int(c.get("linear_num_key_heads", 16)), int(c.get("linear_num_value_heads", 32))
    k_dim, v_dim = int(c.get("linear_key_head_dim", 128)), int(c.get("linear_value_head_dim", 128))
    kernel = int(c.get("linear_conv_kernel_dim", 4))
    key, value = k_heads * k_dim, v_heads * v_dim
    name = f"model.layers.{i}.linear_attn"
    inv.linear("attention", "gdn_in", f"{name}.in_proj_qkvz", 2 * key + 2 * value, h, "column", i)
    inv.linear("attention", "gdn_ba", f"{name}.in_proj_ba", 2 * v_heads, h, "column", i)
    inv.linear("other", "gdn_conv", f"{name}.conv1d", 2 * key + value, kernel, "column", i)
    inv.vector("other", "gdn_heads", name, 2 * v_heads, i)
    inv.vector("norm", "gdn_norm", name, v_dim, i)
    inv.linear("attention", "gdn_out", f"{name}.out_proj", h, value, "row", i)
    return v_heads * k_dim * v_dim + (2 * key + value) * (kernel - 1)


def state_layer(inv: Inventory, i: int, config: Config) -> float | None:
    """Add the tensors of a state-space layer; returns state elements a sequence, None when the kind is not
    known."""
    if config.get("linear_num_value_heads") or inv.kind == "qwen3_next":
        return _delta_net(inv, i, config)
    if inv.kind == "jamba" or (config.get("mamba_dt_rank") is not None and not config.get("mamba_n_heads")):
        return _mamba1(inv, i, config)
    if first(config, "mamba_n_heads", "mamba_num_heads") is not None:
        return _mamba2(inv, i, config)
    return None
