-- One row a device and phase: how busy the launching thread is from one step's first launch to the next one's.
-- Waiting (`host_wait`) is not work. The last step has no next one and is left out.
WITH called AS (
    SELECT a.step_id, a.device_id, c.process, c.thread, c.call_id, c.start_ns
    FROM activity a JOIN host_call c ON c.call_id = a.launch_id WHERE a.step_id IS NOT NULL
), span AS (
    SELECT step_id, device_id, mode(process) AS process, mode(thread) AS thread, min(start_ns) AS s,
           count(DISTINCT call_id) AS launches
    FROM called GROUP BY ALL
), period AS (
    SELECT p.*, st.phase, lead(p.s) OVER (PARTITION BY p.device_id ORDER BY p.s) AS e
    FROM span p JOIN step st USING (step_id)
), waited AS (
    SELECT p.step_id, sum(least(w.end_ns, p.e) - greatest(w.start_ns, p.s)) AS ns
    FROM period p JOIN host_wait w ON w.process = p.process AND w.thread = p.thread AND w.start_ns < p.e AND w.end_ns > p.s
    WHERE p.e IS NOT NULL GROUP BY p.step_id
)
SELECT device_id, phase, count(*) AS steps, avg(launches) AS launches, sum(period_ns)::DOUBLE AS period_ns, sum(busy_ns)::DOUBLE AS busy_ns,
       stddev_samp(busy_ns) / nullif(avg(busy_ns), 0) / sqrt(count(*)) AS standard_error
FROM (
    SELECT p.device_id, p.phase, p.launches, p.e - p.s AS period_ns, greatest(0, p.e - p.s - coalesce(w.ns, 0)) AS busy_ns
    FROM period p LEFT JOIN waited w USING (step_id) WHERE p.e > p.s
) GROUP BY device_id, phase;
