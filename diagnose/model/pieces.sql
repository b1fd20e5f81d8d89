-- Cut every device's window into elementary stretches and give each busy one to the activity that owns it.
--
--   interval(kernel_id, device_id, class, s, e)      activity with its effective start
--   stretch(device_id, s, e, class, n)               0 idle, 1 compute, 2 communication, 3 copy; n activities of it
--   piece(device_id, s, e, class, kernel_id)         busy, one owner; a shared stretch is cut into consecutive pieces
--   gap(gap_id, device_id, g0, g1)                   idle
--
-- Compute hides communication, communication hides copies. Kernels that overlap on one stream (programmatic dependent
-- launch) start where their predecessor ends.
CREATE OR REPLACE TABLE interval AS
WITH ordered AS (
    SELECT a.kernel_id, a.device_id, a.start_ns, a.start_ns + a.dur_ns AS end_ns,
           CASE
               WHEN a.kind = 'kernel' AND f.is_comm THEN 2
               WHEN a.kind = 'kernel' OR a.kind = 'graph' THEN 1
               WHEN a.kind = 'copy' AND c.kind = 'DtoD' THEN 1
               WHEN a.kind = 'copy' AND c.kind = 'PtoP' THEN 2
               ELSE 3
           END AS class,
           max(a.start_ns + a.dur_ns) OVER (
               PARTITION BY a.device_id, a.stream ORDER BY a.start_ns, a.kernel_id
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS before_end
    FROM activity a
    LEFT JOIN name_family f USING (name_id)
    LEFT JOIN gpu_copy c ON c.kernel_id = a.kernel_id
)
SELECT kernel_id, device_id, class,
       greatest(start_ns, least(end_ns, coalesce(before_end, start_ns))) AS s, end_ns AS e
FROM ordered;

CREATE OR REPLACE TABLE stretch AS
WITH points AS (
    SELECT device_id, s AS t, (class = 1)::INTEGER AS d1, (class = 2)::INTEGER AS d2, (class = 3)::INTEGER AS d3
    FROM interval WHERE e > s
    UNION ALL
    SELECT device_id, e, -(class = 1)::INTEGER, -(class = 2)::INTEGER, -(class = 3)::INTEGER
    FROM interval WHERE e > s
    UNION ALL
    -- Edges of step periods cut without changing what runs.
    SELECT device_id, unnest([p0, p1]), 0, 0, 0 FROM step_period
    UNION ALL
    -- Instants of zero length still belong to the window.
    SELECT device_id, unnest([min(s), max(e)]), 0, 0, 0 FROM interval GROUP BY device_id
), net AS (
    SELECT device_id, t, sum(d1) AS d1, sum(d2) AS d2, sum(d3) AS d3 FROM points GROUP BY device_id, t
), running AS (
    SELECT device_id, t AS s, lead(t) OVER w AS e,
           sum(d1) OVER (w ROWS UNBOUNDED PRECEDING) AS n1, sum(d2) OVER (w ROWS UNBOUNDED PRECEDING) AS n2,
           sum(d3) OVER (w ROWS UNBOUNDED PRECEDING) AS n3
    FROM net WINDOW w AS (PARTITION BY device_id ORDER BY t)
)
SELECT device_id, s, e,
       (CASE WHEN n1 > 0 THEN 1 WHEN n2 > 0 THEN 2 WHEN n3 > 0 THEN 3 ELSE 0 END)::INTEGER AS class,
       (CASE WHEN n1 > 0 THEN n1 WHEN n2 > 0 THEN n2 ELSE n3 END)::INTEGER AS n
FROM running
WHERE e IS NOT NULL;

-- The latest started activity owns a stretch that only one activity of its class covers, when it still runs.
CREATE OR REPLACE TABLE candidate AS
SELECT t.device_id, t.s, t.e, t.class, t.n, i.kernel_id, i.e AS until
FROM (SELECT * FROM stretch WHERE class > 0) t
ASOF LEFT JOIN (SELECT * FROM interval WHERE e > s) i
    ON t.device_id = i.device_id AND t.class = i.class AND t.s >= i.s;

CREATE OR REPLACE TABLE piece AS
SELECT device_id, s, e, class, kernel_id FROM candidate WHERE n = 1 AND until >= e;

-- The rest is a range join. Device and class ride in the high bits, so that only inequalities are left, which the
-- database joins by sorting instead of comparing every pair (2^48 ns is 78 hours, longer than any window).
INSERT INTO piece
WITH open AS (
    SELECT *, ((device_id + 1)::BIGINT * 4 + class) * (1::BIGINT << 48) AS base
    FROM candidate WHERE NOT coalesce(n = 1 AND until >= e, false)
), keyed AS (
    SELECT *, ((device_id + 1)::BIGINT * 4 + class) * (1::BIGINT << 48) AS base FROM interval WHERE e > s
), matched AS (
    SELECT o.device_id, o.s, o.e, o.class, k.kernel_id,
           row_number() OVER (PARTITION BY o.device_id, o.s ORDER BY k.s, k.kernel_id) - 1 AS i,
           count(*) OVER (PARTITION BY o.device_id, o.s) AS shared
    FROM open o JOIN keyed k ON k.base + k.s <= o.base + o.s AND k.base + k.e >= o.base + o.e
), cut AS (
    -- Equal shares; the earliest also takes the integer remainder.
    SELECT *, (e - s) // shared AS q, (e - s) % shared AS r FROM matched
)
SELECT device_id, s + i * q + CASE WHEN i = 0 THEN 0 ELSE r END, s + (i + 1) * q + r, class, kernel_id
FROM cut
WHERE CASE WHEN i = 0 THEN q + r ELSE q END > 0;
DROP TABLE candidate;

CREATE OR REPLACE TABLE gap AS
WITH idle AS (
    SELECT *, CASE WHEN s = lag(e) OVER (PARTITION BY device_id ORDER BY s) THEN 0 ELSE 1 END AS new
    FROM stretch WHERE class = 0
), grouped AS (
    SELECT *, sum(new) OVER (PARTITION BY device_id ORDER BY s ROWS UNBOUNDED PRECEDING) AS g FROM idle
)
SELECT (row_number() OVER (ORDER BY device_id, min(s)) - 1)::BIGINT AS gap_id,
       device_id, min(s) AS g0, max(e) AS g1
FROM grouped GROUP BY device_id, g;
DROP TABLE stretch;
