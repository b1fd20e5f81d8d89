"""From the store to the contract's parts: devices, coverage, phases, kernels, steps, timeline. No judgement here."""

from typing import Any

from diagnose.contract import (
    BUCKETS,
    PHASES,
    Attribution,
    Coverage,
    Device,
    KernelRow,
    OutsideSteps,
    Phase,
    RoofRow,
    Source,
    StepRow,
    TimelineSegment,
    Window,
    empty_attribution,
)
from diagnose.devices import Roofs
from diagnose.model.step_gaps import gap_work, sampler_gaps
from diagnose.store import Store

MAX_STEPS = 400
MAX_TIMELINE = 1_500
TOP_UNMODELLED = 10
# Below this share of kernel time with a cost, a sum of FLOPs or bytes over the phase says nothing about the phase.
MIN_COST_SHARE = 0.5


def sources(store: Store) -> list[Source]:
    """Trace files."""
    return [
        Source(
            path=r["path"], format=r["format"], sha256=r["sha256"], profiler=r["profiler"], profiler_version=r["profiler_version"],
            framework=r["framework"], captured_at=r["captured_at"], rank=r["rank"], world_size=r["world_size"], bytes=r["bytes"],
        )
        for r in store.dicts("SELECT * FROM source ORDER BY source_id")
    ]  # fmt: skip


def _attribution(rows: list[tuple[Any, ...]]) -> Attribution:
    out = empty_attribution()
    for bucket, ns in rows:
        out[bucket] += int(ns)
    return out


def devices(store: Store, roofs: dict[int, Roofs | None], notes: dict[int, str]) -> list[Device]:
    """Devices with activity, each with its window cut into buckets."""
    result = []
    for device, start, end in store.rows(
        "SELECT device_id, min(start_ns), max(end_ns) FROM segment GROUP BY device_id ORDER BY device_id"
    ):
        named = store.dicts("SELECT * FROM device WHERE device_id = ?", device)
        info = named[0] if named else {}
        mine = roofs.get(device)
        result.append(
            Device(
                id=device,
                name=info.get("name") or "",
                catalog_key=mine.spec.key if mine else None,
                rank=store.scalar("SELECT any_value(rank) FROM source"),
                window=Window(start_ns=start, end_ns=end, wall_ns=end - start),
                attribution_ns=_attribution(
                    store.rows(
                        "SELECT bucket, sum(ns) FROM phase_bucket WHERE device_id = ? GROUP BY bucket", device
                    )
                ),
                roofs=[RoofRow(**row) for row in mine.rows()] if mine else [],
                sm_count=info.get("sm_count"),
                memory_bytes=info.get("memory_bytes"),
                match_note=notes.get(device),
            )
        )
    return result


def coverage(store: Store) -> Coverage:
    """How much of the kernels' time is linked to an operator and has a cost."""
    row = store.dicts(
        """SELECT coalesce(sum(a.dur_ns), 0)::BIGINT AS total,
            coalesce(sum(a.dur_ns) FILTER (a.op_id IS NOT NULL), 0)::BIGINT AS linked,
            coalesce(sum(a.dur_ns) FILTER (a.link = 'graph' OR a.kind = 'graph'), 0)::BIGINT AS graphs,
            coalesce(sum(a.dur_ns) FILTER (a.link = 'no_launch'), 0)::BIGINT AS no_launch,
            coalesce(sum(a.dur_ns) FILTER (c.kernel_id IS NOT NULL), 0)::BIGINT AS costed
        FROM activity a LEFT JOIN cost c USING (kernel_id) WHERE a.kind IN ('kernel', 'graph')"""
    )[0]
    by_source = store.rows(
        "SELECT c.source, sum(a.dur_ns)::BIGINT FROM activity a JOIN cost c USING (kernel_id) WHERE a.kind IN ('kernel', 'graph') GROUP BY 1 ORDER BY 2 DESC"
    )
    top = store.dicts(
        f"""SELECT n.text AS name, count(*) AS count, sum(a.dur_ns)::BIGINT AS time_ns
        FROM activity a LEFT JOIN cost c USING (kernel_id) LEFT JOIN name n ON n.name_id = a.name_id
        LEFT JOIN name_family f ON f.name_id = a.name_id
        WHERE a.kind = 'kernel' AND c.kernel_id IS NULL AND NOT coalesce(f.is_comm, false)
        GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT {TOP_UNMODELLED}"""
    )
    return Coverage(
        kernel_time_ns=row["total"],
        linked_to_op_ns=row["linked"],
        in_graphs_ns=row["graphs"],
        no_launch_ns=row["no_launch"],
        with_cost_ns=row["costed"],
        by_source_ns={source: ns for source, ns in by_source},
        unmodelled_top=top,
    )


