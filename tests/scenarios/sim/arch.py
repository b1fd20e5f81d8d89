"""Decoder architectures (numbers from the models' public config.json) and what one engine step asks of the model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arch:
    """A decoder. Sizes in elements; `experts` 0 for a dense feed-forward."""

    name: str
    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    experts: int = 0
    experts_per_token: int = 0

    @property
    def layer_weights(self) -> int:
        """Weights of one layer, all experts counted."""
        d = self.hidden
        attention = d * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * d * self.intermediate * max(self.experts, 1) + d * self.experts

    @property
    def weights(self) -> int:
        """All weights with untied input and output embeddings (norms left out: below 0.1 %)."""
        return self.layers * self.layer_weights + 2 * self.vocab * self.hidden

    def kv_bytes_per_token(self, element: float = 2.0) -> float:
        """Keys and values of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element

    def config(self) -> dict[str, object]:
        """The parts of a Hugging Face config.json that say the above."""
        out: dict[str, object] = {
            "model_type": self.model_type, "num_hidden_layers": self.layers, "hidden_size": self.hidden,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim,
            "intermediate_size": self.intermediate, "vocab_size": self.vocab, "torch_dtype": "bfloat16",
            "tie_word_embeddings": False, "hidden_act": "silu", "max_position_embeddings": 131072,
        }  # fmt: skip
        if self.experts:
            out |= {"num_local_experts": self.experts, "num_experts_per_tok": self.experts_per_token}
        return out


ARCHS: dict[str, Arch] = {
    a.name: a
    for a in (
        Arch("llama-3-8b", "llama", 32, 4096, 32, 8, 128, 14336, 128256),
        Arch("llama-2-7b", "llama", 32, 4096, 32, 32, 128, 11008, 32000),
        Arch("llama-2-13b", "llama", 40, 5120, 40, 40, 128, 13824, 32000),
        Arch("llama-3-70b", "llama", 80, 8192, 64, 8, 128, 28672, 128256),
        Arch("llama-3.2-1b", "llama", 16, 2048, 32, 8, 64, 8192, 128256),
        Arch("qwen2-7b", "qwen2", 28, 3584, 28, 4, 128, 18944, 152064),
        Arch("qwen2.5-0.5b", "qwen2", 24, 896, 14, 2, 64, 4864, 151936),
        Arch("qwen2.5-1.5b", "qwen2", 28, 1536, 12, 2, 128, 8960, 151936),
        Arch("qwen3-8b", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936),
        Arch("mixtral-8x7b", "mixtral", 32, 4096, 32, 8, 128, 14336, 32000, 8, 2),
    )
}


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One engine step: `prefill` holds (new tokens, total context) per chunk, `decode` the context of each sequence."""

    prefill: tuple[tuple[int, int], ...] = ()
    decode: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return sum(n for n, _ in self.prefill) + len(self.decode)

    @property
    def sequences(self) -> int:
        """Sequences in the batch."""
        return len(self.prefill) + len(self.decode)

    @property
    def prefill_pairs(self) -> int:
        """Query-key pairs of the prefill chunks, causal."""
        return sum(n * c - n * (n - 1) // 2 for n, c in self.prefill)

    @property
    def context(self) -> int:
        """KV tokens that decode reads."""
        return sum(self.decode)

    @property
    def phase(self) -> str:
        """prefill, decode or mixed."""
        if self.prefill and self.decode:
            return "mixed"
        return "prefill" if self.prefill else "decode"

    def grown(self, steps: int) -> "StepPlan":
        """The same decode batch some steps later."""
        return StepPlan(self.prefill, tuple(c + steps for c in self.decode))
