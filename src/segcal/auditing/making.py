"""The making of an audit: two passes over the cases, and the fits between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.auditing.crossfit import LEAST, Table, fitted, out_of_fold
from segcal.auditing.records import read_scored, record_path
from segcal.auditing.scored import Facts, Fits
from segcal.auditing.work import BEFORE, Task, condition_of, done, spread
from segcal.auditing.written import Audited
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
    n_done: int = 0
    n_foreground: float = 0.0

    def carry_out(self, names: tuple[str, ...], method: str | None) -> Audited:
        """Score, fit, and score after each calibrator."""
        cases = range(len(self.source.cases))
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
        fits = out_of_fold(kept, tables, names) if tables else {}
        by_number: dict[int, Fits] = {}
        for i in numbers:
            of_case = fits.get(self.source.cases[i].id, {})
            if of_case:
                by_number[i] = {
                    key: [{n: float(v) for n, v in fit.parameters.items()} for fit in each]
                    for key, each in of_case.items()
                }
        if len(by_number) < len(numbers):  # all or none: scores before and after are compared
            by_number = {}
        self._pass(tuple(by_number), by_number)
        grid = read_case(self.source, kept[0], resample=self.resample).geometry
        return Audited(
            source=self.source,
            numbers=numbers,
            facts=facts,
            fits=self._final(tables, names) if by_number else {},
            calibrators=tuple(names) if by_number else (),
            out_of_fold={self.source.cases[i].id: of_case for i, of_case in by_number.items()},
            method=method,
            options=self.options,
            orientation=grid.orientation if grid is not None else None,
            left_out=left_out,
            notes=self._notes(tables),
        )

    def _pass(self, numbers: Sequence[int], fits: Mapping[int, Fits]) -> dict[str, str]:
        """Do what is not done yet; why cases are left out, by their ids."""
        missing = []
        for number in numbers:
            if not done(self.folder, number, condition_of(fits.get(number))):
                missing.append(number)
        self._step(len(numbers) - len(missing))
        task = Task(self.folder, self.source, tuple(missing), self.resample, dict(fits))
        failed = spread(task, self.workers, self.ray, self._step)
        if failed and (fits or not self.keep_going):  # what was scored before is scored after
            texts = list(failed.values())
            more = f" (and {len(texts) - 1} more cases)" if len(texts) > 1 else ""
            remedy = "" if fits else "; --keep-going leaves such cases out"
            raise StoppedError(f"{texts[0]}{more}{remedy}")
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

    def _final(self, tables: Sequence[Table], names: Sequence[str]) -> dict[str, Any]:
        """What is saved: the fits on all cases, and on those of each fold, for each problem."""
        folds = [None, *(name for name in tables[0].sizes if name)]
        final: dict[str, Any] = {}
        for fold in folds:
            for key in names:
                fits = [fitted(key, table.all_of(fold)) for table in tables]
                final.setdefault("" if fold is None else fold, {})[key] = fits
        return final

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