def phases(store: Store, roofs: dict[int, Roofs | None]) -> list[Phase]:
    """One entry a phase, over all devices; limit and confidence are filled by the rules."""
    result = []
    for phase in PHASES:
        times = store.dicts(
            """SELECT count(*) AS steps, quantile_cont(observed_ns, 0.5) AS p50, quantile_cont(observed_ns, 0.9) AS p90,
                quantile_cont(observed_ns, 0.99) AS p99 FROM step_time WHERE phase = ?""",
            phase,
        )[0]
        if not times["steps"]:
            continue
        attribution = _attribution(
            store.rows("SELECT bucket, sum(ns) FROM phase_bucket WHERE phase = ? GROUP BY bucket", phase)
        )
        tokens = store.dicts(
            """SELECT CASE WHEN count(prefill_tokens) = count(*) THEN sum(prefill_tokens)::BIGINT END AS prefill,
                CASE WHEN count(decode_tokens) = count(*) THEN sum(decode_tokens)::BIGINT END AS decode,
                CASE WHEN count(accepted_tokens) = count(*) THEN sum(accepted_tokens)::BIGINT END AS accepted,
                avg(sequences) AS sequences, avg(context_tokens) AS context FROM step WHERE phase = ?""",
            phase,
        )[0]
        wall = sum(attribution.values())
        ideal = _ideal(store, phase, roofs)
        steps = times["steps"]
        observed = wall - attribution["unobserved"]
        result.append(
            Phase(
                phase=phase,
                steps=steps,
                wall_ns=wall,
                tokens={k: tokens[k] for k in ("prefill", "decode", "accepted")},
                attribution_ns=attribution,
                step_time_ns={k: times[k] for k in ("p50", "p90", "p99")},
                ideal_step_ns=ideal["ideal_ns"] / steps if ideal["ideal_ns"] is not None else None,
                efficiency=ideal["ideal_ns"] / observed
                if ideal["ideal_ns"] is not None and observed
                else None,
                mfu=ideal["flop_time_ns"] / observed
                if ideal["flop_time_ns"] is not None and observed
                else None,
                mbu=ideal["byte_time_ns"] / observed
                if ideal["byte_time_ns"] is not None and observed
                else None,
                limit="inconclusive",
                confidence=None,
                sequences=tokens["sequences"],
                context_tokens=tokens["context"] if phase != "prefill" else tokens["context"] or None,
                ideal_note=ideal["note"],
            )
        )
    return result


def _ideal(store: Store, phase: str, roofs: dict[int, Roofs | None]) -> dict[str, Any]:
    """Sum of each kernel's roof time (kernels without a cost and collectives count as measured), and datasheet times.

    Attention and products do not overlap, so the step roof is a sum over kernels, not the larger of two totals.
    """
    none = {"ideal_ns": None, "flop_time_ns": None, "byte_time_ns": None, "note": None}
    rows = store.rows(
        "SELECT device_id, bound, own_ns, ideal_ns, flops, bytes FROM phase_bound WHERE phase = ?", phase
    )
    kernel_ns = sum(r[2] for r in rows if r[1] != "copy")
    modelled_ns = sum(r[2] for r in rows if r[3] is not None)
    if not kernel_ns or modelled_ns < MIN_COST_SHARE * kernel_ns:
        return none
    ideal = sum(min(r[3], r[2]) if r[3] is not None else r[2] for r in rows if r[1] != "copy")
    by_dtype = store.rows(
        """SELECT a.device_id, c.dtype, sum(c.flops), sum(c.bytes_min) FROM cost c JOIN activity a USING (kernel_id)
        JOIN owner o USING (kernel_id) JOIN step s ON s.step_id = o.step_id WHERE s.phase = ? GROUP BY ALL""",
        phase,
    )
    flop_ns = byte_ns = 0.0
    for device, dtype, flops, nbytes in by_dtype:
        mine = roofs.get(device)
        if mine is None:
            continue
        if flops and (peak := mine.spec.peak_compute.get(dtype)):
            flop_ns += flops / peak * 1e9
        if nbytes and mine.spec.peak_bandwidth:
            byte_ns += nbytes / mine.spec.peak_bandwidth * 1e9
    share = modelled_ns / kernel_ns
    note = (
        None
        if share > 0.995
        else f"{100 * (1 - share):.1f} % of kernel time has no roof time and counts as measured"
    )
    return {
        "ideal_ns": float(ideal),
        "flop_time_ns": flop_ns or None,
        "byte_time_ns": byte_ns or None,
        "note": note,
    }


