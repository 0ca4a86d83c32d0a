"""One small function per official layout: a folder as downloaded -> its cases. Files are opened
later, case by case.
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
    """Where a case's files are. Cases of one patient never part."""

    id: str
    patient: str
    images: tuple[Path, ...]  # a file per channel, or one file that holds all
    labels: tuple[Path, ...]  # one label map, or several masks of one object
    codes: Mapping[int, int] | None = None  # raw label -> class, where files of one data set differ


Reader = Callable[[Path], list[RawCase]]


def acdc(root: Path) -> list[RawCase]:
    """`[training/]patient001/patient001_frame01.nii.gz` and `_gt`; `Info.cfg` names the ED and ES
    frames.

    The official download's `testing/` is left alone: the paper splits the 100 training patients.
    """
    base = root / "training" if (root / "training").is_dir() else root
    cases = []
    for folder in sorted(
        p for p in base.iterdir() if p.is_dir() and re.fullmatch(r"patient\d+", p.name)
    ):
        info = folder / "Info.cfg"
        frames = (
            re.findall(r"^E[DS]:\s*(\d+)", info.read_text(errors="replace"), re.M)
            if info.is_file()
            else []
        )
        frames = (
            frames
            or sorted(
                re.findall(r"_frame(\d+)_gt\.nii", " ".join(p.name for p in folder.iterdir()))
            )
            or ["1"]
        )
        for frame in frames:
            id = f"{folder.name}_frame{int(frame):02d}"
            cases.append(
                RawCase(id, folder.name, (_either(folder / id),), (_either(folder / f"{id}_gt"),))
            )
    return cases


BRATS_CHANNELS = ("flair", "t1", "t1ce", "t2")


def brats(root: Path) -> list[RawCase]:
    """`[HGG|LGG/]<id>/<id>_{flair,t1,t1ce,t2,seg}.nii[.gz]` of BraTS 2019 to 2021, in folders or
    flat.
    """
    cases = []
    for flair in _files(root, "*_flair.nii*"):
        id = flair.name.split("_flair.nii")[0]
        images = tuple(_either(flair.with_name(f"{id}_{channel}")) for channel in BRATS_CHANNELS)
        cases.append(RawCase(id, id, images, (_either(flair.with_name(f"{id}_seg")),)))
    return cases


_TISSUE = {
    1: 1,
    2: 1,
    3: 2,
    4: 2,
    5: 3,
    6: 3,
    7: 0,
    8: 0,
    9: 0,
    10: 0,
}  # cortex and basal ganglia, white matter, CSF
_TISSUE_OF_TESTING = {1: 3, 2: 1, 3: 2}  # CSF, GM, WM


