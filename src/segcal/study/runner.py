"""Carry out a plan: train, let validation choose, train what waited for the choice, score on test.

Every step looks at the run folders first and does what is missing, so that the same call resumes
after any interruption."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from segcal import folders
from segcal.config import checked
from segcal.study.cells import Cell, cell_name
from segcal.study.engines import Engine, start_engine
from segcal.study.folder import adopted, cell_state, follow_data, is_scored, is_trained, record_plan
from segcal.study.jobs import After, Job
from segcal.study.plan import Plan
from segcal.study.sections import tunable
from segcal.study.selection import Choice, choose, choose_all, rule_text
from segcal.study.watch import State, Watch
from segcal.types import AnyPath


def run_study(
    plan: Plan,
    out: AnyPath,
    *,
    workers: int | None = None,
    ray: str = "",
    retry: bool = False,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Carry out what is left of a plan; returns the chosen settings and the cells that failed.

    Cells that failed in an earlier call are left out unless `retry`. `workers` are processes here,
    `ray` is the address of a cluster whose nodes share the path of `out` and of the data."""
    root = Path(out).absolute()
    with folders.alone(root):
        folders.sweep(root)
        plan = replace(plan, cells=adopted(root, plan.cells))
        failed = {} if retry else folders.failed_cells(root)
        with closing(start_engine(workers=workers, ray=ray, **plan.needs)) as engine:
            root.mkdir(parents=True, exist_ok=True)
            record_plan(root, plan)
            return _Study(plan, root, engine, watch or Watch(), failed).run()


@dataclass
class _Study:
    plan: Plan
    root: Path
    engine: Engine
    watch: Watch
    failed: dict[str, str]
    cells: dict[str, Cell] = field(default_factory=dict)
    waiting: list[Cell] = field(default_factory=list)  # for a choice
    finished: set[str] = field(default_factory=set)
    trained: dict[str, State] = field(default_factory=dict)  # they need not be read again

    def run(self) -> dict[str, Any]:
        self.cells = {cell.name: cell for cell in self.plan.cells if not cell.choices}
        self.waiting = [cell for cell in self.plan.cells if cell.choices]
        for cell in self.cells.values():
            follow_data(self.root, cell)
        n_trained = sum(is_trained(self.root, name) for name in self.cells)
        if n_trained:
            self.watch.say(f"{n_trained} of {len(self.plan.cells)} cells are trained already")
        for name in [name for name in self.failed if name in self.cells]:
            skipped = "not scored again" if is_trained(self.root, name) else "left out"
            reason = f"{name}: {self.failed[name]}"
            self.watch.say(f"{skipped}, it failed before (--retry tries it again): {reason}")
        self._do(self._trainings())
        self._settle()
        # Trainings first: they are long, and scoring fills the gaps at their end.
        self._do([*self._trainings(), *self._finishings(self._choose())])
        choices = self._choose()
        self._do(self._finishings(choices))
        self._note()
        with suppress(OSError):
            folders.cell_log(self.root, "any").parent.rmdir()  # if no process left a log
        failed = {name: why for name, why in self.failed.items() if name in self.cells}
        undecided = [cell.name for cell in self.waiting]
        outcome: dict[str, Any] = {"out": str(self.root), "failed": failed, "undecided": undecided}
        return outcome | {"contenders": [choice.record() for choice in choices]}

    def _settle(self) -> None:
        """Give the cells that wait for a choice the setting that was chosen in their fold."""
        waiting, self.waiting = self.waiting, []
        for cell in waiting:
            loss = cell.settings.loss.name
            tried = [self.cells[name] for name in cell.choices]
            rule, weights = self.plan.choose, cell.after.weights[0]
            chosen = choose(tried, weights, self.root, self.failed, rule).chosen
            if not chosen:
                self.waiting.append(cell)
                self.watch.say(f"left out, no setting of {loss} is finished: {cell.name}")
                continue
            values = cell.settings.model_dump(mode="json")
            for key in tunable(loss):
                values["loss"][key] = chosen[0].settings.loss.settings[key]
            settings = checked(values)
            name = cell_name(settings, self.plan.varying)
            (new,) = adopted(self.root, [replace(cell, name=name, settings=settings, choices=())])
            known = self.cells.get(new.name, new)
            self.cells[new.name] = replace(known, after=known.after | new.after)
            follow_data(self.root, new)

    def _choose(self) -> list[Choice]:
        rule, cells = self.plan.choose, list(self.cells.values())
        choices = choose_all(cells, self.root, self.failed, rule)
        records = [choice.record() for choice in choices]
        folders.write_selection(self.root, rule, rule_text(rule), records)
        return choices

    def _trainings(self) -> list[Job]:
        jobs = []
        for name, cell in self.cells.items():
            if name not in self.failed and not is_trained(self.root, name):
                jobs.append(self._job("train", cell, cell.after))
        return jobs

    def _finishings(self, choices: Sequence[Choice]) -> list[Job]:
        """Test scores of the chosen runs that lack them, and of no other runs."""
        weights: dict[str, tuple[str, ...]] = {}
        for choice in choices:
            for cell in choice.chosen if choice.is_final else ():
                weights[cell.name] = (*weights.get(cell.name, ()), choice.weights)
        jobs = []
        for name, wanted in weights.items():
            after = replace(self.cells[name].after, weights=wanted)
            if is_scored(self.root, name, after):
                self.finished.add(name)
            elif name not in self.failed:
                jobs.append(self._job("finish", self.cells[name], after))
        return jobs

    def _job(self, kind: str, cell: Cell, after: After) -> Job:
        folder = folders.cell_folder(self.root, cell.name)
        log = folders.cell_log(self.root, cell.name)
        return Job(kind, cell.name, folder, cell.settings, after, self.plan.cpus, log)

    def _do(self, jobs: Sequence[Job]) -> None:
        scoring = {job.name for job in jobs if job.kind == "finish"}

        def tick(running: Collection[str]) -> None:
            self.watch.update(self._states(scoring.intersection(running)), self.engine.slots)

        with closing(self.engine.run(jobs, tick)) as outcomes:
            for job, outcome in outcomes:
                if outcome.error:
                    self.failed[job.name] = outcome.error
                    line = f"failed: {job.name}: {outcome.error}"
                elif job.kind == "finish":
                    self.finished.add(job.name)
                    line = f"scored: {job.name}"
                else:
                    line = f"trained: {job.name}: validation DSC {outcome.value['val_dice']:.4f}"
                tick(())  # before the line, which may show the progress of all cells
                self.watch.say(line)
                for warning in outcome.value.get("warnings", ()):
                    self.watch.say(f"warning: {job.name}: {warning}")
                self._note()

    def _states(self, scoring: Collection[str] = ()) -> dict[str, State]:
        states = {}
        for name, cell in self.cells.items():
            state = self.trained.get(name) or cell_state(self.root, cell)
            if state.step == "trained":
                self.trained[name] = state
            if name in self.failed:
                state = replace(state, step="failed")
            elif name in scoring:
                state = replace(state, step="scores")
            elif name in self.finished:
                state = replace(state, step="finished")
            states[name] = state
        for cell in self.waiting:
            states[cell.name] = State("waits", 0, cell.settings.training.epochs)
        return states

    def _note(self) -> None:
        """Write the state of every cell."""
        records: dict[str, dict[str, Any]] = {}
        for name, state in self._states().items():
            records[name] = {"status": state.step, "val_dice": state.dice}
        for name, error in self.failed.items():
            records[name] = {"status": folders.FAILED, "error": error}
        folders.write_cells(self.root, records)
