"""`--log`: server logs of vLLM, SGLang and TensorRT-LLM, read line by line; lines of no known form are
ignored."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from diagnose.errors import InputError
from diagnose.serving import log_sglang, log_trtllm, log_vllm
from diagnose.serving.evidence_types import Evidence
from diagnose.serving.log_common import LogState

MAX_LINE = 65536
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PARSERS = (log_vllm.parse_line, log_sglang.parse_line, log_trtllm.parse_line)


def lines_of(path: Path) -> Iterator[str]:
    """Lines of a text file, plain or gzip, cut at 64 KiB each, colour codes removed."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if packed else path.open("rb") as stream:
        while line := stream.readline(MAX_LINE):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            yield _ANSI.sub("", text) if "\x1b" in text else text


def looks_like_log(head: str) -> bool:
    """Whether some line of a text is one that a parser knows."""
    state = LogState()
    return any(parse(state, line) for line in head.splitlines()[:2000] for parse in _PARSERS)


def read_log(path: Path) -> Evidence:
    """Samples, settings and notes of a server log. InputError when no line of it is known."""
    state, hits, parser = LogState(), 0, None
    try:
        for line in lines_of(path):
            # a log is of one engine: the parser that knew the last line is asked first
            order = _PARSERS if parser is None else (parser, *(p for p in _PARSERS if p is not parser))
            for parse in order:
                if parse(state, line):
                    hits, parser = hits + 1, parse
                    break
    except (OSError, EOFError) as error:
        if not hits:
            raise InputError(
                f"{path.name}: cannot be read ({type(error).__name__}); give the server's log"
            ) from error
        state.out.note("log-cut", f"{path.name}: the file is damaged; what came before is used", "warning")
    if not hits:
        raise InputError(f"{path.name}: no line of vLLM, SGLang or TensorRT-LLM in it; give the server's log")
    out = state.out
    if state.pools:
        out.set("kv_pool_tokens", f"{sum(state.pools.values()):.0f}", "log")
        out.set("kv_engines", len(state.pools), "log")
    elif out.setting("num_gpu_blocks"):
        # V0 prints blocks only; its block size is 16 tokens unless a setting says otherwise
        size = out.setting("block_size") or "16"
        if size.isdigit():
            out.set("kv_pool_tokens", int(out.setting("num_gpu_blocks") or 0) * int(size), "log")
            out.set("kv_pool_from_blocks", "true", "log")
    if state.boot:
        out.note(
            "log-restarts", f"{path.name}: {state.boot + 1} server starts in the log; the last one is used"
        )
    out.engines = out.engines[:1]
    return out
