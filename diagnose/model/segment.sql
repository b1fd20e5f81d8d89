-- The public `segment`: every nanosecond of each device's window, once.
CREATE OR REPLACE TABLE segment_uncut AS
WITH busy AS (
    SELECT p.device_id, p.s, p.e, p.class, p.kernel_id, b.bound, b.reason,
           k.end_ns - c.transfer_ns AS transfer_from
    FROM piece p
    LEFT JOIN bound b USING (kernel_id)
    LEFT JOIN collective c USING (kernel_id)
    LEFT JOIN (SELECT kernel_id, start_ns + dur_ns AS end_ns FROM activity) k USING (kernel_id)
), split AS (
    -- A matched collective first waits for the last rank, then transfers.
    SELECT device_id, s, CASE WHEN transfer_from IS NULL THEN e ELSE least(e, greatest(s, transfer_from)) END AS e,
           CASE WHEN transfer_from IS NULL THEN 'communication' ELSE 'comm_wait' END AS bucket, NULL AS cause, kernel_id
    FROM busy WHERE class = 2
    UNION ALL
    SELECT device_id, least(e, greatest(s, transfer_from)), e, 'communication', NULL, kernel_id
    FROM busy WHERE class = 2 AND transfer_from IS NOT NULL
    UNION ALL
    SELECT device_id, s, e, 'copy', NULL, kernel_id FROM busy WHERE class = 3
    UNION ALL
    SELECT device_id, s, e, coalesce(bound, 'unmodelled'), reason, kernel_id FROM busy WHERE class = 1
    UNION ALL
    SELECT device_id, s, e, bucket, cause, kernel_id FROM gap_piece
)
SELECT * FROM split WHERE e > s;

-- Cut what straddles the edge of a step's period (an edge can fall in a gap when a step ends with an instant event).
CREATE OR REPLACE TABLE segment_cut AS
WITH edge AS (
    SELECT DISTINCT device_id, t, (device_id + 1)::BIGINT * (1::BIGINT << 48) AS base
    FROM (SELECT device_id, unnest([p0, p1]) AS t FROM step_period)
), based AS (
    SELECT *, (device_id + 1)::BIGINT * (1::BIGINT << 48) AS base FROM segment_uncut
), inner_edge AS (
    SELECT b.device_id, b.s, list(e.t ORDER BY e.t) AS cuts
    FROM based b JOIN edge e ON e.base + e.t > b.base + b.s AND e.base + e.t < b.base + b.e
    GROUP BY b.device_id, b.s
), lists AS (
    SELECT u.*, CASE WHEN i.cuts IS NULL THEN [u.s, u.e] ELSE list_concat(list_concat([u.s], i.cuts), [u.e]) END AS marks
    FROM segment_uncut u LEFT JOIN inner_edge i ON i.device_id = u.device_id AND i.s = u.s
)
SELECT device_id, unnest(marks[1:-2]) AS s, unnest(marks[2:]) AS e, bucket, cause, kernel_id FROM lists;
DROP TABLE segment_uncut;

CREATE OR REPLACE TABLE segment AS
SELECT c.device_id, c.s AS start_ns, c.e AS end_ns, c.bucket, c.cause, c.kernel_id,
       CASE WHEN c.e <= p.p1 AND NOT is_input THEN p.step_id END AS step_id,
       CASE WHEN c.e <= p.p1 AND NOT is_input THEN p.phase END AS phase
FROM (SELECT *, bucket = 'idle_scheduling' AND cause LIKE 'host input:%' AS is_input FROM segment_cut) c
ASOF LEFT JOIN step_period p ON c.device_id = p.device_id AND c.s >= p.p0;
DROP TABLE segment_cut;
