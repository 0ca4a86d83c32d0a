"""A plan: a run file whose values may be lists, in named sections if there are several; every list
means a cell per value.

What can be wrong in a plan is found here, before any work: keys, settings of losses and networks,
data, folds."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from segcal.config import Machine
from segcal.study.cells import Cell, checked_after, spread_out
from segcal.study.jobs import After
from segcal.types import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RUN_KEYS = ("data", "seed", "fold", "loss", "network", "training")
TOP_KEYS = (*RUN_KEYS, "machine", "grid", "after", "studies")
SECTION_KEYS = (*RUN_KEYS, "grid", "setting", "after")
AFTER_KEYS = ("calibrators", "noise", "corruptions")
TABLES = ("training", "machine", "after")


@dataclass(frozen=True)
class Plan:
    """Cells to run, each once, and what one of them needs of a machine."""

    name: str
    cells: tuple[Cell, ...]
    varying: frozenset[str]  # what cells are called by, beside loss and network
    cpus: int = 1  # threads of a cell: a result must not depend on how many cells run side by side
    gpus: float | None = None  # None: where there are any, one

    @property
    def needs(self) -> dict[str, Any]:
        """What an engine must know of a cell; the accelerator is the same for all."""
        return {
            "cpus": self.cpus,
            "gpus": self.gpus,
            "accelerator": self.cells[0].settings.machine.accelerator,
        }

    def section(self, name: str) -> tuple[Cell, ...]:
        """The cells of a section."""
        return tuple(cell for cell in self.cells if name in cell.sections)


def built_in_plans() -> tuple[str, ...]:
    """The plans that come with segcal."""
    return tuple(
        sorted(
            p.name.removesuffix(".toml") for p in files("segcal.study").joinpath("plans").iterdir()
        )
    )


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
        raw = _merged(raw, _override(text))
    if data is not None:
        raw["data"] = data if isinstance(data, str) else list(data)
    if seeds is not None:
        if seeds < 1:
            raise UserError(f"a study needs at least 1 seed; got {seeds}")
        raw["seed"] = list(range(seeds))
    _check_keys(raw, TOP_KEYS, "the plan")
    for key in TABLES:
        _table(raw, key, "the plan")
    machine = dict(raw.get("machine", {}))
    _check_keys(machine, (*Machine.model_fields, "cpus", "gpus"), "[machine]")
    threads = _amount("cpus", machine.pop("cpus", 1), cpus, 1)
    share = machine.pop("gpus", None)
    share = None if share is None and gpus is None else _amount("gpus", share, gpus, 0)
    if any(machine.get(key, 1) != 1 for key in ("devices", "nodes")):
        raise UserError(
            "a cell is one process: leave machine.devices and machine.nodes at 1, and run more"
            " cells at a time"
        )
    sections = _sections(raw | {"machine": machine}, only)
    if not any(section.get("data") for section in sections.values()):
        raise UserError(
            "the plan names no data; give a prepared data set's folder with --data, or data in the"
            " plan"
        )
    cells, varying = spread_out(sections)
    return Plan(name, _named(cells, names), varying, int(threads), share)


def _read(plan: str | Path) -> tuple[str, dict[str, Any]]:
    if str(plan) in built_in_plans():
        return str(plan), tomllib.loads(
            files("segcal.study").joinpath("plans", f"{plan}.toml").read_text("utf-8")
        )
    path = Path(plan)
    if not path.is_file():
        near = difflib.get_close_matches(str(plan), built_in_plans(), n=1, cutoff=0.5)
        hint = (
            f"did you mean {near[0]}?"
            if near
            else f"name a TOML file or one of {', '.join(built_in_plans())}"
        )
        raise UserError(f"there is no plan {str(plan)!r}; {hint}")
    try:
        return path.stem, tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the plan {path}: {error}") from None


def _override(text: str) -> dict[str, Any]:
    """`key=value` is TOML already, but for words without quotes.

    >>> _override("training.epochs=2"), _override("data=cases/x")
    ({'training': {'epochs': 2}}, {'data': 'cases/x'})
    """
    key, found, value = text.partition("=")
    for line in (text, f"{key} = {json.dumps(value.strip())}"):
        try:
            if found:
                return tomllib.loads(line)
        except tomllib.TOMLDecodeError:
            continue
    raise UserError(f"--set takes key=value, such as training.epochs=10; got {text!r}")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; anything else is replaced."""
    found = dict(below)
    for key, value in above.items():
        old = found.get(key)
        found[key] = (
            _merged(old, value)
            if isinstance(old, Mapping) and isinstance(value, Mapping)
            else value
        )
    return found


