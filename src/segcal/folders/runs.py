"""A run's folder: the names and formats of its files.

`run.json` says what the run is, `log.csv` has a row per epoch, `checkpoints/` the weights,
`scores.csv` the scores (see `scores.py`), `bins.json` the reliability bins, `calibrators/` and
`guarantees/` what was fitted. A packed copy has no weights, and compressed tables.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from segcal.folders.files import (
    PARTIAL,
    compress,
    existing,
    read_json,
    read_rows,
    replacing,
    sweep,
    write_json,
    write_rows,
)
from segcal.folders.names import path_of
from segcal.folders.result_schemas import BinsEntry, BinsFile, FitFile, GuaranteeFile, TsFile
from segcal.folders.schemas import RunFile, fault_of
from segcal.types import UserError

WEIGHTS = ("best", "last", "nll")
"""The weights that a run keeps: of the epoch with the best validation Dice, of the last, and of the
one with the lowest validation NLL among those about as good in Dice. Older runs have no `nll`."""

RUN, LOG, SCORES, BINS = "run.json", "log.csv", "scores.csv", "bins.json"
CHECKPOINTS, CALIBRATORS, GUARANTEES = "checkpoints", "calibrators", "guarantees"
GUARANTEE_FORMAT = 1  # of the files in guarantees/; raised when older ones cannot be read
FIRST = "first_epoch"  # in run.json: what epochs are counted from
NEVER_PREDICTED = "never_predicted"
"""In the facts of a run's weights, and in `log.csv`: the classes with labelled voxels among the
validation cases, none of which is predicted."""

REMOVED = "removed"  # the status of a run that --again is about to delete

_RELU = {"last_activation": "relu"}
_OLDER_NETWORKS: dict[str, dict[str, Any]] = {
    "unet": _RELU | {"norm": "batch", "upsample": "deconv", "last_pool": 2},
    "attention_unet": _RELU,
    "unetpp": _RELU,
    "transunet": _RELU,
}
"""The form of networks from before these settings existed: what a `run.json` without them means."""


def is_run(root: Path) -> bool:
    """Whether a folder is a run's."""
    return (root / RUN).is_file()


def is_empty_run(root: Path) -> bool:
    """Whether a run can start in a folder: it does not exist, or holds only partial files."""
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    return not root.is_file() and all(name.startswith(PARTIAL) for name in names)


def run_folders(folder: Path) -> list[Path]:
    """The runs in a folder: itself, or those directly in it, or in its `runs` folder."""
    if is_run(folder):
        return [folder]
    return sorted(path.parent for part in ("*", "runs/*") for path in folder.glob(f"{part}/{RUN}"))


def read_run(root: Path) -> dict[str, Any]:
    """The content of `run.json`, in today's format."""
    path = root / RUN
    if not path.is_file():
        raise UserError(f"{root} is not a run (it has no {RUN}); segcal train makes one")
    content = read_json(path)
    if fault := fault_of(RunFile, content):
        remedy = "move the folder away and train the run again"
        raise UserError(f"{path} is damaged; {remedy} ({fault})")
    return _in_todays_format(content)


def _in_todays_format(info: dict[str, Any]) -> dict[str, Any]:
    # Older runs kept one set of weights, which `training.keep` named and `best` described.
    training = info["settings"].get("training")
    if isinstance(training, dict) and training.pop("keep", "best") == "last" and "best" in info:
        info["last"] = info.pop("best")
    if FIRST not in info:  # older versions counted epochs from 0
        for name in WEIGHTS:
            if isinstance(info.get(name), dict) and "epoch" in info[name]:
                info[name]["epoch"] += 1
        info[FIRST] = 1
    # Older networks had one form.
    if isinstance(training, dict):
        training.setdefault("class_prior", False)
    for trained in info.get("members") or [info["settings"]]:
        network = trained.get("network")
        if isinstance(network, dict):
            form = _OLDER_NETWORKS.get(network.get("name", ""), {})
            trained["network"] = network | form | network
    return info


def write_run(root: Path, info: Mapping[str, Any]) -> None:
    """Write `run.json`."""
    write_json(root / RUN, info)


def refuse_packed(root: Path, info: Mapping[str, Any]) -> None:
    """Raise if a run is a packed copy, which has no weights and stays as it was published."""
    if info.get("packed"):
        problem = f"{root} is a packed copy of a run, which can only be compared"
        raise UserError(f"{problem}; use the run itself")


