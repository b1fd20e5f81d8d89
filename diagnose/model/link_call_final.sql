-- Host calls with the operator around them. A copy of pageable memory waits whatever its name says, and so did a copy
-- whose call ended after the copy itself (ROCm does not record what is pageable); CUDA's synchronous copy within the device
-- does not wait for the host.
WITH copied AS (
    SELECT launch_id AS call_id, bool_or(pageable) AS pageable, bool_and(direction = 'DtoD') AS inside,
           max(start_ns + dur_ns) AS done_ns
    FROM activity_base WHERE kind = 'copy' AND launch_id IS NOT NULL AND link <> 'graph'
    GROUP BY launch_id
)
SELECT
    c.call_id, c.source_id, c.process, c.thread, c.start_ns, c.dur_ns, c.name_id, c.correlation, c.external_id,
    (c.blocking OR coalesce(p.pageable, false) OR coalesce(c.start_ns + c.dur_ns >= p.done_ns, false)) AND NOT (coalesce(p.inside, false) AND n.text LIKE 'cu%Memcpy%') AS blocking,
    coalesce(w.op_id, e.op_id) AS op_id
FROM link_call c
JOIN name n USING (name_id)
LEFT JOIN copied p USING (call_id)
LEFT JOIN link_owner w USING (call_id)
-- a thread numbered differently in calls and operators (old traces): the recorded operator, when it encloses the call
LEFT JOIN link_external e
    ON w.op_id IS NULL AND e.source_id = c.source_id AND e.external_id = c.external_id
    AND c.start_ns BETWEEN e.start_ns AND e.end_ns
