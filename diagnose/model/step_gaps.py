"""What the host did while the device waited around a step: between logits and sampler, and in the gap before the step."""

from diagnose.store import Store

MIN_GAP_NS = 200_000
"""Gaps shorter than this are not worth naming: some host work lies between any two steps."""
NAMES = 3
"""Names kept a gap, the longest."""


def sampler_gaps(store: Store, steps: list[int]) -> dict[int, dict[str, int]]:
    """Idle ns by bucket between the end of a step's last matrix product and the start of its last kernel, by step.

    The last product of a step makes the logits; what follows turns them into tokens. A device that idles there waits for
    work between the two: a grammar's mask, a logits processor on the host.
    """
    rows = store.rows(
        """WITH head AS (
            SELECT a.step_id, max(a.start_ns + a.dur_ns) FILTER (f.family IN ('gemm', 'gemv', 'gemm_lowp', 'gemm_w4a16', 'splitk_epilogue'))
                     AS logits, max(a.start_ns) AS last
            FROM activity a JOIN name_family f USING (name_id)
            WHERE a.kind = 'kernel' AND a.step_id IN (SELECT unnest(?::INTEGER[])) GROUP BY a.step_id
        )
        SELECT g.step_id, g.bucket, sum(least(g.end_ns, h.last) - greatest(g.start_ns, h.logits))::BIGINT
        FROM segment g JOIN head h USING (step_id)
        WHERE g.bucket LIKE 'idle%' AND g.end_ns > h.logits AND g.start_ns < h.last GROUP BY ALL""",
        steps,
    )
    found: dict[int, dict[str, int]] = {}
    for step, bucket, ns in rows:
        found.setdefault(step, {})[bucket] = int(ns)
    return found


def gap_work(store: Store, steps: list[int]) -> dict[int, dict[str, int]]:
    """Host ns by name inside the idle gap before each step: outermost operators, and Python frames where they were recorded.

    Runtime calls are left out: a blocking call in the gap is waiting, not work.
    """
    rows = store.rows(
        """WITH gap AS (
            SELECT step_id, start_ns - gap_before_ns AS a, start_ns AS b FROM step
            WHERE step_id IN (SELECT unnest(?::INTEGER[])) AND gap_before_ns > ?
        ), work AS (
            SELECT start_ns, start_ns + dur_ns AS end_ns, name_id FROM op WHERE parent_op_id IS NULL
            UNION ALL SELECT start_ns, start_ns + dur_ns, name_id FROM python_call
        ), held AS (
            SELECT gap.step_id, n.text, sum(least(w.end_ns, gap.b) - greatest(w.start_ns, gap.a))::BIGINT AS ns
            FROM gap JOIN work w ON w.start_ns < gap.b AND w.end_ns > gap.a JOIN name n USING (name_id) GROUP BY ALL
        )
        SELECT step_id, text, ns FROM held QUALIFY row_number() OVER (PARTITION BY step_id ORDER BY ns DESC, text) <= ?
        ORDER BY step_id, ns DESC, text""",
        steps,
        MIN_GAP_NS,
        NAMES,
    )
    found: dict[int, dict[str, int]] = {}
    for step, text, ns in rows:
        found.setdefault(step, {})[text] = int(ns)
    return found
