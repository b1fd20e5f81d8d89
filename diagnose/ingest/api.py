"""What CUDA and HIP API names say: which calls wait for the device by their nature, which launch a graph.

A SQL expression over a column `name`, shared by all adapters. `cudaFree` and `cudaMalloc` synchronise implicitly
and only at times: they are not called blocking. An asynchronous copy of pageable memory does block; only the device
record tells, so `diagnose.model.link` adds it.
"""

_SYNC = r"^(cuda|hip|cu)(Device|Stream|Event|Ctx|Thread)?Synchronize(_ptsz|_ptds)?(_v\d+)?$"
_COPY = r"^(cuda|hip|cu)Memcpy\w*$"
_NOT_BLOCKING = r"Async|Batch|DtoD"
_GRAPH = r"^(cuda|hip|cu)GraphLaunch"

BLOCKING_SQL = (
    f"(regexp_matches(name, '{_SYNC}') OR (name = 'hipMemcpyWithStream') OR "
    f"(regexp_matches(name, '{_COPY}') AND NOT regexp_matches(name, '{_NOT_BLOCKING}')))"
)
GRAPH_LAUNCH_SQL = f"regexp_matches(name, '{_GRAPH}')"
