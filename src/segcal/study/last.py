"""Last epochs of trainings of which another study kept the best epoch, as runs of their own:
nothing is trained twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from segcal.folders import (
    open_cases,
    read_rows,
    read_run,
    save_weights,
    whole_or_not,
    write_json,
    write_rows,
)
from segcal.provenance import identity
from segcal.study.cells import Cell
from segcal.study.folder import deciding_of, identity_of
from segcal.training.callbacks import Checkpoints
from segcal.types import UserError

CHECKPOINT = Path("checkpoints") / "last.ckpt"
OF_NETWORK = "network."  # what its weights begin with in a checkpoint


def trained_elsewhere(cells: Sequence[Cell], studies: Sequence[Path]) -> dict[str, Path]:
    """For cells that keep the last epoch, the runs in other studies that differ from them in
    nothing but that.
    """
    if not studies:
        return {}
    wanted = [cell for cell in cells if cell.settings.training.keep == "last" and not cell.choices]
    if not wanted:
        raise UserError(
            'no cell of the plan keeps the last epoch (training.keep = "last"); leave --last-of out'
        )
    data = {cell.settings.data: open_cases(Path(cell.settings.data)) for cell in wanted}
    by_checksum = {cases.info["checksum"]: cases for cases in data.values()}
    known: dict[str, Path] = {}
    for run in (path.parent for study in studies for path in sorted(study.glob("runs/*/run.json"))):
        info = read_run(run)
        if info["status"] == "finished" and (run / CHECKPOINT).is_file():
            old = deciding_of(info, by_checksum)
            if old:
                known[identity_of(info["data"]["checksum"], _keeping_last(old))] = run
    sought = {
        cell.name: identity_of(data[cell.settings.data].info["checksum"], cell.settings.deciding)
        for cell in wanted
    }
    found = {name: known[key] for name, key in sought.items() if key in known}
    if not found:
        names = ", ".join(map(str, studies))
        raise UserError(
            f"no training of this plan is in {names}; --last-of takes studies that differ in"
            " training.keep only"
        )
    return found


def _keeping_last(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings, "training": {**settings["training"], "keep": "last"}}


def take_last(run: Path, to: Path) -> None:
    """Make a run of what another run's last epoch left, as if it had been trained to keep that."""
    info, rows = read_run(run), read_rows(run / "log.csv", columns=("epoch", "val_dice", "val_ece"))
    checkpoint = Checkpoints().load_checkpoint(run / CHECKPOINT)
    epochs = info["settings"]["training"]["epochs"]
    if not rows or not checkpoint["epoch"] + 1 == int(rows[-1]["epoch"]) + 1 == epochs:
        raise UserError(
            f"the last checkpoint of {run} is not of epoch {epochs}; leave --last-of out to train"
            " again"
        )
    state = checkpoint["state_dict"].items()
    weights = {
        name.removeprefix(OF_NETWORK): value for name, value in state if name.startswith(OF_NETWORK)
    }
    last = {"epoch": epochs - 1, **{key: float(rows[-1][key]) for key in ("val_dice", "val_ece")}}
    own = {
        "id": identity(),
        "settings": _keeping_last(info["settings"]),
        "best": last,
        "last_epoch_of": info["id"],
    }
    with whole_or_not(to, info["id"]) as partial:
        save_weights(partial / "checkpoints" / "best.safetensors", weights)
        write_rows(partial / "log.csv", rows)
        write_json(partial / "run.json", info | own)
