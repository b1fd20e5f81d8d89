"""The KV cache pool is full, so requests wait although the device could batch more.

Evidence: KV usage near 1 with requests waiting below the batch limit; preemptions; pool size against resident tokens.

Refuted by: usage well below 1, running at the slot cap, an empty queue. A kernel trace alone shows none of these.
"""

from diagnose.rules.base import Assessment, Context, Need, Row, Rule

CAPTURE = (
    "engine metrics or log beside the trace: --metrics FILE (vLLM kv_cache_usage_perc, num_requests_waiting; "
    "SGLang token_usage, num_queue_reqs) or --log FILE"
)
THRESHOLDS: dict[str, object] = {}


def assess(row: Row, context: Context, thresholds: object) -> Assessment:
    """Only reached with serving evidence; the serving rules decide it there."""
    return Assessment(status="not_assessed", missing=["engine metrics or the engine log"])


RULE = Rule(
    id="kv-capacity",
    limit="kv_capacity",
    title="KV cache capacity",
    phases=("run",),
    objectives=("throughput", "ttft", "e2e", "itl", "step_time"),
    sql="communication.sql",
    thresholds={},
    assess=assess,
    experiments=("half-batch",),
    required=(Need("serving", CAPTURE),),
    refuters=("usage below 0.7", "running at the slot cap", "nobody waiting"),
    cases=("Qwen2-7B on A100, pool 93,872 against 464,848 tokens: 2,057 and 4,443 tok/s",),
)  # fmt: skip
