"""NRRD: `.nrrd`, and `.nhdr` with its data file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from segcal.data.containers.contents import (
    ZLIB_OR_GZIP,
    Contents,
    beside,
    damaged,
    inflated,
    read_bytes,
    require_axes,
    require_finite,
    require_length,
    require_size,
    require_spacing,
    truncated,
    unpacked,
)
from segcal.types import UserError

LONGEST = 1 << 16  # bytes of a header
MOST_AXES = 5
_NAMES = {
    1: "signed char, int8, int8_t, uchar, unsigned char, uint8, uint8_t",
    2: "short, short int, signed short, signed short int, int16, int16_t, ushort, unsigned short,"
    " unsigned short int, uint16, uint16_t",
    4: "int, signed int, int32, int32_t, uint, unsigned int, uint32, uint32_t, float",
    8: "longlong, long long, long long int, signed long long, signed long long int, int64, int64_t,"
    " ulonglong, unsigned long long, unsigned long long int, uint64, uint64_t, double",
}
BYTES = {name: n for n, names in _NAMES.items() for name in names.split(", ")}
GZIP, BZIP = ("gzip", "gz"), ("bzip2", "bz2")


def nrrd(path: Path, whole: bool) -> Contents:
    """Check an NRRD file; ITK does not read the checksum of its data."""
    fields, data_starts = _fields(path)
    n_axes = _whole(path, fields, "dimension")
    if len(n_axes) != 1 or not 2 <= n_axes[0] <= MOST_AXES:
        damaged(path, f"its header says dimension: {fields['dimension'][:40]}")
    shape = tuple(_whole(path, fields, "sizes"))
    if len(shape) != n_axes[0]:
        damaged(path, f"its header says sizes: {fields['sizes'][:40]}")
    n_values = require_size(path, shape)
    kind = fields.get("type", "nothing").lower()
    if kind not in BYTES:
        damaged(path, f"its header says type: {kind[:40]}")
    _check_place(path, fields)
    encoding = fields.get("encoding", "nothing").lower()
    if encoding in ("ascii", "text", "txt", "hex"):
        raise UserError(f"{path} holds its voxels as text; store them as binary data")
    if encoding not in ("raw", *GZIP, *BZIP):
        damaged(path, f"its header says encoding: {encoding[:40]}")
    for name in ("line skip", "byte skip"):
        if fields.get(name, "0") != "0":
            raise UserError(f"{path} skips parts of its data ({name}); write it without")
    file = fields.get("data file")
    if file is not None and (file.upper().startswith("LIST") or "%" in file):
        raise UserError(f"{path} lists a file per slice; store the image in one file")
    data = path if file is None else beside(path, file)
    if whole:
        content = read_bytes(data)[data_starts if file is None else 0 :]
        n_bytes = n_values * BYTES[kind]
        if encoding in GZIP:
            inflated(data, content, n_bytes, ZLIB_OR_GZIP)
        elif encoding in BZIP:
            unpacked(data, content, n_bytes)
        else:
            require_length(data, len(content), n_bytes)
    return Contents(shape)


def nrrd_data(path: Path) -> list[Path]:
    """The file that a `.nhdr` names, if it is in the same folder."""
    try:
        fields, _ = _fields(path)
        return [beside(path, fields["data file"])] if "data file" in fields else []
    except UserError:  # found out when it is read
        return []


def _fields(path: Path) -> tuple[dict[str, str], int]:
    """The fields of the header, and where the data start if they are in the same file."""
    start = read_bytes(path, LONGEST)
    if not start.startswith(b"NRRD000"):
        truncated(path)
    fields: dict[str, str] = {}
    place = start.find(b"\n") + 1
    while place:
        end = start.find(b"\n", place)
        if end < 0:
            end = len(start)
        line = start[place:end].decode("utf-8", "replace").strip("\r")
        place = end + 1
        if not line:
            return fields, place
        if line.startswith("#") or ":=" in line:
            continue
        name, colon, value = line.partition(":")
        name = name.strip().lower().replace("datafile", "data file")
        if not colon:
            truncated(path)
        if name in fields:
            damaged(path, f"its header says {name[:40]} twice")
        fields[re.sub(r"(line|byte)skip", r"\1 skip", name)] = value.strip()
        if place > len(start):
            break
    if "data file" in fields:  # a detached header may end without an empty line
        return fields, len(start)
    truncated(path)


def _whole(path: Path, fields: dict[str, str], name: str) -> list[int]:
    words = fields.get(name, "").split()
    if not words or not all(word.isdecimal() and len(word) < 16 for word in words):
        damaged(path, f"its header says {name}: {fields.get(name, 'nothing')[:40]}")
    return [int(word) for word in words]


def _check_place(path: Path, fields: dict[str, str]) -> None:
    """Spacings, or the vectors of the axes; NaN and `none` are for axes that are not of space."""
    try:
        spacings = [float(word) for word in fields.get("spacings", "").split()]
        origin = _vectors(fields.get("space origin", ""))
        axes = _vectors(fields.get("space directions", ""))
    except ValueError:
        damaged(path, "its header says a place of voxels that is no number")
    require_spacing(path, [abs(spacing) for spacing in spacings if not np.isnan(spacing)])
    for vector in origin:
        require_finite(path, "an origin", vector)
    if axes:
        if len({len(vector) for vector in axes}) != 1:
            damaged(path, "its header says directions of different lengths")
        require_axes(path, np.array(axes))
        require_spacing(path, np.linalg.norm(axes, axis=1).tolist())


def _vectors(text: str) -> list[list[float]]:
    """The numbers in brackets.

    >>> _vectors("(1,0,0) none (0, 2,0)")
    [[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]
    """
    return [[float(word) for word in part.split(",")] for part in re.findall(r"\((.*?)\)", text)]
