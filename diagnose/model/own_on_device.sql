-- A trace without host events: the annotation's projection on the device owns what starts inside it.
CREATE OR REPLACE TABLE owned AS
SELECT a.kernel_id, a.device_id, h.host_step_id
FROM activity a
ASOF JOIN host_step h ON a.start_ns >= h.start_ns
WHERE a.start_ns < h.end_ns;
