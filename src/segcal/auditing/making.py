"""The making of an audit: two passes over the cases, and the fits between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal import calibrators
from segcal.auditing.crossfit import BY_SUMS, LEAST, Table, fitted, held_out_groups, out_of_fold
from segcal.auditing.records import read_scored, read_voxels, record_path
from segcal.auditing.scored import Facts, Fits
from segcal.auditing.temperatures import parameters_of
from segcal.auditing.work import BEFORE, Task, condition_of, done, spread
from segcal.auditing.written import Audited
from segcal.calibrators import Fitted
from segcal.folders import StoppedError
from segcal.predictors.reading import read_case
from segcal.predictors.source import Source, SourceCase
from segcal.types import Progress, UserError


@dataclass
class Making:
    """The two passes over the cases of a source, and the fits between them."""

    source: Source
    folder: Path
    resample: bool
    keep_going: bool
    workers: int
    ray: str
    progress: Progress | None
    options: Mapping[str, str | None]
    sample: bool = False  # whether single voxels are kept to fit on
    n_done: int = 0
    n_foreground: float = 0.0

    def carry_out(self, names: tuple[str, ...], method: str | None) -> Audited:
        """Score, fit, and score after each calibrator."""
        cases = range(len(self.source.cases))
        self.sample = not set(names) <= set(BY_SUMS)
        left_out = dict(self.source.left_out) | self._pass(cases, {})
        numbers = tuple(i for i in cases if self.source.cases[i].id not in left_out)
        if not numbers:
            raise UserError(f"{self.source.root} has no case that can be scored")
        facts = {self.source.cases[i].id: self._facts(i) for i in numbers}
        if not self.n_foreground:
            raise UserError("no reference holds any foreground, so there is nothing to score")
        kept = [self.source.cases[i] for i in numbers]
        _refuse_copies(kept, facts)
        n_problems = len(next(iter(facts.values())).curves)
        tables = []
        for p in range(n_problems):
            tables.append(Table.of(kept, {id: each.curves[p] for id, each in facts.items()}))
        by_number = self._out_of_fold(numbers, tables, names)
        self._pass(tuple(by_number), by_number)
        grid = read_case(self.source, kept[0], resample=self.resample).geometry
        return Audited(
            source=self.source,
            numbers=numbers,
            facts=facts,
            fits=self._final(tables, numbers, names) if by_number else {},
            calibrators=tuple(names) if by_number else (),
            out_of_fold={self.source.cases[i].id: of_case for i, of_case in by_number.items()},
            method=method,
            options=self.options,
            orientation=grid.orientation if grid is not None else None,
            left_out=left_out,
            notes=self._notes(tables),
        )

    def _out_of_fold(
        self, numbers: Sequence[int], tables: Sequence[Table], names: Sequence[str]
    ) -> dict[int, Fits]:
        """For each case, by number, the fits without its patient; none if a case has none, because
        scores before and after are compared."""
        if not tables:
            return {}
        cases = {i: self.source.cases[i] for i in numbers}
        fits = out_of_fold(cases.values(), tables, [name for name in names if name in BY_SUMS])
        if self.sample:
            for group, others in held_out_groups(cases):
                for name in set(names) - set(BY_SUMS):
                    of_group = self._fitted_on_voxels(name, others, len(tables))
                    for i in group:
                        fits.setdefault(cases[i].id, {})[name] = of_group
        by_number: dict[int, Fits] = {}
        for i, case in cases.items():
            of_case = fits.get(case.id, {})
            if len(of_case) < len(names):
                return {}
            by_number[i] = {name: [parameters_of(fit) for fit in of_case[name]] for name in names}
        return by_number

    def _pass(self, numbers: Sequence[int], fits: Mapping[int, Fits]) -> dict[str, str]:
        """Do what is not done yet; why cases are left out, by their ids."""
        missing = []
        for number in numbers:
            if not done(self.folder, number, condition_of(fits.get(number))):
                missing.append(number)
        self._step(len(numbers) - len(missing))
        task = Task(
            self.folder,
            self.source,
            tuple(missing),
            self.resample,
            sample=self.sample,
            fits=dict(fits),
        )
        failed = spread(task, self.workers, self.ray, self._step)
        if failed and (fits or not self.keep_going):  # what was scored before is scored after
            texts = list(failed.values())
            more = f" (and {len(texts) - 1} more cases)" if len(texts) > 1 else ""
            remedy = "" if fits else "; --keep-going leaves such cases out"
            error = StoppedError if len(failed) < len(numbers) else UserError  # which keeps nothing
            raise error(f"{texts[0]}{more}{remedy}")
        return {self.source.cases[i].id: why for i, why in failed.items()}

    def _step(self, n: int) -> None:
        self.n_done += n
        if self.progress is not None:
            self.progress(self.n_done, 2 * len(self.source.cases))

    def _facts(self, number: int) -> Facts:
        known = read_scored(record_path(self.folder, number, BEFORE))
        assert known is not None
        assert known[1] is not None
        self.n_foreground += float(known[0][""].statistics.sets["all"].n_foreground)
        return known[1]

    def _final(
        self, tables: Sequence[Table], numbers: Sequence[int], names: Sequence[str]
    ) -> dict[str, Any]:
        """What is saved: the fits on all cases, and on those of each fold, for each problem."""
        folds = [None, *(name for name in tables[0].sizes if name)]
        final: dict[str, Any] = {}
        for fold in folds:
            of_fold = [i for i in numbers if fold in (None, self.source.cases[i].fold)]
            for key in names:
                if key in BY_SUMS:
                    fits = [fitted(key, table.all_of(fold)) for table in tables]
                else:
                    fits = self._fitted_on_voxels(key, of_fold, len(tables))
                final.setdefault("" if fold is None else fold, {})[key] = fits
        return final

    def _fitted_on_voxels(self, name: str, numbers: Sequence[int], n_problems: int) -> list[Fitted]:
        """The fit of each problem on the voxels that were kept of some cases."""
        fits = []
        for p in range(n_problems):

            def batches(problem: int = p) -> Iterator[tuple[Any, ...]]:
                for number in numbers:
                    x, y = read_voxels(record_path(self.folder, number, BEFORE), problem)
                    if len(y):
                        yield x.T, y, x.T, self.source.cases[number].patient

            fits.append(calibrators.fit(name, batches))
        return fits

    def _notes(self, tables: Sequence[Table]) -> list[str]:
        """What was done otherwise than a reader would expect."""
        sizes = tables[0].sizes if tables else {}
        few = [fold for fold, n in sizes.items() if n < LEAST]
        notes = []
        if few and len(sizes) > 1:
            names = ", ".join(few)
            notes.append(
                f"fold {names} has fewer than {LEAST} patients, so its calibrators are fitted on"
                " other folds, whose networks were trained on its cases"
            )
        if len(sizes) > 1:
            notes.append(
                "this is about the network of each fold: of the ensemble of all folds no"
                " out-of-fold predictions exist"
            )
        return notes


def _refuse_copies(cases: Sequence[SourceCase], facts: Mapping[str, Facts]) -> None:
    """Refuse one case under two names, whose fits would be on what they are scored on."""
    first: dict[Any, SourceCase] = {}
    for case in cases:
        own = facts[case.id]
        content = (own.label_sha256, *(curves.sums.tobytes() for curves in own.curves))
        other = first.setdefault(content, case)
        if own.curves and other.patient != case.patient:
            both = f"{other.id} and {case.id} hold the same maps and reference"
            why = "calibrators would be fitted on what they are scored on"
            remedy = "name their one patient with --patients, or remove one of them"
            raise UserError(f"{both}, so {why}; {remedy}")
