-- One row a device and phase: how busy the launching thread is from one step's first launch to the next one's.
-- Time in calls that wait for the device is not work; nor is what a launch takes beyond ten times its usual length (the
-- queue is full, the call waits). The last step has no next one and is left out.
WITH called AS (
    SELECT a.step_id, a.device_id, c.process, c.thread, c.call_id, c.start_ns, c.start_ns + c.dur_ns AS end_ns
    FROM activity a JOIN host_call c ON c.call_id = a.launch_id WHERE a.step_id IS NOT NULL
), span AS (
    SELECT step_id, device_id, mode(process) AS process, mode(thread) AS thread, min(start_ns) AS s,
           count(DISTINCT call_id) AS launches
    FROM called GROUP BY ALL
), period AS (
    SELECT p.*, st.phase, lead(p.s) OVER (PARTITION BY p.device_id ORDER BY p.s) AS e
    FROM span p JOIN step st USING (step_id)
), lane AS (
    SELECT DISTINCT process, thread FROM span
), usual AS (
    SELECT c.name_id, 10 * median(c.dur_ns) AS longest FROM host_call c JOIN lane USING (process, thread)
    WHERE NOT c.blocking AND c.correlation IS NOT NULL GROUP BY c.name_id HAVING count(*) >= 20
), waits AS (
    SELECT c.process, c.thread, c.start_ns + (CASE WHEN c.blocking THEN 0 ELSE u.longest END)::BIGINT AS s, c.start_ns + c.dur_ns AS e
    FROM host_call c JOIN lane USING (process, thread) LEFT JOIN usual u USING (name_id)
    WHERE c.blocking OR c.dur_ns > u.longest
), waited AS (
    SELECT p.step_id, sum(least(w.e, p.e) - greatest(w.s, p.s)) AS ns
    FROM period p JOIN waits w ON w.process = p.process AND w.thread = p.thread AND w.s < p.e AND w.e > p.s
    WHERE p.e IS NOT NULL GROUP BY p.step_id
)
SELECT device_id, phase, count(*) AS steps, avg(launches) AS launches, sum(period_ns)::DOUBLE AS period_ns, sum(busy_ns)::DOUBLE AS busy_ns,
       stddev_samp(busy_ns) / nullif(avg(busy_ns), 0) / sqrt(count(*)) AS standard_error
FROM (
    SELECT p.device_id, p.phase, p.launches, p.e - p.s AS period_ns, greatest(0, p.e - p.s - coalesce(w.ns, 0)) AS busy_ns
    FROM period p LEFT JOIN waited w USING (step_id) WHERE p.e > p.s
) GROUP BY device_id, phase;
