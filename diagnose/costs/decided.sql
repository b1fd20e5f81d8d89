-- Open kernels take what their surroundings mean, unless their duration contradicts it.
INSERT INTO cost_taken
SELECT a.kernel_id, d.kind, 'same_sequence'
FROM cost_around a
JOIN cost_decided d
    ON d.name_id = a.name_id AND d.grid = a.grid AND d.block IS NOT DISTINCT FROM a.block AND d.around_id = a.around_id
JOIN cost_reference r
    ON r.name_id = a.name_id AND r.grid = a.grid AND r.block IS NOT DISTINCT FROM a.block AND r.kind = d.kind
WHERE a.kind IS NULL
      AND (greatest(a.dur_ns, r.typical_ns) <= {short_ns}
           OR greatest(a.dur_ns, r.typical_ns) <= {ratio} * least(a.dur_ns, r.typical_ns));

-- The same work in another layout: the reference nearest in time.
INSERT INTO cost_taken
SELECT o.kernel_id, arg_min(d.kind, abs(ln(greatest(o.dur_ns, 1) / greatest(r.typical_ns, 1)))), 'same_kernel'
FROM cost_open o
JOIN cost_decided d ON d.name_id = o.name_id AND d.grid = o.grid AND d.block IS NOT DISTINCT FROM o.block
JOIN cost_reference r
    ON r.name_id = o.name_id AND r.grid = o.grid AND r.block IS NOT DISTINCT FROM o.block AND r.kind = d.kind
ANTI JOIN cost_taken t ON t.kernel_id = o.kernel_id
WHERE d.around_id IS NULL
      AND (greatest(o.dur_ns, r.typical_ns) <= {short_ns}
           OR greatest(o.dur_ns, r.typical_ns) <= {ratio} * least(o.dur_ns, r.typical_ns))
GROUP BY o.kernel_id;
