"""Whether a prepared set on disk is still what its sources and settings would give."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from segcal.data.catalog import Recipe
from segcal.differences import differences
from segcal.folders import CaseSet
from segcal.folders.files import changed
from segcal.types import UserError


def check_unchanged(
    cases: CaseSet,
    settings: Mapping[str, Any],
    root: Path,
    ids: Collection[str],
    asked: Mapping[str, Any],
) -> None:
    """Raise if a set has other settings than these, or the raw files in `root` have changed.

    `ids` are the cases found there. A set of an older version, which scaled by the range alone,
    stays as it is unless percentiles are `asked` for."""
    old = cases.info["settings"]
    if "percentiles" not in old["recipe"]:
        by_range = list(Recipe.percentiles)
        kept = by_range if asked.get("percentiles") else settings["recipe"]["percentiles"]
        old = old | {"recipe": old["recipe"] | {"percentiles": kept}}
    if old != settings:
        problem = differences(old, settings, str(cases.root))
        raise UserError(f"{problem}; --again replaces it, another --to keeps both")
    if changes := [] if "phantom" in settings else _changes(cases, root, ids):
        rest = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
        problem = f"sources of {cases.root} have changed since it was prepared"
        listed = f"{', '.join(changes[:5])}{rest}"
        raise UserError(f"{problem} ({listed}); --again prepares it again")
    cases.check_content()


def _changes(cases: CaseSet, root: Path, ids: Collection[str]) -> list[str]:
    """Cases that were added or removed, and files whose content has changed."""
    marks = dict(cases.info["left_out_sources"])
    for id in cases.ids:
        marks |= cases.case(id)["sources"]
    others = {*ids} ^ {*cases.ids, *cases.info["left_out"]}
    return sorted(others) + [path for path, mark in marks.items() if changed(root / path, mark)]
