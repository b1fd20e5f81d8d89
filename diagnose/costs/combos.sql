-- The distinct combinations of operator, arguments and kernel names: one row of work each, known by a 64-bit hash.
INSERT INTO cost_placed
SELECT p.kernel_id, a.owner, a.next_ask, a.op_name_id, a.signature_id, false,
       CASE WHEN m.by_step THEN p.own_step END, p.name_id, p.start_ns, p.dur_ns, p.launched_by, p.own_step, true
FROM cost_placed p
JOIN cost_above a ON a.ask = p.owner
JOIN cost_model_name m ON m.name_id = a.op_name_id
WHERE NOT p.modelled;
DELETE FROM cost_placed WHERE NOT modelled;
DROP TABLE cost_above;

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
