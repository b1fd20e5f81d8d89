-- Small tables that rules and reports read. Public, like the rest of the store.

-- Device time by phase and bucket. phase NULL is outside every step.
CREATE OR REPLACE TABLE phase_bucket AS
SELECT device_id, phase, bucket, sum(end_ns - start_ns)::BIGINT AS ns, count(*) AS segments
FROM segment GROUP BY ALL;

-- Device time by phase and cause, for gaps (why the device idled).
CREATE OR REPLACE TABLE phase_cause AS
SELECT device_id, phase, bucket, cause, sum(end_ns - start_ns)::BIGINT AS ns, count(*) AS segments,
       max(end_ns - start_ns) AS longest_ns
FROM segment WHERE bucket LIKE 'idle%' OR bucket = 'unobserved' GROUP BY ALL;

-- One row a combination of name, operator, role, shape and phase. Rates use the time that is the kernel's own.
CREATE OR REPLACE TABLE kernel_group AS
WITH joined AS (
    SELECT a.device_id, a.kind, a.name_id, a.op_id, a.start_ns, a.dur_ns, o.name_id AS op_name_id, st.phase, c.role, c.shape, c.flops, c.bytes_min,
           c.bytes_low, c.bytes_high, c.dtype, c.source, b.bound, b.reason, b.family, b.regime, b.flags, b.ideal_ns, b.rate_ns,
           coalesce(s.own_ns, 0) AS own_ns
    FROM activity a
    LEFT JOIN op o USING (op_id)
    LEFT JOIN owner w ON w.kernel_id = a.kernel_id
    LEFT JOIN step st ON st.step_id = w.step_id
    LEFT JOIN cost c ON c.kernel_id = a.kernel_id
    LEFT JOIN bound b ON b.kernel_id = a.kernel_id
    LEFT JOIN share s ON s.kernel_id = a.kernel_id
    WHERE a.kind IN ('kernel', 'graph') OR (a.kind = 'copy' AND b.bound = 'hbm')
), by_bound AS (
    SELECT device_id, kind, name_id, op_name_id, role, shape, phase, bound, reason, sum(dur_ns) AS ns
    FROM joined GROUP BY ALL
), ordered AS (
    -- Calls in time order, cut into blocks of about n^(1/3), an even number, so that calls that alternate average out.
    SELECT device_id, kind, name_id, op_name_id, role, shape, phase, dur_ns,
           row_number() OVER (PARTITION BY device_id, kind, name_id, op_name_id, role, shape, phase ORDER BY start_ns) - 1 AS i,
           count(*) OVER (PARTITION BY device_id, kind, name_id, op_name_id, role, shape, phase) AS n
    FROM joined
), block AS (
    SELECT device_id, kind, name_id, op_name_id, role, shape, phase, avg(dur_ns) AS mean_ns
    FROM (SELECT *, CASE WHEN n < 8 THEN 1 ELSE 2 * round(cbrt(n) / 2) END::BIGINT AS size FROM ordered WHERE n >= 3)
    WHERE i < n - n % size GROUP BY device_id, kind, name_id, op_name_id, role, shape, phase, i // size
), spread AS (
    SELECT device_id, kind, name_id, op_name_id, role, shape, phase, stddev_samp(mean_ns) / sqrt(count(*)) AS se_ns
    FROM block GROUP BY ALL
), grouped AS (
    SELECT device_id, kind, name_id, op_name_id, role, shape, phase,
           any_value(family) AS family, any_value(dtype) AS dtype, any_value(source) AS source,
           -- On the CPU an operator's time is in pieces between those it calls: its calls are counted, not the pieces.
           count(*) AS pieces, coalesce(nullif(count(DISTINCT op_id) FILTER (device_id = -1), 0), count(*)) AS count,
           sum(dur_ns)::BIGINT AS time_ns, sum(own_ns)::BIGINT AS own_ns,
           sum(flops) AS flops, sum(bytes_min) AS bytes, sum(bytes_low) AS bytes_low, sum(bytes_high) AS bytes_high,
           sum(rate_ns) FILTER (flops IS NOT NULL OR bytes_min IS NOT NULL) AS rate_ns,
           sum(ideal_ns) AS ideal_ns, sum(rate_ns) FILTER (ideal_ns IS NOT NULL) AS ideal_rate_ns,
           any_value(regime) AS regime, string_agg(DISTINCT flags, ',') AS flags,
           -- What a perfect kernel would save, launch by launch.
           sum(greatest(0, own_ns - ideal_ns)) FILTER (bound = 'inefficient') AS wasted_ns
    FROM joined GROUP BY ALL
)
SELECT g.* EXCLUDE (pieces), b.chosen.bound AS bound, b.chosen.reason AS reason, e.se_ns * g.pieces / g.count AS se_ns
FROM grouped g
LEFT JOIN spread e ON e.device_id = g.device_id AND e.kind = g.kind AND e.name_id IS NOT DISTINCT FROM g.name_id
    AND e.op_name_id IS NOT DISTINCT FROM g.op_name_id AND e.role IS NOT DISTINCT FROM g.role
    AND e.shape IS NOT DISTINCT FROM g.shape AND e.phase IS NOT DISTINCT FROM g.phase
