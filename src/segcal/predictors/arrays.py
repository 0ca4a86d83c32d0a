"""Maps in `.npz` and `.npy` files, streamed; nothing in them is ever unpickled."""

from __future__ import annotations

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from segcal.data.containers.contents import check_voxels
from segcal.predictors.maps import Map, Maps
from segcal.types import UserError

KEYS = ("probabilities", "softmax")
"""What nnU-Net calls the maps in its `.npz` files: version 2, version 1."""

_DAMAGED = (
    *(zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, struct.error),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError),  # also of zipfile
)

_BLOCK = 1 << 16  # values that are read at once: they stay in the cache


def open_npz(path: Path) -> Maps:
    """The maps of an `.npz` file: under one of `KEYS`, or its only array."""
    with whole(path), zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{_key(path, archive)}.npy")
        with archive.open(member) as file:
            shape, fortran, dtype = _header(path, file)
        expected = math.prod(shape) * dtype.itemsize
        if not 0 < member.file_size - expected <= 1 << 17:  # the header is short
            raise EOFError

    def classes() -> Iterator[Map]:
        with whole(path), zipfile.ZipFile(path) as archive, archive.open(member.filename) as file:
            _header(path, file)
            yield from streamed(file, dtype, four(shape), fortran=fortran)

    return Maps(four(shape), classes, step=step_of(dtype))


def open_npy(path: Path) -> Maps:
    """The maps of an `.npy` file."""
    with whole(path), path.open("rb") as file:
        shape, fortran, dtype = _header(path, file)
        if path.stat().st_size < file.tell() + math.prod(shape) * dtype.itemsize:
            raise EOFError

    def classes() -> Iterator[Map]:
        with whole(path), path.open("rb") as file:
            _header(path, file)
            yield from streamed(file, dtype, four(shape), fortran=fortran)

    return Maps(four(shape), classes, step=step_of(dtype))


@dataclass(frozen=True)
class Layout:
    """How the array of a file is stored."""

    key: str  # in an `.npz`; else ""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def layout_of(path: Path) -> Layout:
    """How the maps in an `.npz` or `.npy` file are stored."""
    with whole(path):
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                shape, _, dtype = _header(path, file)
            return Layout("", shape, dtype)
        with zipfile.ZipFile(path) as archive:
            key = _key(path, archive)
            with archive.open(f"{key}.npy") as member:
                shape, _, dtype = _header(path, member)
    return Layout(key, shape, dtype)


def _key(path: Path, archive: zipfile.ZipFile) -> str:
    keys = [name[:-4] for name in archive.namelist() if name.endswith(".npy")]
    for key in KEYS:
        if key in keys:
            return key
    if len(keys) != 1:
        listed = ", ".join(keys) or "none"
        wanted = f"one array, or one called {KEYS[0]}"
        raise UserError(f"{path} must hold {wanted}; its arrays are: {listed}")
    return keys[0]


def _header(path: Path, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the first axis varies fastest, and type of an array that follows."""
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        shape, fortran, dtype = readers[npy.read_magic(file)](file)
    except (ValueError, KeyError, tokenize.TokenError):
        raise UserError(f"{path} holds no array that can be read; export it again") from None
    if dtype.hasobject:
        remedy = "store one array of numbers (K, z, y, x)"
        raise UserError(f"{path} holds Python objects, which are not opened; {remedy}")
    check_type(path, dtype)
    if len(shape) not in (3, 4) or min(shape) < 1 or any(n is True for n in shape):
        rule = "maps must be (K, z, y, x), or (K, y, x) for a 2D case"
        raise UserError(f"{path} has shape {shape}; {rule}")
    check_voxels(f"{path} has maps of", shape if fortran else shape[1:])
    return shape, fortran, dtype


def check_type(path: Path, dtype: np.dtype[Any]) -> None:
    """Raise unless values are floating point, or integers that can be scaled by their maximum."""
    if not (dtype.kind == "f" and dtype.itemsize <= 8) and dtype not in (np.uint8, np.uint16):
        allowed = "floating point, uint8 or uint16"
        raise UserError(f"{path} holds {dtype} where probabilities must be {allowed}")


def step_of(dtype: np.dtype[Any]) -> float:
    """The step between values after scaling: 1 by the maximum of the type; 0 if not integer."""
    return 1 / float(np.iinfo(dtype).max) if dtype.kind == "u" else 0.0


def four(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """The shape of maps (K, D, H, W); a 2D case is one slice."""
    k, *sizes = shape
    depth, height, width = sizes if len(sizes) == 3 else (1, *sizes)
    return k, depth, height, width


def streamed(
    file: IO[bytes],
    dtype: np.dtype[Any],
    shape: tuple[int, int, int, int],
    *,
    fortran: bool = False,
    divide: bool = True,
) -> Iterator[Map]:
    """The maps that follow in a file, one after the other in the same memory.

    Before the last one, the end of the file is read: there a wrong checksum shows. If the first
    axis varies fastest, all must be read at once. With `divide`, integers are divided by the
    maximum of their type."""
    divisor = np.iinfo(dtype).max if divide and dtype.kind == "u" else 1
    n_classes, n_voxels = shape[0], math.prod(shape[1:])
    if fortran:
        everything = np.empty(n_classes * n_voxels, np.float32)
        _fill(everything, file, dtype, divisor)
        _check_end(file)
        yield from everything.reshape(shape[::-1]).T
        return
    out = np.empty(n_voxels, np.float32)
    for k in range(n_classes):
        _fill(out, file, dtype, divisor)
        if k == n_classes - 1:
            _check_end(file)
        yield out.reshape(shape[1:])


def _fill(out: Map, file: IO[bytes], dtype: np.dtype[Any], divisor: int) -> None:
    for start in range(0, len(out), _BLOCK):
        part = out[start : start + _BLOCK]
        content = file.read(len(part) * dtype.itemsize)
        if len(content) < len(part) * dtype.itemsize:
            raise EOFError
        with np.errstate(over="ignore"):  # infinite values are refused where values are checked
            part[:] = np.frombuffer(content, dtype)
    if divisor > 1:
        out /= divisor


def _check_end(file: IO[bytes]) -> None:
    if file.read(1):
        raise EOFError


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Say in one sentence that a file is missing, not readable or damaged."""
    try:
        yield
    except UserError:
        raise
    except _DAMAGED:
        problem = "is truncated or damaged; export it again"
    except MemoryError:
        problem = "does not fit into the memory of this machine"
    except OSError as error:
        problem = f"cannot be read ({error.strerror or 'it is damaged'})"
    else:
        return
    raise UserError(f"{path} {problem}")
