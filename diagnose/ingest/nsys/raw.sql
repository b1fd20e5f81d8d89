-- The raw tables of `diagnose.ingest.raw` as views over what was staged. {origin} is the run's first event and {last}
-- its last, in the export's clock.

-- Every distinct text that needs a number; numbered by text, so that a diagnosis is reproducible.
CREATE OR REPLACE TABLE name AS
WITH used AS (
    SELECT DISTINCT s.value AS text FROM (SELECT DISTINCT string_id FROM nsys_kernel) k
    JOIN nsys_string s ON s.id = k.string_id
    UNION SELECT DISTINCT regexp_replace(s.value, '_v\d+$', '') FROM (SELECT DISTINCT string_id FROM nsys_call) c
    JOIN nsys_string s ON s.id = c.string_id
    UNION SELECT text FROM nsys_copy_name
    UNION SELECT 'Memset (Device)' WHERE EXISTS (SELECT 1 FROM nsys_memset)
    UNION SELECT DISTINCT text FROM nsys_range WHERE is_op
    UNION SELECT ''
)
SELECT (row_number() OVER (ORDER BY text) - 1)::INTEGER AS name_id, text FROM used WHERE text IS NOT NULL;

-- String number of the export -> our number: kernels by their name as recorded, API calls without the ABI version.
CREATE OR REPLACE TABLE nsys_kernel_name AS
SELECT s.id AS string_id, n.name_id
FROM (SELECT DISTINCT string_id FROM nsys_kernel) k
JOIN nsys_string s ON s.id = k.string_id
JOIN name n ON n.text = s.value;

CREATE OR REPLACE TABLE nsys_call_name AS
SELECT c.string_id, coalesce(n.name_id, 0) AS name_id, {blocking} AS blocking
FROM (
    SELECT DISTINCT c.string_id, coalesce(regexp_replace(s.value, '_v\d+$', ''), '') AS name
    FROM nsys_call c LEFT JOIN nsys_string s ON s.id = c.string_id
) c
LEFT JOIN name n ON n.text = c.name;

CREATE OR REPLACE TABLE signature AS
SELECT (row_number() OVER (ORDER BY input_dims) - 1)::INTEGER AS signature_id, input_dims,
       NULL::VARCHAR AS input_dtypes, NULL::VARCHAR AS input_strides, NULL::VARCHAR AS scalar_args,
       NULL::VARCHAR AS extra
FROM (SELECT DISTINCT replace(sizes, ' ', '') AS input_dims FROM nsys_range WHERE is_op AND sizes IS NOT NULL);

CREATE OR REPLACE VIEW raw_kernel AS
SELECT 0 AS source_id, k.process, coalesce(d.device_id, k.cuda_id)::INTEGER AS device_id, k.stream,
       k.t0 - {origin} AS start_ns, greatest(k.t1 - k.t0, 0) AS dur_ns, k.correlation, NULL::BIGINT AS external_id,
       k.graph_id, k.graph_node_id, coalesce(n.name_id, 0)::INTEGER AS name_id,
       '[' || "gridX" || ',' || "gridY" || ',' || "gridZ" || ']' AS grid,
       '[' || "blockX" || ',' || "blockY" || ',' || "blockZ" || ']' AS block,
       k.registers::INTEGER AS registers,
       (coalesce(k.static_shared, 0) + coalesce(k.dynamic_shared, 0))::INTEGER AS shared_mem
FROM nsys_kernel k
LEFT JOIN nsys_device d ON d.process = k.process AND d.cuda_id = k.cuda_id
LEFT JOIN nsys_kernel_name n ON n.string_id = k.string_id;

CREATE OR REPLACE VIEW raw_gpu_copy AS
SELECT 0 AS source_id, c.process, coalesce(d.device_id, c.cuda_id)::INTEGER AS device_id, c.stream,
       c.t0 - {origin} AS start_ns, greatest(c.t1 - c.t0, 0) AS dur_ns, c.correlation, NULL::BIGINT AS external_id,
       c.graph_id, c.graph_node_id, n.name_id, m.kind, c.bytes, m.src, m.dst, m.pageable
FROM nsys_copy c
LEFT JOIN nsys_device d ON d.process = c.process AND d.cuda_id = c.cuda_id
JOIN nsys_copy_name m ON m.copy_kind = c.copy_kind AND m.src_kind IS NOT DISTINCT FROM c.src_kind
    AND m.dst_kind IS NOT DISTINCT FROM c.dst_kind AND m.peer = ((c.src_device <> c.dst_device) IS TRUE)
JOIN name n ON n.text = m.text;

