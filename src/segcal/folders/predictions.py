"""The summary of a prediction, beside its images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from segcal.folders.files import read_json
from segcal.folders.result_schemas import SummaryFile
from segcal.folders.schemas import fault_of


def read_summary(path: Path) -> dict[str, Any] | None:
    """The content of a summary; `None` if there is none, or it is damaged."""
    content = read_json(path)
    return None if fault_of(SummaryFile, content) else content
