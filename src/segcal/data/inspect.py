"""What is in a prepared data set, and what looks wrong with it, from `cases.json` alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segcal.data.leaks import same_images
from segcal.data.orientation import edges, turned
from segcal.folders import CaseSet

PICTURES = (".png", ".jpg", ".jpeg", ".bmp")  # formats without a physical size


def summary(cases: CaseSet) -> dict[str, Any]:
    """Counts, ranges and warnings of a prepared data set, ready for a table or JSON."""
    cases.require_prepared()
    records = [cases.case(id) for id in cases.ids]
    voxels = np.array([record["voxels"] for record in records])  # (cases, classes + 1)
    shapes = np.array([record["shape"] for record in records])
    spacings = np.array([record["spacing"] for record in records]).round(4)
    ranges = np.array([record["intensity"] for record in records])  # (cases, channels, 2)
    patients = {record["patient"] for record in records}
    intensity = {}
    for i, channel in enumerate(cases.channels):
        low, high = ranges[:, i, 0].min(), ranges[:, i, 1].max()
        intensity[channel] = {"min": float(low), "max": float(high)}
    classes = {}
    for k, name in enumerate(("background", *cases.classes)):
        count = voxels[:, k].sum()
        classes[name] = {
            "voxels": int(count),
            "share": float(count / voxels.sum()),
            "cases": int((voxels[:, k] > 0).sum()),
        }
    return {
        "name": cases.name,
        "cases": len(records),
        "patients": len(patients) if cases.info.get("patients_known", True) else None,
        "folds": cases.n_folds,
        "splits": {name: len(cases.split(name)) for name in ("train", "val", "test")},
        "shape": {"min": shapes.min(0).tolist(), "max": shapes.max(0).tolist()},
        "spacing": {"min": spacings.min(0).tolist(), "max": spacings.max(0).tolist()},
        "intensity": intensity,
        "classes": classes,
        "ignored_voxels": sum(record["ignored_voxels"] for record in records),
        "checksum": cases.info["checksum"],
        "left_out": cases.info["left_out"],
        "warnings": warnings(cases),
    }


def counts_pixels(cases: CaseSet) -> bool:
    """Whether distances are in pixels, because some files are pictures without a physical size."""
    sources = [path for id in cases.ids for path in cases.case(id)["sources"]]
    return any(Path(path).suffix.lower() in PICTURES for path in sources)


def warnings(cases: CaseSet) -> list[str]:
    """One sentence for each thing that a person should look at."""
    lines = []
    for id in cases.ids:
        record = cases.case(id)
        for channel, (low, high) in zip(cases.channels, record["intensity"], strict=True):
            if low == high:
                lines.append(f"{id} has one value alone in {channel}: {low:g}")
        if not record["foreground_slices"]:
            lines.append(f"{id} has an empty label map")
        if record["label_elsewhere"]:
            problem = "image and label geometry differ (spacing, origin or direction)"
            lines.append(f"{id}: {problem}; the image's is used")
        if record["reoriented"]:
            lines.append(f"{id} was turned to the orientation of the other cases")
    if counts_pixels(cases):
        unknown = "pictures do not say how large a pixel is"
        lines.append(f"{unknown}; distances will count pixels of the original, not mm")
    if not cases.info.get("patients_known", True):
        unknown = "no file says which cases are of one patient, so each counts as its own"
        lines.append(f"{unknown}; if some are, use --patients FILE")
    for ids in same_images(cases.info["cases"]):
        where = [name for name in ("test", "train", "val") if {*ids} & {*cases.split(name)}]
        leak = f", across {' and '.join(where)}" if len(where) > 1 else ""
        lines.append(f"{', '.join(ids)} are the same image{leak}")
    lines += [f"{id} was left out: {why}" for id, why in cases.info["left_out"].items()]
    used: set[str] = set()
    for fold in cases.info["splits"]:
        used.update(*fold.values())
    if unused := len(set(cases.ids) - used):
        lines.append(f"{unused} of {len(cases.ids)} cases are in none of train, val and test")
    return lines


class SliceView(NamedTuple):
    """A slice of a case, turned as `edges` says."""

    id: str
    image: NDArray[Any]  # (H, W), of the first channel
    label: NDArray[Any]  # (H, W)
    aspect: float  # the height of a voxel over its width
    edges: Mapping[str, Any]


def middle_slices(cases: CaseSet, n: int) -> list[SliceView]:
    """The middle one of the labelled slices, in `n` cases spread over the data set."""
    last = len(cases.ids) - 1
    ends = edges(cases.info["orientation"], cases.info["settings"]["recipe"]["axis"])
    views = []
    for i in np.linspace(0, last, min(n, last + 1)).round().astype(int):
        id = cases.ids[i]
        record = cases.case(id)
        labelled = record["foreground_slices"]
        z = labelled[len(labelled) // 2] if labelled else record["shape"][0] // 2
        image = turned(np.array(cases.image(id)[z, 0]), ends["flip"])
        label = turned(np.array(cases.label(id)[z]), ends["flip"])
        _, height, width = record["spacing"]
        views.append(SliceView(id, image, label, height / width, ends))
    return views
