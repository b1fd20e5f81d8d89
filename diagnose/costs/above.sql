-- One step up for the operators whose owner is not found yet.
CREATE OR REPLACE TABLE cost_above AS
SELECT * FROM cost_above WHERE modelled
UNION ALL
SELECT a.ask, o.op_id AS owner, o.parent_op_id AS next_ask, o.name_id AS op_name_id, o.signature_id,
       m.name_id IS NOT NULL AS modelled
FROM cost_above a
JOIN cost_op o ON o.op_id = a.next_ask
LEFT JOIN cost_model_name m ON m.name_id = o.name_id
WHERE NOT a.modelled;
