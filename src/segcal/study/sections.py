"""A section of a plan, and the settings of its runs: a list means a run for every value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

from segcal.config import ChosenLoss, ChosenNetwork, RunSettings, checked
from segcal.folders import CaseSet, open_cases
from segcal.losses import LOSSES, Criterion
from segcal.networks import NETWORKS, build_network
from segcal.study.jobs import After
from segcal.training import resolved
from segcal.types import UserError, check_choice


@dataclass(frozen=True)
class Section:
    """A section of a plan, with the values that the top of the plan gives to all sections."""

    name: str
    values: Mapping[str, Any]  # data, seed, fold, loss, network, training, machine, grid, setting
    base: Any  # the network at the top of the plan: a name, a table, or a list of these
    after: After

    @property
    def inherited(self) -> dict[str, Any]:
        """The settings at the top of the plan that hold for every network that has them."""
        table = self.base if isinstance(self.base, Mapping) else {}
        return {key: value for key, value in table.items() if key != "name"}

    @property
    def main_network(self) -> str:
        """The network on which settings are tuned."""
        return str(_networks(self, self.base)[0]["name"])

    def option(self, key: str, word: str) -> bool:
        """Whether the section has a key, which can only have this word as its value."""
        value = self.values.get(key)
        if value not in (None, word):
            raise UserError(f"{key} of [studies.{self.name}] can only be {word!r}; got {value!r}")
        return value is not None


def tunable(loss: str) -> set[str]:
    """The settings of a loss that the paper tunes."""
    return {key for row in LOSSES[loss].grid for key in row}


def section_runs(section: Section) -> Iterator[tuple[RunSettings, bool]]:
    """The settings of every run, and whether validation has yet to choose its loss's setting."""
    values, chosen = section.values, section.option("setting", "chosen")
    losses, networks = _losses(section), _networks(section, section.values["network"])
    trainings, seeds = _product(values["training"]), _listed(values.get("seed", 0))
    for data in _listed(values.get("data")):
        if not isinstance(data, str):
            where = f"data of [studies.{section.name}]"
            raise UserError(f"{where} must be a folder's name, or several; got {data!r}")
        cases = open_cases(Path(data))
        fold = values.get("fold", 0)
        folds = range(cases.n_folds) if fold == "all" else _listed(fold)
        run = {"data": str(cases.root.resolve()), "machine": values["machine"]}
        for loss, network, training, seed, k in product(losses, networks, trainings, seeds, folds):
            run |= {"loss": loss, "network": network, "training": training}
            settings = checked(run | {"seed": seed, "fold": k})
            _check(settings, cases)
            open_keys = tunable(settings.loss.name) - set(loss)
            yield resolved(settings, cases), bool(chosen and open_keys)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        return [value]
    if not value:
        raise UserError("a list in a plan must not be empty: it would mean no cell at all")
    return list(value)


def _product(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A table whose values may be lists: a table for every way to take one of each.

    >>> _product({"lr": [0.1, 0.2], "epochs": 3})
    [{'lr': 0.1, 'epochs': 3}, {'lr': 0.2, 'epochs': 3}]
    """
    values = [_listed(value) for value in table.values()]
    return [dict(zip(table, row, strict=True)) for row in product(*values)]


def _tables(value: Any, family: str, rows: Mapping[str, Any], default: str) -> list[dict[str, Any]]:
    """The losses or networks of a plan: a name, a table with a name, or a list of these."""
    tables: list[dict[str, Any]] = []
    for item in _listed(value):
        if not isinstance(item, (str, Mapping)):
            allowed = "a name or { name = ..., ... }, or a list of these"
            raise UserError(f"{family} must be {allowed}; got {item!r}")
        table = {"name": item} if isinstance(item, str) else {"name": default} | dict(item)
        tables += _product(table)
    for table in tables:
        check_choice(family, table["name"], tuple(rows))
    return tables


def _losses(section: Section) -> list[dict[str, Any]]:
    """The losses; with a grid, each with every row of settings that the paper tried."""
    has_grid = section.option("grid", "paper")
    if has_grid and section.option("setting", "chosen"):
        where = f"[studies.{section.name}]"
        raise UserError(f"{where} has both a grid and a chosen setting; leave one out")
    losses: list[dict[str, Any]] = []
    for table in _tables(section.values.get("loss", "ce"), "loss", LOSSES, "ce"):
        rows = LOSSES[table["name"]].grid if has_grid else ({},)
        losses += [{**row, **table} for row in rows]  # the plan's values replace the grid's
    return _unique(losses)


def _networks(section: Section, value: Any) -> list[dict[str, Any]]:
    """The networks, each with those inherited settings that it has, or that none has (an error)."""
    known_anywhere = {key for row in NETWORKS.values() for key in row.settings}
    networks: list[dict[str, Any]] = []
    for table in _tables(value, "network", NETWORKS, "unet"):
        others = known_anywhere - set(NETWORKS[table["name"]].settings)
        taken = {key: given for key, given in section.inherited.items() if key not in others}
        networks += _product(taken | table)
    return _unique(networks)


def _unique(tables: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [table for i, table in enumerate(tables) if table not in tables[:i]]


def _check(settings: RunSettings, cases: CaseSet) -> None:
    """Refuse what would fail later: missing splits, and settings that no loss or network has."""
    for split in ("train", "val", "test"):
        if not cases.split(split, settings.fold):
            where = f"{cases.root} has no {split} case in fold {settings.fold}"
            raise UserError(f"{where}; a study needs all three splits")
    _check_parts(settings.loss, settings.network, len(cases.channels), len(cases.classes) + 1)


@cache
def _check_parts(loss: ChosenLoss, network: ChosenNetwork, n_channels: int, n_classes: int) -> None:
    Criterion(loss.name, n_classes=n_classes, **loss.settings)
    with torch.device("meta"):  # shapes alone: no memory, no time
        build_network(network.name, n_channels, n_classes, **network.settings)
