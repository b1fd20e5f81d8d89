#!/usr/bin/env bash
# One run for any machine with a GPU, torch and python: calibrate it, then capture the same transformer at several
# batches and contexts, eager and as CUDA graphs, in bf16 and quantised, with the PyTorch profiler and, where there is one,
# Nsight Systems. Under 8 minutes. Scrubbed traces (no host, paths or command lines), each under 16 MB, and
# summary.json with the unprofiled step times go to $OUT.
#
#   OUT=/tmp/out benchmarks/gpu_run.sh              # the GPU, or a tiny model on the CPU where there is none
#   OUT=/tmp/out BUNDLE=1 benchmarks/gpu_run.sh     # traces bundled into a few .tar files
#
# PYTHON: interpreter (default python3). SECONDS_MAX: stop starting captures after so many seconds (default 420).
set -euo pipefail
cd "$(dirname "$0")/.."
: "${OUT:?set OUT to the folder for the results}"
mkdir -p "$OUT"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
exec timeout 480 "${PYTHON:-python3}" benchmarks/gpu_run.py --out "$OUT" --seconds "${SECONDS_MAX:-420}" \
    ${BUNDLE:+--bundle}
