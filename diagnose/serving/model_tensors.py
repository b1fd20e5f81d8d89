"""Every tensor a model stores, by layer: the inventory that parameter counts, weight bytes and projections
come from."""

from collections.abc import Iterator, Mapping
from typing import Any

from diagnose.serving.model_config import Layer, Linear, Mla
from diagnose.serving.model_families import Family
from diagnose.serving.model_plan import first

Config = Mapping[str, Any]


class Inventory:
    """Collects tensors of one config. Names follow the Hugging Face modules so that skip lists can be
    applied."""

    def __init__(
        self, config: Config, fam: Family, hidden: int, plan: tuple[Layer, ...], mla: Mla | None
    ) -> None:
        self.config, self.fam, self.hidden, self.plan, self.mla = config, fam, hidden, plan, mla
        self.kind = str(config.get("model_type", ""))
        self.out: list[Linear] = []
        self.bias = {
            "attention": bool(config.get("attention_bias", False)),
            "mlp": bool(config.get("mlp_bias", False)),
        }

    def linear(self, component: str, role: str, module: str, n: int, k: int, shard: str, i: int | None,
               *, bias: bool = False, copies: int = 1) -> None:  # fmt: skip
        """A projection and, when it has one, its bias."""
        self.out.append(Linear(component, role, module, n, k, copies, shard, i))
        if bias:
            b_shard = "column" if shard in {"column", "kv", "vocab"} else "replicate"
            self.out.append(Linear(component, f"{role}_bias", module, n, 1, copies, b_shard, i))

    def vector(self, component: str, role: str, module: str, n: int, i: int | None, copies: int = 1) -> None:
        """A norm, sink or other vector."""
        if n:
            self.out.append(Linear(component, role, module, n, 1, copies, "replicate", i))

    # ---- attention

    def attention(self, i: int, layer: Layer) -> None:
        """Projections, q/k norms and sinks of one attention layer."""
        name = f"model.layers.{i}.self_attn"
        q_bias = self.fam.qkv_bias if "attention_bias" not in self.config else self.bias["attention"]
        o_bias = self.fam.o_bias if "attention_bias" not in self.config else self.bias["attention"]
        if self.kind in {"qwen2", "qwen2_moe", "chatglm"}:
            q_bias = bool(first(self.config, "qkv_bias", "add_qkv_bias") in {None, True})
            o_bias = bool(self.config.get("add_bias_linear", False))
        if self.kind in {"glm", "glm4", "glm4_moe", "stablelm"}:
            value = first(self.config, "attention_bias", "use_qkv_bias")
            q_bias, o_bias = self.kind in {"glm", "glm4"} if value is None else bool(value), False
        if self.kind == "falcon":
            q_bias = o_bias = bool(self.config.get("bias", False))
        if self.kind in {"mpt", "opt", "starcoder2"}:
            default = self.kind != "mpt"
            value = first(self.config, "use_bias", "enable_bias")
            q_bias = o_bias = default if value is None else bool(value)
            if self.kind == "mpt":
                q_bias = o_bias = not self.config.get("no_bias", True)
        if self.kind == "gpt_oss":
            q_bias = o_bias = self.config.get("attention_bias", True)
        h, d, dv = self.hidden, layer.head_dim, layer.v_head_dim
        if layer.attention == "mla" and self.mla:
            self._mla(i, name, layer)
            return
        gate = 2 if self.config.get("attn_output_gate") or self.kind == "qwen3_next" else 1
        self.linear("attention", "q", f"{name}.q_proj", gate * layer.heads * d, h, "column", i, bias=q_bias)
        if not layer.kv_shared:
            k_bias = q_bias and self.kind != "whisper"
            self.linear("attention", "k", f"{name}.k_proj", layer.kv_heads * d, h, "kv", i, bias=k_bias)
            self.linear("attention", "v", f"{name}.v_proj", layer.kv_heads * dv, h, "kv", i, bias=q_bias)
        self.linear("attention", "o", f"{name}.o_proj", h, layer.heads * dv, "row", i, bias=o_bias)
        if self.kind == "gpt_oss":
            self.vector("attention", "sinks", f"{name}.sinks", layer.heads, i)
        norm = self.fam.qk_norm
        if self.kind == "cohere" and self.config.get("use_qk_norm"):
            self.vector("norm", "qk_norm", name, layer.heads * d + layer.kv_heads * d, i)
        elif norm == "head" and self.config.get("use_qk_norm", True):
            self.vector("norm", "qk_norm", name, 2 * d, i)
        elif norm == "full":
            self.vector("norm", "qk_norm", name, (layer.heads + layer.kv_heads) * d, i)
        elif self.kind == "glm4_moe" and self.config.get("use_qk_norm"):
            self.vector("norm", "qk_norm", name, 2 * d, i)

    def _mla(self, i: int, name: str, layer: Layer) -> None:
        m, h = self.mla, self.hidden
        assert m is not None
        qk = m.nope + m.rope
        bias = self.bias["attention"]
        if m.q_lora_rank:
            self.linear("attention", "q_a", f"{name}.q_a_proj", m.q_lora_rank, h, "replicate", i, bias=bias)
        self.linear(
            "attention",
            "kv_a",
            f"{name}.kv_a_proj_with_mqa",
            m.kv_lora_rank + m.rope,
            h,
            "replicate",
            i,
            bias=bias,
        )
        if m.q_lora_rank:
            self.vector("norm", "q_a_norm", name, m.q_lora_rank, i)
            self.linear("attention", "q_b", f"{name}.q_b_proj", layer.heads * qk, m.q_lora_rank, "column", i)
        else:
            self.linear("attention", "q", f"{name}.q_proj", layer.heads * qk, h, "column", i)
        self.vector("norm", "kv_a_norm", name, m.kv_lora_rank, i)
        self.linear(
            "attention",
            "kv_b",
            f"{name}.kv_b_proj",
            layer.heads * (m.nope + layer.v_head_dim),
            m.kv_lora_rank,
            "column",
            i,
        )
        self.linear(
            "attention", "o", f"{name}.o_proj", h, layer.heads * layer.v_head_dim, "row", i, bias=bias
        )
        if m.index_dim:
            rank = m.q_lora_rank or h
            self.linear(
                "attention",
                "index_q",
                f"{name}.indexer.wq_b",
                m.index_heads * m.index_dim,
                rank,
                "replicate",
                i,
            )
            self.linear("attention", "index_k", f"{name}.indexer.wk", m.index_dim, h, "replicate", i)
            self.linear(
                "attention", "index_w", f"{name}.indexer.weights_proj", m.index_heads, h, "replicate", i
            )
            self.vector("norm", "index_norm", f"{name}.indexer", 2 * m.index_dim, i)

    # ---- MLP

    def dense_mlp(self, i: int, inter: int, prefix: str = "", component: str = "mlp", copies: int = 1,
                  module: str = "mlp") -> None:  # fmt: skip
        """Gate (where gated), up and down of a dense MLP, shared experts or one expert times `copies`."""
        name = f"model.layers.{i}.{module}"
        bias = self.fam.mlp_bias if "mlp_bias" not in self.config else self.bias["mlp"]
        if self.kind == "falcon":
            bias = bool(self.config.get("bias", False))
        if self.kind in {"opt", "starcoder2"}:
            value = first(self.config, "use_bias", "enable_bias")
            bias = True if value is None else bool(value)
        if self.kind == "mpt":
            bias = not self.config.get("no_bias", True)
        if self.kind == "gpt_oss":
            bias = True
        if self.fam.gated or self.config.get("feed_forward_proj", "").startswith("gated"):
            self.linear(
                component,
                f"{prefix}gate",
                f"{name}.gate_proj",
                inter,
                self.hidden,
                "column",
                i,
                bias=bias,
                copies=copies,
            )
        self.linear(
            component,
            f"{prefix}up",
            f"{name}.up_proj",
            inter,
            self.hidden,
            "column",
            i,
            bias=bias,
            copies=copies,
        )
        self.linear(
            component,
            f"{prefix}down",
            f"{name}.down_proj",
            self.hidden,
            inter,
            "row",
            i,
            bias=bias,
            copies=copies,
        )

    def moe(self, i: int, experts: int, inter: int, shared_inter: int) -> None:
        """Router, routed experts and shared expert of one MoE layer."""
        name = f"model.layers.{i}.mlp"
        self.linear(
            "router",
            "router",
            f"{name}.gate",
            experts,
            self.hidden,
            "replicate",
            i,
            bias=self.kind == "gpt_oss",
        )
        if self.kind in {"deepseek_v3", "kimi_k2", "deepseek_v32", "glm4_moe"}:
            self.vector("router", "router_correction", f"{name}.gate", experts, i)
        self.dense_mlp(i, inter, "experts_", "experts", experts, "mlp.experts.0")
        if shared_inter:
            self.dense_mlp(i, shared_inter, "shared_", "mlp", 1, "mlp.shared_experts")
            if self.kind in {"qwen2_moe", "qwen3_next"}:
                self.linear(
                    "router", "shared_router", f"{name}.shared_expert_gate", 1, self.hidden, "replicate", i
                )

    # ---- norms, embedding, head

    def norms(self, i: int, layer: Layer) -> None:
        """Norms over the hidden size."""
        count = self.fam.norms
        if self.kind == "falcon":
            count = (
                2
                if self.config.get("new_decoder_architecture")
                and self.config.get("num_ln_in_parallel_attn") != 1
                else 1
            )
            if not self.config.get("parallel_attn", True):
                count = 2
        if self.kind == "stablelm" and self.config.get("use_parallel_residual"):
            count = 1
        bias = self.fam.norm_bias
        for _ in range(count):
            self.vector("norm", "norm", f"model.layers.{i}.norm", self.hidden * (2 if bias else 1), i)

    def ends(self, vocab: int, tied: bool) -> None:
        """Embedding, positions, final norm and head."""
        width = int(self.config.get("word_embed_proj_dim") or self.hidden)
        self.linear("embed", "embed", "model.embed_tokens", vocab, width, "vocab", None)
        if width != self.hidden:
            self.linear("other", "embed_proj", "model.project_in", self.hidden, width, "replicate", None)
            self.linear("other", "embed_proj", "model.project_out", width, self.hidden, "replicate", None)
        if self.fam.position_key and self.config.get(self.fam.position_key):
            rows = int(self.config[self.fam.position_key]) + self.fam.position_extra
            self.linear("embed", "positions", "model.embed_positions", rows, self.hidden, "replicate", None)
        scale = 2 if self.fam.norm_bias else 1
        if self.fam.embed_norm:
            self.vector("norm", "embed_norm", "model.embed_norm", self.hidden * scale, None)
        final = self.fam.final_norm
        if self.kind == "opt":
            final = bool(self.config.get("do_layer_norm_before", True)) and not self.config.get(
                "_remove_final_layer_norm"
            )
        if final:
            self.vector("norm", "final_norm", "model.norm", self.hidden * scale, None)
        if not tied:
            self.linear("head", "head", "lm_head", vocab, width, "vocab", None, bias=self.fam.head_bias)

    def tensors(self) -> Iterator[Linear]:
        """What has been collected."""
        yield from self.out