def weights_path(root: Path, weights: str) -> Path:
    """The file of one kind of a run's weights."""
    return path_of(root / CHECKPOINTS, weights, ".safetensors")


def candidate_path(root: Path, epoch: int) -> Path:
    """The weights of an epoch, from 0, that may turn out to be chosen, while a run trains."""
    return weights_path(root, f"epoch-{epoch}")


def keep_candidates(root: Path, epochs: Collection[int]) -> None:
    """Delete the weights of all epochs but these."""
    kept = {candidate_path(root, epoch) for epoch in epochs}
    for path in (root / CHECKPOINTS).glob("epoch-*.safetensors"):
        if path not in kept:
            path.unlink(missing_ok=True)


def name_candidate(root: Path, epoch: int, weights: str) -> None:
    """Keep the weights of an epoch under another name, unless a killed process did so already."""
    source, target = candidate_path(root, epoch), weights_path(root, weights)
    if source.is_file():
        source.replace(target)
    elif not target.is_file():
        raise UserError(f"{root} has lost its weights of epoch {epoch}; train it with --again")


def restore_candidates(root: Path, info: Mapping[str, Any]) -> None:
    """Make the weights that a finished run kept candidates again, under their epochs."""
    for name in WEIGHTS:
        source = weights_path(root, name)
        if name in info and source.is_file():
            target = candidate_path(root, info[name]["epoch"] - 1)
            with replacing(target) as partial:
                shutil.copyfile(source, partial)


def remove_scores(root: Path) -> None:
    """Delete what was computed with a run's weights."""
    for name in (SCORES, BINS, CALIBRATORS, GUARANTEES):
        _remove(root / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def require_weights(root: Path, info: Mapping[str, Any], weights: str) -> None:
    """Raise unless a run kept these weights; older runs kept fewer kinds."""
    kept = [name for name in WEIGHTS if name in info]
    if kept and weights not in kept:
        has = f"{root} is of an older version and has only {' and '.join(kept)} weights"
        raise UserError(f"{has}; use --weights {kept[0]}, or train it again with --again")


def checkpoint_path(root: Path) -> Path:
    """The file from which an interrupted training resumes."""
    return root / CHECKPOINTS / "last.ckpt"


def calibrator_path(root: Path, name: str, weights: str = "best") -> Path:
    """The files of a fitted calibrator, without their endings."""
    folder = root / CALIBRATORS
    return path_of(folder if weights == "best" else path_of(folder, weights), name)


def read_guarantee(root: Path, calibrator: str, weights: str) -> dict[str, Any] | None:
    """The volume intervals fitted after a calibrator (empty: none); `None` if there are none.

    Those of other weights or data, or of an earlier fit of the calibrator, are none."""
    content = read_json(_guarantee_path(root, calibrator, weights))
    if fault_of(GuaranteeFile, content) or content.get("format") != GUARANTEE_FORMAT:
        return None
    same = content.get("identity") == _fitted_on(root, calibrator, weights)
    return content if same else None


def write_guarantee(root: Path, calibrator: str, weights: str, values: Mapping[str, Any]) -> None:
    """Write the volume intervals fitted after a calibrator, with what they are tied to."""
    path = _guarantee_path(root, calibrator, weights)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"format": GUARANTEE_FORMAT, "identity": _fitted_on(root, calibrator, weights)}
    write_json(path, about | dict(values))


def _guarantee_path(root: Path, calibrator: str, weights: str) -> Path:
    return path_of(path_of(root / GUARANTEES, weights), calibrator or "uncalibrated", ".json")


def _fitted_on(root: Path, calibrator: str, weights: str) -> dict[str, Any]:
    info, fit = read_run(root), None
    if calibrator:
        path = calibrator_path(root, calibrator, weights)
        facts = read_json(path.with_name(f"{path.name}.json"))
        fit = facts.get("sha256", "") if isinstance(facts, dict) else ""
    data = info["data"]["checksum"]
    return {"run": info["id"], "weights": weights, "data": data, "fit": fit}


def read_fits(root: Path, weights: str = "best") -> dict[str, dict[str, Any]]:
    """The facts of each calibrator that was fitted for these weights; also of a packed copy."""
    found = {}
    for path in sorted(calibrator_path(root, "any", weights).parent.glob("[!.]*.json")):
        content = read_json(path)
        is_ts = path.stem.partition("_")[0] == "ts"  # of a region: ts_1
        if fault := fault_of(TsFile if is_ts else FitFile, content):
            raise UserError(f"{path} is damaged; run segcal calibrate --again on {root} ({fault})")
        # older fits were over all voxels, and did not say so
        found[path.stem] = {"voxels": "all", **content}
    return found


