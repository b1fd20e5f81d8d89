"""`diagnose compare BEFORE AFTER`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from diagnose.cli.app import app
from diagnose.cli.deliver import Forms, deliver
from diagnose.cli.output import Outputs, check, stem
from diagnose.cli.settle import result_of
from diagnose.errors import UsageError

EPILOG = (
    "BEFORE and AFTER are traces, run folders, benchmark results or saved diagnoses. Several repeats a side "
    "(--before A B C --after D E F) measure the noise between runs instead of assuming it."
)
_LISTS = ("--before", "--after", "--eval")


class _Lists(TyperCommand):
    """Options that take several words: `--before A B C` is read as `--before A --before B --before C`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        out: list[str] = []
        current: str | None = None
        first = False
        for word in args:
            if word in _LISTS:
                current, first = word, True
                out.append(word)
            elif word.startswith("-") and word != "-":
                current = None
                out.append(word)
            elif current is not None:
                out += [word] if first else [current, word]
                first = False
            else:
                out.append(word)
        return super().parse_args(ctx, out)


@app.command("compare", cls=_Lists, epilog=EPILOG)
def compare(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="BEFORE AFTER", help="One input a side.", show_default=False)
    ] = None,
    before: Annotated[
        list[Path] | None, typer.Option("--before", metavar="PATH...", help="Repeats of the before-side.", show_default=False)
    ] = None,
    after: Annotated[
        list[Path] | None, typer.Option("--after", metavar="PATH...", help="Repeats of the after-side.", show_default=False)
    ] = None,
    evals: Annotated[
        list[Path] | None,
        typer.Option(
            "--eval", metavar="BEFORE.json AFTER.json", show_default=False, help="Results of lm-evaluation-harness on both sides: quality beside speed."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="HTML page [default: BEFORE-AFTER.compare.html].", show_default=False)
    ] = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write the comparison as JSON.", show_default=False)
    ] = None,
    markdown: Annotated[
        str | None, typer.Option("--markdown", metavar="FILE|-", help="Write the comparison as Markdown.", show_default=False)
    ] = None,
    no_html: Annotated[bool, typer.Option("--no-html", help="Write no page.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are not earlier reports.")] = False,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on", metavar="regressed|METRIC:PERCENT", show_default=False,
            help="Exit 1 on any regression, or when a metric got worse by more (TTFT, ITL, e2e, throughput, step, kernels, idle; e.g. ITL:5%).",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", show_default=False, help="As for the diagnosis, on both sides.")] = None,
    model: Annotated[str | None, typer.Option("--model", show_default=False, help="As for the diagnosis, on both sides.")] = None,
    tp: Annotated[int | None, typer.Option("--tp", min=1, show_default=False, help="As for the diagnosis, on both sides.")] = None,
) -> int:  # fmt: skip
    """Compare the same work before and after a change: what moved, by how much, and whether that is more than noise."""
    from diagnose.settle.evals import read_eval
    from diagnose.settle.gate import failures, parse_gate

    left, right = _sides(paths or [], before or [], after or [])
    gates = [parse_gate(text) for text in fail_on or []]
    if evals is not None and len(evals) != 2:
        raise UsageError(f"--eval takes two files, BEFORE.json AFTER.json; {len(evals)} given")
    html = None if no_html else (output or default_output(left[0], right[0]))
    outputs = Outputs(html, json, markdown)
    check(outputs, [*left, *right, *(evals or [])], force)
    quality = (read_eval(evals[0]), read_eval(evals[1])) if evals else None

    from diagnose.settle.compare import compare as compare_results

    results = [[result_of(path, device, model, tp) for path in side] for side in (left, right)]
    comparison = compare_results(results[0], results[1], quality)
    _write(comparison, outputs)
    failed = [line for gate in gates for line in failures(gate, comparison)]
    for line in failed:
        typer.echo(f"failed: {line}", err=True)
    return 1 if failed else 0


def _sides(paths: list[Path], before: list[Path], after: list[Path]) -> tuple[list[Path], list[Path]]:
    """Inputs of both sides. UsageError for anything but two positions, or --before and --after."""
    if before or after:
        if paths:
            raise UsageError("give either BEFORE AFTER, or --before and --after with their inputs; not both")
        if not before or not after:
            raise UsageError(
                f"--{'after' if before else 'before'} is missing; repeats need both --before and --after"
            )
        return before, after
    if len(paths) != 2:
        raise UsageError(
            f"compare takes two inputs, BEFORE AFTER; {len(paths)} given. Repeats: --before A B C --after D E F"
        )
    return [paths[0]], [paths[1]]


def default_output(before: Path, after: Path) -> Path:
    """`BEFORE-AFTER.compare.html` in the current directory: the two inputs may lie apart."""
    names = [stem(p.resolve() if p.name in ("", ".", "..") else p)[:60] for p in (before, after)]
    return Path(f"{names[0]}-{names[1]}.compare.html")


def _write(comparison: Any, outputs: Outputs) -> None:
    from diagnose.reports import compare_html, compare_json, compare_markdown, compare_terminal

    deliver(
        Forms(
            json=lambda: compare_json.to_json(comparison),
            markdown=lambda: compare_markdown.to_markdown(comparison),
            html=lambda: compare_html.to_html(comparison),
            summary=lambda width, color: compare_terminal.summary(comparison, width=width, color=color),
        ),
        outputs,
    )
