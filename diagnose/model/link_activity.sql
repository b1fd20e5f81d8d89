-- Every device activity under one key, by time, with its launch and operator.
WITH work AS (
    SELECT 'kernel' AS kind, * FROM link_raw_kernel
    UNION ALL BY NAME
    SELECT 'copy' AS kind, * EXCLUDE (kind), kind AS direction FROM link_raw_gpu_copy
    UNION ALL BY NAME
    SELECT 'memset' AS kind, * FROM link_raw_gpu_memset
    UNION ALL BY NAME
    SELECT 'graph' AS kind, * FROM link_raw_graph_run
), linked AS (
    SELECT
        w.*, l.call_id AS launch_id, l.grid_in_threads,
        CASE
            -- a replay's kernels: the operator around the replay, if any, is not theirs
            WHEN l.is_graph OR w.kind = 'graph' THEN NULL
            -- the recorded operator, unless the launch happened outside it (ids reused)
            WHEN o.op_id IS NOT NULL AND coalesce(l.start_ns BETWEEN o.start_ns AND o.end_ns, o.start_ns <= w.start_ns)
                THEN o.op_id
            ELSE l.op_id END AS op_id,
        CASE
            WHEN l.is_graph THEN 'graph'
            WHEN l.call_id IS NULL AND (o.op_id IS NULL OR o.start_ns > w.start_ns) THEN 'no_launch'
            WHEN w.kind = 'graph' THEN 'graph'
            WHEN o.op_id IS NOT NULL AND coalesce(l.start_ns BETWEEN o.start_ns AND o.end_ns, true) THEN 'external_id'
            WHEN l.op_id IS NOT NULL THEN 'launch'
            ELSE 'none' END AS link
    FROM work w
    LEFT JOIN link_launch l
        ON l.source_id = w.source_id AND l.correlation = w.correlation AND l.process_key = coalesce(w.process, -1)
    LEFT JOIN link_external o ON o.source_id = w.source_id AND o.external_id = w.external_id
)
SELECT
    row_number() OVER (
        ORDER BY source_id, start_ns, device_id, stream, dur_ns, kind, correlation, graph_node_id, name_id, grid) - 1
        AS kernel_id,
    kind, source_id, device_id, stream, start_ns, dur_ns, name_id,
    -- hipExtModuleLaunchKernel counts threads where every other launch counts blocks
    CASE WHEN grid_in_threads AND grid IS NOT NULL AND block IS NOT NULL
        THEN '[' || list_aggregate(list_transform(
            list_zip(from_json(grid, '["BIGINT"]'), from_json(block, '["BIGINT"]')),
            lambda p: CAST(greatest(1, p[1] // greatest(1, p[2])) AS VARCHAR)), 'string_agg', ',') || ']'
        ELSE grid END AS grid,
    block, registers, shared_mem, correlation, external_id, graph_id, graph_node_id, launch_id, op_id, link,
    signature_id, direction, bytes, src, dst, pageable
FROM linked
