-- Kernels still without a cost, with the operator to ask next. The CPU's operators are dealt with apart.
CREATE OR REPLACE TABLE cost_todo AS
SELECT kernel_id, op_id AS launched_by, op_id AS ask, step_id, name_id, start_ns, dur_ns
FROM kernel
WHERE op_id IS NOT NULL AND device_id <> -1;

-- Which cost every kernel takes: `kind` is a row of cost_value, written at the end.
CREATE OR REPLACE TABLE cost_taken (kernel_id BIGINT, kind INTEGER, source VARCHAR);
