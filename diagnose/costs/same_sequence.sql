-- Open kernels whose neighbours match those of reference kernels that all did one kind of work.
CREATE OR REPLACE TABLE cost_around AS
SELECT kernel_id, hash({around}) AS around
FROM cost_sequence
WINDOW w AS (PARTITION BY device_id, stream ORDER BY start_ns, kernel_id)
QUALIFY {present};

CREATE OR REPLACE TABLE cost_settled AS
WITH agreed AS (
    SELECT k.name_id, k.grid, k.block, a.around, min(k.kernel_id) AS example, median(k.dur_ns) AS typical_ns
    FROM cost_kind k JOIN cost_around a USING (kernel_id)
    GROUP BY ALL HAVING count(DISTINCT k.kind) = 1
)
SELECT o.kernel_id, r.example
FROM cost_open o
JOIN cost_around a USING (kernel_id)
JOIN agreed r
    ON r.name_id = o.name_id AND r.grid = o.grid AND r.block IS NOT DISTINCT FROM o.block AND r.around = a.around
WHERE greatest(o.dur_ns, r.typical_ns) <= {short_ns}
      OR greatest(o.dur_ns, r.typical_ns) <= {ratio} * least(o.dur_ns, r.typical_ns);

INSERT INTO cost BY NAME
SELECT s.kernel_id, c.* EXCLUDE (kernel_id, source), 'same_sequence' AS source
FROM cost_settled s JOIN cost c ON c.kernel_id = s.example;

DELETE FROM cost_open WHERE kernel_id IN (SELECT kernel_id FROM cost_settled);
DROP TABLE cost_settled;
DROP TABLE cost_around;
