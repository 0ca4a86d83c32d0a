"""NIfTI-1: `.nii`, `.nii.gz`, and `.hdr` with `.img` or `.img.gz`."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from segcal.data.containers.contents import (
    SHEAR,
    Contents,
    damaged,
    inflated,
    read_bytes,
    require_axes,
    require_file,
    require_finite,
    require_length,
    require_size,
    require_spacing,
    start_of,
    truncated,
)
from segcal.types import UserError

# Types of voxels: numbers, and bits of each.
BITS = {2: 8, 4: 16, 8: 32, 16: 32, 64: 64, 256: 8, 512: 16, 768: 32, 1024: 64, 1280: 64}
COLOURS = {128: 24, 2304: 32}
COMPLEX = {32, 1792, 2048}
FLOATS = {16: "f4", 64: "f8"}


SIZE, SIZE_2 = 348, 540
"""Bytes of a header, of NIfTI-1 and NIfTI-2, as they stand in its first four bytes."""

EXTENDER = 4  # bytes behind the header; the first one says whether extensions follow
MAGIC, SINGLE, PAIR = slice(344, 347), b"n+1", b"ni1"
FIELDS = {
    "dim": (40, "8h"),
    "type": (70, "h"),
    "bits": (72, "h"),
    "pixdim": (76, "8f"),
    "offset": (108, "f"),
    "scale": (112, "2f"),
    "codes": (252, "2h"),
    "quatern": (256, "3f"),
    "origin": (268, "3f"),
    "rows": (280, "12f"),
}
"""Where the fields of a header are: offset and format of each."""


@dataclass(frozen=True)
class _Header:
    order: str  # "<" or ">"
    single: bool  # the data are in the same file
    values: dict[str, tuple[Any, ...]]

    @property
    def shape(self) -> tuple[int, ...]:
        n_axes, *sizes = self.values["dim"]
        return tuple(sizes[:n_axes])

    @property
    def first(self) -> int:
        """Where the voxels start."""
        return int(self.values["offset"][0])

    @property
    def n_bytes(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n * self.values["bits"][0] // 8


def nifti(path: Path, whole: bool) -> Contents:
    """Check a NIfTI file; ITK reads missing voxels and NaN as 0 and does not report it."""
    content = read_bytes(path, -1 if whole else 1 << 16)
    zipped = path.name.lower().endswith(".gz")
    start = start_of(path, content, SIZE) if zipped else content[:SIZE]
    header = _header(path, start, whole)
    if not whole:
        return Contents(header.shape)
    if header.single:
        n_expected = header.first + header.n_bytes
        plain = inflated(path, content, n_expected) if zipped else content
        require_length(path, len(plain), n_expected)
        _check_extensions(path, header, plain)
    else:
        plain = _of_pair(path, header)
    kind = FLOATS.get(header.values["type"][0])
    if kind is None:
        return Contents(header.shape)
    voxels = memoryview(plain)[header.first :]
    return Contents(header.shape, values=np.frombuffer(voxels, header.order + kind))


def nifti_data(path: Path) -> list[Path]:
    """The file with the voxels of a `.hdr`."""
    if path.suffix.lower() != ".hdr":
        return []
    candidates = [path.with_suffix(ending) for ending in (".img", ".img.gz")]
    return [candidate for candidate in candidates if candidate.is_file()][:1]


def _of_pair(path: Path, header: _Header) -> bytes:
    data = (nifti_data(path) or [path.with_suffix(".img")])[0]
    require_file(data)
    n_expected = header.first + header.n_bytes
    content = read_bytes(data)
    if data.suffix.lower() == ".gz":
        return inflated(data, content, n_expected)
    require_length(data, len(content), n_expected)
    return content


def _header(path: Path, start: bytes, whole: bool) -> _Header:
    sizes = {order: struct.unpack(f"{order}i", start[:4]) for order in "<>" if len(start) >= SIZE}
    if (SIZE_2,) in sizes.values():
        raise UserError(f"{path} is NIfTI-2, which ITK does not read; store it as NIfTI-1")
    order = next((order for order, size in sizes.items() if size == (SIZE,)), None)
    if order is None:
        truncated(path)
    magic = start[MAGIC]
    if magic not in (SINGLE, PAIR):
        damaged(path, "it is not marked as NIfTI (Analyze files do not say where left is)")
    if (magic == SINGLE) == (path.suffix.lower() == ".hdr"):
        damaged(path, "its name and its header differ in whether it holds voxels")
    values = {}
    for name, (offset, kind) in FIELDS.items():
        values[name] = struct.unpack_from(order + kind, start, offset)
    header = _Header(order, magic == SINGLE, values)
    _check(path, header, whole)
    return header


def _check(path: Path, header: _Header, whole: bool) -> None:
    """Refuse values that cannot be; without the data, only the size of one volume is limited."""
    values = header.values
    if not 1 <= values["dim"][0] <= 7:
        damaged(path, f"its header says {values['dim'][0]} dimensions")
    require_size(path, header.shape if whole else header.shape[:3])
    if min(header.shape) < 1:
        damaged(path, f"its header says a size of {header.shape}")
    (kind,), (bits,), (offset,) = values["type"], values["bits"], values["offset"]
    if kind in COMPLEX:
        raise UserError(f"{path} holds complex numbers; store their magnitude")
    if bits != (BITS | COLOURS).get(kind):
        damaged(path, f"its header says voxels of type {kind} with {bits} bits")
    least = SIZE + EXTENDER if header.single else 0
    if not least <= offset < 1 << 31 or offset != int(offset):
        damaged(path, f"its header says that voxels start at byte {offset:g}")
    for scale in values["scale"]:  # NaN means none, as other programs have it
        if abs(scale) == float("inf"):
            damaged(path, "its header scales values by infinity")
    spatial = zip(header.shape[:3], values["pixdim"][1:], strict=False)
    require_spacing(path, [abs(spacing) for n, spacing in spatial if n > 1])
    _check_place(path, values)


def _check_place(path: Path, values: dict[str, tuple[Any, ...]]) -> None:
    """Where the voxels are: by quaternion, by a matrix, or both."""
    by_quaternion, by_matrix = (code > 0 for code in values["codes"])
    if by_quaternion:
        require_finite(path, "a quaternion", values["quatern"])
        require_finite(path, "an origin", values["origin"])
        if sum(part * part for part in values["quatern"]) > 1 + SHEAR:
            damaged(path, "its header says a quaternion that is no rotation")
    if by_matrix:
        rows = np.array(values["rows"], float).reshape(3, 4)
        require_finite(path, "an affine matrix with an entry", rows.ravel().tolist())
        # ITK takes the quaternion if the matrix is sheared
        require_axes(path, rows[:, :3].T, np.inf if by_quaternion else SHEAR)
        require_spacing(path, np.linalg.norm(rows[:, :3], axis=0).tolist())


def _check_extensions(path: Path, header: _Header, content: bytes) -> None:
    """Refuse extensions whose lengths do not lead to the first voxel."""
    place = SIZE
    if not content[place]:
        return
    place += EXTENDER
    while place < header.first:
        (length,) = struct.unpack_from(f"{header.order}i", content, place)
        if length < 8 or place + length > header.first:
            damaged(path, "its header has an extension of a length that cannot be")
        place += length