CREATE OR REPLACE VIEW raw_gpu_memset AS
SELECT 0 AS source_id, m.process, coalesce(d.device_id, m.cuda_id)::INTEGER AS device_id, m.stream,
       m.t0 - {origin} AS start_ns, greatest(m.t1 - m.t0, 0) AS dur_ns, m.correlation, NULL::BIGINT AS external_id,
       m.graph_id, m.graph_node_id, n.name_id, m.bytes
FROM nsys_memset m
LEFT JOIN nsys_device d ON d.process = m.process AND d.cuda_id = m.cuda_id
JOIN name n ON n.text = 'Memset (Device)';

CREATE OR REPLACE VIEW raw_graph_run AS
SELECT 0 AS source_id, g.process, coalesce(d.device_id, g.cuda_id)::INTEGER AS device_id, g.stream,
       g.t0 - {origin} AS start_ns, greatest(g.t1 - g.t0, 0) AS dur_ns, g.correlation, NULL::BIGINT AS external_id,
       g.graph_id, g.graph_node_id
FROM nsys_graph g
LEFT JOIN nsys_device d ON d.process = g.process AND d.cuda_id = g.cuda_id;

CREATE OR REPLACE VIEW raw_host_call AS
SELECT 0 AS source_id, c.process, c.thread, c.t0 - {origin} AS start_ns, greatest(c.t1 - c.t0, 0) AS dur_ns,
       n.name_id::INTEGER AS name_id, c.correlation, NULL::BIGINT AS external_id, n.blocking
FROM nsys_call c
LEFT JOIN nsys_call_name n ON n.string_id IS NOT DISTINCT FROM c.string_id;

-- A range still open when the capture ended lasts to the run's last event.
CREATE OR REPLACE VIEW raw_op AS
SELECT 0 AS source_id, r.process, r.thread, r.t0 - {origin} AS start_ns,
       greatest(coalesce(r.t1, {last}) - r.t0, 0) AS dur_ns, n.name_id, NULL::BIGINT AS external_id, s.signature_id
FROM nsys_range r
JOIN name n ON n.text = r.text
LEFT JOIN signature s ON s.input_dims = replace(r.sizes, ' ', '')
WHERE r.is_op;

CREATE OR REPLACE VIEW nsys_annotation AS
SELECT (row_number() OVER (ORDER BY t0, t1 DESC, process, thread, text) - 1)::BIGINT AS annotation_id,
       0 AS source_id, CASE WHEN event_type IN (60, 71) THEN 'nvtx_start_end' ELSE 'nvtx' END AS origin, process,
       thread AS thread_or_stream, t0 - {origin} AS start_ns, greatest(coalesce(t1, {last}) - t0, 0) AS dur_ns, text
FROM nsys_range WHERE NOT is_op AND text <> '';

CREATE OR REPLACE VIEW nsys_wait AS
WITH recorded AS (
    SELECT process, event_id, event_sync_id, min(stream) AS stream
    FROM nsys_event GROUP BY ALL HAVING count(DISTINCT stream) = 1
)
SELECT 0 AS source_id, coalesce(d.device_id, s.cuda_id)::INTEGER AS device_id,
       nullif(s.stream, 4294967295) AS stream, s.t0 - {origin} AS start_ns, greatest(s.t1 - s.t0, 0) AS dur_ns,
       CASE s.sync_type WHEN 1 THEN 'Event Sync' WHEN 2 THEN 'Stream Wait Event'
            WHEN 3 THEN 'Stream Sync' WHEN 4 THEN 'Context Sync' ELSE 'Unknown' END AS kind,
       r.stream AS wait_on_stream, s.correlation
FROM nsys_sync s
LEFT JOIN nsys_device d ON d.process = s.process AND d.cuda_id = s.cuda_id
LEFT JOIN recorded r ON s.sync_type = 2 AND s.event_id <> 4294967295 AND r.process IS NOT DISTINCT FROM s.process
    AND r.event_id = s.event_id AND r.event_sync_id = s.event_sync_id;

-- Driver compilation, module loading and a full launch queue (types 2, 6, 7, 8) are the program's own time; what ended
-- before the run's first event cost it nothing.
CREATE OR REPLACE VIEW nsys_own_time AS
SELECT 0 AS source_id, o.t0 - {origin} AS start_ns, greatest(o.t1 - o.t0, 0) AS dur_ns,
       coalesce(s.value, CASE o.overhead_type WHEN 3 THEN 'Buffer flush' WHEN 4 THEN 'Instrumentation'
                         WHEN 5 THEN 'Resource' ELSE 'Unknown' END) AS kind
FROM (SELECT * FROM nsys_overhead UNION ALL SELECT * FROM nsys_cuda_overhead) o
LEFT JOIN nsys_string s ON s.id = o.string_id
WHERE coalesce(o.overhead_type, 0) NOT IN (2, 6, 7, 8) AND o.t1 > {origin};
