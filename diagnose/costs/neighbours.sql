-- Kernels around the open ones and around some of their references, as numbers of (name, grid), nearest {reach} either side.
CREATE OR REPLACE TABLE cost_target AS
SELECT kernel_id, name_id, grid, block, NULL::INTEGER AS kind, dur_ns, NULL::DOUBLE AS typical_ns FROM cost_open
UNION ALL
SELECT k.kernel_id, k.name_id, r.grid, r.block, r.kind, k.dur_ns, r.typical_ns
FROM kernel k
JOIN cost_taken t USING (kernel_id)
JOIN cost_reference r
    ON r.name_id = k.name_id AND r.grid = {grid} AND r.block IS NOT DISTINCT FROM {block} AND r.kind = t.kind
WHERE (k.name_id, r.grid) IN (SELECT DISTINCT name_id, grid FROM cost_open) AND {with_grid}
QUALIFY row_number() OVER (PARTITION BY k.name_id, r.grid, r.block, r.kind ORDER BY k.kernel_id) <= {references};

CREATE OR REPLACE TABLE cost_sequence AS
SELECT kernel_id, hash(device_id, stream) AS lane, hash(k.name_id, {grid}) AS shape_id,
       row_number() OVER (PARTITION BY device_id, stream ORDER BY start_ns, kernel_id) AS at
FROM kernel k
WHERE device_id <> -1
      AND kernel_id BETWEEN (SELECT min(kernel_id) FROM cost_target) - 10000
          AND (SELECT max(kernel_id) FROM cost_target) + 10000;

CREATE OR REPLACE TABLE cost_around AS
WITH near AS (
    SELECT t.kernel_id, list({step: i, shape_id: s.shape_id} ORDER BY i) AS around
    FROM cost_target t
    JOIN cost_sequence me USING (kernel_id)
    CROSS JOIN range(-{reach}, {reach} + 1) r(i)
    JOIN cost_sequence s ON s.lane = me.lane AND s.at = me.at + r.i
    WHERE r.i <> 0
    GROUP BY t.kernel_id
)
SELECT t.kernel_id, t.name_id, t.grid, t.block, t.kind, t.dur_ns, t.typical_ns, hash(n.around) AS around_id, n.around
FROM cost_target t JOIN near n USING (kernel_id);
DROP TABLE cost_sequence;
DROP TABLE cost_target;
