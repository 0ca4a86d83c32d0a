"""Cells: the runs that a plan's sections ask for, each once, each with a name of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from segcal.config import ChosenLoss, ChosenNetwork, RunSettings, Training
from segcal.folders import open_cases
from segcal.losses import LOSSES
from segcal.study.jobs import After
from segcal.study.sections import Section, section_runs, tunable
from segcal.types import UserError

Protocol = tuple[str, ChosenNetwork, Training]


@dataclass(frozen=True)
class Cell:
    """A run of a plan."""

    name: str
    settings: RunSettings  # with every default written out
    sections: tuple[str, ...]
    after: After
    choices: tuple[str, ...] = ()  # cells among which validation first chooses the loss's setting

    @property
    def protocol(self) -> Protocol:
        """Everything but loss, seed and fold."""
        return self.settings.data, self.settings.network, self.settings.training

    @property
    def method(self) -> ChosenLoss:
        """The loss without the settings that the paper tunes."""
        values = self.settings.loss.model_dump(exclude=tunable(self.settings.loss.name))
        return ChosenLoss(**values)

    @property
    def contender(self) -> tuple[ChosenLoss, Protocol]:
        """Equal for cells that differ only in seed, fold or a tuned setting."""
        return self.method, self.protocol

    @property
    def setting(self) -> tuple[ChosenLoss, Protocol]:
        """Equal for cells that differ only in seed or fold."""
        return self.settings.loss, self.protocol


def spread_out(sections: Sequence[Section]) -> tuple[tuple[Cell, ...], frozenset[str]]:
    """The cells of all sections, each once, and the keys in which they differ."""
    origins: dict[tuple[RunSettings, bool], list[Section]] = {}
    for section in sections:
        for run in section_runs(section):
            origins.setdefault(run, []).append(section)
    runs = [settings for settings, _ in origins]
    known = {key for run in runs for key in run.network.settings}
    for key in sections[0].inherited:  # they are the same in all sections
        if key not in known:
            where = f"the setting {key!r} that its [network] gives"
            raise UserError(f"no network of the plan has {where}")
    varying = _varying(runs)

    cells: dict[str, Cell] = {}
    main_networks = {}  # of the cells that wait for a choice
    for (settings, waits), sources in origins.items():
        name = cell_name(settings, varying, waits=waits)
        if name in cells:
            raise UserError(f"two cells of the plan would both be called {name}; plan two studies")
        after = sources[0].after
        for section in sources[1:]:
            after |= section.after
        cells[name] = Cell(name, settings, tuple(section.name for section in sources), after)
        if waits:
            main_networks[name] = sources[0].main_network

    tried = [cell for cell in cells.values() if cell.name not in main_networks]
    for name, network in main_networks.items():
        cells[name] = replace(cells[name], choices=_choices(cells[name], tried, network))
    return tuple(cells.values()), varying


def _choices(cell: Cell, tried: Sequence[Cell], network: str) -> tuple[str, ...]:
    """The cells that try the settings of a cell's loss: same fold, on the plan's main network."""
    candidates = []
    for other in tried:
        on_network = other.settings.network.name == network
        if on_network and _without_network(other) == _without_network(cell):
            candidates.append(other)
    if len({other.contender for other in candidates}) != 1:
        reason = "it is tried in several ways" if candidates else "no section tries it"
        wish = f"section {cell.sections[0]} wants the chosen setting of {cell.method.name}"
        where = f"on {network} with the same data, fold and training"
        raise UserError(f"{wish}, but {reason} {where}")
    return tuple(other.name for other in candidates)


def _without_network(cell: Cell) -> tuple[Any, ...]:
    return cell.method, cell.settings.data, cell.settings.fold, cell.settings.training


def _varying(runs: Sequence[RunSettings]) -> frozenset[str]:
    """The keys beside loss, network and seed that are part of names, because runs differ in them.

    Settings are compared between runs on the same data: each data set has a recipe of its own."""
    values: dict[tuple[str, str], set[Any]] = {}
    for run in runs:
        for key, value in _options(run).items():
            values.setdefault((run.data, key), set()).add(value)
    keys: set[str] = {key for (_, key), different in values.items() if len(different) > 1}
    folders = {run.data for run in runs}
    if len(folders) > 1:
        keys.add("data")
    if any(open_cases(Path(folder)).n_folds > 1 for folder in folders):
        keys.add("fold")
    return frozenset(keys)


def _options(settings: RunSettings) -> dict[str, Any]:
    """The settings of network and training."""
    network, training = settings.network, settings.training.model_dump()
    options = {f"{network.name}.{key}": value for key, value in network.settings.items()}
    return options | {f"training.{key}": value for key, value in training.items()}


def cell_name(settings: RunSettings, varying: frozenset[str], *, waits: bool = False) -> str:
    """A cell's folder: loss and its settings, network, what else varies in the plan, seed, fold.

    `waits`: validation has yet to choose the loss's setting."""
    loss = settings.loss
    tuned, defaults = tunable(loss.name), LOSSES[loss.name].settings
    parts = [Path(settings.data).name] if "data" in varying else []
    parts += [loss.name, "chosen"] if waits else [loss.name]
    for key, value in sorted(loss.settings.items()):
        shown = not waits if key in tuned else value != defaults[key]
        if shown:
            parts.append(_part(key, value))
    parts.append(settings.network.name)
    for path, value in _options(settings).items():
        if path in varying:
            parts.append(_part(path.partition(".")[2], value))
    parts.append(f"s{settings.seed}")
    if "fold" in varying:
        parts.append(f"f{settings.fold}")
    return "-".join(parts)


def _part(key: str, value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{key}{value:g}" if is_number else f"{key}_{value}"
