"""Serving evidence without a trace, and eight ranks of which one is late. Loaded by conftest.py."""

from reports_builders import attribution, coverage, device, diagnosis, phase

from diagnose import contract as c


# --- serving evidence alone
# -------------------------------------------------------------------------------------------
def serving_only() -> c.Diagnosis:
    return diagnosis(
        source=[
            c.Source("bench.json", "vllm-bench", "55" * 32, None, None, "vllm 0.6.3"),
            c.Source("server.log", "vllm-log", "56" * 32, None, None, "vllm 0.6.3"),
        ],
        objective="throughput",
        latency={
            "ttft_ms": {
                "count": 1000,
                "mean": 512.0,
                "p50": 301.2,
                "p90": 1200.0,
                "p99": 2912.5,
                "histogram": [
                    {"low": 0, "high": 250, "count": 400},
                    {"low": 250, "high": 500, "count": 310},
                    {"low": 500, "high": 1000, "count": 170},
                    {"low": 1000, "high": 3000, "count": 120},
                ],
            },
            "itl_ms": {"p50": 31.4, "p90": 44.0, "p99": 180.0},
            "e2e_ms": {"p50": 8123.0, "p99": 14_211.0},
            "engine": {
                "ttft_ms": {
                    "mean": 498.0,
                    "p50": 310.0,
                    "p90": None,
                    "p99": None,
                    "source": "engine",
                    "bounds": {"p50": [250, 500], "p90": [1000, 2500], "p99": [2500, None]},
                }
            },
            "disagreements": [
                {
                    "metric": "ttft_ms",
                    "client_mean": 512.0,
                    "engine_mean": 402.0,
                    "difference": 110.0,
                    "where": "the front end",
                }
            ],
            "completed": 1000.0,
            "failed": 3.0,
            "requests_s": 3.2,
            "split_detail": {"ttft": {"missing": ["queue time: the engine's histogram (--metrics)"]}},
            "throughput_tok_s": 1874.3,
            "split": {
                "ttft": {"queue": 180.3, "prefill": 110.2, "other": 10.7},
                "itl": {"decode step": 27.9, "prefill interference": 2.2, "gap between steps": 1.3},
            },
            "provenance": "measured",
        },
        kv={
            "bytes_per_token": 327_680,
            "budget_tokens": 93_872,
            "peak_used_share": 0.994,
            "waiting_max": 128,
            "preemptions": 0,
            "provenance": "measured",
        },
        memory={
            "total_bytes": 85e9,
            "parts": [
                {"name": "weights", "bytes": 35.3e9, "provenance": "derived"},
                {"name": "activations", "bytes": 4.1e9, "provenance": "assumed"},
                {"name": "CUDA graphs", "bytes": 1.3e9, "provenance": "measured"},
                {"name": "KV pool", "bytes": 30.8e9, "provenance": "measured"},
                {"name": "outside the engine's share", "bytes": 8.5e9, "provenance": "derived"},
                {"name": "free", "bytes": 5.0e9, "provenance": "derived"},
            ],
        },
        what_if=[
            {
                "batch": b,
                "step_ms": 22 + 0.11 * b,
                "step_ms_low": 20 + 0.1 * b,
                "step_ms_high": 24 + 0.13 * b,
                "tok_s": 1000 * b / (22 + 0.11 * b),
                "tok_s_low": 1000 * b / (24 + 0.13 * b),
                "tok_s_high": 1000 * b / (20 + 0.1 * b),
                "kv_used_share": b / 75,
                "provenance": "derived",
                "marks": {64: ["measured here"], 75: ["KV wall"]}.get(b, []),
                "slo_itl_ms": 30.0,
            }
            for b in (1, 2, 4, 8, 16, 32, 64, 75, 96, 128)
        ],
        load={
            "running": {
                "value": 64.0,
                "unit": "requests",
                "provenance": "measured",
                "text": "median running under load, log",
            },
            "waiting": {
                "value": 128.0,
                "unit": "requests",
                "provenance": "measured",
                "text": "median waiting under load, log",
            },
            "queue_share": {
                "value": 0.52,
                "unit": "share",
                "provenance": "derived",
                "text": "mean queue time / mean TTFT",
            },
        },
        ceiling={
            "batch": 64,
            "context_tokens": 1300.0,
            "weight_bytes": 35.3e9,
            "kv_bytes": 27.3e9,
            "step_ms": 21.4,
            "tok_s": 2990.0,
            "achieved_tok_s": 1874.3,
            "achieved_share": 1874.3 / 2990.0,
            "at": "the server's level under load",
            "conditions": [{"condition": "below the knee", "holds": True, "detail": "64 tokens a step"}],
            "provenance": "derived",
        },
        useful_batch={
            "batch": 72,
            "batch_at_best": 75,
            "flattens_at": None,
            "stopped_by": "slo_itl",
            "now": 64.0,
            "kv_wall": 75.4,
            "slots": 256,
            "graph_max_batch": 128,
            "crossover": 83.0,
            "slo_itl_ms": 30.0,
            "slo_ttft_ms": 2000.0,
            "prefill_least_ms": 61.0,
            "gain_of_doubling": [1.4, 1.6],
            "provenance": "derived",
        },
        quantization=[
            {
                "method": "fp8",
                "of": "weights",
                "phase": "prefill",
                "tokens": 1300.0,
                "share": 0.97,
                "share_high": 0.97,
                "low": 0.65,
                "mid": 1.0,
                "high": 1.5,
                "unmeasured_share": 0.1,
                "sources": ["shapes on H100", "others"],
                "pool_tokens": 120_000.0,
                "provenance": "derived",
            },
        ],
        what_if_devices=[
            {
                "key": "h200-sxm",
                "device": "NVIDIA H200",
                "device_here": "NVIDIA H100 80GB HBM3",
                "phase": "decode",
                "step_ms_here": 30.0,
                "step_ms": [23.0, 26.0],
                "speedup": [30 / 26, 30 / 23],
                "kept_ms": 6.0,
                "bandwidth_ratio": 1.43,
                "memory_ratio": 1.76,
                "tok_s": [2460.0, 2780.0],
                "tokens_per_price": [2.2e6, 2.5e6],
                "conditions": ["same batch and context"],
                "provenance": "derived",
            },
        ],
        representative={
            "verdict": "no",
            "message": "the traced steps differ from the run in batch",
            "checks": [
                {
                    "quantity": "batch",
                    "unit": "sequences",
                    "traced": 8,
                    "run": {"p50": 61.0},
                    "percentile": 2.0,
                    "inside": False,
                }
            ],
            "notes": ["5 steps were traced: too few to show what happens in one step of a hundred"],
        },
        engine_config=[
            {"key": "max_num_seqs", "value": 256, "origin": "server.log"},
            {"key": "enforce_eager", "value": False, "origin": "server.log"},
        ],
        model={"name": "meta-llama/Llama-3.3-70B-Instruct", "dtype": "bf16"},
        hypotheses=[
            c.Hypothesis(
                id="kv-full",
                limit="kv_capacity",
                phase="decode",
                objective="throughput",
                status="supported",
                confidence=0.88,
                gain=c.Gain("throughput", 1.5, 2.1, "ratio", "end to end"),
                statement="The KV pool is 99.4 % full while up to 128 requests wait.",
                evidence=[
                    c.Evidence("KV pool used, peak", 0.994, "share", 0.95, "above", "measured"),
                    c.Evidence("requests waiting, peak", 128, "requests", 1, "above", "measured"),
                    c.Evidence("preemptions", 0, "count", None, None, "measured"),
                ],
            ),
            c.Hypothesis(
                id="hbm-roof",
                limit="hbm",
                phase="decode",
                objective="throughput",
                status="not_assessed",
                confidence=None,
                gain=None,
                statement="Memory bandwidth was not assessed.",
                missing=["a trace of five decode steps"],
            ),
        ],
        verdict=c.Verdict(
            "kv_capacity",
            "decode",
            "throughput",
            0.88,
            "Throughput is limited by KV-cache capacity: the pool of 93,872 tokens is 99.4 % full with 128 "
            "requests waiting.",
            "scheduling",
            "hbm",
            [],
            ["demand: requests wait throughout"],
            ["kernel limits: no trace was given"],
        ),
    )


