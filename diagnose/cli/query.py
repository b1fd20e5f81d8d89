"""`diagnose query` and `diagnose tables`: the store's public tables, for people and scripts."""

import csv as csv_module
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diagnose.cli.app import app
from diagnose.cli.progress import progress
from diagnose.errors import UsageError


@app.command("query")
def query(
    path: Annotated[Path, typer.Argument(metavar="TRACE", help="A trace.")],
    sql: Annotated[str, typer.Argument(metavar="SQL", help="A query on the tables of `diagnose tables`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Rows as a JSON list of objects.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Rows as CSV.")] = False,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="KEY|FILE", show_default=False, help="As for the diagnosis."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="FILE|NAME", show_default=False, help="As for the diagnosis."),
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, show_default=False, help="As for the diagnosis.")
    ] = None,
    step_annotation: Annotated[
        str | None,
        typer.Option("--step-annotation", metavar="REGEX", show_default=False, help="As for the diagnosis."),
    ] = None,
    python: Annotated[bool, typer.Option("--python", help="Store Python frames too.")] = False,
) -> int:
    """Run SQL (DuckDB) on a trace's tables."""
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other")
    import duckdb

    from diagnose import pipeline

    options = pipeline.Options(
        device=device, model=model, tp=tp, step_annotation=step_annotation, python=python
    )
    with progress() as bar:
        analysed = pipeline.prepare(path, options, bar)
    try:
        pipeline.finish(analysed, options)
        # A query may read the store, nothing else: no files, no extensions, no settings.
        analysed.store.con.execute("SET enable_external_access=false")
        try:
            statements = analysed.store.con.extract_statements(sql)
            if len(statements) != 1 or statements[0].type not in (
                duckdb.StatementType.SELECT,
                duckdb.StatementType.EXPLAIN,
            ):
                raise UsageError("give one SELECT; a query only reads")
            cursor = analysed.store.con.execute(statements[0])
            names = [d[0] for d in cursor.description or []]
            rows = cursor.fetchall()
        except duckdb.Error as error:
            raise UsageError(
                f"the query failed: {str(error).splitlines()[0]}; `diagnose tables` lists tables and columns"
            ) from None
    finally:
        analysed.store.close()
    _print(names, rows, as_json, as_csv)
    return 0


def _print(names: list[str], rows: list[tuple[Any, ...]], as_json: bool, as_csv: bool) -> None:
    if as_json:
        import msgspec

        sys.stdout.buffer.write(
            msgspec.json.encode([dict(zip(names, row, strict=True)) for row in rows], enc_hook=str) + b"\n"
        )
        sys.stdout.buffer.flush()
    elif as_csv:
        writer = csv_module.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    else:
        for line in table_lines(names, rows):
            typer.echo(line)


def table_lines(names: list[str], rows: list[tuple[Any, ...]], limit: int = 60) -> list[str]:
    """Aligned text; cells longer than `limit` lose their middle, control characters become visible."""
    cells = [[_cell(v, limit) for v in row] for row in rows]
    widths = [max(len(n), *(len(r[i]) for r in cells)) if cells else len(n) for i, n in enumerate(names)]
    lines = ["  ".join(n.ljust(w) for n, w in zip(names, widths, strict=True)).rstrip()]
    lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return lines


def _cell(value: Any, limit: int) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= limit else f"{text[: limit // 2]}…{text[-(limit // 2 - 1) :]}"


@app.command("tables")
def tables(
    name: Annotated[
        str | None, typer.Argument(metavar="TABLE", show_default=False, help="One table.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> int:
    """List every table and column, with its unit and meaning."""
    from diagnose.store import TABLES

    chosen = [t for t in TABLES if name in (None, t.name)]
    if not chosen:
        import difflib

        near = difflib.get_close_matches(name or "", [t.name for t in TABLES], n=1)
        raise UsageError(
            f"no table {name!r}"
            + (f"; did you mean {near[0]}?" if near else "; `diagnose tables` lists them")
        )
    if as_json:
        import msgspec

        data = [
            {
                "table": t.name,
                "stage": t.stage,
                "doc": t.doc,
                "columns": [
                    {"name": c.name, "type": c.type, "unit": c.unit, "doc": c.doc} for c in t.columns
                ],
            }
            for t in chosen
        ]
        sys.stdout.buffer.write(msgspec.json.encode(data) + b"\n")
        sys.stdout.buffer.flush()
        return 0
    for table in chosen:
        typer.echo(f"{table.name}: {table.doc}")
        for c in table.columns:
            typer.echo(f"  {c.name:<24} {c.type:<8} {c.unit:<5} {c.doc}".rstrip())
    return 0
