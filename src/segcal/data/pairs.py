"""Whether the files of a raw data set are complete, before any image is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from segcal.data.readers import RawCase, description
from segcal.types import UserError

ENDINGS = (".nii.gz", ".nii", ".nrrd", ".mha", ".mhd", ".png", ".tif", ".tiff", ".bmp", ".jpg")
SHOWN = 5  # problems in a sentence


def check_files(root: Path, cases: Sequence[RawCase], *, skip_broken: bool) -> list[str]:
    """What is wrong with the names and numbers of files; an error unless `skip_broken`.

    Files that are missing are left to the preparation of their cases if `skip_broken`."""
    missing = []
    for case in cases:
        paths = [path for path in (*case.images, *case.labels) if not path.exists()]
        missing += [f"{path} is missing" for path in paths]
    others = [*strays(root, cases), *miscounted(root, len(cases))]
    if skip_broken:
        return others
    problems = [*missing, *others]
    if problems:
        first = "; ".join(problems[:SHOWN])
        more = f"; and {len(problems) - SHOWN} more problems" if len(problems) > SHOWN else ""
        raise UserError(f"{first}{more}; mend it, or leave such cases out with --skip-broken")
    return []


def strays(root: Path, cases: Sequence[RawCase]) -> list[str]:
    """In nnU-Net's layout, images and labels that belong to no case.

    Where `dataset.json` lists the cases, as in the Decathlon's, it may leave some out."""
    if "channel_names" not in _described(root):
        return []
    used = {path for case in cases for path in (*case.images, *case.labels)}
    lines = []
    for folder in ("imagesTr", "labelsTr"):
        for path in sorted((root / folder).glob("*")):
            image = path.name.lower().endswith(ENDINGS) and not path.name.startswith(".")
            if image and path not in used:
                numbered = folder == "labelsTr" or re.search(r"_\d{4}(\.\w+)+$", path.name)
                hint = "" if numbered else " (it has no channel number, such as _0000)"
                lines.append(f"{path} belongs to no case{hint}")
    return lines


def miscounted(root: Path, n_cases: int) -> list[str]:
    """Whether `numTraining` of `dataset.json` differs from the number of cases."""
    told = _described(root).get("numTraining")
    if not isinstance(told, int) or told == n_cases:
        return []
    return [f"{root / 'dataset.json'} says numTraining {told}, and there are {n_cases} cases"]


def _described(root: Path) -> dict[str, Any]:
    return description(root) if (root / "dataset.json").is_file() else {}
