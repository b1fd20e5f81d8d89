-- link_launch: the call behind a correlation. A profiler that does not say the activity's process (Kineto) asks with
-- process_key -1. Where several calls carry one correlation, the one whose name launches, copies or sets comes first.
CREATE OR REPLACE TABLE link_launch AS
WITH call AS (
    SELECT
        c.call_id, c.source_id, c.process, c.correlation, c.start_ns, w.op_id,
        {graph_launch} AS is_graph, n.text LIKE 'hipExt%' AS grid_in_threads,
        CASE WHEN regexp_matches(n.text, 'Launch|Memcpy|Memset|Fill|Copy') THEN 0 ELSE 1 END AS rank
    FROM link_call c
    JOIN name n USING (name_id)
    LEFT JOIN link_owner w USING (call_id)
    WHERE c.correlation IS NOT NULL
), asked AS (
    SELECT *, -1 AS process_key FROM call UNION ALL SELECT *, process AS process_key FROM call
), chosen AS (
    SELECT
        source_id, process_key, correlation,
        arg_min(
            {'call_id': call_id, 'op_id': op_id, 'start_ns': start_ns, 'is_graph': is_graph, 'grid_in_threads': grid_in_threads},
            {'rank': rank, 'start_ns': start_ns, 'call_id': call_id}) AS it
    FROM asked WHERE process_key IS NOT NULL
    GROUP BY ALL
)
SELECT source_id, process_key, correlation, unnest(it) FROM chosen;

-- link_external: the operator behind a Kineto external id, the first where an id was used twice.
CREATE OR REPLACE TABLE link_external AS
SELECT source_id, external_id, min(op_id) AS op_id, arg_min(start_ns, op_id) AS start_ns,
       arg_min(start_ns + dur_ns, op_id) AS end_ns
FROM op_base WHERE external_id IS NOT NULL
GROUP BY ALL;
