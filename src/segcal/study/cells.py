"""Cells: the runs that a plan's sections mean, each named by what makes it differ, each
only once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

from segcal.calibrators import CALIBRATORS
from segcal.config import RunSettings, checked
from segcal.corruptions import CORRUPTIONS, parse
from segcal.folders import CaseSet, open_cases
from segcal.losses import LOSSES, Criterion
from segcal.networks import NETWORKS, build_network
from segcal.study.jobs import After
from segcal.training import resolved
from segcal.types import UserError, check_choice

NOISE = "gaussian_noise"


def checked_after(calibrators: Sequence[str], corruptions: Sequence[str], *, noise: bool) -> After:
    """What a plan says is to be done with the chosen runs; `noise` adds the paper's series."""
    for name in calibrators:
        check_choice("calibrator", name, tuple(CALIBRATORS))
    series = [(NOISE, severity) for severity in CORRUPTIONS[NOISE].severities] if noise else []
    wanted = [*series, *(parse(text) for text in corruptions)]
    texts = (
        f"{key}:{severity:g}" for key, severity in wanted if severity != CORRUPTIONS[key].neutral
    )
    return After(tuple(dict.fromkeys(calibrators)), tuple(dict.fromkeys(texts)))


@dataclass(frozen=True)
class Cell:
    """A run of a plan."""

    name: str
    settings: RunSettings  # with every default written out
    sections: tuple[str, ...]
    after: After
    choices: tuple[
        str, ...
    ] = ()  # if validation has yet to choose the loss's setting: the cells among which it does

    def renamed(self, names: Mapping[str, str]) -> Cell:
        """The same cell, where it or those it chooses from have other names."""
        choices = tuple(names.get(name, name) for name in self.choices)
        return replace(self, name=names.get(self.name, self.name), choices=choices)

    @property
    def contender(self) -> str:
        """The same for cells that differ only in seed, fold or a setting that is tuned."""
        tuned = tunable(self.settings.loss.name)
        loss = {
            key: value for key, value in self.settings.loss.settings.items() if key not in tuned
        }
        return _text([self.settings.loss.name, loss, self.protocol])

    @property
    def setting(self) -> str:
        """The same for cells that differ only in seed or fold."""
        return _text([self.settings.loss.model_dump(), self.protocol])

    @property
    def protocol(self) -> dict[str, Any]:
        """Everything but loss, seed and fold."""
        part = {"data": self.settings.data, "network": self.settings.network.model_dump()}
        return part | {"training": self.settings.training.model_dump()}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def tunable(loss: str) -> set[str]:
    """The settings of a loss that the paper tunes."""
    return {key for row in LOSSES[loss].grid for key in row}


def spread_out(
    sections: Mapping[str, Mapping[str, Any]],
) -> tuple[tuple[Cell, ...], frozenset[str]]:
    """The cells of all sections, each once, and the keys that they differ in."""
    cells: dict[str, Cell] = {}
    for name, section in sections.items():
        for settings, chosen in _runs(section, name):
            key = _text([settings.model_dump(mode="json"), chosen])
            same = cells.get(key)
            if same is None:
                cells[key] = Cell(
                    "", settings, (name,), section["after"], choices=("",) if chosen else ()
                )
            else:
                cells[key] = replace(
                    same, sections=(*same.sections, name), after=same.after | section["after"]
                )
    for key in {key for section in sections.values() for key in _inherited(section["base"])}:
        if not any(key in cell.settings.network.settings for cell in cells.values()):
            raise UserError(
                f"no network of the plan has the setting {key!r} that its [network] gives"
            )
    varying = _varying([cell.settings for cell in cells.values()])
    found = [
        replace(c, name=cell_name(c.settings, varying, chosen=bool(c.choices)))
        for c in cells.values()
    ]
    names = [cell.name for cell in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"two cells of the plan would both be called {twice[0]}; make two studies of it"
        )
    bases = {
        name: _networks(section, section["base"])[0]["name"] for name, section in sections.items()
    }
    return tuple(_with_choices(cell, found, bases[cell.sections[0]]) for cell in found), varying


