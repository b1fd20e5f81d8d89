"""What distorts the capture, what the rules should know about it, and which capture would settle what it leaves open."""

from typing import Any

from diagnose.contract import Coverage, Note
from diagnose.devices import Roofs
from diagnose.model.clock import clock_shares
from diagnose.model.step_text import is_graph_capture
from diagnose.model.steps import StepOutcome
from diagnose.store import Store

# A profiler that took more of the window than this has distorted it (nsys-ai: 5 % notable, 15 % contaminated).
OVERHEAD_SHARE = 0.05
FEW_STEPS = 3
JIT_MARKS = (
    "cuModuleLoad%",
    "hipModuleLoad%",
    "cuLibraryLoad%",
    "nvrtc%",
    "cudaStreamBeginCapture%",
    "hipStreamBeginCapture%",
)


def facts(store: Store, roofs: dict[int, Roofs | None], outcome: StepOutcome) -> dict[str, Any]:
    """Facts about the capture that several rules share."""
    note_codes = {row[0] for row in store.rows("SELECT DISTINCT code FROM ingest_note")}
    window = store.scalar("SELECT max(end_ns) - min(start_ns) FROM segment") or 0
    # What the profiler did before or after the window (starting CUPTI takes 200 ms) cost the window nothing.
    overhead = (
        store.scalar(
            """SELECT coalesce(sum(greatest(least(o.start_ns + o.dur_ns, w.e) - greatest(o.start_ns, w.s), 0)), 0)
        FROM profiler_overhead o, (SELECT min(start_ns) AS s, max(end_ns) AS e FROM segment) w"""
        )
        or 0
    )
    mine = [r for r in roofs.values() if r is not None]
    return {
        "engine": engine_of(store, outcome),
        "python_stacks": "python-stacks" in note_codes,
        "profiler_overhead_share": float(overhead) / window if window else 0.0,
        "rocm": any(r.spec.vendor.upper().startswith("AMD") for r in mine),
        "has_engine_steps": outcome.source == "annotation",
        "step_source": outcome.source,
        "host_events": bool(store.count("host_call")) or -1 in roofs,
        "has_serving": bool(store.count("serving")),
        "roofs": any(r.rows() for r in mine),
        "no_device_events": "no-device-events" in note_codes,
        "clocks_apart": "device-clock-apart" in note_codes,
        "model_rejected": bool(note_codes & {"roles-abstained", "roles-contradicted"}),
        "unobserved_share": _share(store, "unobserved"),
        "graph_share": store.scalar(
            "SELECT coalesce(sum(dur_ns) FILTER (link = 'graph' OR kind = 'graph'), 0) / nullif(sum(dur_ns), 0) FROM activity WHERE kind IN ('kernel', 'graph')"
        ),
        "opaque_graphs": store.count("graph_run"),
        "has_shapes": bool(store.scalar("SELECT count(*) FROM signature WHERE input_dims IS NOT NULL")),
        "graph_capture": outcome.source != "annotation" and _captures_graphs(store),
        "straggler": None,
        "straggler_pauses": False,
        "group_size": _group_size(store),
        "devices": _by_device(store, roofs),
    }


def _by_device(store: Store, roofs: dict[int, Roofs | None]) -> dict[int, dict[str, Any]]:
    clocks = clock_shares(store, roofs)
    return {
        device: {
            "device_key": r.spec.key,
            "fp8": "fp8" in r.spec.peak_compute,
            "link_peer": r.spec.peer,
            "link_h2d": r.spec.link_h2d,
            "link_d2h": r.spec.link_d2h,
            "clock_share": clocks.get(device),
        }
        for device, r in roofs.items()
        if r is not None
    }


def _group_size(store: Store) -> int | None:
    """Ranks that the widest recorded collective spans, else the job's ranks; None where neither is recorded."""
    found = store.scalar(
        """SELECT coalesce(
            (SELECT max(TRY_CAST(json_extract_string(extra, '$."Group size"') AS INTEGER)) FROM signature WHERE extra IS NOT NULL),
            (SELECT max(world_size) FROM source))"""
    )
    return None if found is None else int(found)


