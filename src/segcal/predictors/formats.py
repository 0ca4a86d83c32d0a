"""Which files of a folder are the maps of which case: a function for each format."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import SimpleITK as sitk

from segcal.data.images import read_header
from segcal.folders.files import read_json
from segcal.predictors.nnunet import Description
from segcal.predictors.source import by_stem, listed
from segcal.predictors.volumes import open_volume
from segcal.types import UserError

EXPORT = (
    "export the probabilities (nnU-Net: --npz or --save_probabilities; MONAI: without AsDiscreted)"
)

BACKGROUND = ("0", "background", "bg")


@dataclass(frozen=True)
class Files:
    """The files that a folder holds, by case."""

    format: str
    kind: str
    maps: Mapping[str, tuple[Path, ...]]
    segmentations: Mapping[str, Path]
    classes: tuple[str, ...] = ()  # where the files say so
    in_folders: bool = False  # a folder per case


def files_of(
    root: Path, references: Mapping[str, Path], kind: str | None, facts: Description | None
) -> Files:
    """The files of each case, in the first format that the folder has files of."""
    images, in_folders = by_stem(root), False
    if not images and (images := _in_case_folders(root)):
        in_folders = True
    said = kind or ("regions" if facts is not None and facts.regions else "softmax")
    for ending in (".npz", ".npy"):
        if arrays := by_stem(root, (ending,)):
            maps = {id: (path,) for id, path in arrays.items()}
            stored = {id: path for id, path in images.items() if id in arrays}
            return Files(ending[1:], said, maps, stored)
    if not images:
        raise UserError(f"{root} holds no files with maps; {EXPORT}")
    found = _of_segcal(images) if kind in (None, "softmax") else None
    if found is None and kind in (None, "confidence"):
        found = _confidences(images)
    if kind == "confidence" and found is None:
        names = "<case>_confidence and <case>_seg (or <case>)"
        raise UserError(f"{root} holds no confidence maps beside label maps, named {names}")
    if found is None:
        found = _volumes(root, images, references, said, facts, explicit=kind is not None)
    return replace(found, in_folders=in_folders)


def _in_case_folders(root: Path) -> dict[str, Path]:
    """What MONAI's `SaveImage` writes, a folder per case: `<case>/<case>_<postfix>`, by case; a
    label map, `<case>_seg`, keeps its postfix."""
    held: dict[str, Path] = {}
    for folder in sorted(root.iterdir()):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        for name, path in by_stem(folder).items():
            if name != folder.name and not name.startswith(f"{folder.name}_"):
                continue
            id = name if name.endswith("_seg") else folder.name
            if id in held:
                both = f"{held[id].name} and {path.name}"
                raise UserError(f"{folder} holds {both}, which would be one case; keep one of them")
            held[id] = path
    return held


def _of_segcal(images: Mapping[str, Path]) -> Files | None:
    """What `segcal predict --probabilities` writes: `<case>_prob_<k>_<class>` and `_seg`."""
    maps: dict[str, dict[int, Path]] = defaultdict(dict)
    words: dict[int, str] = {}
    for name, path in images.items():
        if match := re.fullmatch(r"(.+)_prob_(\d+)_(.+)", name):
            maps[match[1]][int(match[2])] = path
            words.setdefault(int(match[2]), match[3])
    if not maps:
        return None
    numbers = list(range(len(words)))
    for id, files in maps.items():
        if sorted(files) != numbers:
            held = listed([path.name for path in files.values()])
            raise UserError(f"case {id!r} has the maps {held} where one for each class is due")
    complete = {id: tuple(of[k] for k in numbers) for id, of in maps.items()}
    first = next(iter(complete))
    classes = tuple(words[k] for k in numbers[1:])
    summary = read_json(complete[first][0].with_name(f"{first}_summary.json"))
    if isinstance(summary, dict) and len(summary.get("classes", ())) == len(classes):
        classes = tuple(summary["classes"])
    return Files("segcal", "softmax", complete, _beside(images, complete, ("_seg",)), classes)


def _beside(
    images: Mapping[str, Path], ids: Mapping[str, object], suffixes: tuple[str, ...]
) -> dict[str, Path]:
    """The label map of each case, named as the case with one of these suffixes."""
    known: dict[str, Path] = {}
    for id in ids:
        for suffix in suffixes:
            if f"{id}{suffix}" in images:
                known.setdefault(id, images[f"{id}{suffix}"])
    return known


def _confidences(images: Mapping[str, Path]) -> Files | None:
    """`<case>_confidence` beside `<case>_seg` or `<case>`."""
    maps = {}
    for name, path in images.items():
        if name.endswith("_confidence") and len(name) > len("_confidence"):
            maps[name.removesuffix("_confidence")] = (path,)
    if not maps:
        return None
    stored = _beside(images, maps, ("_seg", ""))
    if without := set(maps) - set(stored):
        remedy = "put the label map beside it as <case>_seg or <case>"
        raise UserError(f"{listed(without)} has a confidence map but no label map; {remedy}")
    id, (first,) = next(iter(maps.items()))
    summary = read_json(first.with_name(f"{id}_summary.json"))
    known = summary.get("classes") if isinstance(summary, dict) else None
    classes = tuple(known) if isinstance(known, dict) else ()
    return Files("confidence", "confidence", maps, stored, classes)


def _volumes(
    root: Path,
    images: Mapping[str, Path],
    references: Mapping[str, Path],
    kind: str,
    facts: Description | None,
    *,
    explicit: bool,
) -> Files:
    """4D or vector images, a file per case; else a 3D image per class."""
    n_maps = {name: open_volume(path).shape[0] for name, path in _some(images)}
    if max(n_maps.values()) == 1:
        return _class_maps(root, images, references, kind, facts, explicit=explicit)
    maps = {}
    for name, path in images.items():
        if not name.endswith("_seg"):
            # MONAI's SaveImage adds this to the name of a case
            id = name if name in references else name.removesuffix("_trans")
            maps[id] = (path,)
    return Files("volumes", kind, maps, _beside(images, maps, ("_seg",)))


def _some(images: Mapping[str, Path]) -> list[tuple[str, Path]]:
    """The first files, of which one at least holds maps: label maps may be beside them."""
    return list(images.items())[:4]


def _class_maps(
    root: Path,
    images: Mapping[str, Path],
    references: Mapping[str, Path],
    kind: str,
    facts: Description | None,
    *,
    explicit: bool,
) -> Files:
    """`<case>_<class>`, class by name or number; a case's name alone holds its label map, or the
    map of its only class."""
    parts: dict[str, dict[str, Path]] = defaultdict(dict)
    alone = {}
    label_maps = _continued(images)
    for name, path in images.items():
        id = _case_of(name, references or label_maps, complete=bool(references))
        if id == name:
            alone[id] = path
        else:
            parts[id][name[len(id) + 1 :]] = path
    known = bool(references) or facts is not None
    if not explicit and not (parts and known) and _labels_alone(next(iter(images.values()))):
        raise UserError(f"{root} holds label maps only; {EXPORT}")
    if not parts:
        single = {id: (path,) for id, path in alone.items()}
        return Files("class maps", kind, single, {}, ("foreground",))
    words = sorted({word for of in parts.values() for word in of})
    for name in set(alone) - set(references):  # of cases that have no reference
        word = next((word for word in words if name.endswith(f"_{word}")), None)
        if word is not None:
            parts[name.removesuffix(f"_{word}")][word] = alone.pop(name)
    classes, order = _ordered(root, words, kind, facts)
    maps: dict[str, tuple[Path, ...]] = {}
    for id, of in parts.items():
        if missing := set(words) - set(of):
            raise UserError(f"case {id!r} has no map of {listed(missing)}; export every class")
        maps[id] = tuple(of[word] for word in order)
    return Files("class maps", kind, maps, alone, classes)


def _continued(names: Collection[str]) -> set[str]:
    """Names that others continue after a `_`: those of label maps beside the maps of a case."""
    longer: set[str] = set()
    for name in names:
        parts = name.split("_")
        longer |= {"_".join(parts[:n]) for n in range(1, len(parts))}
    return longer & set(names)


def _case_of(name: str, known: Collection[str], *, complete: bool) -> str:
    """The case that a file is of: the longest known one whose name it begins with, else what is
    before its last `_`, unless all are known."""
    parts = name.split("_")
    for n in range(len(parts), 0, -1):
        if "_".join(parts[:n]) in known:
            return "_".join(parts[:n])
    return name if complete or len(parts) == 1 else "_".join(parts[:-1])


def _ordered(
    root: Path, words: list[str], kind: str, facts: Description | None
) -> tuple[tuple[str, ...], list[str]]:
    """The foreground classes, and the words of file names in the order of maps."""
    background = [word for word in words if word.lower() in BACKGROUND]
    foreground = [word for word in words if word not in background]
    if facts is not None:
        names = {re.sub(r"\W+", "-", name.lower()): name for name in facts.classes}
        order = {word: _place(word, facts, names) for word in foreground}
        if None not in order.values() and len(order) == len(facts.classes):
            ranked = sorted(foreground, key=lambda word: order[word] or 0)
            return facts.classes, background + ranked
        held, wanted = ", ".join(foreground), ", ".join(facts.classes)
        raise UserError(f"{root} has maps of {held} where dataset.json names {wanted}")
    if all(word.isdecimal() for word in foreground):
        ranked = sorted(foreground, key=int)
        if [int(word) for word in ranked] != list(range(1, len(ranked) + 1)):
            raise UserError(f"{root} has maps of the classes {', '.join(ranked)}; count from 1")
        return tuple(f"label {int(word)}" for word in ranked), background + ranked
    if len(foreground) == 1:
        return tuple(foreground), background + foreground
    names_held = ", ".join(foreground)
    remedy = "put a dataset.json with labels beside them, or name the files by number"
    raise UserError(f"{root}: which labels {names_held} have is not known; {remedy}")


def _place(word: str, facts: Description, names: Mapping[str, str]) -> int | None:
    """The place of a class in the order of maps, by number or name."""
    if word.isdecimal() and 1 <= int(word) <= len(facts.classes):
        return int(word)
    name = names.get(re.sub(r"\W+", "-", word.lower()))
    return None if name is None else facts.classes.index(name) + 1


def _labels_alone(path: Path) -> bool:
    """Whether an image holds labels: whole numbers by type, or by value, as MONAI writes them."""
    if read_header(path).GetPixelID() not in (sitk.sitkFloat32, sitk.sitkFloat64):
        return True
    try:
        values = next(open_volume(path).classes())
    except UserError:
        return False  # said later, or left out
    return bool(values.max() > 1 and (values == values.round()).all())
