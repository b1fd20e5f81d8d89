"""Writes PyTorch-profiler traces of a GPU that was not there: the samples called `generated_*`.

A host thread runs operators one after another; each launches a kernel on one stream, which starts when the
launch has reached the device and the stream is free. Kernel times are arithmetic on the shapes
(`Device.time_us`, ±2 % of noise from a fixed seed), so what limits each trace is known from the way it was
made, not from a tool. Every file says `"generated": true` in its metadata and shares no code with the
package that diagnoses it.
"""

import gzip
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STREAM, HOST_PID, HOST_TID = 7, 4200, 4200
GEMM = "nvjet_tst_{m}x{n}_64x6_1x2_h_bz_coopA_TNT"
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::{op}, std::array<char*, {n}ul> >"
    "(int, at::native::{op}, std::array<char*, {n}ul>)"
)
RMS_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(...)"
)
FLASH_PREFILL = (
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4> >(...)"
)
FLASH_DECODE = (
    "void pytorch_flash::flash_fwd_splitkv_kernel<"
    "pytorch_flash::Flash_fwd_kernel_traits<128, 64, 128, 4> >(...)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl<direct_copy_kernel_cuda> >(...)"
)
GATHER = (
    "void at::native::(anonymous namespace)::"
    "indexSelectSmallIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>(...)"
)
REDUCE = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, ArgMaxOps<float> > >(...)"
)


@dataclass(frozen=True)
class Device:
    """What a kernel can reach here, as assumed by the generator: an H100 SXM at usual fractions of its
    datasheet.
    """

    bytes_per_us: float = 2.95e6  # 2,950 GB/s of 3,350: large weight reads
    flops_per_us: float = 7.0e8  # 700 TFLOP/s of 989 dense bf16
    floor_us: float = 2.3

    def time_us(self, flops: float, nbytes: float, efficiency: float = 1.0) -> float:
        """Kernel time: a floor, plus the slower of arithmetic and traffic."""
        return self.floor_us + max(flops / self.flops_per_us, nbytes / self.bytes_per_us) / efficiency


