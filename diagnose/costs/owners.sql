-- The nearest modelled operator at or above `ask` of every kernel to do; where `ask` itself
-- has no model, its ancestors are looked up afterwards (cost_above).
CREATE OR REPLACE TABLE cost_placed AS
SELECT t.kernel_id, o.op_id AS owner, o.parent_op_id AS next_ask, o.name_id AS op_name_id, o.signature_id,
       t.launched_by = o.op_id AS direct, CASE WHEN m.by_step THEN t.step_id END AS step_id, t.name_id, t.start_ns,
       t.dur_ns, t.launched_by, t.step_id AS own_step, m.name_id IS NOT NULL AS modelled
FROM cost_todo t
JOIN cost_op o ON o.op_id = t.ask
LEFT JOIN cost_model_name m ON m.name_id = o.name_id;

CREATE OR REPLACE TABLE cost_above AS
SELECT DISTINCT owner AS ask, owner, next_ask, NULL::INTEGER AS op_name_id, NULL::INTEGER AS signature_id, false AS modelled
FROM cost_placed WHERE NOT modelled;
