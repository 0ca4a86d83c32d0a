"""A section of a plan, and the settings of its runs: a list means a run for every value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field

from segcal.calibrators import CALIBRATORS
from segcal.config import ChosenLoss, ChosenNetwork, OneOrMore, RunSettings, checked
from segcal.corruptions import CORRUPTIONS, parse
from segcal.folders import WEIGHTS, CaseSet, open_cases
from segcal.losses import LOSSES, Criterion
from segcal.networks import NETWORKS, build_network
from segcal.study.jobs import After
from segcal.training import resolved
from segcal.types import UserError, check_choice

NOISE = "gaussian_noise"


class AfterTable(BaseModel, extra="forbid", frozen=True):
    """The `[after]` of a plan: what is done with the chosen runs."""

    calibrators: list[str] = []
    noise: bool = False  # the paper's series
    corruptions: list[str] = []
    weights: list[str] = Field(default=[*After().weights], min_length=1)


class SectionTable(BaseModel, extra="forbid", frozen=True):
    """The keys of a section; in most of them a list means a run for every value."""

    data: OneOrMore = ()
    seed: Any = 0
    fold: Any = 0
    loss: Any = "ce"  # a name, a table with a name, or a list of these
    network: Any = {}
    training: dict[str, Any] = {}
    grid: Literal["paper"] | None = None
    setting: Literal["chosen"] | None = None
    after: AfterTable = AfterTable()

    def merged(self, other: SectionTable) -> SectionTable:
        """The other's values, and this table's where the other gives none."""
        values = self.model_dump(exclude_unset=True, include=set(SectionTable.model_fields))
        for key, value in other.model_dump(exclude_unset=True).items():
            is_part = key in ("training", "after")
            values[key] = values.get(key, {}) | value if is_part else value
        return SectionTable(**values)


@dataclass(frozen=True)
class Section:
    """A section of a plan, with the values that the top of the plan gives to all sections."""

    name: str
    table: SectionTable
    main_network: str  # on which settings are tuned
    inherited: Mapping[str, Any]  # the plan's settings for every network that has them
    machine: Mapping[str, Any]

    @property
    def after(self) -> After:
        """What is done with the chosen runs of this section."""
        table = self.table.after
        for name in table.calibrators:
            check_choice("calibrator", name, tuple(CALIBRATORS))
        for name in table.weights:
            check_choice("weights", name, WEIGHTS)
        wanted = [(NOISE, severity) for severity in CORRUPTIONS[NOISE].severities if table.noise]
        wanted += [parse(text) for text in table.corruptions]
        corruptions = []
        for key, severity in wanted:
            if severity != CORRUPTIONS[key].neutral:
                corruptions.append(f"{key}:{severity:g}")
        words = (table.calibrators, corruptions, table.weights)
        return After(*(tuple(dict.fromkeys(row)) for row in words))


def tunable(loss: str) -> set[str]:
    """The settings of a loss that the paper tunes."""
    return {key for row in LOSSES[loss].grid for key in row}


def section_runs(section: Section) -> Iterator[tuple[RunSettings, bool]]:
    """The settings of every run, and whether validation has yet to choose its loss's setting."""
    table = section.table
    losses, networks = _losses(section), _networks(section)
    trainings, seeds = _product(table.training), _listed(table.seed)
    for data in table.data:
        cases = open_cases(Path(data))
        folds = range(cases.n_folds) if table.fold == "all" else _listed(table.fold)
        run = {"data": str(cases.root.resolve()), "machine": section.machine}
        for loss, network, training, seed, k in product(losses, networks, trainings, seeds, folds):
            run |= {"loss": loss, "network": network, "training": training}
            settings = checked(run | {"seed": seed, "fold": k})
            _check(settings, cases)
            open_keys = tunable(settings.loss.name) - set(loss)
            yield resolved(settings, cases), bool(table.setting and open_keys)


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


def named_tables(value: Any, family: str) -> list[dict[str, Any]]:
    """The losses or networks of a plan: a name, a table with a name, or a list of these."""
    rows: Mapping[str, Any] = LOSSES if family == "loss" else NETWORKS
    default = ChosenLoss().name if family == "loss" else ChosenNetwork().name
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
    if section.table.grid and section.table.setting:
        where = f"[studies.{section.name}]"
        raise UserError(f"{where} has both a grid and a chosen setting; leave one out")
    losses: list[dict[str, Any]] = []
    for table in named_tables(section.table.loss, "loss"):
        rows = LOSSES[table["name"]].grid if section.table.grid else ({},)
        losses += [{**row, **table} for row in rows]  # the plan's values replace the grid's
    return _unique(losses)


def _networks(section: Section) -> list[dict[str, Any]]:
    """The networks, each with those inherited settings that it has, or that none has (an error)."""
    known_anywhere = {key for row in NETWORKS.values() for key in row.settings}
    networks: list[dict[str, Any]] = []
    for table in named_tables(section.table.network, "network"):
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