def outside_steps(store: Store) -> OutsideSteps:
    """Device time that no step is charged with."""
    attribution = _attribution(
        store.rows("SELECT bucket, sum(ns) FROM phase_bucket WHERE phase IS NULL GROUP BY bucket")
    )
    return OutsideSteps(wall_ns=sum(attribution.values()), attribution_ns=attribution)


def kernels(store: Store) -> list[KernelRow]:
    """Every combination of name, operator, role, shape and phase; longest first."""
    rows = store.dicts(
        """SELECT g.*, n.text AS name, o.text AS op FROM kernel_group g
        LEFT JOIN name n ON n.name_id = g.name_id LEFT JOIN name o ON o.name_id = g.op_name_id
        ORDER BY g.time_ns DESC, n.text, o.text, g.shape, g.phase"""
    )
    result = []
    for r in rows:
        rate = r["rate_ns"]
        flops, nbytes = r["flops"], r["bytes"]
        result.append(
            KernelRow(
                name=r["name"] or ("(graph replay)" if r["kind"] == "graph" else ""),
                family=r["family"] or "other",
                op=r["op"],
                role=r["role"],
                shape=r["shape"],
                phase=r["phase"],
                count=r["count"],
                time_ns=r["time_ns"],
                flops=flops,
                bytes=nbytes,
                tflops=flops / rate / 1e3 if flops and rate else None,
                gbps=nbytes / rate if nbytes and rate else None,
                intensity=flops / nbytes if flops and nbytes else None,
                regime=r["regime"],
                percent_of_roof=100 * r["ideal_ns"] / r["ideal_rate_ns"]
                if r["ideal_ns"] and r["ideal_rate_ns"]
                else None,
                bound=r["bound"],
                reason=r["reason"],
                cost_source=r["source"],
                dtype=r["dtype"],
                device=r["device_id"],
                bytes_low=r["bytes_low"],
                bytes_high=r["bytes_high"],
                flags=sorted(set((r["flags"] or "").split(",")) - {""}),
                se_ns=r["se_ns"],
            )
        )
    return result


def steps(store: Store) -> tuple[list[StepRow], int]:
    """Steps for the timeline: all of them up to MAX_STEPS, else the first ones, and their true number."""
    total = store.count("step")
    rows = store.dicts(f"SELECT * FROM step ORDER BY start_ns, step_id LIMIT {MAX_STEPS}")
    wanted = [r["step_id"] for r in rows]
    split: dict[int, Attribution] = {}
    for step, bucket, ns in store.rows(
        "SELECT step_id, bucket, sum(end_ns - start_ns) FROM segment WHERE step_id IN (SELECT unnest(?::INTEGER[])) GROUP BY ALL",
        wanted,
    ):
        split.setdefault(step, empty_attribution())[bucket] += int(ns)
    roles: dict[int, dict[str, int]] = {}
    for step, role, ns in store.rows(
        """SELECT g.step_id, coalesce(c.role, f.family, a.kind) AS role, sum(g.end_ns - g.start_ns)::BIGINT
        FROM segment g JOIN activity a USING (kernel_id) LEFT JOIN cost c USING (kernel_id)
        LEFT JOIN name_family f ON f.name_id = a.name_id
        WHERE g.step_id IN (SELECT unnest(?::INTEGER[])) AND g.bucket NOT LIKE 'idle%' AND g.bucket NOT IN ('copy', 'unobserved')
        GROUP BY ALL ORDER BY 1, 3 DESC, 2""",
        wanted,
    ):
        roles.setdefault(step, {})[role] = ns
    sampler, gap = sampler_gaps(store, wanted), gap_work(store, wanted)
    return [
        StepRow(
            step_id=r["step_id"], device=r["device_id"], phase=r["phase"], start_ns=r["start_ns"], end_ns=r["end_ns"],
            gap_before_ns=r["gap_before_ns"] or 0, sequences=r["sequences"], prefill_tokens=r["prefill_tokens"],
            decode_tokens=r["decode_tokens"], context_tokens=r["context_tokens"],
            attribution_ns=split.get(r["step_id"], empty_attribution()), role_ns=roles.get(r["step_id"], {}),
            provenance=r["provenance"], sampler_gap_ns=sampler.get(r["step_id"], {}), gap_work_ns=gap.get(r["step_id"], {}),
        )
        for r in rows
    ], total  # fmt: skip


