"""Which setting of each method stands for it: `segcal.results` knows the rule, here it is applied to a plan's cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from segcal.config import checked
from segcal.losses import LOSSES
from segcal.networks import NETWORKS
from segcal.results import Contender, read_results
from segcal.study.cells import Cell, cell_name, tunable
from segcal.study.folder import Folder

RULE = "the setting with the best mean validation DSC over seeds and folds; the test split has no say"


@dataclass(frozen=True)
class Choice:
    """A contender of a study: what was tried for it, what was chosen, and what could not be tried."""

    cells: tuple[Cell, ...]  # all that were to be tried
    contender: Contender | None  # None if no setting could be run to the end
    left_out: Mapping[str, str]  # cells of settings that are not complete: a sentence, or nothing if not yet run

    @property
    def chosen(self) -> tuple[Cell, ...]:
        """The cells of the chosen setting, one per seed and fold."""
        return tuple(cell for cell in self.cells if self.contender and cell.name in self.contender.runs)

    def plain(self) -> dict[str, Any]:
        """For `selection.json`."""
        c = self.contender
        if c is None:
            method, network = self.cells[0].settings.loss.name, self.cells[0].settings.network.name
            about = {"label": f"{LOSSES[method].label}, {NETWORKS[network].label}", "network": network, "method": method}
            return about | {"chosen": None, "runs": (), "tried": {}, "left_out": dict(self.left_out)}
        tried = {text: None if math.isnan(dice) else dice for text, dice in c.tried.items()}
        about = {"key": c.key, "label": c.label, "dataset": c.dataset, "network": c.network, "method": c.method}
        return about | {"chosen": c.setting, "runs": c.runs, "tried": tried, "left_out": dict(self.left_out)}


def choose(cells: Sequence[Cell], folder: Folder, failed: Mapping[str, str]) -> list[Choice]:
    """A choice per contender, among the settings all of whose runs are finished."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.contender, []).append(cell)
    return [_choice(tuple(group), folder, failed) for group in groups.values()]


def _choice(cells: tuple[Cell, ...], folder: Folder, failed: Mapping[str, str]) -> Choice:
    missing = {cell.name for cell in cells if cell.name in failed or not folder.trained(cell.name)}
    incomplete = {cell.setting for cell in cells if cell.name in missing}
    complete = [cell for cell in cells if cell.setting not in incomplete]
    # Sorted, as a folder of runs is read by others: of equals the same one comes first.
    folders = sorted(folder.run(cell.name) for cell in complete)
    contender = read_results(folders, scored=False).contenders[0] if folders else None
    return Choice(cells, contender, {name: failed.get(name, "") for name in sorted(missing)})


def settled(cell: Cell, choices: Sequence[Choice], varying: frozenset[str]) -> Cell | None:
    """A cell that waits for a choice, with the chosen setting; `None` if there is none."""
    source = next(c for c in choices if any(tried.name in cell.choices for tried in c.cells))
    if not source.chosen:
        return None
    loss, tuned = source.chosen[0].settings.loss.model_dump(), tunable(cell.settings.loss.name)
    values = cell.settings.model_dump(mode="json")
    values["loss"] |= {key: loss[key] for key in tuned}
    settings = checked(values)
    return replace(cell, settings=settings, name=cell_name(settings, varying), choices=())
