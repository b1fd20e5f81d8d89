-- What linked kernels of a name did, by grid and block (or by name alone where the unlinked kernel has no grid): `kind` is one distinct cost of one such kernel.
CREATE OR REPLACE TABLE cost_kind AS
SELECT k.name_id, {grid} AS grid, {block} AS block, k.kernel_id, k.dur_ns,
       hash(c.flops, c.bytes_min, c.bytes_high, c.dtype, c.role, c.strided, c.shape) AS kind
FROM kernel k
JOIN cost c USING (kernel_id)
JOIN cost_same_name s USING (name_id)
WHERE {with_grid} AND k.device_id <> -1;

CREATE OR REPLACE TABLE cost_reference AS
SELECT name_id, grid, block, kind, min(kernel_id) AS example, count(*) AS kernels, median(dur_ns) AS typical_ns
FROM cost_kind GROUP BY ALL;

-- One kind of work behind this name, grid and block: unlinked kernels like it did the same.
CREATE OR REPLACE TABLE cost_settled AS
WITH only_one AS (
    SELECT name_id, grid, block, any_value(example) AS example, any_value(typical_ns) AS typical_ns
    FROM cost_reference GROUP BY ALL HAVING count(*) = 1
)
SELECT k.kernel_id, r.example
FROM kernel k
JOIN only_one r ON r.name_id = k.name_id AND r.grid = {grid} AND r.block IS NOT DISTINCT FROM {block}
ANTI JOIN cost c ON c.kernel_id = k.kernel_id
WHERE k.op_id IS NULL AND k.device_id <> -1 AND {unlinked}
      AND (greatest(k.dur_ns, r.typical_ns) <= {short_ns}
           OR greatest(k.dur_ns, r.typical_ns) <= {ratio} * least(k.dur_ns, r.typical_ns));

INSERT INTO cost BY NAME
SELECT s.kernel_id, c.* EXCLUDE (kernel_id, source), 'same_kernel' AS source
FROM cost_settled s JOIN cost c ON c.kernel_id = s.example;
DROP TABLE cost_settled;

-- Several kinds: left open for the neighbours.
CREATE OR REPLACE TABLE cost_open AS
WITH several AS (SELECT name_id, grid, block FROM cost_reference GROUP BY ALL HAVING count(*) > 1)
SELECT k.kernel_id, k.name_id, {grid} AS grid, {block} AS block, k.dur_ns
FROM kernel k
JOIN several r ON r.name_id = k.name_id AND r.grid = {grid} AND r.block IS NOT DISTINCT FROM {block}
ANTI JOIN cost c ON c.kernel_id = k.kernel_id
WHERE k.op_id IS NULL AND k.device_id <> -1 AND {unlinked};

-- Every kernel in device order with a number for its name and grid, to compare neighbours by.
CREATE OR REPLACE TABLE cost_sequence AS
SELECT kernel_id, device_id, stream, start_ns, dense_rank() OVER (ORDER BY name_id, {grid}) AS shape_id
FROM kernel k
WHERE device_id <> -1 AND (SELECT count(*) FROM cost_open) > 0;
