"""A phase's time as parts that respond to changes in their own way: what every prediction is built from.

Parts are the buckets, with kernel time further split where a change acts on some kernels only: `hbm:weights` (matrix
products that stream weights), `hbm:experts`, `hbm:packed` (already low precision), `hbm:kv` (attention over the cache), `hbm:other`, and the same for the other bounds.
They add up to the observed time of the phase, so a prediction is a sum over parts, never a law of a regime.
"""

from typing import Any

from diagnose.costs.families import KV_FAMILIES, WEIGHT_FAMILIES
from diagnose.store import Store

_EXPERT_FAMILIES = ("moe_gemm",)
_PACKED_FAMILIES = ("gemm_lowp", "gemm_w4a16")


def parts_by_phase(store: Store) -> dict[tuple[int, str | None], dict[str, float]]:
    """Observed nanoseconds by (device, phase) and part; phase None is outside steps. Unobserved time is left out."""
    rows = store.dicts(
        """SELECT s.device_id, s.phase, s.bucket, b.family, sum(s.end_ns - s.start_ns)::BIGINT AS ns,
            coalesce(s.cause LIKE 'host input:%', false) AS is_input
        FROM segment s
        LEFT JOIN bound b ON b.kernel_id = s.kernel_id AND s.bucket IN ('compute', 'hbm', 'floor', 'inefficient', 'unmodelled')
        WHERE s.bucket <> 'unobserved' GROUP BY ALL"""
    )
    parts: dict[tuple[int, str | None], dict[str, float]] = {}
    for row in rows:
        target = parts.setdefault((row["device_id"], row["phase"]), {})
        name = _part(row)
        target[name] = target.get(name, 0.0) + row["ns"]
    return parts


def _part(row: dict[str, Any]) -> str:
    bucket = row["bucket"]
    if bucket == "idle_scheduling" and row["is_input"]:
        return "idle_input"
    if bucket in ("compute", "hbm", "inefficient", "floor", "unmodelled"):
        family = row["family"]
        groups = (
            ("weights", WEIGHT_FAMILIES - {*_EXPERT_FAMILIES, *_PACKED_FAMILIES}),
            ("experts", _EXPERT_FAMILIES),
            ("packed", _PACKED_FAMILIES),
            ("kv", KV_FAMILIES),
        )
        kind = next((name for name, families in groups if family in families), "other")
        return f"{bucket}:{kind}"
    return str(bucket)


def total(parts: dict[str, float], *prefixes: str) -> float:
    """Sum of the parts whose bucket is one of `prefixes`."""
    return sum(ns for part, ns in parts.items() if part.split(":")[0] in prefixes)


def kernel_counts(store: Store) -> dict[tuple[int, str], int]:
    """Kernels by (device, phase)."""
    return {
        (device, phase): count
        for device, phase, count in store.rows(
            "SELECT s.device_id, s.phase, count(*) FROM kernel k JOIN step s USING (step_id) GROUP BY ALL"
        )
    }


def unseen_gaps(store: Store) -> dict[tuple[int, str], int]:
    """By (device, phase): 1 where the window begins with a step of the phase, whose gap before it lies outside."""
    return {
        (device, phase): 1
        for device, phase in store.rows(
            "SELECT device_id, arg_min(phase, (end_ns, step_id)) FROM step WHERE provenance <> 'window' GROUP BY device_id"
        )
    }


def gaps_seen(steps: int, unseen: int) -> float:
    """Gaps of a long run over those the window shows: n steps show n - 1 where it begins with one of them."""
    return steps / (steps - unseen) if steps > unseen else 1.0


def steady(parts: dict[str, float], steps: int, unseen: int) -> dict[str, float]:
    """The parts as they are in a long run, every step with the gap before it."""
    more = gaps_seen(steps, unseen)
    return {p: ns * more if p == "idle_scheduling" else ns for p, ns in parts.items()}


def whole_steps(store: Store) -> dict[tuple[int, str], float]:
    """Steps by (device, phase), the first and the last of the window as the part of a usual step that it holds.

    A trace cut at either end begins or ends inside a step: by its kernels that step is half a step, not one.
    """
    rows = store.rows(
        """WITH sized AS (
            SELECT s.device_id, s.phase, s.step_id, s.end_ns, count(*) AS n,
                   median(count(*)) OVER (PARTITION BY s.device_id, s.phase) AS usual,
                   count(*) OVER (PARTITION BY s.device_id, s.phase) AS steps
            FROM step s JOIN owner o USING (step_id) GROUP BY s.device_id, s.phase, s.step_id, s.end_ns
        ), placed AS (
            SELECT *, step_id IN (first(step_id) OVER w, last(step_id) OVER w) AS at_edge
            FROM sized WINDOW w AS (PARTITION BY device_id ORDER BY end_ns, step_id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
        )
        SELECT device_id, phase, sum(CASE WHEN at_edge AND steps >= 3 THEN least(1, n / usual) ELSE 1 END)::DOUBLE
        FROM placed GROUP BY device_id, phase"""
    )
    return {(device, phase): steps for device, phase, steps in rows}
