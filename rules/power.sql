-- One row: do identical kernels slow down within $phase on $device?
-- A group is a kernel name and shape seen at least 12 times; its fast state is its fastest quarter of occurrences in a row.
WITH mine AS (
    SELECT k.kernel_id, k.name_id, c.shape, k.dur_ns, b.regime, b.bound,
           ntile(4) OVER (PARTITION BY k.name_id, c.shape ORDER BY k.start_ns) AS quarter,
           count(*) OVER (PARTITION BY k.name_id, c.shape) AS n
    FROM kernel k JOIN cost c USING (kernel_id) JOIN bound b USING (kernel_id)
    JOIN owner o USING (kernel_id) JOIN step s ON s.step_id = o.step_id
    WHERE k.device_id = $device AND s.phase IS NOT DISTINCT FROM $phase AND b.bound IN ('compute', 'hbm', 'inefficient')
), quarters AS (
    SELECT name_id, shape, regime, quarter, median(dur_ns) AS ns, sum(dur_ns) AS total FROM mine WHERE n >= 12 GROUP BY ALL
), groups AS (
    SELECT name_id, shape, regime, min(ns) AS fast_ns, arg_max(ns, quarter) AS last_ns, sum(total) AS total,
           sum(total * (1 - 1 / greatest(1, ns / nullif(fast_ns_all, 0)))) AS excess
    FROM (SELECT *, min(ns) OVER (PARTITION BY name_id, shape) AS fast_ns_all FROM quarters) GROUP BY name_id, shape, regime
)
SELECT sum(last_ns / fast_ns * total) FILTER (regime = 'compute') / nullif(sum(total) FILTER (regime = 'compute'), 0) AS compute_slowdown,
       sum(last_ns / fast_ns * total) FILTER (regime = 'memory') / nullif(sum(total) FILTER (regime = 'memory'), 0) AS memory_slowdown,
       sum(excess) FILTER (regime = 'compute') AS excess_ns,
       (SELECT sum(dur_ns) FROM mine WHERE regime = 'compute') AS compute_side_ns
FROM groups;
