-- Which host step launched each device activity: `owned(kernel_id, device_id, host_step_id)`.
-- A launch belongs to the step whose annotation encloses its call on the same thread. Threads that carry no step (copy
-- or output threads) are read against the process's main step thread, by time.
CREATE OR REPLACE TABLE owned AS
WITH step_thread AS (
    SELECT process, thread, count(*) AS steps FROM host_step GROUP BY ALL
), main_thread AS (
    SELECT process, arg_max(thread, steps) AS thread FROM step_thread GROUP BY process
), launch AS (
    SELECT a.kernel_id, a.device_id, c.start_ns,
           coalesce(s.process, m.process, any_m.process) AS process,
           coalesce(s.thread, m.thread, any_m.thread) AS thread
    FROM activity a
    JOIN host_call c ON c.call_id = a.launch_id
    LEFT JOIN step_thread s ON s.process = c.process AND s.thread = c.thread
    LEFT JOIN main_thread m ON m.process = c.process
    LEFT JOIN (SELECT process, thread FROM main_thread LIMIT 1) any_m ON true
    UNION ALL
    -- CPU traces: an operator's self time belongs to the step running on its thread when it starts.
    SELECT a.kernel_id, a.device_id, a.start_ns, o.process, coalesce(s.thread, m.thread)
    FROM activity a
    JOIN op o ON o.op_id = a.op_id
    LEFT JOIN step_thread s ON s.process = o.process AND s.thread = o.thread
    LEFT JOIN main_thread m ON m.process = o.process
    WHERE a.device_id = -1
)
SELECT l.kernel_id, l.device_id, h.host_step_id
FROM launch l
ASOF JOIN host_step h ON l.process = h.process AND l.thread = h.thread AND l.start_ns >= h.start_ns
WHERE l.start_ns < h.end_ns
   OR (l.start_ns = h.start_ns AND h.end_ns = h.start_ns);
