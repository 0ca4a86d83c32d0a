"""The verb that lists what segcal knows: `segcal list losses`, and so on for every family."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rich.table import Table
from rich.text import Text

from segcal.cli.app import AsJson, listing, show

# The table of each family; a row that is added there is listed here.
FAMILIES = {
    "losses": ("segcal.losses", "LOSSES"),
    "networks": ("segcal.networks", "NETWORKS"),
    "calibrators": ("segcal.calibrators", "CALIBRATORS"),
    "metrics": ("segcal.metrics", "METRICS"),
    "corruptions": ("segcal.corruptions", "CORRUPTIONS"),
    "figures": ("segcal.figures", "FIGURES"),
    "tables": ("segcal.compare.tables", "TABLES"),
}


def _verb(family: str) -> None:
    def verb(as_json: AsJson = False) -> None:
        module, name = FAMILIES[family]
        rows = getattr(import_module(module), name)
        texts = {key: _texts(row) for key, row in rows.items()}
        columns = list(dict.fromkeys(column for text in texts.values() for column in text))
        table = Table("key", *columns)
        for key, text in texts.items():
            table.add_row(key, *(Text(text.get(column, ""), overflow="fold") for column in columns))
        show(texts, table, as_json)

    verb.__doc__ = f"The {family} that segcal knows."
    listing.command(family, epilog=f"Example: segcal list {family} --json")(verb)


def _texts(row: Any) -> dict[str, str]:
    """The label, effect, voxels, settings and citation of a row, if it has them."""
    texts = {}
    for name in ("label", "help", "meaning", "voxels", "settings", "citation"):
        value = getattr(row, name, None)
        if isinstance(value, tuple):
            value = ", ".join(value)
        if isinstance(value, dict):
            value = ", ".join(f"{key}={default}" for key, default in value.items())
        if value:
            texts[name] = str(value)
    if not texts and row.__doc__:  # a family of functions
        texts["help"] = row.__doc__.splitlines()[0]
    return texts


for _family in FAMILIES:
    _verb(_family)
