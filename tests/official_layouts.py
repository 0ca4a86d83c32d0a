"""Phantoms written to disk in the official layout of each supported data set, as it is downloaded.

This is how readers are tested on layouts whose data cannot be shared.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from segcal.data import layouts
from segcal.data.phantom import CLASSES, phantoms

write_volume = partial(layouts.write_volume, sense=1)
MRBRAINS_IDS = ("1", "4", "5", "7", "14", "070", "148")


def write_layout(layout, root, *, n_cases=10, seed=0, size=(16, 64, 64)):
    """Write phantoms below `root` as one of `LAYOUTS`; the first phantom is its first case."""
    writer, n_channels = LAYOUTS[layout]
    writer(Path(root), phantoms(n_cases, seed=seed, size=size, n_channels=n_channels))


def acdc(root, cases):
    """`training/patient001/`: two phantoms per patient, the ED and the ES frame."""
    cases = list(cases)
    for number, frames in enumerate(zip(cases[::2], cases[1::2], strict=True), start=1):
        folder = root / "training" / f"patient{number:03d}"
        for frame, case in zip((1, 12), frames, strict=True):
            stem = f"{folder.name}_frame{frame:02d}"
            write_volume(folder / f"{stem}.nii.gz", case.image[0], case, number)
            write_volume(folder / f"{stem}_gt.nii.gz", case.label, case, number)
        info = "ED: 1\nES: 12\nGroup: NOR\nHeight: 170.0\nNbFrame: 30\nWeight: 70.0\n"
        (folder / "Info.cfg").write_text(info, encoding="utf-8")


def brats(root, cases):
    """`HGG/` and `LGG/` in turn, four modalities a case; body 1, core 2, satellite 4."""
    for index, case in enumerate(cases):
        folder = root / ("HGG", "LGG")[index % 2] / f"BraTS19_TCIA01_{index:03d}_1"
        for name, channel in zip(("flair", "t1", "t1ce", "t2"), case.image, strict=True):
            write_volume(folder / f"{folder.name}_{name}.nii.gz", channel, case, index)
        write_volume(
            folder / f"{folder.name}_seg.nii.gz", _recoded(case.label, 1, 2, 4), case, index
        )


def mrbrains(root, cases):
    """MRBrainS18: `training/<id>/pre/`, `segm.nii.gz` with codes 1 to 8; later ids get a suffix."""
    for index, case in enumerate(cases):
        lap, place = divmod(index, len(MRBRAINS_IDS))
        folder = root / "training" / (MRBRAINS_IDS[place] + (f"_{lap}" if lap else ""))
        for name, channel in zip(("reg_T1", "reg_IR", "FLAIR"), case.image, strict=True):
            write_volume(folder / "pre" / f"{name}.nii.gz", channel, case, index)
        write_volume(folder / "segm.nii.gz", _eight_codes(case.label), case, index)


def mrbrains13(root, cases):
    """MRBrainS13: `TrainingData/<id>/`; in `LabelsForTesting` 1 is CSF, 2 is GM, 3 is WM."""
    for index, case in enumerate(cases):
        folder = root / "TrainingData" / str(index + 1)
        for name, channel in zip(("T1", "T1_IR", "T2_FLAIR"), case.image, strict=True):
            write_volume(folder / f"{name}.nii", channel, case, index)
        write_volume(folder / "LabelsForTesting.nii", _recoded(case.label, 2, 3, 1), case, index)
        write_volume(folder / "LabelsForTraining.nii", _eight_codes(case.label), case, index)


def flare(root, cases):
    """FLARE21 CT: 1 and 2 are the halves of the body, 3 is the core, 4 the satellite."""
    for index, case in enumerate(cases):
        label = _recoded(case.label, 1, 3, 4)
        label[_right_half(case.label == 1)] = 2
        # The body is near water, the background near fat and air.
        hounsfield = 1.5 * (case.image[0] - 500)
        write_volume(
            root / "TrainingImg" / f"train_{index:03d}_0000.nii.gz", hounsfield, case, index
        )
        write_volume(root / "TrainingMask" / f"train_{index:03d}.nii.gz", label, case, index)


def promise12(root, cases):
    """Flat MetaImage pairs; any structure is 1."""
    for index, case in enumerate(cases):
        write_volume(root / f"Case{index:02d}.mhd", case.image[0], case, index)
        write_volume(
            root / f"Case{index:02d}_segmentation.mhd", _recoded(case.label, 1, 1, 1), case, index
        )


def prostate(root, cases):
    """Decathlon Task05, 4D: the body is 1 PZ, the core 2 TZ, the satellite background."""
    named = (replace(case, id=f"prostate_{i:02d}") for i, case in enumerate(cases))
    layouts.msd(root, named, modality=("T2", "ADC"), labels=("background", "PZ", "TZ"))


def hippocampus(root, cases):
    """Decathlon Task04, 3D: the body is 1 Anterior, the core 2 Posterior."""
    named = (replace(case, id=f"hippocampus_{i:03d}") for i, case in enumerate(cases, start=1))
    labels = ("background", "Anterior", "Posterior")
    layouts.msd(root, named, modality=("MRI",), labels=labels)


def busi(root, cases):
    """PNG, benign and malignant in turn: the slice with most foreground, and any structure as 255.

    The mask of every third case is split over two files. One `normal` image with an empty mask is
    added."""
    folder = root / "Dataset_BUSI_with_GT"
    for index, case in enumerate(cases):
        kind, number = ("benign", "malignant")[index % 2], index // 2 + 1
        stem = folder / kind / f"{kind} ({number})"
        widest = int((case.label > 0).sum((1, 2)).argmax())
        mask = case.label[widest] > 0
        second = _right_half(mask) & (index % 3 == 0)
        masks = [mask & ~second, second] if second.any() else [mask]
        _write_png(stem, case.image[0, widest], masks, colour=index % 2 == 0)
        if index == 0:
            empty, normal = np.zeros_like(mask), folder / "normal" / "normal (1)"
            _write_png(normal, case.image[0, 0], [empty], colour=True)


LAYOUTS = layouts.LAYOUTS | {
    "acdc": (acdc, 1),
    "brats": (brats, 4),
    "mrbrains": (mrbrains, 3),
    "mrbrains13": (mrbrains13, 3),
    "flare": (flare, 1),
    "promise12": (promise12, 1),
    "prostate": (prostate, 2),
    "hippocampus": (hippocampus, 1),
    "busi": (busi, 1),
}
"""Each layout's writer, and how many channels its phantoms must have."""


