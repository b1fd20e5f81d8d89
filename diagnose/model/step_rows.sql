-- Steps by device: `step_host(step_id, host_step_id, device_id, start_ns, end_ns)`, the public `step`, and `owner`.
CREATE OR REPLACE TABLE step_host AS
SELECT row_number() OVER (ORDER BY o.device_id, max(a.start_ns + a.dur_ns), o.host_step_id) - 1 AS step_id,
       o.host_step_id, o.device_id,
       min(a.start_ns) AS start_ns, max(a.start_ns + a.dur_ns) AS end_ns
FROM owned o JOIN activity a USING (kernel_id)
GROUP BY o.host_step_id, o.device_id;

CREATE OR REPLACE TABLE step AS
SELECT s.step_id::INTEGER AS step_id, s.device_id, h.phase,
       h.start_ns AS host_start_ns, h.end_ns AS host_end_ns, s.start_ns, s.end_ns,
       -- From the latest end of any earlier step; the first step has no gap before it.
       greatest(0, s.start_ns - max(s.end_ns) OVER (
           PARTITION BY s.device_id ORDER BY s.end_ns, s.step_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
       )) AS gap_before_ns,
       h.sequences, h.prefill_sequences, h.decode_sequences, h.prefill_tokens, h.decode_tokens,
       -- Known only where nothing is speculated: every decoding sequence verified exactly one token.
       CASE WHEN h.decode_tokens = h.decode_sequences THEN h.decode_tokens END AS accepted_tokens,
       h.context_tokens, h.prefill_context_tokens, h.prefill_pairs, h.provenance, h.text
FROM step_host s JOIN host_step h USING (host_step_id);

CREATE OR REPLACE TABLE owner AS
SELECT o.kernel_id, s.step_id::INTEGER AS step_id
FROM owned o JOIN step_host s ON s.host_step_id = o.host_step_id AND s.device_id = o.device_id;
DROP TABLE owned;