# --- eight ranks
# ------------------------------------------------------------------------------------------------------
def eight_ranks() -> c.Diagnosis:
    def rank(r: int) -> c.Diagnosis:
        late = r == 5
        attr = attribution(
            hbm=52_000_000,
            communication=8_000_000,
            comm_wait=0 if late else 3_300_000,
            floor=2_000_000,
            idle_launch=4_700_000 + (3_300_000 if late else 0),
        )
        return diagnosis(
            source=[c.Source(f"rank{r}.json.gz", "kineto", f"{r}{r}" * 32, "kineto", rank=r, world_size=8)],
            devices=[device(attr, id_=0, rank=r)],
            coverage=coverage(62_000_000, 60_000_000),
            phases=[phase("decode", attr, steps=5, limit="imbalance" if late else "hbm", confidence=0.8)],
            verdict=c.Verdict(
                "imbalance" if late else "hbm",
                "decode",
                "step_time",
                0.8,
                "Rank 5 is late: its host launches 5 % slower." if late else "Waits for rank 5.",
            ),
        )

    top = rank(5)
    top.ranks = [rank(r) for r in range(8)]
    top.rank_summary = {
        "ranks": [
            {
                "label": f"rank {r}",
                "rank": r,
                "device": 0,
                "collectives": 73,
                "matched": 73,
                "transfer_ns": 8_000_000,
                "wait_ns": 0 if r == 5 else 3_300_000,
                "wait_share": 0.0 if r == 5 else 3.3 / 70,
                "caused_wait_ns": 23_100_000 if r == 5 else 0,
                "late_in": 71 if r == 5 else 0,
                "skew_ns": 1200 * r,
            }
            for r in range(8)
        ],
        "straggler": {
            "label": "rank 5",
            "pattern": "steady",
            "share_of_wait": 1.0,
            "cost_ns": 3_300_000,
            "cost_share": 3.3 / 70,
            "late_in": 71,
            "of": 73,
            "cause": {"bucket": "idle_launch", "ns": 3_300_000, "detail": "launching", "kind": "host"},
        },
        "pipeline": None,
        "experts": None,
    }
    top.counters = [
        {"device": 0, "metric": metric, "unit": "%", "ts_ns": t * 1_000_000, "value": base + (t * 37 % 11)}
        for metric, base in (("DRAM read", 60), ("tensor active", 12), ("SM active", 75))
        for t in range(60)
    ]
    top.steps = [
        c.StepRow(
            s,
            0,
            "decode",
            s * 14_000_000,
            s * 14_000_000 + 13_200_000,
            800_000,
            16,
            0,
            16,
            16_000 + 16 * s,
            {b: v // 5 for b, v in top.devices[0].attribution_ns.items()},
        )
        for s in range(5)
    ]
    top.steps_total = 5
    return top
