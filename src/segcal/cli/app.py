"""The command line itself: how verbs are run, how results and progress are shown."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer.core import TyperGroup

from segcal import __version__
from segcal.types import UserError

# The order of a project, in which the help and the reference list the verbs.
ORDER = (
    *("prepare", "inspect", "phantom", "download", "list"),
    *("train", "evaluate", "calibrate", "predict"),
    *("study", "compare", "figures", "report", "pack", "demo"),
)


class InOrder(TyperGroup):
    """Verbs in the order of a project, not in that of their files; those that `ORDER` does not know
    come last.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return sorted(
            self.commands, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER)
        )


app = typer.Typer(
    cls=InOrder,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Calibrated medical image segmentation: from raw data to a report.",
    epilog="Example: segcal prepare hippocampus --from Task04_Hippocampus",
)
listing = typer.Typer(
    no_args_is_help=True, help="List what segcal knows.", epilog="Example: segcal list datasets"
)
app.add_typer(listing, name="list")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Again = Annotated[bool, typer.Option("--again", help="Do it anew, replacing what is there.")]


def main() -> None:
    """Run the command line: a user error is one sentence and exit code 2."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    try:
        app()
    except UserError as error:
        print(f"segcal: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        remedy = (
            "; make room, then run the same command again"
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else ""
        )
        print(
            f"segcal: {error.filename or 'the system'}: {error.strerror or error}{remedy}",
            file=sys.stderr,
        )
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        remedy = "close what else uses it, or train with a smaller training.batch or network.width"
        print(
            f"segcal: memory ran out ({(str(error).splitlines() or ['of Python'])[0]}); {remedy}",
            file=sys.stderr,
        )
        sys.exit(2)


def _out_of_memory(error: Exception) -> bool:
    """Torch has a class of its own for it on a GPU alone, and not in every version; the words are
    the same in all.
    """
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("out of memory", "can't allocate memory")
    )


def _interrupted(*_: object) -> None:
    print("segcal: interrupted; the same command goes on from here", file=sys.stderr)
    raise KeyboardInterrupt


@app.callback(invoke_without_command=True)
def version(
    shown: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print the version if asked."""
    if shown:
        print(__version__)
        raise typer.Exit


def show(value: Any, table: Table, as_json: bool) -> None:
    """Results go to standard output, as JSON or as a table."""
    if as_json:
        print(json.dumps(_without_nan(value), indent=1, ensure_ascii=False))
    else:
        Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160).print(
            table
        )  # a file has no width


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: a score that does not exist is null."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def bar(*columns: Any) -> Progress:
    """Progress goes to standard error."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
