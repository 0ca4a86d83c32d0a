"""Write `docs/results/hippocampus.md`, the page of its details and their figures from the packed
studies beside this file.

Every score on the pages is computed from the test scores (`packed_study.py`) and logs
(`trainings.py`), alone or in a table (`page_tables.py`), or from the bins (`margins.py`); the
templates hold the words. A test makes the pages again and compares."""

from __future__ import annotations

import re
from typing import Any

import margins
import page_tables
import published_rows
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from packed_study import HERE, MARGIN5, Study, margin

from segcal.figures import save_figures

PAGES = HERE.parents[1] / "docs" / "results"
NAMES = {"hippocampus.md": "page.md.j2", "hippocampus-details.md": "details.md.j2"}
STUDIES = {
    "full": "full data",
    "full-last": "full data, last epoch",
    "low": "low data",
    "low-last": "low data, last epoch",
}
VARIANTS = {"MEAN": "mbls class_reduction=mean", "L2": "mbls penalty=l2"}
FIGURES = (
    "learning_curves",
    "reliability",
    "mean_logits",
    "dice_vs_calibration",
    "sensitivity",
    "robustness",
    "rank_heatmap",
)


def pages() -> dict[str, str]:
    """The pages as Markdown, by name."""
    studies = {name: Study(name) for name in STUDIES}
    values: dict[str, Any] = {name.replace("-", "_"): study for name, study in studies.items()}
    values["margin5"] = {name.replace("-", "_"): Study(name, margin5=True) for name in MARGIN5}
    titled = {title: studies[name] for name, title in STUDIES.items()}
    titled5 = {STUDIES[study.name]: study for study in values["margin5"].values()}
    environment = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= values | VARIANTS | {"tables": page_tables, "margins": margins}
    environment.globals |= {"rows": published_rows, "titled": titled, "titled5": titled5}
    environment.globals |= {"titles": STUDIES, "MARGIN5": MARGIN5, "margin": margin}
    return {
        name: _tidy(environment.get_template(source).render()) for name, source in NAMES.items()
    }


def _tidy(text: str) -> str:
    """Never more than one empty line."""
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def draw() -> None:
    """The figures of the pages, beside them."""
    for name in ("low", "full"):
        save_figures(Study(name).results, PAGES / name, format="svg", keys=FIGURES)
    save_figures(
        Study("full", margin5=True).results,
        PAGES / MARGIN5["full"],
        format="svg",
        keys=["mean_logits"],
    )


if __name__ == "__main__":
    for page, written in pages().items():
        (PAGES / page).write_text(written, encoding="utf-8")
    draw()
