"""A folder of DICOM files as one image; a slice that is damaged or missing is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from segcal.data.containers.contents import check_voxels, require_file
from segcal.data.containers.dicom import check_lengths, is_dicom
from segcal.types import UserError

_ENDINGS = (".dcm", ".ima")
_BEGINNING = 132  # bytes that tell a DICOM file
_POSITION = "0020|0032"  # of a slice, in mm
_UNEVEN = 0.1  # of the distance of slices: by how much two may differ


def read_series(folder: Path) -> sitk.Image:
    """The one DICOM series in a folder, with its slices in their order in space."""
    names = series_names(folder)
    if len(names) != 1:
        held = f"{len(names)} DICOM series" if names else "no DICOM series"
        rule = "name an image file, or a folder with the files of one series"
        raise UserError(f"{folder} is a folder with {held}; {rule}")
    files = series_files(folder, names[0])
    _check_all_read(folder, files)
    first, reader = sitk.ImageFileReader(), sitk.ImageSeriesReader()
    first.SetFileName(files[0])
    reader.SetFileNames(files)
    reader.MetaDataDictionaryArrayUpdateOn()
    try:
        first.ReadImageInformation()
        width, height, *depth = first.GetSize()
        shape = (width, height, math.prod(depth) * len(files))
        check_voxels(f"the DICOM series in {folder} says", shape)
        image = reader.Execute()
    except RuntimeError:
        raise UserError(f"the DICOM series in {folder} cannot be read: it is damaged") from None
    _check_even(folder, reader, len(files))
    return image


def series_names(folder: Path) -> tuple[str, ...]:
    """The series in a folder; its files are checked, as ITK would wait for a pipe for ever."""
    for path in folder.iterdir():
        if not path.is_dir():
            require_file(path)
            check_lengths(path)
    try:
        return tuple(sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(folder)))
    except RuntimeError:
        raise UserError(f"{folder} holds a DICOM file that is damaged; get it again") from None


def series_files(folder: Path, name: str = "") -> tuple[str, ...]:
    """The files of a series."""
    return tuple(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder), name))


def _check_all_read(folder: Path, files: tuple[str, ...]) -> None:
    """Refuse DICOM files that ITK leaves out without a word, as it does with damaged ones."""
    known = {Path(name).name for name in files}
    for path in sorted(folder.iterdir()):
        if path.name in known or path.name.upper() == "DICOMDIR" or not path.is_file():
            continue
        with path.open("rb") as file:
            is_marked = is_dicom(file.read(_BEGINNING))
        if is_marked or path.suffix.lower() in _ENDINGS:
            problem = f"{path} is damaged, or no slice of the series in its folder"
            raise UserError(f"{problem}; get it again, or move it elsewhere")


def _check_even(folder: Path, reader: sitk.ImageSeriesReader, n_slices: int) -> None:
    """Refuse slices that are not evenly spaced, if the files say where they are."""
    if not any(reader.HasMetaDataKey(i, _POSITION) for i in range(n_slices)):
        return
    try:
        texts = [reader.GetMetaData(i, _POSITION).split("\\") for i in range(n_slices)]
        places = np.array([[float(value) for value in text] for text in texts])
    except (RuntimeError, ValueError):
        raise UserError(f"a DICOM file in {folder} does not say its place; get it again") from None
    steps = np.linalg.norm(np.diff(places, axis=0), axis=1)
    if len(steps) and not (np.abs(steps - np.median(steps)) <= _UNEVEN * np.median(steps)).all():
        problem = f"the slices of the DICOM series in {folder} are not evenly spaced"
        raise UserError(f"{problem}: one may be missing; complete it, or resample it to a file")
