"""The fields of a Kineto event that are read, and the statement that turns a chunk of events into a Parquet part.

Times are DECIMAL: an epoch in microseconds with a nanosecond fraction does not fit a double. Arguments whose shape
varies are kept as JSON text.
"""

import re

# JSON name -> DuckDB type, of what lies under "args". DuckDB compares struct members without case, so `Bytes` of
# allocator events is renamed before reading (see `rename`).
INT_ARGS: dict[str, str] = {
    "External id": "BIGINT", "correlation": "BIGINT", "device": "BIGINT", "stream": "BIGINT", "bytes": "BIGINT",
    "registers per thread": "BIGINT", "shared memory": "BIGINT", "graph id": "BIGINT", "graph node id": "BIGINT",
    "wait_on_stream": "BIGINT", "alloc_bytes": "BIGINT", "Total Allocated": "BIGINT", "Total Reserved": "BIGINT",
    "Device Type": "BIGINT", "Device Id": "BIGINT",
}  # fmt: skip
EXTRA_ARGS: tuple[str, ...] = (
    "Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size", "In split size", "Out split size",
    "Process Group Name", "Process Group Description", "Process Group Ranks", "Rank", "Src Rank", "Dst Rank",
    "kernel_name", "kernel_backend", "kernel_hash", "num_warps", "num_stages", "kernel_kwargs",
)  # fmt: skip
TEXT_ARGS: tuple[str, ...] = (
    "grid", "block", "Input Dims", "Input type", "Input Strides", "Concrete Inputs", "cuda_sync_kind", "kernel_file",
    "kernel", *EXTRA_ARGS,
)  # fmt: skip

KINDS: dict[str, tuple[str, ...]] = {
    "op": ("cpu_op", "operator"),
    "call": (
        "cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "xpu_runtime", "xpu_driver",
        "mtia_runtime", "privateuse1_runtime", "privateuse1_driver",
    ),
    "kernel": ("kernel", "concurrent_kernel", "mtia_ccp_events"),
    "copy": ("gpu_memcpy", "memcpy"),
    "memset": ("gpu_memset", "memset"),
    "annotation": ("user_annotation",),
    "gpu_annotation": ("gpu_user_annotation",),
    "sync": ("cuda_sync",),
    "overhead": ("overhead",),
    "memory": ("cpu_instant_event",),
    "python": ("python_function",),
    "ignored": ("trace", "external id", "external_id", "", "none"),
}  # fmt: skip

_RENAMES: tuple[tuple[bytes, re.Pattern[bytes], bytes], ...] = tuple(
    (old, re.compile(b'"' + old + rb'"\s*:'), b'"' + new + b'":')
    for old, new in (
        (b"Bytes", b"alloc_bytes"),
        (b"external id", b"External id"),
        (b"Input dims", b"Input Dims"),
    )
)


def rename(body: bytes) -> bytes:
    """Rename keys that differ only by case. Sound on bytes: quotes inside JSON strings are escaped."""
    for old, pattern, new in _RENAMES:
        if b'"' + old + b'"' in body:
            body = pattern.sub(new, body)
    return body


def _struct() -> str:
    fields = [f'"{name}" {kind}' for name, kind in INT_ARGS.items()]
    fields += [f'"{name}" VARCHAR' for name in TEXT_ARGS]
    return f"STRUCT({', '.join(fields)})"


COLUMNS = (
    "{'ph': 'VARCHAR', 'cat': 'VARCHAR', 'name': 'VARCHAR', 'pid': 'VARCHAR', 'tid': 'VARCHAR', "
    "'ts': 'DECIMAL(20,3)', 'dur': 'DECIMAL(20,3)', 'args': '" + _struct() + "'}"
)

_LEAST_BUFFER = 1 << 20
_EXTRA = ", ".join(f"'{name}', args.\"{name}\"" for name in EXTRA_ARGS)
_CATEGORY = {category: kind for kind, categories in KINDS.items() for category in categories}
_KIND = (
    "CASE lower(cat) "
    + " ".join(f"WHEN '{category}' THEN '{kind}'" for category, kind in _CATEGORY.items())
    + " END"
)

_SELECT = f"""
SELECT * EXCLUDE (cat), CASE WHEN kind IS NULL THEN coalesce(cat, '') END AS unknown,
    CASE WHEN coalesce(input_dims, input_dtypes, input_strides, scalar_args, extra) IS NOT NULL
    THEN hash(input_dims, input_dtypes, input_strides, scalar_args, extra) END AS signature
FROM (SELECT
    {_KIND} AS kind, cat, name, pid, tid,
    try_cast(ts * 1000 AS BIGINT) AS ts, try_cast(dur * 1000 AS BIGINT) AS dur,
    nullif(args."External id", 0) AS external_id, nullif(args.correlation, 0) AS correlation,
    try_cast(args.device AS INTEGER) AS device, args.stream AS stream, args.bytes AS bytes,
    args.grid AS grid, args.block AS block,
    try_cast(args."registers per thread" AS INTEGER) AS registers, try_cast(args."shared memory" AS INTEGER) AS shared_mem,
    args."graph id" AS graph_id, args."graph node id" AS graph_node_id,
    args.cuda_sync_kind AS sync_kind, args.wait_on_stream AS wait_on_stream,
    args."Input Dims" AS input_dims, args."Input type" AS input_dtypes, args."Input Strides" AS input_strides,
    args."Concrete Inputs" AS scalar_args, args.kernel AS launched,
    CASE WHEN args."Collective name" IS NOT NULL OR args.kernel_backend IS NOT NULL OR args.kernel_file IS NOT NULL
         THEN CAST(json_merge_patch('{{}}', json_object(
             {_EXTRA}, 'kernel_file', regexp_extract(args.kernel_file, '[^/\\\\]*$'))) AS VARCHAR) END AS extra,
    args.alloc_bytes AS alloc_bytes, args."Total Allocated" AS total_allocated,
    args."Total Reserved" AS total_reserved, try_cast(args."Device Type" AS INTEGER) AS memory_device_type,
    try_cast(args."Device Id" AS INTEGER) AS memory_device_id
FROM read_json('@PATH', format = 'array', columns = {COLUMNS},
               maximum_object_size = @LIMIT)
WHERE ph IN ('X', 'i', 'I') AND (cat IS NOT NULL OR name = '[memory]'))
"""


def select(path: str, size: int) -> str:
    """The statement that reads the chunk file `path` of `size` bytes."""
    return _SELECT.replace("@PATH", path).replace("@LIMIT", str(max(size, _LEAST_BUFFER)))
