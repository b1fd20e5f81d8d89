-- What linked kernels of a name did, by grid and block (or by name alone where the unlinked kernel has no grid).
CREATE OR REPLACE TABLE cost_reference AS
SELECT k.name_id, {grid} AS grid, {block} AS block, t.kind, count(*) AS kernels, median(k.dur_ns) AS typical_ns
FROM kernel k
JOIN cost_taken t USING (kernel_id)
JOIN cost_same_name s USING (name_id)
WHERE {with_grid} AND k.device_id <> -1
GROUP BY ALL;

-- Unlinked kernels that have a reference, and whether one kind of work is all that is known of such kernels.
CREATE OR REPLACE TABLE cost_open AS
WITH known AS (
    SELECT name_id, grid, block, count(*) AS kinds, any_value(kind) AS kind, any_value(typical_ns) AS typical_ns
    FROM cost_reference GROUP BY ALL
)
SELECT k.kernel_id, k.name_id, r.grid, r.block, k.dur_ns, r.kinds, r.kind, r.typical_ns,
       -- a replayed graph may run shapes that no operator of the trace ran
       CASE WHEN k.link = 'graph' THEN least({ratio}, 1.25) ELSE {ratio} END AS ratio
FROM kernel k
JOIN known r ON r.name_id = k.name_id AND r.grid = {grid} AND r.block IS NOT DISTINCT FROM {block}
ANTI JOIN cost_taken t ON t.kernel_id = k.kernel_id
WHERE k.op_id IS NULL AND k.device_id <> -1 AND {unlinked};

INSERT INTO cost_taken
SELECT kernel_id, kind, 'same_kernel'
FROM cost_open
WHERE kinds = 1
      AND (greatest(dur_ns, typical_ns) <= {short_ns}
           OR greatest(dur_ns, typical_ns) <= ratio * least(dur_ns, typical_ns));

DELETE FROM cost_open WHERE kinds = 1;
