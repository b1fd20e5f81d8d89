"""`diagnose rules`, `diagnose roofs`: what the tool knows."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diagnose.cli.app import app
from diagnose.errors import UsageError


@app.command("rules")
def rules(
    rule_id: Annotated[str | None, typer.Argument(metavar="ID", show_default=False, help="One rule.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--rules", metavar="DIR", show_default=False, help="Folder with rules of your own."),
    ] = None,
) -> int:
    """List the rules, or explain one: evidence, thresholds and their origin, refuters, experiments, real cases."""
    from diagnose.rules import registry
    from diagnose.rules.document import document
    from diagnose.rules.serving_rules import SERVING_RULES, document_serving

    known, broken = registry.load(folder)
    for line in broken:
        typer.echo(f"diagnose: {line}", err=True)
    if rule_id is None:
        for rule in known:
            typer.echo(
                f"{rule.id:<28} {rule.limit:<20} {rule.doc.splitlines()[0] if rule.doc else rule.title}"
            )
        for serving in SERVING_RULES:
            typer.echo(f"{serving.id:<28} {serving.limit:<20} {serving.doc.splitlines()[0]}")
        return 0
    for serving in SERVING_RULES:
        if serving.id == rule_id:
            typer.echo(document_serving(serving))
            return 0
    for rule in known:
        if rule.id == rule_id:
            typer.echo(document(rule))
            return 0
    import difflib

    near = difflib.get_close_matches(rule_id, [*(r.id for r in known), *(r.id for r in SERVING_RULES)], n=1)
    raise UsageError(
        f"no rule {rule_id!r}" + (f"; did you mean {near[0]}?" if near else "; `diagnose rules` lists them")
    )


@app.command("roofs")
def roofs(
    device: Annotated[
        str | None, typer.Argument(metavar="DEVICE", show_default=False, help="Catalog key or device file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> int:
    """List the known devices, or one device's roofs with their provenance."""
    from diagnose.cli.query import table_lines
    from diagnose.devices import by_key, catalog_keys, resolve

    if device is None:
        names = ["key", "name", "arch", "SMs", "memory GB", "HBM GB/s", "bf16 TFLOP/s", "confidence"]
        rows: list[tuple[Any, ...]] = []
        for key in catalog_keys():
            spec = by_key(key)
            bf16 = spec.peak_compute.get("bf16") or spec.peak_compute.get("fp16")
            rows.append(
                (key, spec.name, spec.arch, spec.sm_count, round(spec.memory_bytes / 1e9) if spec.memory_bytes else None,
                 spec.peak_bandwidth / 1e9 if spec.peak_bandwidth else None, bf16 / 1e12 if bf16 else None, spec.confidence)
            )  # fmt: skip
    else:
        found = resolve(device).rows()
        names = ["resource", "dtype", "peak", "sustained", "unit", "provenance", "note", "source"]
        rows = [tuple(r.get(n) for n in names) for r in found]
    if as_json:
        import msgspec

        sys.stdout.buffer.write(
            msgspec.json.encode([dict(zip(names, row, strict=True)) for row in rows]) + b"\n"
        )
        sys.stdout.buffer.flush()
        return 0
    for line in table_lines(names, rows):
        typer.echo(line)
    return 0
