"""Phantoms written as raw files, in the layout of nnU-Net or of the Medical Segmentation Decathlon.

Files hold whole numbers, an origin that is not zero and, in two cases of three, tilted axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk
from numpy.typing import NDArray

from segcal.data.phantom import CLASSES, Phantom, Size, phantoms
from segcal.folders import write_json
from segcal.types import UserError, check_choice

LABELS = ("background", *CLASSES)


def write_layout(
    layout: str, root: Path, *, n_cases: int = 10, seed: int = 0, size: Size = (16, 64, 64)
) -> None:
    """Write phantoms below `root` in one of `LAYOUTS`."""
    check_choice("layout", layout, tuple(LAYOUTS))
    writer, n_channels = LAYOUTS[layout]
    writer(Path(root), phantoms(n_cases, seed=seed, size=size, n_channels=n_channels))


def nnunet(root: Path, cases: Iterable[Phantom]) -> None:
    """The raw layout of nnU-Net v2, two channels."""
    for index, case in enumerate(cases):
        for c, channel in enumerate(case.image):
            write_volume(root / "imagesTr" / f"{case.id}_{c:04d}.nii.gz", channel, case, index)
        write_volume(root / "labelsTr" / f"{case.id}.nii.gz", case.label, case, index)
    info = {
        "channel_names": {"0": "T1", "1": "T2"},
        "labels": {name: k for k, name in enumerate(LABELS)},
        "numTraining": index + 1,
        "file_ending": ".nii.gz",
    }
    write_json(root / "dataset.json", info)


def msd(
    root: Path,
    cases: Iterable[Phantom],
    *,
    modality: tuple[str, ...] = ("MRI",),
    labels: tuple[str, ...] = LABELS,
) -> None:
    """A Decathlon task; a structure that has no name in `labels` becomes background."""
    pairs = []
    for index, case in enumerate(cases):
        file = f"{case.id}.nii.gz"
        write_volume(root / "imagesTr" / file, case.image, case, index)
        label = case.label * (case.label < len(labels))
        write_volume(root / "labelsTr" / file, label, case, index)
        pairs.append({"image": f"./imagesTr/{file}", "label": f"./labelsTr/{file}"})
    info = {
        "name": root.name,
        "description": "Phantoms in the layout of the Medical Segmentation Decathlon",
        "tensorImageSize": "4D" if len(modality) > 1 else "3D",
        "modality": {str(c): name for c, name in enumerate(modality)},
        "labels": {str(k): name for k, name in enumerate(labels)},
        "numTraining": len(pairs),
        "numTest": 0,
        "training": pairs,
        "test": [],
    }
    write_json(root / "dataset.json", info)


LAYOUTS: dict[str, tuple[Callable[[Path, Iterable[Phantom]], None], int]]
LAYOUTS = {"nnunet": (nnunet, 2), "msd": (msd, 1)}
"""Each layout's writer, and how many channels its phantoms must have."""


def write_volume(
    path: Path, array: NDArray[Any], case: Phantom, index: int, *, sense: int = -1
) -> None:
    """Write a volume (D, H, W), or several (C, D, H, W) as one 4D image.

    `sense` is the direction of the x and y axes: -1 as in NIfTI's own coordinates."""
    if array.dtype != np.uint8:
        array = np.rint(array).astype(np.int16)
    tilt = 0.1 * (index % 3)
    cos, sin = sense * math.cos(tilt), sense * math.sin(tilt)
    volumes = []
    for values in array.reshape(-1, *case.label.shape):
        volume = sitk.GetImageFromArray(values)
        volume.SetSpacing(case.spacing[::-1])
        volume.SetOrigin((-40.0 + index, 25.5 - 2 * index, 10.25))
        volume.SetDirection((cos, -sin, 0, sin, cos, 0, 0, 0, 1))
        volumes.append(volume)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        sitk.WriteImage(sitk.JoinSeries(volumes) if len(volumes) > 1 else volumes[0], path)
    except RuntimeError:
        raise UserError(f"cannot write {path}; make room there") from None
