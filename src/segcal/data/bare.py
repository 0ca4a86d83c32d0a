"""Images and labels in folders of any form, by patterns in which a star stands for the case."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import SimpleITK as sitk

from segcal.data.catalog import DATASETS, OWN, Source
from segcal.data.images import read_single
from segcal.data.readers import RawCase
from segcal.types import UserError

SHOWN = 3  # files in a sentence
QUOTED = "as in 'own/*/image.nii.gz', in quotes"


class Bare(NamedTuple):
    """What patterns found: the folder that holds all files, how to read it, and what to say."""

    root: Path
    source: Source
    notes: tuple[str, ...]


def bare_source(
    name: str, images: Sequence[str], labels: str, classes: Sequence[str] | None
) -> Bare:
    """The cases whose files match patterns: one pattern per channel, and one for labels.

    Without `classes`, every label that is found is a class."""
    if not images or not labels:
        raise UserError("--images and --labels go together: give a pattern for each")
    if name in DATASETS:
        raise UserError(f"{name} is a known data set with a layout of its own; choose another name")
    channels, labels = _alike([*images, labels])[:-1], _alike([*images, labels])[-1]
    found = _found(channels, labels)
    for pattern, files in zip((*channels, labels), found, strict=True):
        if not files:
            raise UserError(f"no file matches {pattern!r}; {_remedy(pattern)}")
    folders = [path.parent for files in found for path in files.values()]
    codes, names, note = _classes(labels, label_values(found[-1].values()), classes)
    reader = partial(_cases, tuple(channels), labels)
    about: Any = {"channels": tuple(channel_names(channels)), "patients_named": False}
    about["recipe"] = OWN
    source = Source(reader, names, codes, **about)
    return Bare(Path(os.path.commonpath(folders)), source, (note,))


def _remedy(pattern: str) -> str:
    """What to do about a pattern that no file matches."""
    folder = Path(os.path.dirname(pattern.partition("*")[0]) or ".")
    if not folder.is_dir():
        return f"there is no folder {folder}"
    if pattern.lower().endswith((".dcm", ".ima")):
        return "of a DICOM series name the folder, as in 'own/*/series'"
    if pattern.count("*") > 1:
        return "several stars stand for the same text"
    below = [path for path in sorted(folder.glob("*")) if not path.name.startswith(".")]
    files = [path for path in below if path.is_file()]
    for other in below if not files else ():
        files = files or [path for path in sorted(other.glob("*")) if path.is_file()]
    if not files:
        return f"{folder} holds no files"
    return f"there are {', '.join(map(str, files[:SHOWN]))}{' ...' * (len(files) > SHOWN)}"


def _alike(patterns: Sequence[str]) -> list[str]:
    """Patterns without `..` and `//`; absolute if one of them is."""
    absolute = any(map(os.path.isabs, patterns))
    return [(os.path.abspath if absolute else os.path.normpath)(each) for each in patterns]


def check_beside(bare: Bare, target: Path) -> None:
    """Raise if a file of the raw data is where the prepared data set goes."""
    for case in bare.source.reader(bare.root):
        for path in (*case.images, *case.labels):
            if path.resolve().is_relative_to(target.resolve()):
                raise UserError(f"{path} lies in {target}; choose another name or --to")


def _cases(images: tuple[str, ...], labels: str, root: Path) -> Iterator[RawCase]:
    """A case for everything that a star stands for, also where some of its files are missing."""
    ids = {id for files in _found(images, labels) for id in files}
    for id in sorted(ids):
        files = [Path(pattern.replace("*", id)) for pattern in (*images, labels)]
        yield RawCase(id, id, tuple(files[:-1]), (files[-1],))


def _found(images: Sequence[str], labels: str) -> list[dict[str, Path]]:
    """What each pattern matches, the labels last; a label map is no image, as `b1_mask.png`."""
    masks = matches(labels)
    used = set(masks.values())
    found = []
    for pattern in images:
        files = matches(pattern).items()
        found.append({id: path for id, path in files if path not in used})
    return [*found, masks]


def matches(pattern: str) -> dict[str, Path]:
    """What the star of a pattern stands for, and the file or DICOM folder that matches."""
    first, star, rest = pattern.partition("*")
    if not star:
        raise UserError(f"{pattern!r} needs a star that stands for the case, {QUOTED}")
    ends = [re.escape(part) for part in rest.split("*")]
    regular = re.compile(f"{re.escape(first)}(?P<id>[^/]+){'(?P=id)'.join(ends)}")
    folder = Path(first if first.endswith(os.sep) else os.path.dirname(first))
    inside = os.path.relpath(pattern, folder)
    files = {}
    for path in sorted(folder.glob(inside)):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and (match := regular.fullmatch(str(path))):
            files[match["id"]] = path
    return files


def label_values(paths: Iterable[Path]) -> list[int]:
    """The whole numbers other than 0 in some label maps.

    Some that cannot be read are said later, all of them at once."""
    values: set[float] = set()
    problem: UserError | None = None
    for path in paths:
        try:
            values.update(np.unique(sitk.GetArrayFromImage(read_single(path))).tolist())
        except UserError as error:
            problem = problem or error
    if problem is not None and not values:
        raise problem
    return sorted(int(value) for value in values if value == int(value) and value != 0)


def _classes(
    labels: str, values: Sequence[int], named: Sequence[str] | None
) -> tuple[Mapping[int, int], tuple[str, ...], str]:
    """Codes of labels, names of classes, and a sentence that says which is which."""
    if not values:
        raise UserError(f"the label maps {labels!r} hold nothing but 0")
    names = list(named or (f"label {value}" for value in values))
    numbered = list(range(1, len(names) + 1))
    if not set(values) <= set(numbered) and len(values) != len(names):
        held, n = ", ".join(map(str, values)), len(names)
        raise UserError(f"{labels!r} holds the labels {held}, and --classes names {n} classes")
    raw = numbered if set(values) <= set(numbered) else values
    codes = {0: 0} | {value: k for k, value in enumerate(raw, start=1)}
    said = ", ".join(f"{value} is {name}" for value, name in zip(raw, names, strict=True))
    return codes, tuple(names), f"labels: {said}"


def channel_names(patterns: Sequence[str]) -> list[str]:
    """Names for channels, from what is fixed in the last parts of their patterns.

    >>> channel_names(["own/*/t1.nii.gz", "own/*/*_flair.nii.gz"])
    ['t1', 'flair']
    """
    names = []
    for pattern in patterns:
        last = re.sub(r"(\.nii)?\.\w+$", "", os.path.basename(pattern.rstrip("/")))
        names.append(last.replace("*", "").strip("_-. "))
    if not all(names) or len(set(names)) < len(names):
        return ["image"] if len(names) == 1 else [f"image {i}" for i in range(1, len(names) + 1)]
    return names
