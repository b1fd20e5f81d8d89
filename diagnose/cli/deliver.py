"""A finished result to the files and the terminal that were asked for."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

from diagnose.cli.output import Outputs


@dataclass(frozen=True, slots=True)
class Forms:
    """How a result is written in each form; called only for the forms asked for. `summary` takes width and colour."""

    json: Callable[[], bytes]
    markdown: Callable[[], str]
    html: Callable[[], str]
    summary: Callable[[int, bool], str]


def deliver(forms: Forms, outputs: Outputs) -> None:
    """Write every output asked for; the summary goes to stdout unless data does."""
    from diagnose.reports.write import write_atomically

    written: list[Path] = []
    if outputs.json is not None:
        payload = forms.json()
        if outputs.json == "-":
            sys.stdout.buffer.write(payload)
            sys.stdout.buffer.flush()
        else:
            write_atomically(Path(outputs.json), payload)
            written.append(Path(outputs.json))
    if outputs.markdown is not None:
        text = forms.markdown()
        if outputs.markdown == "-":
            typer.echo(text, nl=False)
        else:
            write_atomically(Path(outputs.markdown), text)
            written.append(Path(outputs.markdown))
    if outputs.html is not None:
        write_atomically(outputs.html, forms.html())
        written.append(outputs.html)
    if not outputs.to_stdout:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width = shutil.get_terminal_size((100, 24)).columns
        typer.echo(forms.summary(width, color).rstrip("\n"))
    for path in written:
        typer.echo("Wrote " + "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(path)), err=True)
