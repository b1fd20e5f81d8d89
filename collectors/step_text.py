"""The text of a step annotation: a form that serving engines use, so that any reader of the trace knows it.

With the context length known it is the detailed form of vLLM 0.26 and later,
`execute_{tokens}_context_{n}(sq..sk..sqsq..sqsk..)_generation_{n}(sq..sk..sqsq..sqsk..)`, where sq sums new
tokens, sk KV tokens, sqsq new tokens squared and sqsk their product, over sequences; else the plain
`execute_context_{n}({tokens})_generation_{n}({tokens})`; else the phase alone, `decode step`.
"""

from dataclasses import dataclass

PHASES = ("prefill", "decode", "encode", "draft", "other")


@dataclass(frozen=True)
class Step:
    """One engine iteration: `tokens` new tokens over all sequences, `context` KV tokens read over all
    sequences.
    """

    phase: str = "other"
    sequences: int | None = None
    tokens: int | None = None
    context: int | None = None

    def text(self) -> str:
        """The annotation. Sequences are taken to be of equal length, which is exact for lock-step batches."""
        if self.phase not in ("prefill", "decode") or self.sequences is None or self.tokens is None:
            return f"{self.phase} step"
        n, q = self.sequences, self.tokens
        if self.context is None:
            if self.phase == "prefill":
                return f"execute_context_{n}({q})_generation_0(0)"
            return f"execute_context_0(0)_generation_{n}({q})"
        k = self.context
        sums = f"sq{q}sk{k}sqsq{round(q * q / max(n, 1))}sqsk{round(q * k / max(n, 1))}"
        none = "sq0sk0sqsq0sqsk0"
        if self.phase == "prefill":
            return f"execute_{q}_context_{n}({sums})_generation_0({none})"
        return f"execute_{q}_context_0({none})_generation_{n}({sums})"