@dataclass(frozen=True)
class Model:
    """A dense decoder in bf16."""

    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int = 128

    @property
    def qkv_out(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


LLAMA_8B = Model(4096, 14336, 32, 32, 8, 128256)
HALF_LLAMA_8B = Model(4096, 14336, 16, 32, 8, 128256)
QWEN_HALF_B = Model(896, 4864, 24, 14, 2, 151936, 64)


@dataclass
class Host:
    """Costs of the launching thread in microseconds."""

    python_us: float = 3.0  # between two operators
    dispatch_us: float = 2.5  # from the operator's start to its launch
    launch_us: float = 3.2  # cudaLaunchKernel itself
    latency_us: float = 1.6  # from the end of the launch to the device
    wake_us: float = 4.0  # from the end of the device's work to the end of a blocking call that waited for it


@dataclass
class Timeline:
    """Accumulates the events of one host thread and one stream; times in microseconds."""

    device: Device = field(default_factory=Device)
    host: Host = field(default_factory=Host)
    now: float = 1000.0
    free: float = 0.0
    events: list[dict[str, Any]] = field(default_factory=list)
    serial: int = 0
    jitter: random.Random = field(default_factory=lambda: random.Random(7))

    def _event(self, cat: str, name: str, start: float, dur: float, tid: Any, pid: Any, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": start,
                "dur": dur,
                "args": args,
            }
        )

    def op(
        self,
        name: str,
        dims: list[Any],
        types: list[str],
        kernel: str,
        flops: float,
        nbytes: float,
        grid: int = 132,
        efficiency: float = 1.0,
        concrete: list[str] | None = None,
        parent: str | None = None,
    ) -> None:
        """Run one operator that launches one kernel of `flops` and `nbytes`."""
        self.now += self.host.python_us
        start = self.now
        self.serial += 1
        if parent:
            self.serial += 1
        ident = self.serial
        launch = start + self.host.dispatch_us + (1.5 if parent else 0.0)
        end = launch + self.host.launch_us
        correlation = 90000 + ident
        shapes = {"Input Dims": dims, "Input type": types, "Concrete Inputs": concrete or [""] * len(dims)}
        if parent:
            self._event(
                "cpu_op",
                parent,
                start,
                end - start + 1.4,
                HOST_TID,
                HOST_PID,
                **{"External id": ident - 1, "Record function id": 0, "Ev Idx": ident - 1, **shapes},
            )
            start += 1.5
        self._event(
            "cpu_op",
            name,
            start,
            end - start + 0.7,
            HOST_TID,
            HOST_PID,
            **{"External id": ident, "Record function id": 0, "Ev Idx": ident, **shapes},
        )
        self._event(
            "cuda_runtime",
            "cudaLaunchKernel",
            launch,
            self.host.launch_us,
            HOST_TID,
            HOST_PID,
            **{"External id": ident, "cbid": 211, "correlation": correlation},
        )
        self.now = end + (1.4 if parent else 0.7)
        begin = max(self.free, end + self.host.latency_us)
        dur = self.device.time_us(flops, nbytes, efficiency) * self.jitter.uniform(0.98, 1.02)
        self.free = begin + dur + 0.9
        self._event(
            "kernel",
            kernel,
            begin,
            dur,
            STREAM,
            0,
            **{
                "External id": ident,
                "correlation": correlation,
                "device": 0,
                "context": 1,
                "stream": STREAM,
                "queued": 0,
                "registers per thread": 128,
                "shared memory": 0,
                "grid": [grid, 1, 1],
                "block": [256, 1, 1],
            },
        )

    def read_back(self, name: str, dims: list[Any], nbytes: int) -> None:
        """An operator that copies to pageable host memory and waits for the stream."""
        self.now += self.host.python_us
        start = self.now
        self.serial += 1
        ident = self.serial
        correlation = 90000 + ident
        launch = start + self.host.dispatch_us
        copy_start = max(self.free, launch + self.host.launch_us + self.host.latency_us)
        copy_end = copy_start + 1.5 + nbytes / 12e3
        wait = launch + self.host.launch_us + 0.4
        end = copy_end + self.host.wake_us
        self._event(
            "cpu_op",
            name,
            start,
            end + 1.0 - start,
            HOST_TID,
            HOST_PID,
            **{
                "External id": ident,
                "Record function id": 0,
                "Ev Idx": ident,
                "Input Dims": dims,
                "Input type": ["c10::BFloat16"],
                "Concrete Inputs": [""],
            },
        )
        self._event(
            "cuda_runtime",
            "cudaMemcpyAsync",
            launch,
            self.host.launch_us,
            HOST_TID,
            HOST_PID,
            **{"External id": ident, "cbid": 41, "correlation": correlation},
        )
        self._event(
            "cuda_runtime",
            "cudaStreamSynchronize",
            wait,
            end - wait,
            HOST_TID,
            HOST_PID,
            **{"External id": ident, "cbid": 131, "correlation": correlation + 500000},
        )
        self._event(
            "gpu_memcpy",
            "Memcpy DtoH (Device -> Pageable)",
            copy_start,
            copy_end - copy_start,
            STREAM,
            0,
            **{
                "External id": ident,
                "correlation": correlation,
                "device": 0,
                "context": 1,
                "stream": STREAM,
                "bytes": nbytes,
                "memory bandwidth (GB/s)": nbytes / (copy_end - copy_start) / 1e3,
            },
        )
        self.free, self.now = copy_end + 0.9, end + 1.0

    def annotate(self, text: str, start: float, end: float) -> None:
        """A step annotation on the host thread."""
        self._event("user_annotation", text, start, end - start, HOST_TID, HOST_PID)

    def write(self, path: Path, note: str) -> None:
        """Write the trace as Kineto does, gzip without a time stamp so that a rerun gives the same bytes."""
        for event in self.events:
            event["ts"], event["dur"] = round(event["ts"], 3), round(event["dur"], 3)
        document = {
            "schemaVersion": 1,
            "deviceProperties": [
                {
                    "id": 0,
                    "name": "NVIDIA H100 80GB HBM3",
                    "totalGlobalMem": 85018279936,
                    "computeMajor": 9,
                    "computeMinor": 0,
                    "maxThreadsPerBlock": 1024,
                    "maxThreadsPerMultiprocessor": 2048,
                    "regsPerBlock": 65536,
                    "warpSize": 32,
                    "sharedMemPerBlock": 49152,
                    "numSms": 132,
                    "regsPerMultiprocessor": 65536,
                    "sharedMemPerBlockOptin": 232448,
                    "sharedMemPerMultiprocessor": 233472,
                }
            ],
            "record_shapes": 1,
            "with_stack": 0,
            "cuda_runtime_version": 12080,
            "cuda_driver_version": 12080,
            "generated": True,
            "generated_note": note,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": 1767225600000000000,
            "traceEvents": sorted(self.events, key=lambda e: e["ts"]),
        }
        data = json.dumps(document, separators=(",", ":")).encode()
        path.write_bytes(gzip.compress(data, 9, mtime=0))


