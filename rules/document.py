"""A rule's documentation, from its declaration: what `diagnose rules ID` prints and docs/rules/ holds."""

from pathlib import Path

from diagnose.rules.base import Rule
from diagnose.rules.experiments import BY_ID


def document(rule: Rule) -> str:
    """Markdown of one rule."""
    lines = [
        f"# {rule.id}",
        "",
        f"Limit: `{rule.limit}`. Phases: {', '.join(rule.phases)}. Objectives: {', '.join(rule.objectives)}.",
        "",
        rule.doc,
        "",
    ]
    if rule.required or rule.optional:
        lines += ["## Needs", ""]
        lines += [f"- `{n.what}`: {n.capture}" for n in rule.required]
        lines += [f"- `{n.what}` (optional): {n.capture}" for n in rule.optional]
        lines.append("")
    if rule.thresholds:
        lines += [
            "## Thresholds",
            "",
            "| name | value | supports when | origin |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| {name} | {t.value:g} {t.unit} | {t.direction} | {t.origin} |"
            for name, t in rule.thresholds.items()
        ]
        lines.append("")
    if rule.refuters:
        lines += ["## Refuted by", "", *[f"- {r}" for r in rule.refuters], ""]
    lines += ["## Experiments", ""]
    for name in rule.experiments:
        change = BY_ID[name]
        lines.append(
            f"- **{name}**: {change.change}. Metric: {change.metric}. Cost: {change.cost}. Risk: {change.risk}."
        )
    lines.append("")
    if rule.cases:
        lines += ["## Real cases", "", *[f"- {c}" for c in rule.cases], ""]
    return "\n".join(lines)


def write_all(folder: Path) -> list[Path]:
    """Write one page a shipped rule into `folder`; returns the paths."""
    from diagnose.rules.registry import shipped
    from diagnose.rules.serving_rules import SERVING_RULES, document_serving

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for serving in SERVING_RULES:
        path = folder / f"{serving.id}.md"
        path.write_text(document_serving(serving) + "\n", encoding="utf-8")
        written.append(path)
    for rule in shipped():
        path = folder / f"{rule.id}.md"
        path.write_text(document(rule) + "\n", encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    import sys

    for page in write_all(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/rules")):
        print(page)
