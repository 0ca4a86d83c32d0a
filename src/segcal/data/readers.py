"""One small function per official layout: a folder as downloaded -> its cases, not yet opened."""

from __future__ import annotations

import glob
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segcal.folders.files import read_users_json
from segcal.types import UserError


@dataclass(frozen=True)
class RawCase:
    """Where a case's files are. Cases of one patient are always in the same split."""

    id: str
    patient: str
    images: tuple[Path, ...]  # a file per channel, or one file that holds all
    labels: tuple[Path, ...]  # one label map, or several masks of one object
    codes: Mapping[int, int] | None = None  # raw label -> class, where files of one data set differ


Reader = Callable[[Path], Iterator[RawCase]]


def acdc(root: Path) -> Iterator[RawCase]:
    """`[training/]patient001/patient001_frame01.nii.gz` and `_gt`; `Info.cfg` names the frames.

    The official download's `testing/` is not read: the paper splits the 100 training patients.
    """
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
            yield RawCase(id, folder.name, (image,), (label,))


BRATS_CHANNELS = ("flair", "t1", "t1ce", "t2")


def brats(root: Path) -> Iterator[RawCase]:
    """`<id>_{flair,t1,t1ce,t2,seg}.nii[.gz]` of BraTS 2019 to 2021, in any folders."""
    for flair in _files(root, "*_flair.nii*"):
        id = flair.name.split("_flair.nii")[0]
        images = tuple(_either(flair.with_name(f"{id}_{channel}")) for channel in BRATS_CHANNELS)
        yield RawCase(id, id, images, (_either(flair.with_name(f"{id}_seg")),))


# Cortex and basal ganglia are grey matter (1), then white matter (2) and CSF (3).
_TISSUE = dict(zip(range(1, 11), (1, 1, 2, 2, 3, 3, 0, 0, 0, 0), strict=True))
_TISSUE_OF_TESTING = {1: 3, 2: 1, 3: 2}  # CSF, GM, WM


def mrbrains(root: Path) -> Iterator[RawCase]:
    """MRBrainS18's `training/<id>/{pre/{reg_T1,FLAIR,reg_IR},segm}`, or else MRBrainS13's
    `TrainingData/<id>/{T1,T2_FLAIR,T1_IR}`.
    """
    labels = _files(_below(root, "training"), "segm.nii*")
    for label in labels:
        folder = label.parent
        images = tuple(_either(folder / "pre" / name) for name in ("reg_T1", "FLAIR", "reg_IR"))
        yield RawCase(folder.name, folder.name, images, (label,), _TISSUE)
    if labels:
        return

    base = _below(root, "TrainingData")
    for t1 in sorted([*_files(base, "T1.nii*"), *_files(base, "T1.mhd")]):
        folder = t1.parent
        images = tuple(_either(folder / name) for name in ("T1", "T2_FLAIR", "T1_IR"))
        label, codes = _either(folder / "LabelsForTesting"), _TISSUE_OF_TESTING
        if not label.is_file():
            label, codes = _either(folder / "LabelsForTraining"), _TISSUE
        yield RawCase(folder.name, folder.name, images, (label,), codes)


def flare(root: Path) -> Iterator[RawCase]:
    """FLARE21 `TrainingImg/train_000_0000.nii.gz` and `TrainingMask/train_000.nii.gz`."""
    for image in _files(root, "TrainingImg/*_0000.nii*"):
        id = image.name.split("_0000.nii")[0]
        label = _either(image.parents[1] / "TrainingMask" / id)
        yield RawCase(id, id, (image,), (label,))


def promise12(root: Path) -> Iterator[RawCase]:
    """`Case00.mhd` with `Case00_segmentation.mhd`, each with its `.raw`."""
    for image in _files(root, "Case*.mhd"):
        id = image.stem
        if not id.endswith("_segmentation"):
            label = image.with_name(f"{id}_segmentation.mhd")
            yield RawCase(id, id, (image,), (label,))


def busi(root: Path) -> Iterator[RawCase]:
    """`{benign,malignant}/benign (1).png`, `_mask.png`, `_mask_1.png` ...; `normal` is left out."""
    for image in _files(root, "*.png"):
        id = image.stem
        if image.parent.name in ("benign", "malignant") and "_mask" not in id:
            masks = sorted(image.parent.glob(f"{glob.escape(id)}_mask*.png"))
            masks = masks or [image.with_name(f"{id}_mask.png")]  # to be reported as missing
            yield RawCase(id, id, (image,), tuple(masks))


def decathlon(root: Path) -> Iterator[RawCase]:
    """The pairs under `training` in `dataset.json`; also nnU-Net v1's `_0000` files."""
    path = root / "dataset.json"
    pairs = description(root).get("training")
    if not isinstance(pairs, list):
        raise UserError(f"{path} has no list called training, so it is not the Decathlon's layout")
    files = _channels(root / "imagesTr")
    for pair in pairs:
        try:
            image, label = (_inside(root, pair[key]) for key in ("image", "label"))
        except (KeyError, TypeError):
            rule = "each entry of training must have image and label"
            raise UserError(f"{path}: {rule}; got {pair}") from None
        id = re.sub(r"(\.nii)?\.\w+\Z", "", image.name)
        images = [image] if image.is_file() else files.get(id, [image])
        yield RawCase(id, id, tuple(images), (label,))


def nnunet(root: Path) -> Iterator[RawCase]:
    """nnU-Net v2 raw: `imagesTr/X_0000.nii.gz`, `_0001` ..., `labelsTr/X.nii.gz`."""
    ending = str(description(root).get("file_ending", ".nii.gz"))
    images = _channels(root / "imagesTr", re.escape(ending))
    labels = {
        path.name.removesuffix(ending): path for path in _files(root / "labelsTr", f"*{ending}")
    }
    for id in sorted(images.keys() | labels.keys()):
        files = images.get(id) or [root / "imagesTr" / f"{id}_0000{ending}"]  # reported as missing
        yield RawCase(id, id, tuple(files), (root / "labelsTr" / f"{id}{ending}",))


def description(root: Path) -> dict[str, Any]:
    """The `dataset.json` of a Decathlon or nnU-Net folder."""
    path = root / "dataset.json"
    values = read_users_json(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold one JSON object")
    return values


def _files(root: Path, pattern: str) -> list[Path]:
    """Sorted, without the `._` files and `__MACOSX` folders that macOS leaves in archives."""
    paths = [path for path in sorted(root.rglob(pattern)) if "__MACOSX" not in path.parts]
    return [path for path in paths if path.is_file() and not path.name.startswith(".")]


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
        if match := re.fullmatch(rf"(?s)(.+)_\d{{4}}{ending}", path.name):
            files[match[1]].append(path)
    return files


def _inside(root: Path, relative: str) -> Path:
    """A path that `dataset.json` names; it must not leave the data set's folder."""
    # Compared by name alone: a user may link to files elsewhere.
    path = Path(os.path.normpath(root / relative))
    if not path.is_relative_to(os.path.normpath(root)) or "\0" in relative:
        raise UserError(f"{root / 'dataset.json'} names {relative}, outside the data set's folder")
    return path
