"""One small function per official layout: a folder as downloaded -> its cases.

Readers only list files; `case.py` opens them.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.types import UserError


@dataclass(frozen=True)
class RawCase:
    """Where a case's files are. Cases of one patient are always in the same split."""

    id: str
    patient: str
    images: tuple[Path, ...]  # a file per channel, or one file that holds all
    labels: tuple[Path, ...]  # one label map, or several masks of one object
    codes: Mapping[int, int] | None = None  # raw label -> class, where files of one data set differ


Reader = Callable[[Path], list[RawCase]]


def acdc(root: Path) -> list[RawCase]:
    """`[training/]patient001/patient001_frame01.nii.gz` and `_gt`; `Info.cfg` names the frames.

    The official download's `testing/` is not read: the paper splits the 100 training patients.
    """
    cases = []
    for folder in sorted(_below(root, "training").glob("patient*")):
        if not folder.is_dir() or not re.fullmatch(r"patient\d+", folder.name):
            continue
        info = folder / "Info.cfg"
        text = info.read_text(errors="replace") if info.is_file() else ""
        names = " ".join(path.name for path in folder.iterdir())
        frames = re.findall(r"^E[DS]:\s*(\d+)", text, re.M)  # end-diastole and end-systole
        for frame in frames or sorted(re.findall(r"_frame(\d+)_gt\.nii", names)) or ["1"]:
            id = f"{folder.name}_frame{int(frame):02d}"
            image, label = _either(folder / id), _either(folder / f"{id}_gt")
            cases.append(RawCase(id, folder.name, (image,), (label,)))
    return cases


BRATS_CHANNELS = ("flair", "t1", "t1ce", "t2")


def brats(root: Path) -> list[RawCase]:
    """`<id>_{flair,t1,t1ce,t2,seg}.nii[.gz]` of BraTS 2019 to 2021, in any folders."""
    cases = []
    for flair in _files(root, "*_flair.nii*"):
        id = flair.name.split("_flair.nii")[0]
        images = tuple(_either(flair.with_name(f"{id}_{channel}")) for channel in BRATS_CHANNELS)
        cases.append(RawCase(id, id, images, (_either(flair.with_name(f"{id}_seg")),)))
    return cases


# Cortex and basal ganglia are grey matter (1), then white matter (2) and CSF (3).
_TISSUE = dict(zip(range(1, 11), (1, 1, 2, 2, 3, 3, 0, 0, 0, 0), strict=True))
_TISSUE_OF_TESTING = {1: 3, 2: 1, 3: 2}  # CSF, GM, WM


def mrbrains(root: Path) -> list[RawCase]:
    """MRBrainS18's `training/<id>/{pre/{reg_T1,FLAIR,reg_IR},segm}`, or else MRBrainS13's
    `TrainingData/<id>/{T1,T2_FLAIR,T1_IR}`.
    """
    cases = []
    for segm in _files(_below(root, "training"), "segm.nii*"):
        folder = segm.parent
        images = tuple(_either(folder / "pre" / name) for name in ("reg_T1", "FLAIR", "reg_IR"))
        cases.append(RawCase(folder.name, folder.name, images, (segm,), _TISSUE))
    if cases:
        return cases

    base = _below(root, "TrainingData")
    for t1 in sorted([*_files(base, "T1.nii*"), *_files(base, "T1.mhd")]):
        folder = t1.parent
        images = tuple(_either(folder / name) for name in ("T1", "T2_FLAIR", "T1_IR"))
        label, codes = _either(folder / "LabelsForTesting"), _TISSUE_OF_TESTING
        if not label.is_file():
            label, codes = _either(folder / "LabelsForTraining"), _TISSUE
        cases.append(RawCase(folder.name, folder.name, images, (label,), codes))
    return cases


def flare(root: Path) -> list[RawCase]:
    """FLARE21 `TrainingImg/train_000_0000.nii.gz` and `TrainingMask/train_000.nii.gz`."""
    cases = []
    for image in _files(root, "TrainingImg/*_0000.nii*"):
        id = image.name.split("_0000.nii")[0]
        label = _either(image.parents[1] / "TrainingMask" / id)
        cases.append(RawCase(id, id, (image,), (label,)))
    return cases


