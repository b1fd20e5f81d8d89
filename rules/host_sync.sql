-- One row: idle time in or after blocking calls in $phase (NULL: outside steps) on $device, and the call behind most.
WITH mine AS (
    SELECT cause, sum(end_ns - start_ns)::BIGINT AS ns, count(DISTINCT kernel_id) AS gaps FROM segment
    WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase AND bucket = 'idle_sync' GROUP BY cause
)
SELECT sum(ns)::BIGINT AS idle_ns, sum(gaps)::BIGINT AS gaps, arg_max(cause, ns) AS top_cause, max(ns) AS top_ns FROM mine;
