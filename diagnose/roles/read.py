"""Kernels of one step in launch order, read step by step so that a long trace takes little memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from diagnose.costs.families import COMMUNICATION, family
from diagnose.costs.op import StepInfo
from diagnose.roles.numbers import StepNumbers, numbers
from diagnose.store import Store


@dataclass(slots=True)
class Lane:
    """The kernels of one step on the stream that does most of its work, as parallel lists in order of time.

    `shape` holds (m, n, k) of products whose operator recorded it, None elsewhere; `costed` says which have a cost
    already, `by_step` which have it from the operator's shapes and the step's sums (windows not known); `rows0` is the grid's first dimension and `blocks` all of it (0 unknown).
    """

    device_id: int
    step_id: int
    kernel_id: list[int]
    name_id: list[int]
    dur_ns: list[int]
    costed: list[bool]
    by_step: list[bool]
    shape: list[tuple[int, int, int] | None]
    rows0: list[int]
    blocks: list[int]


_SQL = """
WITH steps AS (
    SELECT DISTINCT k.step_id FROM kernel k ANTI JOIN cost c ON c.kernel_id = k.kernel_id
    WHERE k.step_id IS NOT NULL AND k.device_id >= 0
), streams AS (
    SELECT step_id, stream, sum(dur_ns)::BIGINT AS ns
    FROM kernel JOIN steps USING (step_id) WHERE device_id >= 0 GROUP BY step_id, stream
), lanes AS (
    SELECT *, row_number() OVER (PARTITION BY step_id ORDER BY ns DESC, stream) AS place FROM streams
)
SELECT k.device_id, k.step_id, k.kernel_id, k.name_id, k.dur_ns, c.kernel_id IS NOT NULL, coalesce(c.source = 'step', false),
       CASE WHEN c.m IS NOT NULL AND c.source = 'shape' AND coalesce(c.batch, 1) = 1 THEN c.m END, c.n, c.k,
       coalesce(try_cast(regexp_extract(k.grid, '(\\d+)', 1) AS BIGINT), 0),
       coalesce(list_product(from_json(k.grid, '["BIGINT"]')), 0)::BIGINT
FROM kernel k
JOIN lanes l ON l.step_id = k.step_id AND l.stream = k.stream AND l.place = 1
LEFT JOIN cost c ON c.kernel_id = k.kernel_id
ORDER BY k.device_id, k.step_id, k.start_ns, k.kernel_id
"""


def lanes(store: Store) -> Iterator[Lane]:
    """Every step that has a kernel without a cost."""
    cursor = store.con.cursor()
    try:
        cursor.execute(_SQL)
        lane: Lane | None = None
        while rows := cursor.fetchmany(20_000):
            for device, step, kernel, name, dur, costed, by_step, m, n, k, rows0, blocks in rows:
                if lane is None or (lane.device_id, lane.step_id) != (device, step):
                    if lane is not None:
                        yield lane
                    lane = Lane(device, step, [], [], [], [], [], [], [], [])
                lane.kernel_id.append(kernel)
                lane.name_id.append(name)
                lane.dur_ns.append(dur)
                lane.costed.append(costed)
                lane.by_step.append(by_step)
                lane.shape.append(None if m is None else (m, n, k))
                lane.rows0.append(rows0)
                lane.blocks.append(blocks)
        if lane is not None:
            yield lane
    finally:
        cursor.close()


def collectives(store: Store) -> dict[int, int]:
    """Collective kernels of every step, on any stream."""
    names = [
        n for n, text in store.rows("SELECT name_id, text FROM name") if family(text or "") in COMMUNICATION
    ]
    return dict(
        store.rows(
            """SELECT step_id, count(*) FROM kernel WHERE step_id IS NOT NULL AND device_id >= 0
            AND name_id IN (SELECT unnest(?::INTEGER[])) GROUP BY 1""",
            names,
        )
    )


def step_numbers(store: Store) -> dict[int, StepNumbers]:
    """Numbers of every step, rows not yet known from kernels."""
    out = {}
    for step_id, prefills, decodes, *rest in store.rows(
        """SELECT step_id, prefill_sequences, decode_sequences, phase, sequences, prefill_tokens, decode_tokens, context_tokens,
        prefill_context_tokens, prefill_pairs FROM step"""
    ):
        out[step_id] = numbers(StepInfo(*rest), prefills, decodes, None)
    return out
