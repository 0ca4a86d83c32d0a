"""What is in a prepared data set, and what looks wrong with it. Reads `cases.json` alone, so it is
instant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segcal.data.orientation import edges, turned
from segcal.folders import CaseSet

PLAIN = (".png", ".jpg", ".jpeg", ".bmp")  # pictures without a physical size


def summary(cases: CaseSet) -> dict[str, Any]:
    """Counts, ranges and warnings of a prepared data set, ready for a table or JSON."""
    records = {id: cases.case(id) for id in cases.ids}
    voxels = np.array([record["voxels"] for record in records.values()])  # (cases, classes + 1)
    shapes = np.array([record["shape"] for record in records.values()])
    spacings = np.array([record["spacing"] for record in records.values()])
    ranges = np.array([record["intensity"] for record in records.values()])  # (cases, channels, 2)
    return {
        "name": cases.name,
        "cases": len(records),
        "patients": (
            len({record["patient"] for record in records.values()})
            if cases.info.get("patients_known", True)
            else None
        ),
        "folds": cases.n_folds,
        "splits": {name: len(cases.split(name)) for name in ("train", "val", "test")},
        "shape": {"min": shapes.min(0).tolist(), "max": shapes.max(0).tolist()},
        "spacing": {
            "min": spacings.min(0).round(4).tolist(),
            "max": spacings.max(0).round(4).tolist(),
        },
        "intensity": {
            channel: {"min": float(ranges[:, i, 0].min()), "max": float(ranges[:, i, 1].max())}
            for i, channel in enumerate(cases.channels)
        },
        "classes": {
            name: {
                "voxels": int(voxels[:, k].sum()),
                "share": float(voxels[:, k].sum() / voxels.sum()),
                "cases": int((voxels[:, k] > 0).sum()),
            }
            for k, name in enumerate(("background", *cases.classes))
        },
        "ignored_voxels": sum(record["ignored_voxels"] for record in records.values()),
        "checksum": cases.info["checksum"],
        "left_out": cases.info["left_out"],
        "warnings": warnings(cases),
    }


def counts_pixels(cases: CaseSet) -> bool:
    """Whether distances are in pixels, since some files are pictures without a physical size."""
    return any(
        Path(path).suffix.lower() in PLAIN for id in cases.ids for path in cases.case(id)["sources"]
    )


def warnings(cases: CaseSet) -> list[str]:
    """One sentence for each thing that a person should look at."""
    found = []
    same: dict[str, list[str]] = defaultdict(list)
    for id in cases.ids:
        record = cases.case(id)
        same[record["sha256"]["image"]].append(id)
        if not record["foreground_slices"]:
            found.append(f"{id} has an empty label map")
        if record["label_elsewhere"]:
            found.append(
                f"{id}: image and label geometry differ (spacing, origin or direction); the image's"
                " is used"
            )
        if record["reoriented"]:
            found.append(f"{id} was turned to the orientation of the other cases")
    if counts_pixels(cases):
        found.append(
            "pictures do not say how large a pixel is; distances will count pixels of the original,"
            " not mm"
        )
    if not cases.info.get("patients_known", True):
        found.append(
            "no file says which cases are of one patient, so each counts as its own; if some are,"
            " use --patients FILE"
        )
    for ids in same.values():
        if len(ids) > 1:
            where = {name for name in ("train", "val", "test") if set(ids) & set(cases.split(name))}
            leak = f", across {' and '.join(sorted(where))}" if len(where) > 1 else ""
            found.append(f"{', '.join(ids)} are the same image{leak}")
    found += [f"{id} was left out: {why}" for id, why in cases.info["left_out"].items()]
    used = {id for fold in cases.info["splits"] for ids in fold.values() for id in ids}
    if unused := len(set(cases.ids) - used):
        found.append(f"{unused} of {len(cases.ids)} cases are in none of train, val and test")
    return found


class SliceView(NamedTuple):
    """A slice of a case as it is shown: turned as `edges` says, with the height of a voxel over its
    width.
    """

    id: str
    image: NDArray[Any]  # (H, W), of the first channel
    label: NDArray[Any]  # (H, W)
    aspect: float
    edges: Mapping[str, Any]


def middle_slices(cases: CaseSet, n: int) -> list[SliceView]:
    """Of `n` cases spread over the data set the slice in the middle of the labelled ones."""
    ids = [
        cases.ids[i]
        for i in np.linspace(0, len(cases.ids) - 1, min(n, len(cases.ids))).round().astype(int)
    ]
    ends, chosen = edges(cases.info), []
    for id in ids:
        record = cases.case(id)
        labelled = record["foreground_slices"]
        z = labelled[len(labelled) // 2] if labelled else record["shape"][0] // 2
        image, label = (
            turned(np.array(part), ends["flip"])
            for part in (cases.image(id)[z, 0], cases.label(id)[z])
        )
        _, height, width = record["spacing"]
        chosen.append(SliceView(id, image, label, height / width, ends))
    return chosen