def read_log(root: Path, *, columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """The epochs in `log.csv`, in their order, counted from 1; none if there is no file.

    All values are numbers but those of `NEVER_PREDICTED`."""
    rows = read_rows(root / LOG, columns)
    try:
        epochs = [int(row["epoch"]) for row in rows]
        numbers = []
        for row in rows:
            numbers += [float(value) for key, value in row.items() if key != NEVER_PREDICTED]
    except (KeyError, ValueError, TypeError):
        epochs, numbers = [], []
    if rows and (not numbers or any(b <= a for a, b in zip([-1, *epochs], epochs, strict=False))):
        raise UserError(f"{existing(root / LOG)} is damaged; train the run with --again")
    if rows and epochs[0] == 0:  # older versions counted from 0
        rows = [row | {"epoch": str(int(row["epoch"]) + 1)} for row in rows]
    return rows


def write_log(root: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write `log.csv`."""
    write_rows(root / LOG, list(rows[0]), rows)


def read_bins(root: Path) -> list[dict[str, Any]]:
    """The entries of `bins.json`, one per scored condition; none if there is no such file."""
    path = existing(root / BINS)
    if path is None:
        return []
    content, again = read_json(path), f"run segcal evaluate --again on {root}"
    if fault_of(BinsFile, content):
        raise UserError(f"{path} is damaged; {again}")
    entries: list[dict[str, Any]] = content["entries"]
    if any("weights" not in entry for entry in entries):  # of an older version
        entries = [{"weights": only_weights(root), **entry} for entry in entries]
    entries = [_with_sets(entry) for entry in entries]
    if any(fault_of(BinsEntry, entry) for entry in entries):
        raise UserError(f"{path} is damaged; {again}")
    return entries


def _with_sets(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry in today's format; an older one has the bins of reference voxels alone."""
    if "top" not in entry:
        return entry
    older = {name: entry[name] for name in ("top", "per_class", "fine") if name in entry}
    kept = {name: value for name, value in entry.items() if name not in older}
    return kept | {"sets": {"reference": older}}


def write_bins(root: Path, classes: Sequence[str], entries: Sequence[Mapping[str, Any]]) -> None:
    """Write `bins.json`; `classes` are the names of all classes, background first."""
    write_json(root / BINS, {"classes": list(classes), "entries": list(entries)})


def only_weights(root: Path) -> str:
    """The weights that all scores of an older run belong to."""
    content = read_json(root / RUN)
    if not isinstance(content, dict) or not isinstance(content.get("settings"), dict):
        content = read_run(root)  # says what is wrong
    info = _in_todays_format(content | {"members": None})
    return "last" if "last" in info and "best" not in info else "best"


def remove_run(root: Path, others: Sequence[str] = ()) -> None:
    """Delete a run's files, and `others` in its folder; an interrupted removal is seen later."""
    write_run(root, read_run(root) | {"status": REMOVED})
    for name in (CHECKPOINTS, CALIBRATORS, GUARANTEES, LOG, SCORES, BINS, *others, RUN):
        _remove(root / name)


def sweep_run(root: Path) -> None:
    """Delete what killed processes left in a run's folder; for a caller that holds its lock."""
    sweep(root, held=True)
    for path in (root / CALIBRATORS).rglob(".*.partial"):
        path.unlink(missing_ok=True)
    if logits_folder(root).exists():
        shutil.rmtree(logits_folder(root))


def logits_folder(root: Path) -> Path:
    """Where the logits of the validation cases are while calibrators are fitted."""
    return root / ".logits"


def copy_packed(root: Path, target: Path, info: Mapping[str, Any]) -> None:
    """Write a packed copy of a run: `info`, compressed tables, and what was fitted, as JSON."""
    target.mkdir(parents=True, exist_ok=True)
    write_run(target, dict(info) | {"packed": True})
    for name in (LOG, SCORES, BINS):
        if existing(root / name) is not None:
            compress(root / name, target / name)
    fits = [path for name in (CALIBRATORS, GUARANTEES) for path in (root / name).rglob("*.json")]
    for path in [path for path in fits if not path.name.startswith(".")]:
        copy = target / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_json(copy, read_json(path))
