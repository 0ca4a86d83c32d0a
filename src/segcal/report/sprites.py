"""Volumes as pictures for the page: all slices of a volume in one PNG."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MARGIN = 8  # voxels around the labels that are shown, in the plane; a quarter of that in depth
THICK = 48  # a stack of more slices loses slices before its slices lose resolution
COARSE = 32  # slices keep at least this many voxels in height and width
Stack = NDArray[np.uint8]  # slices (D, H, W) of grey values or labels


def crop(*labels: NDArray[Any]) -> tuple[slice, slice, slice]:
    """The part in which any label map has foreground, with a margin; everything if none has.

    >>> label = np.zeros((40, 100, 90)); label[20, 50, 30:33] = 1
    >>> crop(label)
    (slice(18, 23, None), slice(42, 59, None), slice(22, 41, None))
    """
    foreground = np.any([label > 0 for label in labels], axis=0)
    if not foreground.any():
        foreground[:] = True
    places = np.argwhere(foreground)
    margin = np.array([MARGIN // 4, MARGIN, MARGIN])
    start = np.maximum(places.min(0) - margin, 0).tolist()
    stop = np.minimum(places.max(0) + margin + 1, foreground.shape).tolist()
    return slice(start[0], stop[0]), slice(start[1], stop[1]), slice(start[2], stop[2])


def pictures(stacks: Mapping[str, Sequence[Stack]], budget: int) -> dict[str, Any]:
    """Stacks of one shape as PNGs, thinned until they fit into `budget` bytes.

    What is left out: `images` but the first, then every second slice or voxel, again and again
    until no more can be left out.
    """
    step = across = 1
    depth, *sides = stacks["images"][0].shape
    while True:
        content = _sheets(stacks, step, across)
        size = sum(len(png) for sheets in content["sheets"].values() for png in sheets)
        fine = min(sides) // across >= 2 * COARSE  # enough voxels to leave out half of them
        if size <= budget or (step >= depth and not fine):
            return content
        if len(stacks["images"]) > 1:
            stacks = {**stacks, "images": stacks["images"][:1]}
        elif depth / step > THICK or not fine:
            step *= 2
        else:
            across *= 2


def _sheets(stacks: Mapping[str, Sequence[Stack]], step: int, across: int) -> dict[str, Any]:
    """PNGs of every `step`-th slice with every `across`-th voxel, and how to find a slice again."""
    depth, height, width = stacks["images"][0][::step, ::across, ::across].shape
    columns = max(1, min(depth, round(math.sqrt(depth * height / width))))
    sheets: dict[str, list[bytes]] = {}
    for name, group in stacks.items():
        thinned = [stack[::step, ::across, ::across] for stack in group]
        sheets[name] = [_png(tiled(stack, columns)) for stack in thinned]
    shape = [depth, height, width]
    return {"shape": shape, "step": step, "across": across, "columns": columns, "sheets": sheets}


def tiled(stack: Stack, columns: int) -> NDArray[np.uint8]:
    """Slices (D, H, W) row by row in one picture.

    >>> tiled(np.arange(3, dtype=np.uint8).reshape(3, 1, 1), 2)
    array([[0, 1],
           [2, 0]], dtype=uint8)
    """
    depth, height, width = stack.shape
    rows = math.ceil(depth / columns)
    filled = np.zeros((rows * columns, height, width), dtype=np.uint8)
    filled[:depth] = stack
    grid = filled.reshape(rows, columns, height, width).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width)


def _png(picture: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "PNG", compress_level=6)
    return out.getvalue()


def data_uri(content: bytes, kind: str = "image/png") -> str:
    """A file's content as an address that needs no file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
