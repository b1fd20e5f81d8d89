"""The main job: traces and evidence in, one `Diagnosis` out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnose import __version__
from diagnose.collectors.device_toml import store_path
from diagnose.contract import SCHEMA, Diagnosis, Note
from diagnose.costs.assign import assign_costs
from diagnose.devices import Match, Roofs, match_device, resolve
from diagnose.errors import InputError
from diagnose.ingest import load
from diagnose.model import attribution, bounds, quality, result
from diagnose.model.link import link, public_views
from diagnose.model.ranks_names import assign_ranks
from diagnose.model.steps import StepOutcome, build_steps
from diagnose.roles.supplement import supplement
from diagnose.rules import engine, registry
from diagnose.rules.verdict import deciding_device, verdict
from diagnose.run import ranks
from diagnose.run.inputs import sort_inputs
from diagnose.run.told import apply as apply_told
from diagnose.run.told import read_told
from diagnose.store import Store
from diagnose.store.sqlfile import read_sql

if TYPE_CHECKING:
    from diagnose.serving.model_config import ModelConfig

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What a user can set. `device`: catalog key or TOML file. `step_annotation`: regular expression."""

    device: str | None = None
    step_annotation: str | None = None
    objective: str | None = None
    rules: Path | None = None
    low_memory: bool = False
    python: bool = False
    nsys: str | None = None
    model: str | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    capture: Path | None = None
    metrics: tuple[Path, ...] = ()
    log: tuple[Path, ...] = ()
    bench: tuple[Path, ...] = ()
    ncu: tuple[Path, ...] = ()
    rank_regex: str | None = None
    slo_ttft_ms: float | None = None
    slo_itl_ms: float | None = None
    what_if_device: tuple[str, ...] = ()
    price: float | None = None


@dataclass(slots=True)
class Analysed:
    """One trace with its store filled to the end; close the store when done."""

    store: Store
    roofs: dict[int, Roofs | None]
    notes: dict[int, str]
    outcome: StepOutcome


def prepare(path: Path, options: Options, progress: Progress | None = None) -> Analysed:
    """Ingest and link one trace, find its devices and steps. The caller closes the store."""
    store = Store()
    try:
        step = (lambda done, total: progress("reading", done, total)) if progress else None
        load(
            path,
            store,
            python=options.python,
            low_memory=options.low_memory,
            nsys=options.nsys,
            progress=step,
        )
        link(store)
        roofs, notes = _devices(store, options)
        bounds.write_families(store)
        outcome = build_steps(store, options.step_annotation, tuple(roofs))
        public_views(store)
        attribution.cut(store)
    except BaseException:
        store.close()
        raise
    return Analysed(store, roofs, notes, outcome)


def finish(analysed: Analysed, options: Options) -> None:
    """Costs, bounds, attribution and the evidence tables."""
    store = analysed.store
    archs = {d: (r.spec.arch if r else None) for d, r in analysed.roofs.items()}
    arch = next(iter(archs.values()), None)
    model = _model(options.model)
    assign_costs(store, arch=arch, element=model.dtype if model else None)
    supplement(
        store, model, tp=options.tp or 1, pp=options.pp or 1, ep=options.ep or 1,
        capture=options.capture, ncu=options.ncu, roofs=analysed.roofs, arch=arch,
    )  # fmt: skip
    bounds.build_bounds(store, analysed.roofs, archs)
    attribution.label(store)
    store.con.execute(read_sql("diagnose.model", "evidence.sql"))
    store.con.execute(read_sql("diagnose.model", "chain.sql"))
    store.ensure_tables()


def _model(name: str | None) -> "ModelConfig | None":
    """The model that `--model` names, None without one."""
    if name is None:
        return None
    from diagnose.serving.model_config import load_model

    return load_model(name)


