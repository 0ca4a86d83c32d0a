"""An audit's folder: a run's files, and `audit.json` with the numbers behind the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from segcal.folders.files import read_json, write_json
from segcal.types import UserError

AUDIT, REPORT = "audit.json", "report.html"
KIND = "audit"
"""The `kind` in `run.json`."""


def is_audit(root: Path) -> bool:
    """Whether a folder holds a finished audit."""
    return (root / AUDIT).is_file()


def read_audit(root: Path) -> dict[str, Any]:
    """The content of `audit.json`."""
    content = read_json(root / AUDIT)
    if not isinstance(content, dict) or "verdict" not in content:
        raise UserError(f"{root / AUDIT} is missing or damaged; audit again with --again")
    return content


def write_audit(root: Path, content: Mapping[str, Any]) -> None:
    """Write `audit.json`."""
    write_json(root / AUDIT, content)
