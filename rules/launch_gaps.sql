-- One row: idle time for launching in $phase (NULL: outside steps) on $device, and what the launches looked like.
WITH mine AS (
    SELECT * FROM segment WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase
), idle AS (
    SELECT s.*, c.start_ns AS l0, c.start_ns + c.dur_ns AS l1
    FROM mine s JOIN activity a USING (kernel_id) LEFT JOIN host_call c ON c.call_id = a.launch_id
    WHERE s.bucket = 'idle_launch'
), launched AS (
    SELECT a.kernel_id, a.dur_ns, a.launch_id, a.link, a.start_ns - (c.start_ns + c.dur_ns) AS wait_ns
    FROM activity a
    JOIN owner o USING (kernel_id) JOIN step s ON s.step_id = o.step_id
    LEFT JOIN host_call c ON c.call_id = a.launch_id
    WHERE a.device_id = $device AND a.kind = 'kernel' AND s.phase IS NOT DISTINCT FROM $phase
)
SELECT (SELECT sum(end_ns - start_ns)::BIGINT FROM idle) AS idle_launch_ns,
       (SELECT sum(greatest(0, least(end_ns, l1) - greatest(start_ns, l0)))::BIGINT FROM idle) AS launch_call_ns,
       (SELECT count(DISTINCT launch_id) FROM launched) AS launches,
       (SELECT median(wait_ns) FROM launched WHERE link <> 'graph' AND wait_ns IS NOT NULL) AS queue_median_ns,
       (SELECT median(dur_ns) FROM launched) AS kernel_median_ns,
       (SELECT avg((link = 'graph')::INTEGER) FROM launched) AS graph_share;
