"""Calibrators without a leak: what scores a case was fitted on none of its patient's cases.

Within a fold one network predicted all cases and saw none of them, so the fit for a patient is on
the other patients of the fold. Networks of other folds were trained on the patient, and have other
temperatures. A fold of fewer than `LEAST` patients has too few for that: it takes the other folds.
What has no sums to subtract is fitted again for each of `N_GROUPS` groups of patients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from segcal.calibrators import Fitted, NoForegroundError
from segcal.calibrators.curves import Curves
from segcal.calibrators.regions import ts2_of
from segcal.calibrators.temperature import ts_of
from segcal.predictors.source import SourceCase
from segcal.scoring.kept import N_NEAR

LEAST = 4
"""So many patients a fold needs to fit for each on its others."""

N_GROUPS = 5

BY_SUMS = ("ts", "ts2")
CALIBRATORS = (*BY_SUMS, "vs")


@dataclass(frozen=True)
class Table:
    """The sums of each patient, by fold and patient; no patient is in two folds."""

    sums: Mapping[tuple[str, str], Curves]

    @staticmethod
    def of(cases: Sequence[SourceCase], curves: Mapping[str, Curves]) -> Table:
        """The table of some cases, from the sums of each."""
        sums: dict[tuple[str, str], Curves] = {}
        for case in cases:
            key, own = (case.fold, case.patient), curves[case.id]
            sums[key] = _with(sums[key], own, 1) if key in sums else own
        return Table(sums)

    @cached_property
    def totals(self) -> dict[str, Curves]:
        """The sums of each fold."""
        totals: dict[str, Curves] = {}
        for (fold, _), own in self.sums.items():
            totals[fold] = _with(totals[fold], own, 1) if fold in totals else own
        return totals

    @cached_property
    def sizes(self) -> dict[str, int]:
        """How many patients each fold has."""
        return Counter(fold for fold, _ in self.sums)

    def without(self, fold: str, patient: str) -> Curves | None:
        """What the fit for a patient of a fold is on; `None` if there is no other patient."""
        if self.sizes[fold] >= LEAST or len(self.sizes) == 1:
            if self.sizes[fold] < 2:
                return None
            return _with(self.totals[fold], self.sums[fold, patient], -1)
        others = [total for name, total in self.totals.items() if name != fold]
        return reduce(lambda a, b: _with(a, b, 1), others)

    def all_of(self, fold: str | None = None) -> Curves:
        """The patients of a fold, or all, each with sums of its own."""
        parts = [part for (name, _), part in self.sums.items() if fold in (None, name)]
        n_voxels = np.concatenate([part.n_voxels for part in parts])
        sums = np.concatenate([part.sums for part in parts])
        return Curves(parts[0].n_classes, n_voxels, sums)


def _with(a: Curves, b: Curves, sign: int) -> Curves:
    """Sums of patients together, or of some without others."""
    return Curves(a.n_classes, a.n_voxels + sign * b.n_voxels, a.sums + sign * b.sums)


def fitted(name: str, curves: Curves) -> Fitted:
    """The fit of a calibrator; of a network that predicts no foreground, over all voxels."""
    if name == "ts2":
        return ts2_of(curves)
    try:
        return ts_of(curves, N_NEAR)
    except NoForegroundError:
        fit = ts_of(curves)
    fit.record["warnings"].append("no case has predicted foreground: fitted on all voxels")
    return fit


def held_out_groups(cases: Mapping[int, SourceCase]) -> Iterator[tuple[list[int], list[int]]]:
    """Groups of cases, by number, each with the cases that their fit is on.

    >>> case = lambda i: SourceCase(f"c{i}", f"p{i // 2}", "", (), None, None, None)
    >>> for group, others in held_out_groups({i: case(i) for i in range(4)}):
    ...     print(group, others)
    [0, 1] [2, 3]
    [2, 3] [0, 1]
    """
    folds: dict[str, set[str]] = {}
    for case in cases.values():
        folds.setdefault(case.fold, set()).add(case.patient)
    for fold, patients in folds.items():
        inside = [i for i, case in cases.items() if case.fold == fold]
        if len(patients) < LEAST and len(folds) > 1:
            yield inside, [i for i, case in cases.items() if case.fold != fold]
            continue
        for first in range(min(N_GROUPS, len(patients)) if len(patients) > 1 else 0):
            left_out = set(sorted(patients)[first::N_GROUPS])
            group = [i for i in inside if cases[i].patient in left_out]
            yield group, [i for i in inside if cases[i].patient not in left_out]


def out_of_fold(
    cases: Iterable[SourceCase], tables: Sequence[Table], names: Sequence[str]
) -> dict[str, dict[str, list[Fitted]]]:
    """For each case the fits of each calibrator, one for each problem; no case without any."""
    known: dict[tuple[str, str], dict[str, list[Fitted]]] = {}
    fits = {}
    for case in cases:
        key = case.fold, case.patient
        if key not in known:
            others = [table.without(*key) for table in tables]
            known[key] = {}
            if all(each is not None and each.n_voxels.any() for each in others):
                for name in names:
                    known[key][name] = [fitted(name, each) for each in others if each is not None]
        if known[key]:
            fits[case.id] = known[key]
    return fits
