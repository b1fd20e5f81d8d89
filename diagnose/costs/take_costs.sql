-- Kernels whose combination has a cost take it; the rest ask the parent of the operator that did not know.
INSERT INTO cost BY NAME
SELECT p.kernel_id, f.* EXCLUDE (combo_id, position)
FROM cost_placed p
JOIN cost_member m USING (owner)
JOIN cost_found f ON f.combo_id = m.combo_id AND f.position = p.position;

CREATE OR REPLACE TABLE cost_todo AS
SELECT t.kernel_id, t.launched_by, o.parent_op_id AS ask, t.step_id, t.name_id, t.start_ns, t.dur_ns
FROM cost_todo t
JOIN cost_placed p USING (kernel_id)
JOIN op o ON o.op_id = p.owner
ANTI JOIN cost c ON c.kernel_id = t.kernel_id
WHERE o.parent_op_id IS NOT NULL;
DROP TABLE cost_member;