def promise12(root: Path) -> list[RawCase]:
    """`Case00.mhd` with `Case00_segmentation.mhd`, each with its `.raw`."""
    cases = []
    for image in _files(root, "Case*.mhd"):
        id = image.stem
        if not id.endswith("_segmentation"):
            label = image.with_name(f"{id}_segmentation.mhd")
            cases.append(RawCase(id, id, (image,), (label,)))
    return cases


def busi(root: Path) -> list[RawCase]:
    """`{benign,malignant}/benign (1).png`, `_mask.png`, `_mask_1.png` ...

    `normal` images have no lesion and are left out.
    """
    masks: dict[Path, list[Path]] = defaultdict(list)
    images = []
    for path in _files(root, "*.png"):
        if path.parent.name not in ("benign", "malignant"):
            continue
        if mask := re.fullmatch(r"(.+)_mask(_\d+)?\.png", path.name):
            masks[path.with_name(f"{mask[1]}.png")].append(path)
        else:
            images.append(path)
    cases = []
    for image in images:
        labels = masks[image] or [image.with_name(f"{image.stem}_mask.png")]
        cases.append(RawCase(image.stem, image.stem, (image,), tuple(labels)))
    return cases


def decathlon(root: Path) -> list[RawCase]:
    """The pairs under `training` in `dataset.json`; also nnU-Net v1's `_0000` files."""
    path = root / "dataset.json"
    pairs = description(root).get("training")
    if not isinstance(pairs, list):
        raise UserError(f"{path} has no list called training, so it is not the Decathlon's layout")
    files = _channels(root / "imagesTr") if pairs else {}
    cases = []
    for pair in pairs:
        try:
            image, label = (_inside(root, pair[key]) for key in ("image", "label"))
        except (KeyError, TypeError):
            rule = "each entry of training must have image and label"
            raise UserError(f"{path}: {rule}; got {pair}") from None
        id = re.sub(r"(\.nii)?\.\w+$", "", image.name)
        images = [image] if image.is_file() else files.get(id, [image])
        cases.append(RawCase(id, id, tuple(images), (label,)))
    return cases


def nnunet(root: Path) -> list[RawCase]:
    """nnU-Net v2 raw: `imagesTr/X_0000.nii.gz`, `_0001` ..., `labelsTr/X.nii.gz`."""
    ending = str(description(root).get("file_ending", ".nii.gz"))
    cases = []
    for id, files in sorted(_channels(root / "imagesTr", re.escape(ending)).items()):
        cases.append(RawCase(id, id, tuple(files), (root / "labelsTr" / f"{id}{ending}",)))
    return cases


def description(root: Path) -> dict[str, Any]:
    """The `dataset.json` of a Decathlon or nnU-Net folder."""
    path = root / "dataset.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold one JSON object")
    return values


def _files(root: Path, pattern: str) -> list[Path]:
    """Sorted, without the `._` files and `__MACOSX` folders that macOS leaves in archives."""
    files = []
    for path in sorted(root.rglob(pattern)):
        hidden = path.name.startswith(".") or "__MACOSX" in path.parts
        if path.is_file() and not hidden:
            files.append(path)
    return files


def _below(root: Path, name: str) -> Path:
    """The folder of that name, if there is one: what is beside it is not for training."""
    return root / name if (root / name).is_dir() else root


def _either(path: Path) -> Path:
    """The file with the ending it has; `.nii.gz` if there is none, to be reported as missing."""
    endings = (".nii.gz", ".nii", ".mhd", ".mha")
    candidates = [path.with_name(path.name + ending) for ending in endings]
    return next((p for p in candidates if p.is_file()), candidates[0])


def _channels(folder: Path, ending: str = r"(\.\w+)+") -> dict[str, list[Path]]:
    """Files named `<id>_0000`, `<id>_0001` ... by id; `ending` is a regular expression."""
    files: dict[str, list[Path]] = defaultdict(list)
    for path in _files(folder, "*"):
        if match := re.fullmatch(rf"(.+)_\d{{4}}{ending}", path.name):
            files[match[1]].append(path)
    return files


def _inside(root: Path, relative: str) -> Path:
    """A path that `dataset.json` names; it must not leave the data set's folder."""
    # Compared by name alone: a user may link to files elsewhere.
    path = Path(os.path.normpath(root / relative))
    if not path.is_relative_to(os.path.normpath(root)) or "\0" in relative:
        raise UserError(f"{root / 'dataset.json'} names {relative}, outside the data set's folder")
    return path
