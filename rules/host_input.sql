-- One row: idle time inside input-pipeline annotations in $phase (NULL: outside steps) on $device.
WITH mine AS (
    SELECT cause, end_ns - start_ns AS ns, kernel_id FROM segment
    WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase AND bucket = 'idle_scheduling' AND cause LIKE 'host input:%'
)
SELECT sum(ns)::BIGINT AS idle_ns, count(DISTINCT kernel_id) AS gaps, max(ns) AS longest_ns,
       substr(arg_max(cause, ns), 13) AS top_cause
FROM mine;
