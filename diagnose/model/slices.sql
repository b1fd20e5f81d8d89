-- Stretches of one device's activity, cut where the next activity had been launched long before it started and the
-- device ran nothing meanwhile. Parameters: device, the shortest such wait in ns. Columns: start, end, busy ns.
WITH ordered AS (
    SELECT a.kernel_id, a.start_ns, a.start_ns + a.dur_ns AS end_ns, a.dur_ns,
           max(a.start_ns + a.dur_ns) OVER (
               ORDER BY a.start_ns, a.kernel_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS before_end,
           CASE WHEN c.blocking THEN c.start_ns ELSE c.start_ns + c.dur_ns END AS launched_ns
    FROM activity a LEFT JOIN host_call c ON c.call_id = a.launch_id
    WHERE a.device_id = $1
), cut AS (
    SELECT *, CASE WHEN start_ns - greatest(before_end, launched_ns) >= $2 THEN 1 ELSE 0 END AS is_cut
    FROM ordered
), grouped AS (
    SELECT *, sum(is_cut) OVER (ORDER BY start_ns, kernel_id ROWS UNBOUNDED PRECEDING) AS slice FROM cut
)
SELECT min(start_ns) AS start_ns, max(end_ns) AS end_ns, sum(dur_ns)::BIGINT AS busy_ns
FROM grouped GROUP BY slice ORDER BY 1;
