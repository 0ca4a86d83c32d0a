"""The verb that carries out a plan of runs, and its live table."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from segcal.cli.app import AsJson, app, show
from segcal.study.watch import State, Watch

GPUS = (
    "GPUs of a cell, or a share of one, or 0; by default one where there are any, on a cluster"
    " none."
)
LAST_OF = (
    "A study with the same trainings, whose last epochs are taken instead of training again. May be"
    " repeated."
)
SHOWN = (
    "trains",
    "scores",
    "failed",
    "waits",
    "trained",
    "finished",
)  # what a full table shows first


@app.command(epilog="Example: segcal study paper --data cases/acdc --out studies/acdc --workers 4")
def study(
    plan: Annotated[str, typer.Argument(help="paper, quick, smoke, or a TOML file of your own.")],
    data: Annotated[
        list[str] | None, typer.Option(help="A prepared data set's folder. May be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The study's folder; by default studies/PLAN-DATA.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any key of the plan, such as network.width=8."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this section of the plan. May be repeated.")
    ] = None,
    cell: Annotated[
        list[str] | None,
        typer.Option(help="Only this cell, as --dry-run names it. May be repeated."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Run every cell with seeds 0 to N-1.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes here; by default as many as cores or GPUs allow.")
    ] = None,
    ray: Annotated[str, typer.Option(help="Run on a Ray cluster: auto, or its address.")] = "",
    cpus: Annotated[
        int | None,
        typer.Option("--cpus-per-cell", help="Threads of a cell; 1 unless the plan says."),
    ] = None,
    gpus: Annotated[float | None, typer.Option("--gpus-per-cell", help=GPUS)] = None,
    last_of: Annotated[list[Path] | None, typer.Option(help=LAST_OF)] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Try cells again that failed.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the cells and how long they will take.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Carry out a plan: many runs, settings chosen by validation, the chosen ones scored on
    test.
    """
    from segcal.study import engines

    if not ray:
        engines.warm_up()  # imports take seconds: both processes do theirs at once
    from segcal.study.estimate import estimate
    from segcal.study.plan import read_plan
    from segcal.study.runner import run_study

    parts = {"only": only or [], "names": cell or []}
    wanted = read_plan(
        plan, data=data, overrides=sets or [], seeds=seeds, cpus=cpus, gpus=gpus, **parts
    )
    names = dict.fromkeys(Path(cell.settings.data).name for cell in wanted.cells)
    folder = out or Path("studies") / "-".join([wanted.name, *names])
    if dry_run:
        _show_estimate(
            estimate(
                wanted, folder, workers=workers, ray=ray, last_of=last_of or [], watch=Board()
            ),
            as_json,
        )
        return
    with Board() as board:
        said = run_study(
            wanted,
            folder,
            workers=workers,
            ray=ray,
            retry=retry,
            last_of=last_of or [],
            watch=board,
        )
    _show_outcome(said, as_json)
    for name, error in said["failed"].items():
        print(f"segcal: failed: {name}: {error}", file=sys.stderr)
    for name in said["undecided"]:
        print(
            f"segcal: not run: {name} waits for a setting that none was finished for",
            file=sys.stderr,
        )
    if said["failed"] or said["undecided"]:
        raise typer.Exit(1)


def _show_outcome(said: dict[str, Any], as_json: bool) -> None:
    table = Table("method", "tried: validation DSC", "chosen", "runs", title=said["out"])
    for row in said["contenders"]:
        tried = ", ".join(
            f"{text or 'as is'}: {_number(dice)}" for text, dice in row["tried"].items()
        )
        chosen = "none finished" if row["chosen"] is None else row["chosen"] or "as is"
        table.add_row(row["label"], tried, chosen, str(len(row["runs"])))
    show(said, table, as_json)


def _show_estimate(said: dict[str, Any], as_json: bool) -> None:
    table = Table(
        "cell", "sections", "state", "epochs", "time", title=f"{len(said['cells'])} cells"
    )
    for row in said["cells"]:
        state = "waits for a choice" if row["waits"] else row["status"]
        epochs = f"{row['epoch']}/{row['epochs']}"
        table.add_row(
            row["cell"], ", ".join(row["sections"]), state, epochs, _duration(row["seconds"])
        )
    table.add_row("scores and calibrators of the chosen", "", "", "", _duration(said["finish"]))
    table.add_row(f"all, with {said['workers']} at a time", "", "", "", _duration(said["total"]))
    show(said, table, as_json)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _duration(seconds: float) -> str:
    """Rounded as people say it.

    >>> [_duration(s) for s in (0, 42, 600, 9000, 400000)]
    ['', '42 s', '10 min', '2.5 h', '4.6 d']
    """
    for unit, size, limit in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 72)):
        if seconds < limit * size:
            digits = 1 if unit == "h" else 0
            return f"{seconds / size:.{digits}f} {unit}" if seconds else ""
    return f"{seconds / 86400:.1f} d"


class Board(Watch):
    """Shows how a study goes: a live table on a terminal, else a line whenever something ends."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.title = ""

    def __enter__(self) -> Board:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def says(self, line: str) -> None:
        """Print it above the table; where there is none, with how far all cells are."""
        line += f" ({self.title})" if self.title and not self.console.is_terminal else ""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def sees(self, states: Mapping[str, State], slots: int) -> None:
        """Draw the table anew."""
        self.title = board_title(states, slots)
        if self.console.is_terminal:
            self.live.update(board_table(states, slots, self.console.height - 6), refresh=True)


def board_table(states: Mapping[str, State], slots: int, height: int) -> Table:
    """How far every cell is; of too many for the screen those that something happens to."""
    rows = sorted(states.items(), key=lambda item: SHOWN.index(item[1].step))[: max(1, height)]
    table = Table("cell", "", "epoch", "val DSC", "left", title=board_title(states, slots))
    for name, state in rows:
        epoch = f"{state.epoch}/{state.epochs}"
        left = _duration(state.left) if state.step == "trains" else ""
        table.add_row(name, state.step, epoch, _number(state.dice), left)
    return table


def board_title(states: Mapping[str, State], slots: int) -> str:
    """How far all cells are together."""
    done = sum(state.step in ("trained", "scores", "finished") for state in states.values())
    return f"{done} of {len(states)} cells, {_left(states, slots)}"


def _left(states: Mapping[str, State], slots: int) -> str:
    """The time of training that is left; a cell that waits is taken to be like the mean of those
    that do not.
    """
    known = [state.seconds for state in states.values() if state.seconds]
    if not known:
        return "starting"
    mean = sum(known) / len(known)
    going = [state for state in states.values() if state.step in ("waits", "trains")]
    if not going:
        return "all trained"
    seconds = sum((state.epochs - state.epoch) * (state.seconds or mean) for state in going) / slots
    return f"about {_duration(max(seconds, 1.0))} of training left"
