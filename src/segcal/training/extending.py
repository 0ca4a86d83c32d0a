"""A finished or interrupted run that goes on to more epochs than it was started with."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from segcal import folders
from segcal.config import RunSettings
from segcal.provenance import identity
from segcal.types import UserError

BEFORE = "extended_from"
"""In `run.json`: the number of epochs that the run had before it was extended."""


def only_epochs_grow(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether two sets of deciding settings differ in this alone, that the new has more epochs."""
    same = deepcopy(old)
    same["training"]["epochs"] = new["training"]["epochs"]
    return same == new and new["training"]["epochs"] > old["training"]["epochs"]


def extend(out: Path, info: dict[str, Any], settings: RunSettings) -> dict[str, Any]:
    """Make a run ready to go on; its scores and fits, which were of other weights, are deleted.

    The rate of learning of all epochs so far must be as in a run that was longer from the start."""
    epochs, n_done = info["settings"]["training"]["epochs"], len(folders.read_log(out))
    wanted, half = settings.training.epochs, max(1, epochs // 2)
    if not folders.checkpoint_path(out).is_file():
        raise UserError(f"{out} has lost the state to go on from; train it with --again")
    if settings.training.lr_drop < 1 and n_done >= half:
        fell = f"its learning rate fell after epoch {half}, half of its {epochs}"
        later = f"that of {wanted} epochs falls after epoch {wanted // 2}"
        remedy = "choose another --out, or --again to start over"
        constant = "a run with training.lr_drop=1 can go on"
        raise UserError(
            f"{out} cannot go on to {wanted} epochs: {fell}, and {later}; {remedy} ({constant})"
        )
    folders.restore_candidates(out, info)
    folders.remove_scores(out)
    kept = {key: value for key, value in info.items() if key not in folders.WEIGHTS}
    training = info["settings"]["training"] | {"epochs": wanted}
    kept |= {"id": identity(), "status": "running", BEFORE: epochs}
    kept["settings"] = info["settings"] | {"training": training}
    folders.write_run(out, kept)
    return kept
