"""A row per data set: its reader, labels, preparation, split, and where to get it.

What the paper leaves open is decided here and marked "ours".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from segcal.data import readers
from segcal.data.containers.contents import check_voxels
from segcal.data.readers import Reader
from segcal.types import UserError, check_range

COLOURS = ("#87D936", "#8080FF", "#FF80DF", "#B2FFD9", "#FFFF00", "#30BF54", "#FFFFB2", "#86BFB1")
"""Class colours: bright, to be seen on grey images; easy to tell apart, also for colour-blind
readers and from the colours of methods in figures. They repeat after eight."""


LARGEST_LABEL = 65_535
"""Of raw label maps."""

SPACINGS = (1e-3, 1e3)
"""The voxel sizes that a recipe may ask for, in mm."""


def class_colours(n_classes: int) -> list[str]:
    """The colour of each foreground class in every picture.

    >>> class_colours(9)[0] == class_colours(9)[8]
    True
    """
    return [COLOURS[i % len(COLOURS)] for i in range(n_classes)]


@dataclass(frozen=True)
class Recipe:
    """What preparation does to every case, in the order of its file's array (z, y, x)."""

    spacing: tuple[float, float, float] | None = None  # resample to this voxel size, in mm
    size: tuple[int, int] | None = None  # resize every slice to this height and width
    crop: tuple[int, int, int] | None = None  # crop or pad to this shape about the centre
    window: tuple[float, float] | None = None  # clip intensities (CT, in HU)
    # Without a window: clip to these percentiles of the image's own channel.
    percentiles: tuple[float, float] = (0.0, 100.0)
    axis: int = 0  # the axis that slices are taken along
    keep_empty: bool = True  # whether slices without foreground are trained on


OWN = Recipe(percentiles=(0.5, 99.5))
"""Of a user's own data: a few bright voxels must not squeeze the rest. The paper's data sets are
scaled by minimum and maximum, as in the paper."""


@dataclass(frozen=True)
class Source:
    """A row of `DATASETS`."""

    reader: Reader
    classes: tuple[str, ...]  # foreground; label 1 is the first
    codes: Mapping[int, int] | None = None  # raw label -> class; None: labels are the classes
    ignore: int | None = None  # the raw label of voxels to ignore
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # named unions of classes
    channels: tuple[str, ...] = ("image",)
    patients_named: bool = True  # whether file names say which cases are of one patient
    masks: bool = False  # label files are masks (anything above 0) of one object, to be merged
    recipe: Recipe = field(default_factory=Recipe)
    split: tuple[int, int, int] = (70, 10, 20)  # patients in train, val, test, or proportions
    leave_one_out: bool = False
    layout: str = ""
    licence: str = ""
    homepage: str = ""
    citation: str = ""
    archive: tuple[str, str] | None = None  # address and digest, if anyone may download it


_BUCKET = "https://msd-for-monai.s3-us-west-2.amazonaws.com/"
_decathlon = partial(
    Source,
    readers.decathlon,
    licence="CC BY-SA 4.0",
    homepage="http://medicaldecathlon.com",
    citation="Antonelli et al., Nature Communications 13:4128, 2022,"
    " doi:10.1038/s41467-022-30695-9",
)

