"""`diagnose kernels`: what every kernel did, grouped as asked."""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import typer

from diagnose.cli.app import app
from diagnose.cli.progress import progress
from diagnose.errors import UsageError

GROUPS = ("op", "name", "family", "role", "shape")


@app.command("kernels")
def kernels(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace.")],
    by: Annotated[str, typer.Option("--by", metavar="|".join(GROUPS), help="What to group by.")] = "name",
    as_json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", help="Write the rows as JSON.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Rows to print.")] = 30,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="KEY|FILE", help="As for the diagnosis.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="FILE|NAME", help="As for the diagnosis.", show_default=False),
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, help="As for the diagnosis.", show_default=False)
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option("--capture", metavar="FILE", help="As for the diagnosis.", show_default=False),
    ] = None,
    ncu: Annotated[
        list[Path] | None,
        typer.Option("--ncu", metavar="FILE", help="As for the diagnosis.", show_default=False),
    ] = None,
) -> int:
    """List kernels with time, FLOPs, bytes, rates, share of the roof, bound and where the cost came from."""
    import msgspec

    from diagnose import pipeline
    from diagnose.cli.query import table_lines

    if by not in GROUPS:
        raise UsageError(f"--by {by!r} is not one of {', '.join(GROUPS)}")
    options = pipeline.Options(device=device, model=model, tp=tp, capture=capture, ncu=tuple(ncu or ()))
    with progress() as bar:
        result = pipeline.run([path], options, bar)
    rows = group(result.kernels, by)
    if as_json == "-":
        sys.stdout.buffer.write(msgspec.json.encode(rows) + b"\n")
        sys.stdout.buffer.flush()
        return 0
    if as_json is not None:
        from diagnose.reports.write import write_atomically

        write_atomically(Path(as_json), msgspec.json.encode(rows) + b"\n")
        typer.echo(f"Wrote {as_json}", err=True)
    cover = result.coverage
    if cover is not None and cover.kernel_time_ns:
        typer.echo(f"{100 * cover.with_cost_ns / cover.kernel_time_ns:.1f} % of kernel time has a cost")
    names = [
        by,
        "count",
        "time ms",
        "share %",
        "TFLOP/s",
        "GB/s",
        "% of roof",
        "bound",
        "cost source",
        "reason",
    ]
    shown: list[tuple[Any, ...]] = [
        (
            r[by] or "-",
            r["count"],
            r["time_ns"] / 1e6,
            100 * r["share"],
            r["tflops"],
            r["gbps"],
            r["percent_of_roof"],
            r["bound"],
            r["cost_source"] or "-",
            r["reason"] or "",
        )
        for r in rows[:top]
    ]
    for line in table_lines(names, shown, limit=56):
        typer.echo(line)
    if len(rows) > top:
        typer.echo(f"{len(rows) - top} more rows: --top N, or --json FILE for all")
    return 0


def group(kernels: list[Any], by: str) -> list[dict[str, Any]]:
    """Rows summed over one key, longest first. Rates are totals over the time of the rows that have them."""
    groups: dict[str | None, list[Any]] = defaultdict(list)
    for row in kernels:
        groups[getattr(row, by)].append(row)
    total = sum(r.time_ns for r in kernels) or 1
    out = []
    for key, rows in groups.items():
        rows.sort(key=lambda r: -r.time_ns)
        time_ns = sum(r.time_ns for r in rows)
        timed_flops = [(r.flops, r.time_ns) for r in rows if r.flops]
        timed_bytes = [(r.bytes, r.time_ns) for r in rows if r.bytes]
        roofed = [(r.percent_of_roof, r.time_ns) for r in rows if r.percent_of_roof is not None]
        sources = sorted({r.cost_source for r in rows if r.cost_source})
        out.append(
            {
                by: key,
                "count": sum(r.count for r in rows),
                "time_ns": time_ns,
                "share": time_ns / total,
                "flops": sum(f for f, _ in timed_flops) or None,
                "bytes": sum(b for b, _ in timed_bytes) or None,
                "tflops": sum(f for f, _ in timed_flops) / sum(t for _, t in timed_flops) / 1e3
                if timed_flops
                else None,
                "gbps": sum(b for b, _ in timed_bytes) / sum(t for _, t in timed_bytes)
                if timed_bytes
                else None,
                "percent_of_roof": sum(p * t for p, t in roofed) / sum(t for _, t in roofed)
                if roofed
                else None,
                "bound": rows[0].bound,
                "reason": rows[0].reason,
                "cost_source": "+".join(sources) or None,
            }
        )
    out.sort(key=lambda r: -r["time_ns"])
    return out
