"""Phantoms written to disk in the official layout of each supported data set, as it is downloaded.

This is how readers are tried on layouts whose data cannot be shared. Files hold whole numbers, a
spacing, an origin away from zero and, for most cases, tilted axes. A file's array is the phantom's
array, axis by axis and unflipped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK as sitk
from numpy.typing import NDArray

from segcal.data.phantom import CLASSES, Phantom, phantoms
from segcal.types import UserError, check_choice

Label = NDArray[np.uint8]

MRBRAINS_IDS = ("1", "4", "5", "7", "14", "070", "148")
_AS_DECATHLON = (-1, -1)  # its arrays run against x and y, as NIfTI's own axes do


def write_layout(
    layout: str,
    root: Path,
    *,
    n_cases: int = 10,
    seed: int = 0,
    size: tuple[int, int, int] = (16, 64, 64),
) -> None:
    """Write phantoms below `root` as one of `LAYOUTS`; the first phantom is the layout's first
    case.
    """
    check_choice("layout", layout, tuple(LAYOUTS))
    LAYOUTS[layout](
        Path(root), phantoms(n_cases, seed=seed, size=size, n_channels=N_CHANNELS[layout])
    )


# One writer per layout
# ------------------------------------------------------------------------------


def acdc(root: Path, cases: Iterable[Phantom]) -> None:
    """`training/patient001/`: two phantoms per patient, the ED frame and the ES frame; 1 RV, 2 MYO,
    3 LV.
    """
    cases = list(cases)
    if len(cases) % 2:
        raise UserError(
            f"acdc has two cases per patient, so that their number must be even; got {len(cases)}"
        )
    for number, frames in enumerate(zip(cases[::2], cases[1::2], strict=True), start=1):
        folder = root / "training" / f"patient{number:03d}"
        for frame, case in zip((1, 12), frames, strict=True):
            stem = f"{folder.name}_frame{frame:02d}"
            _write(folder / f"{stem}.nii.gz", case.image[0], case, number)
            _write(folder / f"{stem}_gt.nii.gz", case.label, case, number)
        info = "ED: 1\nES: 12\nGroup: NOR\nHeight: 170.0\nNbFrame: 30\nWeight: 70.0\n"
        (folder / "Info.cfg").write_text(info, encoding="utf-8")


def brats(root: Path, cases: Iterable[Phantom]) -> None:
    """`HGG/` and `LGG/` in turn, four modalities a case; body 1, core 2, satellite 4."""
    for index, case in enumerate(cases):
        folder = root / ("HGG", "LGG")[index % 2] / f"BraTS19_TCIA01_{index:03d}_1"
        for name, channel in zip(("flair", "t1", "t1ce", "t2"), case.image, strict=True):
            _write(folder / f"{folder.name}_{name}.nii.gz", channel, case, index)
        _write(folder / f"{folder.name}_seg.nii.gz", _recoded(case.label, 1, 2, 4), case, index)


def mrbrains(root: Path, cases: Iterable[Phantom]) -> None:
    """MRBrainS18: `training/<id>/pre/` and `segm.nii.gz` with codes 1 to 8; from the eighth case
    on, ids get a suffix.
    """
    for index, case in enumerate(cases):
        lap, place = divmod(index, len(MRBRAINS_IDS))
        folder = root / "training" / (MRBRAINS_IDS[place] + (f"_{lap}" if lap else ""))
        for name, channel in zip(("reg_T1", "reg_IR", "FLAIR"), case.image, strict=True):
            _write(folder / "pre" / f"{name}.nii.gz", channel, case, index)
        _write(folder / "segm.nii.gz", _eight_codes(case.label), case, index)


def mrbrains13(root: Path, cases: Iterable[Phantom]) -> None:
    """MRBrainS13: `TrainingData/<id>/`; `LabelsForTesting` is 1 CSF (satellite), 2 GM (body), 3 WM
    (core).
    """
    for index, case in enumerate(cases):
        folder = root / "TrainingData" / str(index + 1)
        for name, channel in zip(("T1", "T1_IR", "T2_FLAIR"), case.image, strict=True):
            _write(folder / f"{name}.nii", channel, case, index)
        _write(folder / "LabelsForTesting.nii", _recoded(case.label, 2, 3, 1), case, index)
        _write(folder / "LabelsForTraining.nii", _eight_codes(case.label), case, index)


def flare(root: Path, cases: Iterable[Phantom]) -> None:
    """FLARE21 CT: 1 liver and 2 kidney are the halves of the body, 3 spleen is the core, 4 pancreas
    the satellite.
    """
    for index, case in enumerate(cases):
        label = _recoded(case.label, 1, 3, 4)
        label[_right_half(case.label == 1)] = 2
        hounsfield = 1.5 * (
            case.image[0] - 500
        )  # the body near water, the background near fat and air
        _write(root / "TrainingImg" / f"train_{index:03d}_0000.nii.gz", hounsfield, case, index)
        _write(root / "TrainingMask" / f"train_{index:03d}.nii.gz", label, case, index)


def promise12(root: Path, cases: Iterable[Phantom]) -> None:
    """Flat MetaImage pairs; any structure is 1."""
    for index, case in enumerate(cases):
        _write(root / f"Case{index:02d}.mhd", case.image[0], case, index)
        _write(
            root / f"Case{index:02d}_segmentation.mhd", _recoded(case.label, 1, 1, 1), case, index
        )


def prostate(root: Path, cases: Iterable[Phantom]) -> None:
    """Decathlon Task05, 4D: the body is 1 PZ, the core 2 TZ, the satellite background."""
    stems = (f"prostate_{number:02d}" for number in count())
    _write_decathlon(root, stems, cases, modality=("T2", "ADC"), labels=("background", "PZ", "TZ"))


def hippocampus(root: Path, cases: Iterable[Phantom]) -> None:
    """Decathlon Task04, 3D: the body is 1 Anterior, the core 2 Posterior, the satellite
    background.
    """
    stems = (f"hippocampus_{number:03d}" for number in count(1))
    _write_decathlon(
        root, stems, cases, modality=("MRI",), labels=("background", "Anterior", "Posterior")
    )


def msd(root: Path, cases: Iterable[Phantom]) -> None:
    """Anyone's data in the Decathlon layout, 3D, with the phantom's own classes."""
    stems = (f"phantom_{number:03d}" for number in count())
    _write_decathlon(root, stems, cases, modality=("MRI",), labels=("background", *CLASSES))


def nnunet(root: Path, cases: Iterable[Phantom]) -> None:
    """Anyone's data in the raw layout of nnU-Net v2, two channels, with the phantom's own
    classes.
    """
    n_cases = 0
    for index, case in enumerate(cases):
        for c, channel in enumerate(case.image):
            _write(
                root / "imagesTr" / f"{case.id}_{c:04d}.nii.gz", channel, case, index, _AS_DECATHLON
            )
        _write(root / "labelsTr" / f"{case.id}.nii.gz", case.label, case, index, _AS_DECATHLON)
        n_cases += 1
    info = {
        "channel_names": {"0": "T1", "1": "T2"},
        "labels": {name: k for k, name in enumerate(("background", *CLASSES))},
        "numTraining": n_cases,
        "file_ending": ".nii.gz",
    }
    _write_json(root / "dataset.json", info)


def busi(root: Path, cases: Iterable[Phantom]) -> None:
    """Ultrasound-like PNG, benign and malignant in turn: the slice with most foreground, and any
    structure as 255.

    The mask of every third case is split over two files. One `normal` image is added, with an empty
    mask."""
    folder = root / "Dataset_BUSI_with_GT"
    for index, case in enumerate(cases):
        kind, number = ("benign", "malignant")[index % 2], index // 2 + 1
        stem = folder / kind / f"{kind} ({number})"
        widest = int((case.label > 0).sum((1, 2)).argmax())
        mask = case.label[widest] > 0
        second = _right_half(mask) & (index % 3 == 0)
        _write_png(
            stem,
            case.image[0, widest],
            [mask & ~second] + [second] * bool(second.any()),
            colour=index % 2 == 0,
        )
        if index == 0:
            _write_png(
                folder / "normal" / "normal (1)",
                case.image[0, 0],
                [np.zeros_like(mask)],
                colour=True,
            )


LAYOUTS: dict[str, Callable[[Path, Iterable[Phantom]], None]] = {
    "acdc": acdc,
    "brats": brats,
    "mrbrains": mrbrains,
    "mrbrains13": mrbrains13,
    "flare": flare,
    "promise12": promise12,
    "prostate": prostate,
    "hippocampus": hippocampus,
    "busi": busi,
    "nnunet": nnunet,
    "msd": msd,
}
"""The layouts by key; a writer takes the data set's root folder and the phantoms."""

