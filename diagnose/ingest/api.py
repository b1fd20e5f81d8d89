"""What CUDA and HIP API names say: which calls wait for the device by their nature, which launch a graph.

SQL conditions shared by all adapters. `cudaFree` and `cudaMalloc` synchronise implicitly
and only at times: they are not called blocking. An asynchronous copy of pageable memory does block; only the device
record tells, so `diagnose.model.link` adds it.
"""

_SYNC = r"^(cuda|hip|cu)(Device|Stream|Event|Ctx|Thread)?Synchronize(_ptsz|_ptds)?(_v\d+)?$"
_COPY = r"^(cuda|hip|cu)Memcpy\w*$"
_NOT_BLOCKING = r"Async|Batch|DtoD"
_GRAPH = r"^(cuda|hip|cu)GraphLaunch"


def blocking_sql(column: str) -> str:
    """A SQL condition: the API named in `column` waits for the device by its nature."""
    return (
        f"(regexp_matches({column}, '{_SYNC}') OR {column} = 'hipMemcpyWithStream' OR "
        f"(regexp_matches({column}, '{_COPY}') AND NOT regexp_matches({column}, '{_NOT_BLOCKING}')))"
    )


def graph_launch_sql(column: str) -> str:
    """A SQL condition: the API named in `column` replays a graph."""
    return f"regexp_matches({column}, '{_GRAPH}')"


BLOCKING_SQL = blocking_sql("name")
