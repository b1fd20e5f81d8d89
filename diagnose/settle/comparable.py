"""What differs between two sides besides the result, and which conclusions that makes unsound.

A change of device, engine, precision or flags may be the very thing compared: it is named. A change of the work, of the
load, or of how the measurement was made is not: the verdicts it touches are withheld, with the reason.
"""

import re
from collections.abc import Iterable
from math import log
from statistics import fmean
from typing import Any

from diagnose.contract import Diagnosis
from diagnose.settle.comparison import Difference
from diagnose.settle.roles import coarse, weight_format
from diagnose.settle.serving_metrics import SERVING
from diagnose.settle.side import Run, Side
from diagnose.settle.trace_metrics import (
    COMM_TIME,
    COPY_TIME,
    IDLE_TIME,
    KERNEL_TIME,
    STEP_TIME,
    TOKEN_TIME,
    UNIT_TIME,
)

TRACE = (STEP_TIME, TOKEN_TIME, UNIT_TIME, KERNEL_TIME, IDLE_TIME, COMM_TIME, COPY_TIME)
HOST = (STEP_TIME, TOKEN_TIME, UNIT_TIME, IDLE_TIME)
SAME = 0.05
"""Means of batch, length and load that differ by a twentieth are the same conditions."""

# What a recording did or missed, by the code of its data-quality note: words, verdicts it makes unsound when only one side
# has it, and why.
_RECORDING: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("python-stacks", "Python stacks recorded", HOST, "recording stacks slows the host"),
    (
        "profiler-slowdown",
        "recording slowed the steps",
        HOST,
        "idle while launching is partly the profiler's",
    ),
    ("profiler-overhead", "profiler's own overhead in the window", HOST, "it is no part of the run"),
    (
        "graph-mode",
        "graph replays recorded as one row",
        (*HOST, KERNEL_TIME),
        "their kernels and gaps are not in the file",
    ),
    ("missing-graphs", "kernels of graphs missing", (*HOST, KERNEL_TIME), "work is not in the file"),
    (
        "warm-up",
        "warm-up in the window",
        (*HOST, KERNEL_TIME),
        "graph capture and module loading are no serving",
    ),
    ("unreadable-events", "events that could not be read", TRACE, "work is not in the file"),
    ("no-api-calls", "no record of launch calls", (), "idle time cannot be told by cause there"),
)

# Settings that describe the client's load, not the engine.
LOAD = {
    "bench_max_concurrency": "client concurrency",
    "bench_request_rate": "request rate",
    "bench_input_len": "prompt length asked for",
    "bench_output_len": "output length asked for",
}
# Outcomes that engines log among their settings: they follow from the flags, and are shown where they matter.
_ACRONYMS = re.compile(r"\b(kv|gpu|cpu|dp)\b")
_OUTCOMES = frozenset({"free_memory_bytes", "kv_pool_bytes", "weight_bytes", "activation_bytes", "non_torch_bytes", "graph_bytes", "max_concurrency", "bench_backend",
                       "kv_pool_from_blocks", "num_gpu_blocks", "kv_engines", "bench_prompts", "device_memory_bytes", "model"})  # fmt: skip


def differences(before: Side, after: Side) -> list[Difference]:
    """Everything known to differ, what withholds conclusions first."""
    a, b = before.first, after.first
    out = [*_work(a, b), *_load(a, b), *_measurement(a, b), *_hardware(a, b), *_engine(a, b)]
    for side, word in ((before, "before"), (after, "after")):
        out += _repeats(side, word)
    return sorted(out, key=lambda d: not d.withholds)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _named(
    what: str, a: object, b: object, withholds: Iterable[str] = (), note: str | None = None
) -> list[Difference]:
    """A difference of two known values; unknown ones differ from nothing."""
    if a is None or b is None or a == b or a == "" or b == "":
        return []
    return [Difference(what=what, before=_shown(a), after=_shown(b), withholds=list(withholds), note=note)]


def far(a: float | None, b: float | None, tolerance: float = SAME) -> bool:
    """Whether two known positive numbers differ by more than a share."""
    return bool(a and b and abs(log(a / b)) > log(1 + tolerance))


def model_name(d: Diagnosis) -> str | None:
    """The model's name, from its config or the engine."""
    name = (d.model or {}).get("name") or setting(d, "model")
    return str(name) if name else None