def _recoded(label, body, core, satellite):
    """The label map in another code; code 0 drops a structure."""
    codes = np.array([0, body, core, satellite], np.uint8)
    return codes[label]


def _right_half(mask):
    """The voxels of a mask at and beyond its middle along x."""
    columns = np.nonzero(mask.any(tuple(range(mask.ndim - 1))))[0]
    right = mask.copy()
    right[..., : columns[len(columns) // 2]] = False
    return right


def _eight_codes(label):
    """MRBrainS codes: GM 1 and 2, WM 3 and 4, CSF 5 and 6, and 7 and 8 in two corners."""
    codes = _recoded(label, 1, 3, 5)
    for k in range(1, len(CLASSES) + 1):
        codes[_right_half(label == k)] += 1
    for code, corner in ((7, np.s_[:1, :3, :3]), (8, np.s_[-1:, -3:, -3:])):
        codes[corner][label[corner] == 0] = code
    return codes


def _write_png(stem, image, masks, *, colour):
    """`<stem>.png`, `<stem>_mask.png`, `<stem>_mask_1.png` …, all 8-bit."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    grey = sitk.GetImageFromArray((255 * (image / image.max())).astype(np.uint8))
    sitk.WriteImage(sitk.Compose(grey, grey, grey) if colour else grey, f"{stem}.png")
    for part, mask in enumerate(masks):
        suffix = f"_{part}" if part else ""
        sitk.WriteImage(sitk.GetImageFromArray(np.uint8(255) * mask), f"{stem}_mask{suffix}.png")


def write_dicom(image, folder, series="1.2.3.1"):
    """A volume as a file for each slice."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = sitk.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    cosines = np.reshape(image.GetDirection(), (3, 3)).T[:2].ravel()
    for i in range(image.GetDepth()):
        plane = image[:, :, i]
        place = image.TransformIndexToPhysicalPoint((0, 0, i))
        tags = {"0020|000d": "1.2.3", "0020|000e": series, "0008|0018": f"{series}.{i + 1}"}
        tags |= {
            "0020|0013": str(i + 1),
            "0008|0060": "MR",
            "0018|0050": str(image.GetSpacing()[2]),
        }
        tags |= {"0020|0032": "\\".join(map(str, place))}
        tags |= {"0020|0037": "\\".join(map(str, cosines))}
        for tag, value in tags.items():
            plane.SetMetaData(tag, value)
        # names in no order of space
        writer.SetFileName(str(folder / f"{(7 * i) % 11}_{series}.dcm"))
        writer.Execute(plane)