DATASETS: dict[str, Source] = {
    "acdc": Source(
        readers.acdc,
        classes=("RV", "MYO", "LV"),
        recipe=Recipe(size=(224, 224)),
        layout="[training/]patient001/{Info.cfg, patient001_frame01.nii.gz,"
        " patient001_frame01_gt.nii.gz, ...}",
        licence="CC BY-NC-SA 4.0",
        homepage="https://www.creatis.insa-lyon.fr/Challenge/acdc/",
        citation="Bernard et al., IEEE TMI 37(11), 2018, doi:10.1109/TMI.2018.2837502",
    ),
    "mrbrains": Source(
        readers.mrbrains,
        classes=("GM", "WM", "CSF"),
        codes={},  # the reader says, since the two editions differ
        channels=("T1", "T2-FLAIR", "T1-IR"),
        recipe=Recipe(crop=(48, 240, 240)),
        split=(5, 1, 1),
        leave_one_out=True,
        layout="training/1/{pre/{reg_T1,reg_IR,FLAIR}.nii.gz, segm.nii.gz}, or MRBrainS13's "
        "TrainingData/1/{T1,T1_IR,T2_FLAIR,LabelsForTesting}.nii",
        licence="on request, for research",
        homepage="https://mrbrains18.isi.uu.nl",
        citation="Kuijf and Bennink, MR Brain Segmentation Challenge 2018 Data, DataverseNL,"
        " doi:10.34894/E0U32Q",
    ),
    "flare": Source(
        readers.flare,
        classes=("liver", "kidney", "spleen", "pancreas"),
        # ours: 8 x 2 x 2 mm and 192 x 192 x 30 voxels cover 24 x 38 x 38 cm; a soft-tissue window
        recipe=Recipe(spacing=(8.0, 2.0, 2.0), crop=(30, 192, 192), window=(-160.0, 240.0)),
        split=(240, 40, 80),
        layout="TrainingImg/train_000_0000.nii.gz, TrainingMask/train_000.nii.gz",
        licence="on request, for research",
        homepage="https://flare.grand-challenge.org",
        citation="Ma et al., IEEE TPAMI 44(10), 2022, doi:10.1109/TPAMI.2021.3100536",
    ),
    "brats": Source(
        readers.brats,
        classes=("NCR", "ED", "ET"),
        codes={0: 0, 1: 1, 2: 2, 4: 3},
        regions={"TC": (1, 3), "ET": (3,), "WT": (1, 2, 3)},
        channels=readers.BRATS_CHANNELS,
        recipe=Recipe(spacing=(1.0, 1.0, 1.0), keep_empty=False),  # ours: 1 mm, as in the files
        split=(235, 35, 65),
        layout="{HGG,LGG}/BraTS19_XXX_1/BraTS19_XXX_1_{flair,t1,t1ce,t2,seg}.nii.gz",
        licence="on request, for research",
        homepage="https://www.med.upenn.edu/cbica/brats2019/registration.html",
        citation="Menze et al., IEEE TMI 34(10), 2015, doi:10.1109/TMI.2014.2377694",
    ),
    "promise12": Source(
        readers.promise12,
        classes=("prostate",),
        recipe=Recipe(size=(256, 256)),  # ours: slices come in 256 to 512 pixels
        split=(35, 5, 10),
        layout="Case00.mhd, Case00.raw, Case00_segmentation.mhd, Case00_segmentation.raw",
        licence="free after registration",
        homepage="https://promise12.grand-challenge.org",
        citation="Litjens et al., Medical Image Analysis 18(2), 2014,"
        " doi:10.1016/j.media.2013.12.002",
    ),
    "prostate": _decathlon(
        classes=("PZ", "TZ"),
        channels=("T2", "ADC"),
        recipe=Recipe(size=(256, 256)),  # ours
        split=(22, 3, 7),
        layout="dataset.json, imagesTr/prostate_00.nii.gz (4D), labelsTr/prostate_00.nii.gz",
        archive=(f"{_BUCKET}Task05_Prostate.tar", "md5:35138f08b1efaef89d7424d2bcc928db"),
    ),
    "hippocampus": _decathlon(
        classes=("Anterior", "Posterior"),
        channels=("MRI",),
        patients_named=False,  # both sides of 195 people, numbered without saying whose
        split=(185, 25, 50),
        layout="dataset.json, imagesTr/hippocampus_001.nii.gz, labelsTr/hippocampus_001.nii.gz",
        archive=(f"{_BUCKET}Task04_Hippocampus.tar", "md5:9d24dba78a72977dbd1d2e110310f31b"),
    ),
    "busi": Source(
        readers.busi,
        classes=("tumour",),
        masks=True,
        channels=("ultrasound",),
        patients_named=False,  # 780 images of 600 people
        recipe=Recipe(size=(256, 256)),
        split=(445, 65, 137),
        layout="Dataset_BUSI_with_GT/{benign,malignant}/benign (1).png, benign (1)_mask.png,"
        " benign (1)_mask_1.png, ...",
        licence="free for research",
        homepage="https://scholar.cu.edu.eg/?q=afahmy/pages/dataset",
        citation="Al-Dhabyani et al., Data in Brief 28:104863, 2020, doi:10.1016/j.dib.2019.104863",
    ),
    "phantom": Source(
        readers.decathlon,
        classes=("body", "core", "satellite"),
        layout="built in: segcal prepare phantom",
        licence="Apache-2.0",
        citation="this software",
    ),
}


def source_of(name: str, root: Path) -> Source:
    """The row of that name; for any other name, one made from the folder's own `dataset.json`."""
    if name in DATASETS:
        return DATASETS[name]
    path = root / "dataset.json"
    if not path.is_file():
        known = "name a known set (segcal list datasets), or bring it into nnU-Net's layout"
        raise UserError(f"{path} is missing; {known} (documentation: Add your data)")
    values = readers.description(root)
    if "channel_names" in values:
        return _described(readers.nnunet, path, values.get("labels"), values["channel_names"])
    if "training" not in values:
        raise UserError(f"{path} has neither channel_names (nnU-Net v2) nor training (Decathlon)")
    channels = values.get("modality", {"0": "image"})
    return _described(readers.decathlon, path, values.get("labels"), channels)


