"""What all formats share: regular files, compressed streams to their end, sizes within limits."""

from __future__ import annotations

import bz2
import math
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from segcal.types import UserError

LIMIT = "SEGCAL_MAX_VOXELS"
"""The environment variable that raises the limit on voxels of a file."""

MAX_VOXELS = 500_000_000
"""The limit without it: preparation takes about 6 bytes per voxel."""

GZIP, ZLIB_OR_GZIP = 31, 47
"""What zlib is told to expect."""

LONGEST_NAME = 200
"""Characters of a data file's name; systems allow 255 bytes."""

SMALLEST, LARGEST = 1e-6, 1e6
"""Spacings in mm beyond these come from damaged headers."""

SHEAR = 0.05
"""The cosine between two axes that counts as no right angle."""


@dataclass(frozen=True)
class Contents:
    """What a checked image file holds."""

    shape: tuple[int, ...]  # voxels, in the order of the file
    n_parts: int = 1  # numbers per voxel
    values: NDArray[np.floating] | None = None  # if these are floating point, and were read


def require_file(path: Path) -> None:
    """Refuse what is no regular file; to open a pipe or a device can take for ever."""
    if path.is_dir():
        remedy = "turn a DICOM series into a NIfTI file first"
        raise UserError(f"{path} is a folder where an image file is expected; {remedy}")
    if not path.exists():
        raise UserError(f"{path} is missing")
    if not path.is_file():
        raise UserError(f"{path} is a pipe or a device where an image file is expected")


def read_bytes(path: Path, n: int = -1) -> bytes:
    """The first bytes of a file, or all."""
    try:
        with path.open("rb") as file:
            return file.read(n)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def damaged(path: Path, what: str) -> NoReturn:
    """Refuse a file: its header or its data cannot be right."""
    raise UserError(f"{path} is damaged: {what}; get it again, or write it anew")


def truncated(path: Path) -> NoReturn:
    """Refuse a file that ends too early."""
    raise UserError(f"{path} cannot be read: it is no image, or it is truncated")


def start_of(path: Path, content: bytes, n: int, kind: int = GZIP) -> bytes:
    """The first `n` bytes of a compressed stream."""
    try:
        return zlib.decompressobj(kind).decompress(content, n)
    except zlib.error:
        truncated(path)


def inflated(path: Path, content: bytes, n_expected: int, kind: int = GZIP) -> bytes:
    """All of a compressed stream, read to its end with its checksum; it must be `n_expected` long.

    A gzip file may have several members, as parallel programs write them."""
    parts: list[bytes] = []
    room = n_expected + 1  # no more is made than that
    while content:
        stream = zlib.decompressobj(kind)
        try:
            parts.append(stream.decompress(content, room))
            room -= len(parts[-1])
            if not stream.eof and room:
                parts.append(stream.flush())
                room -= len(parts[-1])
        except zlib.error as error:
            damaged(path, f"its compressed data are not what was written ({error})")
        if room <= 0:
            damaged(path, f"it holds more than the {n_expected} bytes that its header says")
        if not stream.eof:
            truncated(path)
        content = stream.unused_data if stream.unused_data.strip(b"\0") else b""
    if room != 1:
        truncated(path)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def unpacked(path: Path, content: bytes, n_expected: int) -> bytes:
    """The same for bzip2."""
    stream = bz2.BZ2Decompressor()
    try:
        plain = stream.decompress(content, n_expected + 1)
    except OSError:
        damaged(path, "its compressed data are not what was written")
    require_length(path, len(plain), n_expected)
    if not stream.eof:
        truncated(path)
    return plain


def require_length(path: Path, n_bytes: int, n_expected: int) -> None:
    """Refuse data of another length than the header says."""
    if n_bytes < n_expected:
        truncated(path)
    if n_bytes > n_expected:
        damaged(path, f"it holds more than the {n_expected} bytes that its header says")


def require_size(path: Path, shape: Sequence[int], n_parts: int = 1) -> int:
    """The number of values of an image; refuse sizes that are none, or more than the limit."""
    if not shape or any(n < 1 for n in (*shape, n_parts)):
        damaged(path, f"its header says a size of {tuple(shape)}")
    return check_voxels(f"{path} says", shape, n_parts)


def check_voxels(subject: str, shape: Sequence[int], n_parts: int = 1) -> int:
    """The number of values of an array; refuse more than the limit."""
    n_values, limit = math.prod(shape) * n_parts, max_voxels()
    if n_values > limit:
        says = f"{subject} a size of {' x '.join(map(str, shape))}, more than {limit:,} voxels"
        raise UserError(f"{says}; {LIMIT}=N in the environment raises this limit")
    return n_values


def max_voxels() -> int:
    """The limit on voxels of a file."""
    text = os.environ.get(LIMIT, "")
    return int(text) if text.isdecimal() else MAX_VOXELS


def require_spacing(path: Path, spacing: Iterable[float]) -> None:
    """Refuse voxel sizes that are no lengths."""
    for value in spacing:
        if not SMALLEST <= value <= LARGEST:
            damaged(path, f"its header says voxels of {value:g} mm")


def require_finite(path: Path, what: str, values: Iterable[float]) -> None:
    """Refuse positions that are no numbers."""
    for value in values:
        if not abs(value) <= LARGEST * 1e3:
            damaged(path, f"its header says {what} of {value:g}")


def require_axes(path: Path, axes: NDArray[np.float64], shear: float = SHEAR) -> None:
    """Refuse directions, the rows of a matrix, that are not at right angles."""
    lengths = np.linalg.norm(axes, axis=1)
    if not np.isfinite(axes).all() or not (lengths > 0).all():
        damaged(path, "its header says directions that are none")
    unit = axes / lengths[:, None]
    if np.abs(unit @ unit.T - np.eye(len(axes))).max() > shear:
        problem = f"{path} has axes that are not at right angles"
        raise UserError(f"{problem}; resample it to a grid that has, or mend its header")


def beside(path: Path, name: str) -> Path:
    """The data file that a header names, which must be in the header's folder."""
    target = Path(os.path.normpath(path.parent / name))
    inside = target.is_relative_to(os.path.normpath(path.parent)) and not Path(name).is_absolute()
    if not name.isprintable() or len(name) > LONGEST_NAME:
        damaged(path, "the name of its data file is none")
    if not inside:
        problem = f"{path} names the data file {name!r}, outside of its folder"
        raise UserError(f"{problem}; keep both in one folder")
    require_file(target)
    return target