def _devices(store: Store, options: Options) -> tuple[dict[int, Roofs | None], dict[int, str]]:
    """Roofs of every device with activity, from the user's word, else from what the trace says."""
    active = [row[0] for row in store.rows("SELECT DISTINCT device_id FROM activity ORDER BY 1")]
    if not active:
        raise InputError(
            "the trace holds no device activity and no operators: capture with CPU and device activity on"
        )
    roofs: dict[int, Roofs | None] = {}
    notes: dict[int, str] = {}
    given = resolve(options.device) if options.device else None
    for device in active:
        rows = store.dicts("SELECT * FROM device WHERE device_id = ?", device)
        info: dict[str, Any] = rows[0] if rows else {}
        kept = store_path(info["name"]) if info.get("name") else None
        if given is not None:
            roofs[device], notes[device] = given, f"given with --device {Path(options.device or '').name}"
        elif kept is not None and kept.is_file():
            roofs[device], notes[device] = resolve(str(kept)), "calibrated here by diagnose calibrate"
        else:
            match: Match = match_device(
                info.get("name") or "",
                info.get("memory_bytes"),
                info.get("sm_count"),
                bandwidth=info.get("bandwidth_bytes_per_s"),
            )
            roofs[device] = Roofs(match.spec) if match.spec else None
            notes[device] = match.note
    return roofs, notes


def conclude(
    analysed: Analysed,
    options: Options,
    straggler: str | None = None,
    freed: float | None = None,
    pauses: bool = False,
) -> Diagnosis:
    """Rules and the contract, from a finished store.

    `straggler`: the late rank in words, when ranks were matched; `freed`: share of the time that its lateness costs;
    `pauses`: it stalls in some steps only.
    """
    store = analysed.store
    rules, broken = registry.load(options.rules)
    facts = quality.facts(store, analysed.roofs, analysed.outcome)
    facts |= {"straggler": straggler, "imbalance_relief": freed, "straggler_pauses": pauses}
    objective = "step_time"
    steps = {(d, p): n for d, p, n in store.rows("SELECT device_id, phase, count(*) FROM step GROUP BY ALL")}
    claims, failed = engine.run_rules(store, rules, facts, objective, steps)
    phases = result.phases(store, analysed.roofs)
    cover = result.coverage(store)
    requests = quality.requests(facts, cover)
    device = deciding_device(claims)
    # A device that mostly waits for another one says what holds the run: the late device's own time is the cause.
    others = sorted({c.context.device_id for c in claims if c.context.device_id >= 0} - {device})
    waits = [d for d in others if verdict(claims, phases, objective, facts, requests, d).limit == "imbalance"]
    answer = verdict(claims, phases, objective, facts, requests, waits[0] if waits and straggler else device)
    hypotheses = [engine.hypothesis(c, facts["engine"]) for c in claims]
    order = {"supported": 0, "possible": 1, "refuted": 2, "not_assessed": 3}
    hypotheses.sort(key=lambda h: (order[h.status], -(h.score or 0) * (h.confidence or 0), h.id))
    notes = quality.notes(store, facts, cover, analysed.outcome, analysed.notes)
    notes += [Note(code="rule-broken", severity="warning", message=line) for line in broken + failed]
    devices = result.devices(store, analysed.roofs, analysed.notes)
    steps_shown, steps_total = result.steps(store)
    return Diagnosis(
        schema=SCHEMA,
        tool_version=__version__,
        source=result.sources(store),
        objective=objective,
        devices=devices,
        attribution_ns=result.total_attribution(devices),
        coverage=cover,
        phases=phases,
        outside_steps=result.outside_steps(store),
        kernels=result.kernels(store),
        latency=None,
        kv=None,
        hypotheses=hypotheses,
        verdict=answer,
        data_quality=notes,
        steps=steps_shown,
        steps_total=steps_total,
        timeline=result.timeline(store),
        counters=result.counters(store),
    )


