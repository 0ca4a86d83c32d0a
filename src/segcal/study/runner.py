"""Carry out a plan: train, let validation choose, train what waited for the choice, then score the
chosen on test.

Every step looks at the run folders first and does what is missing, so the same call goes on after
any interruption."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from segcal.folders import alone
from segcal.study.cells import Cell
from segcal.study.engines import Engine, Tick, start_engine
from segcal.study.folder import Folder
from segcal.study.jobs import Job
from segcal.study.last import take_last, trained_elsewhere
from segcal.study.plan import Plan
from segcal.study.selection import RULE, Choice, choose, settled
from segcal.study.watch import FAILED, FINISHED, SCORES, TRAINED, WAITS, State, Watch


def run_study(
    plan: Plan,
    out: Path,
    *,
    workers: int | None = None,
    ray: str = "",
    retry: bool = False,
    last_of: Sequence[Path] = (),
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Carry out what is left of a plan; returns the chosen settings and the cells that failed.

    Cells that failed in an earlier call are left out unless `retry`. `workers` are processes here,
    `ray` is the address of a cluster whose nodes share the path of `out` and of the data. Cells
    that keep the last epoch are not trained if one of the studies `last_of` has trained them."""
    folder = Folder(out.absolute())
    with alone(folder.root):
        plan = replace(plan, cells=folder.adopted(plan.cells))
        for name, run in trained_elsewhere(plan.cells, last_of).items():
            if not folder.run(name).exists():
                take_last(run, folder.run(name))
        failed = {} if retry else folder.failures()
        with closing(start_engine(workers=workers, ray=ray, **plan.needs)) as engine:
            return _Study(plan, folder, engine, watch or Watch(), failed).run()


@dataclass
class _Study:
    plan: Plan
    folder: Folder
    engine: Engine
    watch: Watch
    failed: dict[str, str]
    cells: dict[str, Cell] = field(default_factory=dict)
    waiting: list[Cell] = field(default_factory=list)  # for a choice
    finished: set[str] = field(default_factory=set)
    ended: dict[str, State] = field(
        default_factory=dict
    )  # of trainings, so that they need not be read again

    def run(self) -> dict[str, Any]:
        self.folder.root.mkdir(parents=True, exist_ok=True)
        self.folder.write_plan(self.plan)
        self.cells = {cell.name: cell for cell in self.plan.cells if not cell.choices}
        self.waiting = [cell for cell in self.plan.cells if cell.choices]
        for cell in self.cells.values():
            self.folder.follow_data(cell)
        self._say_what_is_known()
        self._do(self._trainings())
        choices = self._choose()
        self._settle(choices)
        # Trainings first: they are long, and scoring what is chosen already fills the gaps at their
        # end.
        self._do([*self._trainings(), *self._finishings(choices)])
        choices = self._choose()
        self._do(self._finishings(choices))
        self._note()
        with suppress(OSError):
            self.folder.log("").parent.rmdir()  # if no process left anything there
        failed = {name: error for name, error in self.failed.items() if name in self.cells}
        undecided = [cell.name for cell in self.waiting]
        contenders = [choice.plain() for choice in choices]
        return {
            "out": str(self.folder.root),
            "contenders": contenders,
            "failed": failed,
            "undecided": undecided,
        }

    def _say_what_is_known(self) -> None:
        known = sum(self.folder.trained(name) for name in self.cells)
        if known:
            self.watch.says(f"{known} of {len(self.plan.cells)} cells are trained already")
        for name in self.failed:
            if name in self.cells:
                what = "not scored again" if self.folder.trained(name) else "left out"
                self.watch.says(
                    f"{what}, for it failed before (--retry tries it again): {name}:"
                    f" {self.failed[name]}"
                )

    def _settle(self, choices: Sequence[Choice]) -> None:
        """Give the cells that wait for a choice their setting, where there is one."""
        left = []
        for cell in self.waiting:
            now = settled(cell, choices, self.plan.varying)
            if now is None:
                left.append(cell)
                self.watch.says(
                    f"left out, for no setting of {cell.settings.loss.name} is finished:"
                    f" {cell.name}"
                )
                continue
            (now,) = self.folder.adopted([now])
            same = self.cells.get(now.name, now)
            self.cells[now.name] = replace(same, after=same.after | now.after)
            self.folder.follow_data(now)
        self.waiting = left

    def _choose(self) -> list[Choice]:
        choices = choose(tuple(self.cells.values()), self.folder, self.failed)
        self.folder.write_selection(RULE, [choice.plain() for choice in choices])
        return choices

    def _trainings(self) -> list[Job]:
        open_cells = (cell for name, cell in self.cells.items() if name not in self.failed)
        return [
            self._job("train", cell) for cell in open_cells if not self.folder.trained(cell.name)
        ]

    def _finishings(self, choices: Sequence[Choice]) -> list[Job]:
        """The test split is for chosen runs alone."""
        jobs = []
        for name in (cell.name for choice in choices for cell in choice.chosen):
            if name in self.failed:
                continue
            if self.folder.scored(name, self.cells[name].after):
                self.finished.add(name)
            else:
                jobs.append(self._job("finish", self.cells[name]))
        return jobs

    def _job(self, kind: str, cell: Cell) -> Job:
        settings, log = cell.settings.model_dump(mode="json"), self.folder.log(cell.name)
        return Job(
            kind, cell.name, self.folder.run(cell.name), settings, cell.after, self.plan.cpus, log
        )

    def _do(self, jobs: Sequence[Job]) -> None:
        scoring = {job.name for job in jobs if job.kind == "finish"}

        def tick(running: Collection[str]) -> None:
            self.watch.sees(self._states(scoring.intersection(running)), self.engine.slots)

        with _outcomes(self.engine, jobs, tick) as outcomes:
            for job, outcome in outcomes:
                if outcome.error:
                    self.failed[job.name] = outcome.error
                    said = f"failed: {job.name}: {outcome.error}"
                elif job.kind == "finish":
                    self.finished.add(job.name)
                    said = f"scored: {job.name}"
                else:
                    said = f"trained: {job.name}: validation DSC {outcome.value['val_dice']:.4f}"
                tick(())  # so that what is said of all cells counts this one
                self.watch.says(said)
                for line in outcome.value.get("warnings", ()):
                    self.watch.says(f"warning: {job.name}: {line}")
                self._note()

    def _states(self, scoring: Collection[str] = ()) -> dict[str, State]:
        found = {}
        for name, cell in self.cells.items():
            state = self.ended.get(name) or self.folder.state(cell)
            if state.step == TRAINED:
                self.ended[name] = state
            step = SCORES if name in scoring else FINISHED if name in self.finished else state.step
            found[name] = replace(state, step=FAILED if name in self.failed else step)
        return found | {
            cell.name: State(WAITS, 0, cell.settings.training.epochs) for cell in self.waiting
        }

    def _note(self) -> None:
        self.folder.write_cells(self._states(), self.failed)


@contextmanager
def _outcomes(engine: Engine, jobs: Sequence[Job], tick: Tick) -> Iterator[Iterable[Any]]:
    """The engine's outcomes as they come; its processes are ended if anything goes wrong here."""
    outcomes = engine.run(jobs, tick)
    try:
        yield outcomes
    finally:
        outcomes.close()
