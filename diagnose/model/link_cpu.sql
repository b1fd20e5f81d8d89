-- A trace without a GPU: the self intervals of operators are the kernels of device -1, the thread their stream.
SELECT
    row_number() OVER (ORDER BY o.source_id, s.start_ns, o.process, o.thread, s.op_id) - 1 AS kernel_id,
    'kernel' AS kind, o.source_id, -1 AS device_id, o.thread AS stream, s.start_ns, s.end_ns - s.start_ns AS dur_ns,
    o.name_id, CAST(NULL AS VARCHAR) AS grid, CAST(NULL AS VARCHAR) AS block, CAST(NULL AS INTEGER) AS registers,
    CAST(NULL AS INTEGER) AS shared_mem, CAST(NULL AS BIGINT) AS correlation, o.external_id,
    CAST(NULL AS BIGINT) AS graph_id, CAST(NULL AS BIGINT) AS graph_node_id, CAST(NULL AS BIGINT) AS launch_id,
    s.op_id, 'external_id' AS link, CAST(NULL AS INTEGER) AS signature_id, CAST(NULL AS VARCHAR) AS direction,
    CAST(NULL AS BIGINT) AS bytes, CAST(NULL AS VARCHAR) AS src, CAST(NULL AS VARCHAR) AS dst,
    CAST(NULL AS BOOLEAN) AS pageable
FROM link_segment s JOIN link_op o USING (op_id)
