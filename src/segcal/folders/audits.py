"""An audit's folder: a run's files, and `audit.json` with the numbers behind the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from segcal.folders.files import read_json, write_json
from segcal.folders.result_schemas import AuditFile, OutOfFoldFile
from segcal.folders.schemas import fault_of
from segcal.types import UserError

AUDIT, REPORT = "audit.json", "report.html"
OUT_OF_FOLD = "out_of_fold.json"
CALIBRATED = "calibrated.json"
"""What is beside calibrated maps: where their calibrator comes from."""

KIND = "audit"
"""The `kind` in `run.json`."""


def is_audit(root: Path) -> bool:
    """Whether a folder holds a finished audit."""
    return (root / AUDIT).is_file()


def read_audit(root: Path) -> dict[str, Any]:
    """The content of `audit.json`."""
    return _checked(root / AUDIT, AuditFile)


def write_audit(root: Path, content: Mapping[str, Any]) -> None:
    """Write `audit.json`."""
    write_json(root / AUDIT, content)


def write_out_of_fold(root: Path, fits: Mapping[str, Any]) -> None:
    """Write, for each case, the parameters of calibrators that were fitted without its patient."""
    write_json(root / OUT_OF_FOLD, fits)


def read_out_of_fold(root: Path) -> dict[str, Any]:
    """These parameters by case and calibrator: a list with an entry for each problem."""
    return _checked(root / OUT_OF_FOLD, OutOfFoldFile)


def _checked(path: Path, model: type[BaseModel]) -> dict[str, Any]:
    content = read_json(path)
    if content is None:
        raise UserError(f"{path} is missing or damaged; audit again with --again")
    if fault := fault_of(model, content):
        raise UserError(f"{path} is damaged; audit again with --again ({fault})")
    known: dict[str, Any] = content
    return known


def read_calibrated(root: Path) -> Any:
    """Where the calibrator of the maps in a folder comes from; `None` if they have none."""
    return read_json(root / CALIBRATED)


def write_calibrated(root: Path, content: Mapping[str, Any]) -> None:
    """Write `calibrated.json`."""
    write_json(root / CALIBRATED, content)
