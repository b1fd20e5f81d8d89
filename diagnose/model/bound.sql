-- What binds each activity. Constants in braces come from bounds.py with their origin.
CREATE OR REPLACE TABLE bound AS
WITH timed AS (
    SELECT i.kernel_id, i.device_id, i.class, a.kind, a.name_id, a.dur_ns, i.e - i.s AS effective_ns, s.own_ns,
           -- Hidden entirely: judged on its own duration.
           CASE WHEN coalesce(s.own_ns, 0) > 0 THEN s.own_ns ELSE a.dur_ns END::DOUBLE AS rate_ns,
           coalesce(s.own_ns, 0) <> a.dur_ns AS is_joint,
           CASE WHEN k.grid IS NOT NULL THEN list_product(from_json(k.grid, '["DOUBLE"]')) END AS blocks
    FROM interval i
    JOIN activity a USING (kernel_id)
    LEFT JOIN share s USING (kernel_id)
    LEFT JOIN kernel k USING (kernel_id)
), costed AS (
    SELECT t.*, c.flops, c.bytes_min, c.strided, c.role, c.source, f.family,
           r.ideal_ns, r.memory_ns, r.compute_ns, r.regime, r.is_resident, r.peak_ns,
           d.floor_ns, d.sm_count, d.has_roofs, nr.reason AS name_reason, c.kernel_id IS NOT NULL AS has_cost,
           r.ideal_ns / t.rate_ns AS near,
           -- Work beyond the floor that a perfect kernel would need.
           greatest(0, r.ideal_ns - d.floor_ns) AS work_ns
    FROM timed t
    LEFT JOIN cost c USING (kernel_id)
    LEFT JOIN name_family f ON f.name_id = t.name_id
    LEFT JOIN device_roof d ON d.device_id = t.device_id
    LEFT JOIN name_reason nr ON nr.device_id = t.device_id AND nr.name_id = t.name_id
    LEFT JOIN roofed r
        ON r.device_id = t.device_id AND r.flops IS NOT DISTINCT FROM c.flops
        AND r.bytes_min IS NOT DISTINCT FROM c.bytes_min AND r.bytes_low IS NOT DISTINCT FROM c.bytes_low
        AND r.dtype IS NOT DISTINCT FROM c.dtype
        AND r.m IS NOT DISTINCT FROM c.m AND r.n IS NOT DISTINCT FROM c.n AND r.k IS NOT DISTINCT FROM c.k
        AND r.batch IS NOT DISTINCT FROM c.batch AND r.attention_length IS NOT DISTINCT FROM c.attention_length
        AND r.head_dim IS NOT DISTINCT FROM c.head_dim AND r.causal = contains(coalesce(c.shape, ''), ' causal')
        AND c.kernel_id IS NOT NULL
), small AS (
    -- What kernels with next to no work take in this very trace: the floor that its device, driver and graphs give. Only
    -- with enough of them, and never far from the catalogued floor, or slow kernels would excuse themselves.
    SELECT device_id, median(rate_ns) AS small_ns FROM costed
    WHERE class = 1 AND kind = 'kernel' AND has_cost AND work_ns <= 0.25 * floor_ns
    GROUP BY device_id HAVING count(*) >= {small_kernels}
), floored AS (
    SELECT c.*, greatest(c.floor_ns, least(coalesce(s.small_ns, c.floor_ns), {small_cap} * c.floor_ns)) AS trace_floor_ns
    FROM costed c LEFT JOIN small s ON s.device_id = c.device_id
), judged AS (
    SELECT *,
           CASE
               WHEN class = 2 THEN 'communication'
               WHEN class = 3 THEN 'copy'
               WHEN kind = 'graph' THEN 'unmodelled'
               WHEN kind = 'copy' THEN 'hbm'
               WHEN NOT coalesce(has_roofs, false) THEN 'unmodelled'
               WHEN NOT has_cost OR ideal_ns IS NULL
                   THEN CASE WHEN dur_ns <= {floor_time} * floor_ns AND device_id <> -1 THEN 'floor' ELSE 'unmodelled' END
               WHEN peak_ns > {impossible} * dur_ns AND NOT is_resident THEN 'unmodelled'
               WHEN work_ns <= {floor_work} * floor_ns AND rate_ns <= {floor_time} * floor_ns THEN 'floor'
               WHEN near < {near} AND work_ns <= {floor_work} * trace_floor_ns
                   AND rate_ns <= {over_floor} * trace_floor_ns + work_ns THEN 'floor'
               WHEN near >= {near} THEN CASE WHEN coalesce(compute_ns, 0) > coalesce(memory_ns, 0) THEN 'compute' ELSE 'hbm' END
               WHEN blocks < sm_count AND rate_ns <= {few_blocks_time} * floor_ns THEN 'floor'
               ELSE 'inefficient'
           END AS bound
    FROM floored
)
SELECT kernel_id, coalesce(family, CASE kind WHEN 'kernel' THEN 'other' ELSE kind END) AS family, regime, bound,
       CASE
           WHEN bound = 'unmodelled' AND kind = 'graph' THEN 'graph replay recorded as one row'
           WHEN bound = 'unmodelled' AND NOT coalesce(has_roofs, false) THEN 'no roofs for this device'
           WHEN bound = 'unmodelled' AND has_cost AND ideal_ns IS NOT NULL THEN 'its cost would exceed the datasheet peak: cost or device is wrong'
           WHEN bound = 'unmodelled' THEN 'no cost model'
           WHEN bound = 'floor' AND NOT (has_cost AND ideal_ns IS NOT NULL) THEN 'as short as the smallest kernels; no cost model'
           WHEN bound = 'floor' AND work_ns <= {floor_work} * floor_ns AND rate_ns <= {floor_time} * floor_ns THEN 'too little work for the device'
           WHEN bound = 'floor' AND rate_ns <= {over_floor} * trace_floor_ns + work_ns
               THEN 'about as short as kernels with no work in this trace'
           WHEN bound = 'floor' THEN format('{:.0f} blocks for {} multiprocessors', blocks, sm_count)
           WHEN bound = 'inefficient' THEN
               CASE
                   WHEN name_reason IS NOT NULL THEN name_reason
                   WHEN strided THEN 'strided access: elements lie apart in memory'
                   WHEN blocks < sm_count THEN format('{:.0f} blocks for {} multiprocessors', blocks, sm_count)
                   WHEN family IN ('gemm', 'gemm_lowp', 'gemm_w4a16', 'moe_gemm', 'gemv') AND blocks > sm_count
                        AND blocks / sm_count < 3 AND ceil(blocks / sm_count) / (blocks / sm_count) > 1.25
                       THEN format('last wave nearly empty: {:.2f} waves of blocks', blocks / sm_count)
                   WHEN family = 'gemm_w4a16' THEN 'unpacks its weights inside the product'
                   WHEN family = 'moe_gemm' THEN 'grouped product far from the roof of the weights it touches'
                   WHEN family IN ('attn_prefill', 'attn_decode', 'mla') THEN 'attention far from both roofs at this length'
                   WHEN family IN ('elementwise', 'copy_cat', 'reduce', 'fill') THEN 'unfused pass far below the memory roof at its size'
                   ELSE 'far from both roofs at its size'
               END
       END AS reason,
       CASE WHEN bound IN ('compute', 'hbm', 'floor', 'inefficient') AND kind <> 'copy' THEN 100 * near END AS percent_of_roof,
       ideal_ns,
       nullif(concat_ws(',',
           CASE WHEN near > 1 AND is_resident AND coalesce(memory_ns, 0) >= coalesce(compute_ns, 0) THEN 'cache_resident'
                WHEN near > 1 THEN 'over_roof' END,
           CASE WHEN is_joint AND kind = 'kernel' AND class = 1 THEN 'joint' END), '') AS flags,
       rate_ns, compute_ns, memory_ns
FROM judged;
