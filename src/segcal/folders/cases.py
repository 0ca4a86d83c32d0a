"""A prepared data set: a folder `cases/<name>/` with `cases.json` and two arrays per case.

`<id>.image.npy` is (D, C, H, W) float32 in [0, 1], `<id>.label.npy` (D, H, W) uint8, where 255
marks ignored voxels. A slice is one contiguous read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from segcal.folders.files import read_json, sha256, write_json
from segcal.folders.names import path_of
from segcal.folders.schemas import CasesFile, PreparedFile, fault_of
from segcal.types import AnyPath, UserError

CASES = "cases.json"
AGAIN = "prepare the data set again with --again"

IGNORED = 255
"""The stored label of ignored voxels; other labels are 0 (background) to the number of classes."""

FORMAT = 1
"""The version of `cases.json`; raised when older files can no longer be read."""


@dataclass(frozen=True)
class CaseSet:
    """A prepared data set, opened; arrays are memory-mapped when asked for."""

    root: Path
    info: dict[str, Any]

    def __repr__(self) -> str:
        return f"CaseSet({str(self.root)!r}: {len(self.ids)} cases of {', '.join(self.classes)})"

    @property
    def name(self) -> str:
        """The data set's key."""
        return str(self.info["name"])

    @property
    def classes(self) -> tuple[str, ...]:
        """The foreground classes; label 1 is the first."""
        return tuple(self.info["classes"])

    @property
    def channels(self) -> tuple[str, ...]:
        """The image channels (modalities)."""
        return tuple(self.info["channels"])

    @property
    def ids(self) -> tuple[str, ...]:
        """Every case."""
        return tuple(self.info["cases"])

    @property
    def n_folds(self) -> int:
        """How many splits there are: 1, or one per patient in leave-one-out."""
        return len(self.info["splits"])

    def split(self, name: str, fold: int = 0) -> tuple[str, ...]:
        """The case ids of `train`, `val` or `test`."""
        if not 0 <= fold < self.n_folds:
            has = (
                f"{self.root} has {self.n_folds} folds"
                if self.n_folds > 1
                else f"{self.root} has one fold"
            )
            remedy = "segcal prepare --folds N makes more"
            raise UserError(
                f"{has}, so fold must lie in 0..{self.n_folds - 1}; got {fold}; {remedy}"
            )
        if name not in self.info["splits"][fold]:
            raise UserError(f"unknown split {name!r}; choose one of train, val, test")
        return tuple(self.info["splits"][fold][name])

    def case(self, id: str) -> dict[str, Any]:
        """The record of a case in `cases.json`."""
        if id not in self.info["cases"]:
            raise UserError(f"{self.name} has no case {id!r}")
        record: dict[str, Any] = self.info["cases"][id]
        return record

    def image(self, id: str) -> np.memmap[Any, np.dtype[np.float32]]:
        """The image (D, C, H, W), memory-mapped."""
        return _mapped(array_path(self.root, id, "image"))

    def label(self, id: str) -> np.memmap[Any, np.dtype[np.uint8]]:
        """The label map (D, H, W), memory-mapped."""
        return _mapped(array_path(self.root, id, "label"))

    def require_prepared(self) -> None:
        """Refuse a `cases.json` that lacks what preparation writes."""
        if "checksum" not in self.info:
            raise UserError(f"{self.root / CASES} is damaged (it has no checksum); {AGAIN}")

    def check_content(self) -> None:
        """Refuse arrays or splits that were changed after preparation; reads newer files only."""
        self.require_prepared()
        info, index = self.info, self.root / CASES
        if content_checksum(info["cases"], info["classes"], info["splits"]) != info["checksum"]:
            raise UserError(f"{index} was edited; {AGAIN}")
        written = index.stat().st_mtime_ns
        for id, record in self.info["cases"].items():
            for kind, known in record["sha256"].items():
                path = array_path(self.root, id, kind)
                same = path.is_file()
                if same and path.stat().st_mtime_ns > written:
                    same = sha256(path) == known
                if not same:
                    raise UserError(f"{path} is not what was prepared; {AGAIN}")


def content_checksum(
    records: Mapping[str, Any], classes: Sequence[str], splits: Sequence[Any]
) -> str:
    """The checksum of a data set: of its arrays, classes and splits."""
    content = [(id, record["sha256"]) for id, record in records.items()]
    return hashlib.sha256(json.dumps([content, classes, splits]).encode()).hexdigest()


def array_path(root: Path, id: str, kind: str) -> Path:
    """The file of a case's `image` or `label` array."""
    return path_of(root, id, f".{kind}.npy")


def _mapped(path: Path) -> np.memmap[Any, Any]:
    try:
        return cast("np.memmap[Any, Any]", np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}); {AGAIN}") from None


def is_case_set(root: Path) -> bool:
    """Whether a folder is a prepared data set."""
    return (root / CASES).is_file()


def write_cases(root: Path, info: Mapping[str, Any]) -> None:
    """Write `cases.json`."""
    write_json(root / CASES, info)


def open_cases(root: AnyPath) -> CaseSet:
    """Open a prepared data set."""
    root = Path(root)
    if not is_case_set(root):
        problem = f"{root} is not a prepared data set (it has no {CASES})"
        raise UserError(f"{problem}; run segcal prepare first")
    path = root / CASES
    info = read_json(path)
    if not isinstance(info, dict) or not isinstance(info.get("format"), int):
        raise UserError(f"{path} is damaged; {AGAIN}")
    if info["format"] != FORMAT:
        version = f"format {info['format']}, this segcal reads {FORMAT}"
        raise UserError(f"{path} has {version}; {AGAIN}")
    prepared = "checksum" in info
    if fault := fault_of(PreparedFile if prepared else CasesFile, info):
        raise UserError(f"{path} is damaged; {AGAIN} ({fault})")
    return CaseSet(root, info)