def mrbrains(root: Path) -> list[RawCase]:
    """MRBrainS18 `training/<id>/{pre/{reg_T1,FLAIR,reg_IR},segm}`, or MRBrainS13
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
        testing = _either(folder / "LabelsForTesting")
        label, codes = (
            (testing, _TISSUE_OF_TESTING)
            if testing.is_file()
            else (_either(folder / "LabelsForTraining"), _TISSUE)
        )
        cases.append(RawCase(folder.name, folder.name, images, (label,), codes))
    return cases


def flare(root: Path) -> list[RawCase]:
    """FLARE21 `TrainingImg/train_000_0000.nii.gz` and `TrainingMask/train_000.nii.gz`."""
    cases = []
    for image in _files(root, "*_0000.nii*"):
        if image.parent.name == "TrainingImg":
            id = image.name.split("_0000.nii")[0]
            cases.append(
                RawCase(id, id, (image,), (_either(image.parents[1] / "TrainingMask" / id),))
            )
    return cases


def promise12(root: Path) -> list[RawCase]:
    """`Case00.mhd` with `Case00_segmentation.mhd`, each with its `.raw`."""
    images = [path for path in _files(root, "Case*.mhd") if not path.stem.endswith("_segmentation")]
    return [
        RawCase(p.stem, p.stem, (p,), (p.with_name(f"{p.stem}_segmentation.mhd"),)) for p in images
    ]


def busi(root: Path) -> list[RawCase]:
    """`{benign,malignant}/benign (1).png`, `_mask.png`, `_mask_1.png` ...; `normal` ones have no
    lesion and are left out.
    """
    masks: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    images = []
    for path in _files(root, "*.png"):
        mask = re.fullmatch(r"(.+)_mask(_\d+)?\.png", path.name)
        if path.parent.name in ("benign", "malignant") and mask:
            masks[path.parent, mask[1]].append(path)
        elif path.parent.name in ("benign", "malignant"):
            images.append(path)
    found = [
        (p, tuple(masks[p.parent, p.stem]) or (p.with_name(f"{p.stem}_mask.png"),)) for p in images
    ]
    return [RawCase(image.stem, image.stem, (image,), labels) for image, labels in found]


def decathlon(root: Path) -> list[RawCase]:
    """Medical Segmentation Decathlon: the pairs under `training` in `dataset.json`; also nnU-Net
    v1's `_0000` files.
    """
    pairs = description(root).get("training")
    if not isinstance(pairs, list):
        raise UserError(
            f"{root / 'dataset.json'} has no list called training, so it is not the Decathlon's"
            " layout"
        )
    files = _channels(root / "imagesTr") if pairs else {}
    cases = []
    for pair in pairs:
        try:
            image, label = (_inside(root, pair[key]) for key in ("image", "label"))
        except (KeyError, TypeError):
            raise UserError(
                f"{root / 'dataset.json'}: each entry of training must have image and label; got"
                f" {pair}"
            ) from None
        id = _stem(image)
        images = (image,) if image.is_file() else tuple(files.get(id, ())) or (image,)
        cases.append(RawCase(id, id, images, (label,)))
    return cases


def nnunet(root: Path) -> list[RawCase]:
    """nnU-Net v2 raw: `imagesTr/X_0000.nii.gz`, `_0001` ..., `labelsTr/X.nii.gz`, any
    `file_ending`.
    """
    ending = str(description(root).get("file_ending", ".nii.gz"))
    found = _channels(root / "imagesTr", ending)
    return [
        RawCase(id, id, tuple(files), (root / "labelsTr" / f"{id}{ending}",))
        for id, files in sorted(found.items())
    ]


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
    """Sorted, without hidden files and folders (macOS leaves `._` and `__MACOSX` ones in
    archives).
    """
    return sorted(
        p
        for p in root.rglob(pattern)
        if p.is_file() and not p.name.startswith(".") and "__MACOSX" not in p.parts
    )


def _below(root: Path, name: str) -> Path:
    """The folder of that name, if there is one: what lies beside it is not for training."""
    return root / name if (root / name).is_dir() else root


def _either(path: Path) -> Path:
    """The file of that name with the ending it has; the first ending if there is none, to be named
    as missing.
    """
    candidates = [
        path.with_name(path.name + ending) for ending in (".nii.gz", ".nii", ".mhd", ".mha")
    ]
    return next((p for p in candidates if p.is_file()), candidates[0])


def _channels(folder: Path, ending: str | None = None) -> dict[str, list[Path]]:
    """Files named `<id>_0000`, `<id>_0001` ... by id, from one look at the folder."""
    pattern = re.compile(r"(.+)_\d{4}" + (re.escape(ending) if ending else r"(\.\w+)+"))
    found: dict[str, list[Path]] = defaultdict(list)
    for path in _files(folder, "*"):
        match = pattern.fullmatch(path.name)
        if match:
            found[match[1]].append(path)
    return found


def _stem(path: Path) -> str:
    return re.sub(r"(\.nii)?\.\w+$", "", path.name)


def _inside(root: Path, relative: str) -> Path:
    """A path named by a file we did not write; it must not leave the data set's folder."""
    path = Path(
        os.path.normpath(root / relative)
    )  # by name alone: a link to files elsewhere is the user's own doing
    if not path.is_relative_to(os.path.normpath(root)) or "\0" in relative:
        raise UserError(
            f"{root / 'dataset.json'} names {relative}, which lies outside the data set's folder"
        )
    return path
