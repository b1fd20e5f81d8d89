-- Operators numbered by thread and time; of two with the same start the longer, then the earlier recorded, is outside.
SELECT
    row_number() OVER (
        ORDER BY source_id, process, thread, start_ns, dur_ns DESC, external_id, name_id, signature_id) - 1 AS op_id,
    source_id, process, thread, start_ns, dur_ns, name_id, external_id, signature_id
FROM link_raw_op