def _captures_graphs(store: Store) -> bool:
    """The trace records the capture of graphs, not their replay: its few kernels and its gaps are not serving."""
    texts = [row[0] for row in store.rows("SELECT DISTINCT text FROM annotation WHERE text LIKE 'capture_%'")]
    return any(is_graph_capture(t) for t in texts)


def _share(store: Store, bucket: str) -> float:
    return float(
        store.scalar(
            "SELECT coalesce(sum(ns) FILTER (bucket = ?), 0) / nullif(sum(ns), 0) FROM phase_bucket", bucket
        )
        or 0.0
    )


def engine_of(store: Store, outcome: StepOutcome) -> str:
    """vllm, sglang, trtllm, or '' when nothing names the engine."""
    form = outcome.form
    if "sglang" in form:
        return "sglang"
    names = " ".join(
        row[0] or ""
        for row in store.rows(
            "SELECT DISTINCT split_part(text, '::', 1) FROM name WHERE text LIKE 'vllm::%' OR text LIKE 'sgl_kernel::%' OR text LIKE 'sglang%::%' OR text LIKE 'trtllm::%'"
        )
    )
    for mark, engine in (("vllm", "vllm"), ("sgl", "sglang"), ("trtllm", "trtllm")):
        if mark in names:
            return engine
    return "vllm" if "vllm" in form else ""


def requests(facts: dict[str, Any], cover: Coverage) -> list[str]:
    """Captures that would settle what stays open, the most useful first."""
    lines = []
    if facts["graph_capture"]:
        lines.append(
            "give this file with --capture beside the trace of a replay: it records the capture of graphs, whose kernels' shapes it holds, and no serving"
        )
    if facts["no_device_events"]:
        lines.append(
            "capture again with device activity on (activities=[CPU, CUDA]): a GPU was used, but none of its work is in the file"
        )
    if facts["clocks_apart"]:
        lines.append(
            "capture again: host and device clocks of this trace disagree, so no gap can be explained"
        )
    if facts["model_rejected"]:
        lines.append(
            "give the model that really ran: the one given does not fit the trace's kernels, so no costs were taken from it"
        )
    kernel_ns = cover.kernel_time_ns
    dark = 1 - cover.with_cost_ns / kernel_ns if kernel_ns else 0.0
    if facts["opaque_graphs"]:
        lines.append(
            "recapture with --cuda-graph-trace=node: graph replays were recorded as single rows without their kernels"
        )
    if not facts["roofs"]:
        lines.append(
            "name the device with --device KEY|FILE.toml (`diagnose roofs` lists the keys; `diagnose calibrate` measures a file)"
        )
    if dark > 0.3 and not facts["model_rejected"]:
        lines.append(_costs_request(facts))
    if facts["unobserved_share"] > 0.2:
        lines.append(
            "capture several whole steps: the trace begins or ends inside work that it does not show"
        )
    return lines


def _costs_request(facts: dict[str, Any]) -> str:
    """What would give costs to kernels that have none."""
    if (facts["graph_share"] or 0) > 0.3:
        return "give the model with --model config.json (or a known name): graph-replayed kernels carry no shapes, the model's numbers supply them"
    if not facts["has_shapes"]:
        return "recapture with operator shapes (torch profiler record_shapes=True; vLLM torch_profiler_record_shapes), or give --model config.json"
    return "the kernels listed under coverage have no cost model: give the model with --model, or report their names"


