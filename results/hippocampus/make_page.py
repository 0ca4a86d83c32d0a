"""Write `docs/results/hippocampus.md` and its figures from the packed studies beside this file.

python results/hippocampus/make_page.py            writes the page and the figures
python results/hippocampus/make_page.py --print    prints the page instead; a test compares that with the file

Every number of the page is computed from the scores by `packed_study.py`; `page.md.j2` holds the words.
"""

from __future__ import annotations

import sys

from jinja2 import Environment, StrictUndefined
from packed_study import HERE, Study, printed, published_change

from segcal.figures import save_figures

PAGE = HERE.parents[1] / "docs" / "results" / "hippocampus.md"
FIGURES = ("learning_curves", "reliability", "dice_vs_ece", "sensitivity", "robustness", "rank_heatmap")


def page() -> str:
    """The page as Markdown."""
    studies = {path.name: Study(path.name) for path in sorted(HERE.iterdir()) if (path / "packed.json").is_file()}
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    template = environment.from_string((HERE / "page.md.j2").read_text(encoding="utf-8"))
    names = {"MEAN": "mbls class_reduction=mean", "L2": "mbls penalty=l2", "has_full": "full-last" in studies}
    by_name = {name.replace("-", "_"): study for name, study in studies.items()}
    return template.render(**by_name, **names, published_change=published_change, printed=printed)


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
