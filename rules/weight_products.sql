-- Matrix products that stream 16-bit weights: time, size and rows by device, phase and shape, a row a bound.
SELECT st.device_id, st.phase, b.bound, c.m, c.n, c.k, sum(s.own_ns)::DOUBLE AS own_ns,
       count(*)::DOUBLE / any_value(n.steps) AS launches, bool_and(a.link = 'graph') AS in_graph
FROM cost c JOIN bound b USING (kernel_id) JOIN activity a USING (kernel_id)
JOIN step st ON st.step_id = a.step_id JOIN share s USING (kernel_id)
JOIN (SELECT device_id, phase, count(*) AS steps FROM step GROUP BY ALL) n ON n.device_id = st.device_id AND n.phase = st.phase
WHERE b.family IN ('gemm', 'gemv') AND b.bound IN ('hbm', 'compute', 'inefficient', 'floor') AND c.dtype IN ('bf16', 'fp16')
  AND c.m IS NOT NULL AND c.n IS NOT NULL AND c.k IS NOT NULL AND coalesce(c.batch, 1) = 1
GROUP BY ALL;