BF16, LONG = "c10::BFloat16", "long int"


def gemm(t: Timeline, m: int, n: int, k: int, efficiency: float = 1.0) -> None:
    """A linear layer: x (m, k) times the transpose of w (n, k), bf16."""
    tile = 64 if m <= 64 else 128
    grid = max(1, -(-m // tile) * -(-n // 128))
    t.op(
        "aten::mm",
        [[m, k], [k, n]],
        [BF16, BF16],
        GEMM.format(m=tile, n=128),
        2.0 * m * n * k,
        2.0 * (m * k + n * k + m * n),
        grid,
        efficiency,
        parent="aten::linear",
    )


def pointwise(t: Timeline, name: str, inputs: int, shape: list[int], functor: str) -> None:
    """An elementwise operator over contiguous bf16 tensors of one shape."""
    count = 1
    for extent in shape:
        count *= extent
    scalars: list[Any] = [[]] if name == "aten::add" else []
    t.op(
        name,
        [shape] * inputs + scalars,
        [BF16] * inputs + ["Scalar"] * len(scalars),
        ELEMENTWISE.format(op=functor, n=inputs + 1),
        float(count),
        2.0 * count * (inputs + 1),
        max(1, count // 2048),
        concrete=[""] * inputs + ["1"] * len(scalars),
    )


def attention(t: Timeline, model: Model, batch: int, queries: int, context: int) -> None:
    """Scaled dot-product attention, causal when there is more than one query."""
    h, g, d = model.heads, model.kv_heads, model.head_dim
    causal = queries > 1
    pairs = queries * (queries + 1) / 2 if causal else queries * context
    flops = 4.0 * batch * h * d * pairs
    nbytes = 2.0 * batch * d * (2 * h * queries + 2 * g * context)
    dims = [[batch, h, queries, d], [batch, g, context, d], [batch, g, context, d], [], [], [], []]
    blocks = batch * h * -(-queries // 128) if causal else batch * g * max(1, context // 256)
    t.op(
        "aten::_scaled_dot_product_flash_attention",
        dims,
        [BF16] * 3 + ["Scalar"] * 4,
        FLASH_PREFILL if causal else FLASH_DECODE,
        flops,
        nbytes,
        blocks,
        0.62 if causal else 0.95,
        ["", "", "", "0.", str(causal), "False", ""],
        parent="aten::scaled_dot_product_attention",
    )


def layer(t: Timeline, model: Model, batch: int, queries: int, context: int, sync: bool) -> None:
    """One decoder layer, eager."""
    m, hidden = batch * queries, model.hidden
    norm = ([[m, hidden], [], [hidden], []], [BF16, "ScalarList", BF16, "Scalar"])
    kv = model.kv_heads * model.head_dim
    t.op("aten::_fused_rms_norm", *norm, RMS_NORM, 4.0 * m * hidden, 4.0 * m * hidden, m)
    gemm(t, m, model.qkv_out, hidden)
    pointwise(
        t, "aten::mul", 2, [m, (model.heads + model.kv_heads) * model.head_dim], "BinaryFunctor<MulFunctor>"
    )
    t.op(
        "aten::copy_",
        [[m, 2 * kv], [m, 2 * kv], []],
        [BF16, BF16, "Scalar"],
        COPY,
        0.0,
        8.0 * m * kv,
        max(1, m * kv // 256),
        concrete=["", "", "False"],
    )
    if sync:
        t.read_back("aten::item", [[1]], 2)
    attention(t, model, batch, queries, context)
    if sync:
        t.read_back("aten::item", [[1]], 2)
    gemm(t, m, hidden, model.heads * model.head_dim)
    pointwise(t, "aten::add", 2, [m, hidden], "CUDAFunctor_add<c10::BFloat16>")
    if sync:
        t.read_back("aten::item", [[1]], 2)
    t.op("aten::_fused_rms_norm", *norm, RMS_NORM, 4.0 * m * hidden, 4.0 * m * hidden, m)
    gemm(t, m, 2 * model.ffn, hidden)
    if sync:
        t.read_back("aten::item", [[1]], 2)
    pointwise(t, "aten::silu", 1, [m, model.ffn], "silu_kernel")
    pointwise(t, "aten::mul", 2, [m, model.ffn], "BinaryFunctor<MulFunctor>")
    gemm(t, m, hidden, model.ffn)
    pointwise(t, "aten::add", 2, [m, hidden], "CUDAFunctor_add<c10::BFloat16>")


def step(t: Timeline, model: Model, batch: int, queries: int, context: int, sync: bool = False) -> None:
    """One engine iteration with its annotation (the detailed form, which carries KV tokens)."""
    start = t.now
    m = batch * queries
    t.op(
        "aten::embedding",
        [[model.vocab, model.hidden], [m], [], [], []],
        [BF16, LONG, "Scalar", "Scalar", "Scalar"],
        GATHER,
        0.0,
        4.0 * m * model.hidden + 8.0 * m,
        m,
        concrete=["", "", "-1", "False", "False"],
    )
    for _ in range(model.layers):
        layer(t, model, batch, queries, context, sync)
    gemm(t, batch, model.vocab, model.hidden)
    t.op(
        "aten::argmax",
        [[batch, model.vocab], [], []],
        [BF16, "Scalar", "Scalar"],
        REDUCE,
        float(batch * model.vocab),
        2.0 * batch * model.vocab,
        batch,
        concrete=["", "-1", "False"],
    )
    sums = f"sq{m}sk{batch * context}sqsq{batch * queries**2}sqsk{batch * queries * context}"
    none = "sq0sk0sqsq0sqsk0"
    text = (
        f"execute_{m}_context_{batch}({sums})_generation_0({none})"
        if queries > 1
        else f"execute_{m}_context_0({none})_generation_{batch}({sums})"
    )
    t.annotate(text, start, t.now)


def run(
    model: Model, steps: int, batch: int, queries: int, context: int, gap_us: float, sync: bool, host: Host
) -> Timeline:
    """`steps` iterations; the host waits for each step's tokens and then works `gap_us` before the next."""
    t = Timeline(host=host)
    for index in range(steps):
        if index:
            t.read_back("aten::item", [[batch]], 8 * batch)
            t.now += gap_us
        step(t, model, batch, queries, context + (0 if queries > 1 else index), sync)
    return t


def all_generated(folder: Path) -> list[Path]:
    """Write every generated sample into `folder`; returns the files."""
    cases = {
        "generated_h100_decode_hbm": (
            run(LLAMA_8B, 3, 16, 1, 2048, 150.0, False, Host(1.5, 2.0, 2.6)),
            "Llama-3-8B shapes, decode batch 16 at 2,048 tokens: weight and KV reads near the HBM rate",
        ),
        "generated_h100_decode_launch": (
            run(QWEN_HALF_B, 4, 1, 1, 512, 120.0, False, Host(9.0, 5.0, 4.2)),
            "a 0.5B model, eager decode batch 1: kernels of 2 to 5 us launched every 20 us",
        ),
        "generated_h100_prefill_compute": (
            run(LLAMA_8B, 2, 1, 4096, 4096, 150.0, False, Host()),
            "Llama-3-8B shapes, prefill of one 4,096-token prompt: large GEMMs near the sustained bf16 rate",
        ),
        "generated_h100_decode_sync": (
            run(HALF_LLAMA_8B, 3, 16, 1, 512, 60.0, True, Host(1.5, 2.0, 2.6, wake_us=70.0)),
            "16 layers of Llama-3-8B shapes, decode batch 16: four scalars a layer read back, each wait 70 us late",
        ),
    }
    written = []
    for name, (timeline, note) in cases.items():
        path = folder / f"{name}.json.gz"
        timeline.write(path, note)
        written.append(path)
    return written


if __name__ == "__main__":
    for file in all_generated(Path(__file__).parent):
        print(file.name, file.stat().st_size)
