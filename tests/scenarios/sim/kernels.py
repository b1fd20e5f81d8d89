"""What a launch is: its operator, its work, its grid; and how the model is run."""

from dataclasses import dataclass

from sim.hardware import Work

TORCH = {
    "bf16": "c10::BFloat16",
    "fp16": "c10::Half",
    "fp32": "float",
    "fp8": "c10::Float8_e4m3fn",
    "int4": "int",
}


@dataclass(frozen=True, slots=True)
class Op:
    """A framework operator with what `record_shapes` would record."""

    name: str
    dims: tuple[object, ...] = ()
    types: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    parent: "Op | None" = None
    strided: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """One device launch: its operator, its work and its grid. `payload` is set for collectives only."""

    role: str
    name: str
    op: Op
    work: Work
    blocks: int
    threads: int = 256
    payload: float = 0.0
    pdl: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """How the model is run."""

    style: str = "vllm"  # vllm | hf | sglang
    weights: str = "bf16"  # bf16 | fp8 | marlin (fused 4-bit) | awq (dequantise, then multiply) | int8 (mixed decomposition with outliers)
    kv_dtype: str = "bf16"
    tp: int = 1
    gemm_quality: float = 1.0  # below 1: a fallback kernel
    attention_quality: float = 1.0
    fused: bool = True  # False: the norm and activation chains are separate elementwise kernels
    chain: float = (
        1.0  # time of unfused elementwise kernels is scaled by this (a relief that leaves the launches)
    )
    strided: float = 1.0  # quality of elementwise kernels (below 1: uncoalesced access)
    sampler_sort: bool = False
    kv_concat: bool = False  # the KV cache grows by concatenation, per layer and step
