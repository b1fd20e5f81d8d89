-- One row: time in which only collectives run in $phase (NULL: outside steps) on $device.
WITH mine AS (
    SELECT s.kernel_id, sum(s.end_ns - s.start_ns) FILTER (s.bucket = 'communication') AS ns,
           sum(s.end_ns - s.start_ns) FILTER (s.bucket = 'comm_wait') AS wait_ns
    FROM segment s
    WHERE s.device_id = $device AND s.phase IS NOT DISTINCT FROM $phase AND s.bucket IN ('communication', 'comm_wait')
    GROUP BY s.kernel_id
)
SELECT (SELECT sum(c.bytes_min) / 2 / nullif(sum(a4.dur_ns) FILTER (c.bytes_min IS NOT NULL), 0)
        FROM mine m4 JOIN activity a4 USING (kernel_id) LEFT JOIN cost c USING (kernel_id)) AS payload_gbps,
       sum(ns)::BIGINT AS exposed_ns, sum(wait_ns)::BIGINT AS wait_ns, count(*) AS collectives, median(a.dur_ns) AS median_ns,
       (SELECT sum(a2.dur_ns) FILTER (a2.dur_ns > 4 * m.typical) / nullif(sum(a2.dur_ns), 0)
        FROM mine m2 JOIN activity a2 USING (kernel_id), (SELECT median(a3.dur_ns) AS typical FROM mine m3 JOIN activity a3 USING (kernel_id)) m
       ) AS long_share,
       (SELECT count(*) FROM collective) AS matched
FROM mine JOIN activity a USING (kernel_id);
