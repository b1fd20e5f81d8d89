"""One recorded operator call, and what a cost model says about it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from diagnose.costs import dtypes

SECTOR = 32
"""Bytes of one DRAM/L2 sector: the least a strided element costs (CUDA C++ best practices guide,
coalescing)."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor argument: dims, element type (names of `dtypes`), strides in elements (None when not
    recorded)."""

    dims: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        """Logical elements (1 for a 0-d tensor)."""
        return prod(self.dims)

    @property
    def touched(self) -> int:
        """Distinct elements in memory: an expanded dimension (stride 0) counts once."""
        if self.strides is None or len(self.strides) != len(self.dims):
            return self.numel
        if 0 in self.dims:
            return 0
        return prod(d for d, s in zip(self.dims, self.strides, strict=True) if s != 0)

    @property
    def bytes(self) -> float:
        """Bytes of the distinct elements."""
        return self.touched * dtypes.size(self.dtype)

    def layout(self) -> tuple[tuple[int, int], ...]:
        """(dim, stride) of every dimension that moves through memory, outermost first in memory order."""
        if self.strides is None or len(self.strides) != len(self.dims):
            return ()
        pairs = [(d, s) for d, s in zip(self.dims, self.strides, strict=True) if d > 1 and s != 0]
        return tuple(sorted(pairs, key=lambda p: -p[1]))

    @property
    def dense(self) -> bool:
        """Its elements fill one gapless run of memory, in any order of dimensions (True when strides are
        unknown)."""
        expected = 1
        for d, s in reversed(self.layout()):
            if s != expected:
                return False
            expected *= d
        return True

    @property
    def run_bytes(self) -> float:
        """Bytes of its longest contiguous run along its fastest dimension."""
        size = dtypes.size(self.dtype)
        run = 1
        for d, s in reversed(self.layout()):
            if s != run:
                break
            run *= d
        return run * size

    @property
    def sector_bytes(self) -> float:
        """Bytes that its access moves when every contiguous run is padded to whole sectors."""
        if self.strides is None or self.touched == 0:
            return self.bytes
        run = self.run_bytes
        return self.bytes / run * (-(-run // SECTOR) * SECTOR)


def same_order(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one logical shape walk memory in the same order (unknown strides count as the
    same)."""
    if a.strides is None or b.strides is None or len(a.strides) != len(b.strides):
        return True
    axes = [i for i, d in enumerate(a.dims) if d > 1 and a.strides[i] != 0 and b.strides[i] != 0]
    by_a = sorted(axes, key=lambda i: (-a.strides[i], i))  # type: ignore[index]
    by_b = sorted(axes, key=lambda i: (-b.strides[i], i))  # type: ignore[index]
    return by_a == by_b


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Numbers of the engine step that a call ran in; None is unknown."""

    phase: str | None = None
    sequences: int | None = None
    prefill_tokens: int | None = None
    decode_tokens: int | None = None
    context_tokens: int | None = None
    prefill_context_tokens: int | None = None
    prefill_pairs: float | None = None


@dataclass(frozen=True)
class OpCall:
    """One operator call. `dims`, `dtypes`, `strides`, `scalars` are per argument as recorded (tensor lists
    nested); `extra` holds collective and Triton fields; `kernels` the names of the kernels it launched, in
    order."""

    name: str
    dims: tuple[Any, ...] = ()
    dtypes: tuple[str, ...] = ()
    strides: tuple[Any, ...] = ()
    scalars: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()
    step: StepInfo | None = None

    def tensor(self, i: int) -> Tensor | None:
        """Argument `i` as a tensor; None when it is absent, not a tensor, or of an unknown type."""
        if not 0 <= i < len(self.dims) or i >= len(self.dtypes):
            return None
        dtype = dtypes.recorded(self.dtypes[i])
        dims = self.dims[i]
        if dtype is None or not all(isinstance(d, int) and d >= 0 for d in dims):
            return None
        strides = self.strides[i] if i < len(self.strides) else None
        return Tensor(dims, dtype, strides if strides is not None and len(strides) == len(dims) else None)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every plain tensor argument in order (0-d ones included; members of lists not)."""
        found = (self.tensor(i) for i in range(len(self.dims)))
        return tuple(t for t in found if t is not None)

    def tensor_list(self, i: int, dtype: str | None = None) -> tuple[Tensor, ...]:
        """Members of the tensor list at argument `i`. Their type is not recorded: it is `dtype`."""
        if not 0 <= i < len(self.dims) or dtype is None:
            return ()
        strides = self.strides[i] if i < len(self.strides) else ()
        return tuple(
            Tensor(d, dtype, strides[j] if j < len(strides) and isinstance(strides[j], tuple) else None)
            for j, d in enumerate(self.dims[i])
            if isinstance(d, tuple)
        )

    def scalar(self, i: int) -> str:
        """Recorded text of argument `i` ('' when absent)."""
        return self.scalars[i] if 0 <= i < len(self.scalars) else ""

    def flag(self, i: int) -> bool:
        """Whether argument `i` is recorded as true."""
        return self.scalar(i).strip().lower() in ("true", "1")

    def integer(self, i: int) -> int | None:
        """Argument `i` as an integer, None when it is not one."""
        try:
            return int(self.scalar(i))
        except ValueError:
            return None

    def integers(self, i: int) -> tuple[int, ...]:
        """Argument `i` as a list of integers ('[14, 14]'), () when it is not one."""
        try:
            value = json.loads(self.scalar(i))
        except ValueError:
            return ()
        if isinstance(value, int):
            return (value,)
        return tuple(v for v in value if isinstance(v, int)) if isinstance(value, list) else ()


