"""What an engine's step annotation says: phase, sequences and tokens.

Forms by engine version (vLLM 0.12-0.33, SGLang 0.5, TensorRT-LLM has none that carries counts), and ranges that users
name themselves. A count the text does not carry stays None.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from diagnose.errors import UsageError


@dataclass(frozen=True, slots=True)
class StepText:
    """One annotation read. Token counts are per step over all sequences.

    `context_tokens`: KV tokens read by the decode sequences. `prefill_context_tokens`: KV length summed over prefill
    sequences, this chunk included. `prefill_pairs`: causal query-key pairs of the prefill.
    """

    form: str
    phase: str
    sequences: int | None = None
    prefill_sequences: int | None = None
    decode_sequences: int | None = None
    prefill_tokens: int | None = None
    decode_tokens: int | None = None
    context_tokens: int | None = None
    prefill_context_tokens: int | None = None
    prefill_pairs: float | None = None

    def filled_from(self, outer: "StepText") -> "StepText":
        """Counts of an enclosing annotation where this one has none (SGLang's span inside vLLM's form)."""
        missing = {
            name: getattr(outer, name)
            for name in self.__dataclass_fields__
            if name not in ("form", "phase") and getattr(self, name) is None
        }
        phase = outer.phase if self.phase == "other" else self.phase
        form = self.form if not any(v is not None for v in missing.values()) else f"{self.form}+{outer.form}"
        return replace(self, form=form, phase=phase, **missing)


def _phase(prefill: int, decode: int) -> str:
    if prefill and decode:
        return "mixed"
    if prefill:
        return "prefill"
    return "decode" if decode else "other"


_DETAILED = re.compile(
    r"^execute_(\d+)_context_(\d+)\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)"
    r"_generation_(\d+)\(sq(\d+)sk(\d+)sqsq(\d+)sqsk(\d+)\)$"
)


def _vllm_detailed(match: re.Match[str]) -> StepText:
    """vLLM >= 0.26 with detailed_trace_annotation: sums of q, kv length, q*q and q*kv by side."""
    _, ctx, csq, csk, csqsq, csqsk, gen, gsq, gsk, _, _ = (int(g) for g in match.groups())
    # Pairs of a causal chunk at the end of its context: q*kv - q(q-1)/2, summed over sequences.
    pairs = float(csqsk) - (csqsq - csq) / 2
    return StepText(
        form="vllm-detailed",
        phase=_phase(csq, gsq),
        sequences=ctx + gen,
        prefill_sequences=ctx,
        decode_sequences=gen,
        prefill_tokens=csq,
        decode_tokens=gsq,
        context_tokens=gsk,
        prefill_context_tokens=csk,
        prefill_pairs=pairs if ctx else 0.0,
    )


_DEFAULT = re.compile(r"^execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)$")


def _vllm_default(match: re.Match[str]) -> StepText:
    """vLLM 0.14-0.33 default: requests and tokens by side, no KV tokens."""
    ctx, ctx_tokens, gen, gen_tokens = (int(g) for g in match.groups())
    return _by_side("vllm", ctx, ctx_tokens, gen, gen_tokens)


def _by_side(form: str, ctx: int, ctx_tokens: int, gen: int, gen_tokens: int) -> StepText:
    """Requests and tokens of both sides; the KV tokens that decode reads are not written."""
    return StepText(
        form=form,
        phase=_phase(ctx_tokens, gen_tokens),
        sequences=ctx + gen,
        prefill_sequences=ctx,
        decode_sequences=gen,
        prefill_tokens=ctx_tokens,
        decode_tokens=gen_tokens,
        context_tokens=None if gen else 0,
    )


_SQUARED = re.compile(r"^execute_context_(\d+)\((\d+)_(\d+)\)_generation_(\d+)\((\d+)(?:_(\d+))?\)$")


def _vllm_squared(match: re.Match[str]) -> StepText:
    """A form seen on B200: tokens and the sum of tokens squared by side."""
    ctx, ctx_tokens, squared, gen, gen_tokens = (int(g) for g in match.groups()[:5])
    # Whole prompts: sum t*t - t(t-1)/2 = (sum t^2 + sum t)/2.
    pairs = (squared + ctx_tokens) / 2 if ctx else 0.0
    return replace(_by_side("vllm-squared", ctx, ctx_tokens, gen, gen_tokens), prefill_pairs=pairs)


_COUNTS = re.compile(r"^execute_new_(\d+)_cached_(\d+)$")


def _vllm_counts(match: re.Match[str]) -> StepText:
    """vLLM 0.12-0.13: requests new and cached; a cached request may still be in a prefill chunk."""
    new, cached = int(match.group(1)), int(match.group(2))
    return StepText(form="vllm-counts", phase=_phase(new, cached), sequences=new + cached)


_SGLANG = re.compile(r"^step\[(\w+) bs=(\d+)(?: toks=(\d+))?(.*)\]$")
_SGLANG_SUM = re.compile(r"\b([cg])_(sqsq|sqsk|sq|sk)=\s*(\d+)")
_SGLANG_SIDE = re.compile(r"(?<![\w])([cg])=\s*(\d+)")
_SGLANG_PHASE = {
    "EXTEND": "prefill", "PREFILL": "prefill", "DECODE": "decode", "MIXED": "mixed", "VERIFY": "decode",
    "TARGET_VERIFY": "decode", "DRAFT": "draft", "DRAFT_EXTEND": "draft", "SPLIT_PREFILL": "prefill", "IDLE": "other",
}  # fmt: skip


def _sglang(match: re.Match[str]) -> StepText:
    """SGLang 0.5: step[MODE bs=N toks=T] with optional sums by side."""
    mode, batch, tokens, rest = match.group(1), int(match.group(2)), match.group(3), match.group(4)
    phase = _SGLANG_PHASE.get(mode.upper(), "draft" if mode.upper().startswith("DRAFT") else "other")
    sums = {(m[0], m[1]): int(m[2]) for m in _SGLANG_SUM.findall(rest)}
    sides = {m[0]: int(m[1]) for m in _SGLANG_SIDE.findall(rest)}
    if phase == "mixed":
        prefill, decode = sides.get("c"), sides.get("g")
    elif phase == "prefill":
        prefill, decode = batch, 0
    else:
        prefill, decode = 0, batch
    csq, csqsq, csqsk = sums.get(("c", "sq")), sums.get(("c", "sqsq")), sums.get(("c", "sqsk"))
    prefill_tokens = csq if csq is not None else (int(tokens) if tokens and phase == "prefill" else None)
    decode_tokens = sums.get(("g", "sq"))
    if phase == "prefill":
        decode_tokens = 0
    elif phase in ("decode", "draft"):
        prefill_tokens = 0
        if decode_tokens is None:
            # A verify step checks several tokens a sequence; its text says how many in toks=.
            decode_tokens = int(tokens) if tokens else (batch if mode.upper() == "DECODE" else None)
    pairs = None
    if csq is not None and csqsq is not None and csqsk is not None:
        pairs = float(csqsk) - (csqsq - csq) / 2
    return StepText(
        form="sglang",
        phase=phase,
        sequences=batch,
        prefill_sequences=prefill,
        decode_sequences=decode,
        prefill_tokens=prefill_tokens,
        decode_tokens=decode_tokens,
        context_tokens=0 if phase == "prefill" else sums.get(("g", "sk")),
        prefill_context_tokens=sums.get(("c", "sk")),
        prefill_pairs=0.0 if phase in ("decode", "draft") else pairs,
    )


# Ranges that collectors and users write by hand: the phase alone, perhaps numbered ("decode", "decode_step 12");
# "other step" is a step of which nothing more is known.
_PLAIN = re.compile(
    r"^(prefill|decode|encode|draft|other(?=[ _-]step))(?:[ _-]?step)?(?:[ _#:-]*\d+)?$", re.IGNORECASE
)


def _plain(match: re.Match[str]) -> StepText:
    return StepText(form="phase-name", phase=match.group(1).lower())


_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], StepText]], ...] = (
    (_DETAILED, _vllm_detailed),
    (_SQUARED, _vllm_squared),
    (_DEFAULT, _vllm_default),
    (_COUNTS, _vllm_counts),
    (_SGLANG, _sglang),
    (_PLAIN, _plain),
)

_LOADER = re.compile(
    r"^enumerate\(DataLoader\)|DataLoader.*__next__|^(data_?loader|input_pipeline|load_batch)\b",
    re.IGNORECASE,
)
_CAPTURE = re.compile(r"^capture_\d+_(FULL|PIECEWISE|DECODE|EXTEND|PREFILL|\w+)$")


def is_loader(text: str) -> bool:
    """True for an annotation of the input pipeline (torch's DataLoader names itself)."""
    return _LOADER.search(text) is not None


def is_graph_capture(text: str) -> bool:
    """True for an annotation of CUDA-graph capture (`capture_32_FULL`): warm-up, not serving."""
    return _CAPTURE.match(text) is not None


def parse_step(text: str, user: re.Pattern[str] | None = None) -> StepText | None:
    """Read an annotation's text; None when it is no engine step.

    `user` comes first; its named groups phase, sequences, prefill_tokens, decode_tokens and context_tokens are used
    where present, and its phase is `other` where it names none.
    """
    if user is not None and (match := user.search(text)):
        return _from_user(match)
    for pattern, read in _FORMS:
        if match := pattern.match(text):
            return read(match)
    return None


def _from_user(match: re.Match[str]) -> StepText:
    groups = {k: v for k, v in match.groupdict().items() if v is not None}

    def number(name: str) -> int | None:
        try:
            return int(groups[name]) if name in groups else None
        except ValueError:
            return None

    prefill, decode = number("prefill_tokens"), number("decode_tokens")
    known = ("prefill", "decode", "mixed", "encode", "draft")
    named = groups.get("phase", "").lower()
    if not named:
        plain = _PLAIN.match(match.string)
        named = plain.group(1).lower() if plain else ""
    phase = named if named in known else _phase(prefill or 0, decode or 0)
    return StepText(
        form="user",
        phase=phase,
        sequences=number("sequences"),
        prefill_tokens=prefill,
        decode_tokens=decode,
        context_tokens=number("context_tokens"),
    )


def compile_user(pattern: str | None) -> re.Pattern[str] | None:
    """Compile `--step-annotation`; UsageError when it is no regular expression."""
    if pattern is None:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--step-annotation is not a regular expression: {error} in {pattern!r}") from None