def run(paths: list[Path], options: Options | None = None, progress: Progress | None = None) -> Diagnosis:
    """Diagnose traces, run folders and the evidence beside them. InputError or UsageError, one line, when they cannot be used."""
    options = options or Options()
    given = sort_inputs(paths)
    if given.device is not None and options.device is None:
        options = replace(options, device=str(given.device))
    said = read_told(given.told)
    model_name = options.model or (str(given.model) if given.model else None)
    if model_name is None and said.model is not None:
        from diagnose.serving.model_load import is_known

        model_name = said.model if is_known(said.model) else None
    model = _model(model_name)
    files = (
        [*options.metrics, *given.metrics], [*options.log, *given.logs], [*options.bench, *given.benches],
        [*given.settings, *said.settings],
    )  # fmt: skip
    beside = None
    if model is not None or any(files):
        # Imported where there is evidence: its parsers and laws take as long to load as a small trace to read.
        from diagnose.run import serving
        from diagnose.run.no_trace import empty

        beside = serving.read(*files[:3], model, options.tp, options.pp, options.ep, files[3])
    told = beside is not None and serving.has_serving(beside.evidence)
    if not given.traces and not told:
        raise InputError(
            "neither a trace nor serving evidence in what was given; give a trace, --metrics, --log or --bench"
        )
    objective = options.objective or ("throughput" if told else "step_time")
    options = replace(options, model=model_name)
    roofs: Roofs | None = None
    if given.traces:
        result, roofs = _traces(given.traces, options, progress)
    else:
        result = empty(objective, __version__)
        # Without a trace the device is what the user says it is.
        roofs = resolve(options.device) if options.device else None
    if beside is not None:
        serving.attach(result, beside, objective, roofs, options.slo_ttft_ms, options.slo_itl_ms)
    others = [(name, resolve(name)) for name in options.what_if_device]
    if others:
        from diagnose.run import other_device

        result.what_if_devices = other_device.devices(result, roofs, others, options.price)
    if objective != "step_time" and not told:
        _unanswered(result, objective)
    apply_told(said, result)
    for name in given.skipped:
        result.data_quality.append(
            Note(
                code="skipped-file",
                severity="info",
                message=f"{name} in the folder is neither a trace nor evidence and was left out",
            )
        )
    return result


def _unanswered(result: Diagnosis, objective: str) -> None:
    """A serving objective asked of a trace alone: what limits the steps is known, not what limits the service."""
    result.verdict.could_not_tell.insert(
        0,
        f"{objective}: the trace shows what limits its steps; queue, KV pool and load need engine metrics, a log or a "
        "benchmark beside it",
    )
    result.objective = result.verdict.objective = objective


def _traces(paths: list[Path], options: Options, progress: Progress | None) -> tuple[Diagnosis, Roofs | None]:
    """Diagnose one trace, or several as ranks; also the roofs of the first device."""
    analysed: list[Analysed] = []
    try:
        for path in paths:
            analysed.append(prepare(path, options, progress))
        stores = [a.store for a in analysed]
        numbers = None
        if len(paths) > 1:
            recorded = [s.scalar("SELECT any_value(rank) FROM source") for s in stores]
            numbers = assign_ranks([p.name for p in paths], recorded, options.rank_regex)
            for store, number in zip(stores, numbers, strict=True):
                store.con.execute("UPDATE source SET rank = ?", [number])
        matching = ranks.match(stores, numbers)
        for one in analysed:
            finish(one, options)
        summary = ranks.summary_of(stores, matching)
        late = ranks.straggler_name(summary)
        freed = ranks.relief_share(stores, matching, summary)
        pauses = bool(((summary or {}).get("straggler") or {}).get("pauses"))
        results = [conclude(one, options, late, freed, pauses) for one in analysed]
        roofs = next((r for r in analysed[0].roofs.values() if r is not None), None)
    finally:
        for one in analysed:
            one.store.close()
    if len(results) == 1:
        results[0].rank_summary = summary
        results[0].data_quality += ranks.notes_of(summary)
        return results[0], roofs
    return ranks.combine(results, summary), roofs
