"""Every table of the store, every column with its type, unit and meaning.

These names are public: `diagnose query`, `diagnose tables` and user rules are written against them. Times are
integer nanoseconds from the run's first event; ids are integers; unknown is NULL, never 0 or ''.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """One column: DuckDB type, unit ('' where a unit makes no sense) and one line of meaning."""

    name: str
    type: str
    unit: str
    doc: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table: who writes it (`ingest`, `link`, `model`, `serving`) and its columns in order."""

    name: str
    stage: str
    doc: str
    columns: tuple[Column, ...]

    def ddl(self) -> str:
        """The CREATE TABLE statement for an empty table of this shape."""
        body = ", ".join(f'"{c.name}" {c.type}' for c in self.columns)
        return f'CREATE TABLE IF NOT EXISTS "{self.name}" ({body})'


def make_table(name: str, stage: str, doc: str, *columns: str) -> Table:
    """Columns are written `name TYPE unit | meaning`; `-` stands for no unit."""
    parsed = []
    for line in columns:
        head, meaning = line.split(" | ", 1)
        column, type_, unit = head.split()
        parsed.append(Column(column, type_, "" if unit == "-" else unit, meaning))
    return Table(name, stage, doc, tuple(parsed))


_ACTIVITY = (
    "source_id INTEGER - | trace it came from",
    "device_id INTEGER - | device it ran on; -1 is the CPU of a trace without a GPU",
    "stream BIGINT - | stream or queue; on the CPU the thread",
    "start_ns BIGINT ns | start on the device",
    "dur_ns BIGINT ns | duration on the device",
)

