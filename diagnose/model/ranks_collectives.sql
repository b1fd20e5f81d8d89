-- Every kernel that only communicates, with what identifies its collective: the fields the trace recorded for it
-- (Kineto), else its name; `within` is the annotation around its launch that names a send or receive (NVTX, torch).
WITH comm AS (
    SELECT k.kernel_id, k.device_id, k.start_ns, k.dur_ns, k.grid, k.launch_id, n.text AS name,
           coalesce(ks.extra, os.extra) AS extra
    FROM kernel k
    JOIN name n USING (name_id)
    JOIN name_family f USING (name_id)
    LEFT JOIN op_base o ON o.op_id = k.op_id
    LEFT JOIN signature ks ON ks.signature_id = k.signature_id
    LEFT JOIN signature os ON os.signature_id = o.signature_id
    WHERE f.is_comm
), peer AS (
    SELECT process, thread_or_stream AS thread, start_ns, start_ns + dur_ns AS end_ns, text
    FROM annotation
    WHERE origin <> 'gpu_user_annotation' AND regexp_matches(text, '(?i)^nccl:?(send|recv)')
), launched AS (
    SELECT c.kernel_id, p.text, p.end_ns, h.start_ns
    FROM comm c
    JOIN host_call h ON h.call_id = c.launch_id
    ASOF JOIN peer p ON p.process = h.process AND p.thread = h.thread AND p.start_ns <= h.start_ns
)
SELECT c.kernel_id, c.device_id, c.start_ns, c.dur_ns, c.name, c.grid,
       json_extract_string(c.extra, '$."Collective name"') AS collective,
       json_extract_string(c.extra, '$."Process Group Ranks"') AS group_ranks,
       json_extract_string(c.extra, '$."Process Group Name"') AS group_name,
       json_extract_string(c.extra, '$."In msg nelems"') AS elements,
       json_extract_string(c.extra, '$."dtype"') AS dtype,
       try_cast(json_extract_string(c.extra, '$."Src Rank"') AS INTEGER) AS src_rank,
       try_cast(json_extract_string(c.extra, '$."Dst Rank"') AS INTEGER) AS dst_rank,
       l.text AS within
FROM comm c
LEFT JOIN launched l ON l.kernel_id = c.kernel_id AND l.start_ns < l.end_ns
ORDER BY c.start_ns + c.dur_ns, c.kernel_id;
