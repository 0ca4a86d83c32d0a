"""A plan: a run file whose values may be lists, in named sections if there are several.

Mistakes in a plan are refused here, before any work: keys, settings of losses and networks, data,
folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from segcal.choice import DEFAULT
from segcal.config import ChosenNetwork, Machine, put_all, read_toml, unknown, validated
from segcal.study.cells import Cell, spread_out
from segcal.study.sections import Section, SectionTable, named_tables
from segcal.types import AnyPath, UserError, as_paths

PLANS = Path(__file__).with_name("plans")


class PlanMachine(Machine, frozen=True):
    """The `[machine]` of a plan: also the CPUs and GPUs of a cell."""

    cpus: int = Field(default=1, ge=1)  # threads: scores must not depend on the number of workers
    gpus: float | None = Field(default=None, ge=0)  # None: one, where there are any


class PlanTable(SectionTable, frozen=True):
    """The keys of a plan."""

    choose: Literal["dice", "nll"] = DEFAULT
    machine: PlanMachine = PlanMachine()
    studies: dict[str, SectionTable] = Field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Cells to run, each once, and the CPUs and GPUs that one of them needs."""

    name: str
    cells: tuple[Cell, ...]
    varying: frozenset[str]  # the keys that are part of the cells' names
    cpus: int
    gpus: float | None
    choose: str  # the rule by which validation chooses settings

    @property
    def needs(self) -> dict[str, Any]:
        """What an engine must know about a cell; the accelerator is the same for all."""
        accelerator = self.cells[0].settings.machine.accelerator
        return {"cpus": self.cpus, "gpus": self.gpus, "accelerator": accelerator}


def built_in_plans() -> tuple[str, ...]:
    """The plans that come with segcal."""
    return tuple(sorted(path.stem for path in PLANS.iterdir()))


def read_plan(
    plan: AnyPath,
    *,
    data: AnyPath | Sequence[AnyPath] | None = None,
    overrides: Sequence[str] = (),
    seeds: int | None = None,
    folds: int | None = None,
    only: Sequence[str] = (),
    names: Sequence[str] = (),
    cpus: int | None = None,
    gpus: float | None = None,
) -> Plan:
    """A built-in plan by its name, or one of your own by its file, spread out into cells.

    `overrides` are `key=value` as TOML writes them; `seeds` means seeds 0 to n - 1, `folds` the
    folds 0 to n - 1; `only` names the sections to keep, `names` the cells."""
    built_in = built_in_plans()
    path = PLANS / f"{plan}.toml" if str(plan) in built_in else Path(plan)
    if not path.is_file():
        allowed = f"name a TOML file or one of {', '.join(built_in)}"
        raise UserError(f"there is no plan {str(plan)!r}; {allowed}")
    raw = read_toml(path, "plan")
    sets = None if data is None else [str(path) for path in as_paths(data)]
    given: dict[str, Any] = {"data": sets, "machine.cpus": cpus, "machine.gpus": gpus}
    for key, n in (("seed", seeds), ("fold", folds)):
        given[key] = None if n is None else list(range(n))
    put_all(raw, overrides, given)
    table = validated(PlanTable, raw)
    if table.machine.devices * table.machine.nodes > 1:
        rule = "leave machine.devices and machine.nodes at 1, and run more cells at a time"
        raise UserError(f"a cell is one process: {rule}")
    cells, varying = spread_out(_sections(table, only))
    machine = table.machine
    named = _named(cells, names)
    return Plan(path.stem, named, varying, machine.cpus, machine.gpus, table.choose)


def _sections(plan: PlanTable, only: Sequence[str]) -> list[Section]:
    """The sections with the values that the top of the plan gives to all; one if it has none."""
    studies = plan.studies or {"all": SectionTable()}
    for key in ("fold", "loss", "seed"):
        everywhere = all(key in table.model_fields_set for table in studies.values())
        if key in plan.model_fields_set and everywhere:
            reason = "every section has its own"
            raise UserError(f"{key} at the top of the plan has no effect: {reason}")
    machine = plan.machine.model_dump(mode="json", include=set(Machine.model_fields))
    inherited, names = {}, plan.network
    if isinstance(plan.network, Mapping):
        inherited = dict(plan.network)
        names = inherited.pop("name", ChosenNetwork().name)
    main = named_tables(names, "network")[0]["name"]
    top = plan.model_copy(update={"network": names})
    sections = []
    for name in only or studies:
        if name not in studies:
            raise UserError(unknown("study", name, studies))
        table = top.merged(studies[name])
        if not table.data:
            remedy = "give a prepared data set's folder with --data, or data in the plan"
            raise UserError(f"the plan names no data; {remedy}")
        sections.append(Section(name, table, main, inherited, machine))
    return sections


def _named(cells: Sequence[Cell], names: Sequence[str]) -> tuple[Cell, ...]:
    """Only the cells of these names, if any are given."""
    known = [cell.name for cell in cells]
    for name in names:
        if name not in known:
            raise UserError(unknown("cell", name, known))
    kept = {cell.name: cell for cell in cells if not names or cell.name in names}
    for cell in kept.values():
        missing = ", ".join(name for name in cell.choices if name not in kept)
        if missing:
            raise UserError(f"{cell.name} waits for a choice among other cells; name {missing} too")
    return tuple(kept.values())
