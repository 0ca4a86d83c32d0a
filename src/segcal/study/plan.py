"""A plan: a run file whose values may be lists, in named sections if there are several.

Mistakes in a plan are refused here, before any work: keys, settings of losses and networks, data,
folds."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from segcal.calibrators import CALIBRATORS
from segcal.config import Machine, put_override
from segcal.corruptions import CORRUPTIONS, parse
from segcal.folders import WEIGHTS
from segcal.study.cells import Cell, Key, spread_out
from segcal.study.jobs import After
from segcal.study.sections import Section
from segcal.types import UserError, check_choice

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RUN_KEYS = ("data", "seed", "fold", "loss", "network", "training")
TOP_KEYS = (*RUN_KEYS, "machine", "grid", "after", "studies")
SECTION_KEYS = (*RUN_KEYS, "grid", "setting", "after")
AFTER_KEYS = ("calibrators", "noise", "corruptions", "weights")
TABLES = ("training", "machine", "after")
NOISE = "gaussian_noise"
PLANS = files("segcal.study").joinpath("plans")


@dataclass(frozen=True)
class Plan:
    """Cells to run, each once, and the CPUs and GPUs that one of them needs."""

    name: str
    cells: tuple[Cell, ...]
    varying: frozenset[Key]  # the keys that are part of the cells' names
    cpus: int = 1  # threads of a cell: scores must not depend on the number of workers
    gpus: float | None = None  # None: one, where there are any

    @property
    def needs(self) -> dict[str, Any]:
        """What an engine must know about a cell; the accelerator is the same for all."""
        accelerator = self.cells[0].settings.machine.accelerator
        return {"cpus": self.cpus, "gpus": self.gpus, "accelerator": accelerator}


def built_in_plans() -> tuple[str, ...]:
    """The plans that come with segcal."""
    return tuple(sorted(path.name.removesuffix(".toml") for path in PLANS.iterdir()))


def read_plan(
    plan: str | Path,
    *,
    data: str | Sequence[str] | None = None,
    overrides: Sequence[str] = (),
    seeds: int | None = None,
    only: Sequence[str] = (),
    names: Sequence[str] = (),
    cpus: int | None = None,
    gpus: float | None = None,
) -> Plan:
    """A built-in plan by its name, or one of your own by its file, spread out into cells.

    `overrides` are `key=value` as TOML writes them; `seeds` means seeds 0 to n - 1; `only` names
    the sections to keep, `names` the cells."""
    name, raw = _read(plan)
    for text in overrides:
        put_override(raw, text)
    if data is not None:
        raw["data"] = data if isinstance(data, str) else list(data)
    if seeds is not None:
        if seeds < 1:
            raise UserError(f"a study needs at least 1 seed; got {seeds}")
        raw["seed"] = list(range(seeds))
    _check_keys(raw, TOP_KEYS, "the plan")
    machine = dict(_table(raw, "machine", "the plan"))
    _check_keys(machine, (*Machine.model_fields, "cpus", "gpus"), "[machine]")
    threads = _amount("cpus", machine.pop("cpus", 1), cpus, 1)
    share = _amount("gpus", machine.pop("gpus", None), gpus, 0)
    if any(machine.get(key, 1) != 1 for key in ("devices", "nodes")):
        raise UserError(
            "a cell is one process: leave machine.devices and machine.nodes at 1, and run more"
            " cells at a time"
        )
    sections = _sections(raw | {"machine": machine}, only)
    if not any(section.values.get("data") for section in sections):
        missing = "give a prepared data set's folder with --data, or data in the plan"
        raise UserError(f"the plan names no data; {missing}")
    cells, varying = spread_out(sections)
    return Plan(name, _named(cells, names), varying, int(threads or 1), share)


def _read(plan: str | Path) -> tuple[str, dict[str, Any]]:
    """The name and the content of a plan."""
    name, path, built_in = str(plan), Path(plan), built_in_plans()
    if name in built_in:
        return name, tomllib.loads(PLANS.joinpath(f"{name}.toml").read_text("utf-8"))
    if not path.is_file():
        allowed = f"name a TOML file or one of {', '.join(built_in)}"
        raise UserError(f"there is no plan {name!r}; {allowed}")
    try:
        return path.stem, tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the plan {path}: {error}") from None


def _sections(raw: Mapping[str, Any], only: Sequence[str]) -> list[Section]:
    """The sections with the values that the top of the plan gives to all; one if it has none."""
    top = {key: value for key, value in raw.items() if key != "studies"}
    studies = _table(raw, "studies", "the plan") or {"all": {}}
    for name in only:
        _check_known(name, studies, "study")
    sections = {name: _section(name, values, top) for name, values in studies.items()}
    for key in ("fold", "loss", "seed"):
        if key in top and all(key in values for values in studies.values()):
            reason = "every section has its own"
            raise UserError(f"{key} at the top of the plan has no effect: {reason}")
    return [sections[name] for name in only or sections]


def _section(name: str, values: Any, top: Mapping[str, Any]) -> Section:
    where = f"[studies.{name}]"
    if not isinstance(values, Mapping):
        value = json.dumps(values, default=str)
        raise UserError(f"studies.{name} must be a section with loss, network, ...; got {value}")
    _check_keys(values, SECTION_KEYS, where)
    base = top.get("network", {})
    main = base.get("name", "unet") if isinstance(base, Mapping) else base
    merged = {**top, "network": main, **values}
    for key in TABLES:
        merged[key] = {**_table(top, key, "the plan"), **_table(values, key, where)}
    return Section(name, merged, base, _after(merged["after"], where))


def _after(values: Mapping[str, Any], where: str) -> After:
    """What a plan wants to be done with the chosen runs; `noise` is the paper's series."""
    _check_keys(values, AFTER_KEYS, f"after of {where}")
    calibrators = _words(values, "calibrators")
    weights = _words({"weights": After().weights, **values}, "weights")
    for name in calibrators:
        check_choice("calibrator", name, tuple(CALIBRATORS))
    for name in weights:
        check_choice("weights", name, WEIGHTS)
    if not weights:
        raise UserError(f"after.weights must name some of {', '.join(WEIGHTS)}; got none")
    noise = values.get("noise", False)
    if not isinstance(noise, bool):
        raise UserError(f"after.noise must be true or false; got {noise!r}")
    wanted = [(NOISE, severity) for severity in CORRUPTIONS[NOISE].severities] if noise else []
    wanted += [parse(text) for text in _words(values, "corruptions")]
    corruptions = []
    for key, severity in wanted:
        if severity != CORRUPTIONS[key].neutral:
            corruptions.append(f"{key}:{severity:g}")
    return After(calibrators, tuple(dict.fromkeys(corruptions)), weights)


