"""The settings of a run: one checked model, from TOML, `--set key=value` and flags, in that order.

The settings of a loss or network are checked against its signature when the run starts."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from segcal.types import AnyPath, UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

M = TypeVar("M", bound=BaseModel)
_wrapped = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
OneOrMore = Annotated[tuple[str, ...], _wrapped]  # a word, or a list of words


class Chosen(BaseModel, extra="allow", frozen=True):
    """A row of a family by its key, with settings of its own: `{name = "mbls", margin = 5.0}`."""

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class ChosenLoss(Chosen, frozen=True):
    """A row of `LOSSES`."""

    name: str = "ce"


class ChosenNetwork(Chosen, frozen=True):
    """A row of `NETWORKS`."""

    name: str = "unet"


class Training(BaseModel, extra="forbid", frozen=True):
    """The paper's protocol by default: Adam, batch 4, 100 epochs, 1e-3 and from half-time 1e-4.

    But for `class_prior`, which the paper does not have."""

    epochs: int = Field(default=100, ge=1, le=1_000_000)
    batch: int = Field(default=4, ge=1, le=1_000_000)
    lr: float = Field(default=1e-3, gt=0)
    lr_drop: float = Field(default=0.1, gt=0, le=1)  # factor at half-time
    class_prior: bool = True  # logits start at the log of each class's share of the voxels
    augment: bool = False
    keep_empty: bool | None = None  # None: as the data set's recipe says


class Machine(BaseModel, extra="forbid", frozen=True):
    """Where and how it runs. The batch is per process: several devices make a larger one."""

    accelerator: str = "auto"
    devices: int = Field(default=1, ge=1, le=1024)
    nodes: int = Field(default=1, ge=1, le=100_000)
    strategy: str = "auto"
    precision: str = "32-true"
    workers: int = Field(
        default=0, ge=0, le=1024
    )  # data loading processes; usually none are needed
    loggers: OneOrMore = ()  # tensorboard, wandb, mlflow


class RunSettings(BaseModel, extra="forbid", frozen=True):
    """Everything that decides what a run learns, and where it runs."""

    data: str
    fold: int = Field(default=0, ge=0)
    seed: int = Field(default=0, ge=0, lt=1 << 31)
    loss: ChosenLoss = ChosenLoss()
    network: ChosenNetwork = ChosenNetwork()
    training: Training = Training()
    machine: Machine = Machine()

    @property
    def deciding(self) -> dict[str, Any]:
        """The settings that must not change when a run resumes."""
        processes = self.machine.devices * self.machine.nodes  # they decide the batch
        kept = self.model_dump(mode="json", exclude={"machine", "data"})
        return kept | {"machine": {"processes": processes, "precision": self.machine.precision}}


def run_settings(
    values: Mapping[str, Any], *, config: AnyPath | None = None, overrides: Sequence[str] = ()
) -> RunSettings:
    """Settings from a TOML file, then `key=value` overrides, then values that are not None.

    >>> overrides = ["loss.name=mbls", "loss.margin=5", "training.epochs=2"]
    >>> run_settings({"data": "cases/x"}, overrides=overrides).loss.settings
    {'margin': 5}
    """
    merged = read_toml(config, "settings") if config is not None else {}
    put_all(merged, overrides, values)
    return checked(merged)


def put_all(tables: dict[str, Any], overrides: Sequence[str], values: Mapping[str, Any]) -> None:
    """Set `key=value` overrides, then values that are not None, in a run file or a plan."""
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set takes key=value, such as training.epochs=10; got {text!r}")
        try:
            parsed = tomllib.loads(f"value = {value.strip()}")["value"]
        except ValueError:  # also of a number of very many digits
            parsed = value.strip()  # a string without quotes
        except RecursionError:
            raise UserError(f"--set {key} is nested too deeply") from None
        _put(tables, key.strip(), parsed)
    for key, value in values.items():
        if value is not None:
            _put(tables, key, value)


def checked(values: Mapping[str, Any]) -> RunSettings:
    """Settings from simple values, such as those in a `run.json`."""
    return validated(RunSettings, values)


def validated(model: type[M], values: Mapping[str, Any]) -> M:
    """A model with these values; a mistake in them is a sentence."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(_sentence(error, model)) from None


def read_toml(path: AnyPath, content: str) -> dict[str, Any]:
    """The tables of a TOML file; `content` names them in the error."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError:
        raise UserError(f"cannot read the {content} in {path}: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the {content} in {path}: {error}") from None


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise UserError(f"{key} cannot be set: {part} is a value, not a section")
    values[last] = os.fspath(value) if isinstance(value, os.PathLike) else value


def _sentence(error: ValidationError, model: type[BaseModel]) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"the setting {key} is missing"
    if first["type"] == "extra_forbidden":
        known = []
        for name, field in model.model_fields.items():
            inner = getattr(field.annotation, "model_fields", ())
            known += [name, *(f"{name}.{part}" for part in inner)]
        return unknown("setting", key, known)
    if first["type"] == "model_type" and key in ("loss", "network"):
        return f"{key} is a section; name one with {key}.name={first['input']}"
    got = json.dumps(first["input"], default=str)
    return f"setting {key}: {first['msg'][0].lower()}{first['msg'][1:]}; got {got}"


def unknown(kind: str, key: str, known: Collection[str]) -> str:
    """A sentence that names the key that was probably meant, or all.

    >>> unknown("setting", "epoch", ["seed", "training.lr", "training.epochs"])
    "unknown setting 'epoch'; did you mean 'training.epochs'?"
    """
    names = {name.rpartition(".")[2]: name for name in known}
    near = difflib.get_close_matches(key.rpartition(".")[2], names, n=1, cutoff=0.65)
    hint = f"did you mean {names[near[0]]!r}?" if near else f"choose from {', '.join(known)}"
    return f"unknown {kind} {key!r}; {hint}"
