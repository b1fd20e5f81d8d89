-- link_launch: the call behind a correlation. A profiler that does not say the activity's process (Kineto) asks with
-- process_key -1. Where several calls carry one correlation, the one whose name launches, copies or sets comes first.
-- Calls are numbered by time, so the smallest (rank, number) is the earliest of the best: one integer a correlation, which
-- a large trace can aggregate in little memory.
CREATE OR REPLACE TABLE link_launch AS
WITH named AS (
    SELECT name_id, {graph_launch} AS is_graph, n.text LIKE 'hipExt%' AS grid_in_threads,
           CASE WHEN regexp_matches(n.text, 'Launch|Memcpy|Memset|Fill|Copy') THEN 0 ELSE 1 END::BIGINT AS rank
    FROM name n
), asked AS (
    SELECT source_id, coalesce(process, -1) AS process_key, correlation FROM link_raw_kernel
    UNION SELECT source_id, coalesce(process, -1), correlation FROM link_raw_gpu_copy
    UNION SELECT source_id, coalesce(process, -1), correlation FROM link_raw_gpu_memset
    UNION SELECT source_id, coalesce(process, -1), correlation FROM link_raw_graph_run
), answer AS (
    SELECT c.source_id, a.process_key, c.correlation, (n.rank << 60) + c.call_id AS best
    FROM link_call c
    JOIN named n USING (name_id)
    JOIN asked a
        ON a.source_id = c.source_id AND a.correlation = c.correlation AND a.process_key IN (-1, c.process)
), chosen AS (
    SELECT source_id, process_key, correlation, min(best) & ((1::BIGINT << 60) - 1) AS call_id
    FROM answer GROUP BY ALL
)
SELECT h.source_id, h.process_key, h.correlation, h.call_id, w.op_id, c.start_ns, n.is_graph, n.grid_in_threads
FROM chosen h
JOIN link_call c USING (call_id)
JOIN named n USING (name_id)
LEFT JOIN link_owner w USING (call_id);

-- link_external: the operator behind a Kineto external id, the first where an id was used twice.
CREATE OR REPLACE TABLE link_external AS
SELECT source_id, external_id, min(op_id) AS op_id, arg_min(start_ns, op_id) AS start_ns,
       arg_min(start_ns + dur_ns, op_id) AS end_ns
FROM op_base WHERE external_id IS NOT NULL
GROUP BY ALL;
