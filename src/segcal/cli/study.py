"""The verb that carries out a plan of runs, and its live table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from typer import Argument, Option

from segcal.cli.app import AsJson, Names, app, note, show
from segcal.study.watch import State, Watch

CPUS = "Threads of a cell; 1 unless the plan says more."
GPUS = "GPUs of a cell, or a share of one; default: one if there are any, on a cluster none."
SHOWN = ("trains", "scores", "failed", "waits", "trained", "finished")  # first in a full table
FOLDS = "Run every cell on folds 0 to N-1 of the data (segcal prepare --folds N)."
WORKERS = "Processes here; by default as many as cores or GPUs allow."


@app.command(epilog="Example: segcal study paper --data cases/acdc --out studies/acdc --workers 4")
def study(
    plan: Annotated[str, Argument(help="paper, quick, smoke, or a TOML file of your own.")],
    data: Annotated[Names, Option(help="A prepared data set. May be repeated.")] = None,
    out: Annotated[Path | None, Option(help="By default studies/PLAN-DATA.")] = None,
    sets: Annotated[Names, Option("--set", help="Any key, such as network.width=8.")] = None,
    only: Annotated[Names, Option(help="Only this section. May be repeated.")] = None,
    cell: Annotated[Names, Option(help="Only this cell of --dry-run. May be repeated.")] = None,
    seeds: Annotated[int | None, Option(min=1, help="Run every cell with seeds 0 to N-1.")] = None,
    folds: Annotated[int | None, Option(min=1, help=FOLDS)] = None,
    workers: Annotated[int | None, Option(help=WORKERS)] = None,
    ray: Annotated[str, Option(help="Run on a Ray cluster: auto, or its address.")] = "",
    cpus: Annotated[int | None, Option("--cpus-per-cell", help=CPUS)] = None,
    gpus: Annotated[float | None, Option("--gpus-per-cell", help=GPUS)] = None,
    retry: Annotated[bool, Option("--retry", help="Try cells again that failed.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="List the cells, estimate times.")] = False,
    as_json: AsJson = False,
) -> None:
    """Carry out a plan: many runs; validation chooses settings; the chosen are scored on test."""
    from segcal.study import engines

    if not ray:
        engines.warm_up()  # it imports torch at the same time as this process
    from segcal.study.estimate import estimate
    from segcal.study.plan import read_plan
    from segcal.study.runner import run_study

    options: dict[str, Any] = {"seeds": seeds, "folds": folds, "cpus": cpus, "gpus": gpus}
    options |= {"overrides": sets or [], "only": only or [], "names": cell or []}
    wanted = read_plan(plan, data=data, **options)
    names = dict.fromkeys(Path(cell.settings.data).name for cell in wanted.cells)
    folder = out or Path("studies") / "-".join([wanted.name, *names])
    if dry_run:
        times = estimate(wanted, folder, workers=workers, ray=ray, watch=Board())
        show(times, _estimate_table(times), as_json)
        return
    with Board() as board:
        done = run_study(wanted, folder, workers=workers, ray=ray, retry=retry, watch=board)
    show(done, _outcome_table(done), as_json)
    for row in done["contenders"]:
        if lacking := _lacking(row):
            never = f"{row['label']} never predicts {lacking} on validation"
            note(f"{never}; {row['remedy']}", "warning")
    for name, error in done["failed"].items():
        note(f"failed: {name}: {error}", "segcal")
    for name in done["undecided"]:
        reason = "waits for a choice, but no setting to choose from was finished"
        note(f"not run: {name} {reason}", "segcal")
    if done["failed"] or done["undecided"]:
        raise typer.Exit(1)


def _outcome_table(done: Mapping[str, Any]) -> Table:
    heads = ["method", "weights", "tried: validation DSC (NLL)", "chosen", "runs"]
    some_lack = any(_lacking(row) for row in done["contenders"])
    table = Table(*heads, *["never predicted"] * some_lack, title=done["out"])
    for row in done["contenders"]:
        tried = []
        for text, dice in row["tried"].items():
            with_nll = f" ({row['nll'][text]:.4f})" if text in row["nll"] else ""
            tried.append(f"{text or 'as is'}: {_number(dice)}{with_nll}")
        chosen = "none finished" if row["chosen"] is None else row["chosen"] or "as is"
        cells = [row["label"], row["weights"], ", ".join(tried), chosen, str(len(row["runs"]))]
        table.add_row(*cells, *[_lacking(row)] * some_lack)
    return table


def _lacking(row: Mapping[str, Any]) -> str:
    """The classes that validation never predicts, each with the number of runs: `LV (1 of 3)`."""
    counts = Counter(kind for kinds in row.get("never_predicted", {}).values() for kind in kinds)
    return ", ".join(f"{kind} ({n} of {len(row['runs'])})" for kind, n in counts.items())


def _estimate_table(times: Mapping[str, Any]) -> Table:
    title = f"{len(times['cells'])} cells; times are estimates from a few training steps"
    table = Table("cell", "sections", "state", "epochs", "time left", title=title)
    for row in times["cells"]:
        state = "waits for a choice" if row["waits"] else row["status"]
        epochs, left = f"{row['epoch']}/{row['epochs']}", _duration(row["seconds"])
        table.add_row(row["cell"], ", ".join(row["sections"]), state, epochs, left)
    table.add_row("scores and calibrators of the chosen", "", "", "", _duration(times["finish"]))
    table.add_row(f"all, with {times['workers']} at a time", "", "", "", _duration(times["total"]))
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _duration(seconds: float) -> str:
    """A rounded time.

    >>> [_duration(s) for s in (0, 42, 600, 9000, 400000)]
    ['', '42 s', '10 min', '2.5 h', '4.6 d']
    """
    if not seconds:
        return ""
    for unit, size, limit, digits in (("s", 1, 120, 0), ("min", 60, 120, 0), ("h", 3600, 72, 1)):
        if seconds < limit * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86400:.1f} d"


class Board(Watch):
    """Shows a study's progress: a live table on a terminal, else a line whenever a cell ends."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, markup=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.title = ""

    def __enter__(self) -> Board:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def say(self, line: str) -> None:
        """Print a line above the table; without a table, with the progress of all cells."""
        if self.title and not self.console.is_terminal:
            line += f" ({self.title})"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def update(self, states: Mapping[str, State], slots: int) -> None:
        """Draw the table again."""
        self.title = _title(states, slots)
        if self.console.is_terminal:
            self.live.update(board_table(states, slots, self.console.height - 6), refresh=True)


