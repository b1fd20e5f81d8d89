-- The part of a device's window charged to each step: from the previous step's end to its own, so that a phase shows
-- the gaps before its steps. The first step starts with its own work; a window step is its own stretch.
CREATE OR REPLACE TABLE step_period AS
WITH ordered AS (
    SELECT step_id, device_id, phase, start_ns, end_ns, provenance,
           max(end_ns) OVER (
               PARTITION BY device_id ORDER BY end_ns, step_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS before_end
    FROM step
)
SELECT step_id, device_id, phase,
       CASE WHEN provenance = 'window' THEN start_ns ELSE coalesce(before_end, start_ns) END AS p0,
       end_ns AS p1
FROM ordered
WHERE end_ns > CASE WHEN provenance = 'window' THEN start_ns ELSE coalesce(before_end, start_ns) END;
