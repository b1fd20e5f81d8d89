"""How each serving engine is recognised, profiled over HTTP, and asked what it serves.

vLLM: `POST /start_profile` and `/stop_profile`, there only when the server was started with a profiler
configured; traces go to the folder configured then. SGLang: the same paths with a body that chooses folder
and options. TensorRT-LLM: no such endpoints (its profiler is set by the environment at start); its
`/metrics` are iteration statistics in JSON, handed out once each.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnose.collectors.runfolder import public_config
from diagnose.collectors.serve_http import Server, ServerError
from diagnose.errors import UsageError

VLLM_HINT = (
    "start the server with --profiler-config "
    '\'{"profiler": "torch", "torch_profiler_dir": "DIR", "torch_profiler_record_shapes": true, '
    '"torch_profiler_with_stack": false}\' (up to 0.12: VLLM_TORCH_PROFILER_DIR=DIR '
    "VLLM_TORCH_PROFILER_RECORD_SHAPES=1 VLLM_TORCH_PROFILER_WITH_STACK=0)"
)
TRTLLM_HINT = (
    "TensorRT-LLM has no profiler endpoint: start it with TLLM_TORCH_PROFILE_TRACE=FILE and "
    "TLLM_PROFILE_START_STOP=A-B, and give the file to diagnose beside this folder"
)


@dataclass(frozen=True)
class Engine:
    """One engine: metric prefix, and the body of `/start_profile` (None: it has no such endpoint)."""

    name: str
    prefix: str
    start_body: Callable[[Path | None], dict[str, Any] | None] | None
    hint: str
    info_paths: tuple[str, ...]


def _sglang_body(folder: Path | None) -> dict[str, Any]:
    body: dict[str, Any] = {"activities": ["CPU", "GPU"], "record_shapes": True, "with_stack": False}
    if folder is not None:
        body["output_dir"] = str(folder)
    return body


ENGINES: dict[str, Engine] = {
    "vllm": Engine("vllm", "vllm:", lambda folder: None, VLLM_HINT, ("/server_info?config_format=json",)),
    "sglang": Engine("sglang", "sglang:", _sglang_body, "the server refused to profile; see its log",
                     ("/get_server_info", "/server_info", "/get_model_info", "/model_info")),
    "trtllm": Engine("trtllm", "", None, TRTLLM_HINT, ()),
}  # fmt: skip


def detect(server: Server, wanted: str | None) -> tuple[Engine, str | None]:
    """The engine behind `server`, and its `/metrics` text if it had one. UsageError when it cannot be told.

    Told by metric names, then by endpoints only that engine has.
    """
    if wanted is not None and wanted not in ENGINES:
        raise UsageError(f"--engine {wanted}: one of {', '.join(ENGINES)}")
    problems: list[str] = []
    text: str | None = None
    try:
        text = server.get("/metrics")
    except ServerError as error:
        problems.append(str(error))
        if error.status is None and not _answers(server):
            raise UsageError(f"{server.base}: no server answers there ({error}); check --url") from None
    if wanted is not None:
        return ENGINES[wanted], text
    for engine in ENGINES.values():
        if text and engine.prefix and re.search(rf"^(# \w+ )?{engine.prefix}", text, re.MULTILINE):
            return engine, text
    if text is not None and text.lstrip().startswith(("[", "{")):
        return ENGINES["trtllm"], text
    for path, name in (("/get_server_info", "sglang"), ("/get_model_info", "sglang"), ("/version", "vllm")):
        try:
            server.get_json(path)
        except ServerError:
            continue
        return ENGINES[name], text
    raise UsageError(
        f"{server.base}: neither vLLM, SGLang nor TensorRT-LLM by its metrics or endpoints"
        f"{' (' + problems[0] + ')' if problems else ''}; name it with --engine"
    )


def _answers(server: Server) -> bool:
    for path in ("/health", "/v1/models", "/version"):
        try:
            server.get(path)
        except ServerError as error:
            if error.status is not None:
                return True
        else:
            return True
    return False


# Settings that could name a person, a place or a secret, whatever they hold.
_PRIVATE = re.compile(
    r"api_?key|secret|passw|credential|(^|_)(hf_|auth|access_|admin_)?token$|host|addr|(^|_)ip$|url|uri|path|dir$|"
    r"folder|file|user|environ|header|cmd|argv|command|cert|ssl|node|uuid|session|template|pid",
    re.IGNORECASE,
)


def public_settings(values: Any) -> dict[str, Any]:
    """A server's settings without secrets, addresses and paths; nested ones flattened one level."""
    cleaned = public_config(values) or {}
    flat: dict[str, Any] = {}
    for key, value in cleaned.items():
        if _PRIVATE.search(key):
            continue
        if isinstance(value, dict):
            inner = {
                k: v for k, v in value.items() if not _PRIVATE.search(k) and not isinstance(v, (dict, list))
            }
            flat.update({f"{key}.{k}": v for k, v in inner.items()})
        elif not isinstance(value, list):
            flat[key] = value
    return flat


def public_model(name: str) -> str:
    """A model's name; of a local path only the last part."""
    if name.startswith(("/", "~", ".")) or name.count("/") > 1 or "\\" in name:
        return re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    return name


def describe(server: Server, engine: Engine) -> dict[str, Any]:
    """What is served and how: engine, version, model, settings. What the server does not tell is left out."""
    found: dict[str, Any] = {"engine": engine.name}
    try:
        version = server.get_json("/version")
        if isinstance(version, dict) and isinstance(version.get("version"), str):
            found["version"] = version["version"][:60]
    except ServerError:
        pass
    try:
        models = server.get_json("/v1/models")
        first = models["data"][0]
        found["model"] = public_model(str(first.get("root") or first["id"]))
        if isinstance(first.get("max_model_len"), int):
            found["max_model_len"] = first["max_model_len"]
    except (ServerError, KeyError, IndexError, TypeError, AttributeError):
        pass
    settings: dict[str, Any] = {}
    for path in engine.info_paths:
        try:
            answer = server.get_json(path)
        except ServerError:
            continue
        if isinstance(answer, dict):
            found.setdefault(
                "model", public_model(str(answer["model_path"])) if "model_path" in answer else None
            )
            if isinstance(answer.get("version"), str):
                found.setdefault("version", answer["version"][:60])
            for key, value in public_settings(answer.get("server_args", answer)).items():
                settings.setdefault(key, value)
            # vLLM answers {"vllm_config": {group: {name: value}}}: one level deeper than SGLang
            for values in (answer, answer.get("vllm_config")):
                for key, value in public_settings(values).items():
                    settings.setdefault(key, value)
    if settings:
        found["settings"] = settings
    return {key: value for key, value in found.items() if value is not None}