JOIN (
    -- The bound that carries most of the group's time speaks for it.
    SELECT device_id, kind, name_id, op_name_id, role, shape, phase,
           arg_max({'bound': bound, 'reason': reason}, (ns, bound)) AS chosen
    FROM by_bound GROUP BY ALL
) b ON b.device_id = g.device_id AND b.kind = g.kind AND b.name_id IS NOT DISTINCT FROM g.name_id
    AND b.op_name_id IS NOT DISTINCT FROM g.op_name_id AND b.role IS NOT DISTINCT FROM g.role
    AND b.shape IS NOT DISTINCT FROM g.shape AND b.phase IS NOT DISTINCT FROM g.phase;

-- Per phase: what the bounds of its kernels add up to. Time is the kernels' own, so it adds up with the buckets.
CREATE OR REPLACE TABLE phase_bound AS
SELECT g.device_id, g.phase, b.bound,
       count(*) AS kernels, sum(s.own_ns)::BIGINT AS own_ns, sum(b.ideal_ns) AS ideal_ns,
       sum(greatest(0, s.own_ns - b.ideal_ns)) AS above_ideal_ns,
       sum(c.flops) AS flops, sum(c.bytes_min) AS bytes
FROM (
    SELECT a.kernel_id, a.device_id, sg.phase
    FROM activity a
    JOIN (SELECT kernel_id, any_value(phase) AS phase FROM segment WHERE bucket NOT LIKE 'idle%' AND bucket <> 'unobserved' GROUP BY kernel_id) sg USING (kernel_id)
) g
JOIN bound b USING (kernel_id)
JOIN share s USING (kernel_id)
LEFT JOIN cost c USING (kernel_id)
GROUP BY ALL;

-- Step times: the period charged to each step, less what was not observed.
CREATE OR REPLACE TABLE step_time AS
SELECT s.step_id, s.device_id, s.phase,
       sum(g.end_ns - g.start_ns)::BIGINT AS wall_ns,
       sum(g.end_ns - g.start_ns) FILTER (g.bucket <> 'unobserved')::BIGINT AS observed_ns,
       sum(g.end_ns - g.start_ns) FILTER (g.bucket NOT LIKE 'idle%' AND g.bucket <> 'unobserved')::BIGINT AS busy_ns
FROM step s JOIN segment g USING (step_id) GROUP BY s.step_id, s.device_id, s.phase;

-- What launching threads wait through: calls that wait for the device, and what a launch takes beyond ten times its usual
-- length (the queue is full, the call waits for room). The rest of their time is the host's own work.
CREATE OR REPLACE TABLE host_wait AS
WITH lane AS (
    SELECT DISTINCT c.process, c.thread FROM activity a JOIN host_call c ON c.call_id = a.launch_id
), usual AS (
    SELECT name_id, 10 * median(dur_ns) AS longest FROM host_call JOIN lane USING (process, thread)
    WHERE NOT blocking AND correlation IS NOT NULL GROUP BY name_id HAVING count(*) >= 20
)
SELECT c.process, c.thread, c.start_ns + (CASE WHEN c.blocking THEN 0 ELSE u.longest END)::BIGINT AS start_ns,
       c.start_ns + c.dur_ns AS end_ns
FROM host_call c JOIN lane USING (process, thread) LEFT JOIN usual u USING (name_id)
WHERE c.blocking OR c.dur_ns > u.longest;
