"""How a slice is shown: turned as radiologists read it, with the letters of its edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPPOSITE = dict(zip("RLAPSI", "LRPAIS", strict=True))


def slices_first(values: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    """Values for the axes of a file's array, in the order of the prepared array.

    >>> slices_first(("z", "y", "x"), 2)
    ('x', 'z', 'y')
    """
    return (values[axis], *values[:axis], *values[axis + 1 :])


def edges(orientation: str | None, axis: int) -> dict[str, Any]:
    """Which axes of a slice must be flipped, and which way its edges then point.

    Front or head is up; the patient's right (or, from the side, front) is on the left. `axis` is
    the slicing axis of the recipe. Data of unknown orientation are shown as stored, without
    letters.

    >>> edges("RAS", 0)
    {'flip': [True, True], 'top': 'A', 'left': 'R', 'bottom': 'P', 'right': 'L'}
    """
    if not orientation:
        return {"flip": [False, False]}
    # The letters to which slices, rows, and the voxels of a row go.
    _, bottom, right = slices_first(tuple(orientation[::-1]), axis)
    flip = [bottom in "ASR", right in "RAS"]
    if flip[0]:
        bottom = OPPOSITE[bottom]
    if flip[1]:
        right = OPPOSITE[right]
    top, left = OPPOSITE[bottom], OPPOSITE[right]
    return {"flip": flip, "top": top, "left": left, "bottom": bottom, "right": right}


def turned(picture: NDArray[Any], flip: Sequence[bool]) -> NDArray[Any]:
    """A slice (H, W) with its rows, its columns or both reversed, as `edges` says.

    >>> turned(np.array([[1, 2], [3, 4]]), [True, False]).tolist()
    [[3, 4], [1, 2]]
    """
    return np.flip(picture, tuple(np.flatnonzero(flip)))
