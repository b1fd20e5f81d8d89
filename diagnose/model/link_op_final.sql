-- Operators with their nesting: link_nesting(op_id, parent_op_id, self_ns).
SELECT o.op_id, n.parent_op_id, o.source_id, o.process, o.thread, o.start_ns, o.dur_ns, n.self_ns, o.name_id,
       o.external_id, o.signature_id
FROM link_op o JOIN link_nesting n USING (op_id)
