-- The nearest modelled operator at or above `ask` of every kernel to do, and the distinct combinations of operator,
-- arguments and kernel names that follow: one row of work each, known by a 64-bit hash.
CREATE OR REPLACE TABLE cost_owner AS
WITH RECURSIVE up AS (
    SELECT o.op_id AS ask, o.op_id, o.parent_op_id, o.name_id, o.signature_id, m.name_id IS NOT NULL AS modelled
    FROM (SELECT DISTINCT ask FROM cost_todo) t
    JOIN cost_op o ON o.op_id = t.ask
    LEFT JOIN cost_model_name m ON m.name_id = o.name_id
    UNION ALL
    SELECT up.ask, o.op_id, o.parent_op_id, o.name_id, o.signature_id, m.name_id IS NOT NULL
    FROM up
    JOIN cost_op o ON o.op_id = up.parent_op_id
    LEFT JOIN cost_model_name m ON m.name_id = o.name_id
    WHERE NOT up.modelled
)
SELECT ask, op_id AS owner, parent_op_id AS next_ask, name_id AS op_name_id, signature_id FROM up WHERE modelled;

CREATE OR REPLACE TABLE cost_placed AS
SELECT t.kernel_id, w.owner, w.next_ask, w.op_name_id, w.signature_id, t.launched_by = w.owner AS direct,
       CASE WHEN m.by_step THEN t.step_id END AS step_id, t.name_id, t.start_ns, t.dur_ns,
       t.launched_by, t.step_id AS own_step
FROM cost_todo t
JOIN cost_owner w ON w.ask = t.ask
JOIN cost_model_name m ON m.name_id = w.op_name_id;
DROP TABLE cost_owner;

CREATE OR REPLACE TABLE cost_many AS
SELECT owner, op_name_id, signature_id, min(step_id) AS step_id,
       list(name_id ORDER BY start_ns, kernel_id) AS kernel_names, list(direct ORDER BY start_ns, kernel_id) AS direct
FROM cost_placed
WHERE owner IN (SELECT owner FROM cost_placed GROUP BY owner HAVING count(*) > 1)
GROUP BY ALL;

-- Which combination every kernel belongs to, and its place among the kernels of its operator.
CREATE OR REPLACE TABLE cost_member AS
SELECT p.kernel_id, hash(p.op_name_id, p.signature_id, p.step_id, p.name_id, p.direct) AS combo_id, 1 AS position
FROM cost_placed p ANTI JOIN cost_many c ON c.owner = p.owner
UNION ALL
SELECT p.kernel_id, hash(c.op_name_id, c.signature_id, c.step_id, c.kernel_names, c.direct),
       row_number() OVER (PARTITION BY p.owner ORDER BY p.start_ns, p.kernel_id)
FROM cost_placed p JOIN cost_many c ON c.owner = p.owner;

CREATE OR REPLACE TABLE cost_combo AS
SELECT DISTINCT hash(p.op_name_id, p.signature_id, p.step_id, p.name_id, p.direct) AS combo_id, p.op_name_id,
       p.signature_id, p.step_id, [p.name_id] AS kernel_names, [p.direct] AS direct, [1.0::DOUBLE] AS mean_ns
FROM cost_placed p ANTI JOIN cost_many c ON c.owner = p.owner
UNION ALL
SELECT combo_id, any_value(op_name_id), any_value(signature_id), any_value(step_id), any_value(kernel_names),
       any_value(direct), list(mean_ns ORDER BY position)
FROM (
    SELECT b.combo_id, b.position, any_value(c.op_name_id) AS op_name_id, any_value(c.signature_id) AS signature_id,
           any_value(c.step_id) AS step_id, any_value(c.kernel_names) AS kernel_names, any_value(c.direct) AS direct,
           avg(p.dur_ns) AS mean_ns
    FROM cost_placed p
    JOIN cost_many c ON c.owner = p.owner
    JOIN cost_member b ON b.kernel_id = p.kernel_id
    GROUP BY b.combo_id, b.position
)
GROUP BY combo_id;
DROP TABLE cost_many;
