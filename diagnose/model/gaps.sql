-- Why each gap is idle: `gap_piece(device_id, s, e, bucket, cause, kernel_id)`, exclusive and covering every gap.
--
-- A gap [g0, g1] is decided by the launch call [l0, l1] of the activity that ends it. Up to the instant the work was
-- launched the time is the host's; from there to g1 it is the device's. A call that blocks (a synchronous copy) hands
-- its work over at its start, not at its end. $1: normal launch latency in ns. $2: whether the trace has host events.
CREATE OR REPLACE TABLE gap_next AS
WITH next_activity AS (
    -- Nothing else runs at g1, so its starters all start there; the one launched first decides.
    SELECT g.gap_id, g.device_id, g.g0, g.g1, i.kernel_id, a.launch_id, c.process, c.thread,
           c.start_ns AS l0, c.start_ns + c.dur_ns AS l1, c.blocking,
           row_number() OVER (PARTITION BY g.gap_id ORDER BY c.start_ns NULLS LAST, i.kernel_id) AS choice
    FROM gap g
    JOIN interval i ON i.device_id = g.device_id AND i.s = g.g1
    JOIN activity a ON a.kernel_id = i.kernel_id
    LEFT JOIN host_call c ON c.call_id = a.launch_id
), previous AS (
    SELECT g.gap_id, arg_max(o.step_id, (i.s, i.kernel_id)) AS step_id
    FROM gap g
    JOIN interval i ON i.device_id = g.device_id AND i.e = g.g0
    LEFT JOIN owner o ON o.kernel_id = i.kernel_id
    GROUP BY g.gap_id
)
SELECT n.gap_id, n.device_id, n.g0, n.g1, n.kernel_id, n.launch_id, n.process, n.thread, n.l0, n.l1,
       -- On the CPU an operator is launched when it starts.
       CASE
           WHEN n.device_id = -1 THEN n.g1
           WHEN n.launch_id IS NULL THEN NULL
           ELSE least(n.g1, greatest(n.g0, CASE WHEN n.blocking THEN least(n.l1, n.l0 + $1) ELSE n.l1 END))
       END AS h1,
       CASE
           WHEN o.step_id IS NULL AND p.step_id IS NULL THEN 'outside'
           WHEN o.step_id IS NOT DISTINCT FROM p.step_id THEN 'inside'
           ELSE 'between'
       END AS place
FROM next_activity n
LEFT JOIN owner o ON o.kernel_id = n.kernel_id
LEFT JOIN previous p ON p.gap_id = n.gap_id
WHERE n.choice = 1;

-- The CPU's operators name their own thread.
UPDATE gap_next SET process = p.process, thread = p.thread
FROM (SELECT a.kernel_id, o.process, o.thread FROM activity a JOIN op o ON o.op_id = a.op_id WHERE a.device_id = -1) p
WHERE gap_next.device_id = -1 AND p.kernel_id = gap_next.kernel_id;

-- A blocking call that was waiting when the device ran dry drained the queue: the host code after it, up to the next
-- launch, could have run ahead of the device without it.
CREATE OR REPLACE TABLE blocking_call AS
SELECT process, thread, start_ns AS s, start_ns + dur_ns AS e, name_id FROM host_call WHERE blocking AND dur_ns > 0;

CREATE OR REPLACE TABLE drained AS
SELECT g.gap_id, b.name_id
FROM gap_next g
ASOF JOIN blocking_call b ON g.process = b.process AND g.thread = b.thread AND g.g0 > b.s
WHERE g.h1 > g.g0 AND b.e >= g.g0;

-- Split the host part along the launching thread: in a blocking call, in the input pipeline, or running.
CREATE OR REPLACE TABLE host_piece AS
WITH host_gap AS (
    SELECT gap_id, device_id, process, thread, g0, h1 FROM gap_next WHERE h1 > g0
), lane AS (
    SELECT DISTINCT device_id, process, thread FROM host_gap
), points AS (
    SELECT device_id, process, thread, g0 AS t, 1 AS dg, 0 AS db, 0 AS dl, gap_id FROM host_gap
    UNION ALL SELECT device_id, process, thread, h1, -1, 0, 0, NULL FROM host_gap
    UNION ALL SELECT l.device_id, process, thread, b.s, 0, 1, 0, NULL FROM lane l JOIN blocking_call b USING (process, thread)
    UNION ALL SELECT l.device_id, process, thread, b.e, 0, -1, 0, NULL FROM lane l JOIN blocking_call b USING (process, thread)
    UNION ALL SELECT l.device_id, process, thread, d.start_ns, 0, 0, 1, NULL FROM lane l JOIN loader d USING (process, thread)
    UNION ALL SELECT l.device_id, process, thread, d.end_ns, 0, 0, -1, NULL FROM lane l JOIN loader d USING (process, thread)
), net AS (
    SELECT device_id, process, thread, t, sum(dg) AS dg, sum(db) AS db, sum(dl) AS dl, max(gap_id) AS gap_id
    FROM points GROUP BY ALL
), running AS (
    SELECT t AS s, lead(t) OVER w AS e,
           sum(dg) OVER (w ROWS UNBOUNDED PRECEDING) AS in_gap,
           sum(db) OVER (w ROWS UNBOUNDED PRECEDING) AS in_block,
           sum(dl) OVER (w ROWS UNBOUNDED PRECEDING) AS in_loader,
           -- Gaps are numbered in time on each device.
           max(gap_id) OVER (w ROWS UNBOUNDED PRECEDING) AS gap_id
    FROM net WINDOW w AS (PARTITION BY device_id, process, thread ORDER BY t)
)
SELECT gap_id, s, e, in_block > 0 AS is_blocked, in_loader > 0 AS is_loader
FROM running WHERE in_gap > 0 AND e > s;

