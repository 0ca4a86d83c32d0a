"""Contenders: the one grouping of runs into what is compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from segcal.compare.choice import Infos, Tried, best, by_fold, mean_dice, with_all_seeds
from segcal.compare.names import (
    MAIN_NETWORK,
    Settings,
    choice_text,
    key_text,
    label_text,
    setting_text,
)
from segcal.folders import WEIGHTS
from segcal.losses import LOSSES
from segcal.networks import NETWORKS
from segcal.types import UserError

IGNORED = ("name", "ignore_index")  # keys of the loss table that are no settings of a method
ENSEMBLE = {"average": "probs", "calibrator": ""}  # the defaults of an ensemble's settings


@dataclass(frozen=True, kw_only=True)
class Contender:
    """What is compared: a method on a network and a data set, at the setting that was chosen."""

    dataset: str
    method: str
    network: str = MAIN_NETWORK
    variant: Settings = ()  # settings that are not tuned and differ from their defaults
    weights: str = "best"
    members: int = 1  # more for an ensemble
    chosen: Mapping[int, Settings]  # by each fold
    runs: tuple[str, ...]  # of the chosen settings: one per seed and fold
    tried: Mapping[Settings, float]  # every setting with its mean validation Dice
    runs_tried: Mapping[Settings, tuple[str, ...]]
    shows_last: bool = False  # whether names say that the weights are of the last epoch

    @property
    def key(self) -> str:
        """The name in data: `mbls`, `mbls penalty=l2`, `transunet mbls`."""
        return key_text(*self._identity)

    @property
    def label(self) -> str:
        """The printed name: `MbLS`, `MbLS (penalty l2)`, `MbLS, TransUNet`."""
        return label_text(*self._identity)

    @property
    def setting(self) -> str:
        """The printed choice: `margin=10`, `margin=8 (5 folds), margin=5 (2 folds)`, or nothing."""
        return choice_text(self.chosen)

    @property
    def _identity(self) -> tuple[str, str, Settings, bool, int]:
        return self.method, self.network, self.variant, self.shows_last, self.members


class _Group(NamedTuple):
    """The fields that runs of one contender share."""

    dataset: str
    network: str
    method: str
    members: int
    variant: Settings
    weights: str


def contenders_of(
    runs: Infos, scored: Mapping[str, set[str]], *, weights: str | None, complete: bool
) -> tuple[Contender, ...]:
    """The contenders of some runs, in the order of `LOSSES`, the main network first.

    `scored` are the weights of each run that have test scores. Unless the study was `complete`,
    settings that lack a seed are left out of their fold."""
    groups: dict[_Group, dict[Settings, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, info in runs.items():
        for kept in _kept_weights(info):
            if weights in (None, kept):
                group, tuned = _group(info, kept)
                groups[group][tuned].append(name)
    if not groups:
        raise UserError(f"no run has {weights} weights; name other runs, or other weights")
    compared = _compared(groups, scored)
    # Contenders have the same names on every data set, so the rule looks at all of them.
    several = len({group.weights for group in compared}) > 1
    datasets = list(dict.fromkeys(group.dataset for group in groups))
    contenders = []
    for group in sorted(compared, key=lambda group: (datasets.index(group.dataset), _place(group))):
        shows_last = several and group.weights == "last"
        contenders.append(_contender(group, groups[group], runs, complete, shows_last))
    return tuple(contenders)


def _kept_weights(info: Mapping[str, Any]) -> list[str]:
    """The weights that a run has, or those that the members of an ensemble are used with."""
    kept = [name for name in WEIGHTS if name in info]
    return kept or [info.get("weights", WEIGHTS[0])]


def _group(info: Mapping[str, Any], weights: str) -> tuple[_Group, Settings]:
    """The group of a run, and the values of the settings that the paper tunes."""
    loss, network = info["settings"]["loss"], info["settings"]["network"]["name"]
    row = LOSSES.get(loss["name"])
    tunable = {key for settings in row.grid for key in settings} if row else set()
    defaults = row.settings if row else {}
    # If the members of an ensemble differ in a setting, it has none, and not the default.
    given = loss if "members" in info else defaults | loss
    tuned, variant = {}, {}
    for key, value in given.items():
        if key in tunable:
            tuned[key] = value
        elif key not in IGNORED and value != defaults.get(key):
            variant[key] = value
    for key, default in ENSEMBLE.items():
        if info.get(key, default) != default:
            variant[key] = info[key]
    members, fixed = len(info.get("members", [info])), tuple(sorted(variant.items()))
    group = _Group(info["data"]["name"], network, loss["name"], members, fixed, weights)
    return group, tuple(sorted(tuned.items()))


def _compared(
    groups: Mapping[_Group, Mapping[Settings, list[str]]], scored: Mapping[str, set[str]]
) -> list[_Group]:
    """The groups with test scores; of runs without any scores the group of their first weights."""
    with_scores = set()
    for group, tried in groups.items():
        names = [name for same in tried.values() for name in same]
        if any(group.weights in scored.get(name, ()) for name in names):
            with_scores.add(group)
    compared = []
    for group in groups:
        same = [other for other in groups if other._replace(weights=group.weights) == group]
        if group in with_scores or (group == min(same) and not with_scores.intersection(same)):
            compared.append(group)
    return compared


def _place(group: _Group) -> tuple[Any, ...]:
    """Known networks and methods in the order of their tables, then the others by name."""
    place: list[Any] = []
    for name, table in ((group.network, list(NETWORKS)), (group.method, list(LOSSES))):
        place += [table.index(name), ""] if name in table else [len(table), name]
    return (*place, group.members, setting_text(group.variant), group.weights)


def _contender(
    group: _Group, tried: Tried, runs: Infos, complete: bool, shows_last: bool
) -> Contender:
    folds = by_fold(tried, runs)
    if not complete:
        folds = {fold: with_all_seeds(here) for fold, here in folds.items()}
    chosen: dict[int, Settings] = {}
    chosen_runs: set[str] = set()
    kept: set[str] = set()
    for fold, here in folds.items():
        _check_repeats(group.method, here, runs)
        chosen[fold] = best(here, runs, group.weights)
        chosen_runs.update(here[chosen[fold]])
        kept.update(*here.values())
    runs_tried = {}
    for settings, names in tried.items():
        if left := tuple(name for name in names if name in kept):
            runs_tried[settings] = left
    return Contender(
        **group._asdict(),
        chosen=chosen,
        runs=tuple(name for name in runs if name in chosen_runs),
        tried=mean_dice(runs_tried, runs, group.weights),
        runs_tried=runs_tried,
        shows_last=shows_last,
    )


def _check_repeats(method: str, tried: Tried, runs: Infos) -> None:
    """Repeats of a setting in a fold must differ in seed; all settings must have the same seeds."""
    repeats = set()
    for settings, same in tried.items():
        seeds = [runs[name]["settings"]["seed"] for name in same]
        if len(set(seeds)) < len(seeds):
            text = f"{method} {setting_text(settings)}".strip()
            raise UserError(
                f"{', '.join(same)} are the same: {text} with one seed; name one of them"
            )
        repeats.add(tuple(sorted(seeds)))
    if len(repeats) > 1:
        raise UserError(
            f"the settings of {method} were run with different seeds or folds; run each with the"
            " same ones"
        )