def _words(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = values.get(key, ())
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        text = json.dumps(value, default=str)
        raise UserError(f"after.{key} must be a list of words; got {text}")
    return tuple(dict.fromkeys(value))


def _named(cells: Sequence[Cell], names: Sequence[str]) -> tuple[Cell, ...]:
    """Only the cells of these names, if any are given."""
    for name in names:
        _check_known(name, [cell.name for cell in cells], "cell")
    kept = {cell.name: cell for cell in cells if not names or cell.name in names}
    for cell in kept.values():
        missing = ", ".join(name for name in cell.choices if name not in kept)
        if missing:
            raise UserError(f"{cell.name} waits for a choice among other cells; name {missing} too")
    return tuple(kept.values())


def _table(values: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = values.get(key, {})
    if not isinstance(value, Mapping):
        text = json.dumps(value, default=str)
        raise UserError(f"{key} of {where} must be a section of key = value; got {text}")
    return value


def _amount(key: str, value: Any, given: float | None, least: int) -> float | None:
    """CPUs or GPUs of a cell, as given or as in the plan; `None` if neither says."""
    amount = value if given is None else given
    if amount is None:
        return None
    is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
    if not is_number or amount < least or (key == "cpus" and amount % 1):
        kind = "whole number" if key == "cpus" else "number"
        raise UserError(f"machine.{key} must be a {kind}, at least {least}; got {amount!r}")
    return float(amount)


def _check_keys(values: Mapping[str, Any], allowed: Iterable[str], where: str) -> None:
    for key in values:
        _check_known(key, allowed, f"key of {where}")


def _check_known(key: str, allowed: Iterable[str], kind: str) -> None:
    known = tuple(allowed)
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
        raise UserError(f"unknown {kind}: {key!r}; {hint}")
