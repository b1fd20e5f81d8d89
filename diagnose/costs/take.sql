-- Kernels whose combination has a cost take it; the rest ask the parent of the operator that did not know.
INSERT INTO cost_taken
SELECT m.kernel_id, f.kind, f.source
FROM cost_member m
JOIN cost_found f ON f.combo_id = m.combo_id AND f.position = m.position;

CREATE OR REPLACE TABLE cost_todo AS
SELECT p.kernel_id, p.launched_by, p.next_ask AS ask, p.own_step AS step_id, p.name_id, p.start_ns, p.dur_ns
FROM cost_placed p
JOIN cost_member m USING (kernel_id)
ANTI JOIN cost_found f ON f.combo_id = m.combo_id AND f.position = m.position
WHERE p.next_ask IS NOT NULL;
DROP TABLE cost_member;
DROP TABLE cost_placed;
DROP TABLE cost_combo;
