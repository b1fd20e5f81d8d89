"""`diagnose`: the group, its default verb, and the one place where errors become exit codes.

Exit 0: done. 1: a check asked for with --fail-on failed. 2: bad usage or bad input, one line on stderr.
"""

import atexit
import difflib
import gc
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import typer
import typer.main

from diagnose import __version__
from diagnose.errors import InputError, UsageError

DEFAULT_VERB = "trace"

# Module of each verb, in the order of `--help`. Only the module of the verb asked for is imported: together they take
# longer to load than a small trace takes to read.
VERBS = {
    "capture": "collect", "calibrate": "collect", "compare": "compare", "kernels": "kernels", "rules": "listing",
    "roofs": "listing", "query": "query", "tables": "query", "experiment": "settle", "verify": "settle", "trace": "trace",
}  # fmt: skip

app = typer.Typer(
    name="diagnose",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Read a profiler trace of LLM inference and say what limits it, how sure that is, and what would prove it.",
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(f"diagnose {__version__}")
        raise typer.Exit(0)


# Typer carries its own copy of click, so its exceptions are found through the ones it publishes.
_BadUsage: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "UsageError")


def command(verb: str | None = None) -> Any:
    """The group with this verb in it, or with every verb. Modules attach their verbs to `app` when imported."""
    for module in dict.fromkeys([VERBS[verb]] if verb in VERBS else VERBS.values()):
        importlib.import_module(f"diagnose.cli.{module}")
    return typer.main.get_command(app)


def route(arguments: list[str], verbs: list[str]) -> list[str]:
    """Put the default verb in front unless the first word is a verb or an option of the group.

    UsageError for a first word that is neither a verb nor an existing path, when it looks like a misspelt verb.
    """
    if (
        not arguments
        or arguments[0] in verbs
        or arguments[0] in ("--version", "--install-completion", "--show-completion")
    ):
        return arguments
    if arguments[0] in ("--help", "-h"):
        return [DEFAULT_VERB, "--help"]
    first = arguments[0]
    if not first.startswith("-") and not Path(first).exists() and os.sep not in first and "." not in first:
        near = difflib.get_close_matches(first, verbs, n=1, cutoff=0.6)
        if near:
            raise UsageError(f"no file and no command called {first!r}; did you mean `diagnose {near[0]}`?")
        raise UsageError(f"no file and no command called {first!r}; give a trace, or see `diagnose --help`")
    return [DEFAULT_VERB, *arguments]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    # A run builds many small objects that live to its end: the default collector spends a tenth of it looking for cycles.
    gc.set_threshold(200_000, 50, 100)
    # The interpreter would search all of them for cycles once more on its way out: a tenth of a small trace's time.
    atexit.register(gc.freeze)
    try:
        routed = route(list(given), list(VERBS))
        group = command(routed[0] if routed else None)
        result = group.main(routed, prog_name="diagnose", standalone_mode=False)
        return int(result) if isinstance(result, int) else 0
    except (InputError, UsageError) as error:
        return _fail(str(error))
    except typer.Exit as error:
        return error.exit_code
    except _BadUsage as error:
        return _bad_usage(error)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted; nothing was written", 130)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error of ours.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 0
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _fail(f"{error.strerror or error}{where}; check the path, the space left and the permissions")
    except MemoryError:
        return _fail("out of memory; try --low-memory")


def _bad_usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        sys.stderr.write(f"{context.get_help()}\n")
        return 2
    text = " ".join(error.format_message().split())
    path = context.command_path.replace(f" {DEFAULT_VERB}", "") if context else "diagnose"
    return _fail(f"{text} See `{path} --help`.")


def _fail(message: str, code: int = 2) -> int:
    # One line whatever a file name or a trace put into it.
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)
    try:
        sys.stderr.write(f"diagnose: {text or 'failed'}\n")
    except OSError:
        return code
    return code
