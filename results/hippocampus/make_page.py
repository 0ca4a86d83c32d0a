"""Write `docs/results/hippocampus.md` and its figures from the packed studies beside this file.

python results/hippocampus/make_page.py            writes the page and the figures
python results/hippocampus/make_page.py --print    prints the page instead; a test compares that with the file

Every number of the page is computed from the scores (`packed_study.py`, `page_tables.py`); `page.md.j2` holds the words.
"""

from __future__ import annotations

import sys
from typing import Any

import page_tables
import published_rows
from jinja2 import Environment, StrictUndefined
from packed_study import HERE, SEVEN, Study

from segcal.figures import save_figures

PAGE = HERE.parents[1] / "docs" / "results" / "hippocampus.md"
TITLES = {
    "full": "full data",
    "full-last": "full data, last epoch",
    "low": "low data",
    "low-last": "low data, last epoch",
}
FIGURES = ("learning_curves", "reliability", "dice_vs_ece", "sensitivity", "robustness", "rank_heatmap")


def page() -> str:
    """The page as Markdown."""
    studies = {path.name: Study(path.name) for path in sorted(HERE.iterdir()) if (path / "packed.json").is_file()}
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template = environment.from_string((HERE / "page.md.j2").read_text(encoding="utf-8"))
    promise = {title: studies[name] for name, title in TITLES.items() if name in studies}
    names: dict[str, Any] = {name.replace("-", "_"): study for name, study in studies.items()}
    names |= {"MEAN": "mbls class_reduction=mean", "L2": "mbls penalty=l2", "has_full": "full-last" in studies}
    names["all_of_full"] = names["has_full"] and len(studies["full"].keys) == len(SEVEN)
    return template.render(**names, tables=page_tables, rows=published_rows, promise=promise)


def draw() -> None:
    """The figures of the page, beside it."""
    for name in ("low", "full"):
        if (HERE / name / "packed.json").is_file():
            save_figures(Study(name).results, PAGE.parent / name, format="svg", keys=FIGURES)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print(page(), end="")
    else:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(), encoding="utf-8")
        draw()