def _with_choices(cell: Cell, cells: Sequence[Cell], base: str) -> Cell:
    """A cell whose setting is still to be chosen knows among which: the same loss and fold on the
    plan's main network.
    """
    if not cell.choices:
        return cell

    def alike(other: Cell) -> bool:
        mine, theirs = cell.settings, other.settings
        same_loss = json.loads(cell.contender)[:2] == json.loads(other.contender)[:2]
        same = (mine.data, mine.fold, mine.training) == (theirs.data, theirs.fold, theirs.training)
        return same_loss and same and theirs.network.name == base

    found = [other for other in cells if not other.choices and alike(other)]
    if len({other.contender for other in found}) != 1:
        why = "no section tries it" if not found else "it is tried in several ways"
        raise UserError(
            f"section {cell.sections[0]} wants the chosen setting of {cell.settings.loss.name}, but"
            f" {why} on {base} with the same data, fold and training"
        )
    return replace(cell, choices=tuple(other.name for other in found))


def _runs(section: Mapping[str, Any], where: str) -> Iterator[tuple[RunSettings, bool]]:
    """The settings of every run of a section, and whether the loss's tuned setting is still to be
    chosen.
    """
    chosen = section.get("setting")
    if chosen not in (None, "chosen"):
        raise UserError(f"setting of [studies.{where}] can only be 'chosen'; got {chosen!r}")
    losses, networks = _losses(section, where), _networks(section, section["network"])
    for data in _listed(section.get("data")):
        if not isinstance(data, str):
            raise UserError(
                f"data of [studies.{where}] must be a folder's name, or several; got {data!r}"
            )
        cases = open_cases(Path(data))
        fold = section.get("fold", 0)
        folds = range(cases.n_folds) if fold == "all" else _listed(fold)
        axes = (
            losses,
            networks,
            _product(section["training"]),
            _listed(section.get("seed", 0)),
            folds,
        )
        for loss, network, training, seed, f in product(*axes):
            values = {
                "data": str(cases.root.resolve()),
                "seed": seed,
                "fold": f,
                "loss": loss,
                "network": network,
            }
            settings = checked(values | {"training": training, "machine": section["machine"]})
            _check(settings, cases)
            tuned = tunable(settings.loss.name) - set(loss)
            yield resolved(settings, cases), bool(chosen and tuned)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)) and not value:
        raise UserError("a list in a plan must not be empty: it would mean no cell at all")
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _product(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A table whose values may be lists: a table for every way to take one of each.

    >>> _product({"lr": [0.1, 0.2], "epochs": 3})
    [{'lr': 0.1, 'epochs': 3}, {'lr': 0.2, 'epochs': 3}]
    """
    values = [_listed(value) for value in table.values()]
    return [dict(zip(table, row, strict=True)) for row in product(*values)]


def _tables(value: Any, family: str, default: str) -> list[dict[str, Any]]:
    """What a plan says of losses or networks: a name, a table, or a list of these."""
    found = []
    for item in _listed(value):
        if not isinstance(item, (str, Mapping)):
            raise UserError(
                f"{family} must be a name or {{ name = ..., ... }}, or a list of these; got"
                f" {item!r}"
            )
        table = {"name": item} if isinstance(item, str) else {"name": default} | dict(item)
        found += _product(table)
    return found


def _losses(section: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    grid = section.get("grid")
    if grid not in (None, "paper"):
        raise UserError(f"grid of [studies.{where}] can only be 'paper'; got {grid!r}")
    if grid and section.get("setting"):
        raise UserError(f"[studies.{where}] has both a grid and a chosen setting; leave one out")
    found = []
    for table in _tables(section.get("loss", "ce"), "loss", "ce"):
        check_choice("loss", table["name"], tuple(LOSSES))
        rows = LOSSES[table["name"]].grid if grid else ({},)
        found += [
            row for given in rows if (row := dict(given) | table) not in found
        ]  # what the plan says goes first
    return found


def _networks(section: Mapping[str, Any], value: Any) -> list[dict[str, Any]]:
    """Networks; what the plan's [network] says beside a name holds for every network that has such
    a setting.
    """
    found = []
    inherited = _inherited(section["base"])
    for table in _tables(value, "network", "unet"):
        check_choice("network", table["name"], tuple(NETWORKS))
        known = NETWORKS[table["name"]].settings
        everywhere = {name for row in NETWORKS.values() for name in row.settings}
        own = {
            key: given for key, given in inherited.items() if key in known or key not in everywhere
        }
        found += [row for row in _product(own | table) if row not in found]
    return found


def _inherited(base: Any) -> dict[str, Any]:
    return (
        {key: value for key, value in base.items() if key != "name"}
        if isinstance(base, Mapping)
        else {}
    )


def _check(settings: RunSettings, cases: CaseSet) -> None:
    """Refuse what would fail later: settings that no loss or network has, folds and splits that are
    not there.
    """
    for split in ("train", "val", "test"):
        if not cases.split(split, settings.fold):
            raise UserError(
                f"{cases.root} has no {split} case in fold {settings.fold}; a study needs all three"
                " splits"
            )
    _check_parts(
        _text([settings.loss.model_dump(), settings.network.model_dump()]),
        len(cases.channels),
        len(cases.classes),
    )


@cache
def _check_parts(parts: str, n_channels: int, n_foreground: int) -> None:
    loss, network = json.loads(parts)
    Criterion(loss.pop("name"), n_classes=n_foreground + 1, **loss)
    with torch.device("meta"):  # shapes alone: no memory, no time
        build_network(network.pop("name"), n_channels, n_foreground + 1, **network)


def _varying(runs: Sequence[RunSettings]) -> frozenset[str]:
    """The keys beside loss, network and seed that some of the runs differ in, so that they belong
    into names.
    """
    values: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        flat = {f"training.{key}": value for key, value in run.training.model_dump().items()}
        flat |= {
            f"network.{run.network.name}.{key}": value
            for key, value in run.network.settings.items()
        }
        for key, value in flat.items():
            values.setdefault((run.data, key), set()).add(
                _text(value)
            )  # a data set's own recipe is no difference
    found = {key for (_, key), seen in values.items() if len(seen) > 1}
    data = {run.data for run in runs}
    found |= {"data"} if len(data) > 1 else set()
    return frozenset(
        found | ({"fold"} if any(open_cases(Path(root)).n_folds > 1 for root in data) else set())
    )


def cell_name(settings: RunSettings, varying: frozenset[str], *, chosen: bool = False) -> str:
    """A cell's folder: loss and its settings, network, what else varies in the plan, seed, fold."""
    loss, network = settings.loss, settings.network
    tuned, defaults = tunable(loss.name), LOSSES[loss.name].settings
    parts = [Path(settings.data).name] if "data" in varying else []
    parts += [loss.name, *(["chosen"] if chosen else [])]
    shown = {
        k: v
        for k, v in loss.settings.items()
        if (k in tuned and not chosen) or (k not in tuned and v != defaults[k])
    }
    parts += [_part(key, shown[key]) for key in sorted(shown)]
    parts.append(network.name)
    parts += [
        _part(k, v) for k, v in network.settings.items() if f"network.{network.name}.{k}" in varying
    ]
    parts += [
        _part(k, v) for k, v in settings.training.model_dump().items() if f"training.{k}" in varying
    ]
    parts += [f"s{settings.seed}", *([f"f{settings.fold}"] if "fold" in varying else [])]
    return "-".join(parts)


def _part(key: str, value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{key}{value:g}" if number else f"{key}_{value}"
