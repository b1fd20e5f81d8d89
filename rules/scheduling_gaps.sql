-- One row: idle time between steps charged to $phase (NULL: outside steps) on $device, and how the gaps behave.
SELECT (SELECT sum(end_ns - start_ns)::BIGINT FROM segment
        WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase AND bucket = 'idle_scheduling'
          AND cause NOT LIKE 'host input:%') AS idle_ns,
       (SELECT median(gap_before_ns) FROM step
        WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase AND gap_before_ns > 0) AS gap_median_ns,
       (SELECT regr_slope(gap_before_ns, sequences) / 1e3 FROM step
        WHERE device_id = $device AND phase IS NOT DISTINCT FROM $phase AND gap_before_ns > 0 AND sequences IS NOT NULL
        HAVING count(DISTINCT sequences) >= 3) AS gap_batch_slope_us;
