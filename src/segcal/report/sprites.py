"""Volumes as pictures small enough to live inside a page: all slices of one in a single PNG."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MARGIN = 8  # voxels kept around what is shown, in the plane; a quarter of that along the slices
THICK = 48  # a stack of more slices than this is thinned before its slices lose resolution
COARSE = 32  # slices are never made smaller than this


@dataclass(frozen=True)
class Volumes:
    """What a case looks like: image (D, C, H, W) in [0, 1], label maps (D, H, W) and confidences
    (D, H, W).
    """

    image: NDArray[np.float32]
    reference: NDArray[np.uint8]
    predictions: Sequence[NDArray[np.uint8]]
    confidences: Sequence[NDArray[np.float32]]
    lowest: float  # the least confidence there can be: one over the number of classes


@dataclass(frozen=True)
class Thinning:
    """What is left out so that the pictures fit: all channels but some, and voxels between those
    kept.
    """

    n_channels: int
    along: int = 1  # every how many slices
    across: int = 1  # every how many voxels of a slice, in both directions


def pictures(volumes: Volumes, budget: int) -> dict[str, Any]:
    """The sheets of a case in at most `budget` bytes where that can be done, cropped to what
    matters.

    Cropped to the union of all label maps with a margin, so that no false positive is out of the
    picture."""
    part = box(volumes.reference, *volumes.predictions)
    result: dict[str, Any] = {}
    density = 0.0  # bytes per voxel, as far as is known
    choices = list(_thinnings(volumes, part))
    for thinning in choices:
        hopeless = density * _n_voxels(volumes, part, thinning) > 1.3 * budget
        if hopeless and thinning is not choices[-1]:
            continue
        result = _sheets(volumes, part, thinning)
        size = sum(len(sheet) for sheet in result["sheets"])
        density = size / _n_voxels(volumes, part, thinning)
        if size <= budget:
            break
    return result


def _n_voxels(volumes: Volumes, part: tuple[slice, slice, slice], thinning: Thinning) -> int:
    """How many voxels all sheets together hold."""
    depth, *sides = (s.stop - s.start for s in part)
    n_sheets = thinning.n_channels + 1 + 2 * len(volumes.predictions)
    return (
        n_sheets
        * math.ceil(depth / thinning.along)
        * math.prod(math.ceil(s / thinning.across) for s in sides)
    )


def box(*labels: NDArray[Any]) -> tuple[slice, slice, slice]:
    """Where any of the label maps has foreground, with a margin; everything where none has.

    >>> label = np.zeros((40, 100, 90)); label[20, 50, 30:33] = 1
    >>> box(label)
    (slice(18, 23, None), slice(42, 59, None), slice(22, 41, None))
    """
    marked = np.any([label > 0 for label in labels], axis=0)
    found = []
    for axis, size in enumerate(marked.shape):
        places = np.flatnonzero(marked.any(axis=tuple(a for a in range(3) if a != axis))).tolist()
        margin = MARGIN if axis else MARGIN // 4
        found.append(
            slice(max(places[0] - margin, 0), min(places[-1] + margin + 1, size))
            if places
            else slice(0, size)
        )
    return found[0], found[1], found[2]


def _thinnings(volumes: Volumes, part: tuple[slice, slice, slice]) -> Iterator[Thinning]:
    """From everything to as little as makes sense."""
    n_channels = volumes.image.shape[1]
    yield Thinning(n_channels)
    if n_channels > 1:
        yield Thinning(1)
    depth, *sides = (s.stop - s.start for s in part)
    along = across = 1
    while depth > along or min(sides) // across >= 2 * COARSE:
        if depth / along > THICK or min(sides) // across < 2 * COARSE:
            along *= 2
        else:
            across *= 2
        yield Thinning(1, along, across)


def _sheets(
    volumes: Volumes, part: tuple[slice, slice, slice], thinning: Thinning
) -> dict[str, Any]:
    z, y, x = part
    kept = (
        slice(z.start, z.stop, thinning.along),
        *(slice(s.start, s.stop, thinning.across) for s in (y, x)),
    )
    image = [_grey(volumes.image[:, c][kept]) for c in range(thinning.n_channels)]
    sure = [
        _byte((conf[kept] - volumes.lowest) / (1 - volumes.lowest)) for conf in volumes.confidences
    ]
    labels = [label[kept] for label in (volumes.reference, *volumes.predictions)]
    depth, height, width = labels[0].shape
    columns = max(1, min(depth, round(math.sqrt(depth * height / width))))
    return {
        "shape": [depth, height, width],
        "first": z.start,
        "step": thinning.along,
        "across": thinning.across,
        "slices": volumes.reference.shape[0],
        "columns": columns,
        "sheets": [_png(tiled(sheet, columns)) for sheet in (*image, *labels, *sure)],
        "n_channels": thinning.n_channels,
    }


def _grey(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Intensities over most of their range: a few bright voxels do not darken the rest."""
    low, high = np.quantile(values, (0.002, 0.998))
    return _byte((values - low) / max(high - low, 1e-6))


def _byte(share: NDArray[Any]) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = np.rint(np.clip(share, 0, 1) * 255).astype(np.uint8)
    return found


def tiled(volume: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Slices (D, H, W) row by row in one picture.

    >>> tiled(np.arange(3, dtype=np.uint8).reshape(3, 1, 1), 2)
    array([[0, 1],
           [2, 0]], dtype=uint8)
    """
    depth, height, width = volume.shape
    rows = math.ceil(depth / columns)
    filled = np.zeros((rows * columns, height, width), dtype=np.uint8)
    filled[:depth] = volume
    return (
        filled.reshape(rows, columns, height, width)
        .swapaxes(1, 2)
        .reshape(rows * height, columns * width)
    )


def _png(picture: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG", compress_level=6)
    return out.getvalue()


def data_uri(content: bytes, kind: str = "image/png") -> str:
    """A file's content as an address that needs no file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