def setting(d: Diagnosis, key: str) -> str | None:
    """A setting of the engine; the log's word before the benchmark's."""
    rank = {"user": 0, "log": 1, "metrics": 2, "bench": 3, "model": 4}
    found = sorted(
        (s for s in d.engine_config if s.get("key") == key), key=lambda s: rank.get(str(s.get("origin")), 9)
    )
    return str(found[0]["value"]) if found else None


def precision(d: Diagnosis) -> str | None:
    """The dtypes of the matrix products by time (a tenth of it or more), or the quantisation the engine states."""
    stated = setting(d, "quantization")
    if stated and stated.lower() not in ("none", "false", "null"):
        return stated
    time: dict[str, int] = {}
    for k in d.kernels:
        if coarse(k.role, k.family) in ("gemm", "experts") and (
            name := weight_format(k.role, k.family, k.dtype, k.shape)
        ):
            label = name if name == k.dtype or not k.dtype else f"{name} weights, {k.dtype} math"
            time[label] = time.get(label, 0) + k.time_ns
    whole = sum(time.values())
    kept = sorted((t for t in time if time[t] >= 0.1 * whole), key=lambda t: -time[t])
    return " and ".join(kept) or setting(d, "dtype")


def _work(a: Run, b: Run) -> list[Difference]:
    out = _named(
        "model", _plain_model(a.d), _plain_model(b.d), [*TRACE, *SERVING], "another model is other work"
    )
    shape = [tuple((d.model or {}).get(k) for k in ("layers", "hidden", "heads")) for d in (a.d, b.d)]
    if not out and all(all(s) for s in shape) and shape[0] != shape[1]:
        out = _named(
            "model size", str(shape[0]), str(shape[1]), [*TRACE, *SERVING], "layers, width or heads differ"
        )
    for phase in [p for p in a.phases() if p in b.phases()]:
        for what, key in (("batch", "sequences"), ("context", "context")):
            x, y = _mean(a, phase, key), _mean(b, phase, key)
            if far(x, y):
                unit = "sequences" if key == "sequences" else "KV tokens"
                out += _named(
                    f"{phase} {what}",
                    x,
                    y,
                    note=f"mean {unit} of all its steps; only steps of the same work are compared",
                )
    return out


# Quantised checkpoints carry their format in the name; it is the same model.
_FORMATS = (
    "fp8",
    "awq",
    "gptq",
    "int4",
    "int8",
    "w4a16",
    "w8a8",
    "nvfp4",
    "fp4",
    "bnb",
    "4bit",
    "8bit",
    "dynamic",
    "quantized",
    "marlin",
)


def _plain_model(d: Diagnosis) -> str | None:
    """The model's name without its owner and weight format."""
    name = model_name(d)
    if name is None:
        return None
    words = name.rsplit("/", 1)[-1].lower().replace("_", "-").split("-")
    return "-".join(w for w in words if w not in _FORMATS)


def _mean(run: Run, phase: str, key: str) -> float | None:
    values = [float(v) for w in run.steps_in(phase) if (v := getattr(w, key)) is not None]
    return fmean(values) if values else None


def _load(a: Run, b: Run) -> list[Difference]:
    out: list[Difference] = []
    for key, label in LOAD.items():
        out += _named(
            label, setting(a.d, key), setting(b.d, key), SERVING, "the load differs, not the engine"
        )
    lengths = _full(a.d), _full(b.d)
    if far(*lengths):
        out += _named("tokens a request", lengths[0], lengths[1], SERVING, "prompt plus output, mean")
    burst = (
        setting(a.d, "bench_request_rate") in (None, "inf") and setting(a.d, "bench_max_concurrency") is None
    )
    prompts = setting(a.d, "bench_prompts"), setting(b.d, "bench_prompts")
    out += _named(
        "requests sent",
        *prompts,
        SERVING if burst else (),
        "all at once: more requests wait longer" if burst else None,
    )
    failed = [float((d.latency or {}).get("failed") or 0) for d in (a.d, b.d)]
    done = [float((d.latency or {}).get("completed") or 0) for d in (a.d, b.d)]
    shares = [f / (f + c) if f + c else 0.0 for f, c in zip(failed, done, strict=True)]
    if abs(shares[0] - shares[1]) > 0.01:
        out += _named(
            "failed requests",
            failed[0],
            failed[1],
            SERVING,
            "requests that fail early cost nothing and look fast",
        )
    return out


def _full(d: Diagnosis) -> float | None:
    value = (d.kv or {}).get("tokens_per_sequence_full")
    return float(value) if isinstance(value, int | float) else None


