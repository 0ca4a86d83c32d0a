"""Contenders: the one grouping of runs into what is compared, and the choice of their settings.

Every fold chooses for itself, because its validation cases are test cases of other folds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from segcal.choice import DEFAULT, Validated, choose
from segcal.compare import names
from segcal.compare.names import MAIN_NETWORK, Settings, setting_text
from segcal.folders import WEIGHTS
from segcal.losses import LOSSES
from segcal.networks import NETWORKS
from segcal.types import UserError

Infos = Mapping[str, Mapping[str, Any]]  # the content of each run's record
Tried = Mapping[Settings, Sequence[str]]  # the runs of each setting
IGNORED = ("name", "ignore_index")  # keys of the loss table that are no settings of a method
DECIDING = ("val_dice", "val_dice_se", "val_nll")  # the facts that choose a setting
ENSEMBLE = {"average": "probs", "calibrator": ""}  # the defaults of an ensemble's settings


@dataclass(frozen=True)
class Identity:
    """The fields that the runs of a contender share, without their weights."""

    dataset: str
    method: str
    network: str = MAIN_NETWORK
    variant: Settings = ()  # settings that are not tuned and differ from their defaults
    members: int = 1  # more for an ensemble


@dataclass(frozen=True, kw_only=True)
class Contender(Identity):
    """What is compared: a method on a network and a data set, at the setting that was chosen."""

    weights: str = "best"
    chosen: Mapping[int, Settings]  # by each fold
    runs: tuple[str, ...]  # of the chosen settings: one per seed and fold
    tried: Mapping[Settings, float]  # every setting with its mean validation Dice
    tried_nll: Mapping[Settings, float]  # and with its mean validation NLL; not of older runs
    runs_tried: Mapping[Settings, tuple[str, ...]]
    shows_weights: bool = False  # whether names say which weights these are

    @property
    def key(self) -> str:
        """The name in data: `mbls`, `mbls penalty=l2`, `transunet mbls`."""
        network = "" if self.network == MAIN_NETWORK else self.network
        parts = (network, self.method, setting_text(self.variant), *self._ending)
        return " ".join(filter(None, parts))

    @property
    def label(self) -> str:
        """The printed name: `MbLS`, `MbLS (penalty l2, ensemble of 3)`, `MbLS, TransUNet`."""
        details = ", ".join(filter(None, (setting_text(self.variant, " "), *self._ending)))
        method = names.method_label(self.method) + (f" ({details})" if details else "")
        main = self.network == MAIN_NETWORK
        return method if main else f"{method}, {names.network_label(self.network)}"

    @property
    def setting(self) -> str:
        """The printed choice: `margin=10`, `margin=8 (5 folds), margin=5 (2 folds)`, or nothing."""
        return names.choice_text(self.chosen)

    @property
    def _ending(self) -> tuple[str, str]:
        ensemble = f"ensemble of {self.members}" if self.members > 1 else ""
        return names.WEIGHTS_LABELS[self.weights] if self.shows_weights else "", ensemble


def contenders_of(
    runs: Infos,
    scored: Mapping[str, set[str]],
    *,
    weights: str | None,
    complete: bool,
    rule: str,
) -> tuple[Contender, ...]:
    """The contenders of some runs, in the order of `LOSSES`, the main network first.

    `scored` are the weights of each run that have test scores; weights without any are left out,
    unless the runs have no scores at all. Unless the study was `complete`, settings that lack a
    seed are left out of their fold. `rule` is one of `CHOICES`."""
    groups: dict[Identity, dict[str, dict[Settings, list[str]]]] = {}
    with_scores = set()
    for run, info in runs.items():
        identity, tuned = _identity(info)
        kept = [w for w in WEIGHTS if w in info] or [info.get("weights", WEIGHTS[0])]
        if weights not in (None, *kept):
            raise UserError(f"{run} has no {weights} weights; leave it out, or train it again")
        for w in kept:
            if weights in (None, w):
                tried = groups.setdefault(identity, {}).setdefault(w, defaultdict(list))
                tried[tuned].append(run)
                if w in scored.get(run, ()):
                    with_scores.add((identity, w))
    compared = []
    for identity, kinds in groups.items():
        used = [w for w in kinds if (identity, w) in with_scores]
        compared += [(identity, w) for w in used or [min(kinds)]]
    # Contenders have the same names on every data set, so the rule looks at all of them.
    several = len({w for _, w in compared}) > 1
    datasets = list(dict.fromkeys(identity.dataset for identity in groups))
    contenders = []
    for identity, w in sorted(compared, key=lambda pair: _place(datasets, *pair)):
        fields = asdict(identity) | {
            "weights": w,
            "shows_weights": w != WEIGHTS[0] and (several or weights == w),
        }
        fields |= _choice(identity.method, groups[identity][w], runs, w, complete, rule)
        contenders.append(Contender(**fields))
    return tuple(contenders)


def _identity(info: Mapping[str, Any]) -> tuple[Identity, Settings]:
    """What a run is, and the values of the settings that the paper tunes."""
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
    dataset, members = info["data"]["name"], len(info.get("members", [info]))
    fixed, free = tuple(sorted(variant.items())), tuple(sorted(tuned.items()))
    return Identity(dataset, loss["name"], network, fixed, members), free


def _place(datasets: Sequence[str], identity: Identity, weights: str) -> tuple[Any, ...]:
    """Known networks and methods in the order of their tables, then the others by name."""
    place: list[Any] = [datasets.index(identity.dataset)]
    for name, table in ((identity.network, list(NETWORKS)), (identity.method, list(LOSSES))):
        place += [table.index(name), ""] if name in table else [len(table), name]
    return (*place, identity.members, setting_text(identity.variant), weights)


def _choice(
    method: str, tried: Tried, runs: Infos, weights: str, complete: bool, rule: str
) -> dict[str, Any]:
    """The setting that each fold chooses by a rule, from means over seeds."""
    chosen: dict[int, Settings] = {}
    chosen_runs: set[str] = set()
    kept: set[str] = set()
    for fold, settings_run in by_fold(tried, runs).items():
        # Settings of an incomplete study that lack a seed which others have are left out.
        most = 0 if complete else max(map(len, settings_run.values()))
        here = {settings: same for settings, same in settings_run.items() if len(same) >= most}
        _check_repeats(method, here, runs, weights)
        chosen[fold] = chosen_setting(validated(here, runs, weights), rule)
        chosen_runs.update(here[chosen[fold]])
        kept.update(*here.values())
    runs_tried = {}
    for settings, same in tried.items():
        if left := tuple(run for run in same if run in kept):
            runs_tried[settings] = left
    choice: dict[str, Any] = {"chosen": chosen, "runs_tried": runs_tried}
    means = validated(runs_tried, runs, weights)
    choice["tried"] = {settings: scores.dice for settings, scores in means.items()}
    nlls = {settings: scores.nll for settings, scores in means.items()}
    choice["tried_nll"] = {key: nll for key, nll in nlls.items() if not math.isnan(nll)}
    return choice | {"runs": tuple(run for run in runs if run in chosen_runs)}


def by_fold(tried: Tried, infos: Infos) -> dict[int, dict[Settings, list[str]]]:
    """The runs of each setting, fold by fold."""
    folds: dict[int, dict[Settings, list[str]]] = {}
    for settings, same in tried.items():
        for run in same:
            fold = folds.setdefault(infos[run]["settings"]["fold"], {})
            fold.setdefault(settings, []).append(run)
    return dict(sorted(folds.items()))


def validated(tried: Tried, infos: Infos, weights: str) -> dict[Settings, Validated]:
    """The validation scores of each setting, means over its runs; NaN if they have none.

    Seeds share the validation cases. The standard error of their mean Dice is at most the mean of
    their standard errors (the triangle inequality), and equal to it if all seeds rise and fall
    together from case to case. It is not divided by the number of seeds: more of them do not make
    more cases."""
    means = {}
    for settings, same in tried.items():
        rows = [infos[run].get(weights, {}) for run in same]
        values = [[row.get(key, math.nan) for row in rows] for key in DECIDING]
        means[settings] = Validated(*(float(np.mean(each)) for each in values))
    return means


def chosen_setting(scores: Mapping[Settings, Validated], rule: str) -> Settings:
    """The setting that a rule chooses; by Dice if some, being older, have no NLL."""
    known = not any(math.isnan(value.nll) for value in scores.values())
    return choose(scores, rule if known else "dice")


def rule_of(runs: Infos, recorded: str | None) -> str:
    """The rule for some runs: that of their study, or NLL if all of them have it, else Dice."""
    if recorded is not None:
        return recorded
    facts = [info[weights] for info in runs.values() for weights in WEIGHTS if weights in info]
    return DEFAULT if facts and all("val_nll" in row for row in facts) else "dice"


def _check_repeats(method: str, tried: Tried, runs: Infos, weights: str) -> None:
    """The settings of a fold must have the same seeds, each once, and a Dice to choose by."""
    repeats, every = set(), [run for same in tried.values() for run in same]
    for settings, same in tried.items():
        seeds = sorted(runs[run]["settings"]["seed"] for run in same)
        repeats.add(tuple(seeds))
        if len(set(seeds)) < len(seeds):
            text = f"{method} {setting_text(settings)}".strip()
            remedy = f"are the same: {text} with one seed; name one of them"
            raise UserError(f"{', '.join(same)} {remedy}")
    if len(repeats) > 1:
        remedy = "different seeds or folds; run each with the same ones"
        raise UserError(f"the settings of {method} were run with {remedy}")
    if len(tried) > 1 and not all(weights in runs[run] for run in every):
        texts = f"{', '.join(map(setting_text, tried))}; name the runs of one setting"
        raise UserError(f"{', '.join(every)} have no validation Dice to choose one of {texts}")