N_CHANNELS = dict.fromkeys(LAYOUTS, 1) | {
    "brats": 4,
    "mrbrains": 3,
    "mrbrains13": 3,
    "prostate": 2,
    "nnunet": 2,
}
"""How many channels each layout's phantoms must have."""


# What the writers share
# ------------------------------------------------------------------------------


def _recoded(label: Label, body: int, core: int, satellite: int) -> Label:
    """The label map in another code; code 0 drops a structure."""
    codes: Label = np.array([0, body, core, satellite], np.uint8)
    return codes[label]


def _right_half(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The voxels of a mask at and beyond its middle along x; part of it remains if it is wider than
    one voxel.
    """
    columns = np.nonzero(mask.any(tuple(range(mask.ndim - 1))))[0]
    right = mask.copy()
    right[..., : columns[len(columns) // 2]] = False
    return right


def _eight_codes(label: Label) -> Label:
    """MRBrainS codes: GM 1 and 2 (body), WM 3 and 4 (core), CSF 5 and 6 (satellite), and 7 and 8 in
    two corners.
    """
    codes = _recoded(label, 1, 3, 5)
    for k in range(1, len(CLASSES) + 1):
        codes[_right_half(label == k)] += 1
    for code, corner in ((7, np.s_[:1, :3, :3]), (8, np.s_[-1:, -3:, -3:])):
        codes[corner][label[corner] == 0] = code
    return codes


def _write(
    path: Path, array: NDArray[Any], case: Phantom, index: int, along: tuple[int, int] = (1, 1)
) -> None:
    """Write a volume (D, H, W), or several (C, D, H, W) as one 4D image, channels last to
    SimpleITK.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    volumes = [
        _placed(volume, case, index, along) for volume in array.reshape(-1, *case.label.shape)
    ]
    sitk.WriteImage(sitk.JoinSeries(volumes) if len(volumes) > 1 else volumes[0], path)


def _placed(array: NDArray[Any], case: Phantom, index: int, along: tuple[int, int]) -> sitk.Image:
    """A volume with its place in the patient; `along` is the sense of the x and y axes, two cases
    in three are tilted.
    """
    volume = sitk.GetImageFromArray(
        array if array.dtype == np.uint8 else np.rint(array).astype(np.int16)
    )
    volume.SetSpacing(case.spacing[::-1])
    volume.SetOrigin((-40.0 + index, 25.5 - 2 * index, 10.25))
    cos, sin = math.cos(0.1 * (index % 3)), math.sin(0.1 * (index % 3))
    x, y = along
    volume.SetDirection((x * cos, -y * sin, 0, x * sin, y * cos, 0, 0, 0, 1))
    return volume


def _write_decathlon(
    root: Path,
    stems: Iterator[str],
    cases: Iterable[Phantom],
    *,
    modality: Sequence[str],
    labels: Sequence[str],
) -> None:
    """A Decathlon task; images are 4D if there are several modalities, and structures without a
    name are background.
    """
    pairs = []
    for index, case in enumerate(cases):
        file = f"{next(stems)}.nii.gz"
        label = case.label * (case.label < len(labels))
        _write(root / "imagesTr" / file, case.image, case, index, _AS_DECATHLON)
        _write(root / "labelsTr" / file, label, case, index, _AS_DECATHLON)
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
    _write_json(root / "dataset.json", info)


def _write_json(path: Path, info: Mapping[str, Any]) -> None:
    """Write a data set's own description."""
    path.write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")


def _write_png(
    stem: Path, image: NDArray[np.float32], masks: list[NDArray[np.bool_]], *, colour: bool
) -> None:
    """`<stem>.png`, `<stem>_mask.png`, `<stem>_mask_1.png` …, all 8-bit."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    grey = sitk.GetImageFromArray((255 * (image / image.max())).astype(np.uint8))
    sitk.WriteImage(sitk.Compose(grey, grey, grey) if colour else grey, f"{stem}.png")
    for part, mask in enumerate(masks):
        suffix = f"_{part}" if part else ""
        sitk.WriteImage(sitk.GetImageFromArray(np.uint8(255) * mask), f"{stem}_mask{suffix}.png")