def notes(
    store: Store, facts: dict[str, Any], cover: Coverage, outcome: StepOutcome, device_notes: dict[int, str]
) -> list[Note]:
    """Data-quality notes: what the trace distorts or leaves out, worst first."""
    out = [
        Note(code=r["code"], severity=r["severity"], message=r["message"])
        for r in store.dicts(
            "SELECT DISTINCT code, severity, message FROM ingest_note ORDER BY code, message"
        )
    ]

    def add(code: str, severity: str, message: str) -> None:
        out.append(Note(code=code, severity=severity, message=message))

    if facts["profiler_overhead_share"] > OVERHEAD_SHARE:
        add(
            "profiler-overhead",
            "warning",
            f"the profiler reports {100 * facts['profiler_overhead_share']:.1f} % of the window as its own overhead",
        )
    kernel_ns = cover.kernel_time_ns
    if cover.no_launch_ns:
        add("no-launch", "warning" if cover.no_launch_ns > 0.1 * kernel_ns else "info",
            f"{100 * cover.no_launch_ns / kernel_ns:.1f} % of kernel time was launched outside the trace")  # fmt: skip
    if facts["unobserved_share"] > 0.01:
        add(
            "unobserved",
            "warning",
            f"{100 * facts['unobserved_share']:.1f} % of the window is unobserved: the device may have run work that is not in the file; it counts for nothing",
        )
    if kernel_ns and cover.with_cost_ns < 0.9 * kernel_ns:
        top = ", ".join(str(t["name"])[:48] for t in cover.unmodelled_top[:3])
        add(
            "coverage",
            "warning",
            f"{100 * cover.with_cost_ns / kernel_ns:.1f} % of kernel time has a cost"
            + (f"; largest without: {top}" if top else ""),
        )
    if facts["opaque_graphs"]:
        add(
            "graph-mode",
            "warning",
            "graph replays hide their kernels: recapture with --cuda-graph-trace=node",
        )
    if outcome.source != "annotation":
        how = {
            "pattern": "found by the repeating work",
            "window": "none was found: the window is one step",
        }.get(outcome.source, outcome.source)
        add(
            "steps",
            "info",
            f"no engine step annotation; steps {how}. --step-annotation REGEX names your own ranges",
        )
    elif outcome.without_work:
        add(
            "steps-without-work",
            "info",
            f"{outcome.without_work} of {outcome.host_steps} annotated steps launched no device work in the trace",
        )
    steps = store.count("step")
    if outcome.source == "annotation" and steps < FEW_STEPS:
        add(
            "few-steps",
            "warning",
            f"{steps} step{'s' if steps != 1 else ''} in the trace: no repetition to judge noise by",
        )
    _warm_up(store, add)
    for device, text in device_notes.items():
        if device >= 0 or "file" in text:
            add(
                "device",
                "info" if "unknown" not in text and "not in the catalog" not in text else "warning",
                f"device {device}: {text}",
            )
    order = {"error": 0, "warning": 1, "info": 2}
    out.sort(key=lambda n: (order.get(n.severity, 3), n.code, n.message))
    return out


def _warm_up(store: Store, add: Any) -> None:
    """Graph capture, module loading and first steps that are far slower than the rest."""
    marks = " OR ".join("n.text LIKE ?" for _ in JIT_MARKS)
    calls = store.scalar(
        f"SELECT count(*) FROM host_call c JOIN name n USING (name_id) WHERE {marks}", *JIT_MARKS
    )
    texts = [row[0] for row in store.rows("SELECT DISTINCT text FROM annotation WHERE text LIKE 'capture_%'")]
    if calls or any(is_graph_capture(t) for t in texts):
        add(
            "warm-up",
            "warning",
            "graph capture or module loading lies in the window: it is warm-up, not serving",
        )
    slow = store.rows(
        """SELECT phase, first(observed_ns ORDER BY step_id), median(observed_ns), count(*) FROM step_time GROUP BY phase HAVING count(*) >= 5"""
    )
    for phase, first, median, count in slow:
        if first and median and first > 2 * median:
            add(
                "slow-first-step",
                "warning",
                f"the first {phase} step took {first / median:.1f} x the median of {count}: warm-up is in the window",
            )
