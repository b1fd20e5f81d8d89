"""The default verb: `diagnose TRACE`."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diagnose.cli.app import app
from diagnose.cli.deliver import Forms, deliver
from diagnose.cli.output import Outputs, check, default_output
from diagnose.cli.progress import progress
from diagnose.contract import OBJECTIVES
from diagnose.errors import UsageError

if TYPE_CHECKING:
    from diagnose.contract import Diagnosis

EPILOG = (
    "Other commands: query, tables, rules, roofs, kernels, experiment, verify, compare, capture, calibrate "
    "(`diagnose COMMAND --help`). A file called like a command is given as ./NAME."
)


@app.command("trace", epilog=EPILOG)
def trace(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="TRACE...",
            help="PyTorch profiler trace (.json, .json.gz), .nsys-rep, nsys .sqlite or parquetdir, or a run folder; several traces are ranks.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="HTML page [default: NAME.diagnosis.html].", show_default=False),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", help="Write the result as JSON.", show_default=False),
    ] = None,
    markdown: Annotated[
        str | None,
        typer.Option(
            "--markdown", metavar="FILE|-", help="Write the result as Markdown.", show_default=False
        ),
    ] = None,
    no_html: Annotated[bool, typer.Option("--no-html", help="Write no page.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that are not earlier reports.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="KEY|FILE",
            help="Device when the trace's is unknown or wrong: a key of `diagnose roofs`, or a TOML of `diagnose calibrate`.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="FILE|NAME",
            help="Hugging Face config.json, or a known model's name: costs for kernels without shapes.",
            show_default=False,
        ),
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option("--tp", min=1, help="Tensor-parallel size, when no source says.", show_default=False),
    ] = None,
    pp: Annotated[
        int | None, typer.Option("--pp", min=1, help="Pipeline-parallel size.", show_default=False)
    ] = None,
    ep: Annotated[
        int | None, typer.Option("--ep", min=1, help="Expert-parallel size.", show_default=False)
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(
            "--capture",
            metavar="FILE",
            help="Graph-capture trace with the shapes of replayed kernels.",
            show_default=False,
        ),
    ] = None,
    metrics: Annotated[
        list[Path] | None,
        typer.Option(
            "--metrics", metavar="FILE", help="Prometheus scrape(s) of the engine.", show_default=False
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", metavar="FILE", help="Engine log or settings file.", show_default=False),
    ] = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option(
            "--bench",
            metavar="FILE",
            help="Benchmark result (vLLM, SGLang, aiperf, genai-perf, trtllm-bench).",
            show_default=False,
        ),
    ] = None,
    ncu: Annotated[
        list[Path] | None,
        typer.Option(
            "--ncu",
            metavar="FILE",
            help="Nsight Compute CSV: measured bytes and FLOPs by kernel.",
            show_default=False,
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            help=f"What to improve: {', '.join(OBJECTIVES)} [default: throughput with serving evidence, else step_time].",
            show_default=False,
        ),
    ] = None,
    step_annotation: Annotated[
        str | None,
        typer.Option(
            "--step-annotation",
            metavar="REGEX",
            help="Your own step ranges; groups phase, sequences, prefill_tokens, decode_tokens, context_tokens are read.",
            show_default=False,
        ),
    ] = None,
    slo_ttft_ms: Annotated[
        float | None, typer.Option("--slo-ttft-ms", help="Time-to-first-token target.", show_default=False)
    ] = None,
    what_if_device: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if-device",
            metavar="KEY|FILE",
            help="Re-time the steps on another device's roofs.",
            show_default=False,
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option("--price", help="Price of that device an hour, any currency.", show_default=False),
    ] = None,
    slo_itl_ms: Annotated[
        float | None, typer.Option("--slo-itl-ms", help="Inter-token latency target.", show_default=False)
    ] = None,
    rank_regex: Annotated[
        str | None,
        typer.Option(
            "--rank-regex",
            metavar="REGEX",
            help="Rank from the file name (first group), when the trace does not say.",
            show_default=False,
        ),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option("--rules", metavar="DIR", help="Folder with rules of your own.", show_default=False),
    ] = None,
    nsys: Annotated[
        str | None,
        typer.Option(
            "--nsys",
            metavar="PATH",
            help="nsys to open .nsys-rep with [default: $NSYS, PATH, usual folders].",
            show_default=False,
        ),
    ] = None,
    python: Annotated[bool, typer.Option("--python", help="Store Python frames too.")] = False,
    low_memory: Annotated[
        bool, typer.Option("--low-memory", help="Smaller chunks, less memory, slower.")
    ] = False,
) -> int:
    """Diagnose a trace: a summary here, and one offline HTML page."""
    from diagnose import pipeline

    inputs = paths or []
    evidence = [*(metrics or []), *(log or []), *(bench or [])]
    if not inputs and not evidence:
        raise UsageError(
            "give a trace or a run folder (or --bench/--metrics/--log for serving evidence alone); see `diagnose --help`"
        )
    if objective is not None and objective not in OBJECTIVES:
        raise UsageError(f"--objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
    for name, value in (("--slo-ttft-ms", slo_ttft_ms), ("--slo-itl-ms", slo_itl_ms), ("--price", price)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name} {value} is not a positive number")
    html = None if no_html else (output or default_output((inputs or evidence)[0]))
    outputs = Outputs(html, json, markdown)
    check(outputs, [*inputs, *evidence], force)
    options = pipeline.Options(
        device=device, step_annotation=step_annotation, objective=objective, rules=rules, low_memory=low_memory, python=python, nsys=nsys,
        model=model, tp=tp, pp=pp, ep=ep, capture=capture, metrics=tuple(metrics or ()), log=tuple(log or ()), bench=tuple(bench or ()),
        ncu=tuple(ncu or ()), rank_regex=rank_regex, slo_ttft_ms=slo_ttft_ms, slo_itl_ms=slo_itl_ms,
        what_if_device=tuple(what_if_device or ()), price=price,
    )  # fmt: skip
    if html is not None:
        # Half of the page's cost is imports and templates: paid beside the database's work.
        threading.Thread(target=_warm_up, daemon=True).start()
    with progress() as bar:
        result = pipeline.run(inputs, options, bar)
    write(result, outputs)
    return 0


def _warm_up() -> None:
    from diagnose.reports.html import warm_up

    warm_up()


def write(result: "object", outputs: Outputs) -> None:
    """Write every output asked for; the summary goes to stdout unless data does."""
    from diagnose.contract import Diagnosis

    assert isinstance(result, Diagnosis)
    deliver(_forms(result), outputs)


def _forms(result: "Diagnosis") -> Forms:
    """The result in every form, each with its own imports: a page costs more to load than to write."""

    def json() -> bytes:
        from diagnose.reports.json import to_json

        return to_json(result)

    def markdown() -> str:
        from diagnose.reports.markdown import to_markdown

        return to_markdown(result)

    def html() -> str:
        from diagnose.reports.html import to_html

        return to_html(result)

    def summary(width: int, color: bool) -> str:
        from diagnose.reports.terminal import summary

        return summary(result, width=width, color=color)

    return Forms(json, markdown, html, summary)