def changed_recipe(recipe: Recipe, overrides: dict[str, Any]) -> Recipe:
    """A row's recipe with a user's changes (those that are not None), checked."""
    changes = {key: value for key, value in overrides.items() if value is not None}
    if "window" in changes and "percentiles" in changes:
        raise UserError("window and percentiles both scale intensities; give one of them")
    if "window" in changes:
        changes["percentiles"] = Recipe.percentiles  # not used, and not recorded
    if "percentiles" in changes:
        changes.setdefault("window", None)
    recipe = replace(recipe, **changes)
    for key, length in (("spacing", 3), ("size", 2), ("crop", 3)):
        values = getattr(recipe, key)
        if values is not None and (len(values) != length or not all(v > 0 for v in values)):
            raise UserError(f"{key} must be {length} positive numbers; got {values}")
    for spacing in recipe.spacing or ():
        check_range("spacing", spacing, *SPACINGS)
    for key in ("size", "crop"):
        check_voxels(f"{key} gives", getattr(recipe, key) or ())
    if recipe.window is not None and not -math.inf < recipe.window[0] < recipe.window[1] < math.inf:
        raise UserError(f"window must be two rising numbers; got {recipe.window}")
    low, high = recipe.percentiles
    if not 0 <= low < high <= 100:
        allowed = "two rising numbers from 0 to 100"
        raise UserError(f"percentiles must be {allowed}; got {recipe.percentiles}")
    check_range("axis", recipe.axis, 0, 2)
    return recipe


def _described(reader: Reader, path: Path, labels: Any, channels: Any) -> Source:
    """A user's own data set, as its `dataset.json` describes it."""
    if not isinstance(labels, dict) or not isinstance(channels, dict) or not channels:
        needed = "labels and channels (channel_names or modality)"
        raise UserError(f"{path} must have {needed} as objects")
    if not all(map(str.isdecimal, channels)):
        raise UserError(f'{path}: channels must be numbered, as in {{"0": "CT"}}; got {channels}')
    numbers = label_numbers(path, labels)
    ignore = numbers.pop("ignore", (None,))[0]  # of several only one can be stored
    used = sorted({raw for group in numbers.values() for raw in group} - {0})
    if not 0 < len(used) < 255:
        raise UserError(f"{path} must name 1 to 254 foreground labels; got {len(used)}")

    codes = {0: 0} | {raw: k for k, raw in enumerate(used, start=1)}
    names = {group[0]: name for name, group in numbers.items() if len(group) == 1}
    regions = {}
    # Once a label is a list, nnU-Net takes all of them for regions, the numbers among them too.
    if any(isinstance(value, list) for value in labels.values()):
        for name, group in numbers.items():
            if group != (0,):
                regions[name] = tuple(codes[raw] for raw in group)
    return Source(
        reader,
        classes=tuple(names.get(raw, f"label {raw}") for raw in used),
        codes=codes,
        ignore=ignore,
        regions=regions,
        patients_named=False,
        channels=tuple(str(channels[key]) for key in sorted(channels, key=int)),
        recipe=OWN,
    )


def label_numbers(path: Path, labels: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """From `name: number`, `name: [numbers]` (nnU-Net) or `number: name` (Decathlon)."""
    numbers = {}
    swapped = all(str(key).isdecimal() for key in labels)
    for key, value in labels.items():
        name, group = (str(value), [key]) if swapped else (key, value)
        raw = group if isinstance(group, list) else [group]
        whole = [_is_label(each) for each in raw]
        if not raw or not all(whole) or (name == "ignore" and len(raw) > 1):
            allowed = f"whole numbers up to {LARGEST_LABEL} or lists of them, ignore one of these"
            raise UserError(f"{path}: labels must be {allowed}; got {name!a}: {group!a:.80}")
        numbers[name] = tuple(map(int, raw))
    return numbers


def _is_label(value: Any) -> bool:
    """Whether a value is a whole number, also as a text or a float, that a label map can hold."""
    text = str(value)
    is_whole = isinstance(value, float) and value.is_integer()
    is_number = isinstance(value, (int, str)) and text.removeprefix("-").isdecimal()
    return (is_whole or is_number) and len(text) < 10 and abs(int(value)) <= LARGEST_LABEL
