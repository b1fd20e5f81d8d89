-- Unfused chains: three or more passes over memory in a row on one stream, with nothing between them that computes.
-- `chain(chain_id, device_id, phase, kernels, own_ns, largest_ns, largest_ideal_ns)`, and `chain_member(chain_id, kernel_id)`.
-- Fused, a chain reads and writes its largest operand about once: its largest pass is what is left of it.
CREATE OR REPLACE TABLE chain_member AS
WITH passes AS (
    SELECT a.kernel_id, a.device_id, a.stream, a.start_ns,
           -- A copy that grows a tensor is avoidable by itself, fused or not.
           f.family IN ('elementwise', 'copy_cat', 'reduce', 'fill', 'activation', 'softmax')
               AND c.role IS DISTINCT FROM 'cat_append' AS is_pass
    FROM activity a JOIN name_family f USING (name_id) LEFT JOIN cost c USING (kernel_id)
    WHERE a.kind = 'kernel' AND a.device_id <> -1
), islands AS (
    SELECT *, row_number() OVER (PARTITION BY device_id, stream ORDER BY start_ns, kernel_id)
            - row_number() OVER (PARTITION BY device_id, stream, is_pass ORDER BY start_ns, kernel_id) AS island
    FROM passes
), numbered AS (
    SELECT kernel_id, min(kernel_id) OVER (PARTITION BY device_id, stream, island) AS chain_id,
           count(*) OVER (PARTITION BY device_id, stream, island) AS length
    FROM islands WHERE is_pass
)
SELECT chain_id, kernel_id FROM numbered WHERE length >= 3;

CREATE OR REPLACE TABLE chain AS
SELECT m.chain_id, any_value(g.device_id) AS device_id, any_value(g.phase) AS phase, count(*) AS kernels,
       sum(s.own_ns)::BIGINT AS own_ns, max(s.own_ns)::BIGINT AS largest_ns,
       arg_max(b.ideal_ns, s.own_ns) AS largest_ideal_ns,
       -- What perfect kernels, still unfused, would save: fusing saves more or it is not the lever.
       sum(greatest(0, s.own_ns - b.ideal_ns)) FILTER (b.bound = 'inefficient') AS above_ideal_ns
FROM chain_member m
JOIN share s USING (kernel_id)
JOIN bound b USING (kernel_id)
JOIN (SELECT kernel_id, any_value(device_id) AS device_id, any_value(phase) AS phase FROM segment
      WHERE bucket IN ('compute', 'hbm', 'floor', 'inefficient', 'unmodelled') GROUP BY kernel_id) g USING (kernel_id)
GROUP BY m.chain_id;
