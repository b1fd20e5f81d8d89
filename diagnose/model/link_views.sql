-- The public views over activity_base and op_base.
CREATE OR REPLACE VIEW kernel AS
SELECT kernel_id, source_id, device_id, stream, start_ns, dur_ns, name_id, grid, block, registers, shared_mem,
       correlation, external_id, graph_id, graph_node_id, launch_id, op_id, step_id, link, signature_id
FROM {rows} WHERE kind = 'kernel';

CREATE OR REPLACE VIEW gpu_copy AS
SELECT kernel_id, source_id, device_id, stream, start_ns, dur_ns, name_id, direction AS kind, bytes, src, dst, pageable,
       correlation, external_id, launch_id, op_id, step_id, link, graph_id, graph_node_id
FROM {rows} WHERE kind = 'copy';

CREATE OR REPLACE VIEW gpu_memset AS
SELECT kernel_id, source_id, device_id, stream, start_ns, dur_ns, name_id, bytes, correlation, external_id, launch_id,
       op_id, step_id, link, graph_id, graph_node_id
FROM {rows} WHERE kind = 'memset';

CREATE OR REPLACE VIEW graph_run AS
SELECT kernel_id, source_id, device_id, stream, start_ns, dur_ns, graph_id, correlation, launch_id, step_id, link
FROM {rows} WHERE kind = 'graph';

CREATE OR REPLACE VIEW activity AS
SELECT kernel_id, kind, source_id, device_id, stream, start_ns, dur_ns, name_id, launch_id, op_id, step_id, link, graph_id,
       graph_node_id
FROM {rows};

CREATE OR REPLACE VIEW op AS
SELECT o.op_id, o.parent_op_id, o.source_id, o.process, o.thread, o.start_ns, o.dur_ns, o.self_ns, o.name_id,
       o.external_id, o.signature_id, s.input_dims, s.input_dtypes, s.input_strides, s.scalar_args
FROM op_base o LEFT JOIN signature s USING (signature_id);
