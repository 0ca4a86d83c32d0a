"""The choice of a setting for each contender of a study, by the rule of `segcal.compare`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segcal.choice import CHOICES, Validated
from segcal.compare import Contender, Settings, read_results, setting_text
from segcal.compare.contenders import by_fold, validated
from segcal.folders import cell_folder
from segcal.losses import LOSSES
from segcal.networks import NETWORKS
from segcal.study.cells import Cell
from segcal.study.folder import is_trained
from segcal.unlearned import remedy, unlearned


def rule_text(rule: str) -> str:
    """A rule in words."""
    return f"in each fold the setting with {CHOICES[rule]}; means over seeds, without test cases"


@dataclass(frozen=True)
class Choice:
    """The setting chosen for a contender by the validation scores of one kind of its weights."""

    cells: tuple[Cell, ...]  # all cells of the contender
    weights: str
    left_out: Mapping[str, str]  # the cells that are not trained: why they failed, or nothing
    contender: Contender | None = None  # None if no setting is trained
    folds: Mapping[int, Mapping[Settings, Validated]] = field(default_factory=dict)  # their means
    # The classes that validation never predicts, of the chosen runs that lack any.
    never_predicted: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def chosen(self) -> tuple[Cell, ...]:
        """The cells of the setting that each fold chose, one per seed."""
        names = self.contender.runs if self.contender else ()
        return tuple(cell for cell in self.cells if cell.name in names)

    @property
    def is_final(self) -> bool:
        """Whether every cell is trained, or failed."""
        return all(self.left_out.values())

    def record(self) -> dict[str, Any]:
        """The entry of the study's record of choices."""
        settings, c = self.cells[0].settings, self.contender
        method, network = settings.loss.name, settings.network.name
        entry: dict[str, Any] = {"method": method, "network": network, "weights": self.weights}
        if c is None:
            label = f"{LOSSES[method].label}, {NETWORKS[network].label}"
            entry |= {"label": label, "chosen": None, "runs": (), "tried": {}, "nll": {}}
        else:
            entry |= {"key": c.key, "label": c.label, "dataset": c.dataset, "chosen": c.setting}
            entry |= {"runs": c.runs, "tried": _texts(c.tried), "nll": _texts(c.tried_nll)}
        if len(self.folds) > 1:
            for key, score in (("folds", "dice"), ("folds_nll", "nll")):
                entry[key] = {}
                for fold, means in self.folds.items():
                    values = {settings: getattr(row, score) for settings, row in means.items()}
                    entry[key][str(fold)] = _texts(values)
        if self.never_predicted:
            help = remedy(settings.model_dump(mode="json"))
            entry |= {"never_predicted": dict(self.never_predicted), "remedy": help}
        return entry | {"left_out": dict(self.left_out)}


def _texts(means: Mapping[Settings, float]) -> dict[str, float | None]:
    return {setting_text(key): None if math.isnan(mean) else mean for key, mean in means.items()}


def choose_all(
    cells: Sequence[Cell], root: Path, failed: Mapping[str, str], rule: str
) -> list[Choice]:
    """A choice for every contender, and for each of the weights that are scored."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.contender, []).append(cell)
    choices = []
    for group in groups.values():
        wanted = dict.fromkeys(weights for cell in group for weights in cell.after.weights)
        choices += [choose(group, weights, root, failed, rule) for weights in wanted]
    return choices


def choose(
    cells: Sequence[Cell], weights: str, root: Path, failed: Mapping[str, str], rule: str
) -> Choice:
    """The choice for a contender among the settings that were trained with all seeds of a fold.

    Only a failed training leaves a setting out. One that failed while it was scored stays chosen:
    a setting in its place would be chosen by the test split."""
    missing = [cell for cell in cells if not is_trained(root, cell.name)]
    left_out = {name: failed.get(name, "") for name in sorted(cell.name for cell in missing)}
    incomplete = {(cell.setting, cell.settings.fold) for cell in missing}
    complete = [cell for cell in cells if (cell.setting, cell.settings.fold) not in incomplete]
    if not complete:
        return Choice(tuple(cells), weights, left_out)
    # Sorted, like the runs of a folder: the first of equals is the same one.
    folders = sorted(cell_folder(root, cell.name) for cell in complete)
    results = read_results(folders, scored=False, weights=weights, choose=rule)
    (contender,) = results.contenders
    folds = {}
    for fold, tried in by_fold(contender.runs_tried, results.runs).items():
        folds[fold] = validated(tried, results.runs, weights)
    lacking = {run: unlearned(results.runs[run], weights) for run in contender.runs}
    lacking = {run: classes for run, classes in lacking.items() if classes}
    return Choice(tuple(cells), weights, left_out, contender, folds, lacking)
