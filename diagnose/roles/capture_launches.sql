-- Launches of a capture trace whose kernels never ran in it, with the operator that made them, numbered in order.
-- One row a launch: `grp` the capture it lies in (by its begin and end calls, else by an annotation), `kernel` the
-- kernel's name where the launch call says it (ROCm), else NULL.
CREATE OR REPLACE TABLE capture_launch AS
WITH marks AS (
    SELECT c.process, c.thread, c.start_ns, regexp_matches(n.text, 'StreamBeginCapture') AS begins
    FROM host_call c JOIN name n USING (name_id)
    WHERE regexp_matches(n.text, 'Stream(Begin|End)Capture(_|$)')
), spans AS (
    SELECT process, thread, start_ns,
           lead(start_ns) OVER (PARTITION BY process, thread ORDER BY start_ns) AS end_ns, begins
    FROM marks
), groups AS (
    SELECT row_number() OVER (ORDER BY start_ns, process, thread) AS grp, process, thread, start_ns,
           coalesce(end_ns, 9223372036854775807) AS end_ns
    FROM spans WHERE begins
), noted AS (
    SELECT row_number() OVER (ORDER BY start_ns, annotation_id) + 1000000 AS grp, process, thread_or_stream AS thread, start_ns,
           start_ns + dur_ns AS end_ns, text
    FROM annotation WHERE origin = 'user_annotation' AND regexp_matches(text, '^capture_')
), launches AS (
    SELECT c.call_id, c.process, c.thread, c.start_ns, c.op_id, l.kernel
    FROM host_call c
    JOIN name n USING (name_id)
    LEFT JOIN captured_launch l
        ON l.process = c.process AND l.start_ns = c.start_ns AND l.correlation IS NOT DISTINCT FROM c.correlation
    WHERE (l.correlation IS NOT NULL OR regexp_matches(n.text, 'Launch(Cooperative)?Kernel|LaunchKernelEx'))
          AND c.call_id NOT IN (SELECT launch_id FROM activity_base WHERE launch_id IS NOT NULL AND device_id >= 0)
)
SELECT l.call_id, l.op_id, l.kernel, l.start_ns, coalesce(g.grp, a.grp, 0) AS grp, a.text AS label
FROM launches l
LEFT JOIN groups g ON g.process = l.process AND g.thread = l.thread AND l.start_ns BETWEEN g.start_ns AND g.end_ns
LEFT JOIN noted a ON a.process = l.process AND a.thread = l.thread AND l.start_ns BETWEEN a.start_ns AND a.end_ns
QUALIFY row_number() OVER (PARTITION BY l.call_id ORDER BY g.grp, a.end_ns - a.start_ns) = 1;
