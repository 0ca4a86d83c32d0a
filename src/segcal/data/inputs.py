"""Images to predict, from files, folders, and prepared data sets."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segcal.data.case import prepared_image, read_images
from segcal.data.catalog import Recipe
from segcal.data.containers import data_files
from segcal.data.images import Grid
from segcal.data.inspect import PICTURES
from segcal.data.pairs import ENDINGS, SHOWN
from segcal.data.series import series_names
from segcal.folders import CaseSet, open_cases
from segcal.folders.cases import is_case_set
from segcal.folders.files import sha256
from segcal.types import UserError

# The format of label maps, by that of the image; `.nii.gz` for others, as for DICOM.
MASKS = {ending: ending for ending in (".nii.gz", ".nii", ".nrrd", ".mha", ".png", ".bmp")}
MASKS |= {".tif": ".tif", ".tiff": ".tiff", ".mhd": ".mha", ".jpg": ".png", ".jpeg": ".png"}
FLAT = (*PICTURES, ".tif", ".tiff")  # formats of pictures; of one slice, maps are pictures too


@dataclass(frozen=True)
class Input:
    """A case to predict: its name, its files, and the data set that it is of, if prepared."""

    name: str
    paths: tuple[Path, ...]
    cases: CaseSet | None = None

    @property
    def marks(self) -> dict[str, str]:
        """The SHA-256 of each file."""
        if self.cases is not None:
            return {self.name: self.cases.case(self.name)["sha256"]["image"]}
        files = [part for path in self.paths for part in (path, *data_files(path))]
        return {path.name: sha256(path) for path in files if path.is_file()}

    @property
    def ending(self) -> str:
        """The ending of its label map."""
        return MASKS.get(ending_of(self.paths[0]), ".nii.gz")

    @property
    def map_ending(self) -> str:
        """The ending of maps of confidence, which PNG and BMP cannot hold."""
        return ".tif" if self.ending in FLAT else self.ending

    def read(self, data: Mapping[str, Any]) -> tuple[NDArray[np.float32], Grid, Grid]:
        """What the network sees (D, C, H, W), its grid, and that of the first file."""
        if self.cases is not None:
            record = self.cases.case(self.name)
            grids = [
                {k: tuple(v) for k, v in record[key].items()} for key in ("prepared", "original")
            ]
            return np.array(self.cases.image(self.name)), Grid(**grids[0]), Grid(**grids[1])
        images = read_images(self.paths, tuple(data["channels"]))
        array, grid = prepared_image(images, recipe_of(data), data["orientation"])
        return array, grid, Grid.of(images[0])


def recipe_of(data: Mapping[str, Any]) -> Recipe:
    """The recipe that a run recorded of its data set."""
    values = data["recipe"].items()
    options: Any = {key: tuple(v) if isinstance(v, list) else v for key, v in values}
    return Recipe(**options)


def unit_of(ending: str, grid: Grid) -> tuple[str, float]:
    """The unit that sizes are told in, and how many of it a millilitre of the image is.

    A single slice without a voxel size has an area in pixels; one that is no picture has a
    volume, since a scan may have one slice.

    >>> unit_of(".png", Grid((9, 9, 1), (1.0, 1.0, 1.0), (), ()))
    ('pixels', 1000.0)
    >>> unit_of(".nii.gz", Grid((9, 9, 1), (1.0, 1.0, 1.0), (), ()))
    ('ml', 1.0)
    """
    flat = grid.size[2] == 1 and ending in FLAT
    return ("pixels", 1000 / math.prod(grid.spacing)) if flat else ("ml", 1.0)


def ending_of(path: Path) -> str:
    """The ending of an image file, in small letters.

    >>> ending_of(Path("a.b.NII.gz"))
    '.nii.gz'
    """
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else path.suffix.lower()


def inputs_of(paths: Sequence[Path], data: Mapping[str, Any], split: str) -> list[Input]:
    """The cases in files, in folders such as nnU-Net's `imagesTs`, and in prepared data sets."""
    files: list[Path] = []
    prepared: list[Input] = []
    for path in paths:
        if is_case_set(path):
            prepared += _prepared(path, data, split)
        else:
            files += _files(path)
    named = [Input(name, parts) for name, parts in grouped(files, len(data["channels"])).items()]
    names = [each.name for each in (*named, *prepared)]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two cases are named {name!r}; predict them into two folders")
    return [*named, *prepared]


def _prepared(path: Path, data: Mapping[str, Any], split: str) -> Iterator[Input]:
    cases = open_cases(path)
    cases.check_content()
    told = {"recipe": cases.info["settings"]["recipe"], "orientation": cases.info["orientation"]}
    told["channels"] = list(cases.channels)
    for key, value in told.items():
        if value != data[key]:
            both = f"{value} in {path} and {data[key]} in the run"
            raise UserError(f"{path} was prepared differently: {key} is {both}; predict its images")
    for id in cases.split(split):
        sources = [Path(source) for source in cases.case(id)["sources"]]
        yield Input(id, tuple(sources[:1]), cases)


def _files(path: Path) -> list[Path]:
    """A file, the images in a folder, or a folder that is an image itself: a DICOM series."""
    if not path.is_dir():
        return [path]
    inside = [part for part in sorted(path.iterdir()) if not part.name.startswith(".")]
    images = [part for part in inside if part.is_file() and ending_of(part) in (*ENDINGS, *FLAT)]
    folders = [part for part in inside if part.is_dir()]
    if images:
        return images
    if series_names(path):
        return [path]
    series = [part for part in folders if series_names(part)]
    if not series:
        nothing = f"{path} holds no image, no DICOM series and no prepared data set"
        names = ", ".join(part.name for part in folders[:SHOWN])
        raise UserError(f"{nothing}; name one of its folders: {names}" if names else nothing)
    return series


def grouped(images: Sequence[Path], n_channels: int) -> dict[str, tuple[Path, ...]]:
    """Files by case: with two channels, `name_0000.nii.gz` and `name_0001.nii.gz` are those of
    `name`.

    With one channel every file is a case, unless a `_0000` of the same name is there: such files
    look like further channels, and a wrong number of channels must be noticed.

    >>> cases = grouped([Path("a_0001.nii"), Path("a_0000.nii"), Path("b.mha")], 2)
    >>> {k: [p.name for p in v] for k, v in cases.items()}
    {'a': ['a_0000.nii', 'a_0001.nii'], 'b': ['b.mha']}
    """
    groups: dict[str, dict[int, Path]] = defaultdict(dict)
    stems = [re.sub(r"(\.nii)?\.\w+\Z", "", path.name) for path in images]
    for path, stem in zip(images, stems, strict=True):
        name, number = stem, -1  # the whole case
        numbered = re.fullmatch(r"(?s)(.+)_(\d{4})", stem)
        if numbered and (n_channels > 1 or f"{numbered[1]}_0000" in stems):
            name, number = numbered[1], int(numbered[2])
        if number in groups[name]:
            raise UserError(
                f"{path} and {groups[name][number]} would both be case {name!r}; predict them into"
                " two folders"
            )
        groups[name][number] = path
    cases = {}
    for name, files in groups.items():
        if set(files) not in ({-1}, set(range(n_channels))):
            listed = ", ".join(sorted(p.name for p in files.values()))
            needs = f"{n_channels} channels, from _0000 on" if n_channels > 1 else "one channel"
            raise UserError(
                f"case {name!r} has the files {listed} where this run needs {needs}; name other"
                " cases otherwise"
            )
        cases[name] = tuple(files[number] for number in sorted(files))
    return cases
