-- One row: time in which only copies run in $phase (NULL: outside steps) on $device, and what they move.
WITH mine AS (
    SELECT s.kernel_id, sum(s.end_ns - s.start_ns) AS ns FROM segment s
    WHERE s.device_id = $device AND s.phase IS NOT DISTINCT FROM $phase AND s.bucket = 'copy' GROUP BY s.kernel_id
), kinds AS (
    SELECT coalesce(c.kind, 'memset') AS kind, sum(m.ns) AS exposed_ns, sum(coalesce(c.dur_ns, ms.dur_ns)) AS ns,
           sum(coalesce(c.bytes, ms.bytes)) AS bytes, count(*) AS copies,
           sum(c.bytes) FILTER (c.pageable) AS pageable_bytes, sum(c.bytes) FILTER (c.pageable IS NOT NULL) AS known_bytes
    FROM mine m LEFT JOIN gpu_copy c USING (kernel_id) LEFT JOIN gpu_memset ms USING (kernel_id) GROUP BY ALL
)
SELECT sum(exposed_ns)::BIGINT AS exposed_ns, sum(copies)::BIGINT AS copies,
       arg_max(kind, exposed_ns) AS top_kind, arg_max(ns, exposed_ns)::DOUBLE AS top_ns, arg_max(bytes, exposed_ns)::DOUBLE AS top_bytes,
       sum(pageable_bytes) / nullif(sum(known_bytes), 0) AS pageable_share
FROM kinds;
