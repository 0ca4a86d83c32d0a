"""Image files are checked before ITK reads them: container, header, and length of the data.

ITK takes much damage for data: it does not read checksums of compressed MetaImage and NRRD files,
fills missing voxels with 0, and some headers make it crash or never end. A new format is one
function here and one row of `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from segcal.data.containers.contents import Contents, require_file
from segcal.data.containers.metaimage import metaimage, metaimage_data
from segcal.data.containers.nifti import nifti, nifti_data
from segcal.data.containers.nrrd import nrrd, nrrd_data
from segcal.data.containers.pictures import bmp, jpeg, png, tiff
from segcal.types import UserError

__all__ = ["FORMATS", "Contents", "check_file", "check_header", "data_files"]


class Format(NamedTuple):
    """A row of `FORMATS`."""

    check: Callable[[Path, bool], Contents]  # of the header alone if the second one is false
    reader: str  # ITK's name
    data: Callable[[Path], list[Path]] = lambda path: []  # the files that a header points to


_NIFTI = Format(nifti, "NiftiImageIO", nifti_data)
_META = Format(metaimage, "MetaImageIO", metaimage_data)
_NRRD = Format(nrrd, "NrrdImageIO", nrrd_data)
_JPEG, _TIFF = Format(jpeg, "JPEGImageIO"), Format(tiff, "TIFFImageIO")

FORMATS: dict[str, Format] = {
    ".nii.gz": _NIFTI,
    ".nii": _NIFTI,
    ".hdr": _NIFTI,
    ".mha": _META,
    ".mhd": _META,
    ".nrrd": _NRRD,
    ".nhdr": _NRRD,
    ".png": Format(png, "PNGImageIO"),
    ".bmp": Format(bmp, "BMPImageIO"),
    ".jpg": _JPEG,
    ".jpeg": _JPEG,
    ".tif": _TIFF,
    ".tiff": _TIFF,
}
"""What can be read, by the ending of its name."""


def check_file(path: Path) -> tuple[Contents, str]:
    """Refuse a damaged image file; gives what it holds, and the name of ITK's reader for it."""
    return _checked(path, whole=True)


def check_header(path: Path) -> str:
    """Refuse a damaged header, without a look at the data; gives the name of ITK's reader."""
    return _checked(path, whole=False)[1]


def _checked(path: Path, *, whole: bool) -> tuple[Contents, str]:
    require_file(path)
    row = _format(path)
    if row is None:
        known = f"segcal reads {', '.join(FORMATS)}"
        raise UserError(f"{path} cannot be read: it is no image of a known format; {known}")
    return row.check(path, whole), row.reader


def data_files(path: Path) -> list[Path]:
    """The files with the data of a header file (`.mhd`, `.nhdr`, `.hdr`), if they are there.

    Those of a folder of DICOM files are all in it."""
    if path.is_dir():
        return sorted(part for part in path.iterdir() if part.is_file())
    row = _format(path)
    return row.data(path) if row is not None and path.is_file() else []


def _format(path: Path) -> Format | None:
    name = path.name.lower()
    return next((row for ending, row in FORMATS.items() if name.endswith(ending)), None)
