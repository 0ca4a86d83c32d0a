"""A folder of DICOM files as one image."""

from __future__ import annotations

from pathlib import Path

import SimpleITK as sitk

from segcal.types import UserError


def read_series(folder: Path) -> sitk.Image:
    """The one DICOM series in a folder, with its slices in their order in space."""
    names = sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(folder))
    if len(names) != 1:
        held = f"{len(names)} DICOM series" if names else "no DICOM series"
        rule = "name an image file, or a folder with the files of one series"
        raise UserError(f"{folder} is a folder with {held}; {rule}")
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(series_files(folder, names[0]))
    try:
        return reader.Execute()
    except RuntimeError:
        raise UserError(f"the DICOM series in {folder} cannot be read: it is damaged") from None


def series_files(folder: Path, name: str = "") -> tuple[str, ...]:
    """The files of a series."""
    return tuple(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(folder), name))
