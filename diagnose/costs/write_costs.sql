INSERT INTO cost BY NAME
SELECT t.kernel_id, v.* EXCLUDE (kind), t.source
FROM cost_taken t
JOIN cost_value v ON v.kind = t.kind;