def timeline(store: Store) -> list[TimelineSegment]:
    """The window for drawing: neighbours of one bucket merged, and what is shorter than a pixel left to the longest."""
    rows = store.rows(
        f"""WITH span AS (
            SELECT device_id, min(start_ns) AS w0, greatest(1, (max(end_ns) - min(start_ns)) // {MAX_TIMELINE // 2}) AS cell
            FROM segment GROUP BY device_id
        ), binned AS (
            -- Each cell of the picture shows the bucket that fills most of it; long segments span many cells.
            SELECT s.device_id, s.bucket, s.cause, s.step_id, unnest(range((s.start_ns - w0) // cell, (s.end_ns - 1 - w0) // cell + 1)) AS i,
                s.start_ns, s.end_ns, w0, cell
            FROM segment s JOIN span USING (device_id)
        ), filled AS (
            SELECT device_id, i, bucket, arg_max(cause, end_ns - start_ns) AS cause, arg_max(step_id, end_ns - start_ns) AS step_id,
                sum(least(end_ns, w0 + (i + 1) * cell) - greatest(start_ns, w0 + i * cell)) AS ns, any_value(w0) AS w0, any_value(cell) AS cell
            FROM binned GROUP BY device_id, i, bucket
        ), chosen AS (
            SELECT device_id, i, arg_max(bucket, (ns, bucket)) AS bucket, arg_max(cause, (ns, bucket)) AS cause,
                arg_max(step_id, (ns, bucket)) AS step_id, any_value(w0) AS w0, any_value(cell) AS cell
            FROM filled GROUP BY device_id, i
        ), runs AS (
            SELECT *, i - row_number() OVER (PARTITION BY device_id, bucket, step_id ORDER BY i) AS run FROM chosen
        )
        SELECT device_id, w0 + min(i) * cell, w0 + (max(i) + 1) * cell, bucket, arg_max(cause, i), step_id
        FROM runs GROUP BY device_id, bucket, step_id, run, w0, cell ORDER BY 1, 2"""
    )
    return [
        TimelineSegment(device=d, start_ns=s, end_ns=e, bucket=b, cause=c, step_id=st)
        for d, s, e, b, c, st in rows
    ]


MAX_COUNTER_POINTS = 240


def counters(store: Store) -> list[dict[str, Any]]:
    """Sampled device counters for drawing: at most MAX_COUNTER_POINTS means a device and metric, in time order."""
    rows = store.dicts(
        f"""WITH span AS (
            SELECT device_id, metric, min(ts_ns) AS t0, greatest(1, (max(ts_ns) - min(ts_ns)) // {MAX_COUNTER_POINTS} + 1) AS cell
            FROM counter GROUP BY ALL
        )
        SELECT c.device_id AS device, c.metric, min(c.ts_ns)::BIGINT AS ts_ns, avg(c.value) AS value
        FROM counter c JOIN span s ON s.device_id = c.device_id AND s.metric = c.metric
        GROUP BY c.device_id, c.metric, (c.ts_ns - t0) // cell ORDER BY 1, 2, 3"""
    )
    return [{**r, "unit": "Hz" if r["metric"] == "gpc_clock" else "% of peak"} for r in rows]


def total_attribution(parts: list[Device]) -> Attribution:
    """Sum over devices."""
    return {bucket: sum(d.attribution_ns[bucket] for d in parts) for bucket in BUCKETS}