CREATE OR REPLACE TABLE host_bucket AS
SELECT p.gap_id, p.s, p.e,
       CASE
           WHEN p.is_blocked THEN 'idle_sync'
           WHEN p.is_loader OR g.place <> 'inside' THEN 'idle_scheduling'
           WHEN d.gap_id IS NOT NULL THEN 'idle_sync'
           ELSE 'idle_launch'
       END AS bucket,
       CASE
           WHEN p.is_blocked THEN 'blocked in ' || coalesce(nb.text, 'a synchronising call')
           WHEN p.is_loader THEN 'host input: ' || l.text
           WHEN g.place = 'between' THEN 'between steps'
           WHEN g.place = 'outside' THEN 'outside steps'
           WHEN d.gap_id IS NOT NULL THEN 'after ' || coalesce(nd.text, 'a synchronising call') || ' drained the queue'
           ELSE 'launching'
       END AS cause
FROM host_piece p
JOIN gap_next g USING (gap_id)
LEFT JOIN drained d USING (gap_id)
LEFT JOIN name nd ON nd.name_id = d.name_id
ASOF LEFT JOIN blocking_call b ON b.process = g.process AND b.thread = g.thread AND p.s >= b.s
LEFT JOIN name nb ON nb.name_id = b.name_id
ASOF LEFT JOIN loader l ON l.process = g.process AND l.thread = g.thread AND p.s >= l.start_ns;

-- A long wait that ends exactly where another device's work ended has its explanation in the trace. (On the same device
-- nothing runs in a gap, so a dependency can only end elsewhere.)
CREATE OR REPLACE TABLE gap_dependency AS
SELECT DISTINCT g.gap_id
FROM (SELECT * FROM gap_next WHERE g1 - coalesce(h1, g0) > $1) g
JOIN (SELECT DISTINCT device_id, e FROM interval WHERE e > s AND (SELECT count(DISTINCT device_id) FROM interval) > 1) o
    ON o.device_id <> g.device_id AND o.e BETWEEN g.g1 - $1 AND g.g1 AND o.e > g.g0;

CREATE OR REPLACE TABLE gap_piece AS
WITH last_host AS (
    SELECT gap_id, arg_max(bucket, e) AS bucket, arg_max(cause, e) AS cause FROM host_bucket GROUP BY gap_id
), device_part AS (
    SELECT g.gap_id, coalesce(g.h1, g.g0) AS s, g.g1 AS e,
           CASE
               WHEN NOT $2 AND g.device_id <> -1 THEN 'idle_other'
               WHEN g.h1 IS NULL THEN 'unobserved'
               WHEN g.g1 - g.h1 <= $1 THEN coalesce(h.bucket, 'idle_device')
               WHEN w.gap_id IS NOT NULL THEN 'idle_device'
               ELSE 'unobserved'
           END AS bucket,
           CASE
               WHEN NOT $2 AND g.device_id <> -1 THEN 'no host events in the trace'
               WHEN g.h1 IS NULL THEN 'launch not in the trace'
               WHEN g.g1 - g.h1 <= $1 THEN coalesce(h.cause, 'dispatch')
               WHEN w.gap_id IS NOT NULL THEN 'waited for another device'
               ELSE 'queued_unseen'
           END AS cause
    FROM gap_next g
    LEFT JOIN last_host h USING (gap_id)
    LEFT JOIN gap_dependency w USING (gap_id)
    WHERE g.g1 > coalesce(g.h1, g.g0)
)
SELECT g.device_id, p.s, p.e, p.bucket, p.cause, g.kernel_id
FROM (SELECT gap_id, s, e, bucket, cause FROM host_bucket UNION ALL SELECT * FROM device_part) p
JOIN gap_next g USING (gap_id)
WHERE p.e > p.s;
