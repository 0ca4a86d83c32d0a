"""Which way a slice is shown: turned to lie as radiologists read it, with the letters of
its edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OTHER = dict(zip("RLAPSI", "LRPAIS", strict=True))


def edges(info: Mapping[str, Any]) -> dict[str, Any]:
    """How a slice must be turned to lie as radiologists read it, and which way its edges then
    point.

    Front or head up, and the patient's right (or, from the side, front) on the left. `info` is the
    content of `cases.json`. Where the data do not say how they lie, they are shown as stored, and
    there are no letters.

    >>> edges({"orientation": "RAS", "settings": {"recipe": {"axis": 0}}})
    {'flip': [True, True], 'top': 'A', 'left': 'R', 'bottom': 'P', 'right': 'L'}
    """
    code = info.get("orientation")
    if not code:
        return {"flip": [False, False]}
    order = [0, 1, 2]  # x, y, z
    order.append(
        order.pop(2 - info["settings"]["recipe"]["axis"])
    )  # as preparation turns the slicing axis to the front
    across, down = code[order[0]], code[order[1]]  # which way the voxels of a row, and the rows, go
    flip = [down in "ASR", across in "RAS"]
    bottom, right = (
        OTHER[letter] if turned else letter
        for letter, turned in zip((down, across), flip, strict=True)
    )
    return {
        "flip": flip,
        "top": OTHER[bottom],
        "left": OTHER[right],
        "bottom": bottom,
        "right": right,
    }


def turned(picture: NDArray[Any], flip: Sequence[bool]) -> NDArray[Any]:
    """A slice (H, W) with its rows, its columns or both the other way round, as `edges` says.

    >>> turned(np.array([[1, 2], [3, 4]]), [True, False]).tolist()
    [[3, 4], [1, 2]]
    """
    return np.flip(picture, tuple(axis for axis, other_way in enumerate(flip) if other_way))
