-- The nearest modelled operator at or above `ask` of every kernel to do, and the distinct combinations of operator,
-- arguments and kernel names that follow: one row of work each.
CREATE OR REPLACE TABLE cost_owner AS
WITH RECURSIVE up AS (
    SELECT o.op_id AS ask, o.op_id, o.parent_op_id, o.name_id, m.name_id IS NOT NULL AS modelled
    FROM (SELECT DISTINCT ask FROM cost_todo) t
    JOIN op o ON o.op_id = t.ask
    LEFT JOIN cost_model_name m ON m.name_id = o.name_id
    UNION ALL
    SELECT up.ask, o.op_id, o.parent_op_id, o.name_id, m.name_id IS NOT NULL
    FROM up
    JOIN op o ON o.op_id = up.parent_op_id
    LEFT JOIN cost_model_name m ON m.name_id = o.name_id
    WHERE NOT up.modelled
)
SELECT ask, op_id AS owner FROM up WHERE modelled;

-- Kernels of one owner in launch order on the device.
CREATE OR REPLACE TABLE cost_placed AS
SELECT t.kernel_id, w.owner, t.name_id, t.launched_by = w.owner AS direct, t.dur_ns, t.step_id,
       row_number() OVER (PARTITION BY w.owner ORDER BY t.start_ns, t.kernel_id) AS position
FROM cost_todo t
JOIN cost_owner w ON w.ask = t.ask;
DROP TABLE cost_owner;

CREATE OR REPLACE TABLE cost_call AS
SELECT p.owner, o.name_id AS op_name_id, o.signature_id,
       CASE WHEN any_value(m.by_step) THEN min(p.step_id) END AS step_id,
       list(p.name_id ORDER BY p.position) AS kernel_names, list(p.direct ORDER BY p.position) AS direct
FROM cost_placed p
JOIN op o ON o.op_id = p.owner
JOIN cost_model_name m ON m.name_id = o.name_id
GROUP BY ALL;

CREATE OR REPLACE TABLE cost_combo AS
SELECT row_number() OVER () AS combo_id, op_name_id, signature_id, step_id, kernel_names, direct,
       NULL::DOUBLE[] AS mean_ns
FROM (SELECT DISTINCT op_name_id, signature_id, step_id, kernel_names, direct FROM cost_call);

-- Which combination every kernel belongs to.
CREATE OR REPLACE TABLE cost_member AS
SELECT c.owner, b.combo_id
FROM cost_call c
JOIN cost_combo b
    ON b.op_name_id = c.op_name_id AND b.signature_id IS NOT DISTINCT FROM c.signature_id
    AND b.step_id IS NOT DISTINCT FROM c.step_id AND b.kernel_names = c.kernel_names AND b.direct = c.direct;
DROP TABLE cost_call;

UPDATE cost_combo SET mean_ns = t.mean_ns
FROM (
    SELECT combo_id, list(mean_ns ORDER BY position) AS mean_ns
    FROM (
        SELECT m.combo_id, p.position, avg(p.dur_ns) AS mean_ns
        FROM cost_placed p JOIN cost_member m USING (owner)
        GROUP BY ALL
    )
    GROUP BY combo_id
) t
WHERE t.combo_id = cost_combo.combo_id;
