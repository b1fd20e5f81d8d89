-- Copies and memsets: bytes as recorded. Within a device a copy reads and writes them; across a link they count once.
INSERT INTO cost BY NAME
SELECT kernel_id, 0.0 AS flops,
       bytes * CASE WHEN kind = 'DtoD' THEN 2.0 ELSE 1.0 END AS bytes_min, bytes_min AS bytes_low, bytes_min AS bytes_high,
       'copy_' || lower(coalesce(kind, 'other')) AS role, 'bytes' AS source, format('{} B', bytes) AS shape
FROM gpu_copy WHERE bytes IS NOT NULL;

INSERT INTO cost BY NAME
SELECT kernel_id, 0.0 AS flops, bytes::DOUBLE AS bytes_min, bytes_min AS bytes_low, bytes_min AS bytes_high,
       'memset' AS role, 'bytes' AS source, format('{} B', bytes) AS shape
FROM gpu_memset WHERE bytes IS NOT NULL;
