"""The command line itself: how verbs run, how results and progress are shown."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer import Argument, Option

from segcal import __version__
from segcal.cli.words import Verbs
from segcal.hardware import before_torch
from segcal.types import Progress as Counter
from segcal.types import UserError

app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Calibrated medical image segmentation: from raw data to a report.",
    epilog="Example: segcal prepare hippocampus --from Task04_Hippocampus",
)
listing = typer.Typer(cls=Verbs, no_args_is_help=True, epilog="Example: segcal list datasets")
app.add_typer(listing, name="list", help="List what segcal knows.")

Out = Option("--out", "-o", help="The folder to write.")
Names = list[str] | None
METRICS = "What orders and leads: main (all voxels), or paper (the paper's four metrics)."

AsJson = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
Again = Annotated[bool, Option("--again", help="Do it again and replace what is there.")]
Runs = Annotated[list[Path], Argument(help="Evaluated runs, or folders of runs such as a study's.")]
Published = Annotated[bool, Option("--published", help="Also show the values of the paper.")]
ByMetrics = Annotated[str, Option("--metrics", help=METRICS)]
OnlyWeights = Annotated[str | None, Option(help="Only scores of these weights: best, last, nll.")]
Calibrator = Annotated[str, Option(help="After a fitted calibrator (segcal list calibrators).")]


BUG = 70
"""The exit code of an error that is not the user's (EX_SOFTWARE of sysexits.h)."""

NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "calculation overflowed",
    "multiplication overflow",
)


def main() -> None:
    """Run the command line: a user error is one sentence and exit code 2; a bug of ours is 70."""
    for stream in (sys.stdout, sys.stderr):  # names of files may be no Unicode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
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
    except ModuleNotFoundError as error:
        package = (error.name or "segcal").partition(".")[0]
        if package == "segcal":
            _report_bug(error)
        remedy = "install segcal with all that it needs, without --no-deps, if need be in an"
        _fail(f"{package} is not in this environment; {remedy} environment of its own")
    except Exception as error:
        # Torch has a class for it only on a GPU; the words are the same everywhere.
        no_memory = isinstance(error, RuntimeError) and any(w in str(error) for w in NO_MEMORY)
        if not no_memory and not isinstance(error, MemoryError):
            _report_bug(error)
        reason = (str(error).splitlines() or ["of Python"])[0]
        remedy = "train with a smaller training.batch or network.width"
        _fail(f"memory ran out ({reason}); close other programs, or {remedy}")


def _fail(sentence: str, code: int = 2) -> NoReturn:
    note(sentence, "segcal")
    sys.exit(code)


def _report_bug(error: Exception) -> NoReturn:
    """What no one foresaw: a sentence, and the traceback in a file to send."""
    name: Any = {"prefix": "segcal-bug-", "suffix": ".txt"}
    with tempfile.NamedTemporaryFile("w", delete=False, errors="backslashreplace", **name) as file:
        print(f"segcal {__version__}, Python {sys.version}", file=file)
        traceback.print_exception(error, file=file)
    reason = (str(error).splitlines() or [""])[0][:200]
    what = f"this is a bug in segcal: {type(error).__name__}: {reason}"
    _fail(f"{what}; the traceback is in {file.name}", BUG)


def _interrupted(*_: object) -> None:
    note("interrupted; the same command goes on from here", "segcal")
    raise KeyboardInterrupt


def note(sentence: str, kind: str = "note") -> None:
    """Print a sentence to standard error; what names hold beside text is spelled out."""
    line = sentence.replace("\n", " ")
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    print(f"{kind}: {shown}", file=sys.stderr)


@app.callback(invoke_without_command=True)
def begin(version: Annotated[bool, Option("--version", help="Print the version.")] = False) -> None:
    """Print the version, or prepare the process for a verb."""
    before_torch()
    if version:
        print(__version__)
        raise typer.Exit


def show(value: Any, table: Table, as_json: bool, *more: Table | str) -> None:
    """Print a result to standard output, as JSON or as a table with more tables and sentences."""
    if as_json:
        print(json.dumps(_without_nan(value), indent=1, ensure_ascii=False))
        return
    for part in (table, *more):
        console(160).print(part, highlight=False)


def console(file_width: int) -> Console:
    """Standard output; so many columns wide if it is not a terminal and `COLUMNS` is not set."""
    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    # names of runs and classes are no markup
    return Console(width=None if known else file_width, markup=False)


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: a score that does not exist is null."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def bar(*columns: Any) -> Progress:
    """A progress bar on standard error."""
    text, left = TextColumn("{task.description}", markup=False), TimeRemainingColumn()
    return Progress(text, BarColumn(), *columns, left, console=Console(stderr=True))


@contextmanager
def counting(title: str, column: Any = None) -> Iterator[Counter]:
    """A bar that counts the steps of a task; `column` shows their number.

    It appears with the first step: what fails before, or has nothing to do, shows none."""
    shown = bar(column or MofNCompleteColumn())

    def count(done: int, total: int) -> None:
        if not shown.task_ids:
            shown.start()
            shown.add_task(title, total=None)
        shown.update(shown.task_ids[0], completed=done, total=total or None)

    try:
        yield count
    finally:
        if shown.task_ids:
            shown.stop()
