"""A host thread that launches kernels on one stream, and the trace that the PyTorch profiler would write of it.

Operators run one after another; each launches a kernel, which starts when the launch has reached the device and the
stream is free. Kernel times are arithmetic (`Device.time_us`) with two percent of noise from a fixed seed.
"""

import gzip
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STREAM, HOST_PID, HOST_TID = 7, 4200, 4200


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