def _sections(raw: dict[str, Any], only: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Every section with what the top of the plan says for all."""
    top = {key: value for key, value in raw.items() if key != "studies"}
    studies = _table(raw, "studies", "the plan") or {"all": {}}
    for name in only:
        _check_known(name, studies, "study")
    found = {}
    for name, section in studies.items():
        where = f"[studies.{name}]"
        if not isinstance(section, Mapping):
            raise UserError(
                f"studies.{name} must be a section with loss, network, ...; got"
                f" {json.dumps(section, default=str)}"
            )
        _check_keys(section, SECTION_KEYS, where)
        for key in TABLES:
            _table(section, key, where)
        merged = top | dict(section)
        merged |= {key: _merged(top.get(key, {}), section.get(key, {})) for key in TABLES}
        base = merged["base"] = top.get("network", {})
        merged["network"] = section.get(
            "network", base.get("name", "unet") if isinstance(base, Mapping) else base
        )
        merged["after"] = _after(merged["after"], where)
        found[name] = merged
    unused = {
        key
        for key in ("loss", "seed", "fold")
        if key in top and all(key in part for part in studies.values())
    }
    if unused:
        raise UserError(
            f"{' and '.join(sorted(unused))} at the top of the plan has no effect: every section"
            " has its own"
        )
    return {name: found[name] for name in only or found}


def _named(cells: Sequence[Cell], names: Sequence[str]) -> tuple[Cell, ...]:
    """Only the cells of these names, if any are given."""
    for name in names:
        _check_known(name, [cell.name for cell in cells], "cell")
    kept = tuple(cell for cell in cells if not names or cell.name in names)
    for cell in kept:
        missing = [name for name in cell.choices if name not in {other.name for other in kept}]
        if missing:
            raise UserError(
                f"{cell.name} waits for a choice among other cells; name {', '.join(missing)} too"
            )
    return kept


def _after(values: Mapping[str, Any], where: str) -> After:
    _check_keys(values, AFTER_KEYS, f"after of {where}")
    noise = values.get("noise", False)
    if not isinstance(noise, bool):
        raise UserError(f"after.noise must be true or false; got {noise!r}")
    return checked_after(_words(values, "calibrators"), _words(values, "corruptions"), noise=noise)


def _words(values: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = values.get(key, ())
    if not isinstance(value, (list, tuple)) or not all(isinstance(word, str) for word in value):
        raise UserError(
            f"after.{key} must be a list of words; got {json.dumps(value, default=str)}"
        )
    return tuple(value)


def _table(values: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = values.get(key, {})
    if not isinstance(value, Mapping):
        raise UserError(
            f"{key} of {where} must be a section of key = value; got"
            f" {json.dumps(value, default=str)}"
        )
    return value


def _amount(key: str, value: Any, given: float | None, least: int) -> float:
    amount = value if given is None else given
    if (
        isinstance(amount, bool)
        or not isinstance(amount, (int, float))
        or amount < least
        or (key == "cpus" and amount % 1)
    ):
        raise UserError(
            f"machine.{key} must be a {'whole ' if key == 'cpus' else ''}number, at least {least};"
            f" got {amount!r}"
        )
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