def _profiler(d: Diagnosis) -> tuple[str | None, str | None]:
    for s in d.source:
        if s.profiler:
            return s.profiler, s.profiler_version
    return None, None


def _measurement(a: Run, b: Run) -> list[Difference]:
    (tool_a, version_a), (tool_b, version_b) = _profiler(a.d), _profiler(b.d)
    out = _named("profiler", tool_a, tool_b, HOST, "profilers slow the host by different amounts")
    if not out:
        out = _named("profiler version", version_a, version_b)
    codes = [{n.code for n in d.data_quality} for d in (a.d, b.d)]
    for code, what, hit, note in _RECORDING:
        if (code in codes[0]) != (code in codes[1]):
            x, y = ("yes" if code in c else "no" for c in codes)
            out += _named(what, x, y, hit, note)
    return out + _named("graph replay", _in_graphs(a.d), _in_graphs(b.d))


def _in_graphs(d: Diagnosis) -> str | None:
    c = d.coverage
    if c is None or not c.kernel_time_ns:
        return None
    share = c.in_graphs_ns / c.kernel_time_ns
    return "most kernels" if share > 0.5 else "some kernels" if share > 0.02 else "none"


def device_label(d: Diagnosis) -> str | None:
    """The device's name as the trace has it."""
    if not d.devices:
        return None
    return d.devices[0].name.strip() or d.devices[0].catalog_key or None


def same_device(a: Diagnosis, b: Diagnosis) -> bool:
    """Whether two results are of one kind of device, by catalogue entry where both have one; unknown counts as the same."""
    keys = [d.devices[0].catalog_key if d.devices else None for d in (a, b)]
    if all(keys):
        return keys[0] == keys[1]
    names = device_label(a), device_label(b)
    return None in names or names[0] == names[1]


def _hardware(a: Run, b: Run) -> list[Difference]:
    out = (
        []
        if same_device(a.d, b.d)
        else _named(
            "device", device_label(a.d), device_label(b.d), note="the hardware is part of what is compared"
        )
    )
    if not out:
        out = _named(
            "sustained roofs",
            _roofs(a.d),
            _roofs(b.d),
            note="GB/s and TFLOP/s that bounds were judged against",
        )
    out += _named("devices", len(a.d.devices) or None, len(b.d.devices) or None)
    for key, what in (("tp", "tensor parallel"), ("pp", "pipeline parallel"), ("ep", "expert parallel")):
        x, y = ((d.model or {}).get(key) or setting(d, key) for d in (a.d, b.d))
        out += _named(what, None if x is None else str(x), None if y is None else str(y))
    return out + _named("precision", precision(a.d), precision(b.d))


def _roofs(d: Diagnosis) -> str | None:
    rows = [r for x in d.devices[:1] for r in x.roofs if r.resource in ("hbm", "compute") and r.sustained]
    return ", ".join(f"{r.dtype or r.resource} {r.sustained:.4g}" for r in rows) or None


def _engine(a: Run, b: Run) -> list[Difference]:
    x, y = (", ".join(dict.fromkeys(s.framework for s in d.source if s.framework)) for d in (a.d, b.d))
    out = _named("framework", x, y)
    keys = dict.fromkeys(str(s.get("key")) for d in (a.d, b.d) for s in d.engine_config)
    for key in keys:
        if key in LOAD or key in _OUTCOMES or key in ("tp", "pp", "ep", "quantization"):
            continue
        label = _ACRONYMS.sub(lambda m: m[1].upper(), key.replace("_", " "))
        x, y = _numbers(setting(a.d, key), setting(b.d, key))
        out += _named(label, x, y)
    return out


def _numbers(a: str | None, b: str | None) -> tuple[Any, Any]:
    """Both as integers where they are, so that they are shown with separators."""
    if a and b and a.isdigit() and b.isdigit():
        return int(a), int(b)
    return a, b


def _repeats(side: Side, word: str) -> list[Difference]:
    """Repeats of one side that are not repeats of each other."""
    out: list[Difference] = []
    for other in side.runs[1:]:
        for d in (*_work(side.first, other), *_hardware(side.first, other), *_load(side.first, other)):
            if d.what.endswith((" batch", " context")):
                continue  # steps are matched one by one
            what = f"{d.what}, among the {word} runs"
            note = "the runs of this side are no repeats of each other"
            if not any(x.what == what for x in out):
                out.append(
                    Difference(
                        what=what,
                        before=d.before,
                        after=d.after,
                        withholds=d.withholds or [*TRACE, *SERVING],
                        note=note,
                    )
                )
    return out
