"""`diagnose experiment` and `diagnose verify`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from diagnose.cli.app import app
from diagnose.cli.progress import progress
from diagnose.contract import Diagnosis
from diagnose.errors import InputError, UsageError


def read_result(path: Path) -> Diagnosis:
    """A saved diagnosis: JSON of `--json`, or a page of ours. InputError otherwise."""
    import msgspec

    from diagnose.reports.marker import embedded_json, is_own_report

    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; give the JSON or page that diagnose wrote"
        ) from None
    if data.lstrip()[:1] == b"<" and is_own_report(path):
        data = embedded_json(data)
    try:
        return msgspec.json.decode(data, type=Diagnosis)
    except msgspec.DecodeError as error:
        raise InputError(
            f"{path} is no diagnosis: {error}; give the JSON of `diagnose TRACE --json FILE`"
        ) from None


def result_of(
    path: Path, device: str | None = None, model: str | None = None, tp: int | None = None
) -> Diagnosis:
    """A saved diagnosis, or the diagnosis of a trace."""
    from diagnose import pipeline
    from diagnose.reports.marker import is_own_report

    if path.is_file() and is_own_report(path):
        return read_result(path)
    with progress() as bar:
        return pipeline.run([path], pipeline.Options(device=device, model=model, tp=tp), bar)


@app.command("experiment")
def experiment(
    diagnosis: Annotated[Path, typer.Argument(metavar="DIAGNOSIS", help="JSON or page of a diagnosis.")],
    hypothesis: Annotated[
        str, typer.Argument(metavar="HYPOTHESIS_ID", help="Its id, e.g. launch-gaps@decode.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Experiment file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> int:
    """Write down one hypothesis's bet, to be settled by `verify` on the after-run."""
    import msgspec

    from diagnose.reports.write import write_atomically
    from diagnose.settle.verify import make_bet

    if output.exists() and not force:
        raise UsageError(f"{output} exists; use --force to replace it, or another -o FILE")
    bet = make_bet(read_result(diagnosis), hypothesis)
    write_atomically(output, msgspec.json.format(msgspec.json.encode(bet), indent=2) + b"\n")
    e = bet.experiment
    typer.echo(f"change    {e.change}")
    if e.command:
        typer.echo(f"          $ {e.command}")
    typer.echo(
        f"expect    {e.metric} {e.prediction.low:.4g}-{e.prediction.high:.4g} {e.prediction.unit}, now {e.baseline:.4g}"
    )
    typer.echo(f"refuted   if {e.refuted_if}")
    typer.echo(f"then      diagnose verify {output} AFTER")
    typer.echo(f"Wrote {output}", err=True)
    return 0


@app.command("verify")
def verify(
    bet_file: Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="File of `diagnose experiment`.")],
    after: Annotated[
        list[Path],
        typer.Argument(
            metavar="AFTER...", help="Trace(s) or saved diagnoses of the after-run; several are repeats."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Result as JSON on stdout.")] = False,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="refuted|inconclusive",
            show_default=False,
            help="Exit 1 on that result (inconclusive includes refuted).",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", show_default=False, help="As for the diagnosis.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", show_default=False, help="As for the diagnosis.")
    ] = None,
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, show_default=False, help="As for the diagnosis.")
    ] = None,
) -> int:
    """Settle a bet: confirmed, refuted or inconclusive."""
    import msgspec

    from diagnose.settle.verify import decode_bet, settle

    if fail_on not in (None, "refuted", "inconclusive"):
        raise UsageError(f"--fail-on {fail_on!r} is not refuted or inconclusive")
    try:
        bet = decode_bet(bet_file.read_bytes())
    except OSError as error:
        raise InputError(
            f"cannot read {bet_file}: {error.strerror}; write it with `diagnose experiment`"
        ) from None
    except msgspec.DecodeError as error:
        raise InputError(
            f"{bet_file} is no experiment file: {error}; write it with `diagnose experiment`"
        ) from None
    result = settle(bet, [result_of(path, device, model, tp) for path in after])
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.buffer.flush()
    else:
        typer.echo(f"{result.verdict}: {result.hypothesis}")
        typer.echo(f"  {result.reason}")
        for line in result.changed:
            typer.echo(f"  also changed: {line}")
        typer.echo(f"  {result.follows}")
    bad = {"refuted": ("refuted",), "inconclusive": ("refuted", "inconclusive")}
    return 1 if fail_on and result.verdict in bad[fail_on] else 0
