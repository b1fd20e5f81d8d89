"""Steps of a script that knows nothing of us: one step is one call of its model.

The model is the outermost `torch.nn.Module` called, the one with the most parameters when there are several. It is looked
for during warm-up by watching the calls of all modules; then only those of the model's class are watched, so that the
recorded steps pay for one annotation and nothing else. Phase and sizes come from the shapes of the arguments alone:
reading a tensor's values would synchronise with the device.
"""

import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from diagnose.collectors import ranges
from diagnose.collectors.lazy import torch_module
from diagnose.collectors.step_text import Step
from diagnose.collectors.torch_capture import capture

_ENCODER = re.compile(
    r"encoder|bert|vit\b|clip|siglip|forsequenceclassification|formaskedlm|embedding", re.IGNORECASE
)
_CACHE_NAMES = ("past_key_values", "past_key_value", "kv_cache", "cache", "layer_past", "caches")
_TOKEN_NAMES = ("input_ids", "tokens", "ids", "idx", "x", "inputs", "inputs_embeds")


class ForwardSteps:
    """Annotates and counts the calls of a script's model for `cap`.

    `__call__` is wrapped, not hooked: a hook inside a model that was compiled in place becomes part of the compiled
    code, while the call itself always comes through here.
    """

    def __init__(self, cap: capture) -> None:
        self.cap = cap
        self.model: Any = None
        self._sizes: dict[int, tuple[Any, int]] = {}
        self._restore: Callable[[], None] | None = None
        self._local = threading.local()
        self._range: AbstractContextManager[None] | None = None
        self._step = Step()
        self._begin = 0.0
        self._context: tuple[int, int] | None = None  # sequences and tokens held by each, counted by us

    def install(self) -> None:
        """Start looking for the model."""
        self._wrap(torch_module().nn.Module)

    def remove(self) -> None:
        """Take the wrapper away and close a range left open by an exception."""
        if self._restore is not None:
            self._restore()
            self._restore = None
        self._close()

    def _wrap(self, kind: Any) -> None:
        """Send every call of modules of class `kind` through `_call`."""
        original, own = kind.__call__, "__call__" in vars(kind)
        steps = self

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            return steps._call(original, module, args, kwargs)

        def restore() -> None:
            if own:
                kind.__call__ = original
            else:
                del kind.__call__

        kind.__call__ = __call__
        self._restore = restore

    def _call(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        depth = getattr(self._local, "depth", 0)
        if depth or self.cap.done or not self._is_model(module):
            self._local.depth = depth + 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._local.depth = depth
        self._local.depth = 1
        self._open(module, args, kwargs)
        try:
            output = original(module, *args, **kwargs)
        except BaseException:
            self._local.depth = 0
            self._close()
            raise
        self._local.depth = 0
        self._end()
        return output

    def _is_model(self, module: Any) -> bool:
        """Whether this outermost module is the model: during warm-up the largest seen, then the one settled on."""
        if self._settled:
            return module is self.model
        if id(module) not in self._sizes:
            size = sum(t.numel() for t in module.parameters()) + sum(t.numel() for t in module.buffers())
            self._sizes[id(module)] = (module, size)  # the reference keeps the id from being reused
        self.model = max(self._sizes.values(), key=lambda entry: entry[1])[0]
        return self.model is module

    @property
    def _settled(self) -> bool:
        return self.cap.seen >= max(self.cap.settings.warmup - 1, 1)

    def _settle(self) -> None:
        """The model is known: from now on only calls of its class come through here."""
        if self._sizes and self.model is not None:
            self.remove()
            self._wrap(type(self.model))
            self.cap.model = self.cap.model or self.model
            self._sizes = {}

    def _open(self, module: Any, args: Any, kwargs: Any) -> None:
        self._step, self._context = read_step(module, args, kwargs, self._context)
        self._begin = time.perf_counter()
        self._range = ranges.marked(self._step.text())
        self._range.__enter__()

    def _end(self) -> None:
        seconds = time.perf_counter() - self._begin
        self._close()
        self.cap.end_step(self._step, seconds)
        if self.cap.done:
            self.remove()
        elif self._settled:
            self._settle()

    def _close(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None


def read_step(
    module: Any, args: Any, kwargs: Any, counted: tuple[int, int] | None
) -> tuple[Step, tuple[int, int] | None]:
    """Phase and sizes of one call, from shapes only, and the sequence lengths counted so far.

    `counted`: (sequences, tokens each holds) after the call before. Where the cache does not say how long
    it is without touching the device, a decode call is taken to continue the call before it.
    """
    shape = _token_shape(args, kwargs)
    if shape is None:
        return Step("encode" if _is_image(args, kwargs) else "other"), counted
    batch, tokens = shape
    cache = _find_cache(args, kwargs)
    if (
        cache is None
        and _ENCODER.search(type(module).__name__)
        and "decoder" not in type(module).__name__.lower()
    ):
        return Step("encode", batch, batch * tokens), None
    held = _held(cache)
    if held is None:
        mask = kwargs.get("attention_mask")
        if getattr(mask, "ndim", 0) == 2:
            held = int(mask.shape[1]) - tokens
        elif tokens == 1 and counted is not None and counted[0] == batch:
            held = counted[1]
        elif tokens > 1:
            held = 0
    phase = "prefill" if tokens > 1 else "decode"
    if held is None or held < 0:
        return Step(phase, batch, batch * tokens), None
    context = held + tokens
    return Step(phase, batch, batch * tokens, batch * context), (batch, context)


def _token_shape(args: Any, kwargs: Any) -> tuple[int, int] | None:
    """(batch, tokens) of the first argument that holds token ids or their embeddings."""
    named = [kwargs[name] for name in _TOKEN_NAMES if kwargs.get(name) is not None]
    for value in [*args, *named]:
        ndim = getattr(value, "ndim", None)
        if ndim == 2 and not value.is_floating_point():
            return int(value.shape[0]), int(value.shape[1])
        if ndim == 1 and not value.is_floating_point():
            return 1, int(value.shape[0])
        if ndim == 3 and value.is_floating_point():
            return int(value.shape[0]), int(value.shape[1])
    return None


def _is_image(args: Any, kwargs: Any) -> bool:
    values = [*args, *kwargs.values()]
    return any(getattr(v, "ndim", None) == 4 for v in values)


def _find_cache(args: Any, kwargs: Any) -> Any:
    for name in _CACHE_NAMES:
        if kwargs.get(name) is not None:
            return kwargs[name]
    return next((v for v in args if hasattr(v, "get_seq_length")), None)


def _held(cache: Any) -> int | None:
    """Tokens a cache holds per sequence, when it can say so without reading device memory."""
    if cache is None:
        return None
    if isinstance(cache, (list, tuple)) and cache and isinstance(cache[0], (list, tuple)):
        first = cache[0][0]
        return int(first.shape[-2]) if getattr(first, "ndim", 0) == 4 else None
    if "Static" in type(cache).__name__ or not hasattr(cache, "get_seq_length"):
        return None  # a static cache counts its non-zero entries on the device
    length = cache.get_seq_length()
    return length if isinstance(length, int) else None
