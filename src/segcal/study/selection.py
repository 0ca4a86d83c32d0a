"""Which setting of each method stands for it: `segcal.compare` knows the rule, here it is applied
to a plan's cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from segcal.compare import Contender, read_results
from segcal.compare.choice import by_fold, mean_dice
from segcal.config import checked
from segcal.losses import LOSSES
from segcal.networks import NETWORKS
from segcal.study.cells import Cell, cell_name, tunable
from segcal.study.folder import Folder

RULE = (
    "in each fold the setting with the best mean validation DSC over seeds; its test cases have"
    " no say"
)


@dataclass(frozen=True)
class Choice:
    """A contender of a study: what was tried for it, what was chosen, and what could not be
    tried.
    """

    cells: tuple[Cell, ...]  # all that were to be tried
    contender: Contender | None  # None if no setting could be run to the end
    left_out: Mapping[
        str, str
    ]  # cells that were not trained: a sentence, or nothing if not yet run
    folds: Mapping[
        int, Mapping[str, float]
    ]  # the mean validation Dice of every setting in each fold

    @property
    def chosen(self) -> tuple[Cell, ...]:
        """The cells of the setting that each fold chose, one per seed."""
        return tuple(
            cell for cell in self.cells if self.contender and cell.name in self.contender.runs
        )

    def plain(self) -> dict[str, Any]:
        """For `selection.json`."""
        c = self.contender
        if c is None:
            method, network = self.cells[0].settings.loss.name, self.cells[0].settings.network.name
            about = {
                "label": f"{LOSSES[method].label}, {NETWORKS[network].label}",
                "network": network,
                "method": method,
            }
            return about | {
                "chosen": None,
                "runs": (),
                "tried": {},
                "left_out": dict(self.left_out),
            }
        about = {
            "key": c.key,
            "label": c.label,
            "dataset": c.dataset,
            "network": c.network,
            "method": c.method,
        }
        tried: dict[str, Any] = {"tried": _numbers(c.tried)}
        if len(self.folds) > 1:
            tried["folds"] = {str(fold): _numbers(means) for fold, means in self.folds.items()}
        return (
            about
            | {"chosen": c.setting, "runs": c.runs}
            | tried
            | {"left_out": dict(self.left_out)}
        )


def _numbers(means: Mapping[str, float]) -> dict[str, float | None]:
    return {text: None if math.isnan(dice) else dice for text, dice in means.items()}


def choose(cells: Sequence[Cell], folder: Folder, failed: Mapping[str, str]) -> list[Choice]:
    """A choice per contender, among the settings that were trained with all seeds of a fold.

    Only a training that failed leaves the choice: what failed while it was scored was a fair
    candidate, and with another in its place the test split would have had a say."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.contender, []).append(cell)
    return [_choice(tuple(group), folder, failed) for group in groups.values()]


def _choice(cells: tuple[Cell, ...], folder: Folder, failed: Mapping[str, str]) -> Choice:
    missing = [cell for cell in cells if not folder.trained(cell.name)]
    incomplete = {(cell.setting, cell.settings.fold) for cell in missing}
    complete = [cell for cell in cells if (cell.setting, cell.settings.fold) not in incomplete]
    left_out = {name: failed.get(name, "") for name in sorted(cell.name for cell in missing)}
    if not complete:
        return Choice(cells, None, left_out, {})
    # Sorted, as a folder of runs is read by others: of equals the same one comes first.
    results = read_results(sorted(folder.run(cell.name) for cell in complete), scored=False)
    (contender,) = results.contenders
    folds = by_fold(contender.runs_tried, results.runs)
    return Choice(
        cells,
        contender,
        left_out,
        {fold: mean_dice(tried, results.runs) for fold, tried in folds.items()},
    )


def settled(cell: Cell, choices: Sequence[Choice], varying: frozenset[str]) -> Cell | None:
    """A cell that waits for a choice, with the setting that its fold chose; `None` if there is
    none.
    """
    source = next(c for c in choices if any(tried.name in cell.choices for tried in c.cells))
    chosen = next((c for c in source.chosen if c.name in cell.choices), None)
    if chosen is None:
        return None
    loss, tuned = chosen.settings.loss.model_dump(), tunable(cell.settings.loss.name)
    values = cell.settings.model_dump(mode="json")
    values["loss"] |= {key: loss[key] for key in tuned}
    settings = checked(values)
    return replace(cell, settings=settings, name=cell_name(settings, varying), choices=())
