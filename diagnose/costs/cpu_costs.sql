-- From the top of every thread's operator tree down: an operator belongs to its parent's owner, else to itself when it
-- has a cost.
CREATE OR REPLACE TABLE cost_cpu_owner AS
WITH RECURSIVE known AS (
    SELECT o.op_id, o.parent_op_id, f.name_id IS NOT NULL AS costed
    FROM cost_op o
    LEFT JOIN cost_found f ON f.name_id = o.name_id AND f.signature_id IS NOT DISTINCT FROM o.signature_id
), down AS (
    SELECT op_id, CASE WHEN costed THEN op_id END AS owner FROM known WHERE parent_op_id IS NULL
    UNION ALL
    SELECT k.op_id, coalesce(d.owner, CASE WHEN k.costed THEN k.op_id END)
    FROM known k
    JOIN down d ON k.parent_op_id = d.op_id
)
SELECT op_id, owner FROM down WHERE owner IS NOT NULL;

INSERT INTO cost BY NAME
WITH timed AS (
    SELECT k.kernel_id, w.owner, k.dur_ns / nullif(sum(k.dur_ns) OVER (PARTITION BY w.owner), 0) AS part
    FROM kernel k
    JOIN cost_cpu_owner w ON w.op_id = k.op_id
    WHERE k.device_id = -1
)
SELECT t.kernel_id, v.flops * t.part AS flops, v.bytes_min * t.part AS bytes_min, v.bytes_low * t.part AS bytes_low,
       v.bytes_high * t.part AS bytes_high, v.dtype, v.role, 'shape' AS source, v.shape, v.strided, v.attention_length,
       v.head_dim
FROM timed t
JOIN cost_op o ON o.op_id = t.owner
JOIN cost_found f ON f.name_id = o.name_id AND f.signature_id IS NOT DISTINCT FROM o.signature_id
JOIN cost_value v ON v.kind = f.kind
WHERE t.part IS NOT NULL;
DROP TABLE cost_cpu_owner;
