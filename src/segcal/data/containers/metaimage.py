"""MetaImage: `.mha`, and `.mhd` with its `.raw` or `.zraw`."""

from __future__ import annotations

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
)
from segcal.types import UserError

LONGEST = 1 << 16  # bytes of a header
BYTES = {"CHAR": 1, "SHORT": 2, "INT": 4, "LONG": 4, "LONG_LONG": 8, "FLOAT": 4, "DOUBLE": 8}
MOST_AXES = 4
_PLACES = ("Offset", "Position", "Origin")
_MATRICES = ("TransformMatrix", "Rotation", "Orientation")
_SPACINGS = ("ElementSpacing", "ElementSize")


def metaimage(path: Path, whole: bool) -> Contents:
    """Check a MetaImage; ITK reads neither its checksum nor the end of its data."""
    fields, data_starts = _fields(path)
    n_axes = _numbers(path, fields, "NDims", 1)[0]
    if n_axes not in range(2, MOST_AXES + 1):
        damaged(path, f"its header says NDims = {n_axes:g}")
    n = int(n_axes)
    shape = tuple(_whole(path, fields, "DimSize", n))
    n_parts = _whole(path, fields, "ElementNumberOfChannels", 1, default="1")[0]
    n_values = require_size(path, shape, n_parts)
    for name in _SPACINGS:
        if name in fields:
            require_spacing(path, _numbers(path, fields, name, n))
    for name in _PLACES:
        if name in fields:
            require_finite(path, "an origin", _numbers(path, fields, name, n))
    for name in _MATRICES:
        if name in fields:
            matrix = _numbers(path, fields, name, n * n)
            require_axes(path, np.reshape(matrix, (n, n)))
    for name in ("BinaryDataByteOrderMSB", "ElementByteOrderMSB"):
        _flag(path, fields, name, "False")
    n_bytes = n_values * _bytes_of(path, fields)
    if not _flag(path, fields, "BinaryData", "True"):
        raise UserError(f"{path} holds its voxels as text; store them as binary data")
    file = fields["ElementDataFile"]
    inside = file.upper() == "LOCAL"
    if file.upper().startswith("LIST") or "%" in file:
        raise UserError(f"{path} lists a file per slice; store the image in one file")
    data = path if inside else beside(path, file)
    if whole:
        _check_data(path, data, fields, data_starts if inside else None, n_bytes)
    return Contents(shape, n_parts)


def metaimage_data(path: Path) -> list[Path]:
    """The file that a `.mhd` names, if it is in the same folder."""
    try:
        fields, _ = _fields(path)
        return [beside(path, fields["ElementDataFile"])]
    except UserError:  # found out when it is read; LOCAL is no file
        return []


def _fields(path: Path) -> tuple[dict[str, str], int]:
    """The fields of the header, and where the data start if they are in the same file."""
    start = read_bytes(path, LONGEST)
    fields: dict[str, str] = {}
    place = 0
    while place < len(start):
        end = start.find(b"\n", place)
        end = len(start) if end < 0 else end
        name, equals, value = start[place:end].decode("utf-8", "replace").partition("=")
        if not equals and name.strip():
            truncated(path)
        if name.strip() in fields:
            damaged(path, f"its header says {name.strip()} twice")
        if equals:
            fields[name.strip()] = value.strip()
        place = end + 1
        if name.strip() == "ElementDataFile":
            return fields, place
    truncated(path)


def _numbers(path: Path, fields: dict[str, str], name: str, n: int) -> list[float]:
    try:
        values = [float(word) for word in fields[name].split()]
    except (KeyError, ValueError):
        values = []
    if len(values) != n:
        damaged(path, f"its header says {name} = {fields.get(name, 'nothing')[:40]!r}")
    return values


def _whole(
    path: Path, fields: dict[str, str], name: str, n: int, default: str | None = None
) -> list[int]:
    given = fields if default is None else {name: default} | fields
    values = _numbers(path, given, name, n)
    if any(value != value // 1 or abs(value) > 1 << 53 for value in values):
        damaged(path, f"its header says {name} = {given[name][:40]!r}")
    return [int(value) for value in values]


def _flag(path: Path, fields: dict[str, str], name: str, default: str) -> bool:
    value = fields.get(name, default).lower()
    if value not in ("true", "false", "1", "0"):
        damaged(path, f"its header says {name} = {value[:40]!r}")
    return value in ("true", "1")


def _bytes_of(path: Path, fields: dict[str, str]) -> int:
    kind = fields.get("ElementType", "nothing")
    name = kind.removeprefix("MET_").removesuffix("_ARRAY").replace("ULONG", "LONG")
    name = name if name in BYTES else name.removeprefix("U")
    if not kind.startswith("MET_") or name not in BYTES:
        damaged(path, f"its header says ElementType = {kind[:40]!r}")
    return BYTES[name]


def _check_data(
    path: Path, data: Path, fields: dict[str, str], starts: int | None, n_bytes: int
) -> None:
    """The data to their end; `starts` is where they start in the same file, `None` in their own."""
    content = read_bytes(data)
    skipped = _whole(path, fields, "HeaderSize", 1, default="0")[0]
    if skipped < -1 or (skipped and starts is not None):
        damaged(path, f"its header says HeaderSize = {skipped}")
    if skipped == -1:  # all that comes before the voxels
        skipped = max(0, len(content) - n_bytes)
    content = content[(starts or 0) + skipped :]
    if not _flag(path, fields, "CompressedData", "False"):
        require_length(data, len(content), n_bytes)
        return
    stored = _whole(path, fields, "CompressedDataSize", 1)[0]  # ITK needs it
    require_length(data, len(content), stored)
    inflated(data, content, n_bytes, ZLIB_OR_GZIP)
