"""The device waits for input: data loading or preprocessing on the host between batches.

Evidence: idle time inside data-loader annotations, in a few long gaps; pageable copies right after.

Refuted by: idle time inside steps, a queue of prepared batches.
"""

from diagnose.rules.base import OUTSIDE, Assessment, Context, Need, Row, Rule, Threshold
from diagnose.rules.common import fact, ms, of_run, share_of

THRESHOLDS = {
    "idle_share": Threshold(
        0.08, "of time", "above", "same floor as the other host limits: less is not worth a change"
    ),
}


def assess(row: Row, context: Context, thresholds: dict[str, Threshold]) -> Assessment:
    """Share of the time the device waits in the input pipeline."""
    idle = row["idle_ns"] or 0
    share = share_of(idle, context)
    strong = share >= thresholds["idle_share"].value
    return Assessment(
        status="supported" if strong else "refuted",
        share=share,
        recover_ns=(0.9 * idle, float(idle)),
        statement=(
            f"the device waits {of_run(idle, context)} for input: {row['top_cause']}"
            if strong
            else "no input pipeline holds the device up"
        ),
        evidence=[
            fact("idle in the input pipeline", 100 * share, "% of observed time", note=ms(idle)),
            fact(
                "gaps of that kind",
                row["gaps"],
                "gaps",
                note=f"longest {ms(row['longest_ns'])}" if row["longest_ns"] else None,
            ),
            fact("annotation", row["top_cause"], ""),
        ],
        parts=("idle_input",),
    )


RULE = Rule(
    id="host-input",
    limit="host_input",
    title="Host input pipeline",
    phases=("*", OUTSIDE),
    objectives=("step_time", "throughput", "e2e"),
    sql="host_input.sql",
    thresholds=THRESHOLDS,
    assess=assess,
    experiments=("cached-input",),
    required=(Need("host_events", "a trace with CPU activity"), Need("loader", "annotations around the input pipeline (torch's DataLoader makes its own)")),
    refuters=("idle time lies inside steps", "batches are ready before they are needed"),
)  # fmt: skip
