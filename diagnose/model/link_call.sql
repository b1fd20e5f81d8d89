-- Host calls numbered by time.
SELECT
    row_number() OVER (ORDER BY source_id, start_ns, process, thread, dur_ns DESC, correlation, name_id) - 1 AS call_id,
    source_id, process, thread, start_ns, dur_ns, name_id, correlation, external_id, coalesce(blocking, false) AS blocking
FROM link_raw_host_call