TABLES: tuple[Table, ...] = (
    make_table(
        "name", "ingest", "Dictionary of every event name.",
        "name_id INTEGER - | key", "text VARCHAR - | the name as recorded, possibly empty",
    ),
    make_table(
        "source", "ingest", "One row a trace file.",
        "source_id INTEGER - | key", "path VARCHAR - | file name without its folder",
        "format VARCHAR - | kineto, nsys-sqlite, nsys-parquet", "sha256 VARCHAR - | hash of the file as given",
        "profiler VARCHAR - | kineto, nsys", "profiler_version VARCHAR - | as recorded",
        "framework VARCHAR - | pytorch and its version, engine when an annotation names it",
        "captured_at VARCHAR - | ISO time of the first event when the trace is absolute",
        "rank INTEGER - | rank in the job", "world_size INTEGER - | ranks in the job",
        "origin_ns BIGINT ns | absolute time of 0 in this store, as the trace's clock has it",
        "bytes BIGINT B | size of the trace after decompression",
    ),
    make_table(
        "device", "ingest", "Devices named by the trace, active or not.",
        "device_id INTEGER - | key; -1 is the CPU", "source_id INTEGER - | trace",
        "name VARCHAR - | as reported, may be empty", "arch VARCHAR - | sm_90, gfx942, ...",
        "sm_count INTEGER - | multiprocessors or compute units", "memory_bytes BIGINT B | total memory",
        "bandwidth_bytes_per_s DOUBLE B/s | as the trace reports it (nsys only)",
        "active BOOLEAN - | has at least one activity",
    ),
    make_table(
        "kernel", "link", "Every kernel; on the CPU every operator self interval.",
        "kernel_id BIGINT - | key, shared with gpu_copy, gpu_memset and graph_run", *_ACTIVITY,
        "name_id INTEGER - | kernel name", "grid VARCHAR - | [x,y,z] blocks", "block VARCHAR - | [x,y,z] threads",
        "registers INTEGER - | per thread", "shared_mem INTEGER B | per block",
        "correlation BIGINT - | key to the launch call", "external_id BIGINT - | Kineto external id",
        "graph_id BIGINT - | CUDA graph", "graph_node_id BIGINT - | node of that graph",
        "launch_id BIGINT - | call_id of the launch", "op_id BIGINT - | innermost operator that launched it",
        "step_id INTEGER - | step that owns it",
        "link VARCHAR - | how it was linked: external_id, launch, graph, none (launch known, no op), no_launch",
        "signature_id INTEGER - | key to signature: collective fields recorded on the kernel itself",
    ),
    make_table(
        "gpu_copy", "link", "Copies by the device: host to device, device to host, within and between devices.",
        "kernel_id BIGINT - | key, shared with kernel", *_ACTIVITY, "name_id INTEGER - | as recorded",
        "kind VARCHAR - | HtoD, DtoH, DtoD, PtoP, other", "bytes BIGINT B | bytes moved once",
        "src VARCHAR - | pageable, pinned, device, managed", "dst VARCHAR - | as src",
        "pageable BOOLEAN - | either host side is pageable", "correlation BIGINT - | key to the call",
        "external_id BIGINT - | Kineto external id", "launch_id BIGINT - | call_id", "op_id BIGINT - | operator",
        "step_id INTEGER - | step", "link VARCHAR - | as kernel.link",
        "graph_id BIGINT - | graph it was replayed from", "graph_node_id BIGINT - | node",
    ),
    make_table(
        "gpu_memset", "link", "Memory sets by the device.",
        "kernel_id BIGINT - | key, shared with kernel", *_ACTIVITY, "name_id INTEGER - | as recorded",
        "bytes BIGINT B | bytes set", "correlation BIGINT - | key to the call",
        "external_id BIGINT - | Kineto external id", "launch_id BIGINT - | call_id", "op_id BIGINT - | operator",
        "step_id INTEGER - | step", "link VARCHAR - | as kernel.link",
        "graph_id BIGINT - | graph it was replayed from", "graph_node_id BIGINT - | node",
    ),
    make_table(
        "graph_run", "link", "Graph replays recorded as one opaque row (nsys --cuda-graph-trace=graph).",
        "kernel_id BIGINT - | key, shared with kernel", *_ACTIVITY, "graph_id BIGINT - | graph",
        "correlation BIGINT - | key to the launch", "launch_id BIGINT - | call_id", "step_id INTEGER - | step",
        "link VARCHAR - | as kernel.link",
    ),
    make_table(
        "activity", "link", "All device work: kernel, gpu_copy, gpu_memset and graph_run in one view.",
        "kernel_id BIGINT - | key", "kind VARCHAR - | kernel, copy, memset, graph", *_ACTIVITY,
        "name_id INTEGER - | as recorded", "launch_id BIGINT - | call_id of the launch",
        "op_id BIGINT - | innermost operator that launched it", "step_id INTEGER - | step that owns it",
        "link VARCHAR - | as kernel.link", "graph_id BIGINT - | graph it was replayed from",
        "graph_node_id BIGINT - | node",
    ),
    make_table(
        "host_call", "ingest", "Runtime and driver API calls.",
        "call_id BIGINT - | key", "source_id INTEGER - | trace", "process BIGINT - | process id",
        "thread BIGINT - | thread id, unique with process", "start_ns BIGINT ns | start", "dur_ns BIGINT ns | duration",
        "name_id INTEGER - | API name", "correlation BIGINT - | key to device activity",
        "external_id BIGINT - | Kineto external id",
        "blocking BOOLEAN - | a call that waits for the device by its nature (synchronize, synchronous copy)",
        "op_id BIGINT - | innermost operator on its thread (filled by link)",
    ),
    make_table(
        "op", "link", "Framework operators (Kineto cpu_op; NVTX emit_nvtx ranges).",
        "op_id BIGINT - | key", "parent_op_id BIGINT - | innermost enclosing operator on the thread",
        "source_id INTEGER - | trace", "process BIGINT - | process", "thread BIGINT - | thread",
        "start_ns BIGINT ns | start", "dur_ns BIGINT ns | duration", "self_ns BIGINT ns | dur minus children's dur",
        "name_id INTEGER - | operator name", "external_id BIGINT - | Kineto external id",
        "signature_id INTEGER - | key to signature, NULL where nothing was recorded",
        "input_dims VARCHAR - | JSON: shape per argument", "input_dtypes VARCHAR - | JSON: type per argument",
        "input_strides VARCHAR - | JSON: strides per argument", "scalar_args VARCHAR - | JSON: value per argument",
    ),
    make_table(
        "python_call", "ingest", "Python frames; empty unless they were asked for.",
        "source_id INTEGER - | trace", "process BIGINT - | process", "thread BIGINT - | thread",
        "start_ns BIGINT ns | start", "dur_ns BIGINT ns | duration", "name_id INTEGER - | file, line and function",
    ),
    make_table(
        "signature", "ingest", "Distinct operator arguments.",
        "signature_id INTEGER - | key", "input_dims VARCHAR - | JSON: shape per argument",
        "input_dtypes VARCHAR - | JSON: type per argument", "input_strides VARCHAR - | JSON: strides per argument",
        "scalar_args VARCHAR - | JSON: concrete value per argument",
        "extra VARCHAR - | JSON: collective or Triton fields (Collective name, dtype, nelems, Group size, kernel_file, ...)",
    ),
    make_table(
        "annotation", "ingest", "User annotations, NVTX ranges.",
        "annotation_id BIGINT - | key", "source_id INTEGER - | trace",
        "origin VARCHAR - | user_annotation, gpu_user_annotation, nvtx, nvtx_start_end",
        "process BIGINT - | process (device for gpu_user_annotation)",
        "thread_or_stream BIGINT - | thread (stream for gpu_user_annotation)",
        "start_ns BIGINT ns | start", "dur_ns BIGINT ns | duration", "text VARCHAR - | the text",
    ),
    make_table(
        "sync", "ingest", "Device-side synchronisation records (cuda_sync, SYNCHRONIZATION).",
        "source_id INTEGER - | trace", "device_id INTEGER - | device", "stream BIGINT - | stream",
        "start_ns BIGINT ns | start", "dur_ns BIGINT ns | duration", "kind VARCHAR - | as recorded",
        "wait_on_stream BIGINT - | stream waited for", "correlation BIGINT - | key to the call",
    ),
    make_table(
        "profiler_overhead", "ingest", "Time the profiler says it spent itself.",
        "source_id INTEGER - | trace", "start_ns BIGINT ns | start", "dur_ns BIGINT ns | duration",
        "kind VARCHAR - | as recorded",
    ),
    make_table(
        "memory_event", "ingest", "Allocator events ([memory]).",
        "source_id INTEGER - | trace", "ts_ns BIGINT ns | time", "bytes BIGINT B | allocated, negative when freed",
        "total_allocated BIGINT B | after the event", "total_reserved BIGINT B | after the event",
        "device_type INTEGER - | 0 CPU, 1 CUDA or ROCm", "device_id INTEGER - | device",
    ),
    make_table(
        "counter", "ingest", "Sampled device counters (nsys GPU metrics).",
        "device_id INTEGER - | device",
        "metric VARCHAR - | sm_active, tensor_active, dram_read, dram_write, gpc_clock, pcie_rx, pcie_tx, nvlink_rx, nvlink_tx",
        "ts_ns BIGINT ns | time", "value DOUBLE - | percent of peak; Hz for gpc_clock",
    ),
    make_table(
        "kernel_counter", "ingest", "Nsight Compute counters by kernel name and shape; never its times.",
        "name VARCHAR - | kernel name", "grid VARCHAR - | [x,y,z]", "block VARCHAR - | [x,y,z]",
        "metric VARCHAR - | dram_bytes, flops", "value DOUBLE - | per launch",
    ),
    make_table(
        "ingest_note", "ingest", "What reading the trace met: one row a kind of damage, loss or distortion.",
        "source_id INTEGER - | trace", "code VARCHAR - | kebab-case id", "severity VARCHAR - | info, warning, error",
        "count BIGINT - | how many", "message VARCHAR - | one line for a person",
    ),
    make_table(
        "step", "model", "Engine iterations, by device.",
        "step_id INTEGER - | key", "device_id INTEGER - | device", "phase VARCHAR - | prefill, decode, mixed, encode, draft, other",
        "host_start_ns BIGINT ns | annotation start", "host_end_ns BIGINT ns | annotation end",
        "start_ns BIGINT ns | first start of owned activity", "end_ns BIGINT ns | last end of owned activity",
        "gap_before_ns BIGINT ns | from the previous step's device end", "sequences INTEGER - | sequences in the batch",
        "prefill_sequences INTEGER - | sequences being prefilled", "decode_sequences INTEGER - | sequences decoding",
        "prefill_tokens BIGINT - | prompt tokens computed", "decode_tokens BIGINT - | tokens verified in decode",
        "accepted_tokens BIGINT - | tokens kept; differs from decode_tokens under speculation",
        "context_tokens BIGINT - | KV tokens read by decode",
        "prefill_context_tokens BIGINT - | KV length summed over prefill sequences",
        "prefill_pairs DOUBLE - | query-key pairs of the prefill, causal", "provenance VARCHAR - | annotation form, pattern, window",
        "text VARCHAR - | the annotation",
    ),
    make_table(
        "cost", "model", "FLOPs and bytes of a kernel; no row where nothing defensible is known.",
        "kernel_id BIGINT - | kernel", "flops DOUBLE FLOP | floating-point operations, a multiply-add is 2",
        "bytes_min DOUBLE B | each input once and each output once, encoded size",
        "bytes_low DOUBLE B | lower edge of what DRAM may see", "bytes_high DOUBLE B | upper edge",
        "dtype VARCHAR - | dtype of the math: fp32, tf32, bf16, fp16, fp8, int8, fp4, fp64",
        "role VARCHAR - | what the kernel does in the model or in its op",
        "source VARCHAR - | counter, shape, step, same_kernel, same_sequence, capture, role, bytes (recorded copy size)",
        "shape VARCHAR - | short text of the shape, e.g. 8944x1024 . 1024x2816",
        "strided BOOLEAN - | reads or writes non-contiguous memory",
        "m BIGINT - | rows of the output of a matrix product, NULL for other work", "n BIGINT - | its columns",
        "k BIGINT - | its inner size", "batch BIGINT - | products of a batched one",
        "attention_length DOUBLE - | key length of a fused prefill attention", "head_dim BIGINT - | its head size",
    ),
    make_table(
        "bound", "model", "What binds each kernel.",
        "kernel_id BIGINT - | kernel", "family VARCHAR - | kernel family", "regime VARCHAR - | compute, memory",
        "bound VARCHAR - | compute, hbm, floor, inefficient, communication, copy, unmodelled",
        "reason VARCHAR - | why, in words the trace supports",
        "percent_of_roof DOUBLE % | ideal time on the nearer sustained roof over measured time",
        "ideal_ns DOUBLE ns | time on the sustained roof", "flags VARCHAR - | over_roof, cache_resident, joint, ...",
        "rate_ns DOUBLE ns | time the rate is judged on (shared when kernels overlap)",
        "compute_ns DOUBLE ns | time on the sustained compute roof", "memory_ns DOUBLE ns | time on the sustained memory roof",
    ),
    make_table(
        "segment", "model", "The device's window cut into exclusive pieces; durations sum to the window exactly.",
        "device_id INTEGER - | device", "start_ns BIGINT ns | start", "end_ns BIGINT ns | end",
        "bucket VARCHAR - | exclusive class", "cause VARCHAR - | detail: why idle, which name",
        "kernel_id BIGINT - | the activity, or the one that ends the gap", "step_id INTEGER - | step charged, NULL outside",
        "phase VARCHAR - | phase charged, NULL outside",
    ),
    make_table(
        "serving", "serving", "Engine metrics and log values over time.",
        "ts DOUBLE s | epoch or relative seconds", "metric VARCHAR - | canonical name", "labels VARCHAR - | JSON",
        "value DOUBLE - | value", "origin VARCHAR - | metrics, log, bench",
    ),
    make_table(
        "request", "serving", "Per-request latencies from a benchmark.",
        "request_id INTEGER - | key", "ttft_ms DOUBLE ms | time to first token", "itl_ms DOUBLE ms | mean inter-token latency",
        "e2e_ms DOUBLE ms | end to end", "prompt_tokens INTEGER - | input", "output_tokens INTEGER - | output",
        "start_s DOUBLE s | start, when recorded",
    ),
    make_table(
        "engine_config", "serving", "Settings of the engine, with where each came from.",
        "key VARCHAR - | canonical setting", "value VARCHAR - | as found", "origin VARCHAR - | log, metrics, bench, user, model",
    ),
)  # fmt: skip

BY_NAME: dict[str, Table] = {t.name: t for t in TABLES}
