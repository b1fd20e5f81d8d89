-- Steps known by device time only: the public `step`, and `owner` by time.
CREATE OR REPLACE TABLE step AS
SELECT s.step_id, s.device_id, 'other' AS phase, NULL::BIGINT AS host_start_ns, NULL::BIGINT AS host_end_ns,
       s.start_ns, s.end_ns,
       CASE WHEN s.provenance = 'window' THEN 0 ELSE greatest(0, s.start_ns - max(s.end_ns) OVER (
           PARTITION BY s.device_id ORDER BY s.start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
       )) END AS gap_before_ns,
       NULL::INTEGER AS sequences, NULL::INTEGER AS prefill_sequences, NULL::INTEGER AS decode_sequences,
       NULL::BIGINT AS prefill_tokens, NULL::BIGINT AS decode_tokens, NULL::BIGINT AS accepted_tokens,
       NULL::BIGINT AS context_tokens, NULL::BIGINT AS prefill_context_tokens, NULL::DOUBLE AS prefill_pairs,
       s.provenance, NULL::VARCHAR AS text
FROM step_span s;

CREATE OR REPLACE TABLE owner AS
SELECT a.kernel_id, s.step_id
FROM activity a
ASOF JOIN step_span s ON a.device_id = s.device_id AND a.start_ns >= s.start_ns
WHERE a.start_ns < s.end_ns OR (a.start_ns = s.end_ns AND a.dur_ns = 0) ;