def board_table(states: Mapping[str, State], slots: int, height: int) -> Table:
    """The progress of the cells; running ones first, as many as fit the screen."""
    rows = sorted(states.items(), key=lambda item: SHOWN.index(item[1].step))[: max(1, height)]
    some_lack = any(state.never_predicted for _, state in rows)
    heads = ["cell", "", "epoch", "val DSC", "left", *["never predicted"] * some_lack]
    table = Table(*heads, title=_title(states, slots))
    for name, state in rows:
        epoch = f"{state.epoch}/{state.epochs}"
        left = _duration(state.left) if state.step == "trains" else ""
        cells = [name, state.step, epoch, _number(state.dice), left]
        table.add_row(*cells, *[state.never_predicted] * some_lack)
    return table


def _title(states: Mapping[str, State], slots: int) -> str:
    """The progress of all cells together; one that waits is assumed to be like the mean."""
    done = sum(state.step in ("trained", "scores", "finished") for state in states.values())
    left = [state for state in states.values() if state.step in ("waits", "trains")]
    known = [state.seconds for state in states.values() if state.seconds]
    text = "all trained" if known else "starting"
    if known and left:
        mean = sum(known) / len(known)
        seconds = sum((state.epochs - state.epoch) * (state.seconds or mean) for state in left)
        text = f"about {_duration(max(seconds / slots, 1.0))} of training left"
    return f"{done} of {len(states)} cells, {text}"
