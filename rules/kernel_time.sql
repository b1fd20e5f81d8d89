-- One row: time of kernels by bound in $phase (NULL: outside steps) on $device, with what a roof would allow them.
WITH mine AS (
    SELECT s.kernel_id, s.bucket, sum(s.end_ns - s.start_ns) AS ns FROM segment s
    WHERE s.device_id = $device AND s.phase IS NOT DISTINCT FROM $phase
      AND s.bucket IN ('compute', 'hbm', 'floor', 'inefficient', 'unmodelled')
    GROUP BY ALL
), kernels AS (
    SELECT m.*, c.role, ch.chain_id IS NOT NULL AS in_chain, b.family, b.reason, b.ideal_ns, b.percent_of_roof, c.role IN ('dequantise', 'cat_append') AS avoidable, b.compute_ns, b.memory_ns, c.flops, c.bytes_min, c.source, n.text AS name
    FROM mine m JOIN bound b USING (kernel_id) LEFT JOIN chain_member ch USING (kernel_id) LEFT JOIN cost c USING (kernel_id)
    LEFT JOIN activity a USING (kernel_id) LEFT JOIN name n ON n.name_id = a.name_id
), reasons AS (
    SELECT reason, sum(ns) AS ns FROM kernels WHERE bucket = 'inefficient' GROUP BY reason
), names AS (
    SELECT bucket, name, sum(ns) AS ns FROM kernels GROUP BY ALL
)
SELECT sum(ns)::BIGINT AS busy_ns,
       sum(ns) FILTER (bucket = 'compute')::BIGINT AS compute_ns,
       sum(ns) FILTER (bucket = 'hbm')::BIGINT AS hbm_ns,
       -- What goes with the roof doubled, down to where the other roof binds. Of a memory-bound kernel only what its bytes
       -- explain: latency and the ends of its waves stay; arithmetic goes with the clock throughout.
       sum(ns * (1 - greatest(coalesce(memory_ns, 0), compute_ns / 2) / ideal_ns)) FILTER (bucket = 'compute') AS compute_relief_ns,
       sum(least(ns, ideal_ns) * (1 - greatest(coalesce(compute_ns, 0), memory_ns / 2) / ideal_ns))
           FILTER (bucket = 'hbm' AND NOT coalesce(avoidable, false)) AS hbm_relief_ns,
       sum(ns) FILTER (bucket = 'floor')::BIGINT AS floor_ns,
       sum(ns) FILTER (bucket = 'inefficient')::BIGINT AS inefficient_ns,
       sum(ns) FILTER (bucket = 'unmodelled')::BIGINT AS unmodelled_ns,
       sum(least(ideal_ns, ns)) FILTER (bucket = 'inefficient') AS inefficient_ideal_ns,
       sum(greatest(0, ns - coalesce(ideal_ns, 0))) FILTER (bucket = 'floor' AND ideal_ns IS NOT NULL) AS floor_above_ns,
       sum(percent_of_roof * ns) FILTER (bucket = 'compute') / sum(ns) FILTER (bucket = 'compute') AS compute_percent,
       sum(percent_of_roof * ns) FILTER (bucket = 'hbm') / sum(ns) FILTER (bucket = 'hbm') AS hbm_percent,
       sum(percent_of_roof * ns) FILTER (bucket = 'inefficient') / sum(ns) FILTER (bucket = 'inefficient') AS inefficient_percent,
       sum(flops) FILTER (bucket = 'compute') / nullif(sum(ns) FILTER (bucket = 'compute'), 0) / 1e3 AS compute_tflops,
       sum(bytes_min) FILTER (bucket = 'hbm') / nullif(sum(ns) FILTER (bucket = 'hbm'), 0) AS hbm_gbps,
       sum(ns) FILTER (bucket = 'hbm' AND family IN ('gemm', 'gemm_lowp', 'gemm_w4a16', 'gemv', 'moe_gemm')) AS hbm_weights_ns,
       sum(ns) FILTER (bucket = 'hbm' AND family IN ('attn_decode', 'attn_prefill', 'mla', 'attn_merge')) AS hbm_kv_ns,
       count(*) FILTER (bucket = 'floor') AS floor_kernels,
       count(*) AS kernels,
       -- Passes in chains of three or more, and what fusing would save: each chain to half a pass of its largest (its
       -- ends fold into the neighbouring products), low: to two passes.
       (SELECT sum(own_ns) FROM chain WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase) AS chain_ns,
       (SELECT sum(kernels) FROM chain WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase) AS chain_kernels,
       (SELECT count(*) FROM chain WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase) AS chains,
       (SELECT sum(greatest(own_ns - largest_ns // 2, coalesce(above_ideal_ns, 0))) FROM chain
        WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase) AS fuse_high_ns,
       -- At best one pass at the roof is left of a chain: its strides and conversions go too.
       (SELECT sum(greatest(own_ns - least(largest_ns // 2, coalesce(largest_ideal_ns, largest_ns)), coalesce(above_ideal_ns, 0)))
        FROM chain WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase) AS fuse_best_ns,
       (SELECT sum(greatest(0, own_ns - 2 * largest_ns)) FROM chain
        WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase) AS fuse_low_ns,
       -- A pass that only unpacks weights or results goes into the product beside it, and a cache with room needs no copy to
       -- grow by a token, whatever their own speed.
       sum(ns) FILTER (role = 'dequantise' AND NOT in_chain) AS unpack_ns,
       sum(ns) FILTER (role = 'cat_append') AS append_ns,
       sum(greatest(0, ns - ideal_ns)) FILTER (bucket = 'inefficient' AND NOT in_chain AND NOT coalesce(avoidable, false)) AS alone_above_ns,
       sum(ns) FILTER (bucket = 'inefficient' AND NOT in_chain) AS alone_ns,
       sum(ns) FILTER (bucket = 'floor' AND NOT in_chain AND NOT coalesce(avoidable, false)) AS floor_alone_ns,
       (SELECT arg_max(reason, ns) FROM reasons) AS top_reason,
       (SELECT max(ns) FROM reasons) AS top_reason_ns,
       (SELECT arg_max(name, ns) FROM names WHERE bucket = 'compute') AS top_compute,
       (SELECT arg_max(name, ns) FROM names WHERE bucket = 'hbm') AS top_hbm,
       (SELECT arg_max(name, ns) FROM names WHERE bucket = 'inefficient') AS top_inefficient,
       (SELECT max(ns) FROM names WHERE bucket = 'inefficient') AS top_inefficient_ns,
       -- Sampled by the device itself (nsys GPU metrics), over the steps of the phase.
       (SELECT sum(v) FROM (SELECT avg(c.value) AS v FROM counter c JOIN step st ON st.device_id = c.device_id
        WHERE c.device_id = $device AND st.phase IS NOT DISTINCT FROM $phase AND c.ts_ns BETWEEN st.start_ns AND st.end_ns
          AND c.metric IN ('dram_read', 'dram_write') GROUP BY c.metric)) AS dram_percent,
       (SELECT avg(c.value) FROM counter c JOIN step st ON st.device_id = c.device_id
        WHERE c.device_id = $device AND st.phase IS NOT DISTINCT FROM $phase AND c.ts_ns BETWEEN st.start_ns AND st.end_ns
          AND c.metric = 'tensor_active') AS tensor_percent
FROM kernels;