@dataclass(frozen=True, slots=True)
class Part:
    """A helper kernel of an op: which kernels it is (regex on the name), its role, its own FLOPs and bytes.

    `count` is how many kernels may take it (0: any number). Parts are matched in order.
    """

    pattern: str
    role: str
    bytes_min: float
    flops: float = 0.0
    bytes_high: float | None = None
    count: int = 0
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class OpCost:
    """Cost of one operator call.

    flops in FLOP (a multiply-add is 2); bytes_min: each input once and each output once, in encoded size;
    bytes_low and bytes_high: what DRAM may see (None: the measured band); dtype: type of the math, None where
    nothing is computed; shape: short text; role: what the main kernel does; strided: memory is not walked
    contiguously; families: kernel families that may be the main kernel (empty: any that the operator launched
    itself); parts: costs of helper kernels; m, n, k, batch: a matrix product; attention_length, head_dim:
    fused attention over whole sequences.
    """

    flops: float
    bytes_min: float
    dtype: str | None
    shape: str
    role: str
    bytes_low: float | None = None
    bytes_high: float | None = None
    strided: bool = False
    families: frozenset[str] = frozenset()
    parts: tuple[Part, ...] = ()
    m: int | None = None
    n: int | None = None
    k: int | None = None
    batch: int | None = None
    attention_length: float | None = None
    head_dim: int | None = None

    @property
    def low(self) -> float:
        """Lower edge of what DRAM may see."""
        return band(self.bytes_min)[0] if self.bytes_low is None else self.bytes_low

    @property
    def high(self) -> float:
        """Upper edge of what DRAM may see."""
        return max(self.bytes_min, band(self.bytes_min)[1] if self.bytes_high is None else self.bytes_high)

    def scaled(self, share: float) -> "OpCost":
        """The same cost times `share` (for kernels that do one part of an op each)."""
        return replace(
            self,
            flops=self.flops * share,
            bytes_min=self.bytes_min * share,
            bytes_low=None if self.bytes_low is None else self.bytes_low * share,
            bytes_high=None if self.bytes_high is None else self.bytes_high * share,
        )


BAND_SPLIT = 40e6
BAND_SMALL = (0.38, 1.43)
BAND_LARGE = (0.68, 1.75)


def band(bytes_min: float) -> tuple[float, float]:
    """(low, high) DRAM bytes for a kernel whose inputs and outputs are `bytes_min`.

    p5 and p95 of measured over ideal bytes on 1,381 fp32 linears (Nsight Compute, A100): operands may still
    sit in the L2 (low), or be read again and padded to tiles (high). Above 40 MB, the size of that L2, 0.68
    to 1.75; over all sizes 0.38 to 1.43.
    """
    low, high = BAND_LARGE if bytes_min > BAND_SPLIT else BAND_SMALL
    return bytes_min * low, bytes_min * high


def _freeze(value: Any) -> Any:
    return tuple(_freeze(v) for v in value) if isinstance(value, list) else value


def _column(text: str | None) -> list[Any]:
    if not text:
        return []
    try:
        value = json.loads(text)
    except ValueError:
        return []
    return value if isinstance(value, list) else []


def parse_call(
    name: str,
    input_dims: str | None,
    input_dtypes: str | None,
    input_strides: str | None = None,
    scalar_args: str | None = None,
    extra: str | None = None,
) -> OpCall:
    """An OpCall from the JSON columns of table `signature`; columns that are absent or damaged count as
    empty."""
    fields: Any = {}
    if extra:
        try:
            fields = json.loads(extra)
        except ValueError:
            fields = {}
    dims = tuple(_freeze(d) if isinstance(d, list) else () for d in _column(input_dims))
    strides = tuple(_freeze(s) if isinstance(s, list) else () for s in _column(input_strides))
    return OpCall(
        name,
        dims,
        tuple(str(t) for t in _column(input_dtypes)),
        strides,
        tuple(str(s) for s in _column(scalar_args)),
        fields if isinstance(fields, dict) else {},
    )
