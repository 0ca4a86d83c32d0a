"""The command line itself: how verbs run, how results and progress are shown."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer.core import TyperGroup

from segcal import __version__
from segcal import types as segcal_types
from segcal.types import UserError

# The order of a project, in which the help and the reference list the verbs.
ORDER = (
    *("prepare", "inspect", "phantom", "download", "list"),
    *("train", "evaluate", "calibrate", "predict", "ensemble"),
    *("study", "compare", "figures", "report", "pack", "demo"),
)
FILE_WIDTH = 160  # columns of a table that is not printed to a terminal


class InOrder(TyperGroup):
    """Verbs in the order of a project; those that `ORDER` does not know come last."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        places = {name: i for i, name in enumerate(ORDER)}
        return sorted(self.commands, key=lambda name: places.get(name, len(ORDER)))


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
Again = Annotated[bool, typer.Option("--again", help="Do it again and replace what is there.")]
Runs = Annotated[
    list[Path],
    typer.Argument(help="Finished and evaluated runs, or folders of runs such as a study's."),
]
Published = Annotated[
    bool, typer.Option("--published", help="Put the paper's values beside, where it has any.")
]
Calibrator = Annotated[
    str, typer.Option(help="After a fitted calibrator; segcal list calibrators names them.")
]


def main() -> None:
    """Run the command line: a user error is one sentence and exit code 2."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    try:
        app()
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "; make room, then run the same command again" if full else ""
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}{remedy}")
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        reason = (str(error).splitlines() or ["of Python"])[0]
        _fail(
            f"memory ran out ({reason}); close what else uses it, or train with a smaller"
            " training.batch or network.width"
        )


def _fail(sentence: str) -> None:
    note(sentence, "segcal")
    sys.exit(2)


def _out_of_memory(error: Exception) -> bool:
    """Torch has a class for it only on a GPU; the words are the same everywhere."""
    words = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _interrupted(*_: object) -> None:
    note("interrupted; the same command goes on from here", "segcal")
    raise KeyboardInterrupt


def note(sentence: str, kind: str = "note") -> None:
    """Print a sentence to standard error."""
    print(f"{kind}: {sentence}", file=sys.stderr)


@app.callback(invoke_without_command=True)
def version(
    shown: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print the version if asked."""
    if shown:
        print(__version__)
        raise typer.Exit


def show(value: Any, table: Table, as_json: bool) -> None:
    """Print a result to standard output, as JSON or as a table."""
    if as_json:
        print(json.dumps(_without_nan(value), indent=1, ensure_ascii=False))
        return
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(width=None if known else FILE_WIDTH).print(table)


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: a score that does not exist is null."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def bar(*columns: Any) -> Progress:
    """A progress bar on standard error."""
    text, left = TextColumn("{task.description}"), TimeRemainingColumn()
    return Progress(text, BarColumn(), *columns, left, console=Console(stderr=True))


@contextmanager
def counting(what: str) -> Iterator[segcal_types.Progress]:
    """A bar that counts the steps of a task."""
    with bar(MofNCompleteColumn()) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
