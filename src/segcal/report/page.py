"""From parts to one HTML file: template, style and scripts put together, and everything foreign
escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

from segcal import __version__
from segcal.compare import Results
from segcal.losses import LOSSES
from segcal.metrics import METRICS
from segcal.networks import NETWORKS
from segcal.report import background
from segcal.report.views import TableView
from segcal.report.words import listed, number_of

SECTIONS = {
    "summary": "Summary",
    "tables": "Tables",
    "figures": "Figures",
    "reliability": "Reliability",
    "cases": "Cases",
    "scores": "Scores per case",
}
GRADIENT_STEPS = 9


def render(
    results: Results,
    parts: Sequence[dict[str, Any]],
    across: Sequence[TableView],
    selections: Iterable[TableView],
) -> str:
    """The whole page."""
    source = files("segcal.report") / "templates"
    texts = {
        name: (source / name).read_text(encoding="utf-8")
        for name in ("report.html.j2", "report.css")
    }
    script = "".join(
        (source / name).read_text(encoding="utf-8") for name in ("report.js", "viewer.js")
    )
    environment = Environment(
        loader=DictLoader(texts),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        title=f"Calibrated segmentation: {listed(results.datasets)}",
        subtitle=_subtitle(results),
        version=__version__,
        date=date.today().isoformat(),
        css=Markup(texts["report.css"]),  # ours
        js=Markup(script),
        script_hash=Markup(policy_hash(script)),
        datasets=[_prepared(part) for part in parts],
        across=across,
        selections=list(selections),
        runs=background.run_facts(results),
        data=[
            {"name": name, "facts": background.data_facts(results, name)}
            for name in results.datasets
        ],
        versions=background.version_facts(results),
        bibtex=background.bibtex(),
        references=[(what, linked(text)) for what, text in background.references(results)],
    )


def policy_hash(script: str) -> str:
    """What the page's policy calls its one script by, so that no other runs."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _subtitle(results: Results) -> str:
    methods = [
        LOSSES[key].label for key in LOSSES if any(c.method == key for c in results.contenders)
    ]
    networks = [
        NETWORKS[key].label for key in NETWORKS if any(c.network == key for c in results.contenders)
    ]
    return f"{listed(methods)} on {listed(networks)}; {number_of(len(results.runs), 'run')}"


def _prepared(part: dict[str, Any]) -> dict[str, Any]:
    """A data set's part, with its contents list, and the viewer's data as text."""
    shown = [
        {"key": key, "label": label}
        for key, label in SECTIONS.items()
        if key in ("cases",) or part[key]
    ]
    viewer = part["viewer"]
    if viewer is not None:
        viewer = viewer | {
            "json": embedded(
                viewer | {"labels": {key: METRICS[key].label for key in ("dice", "ece")}}
            )
        }
        viewer |= {"gradient": _gradient(viewer["map"]), "notes": _notes(viewer)}
    return part | {"parts": shown, "viewer": viewer}


def embedded(value: Any) -> Markup:
    """JSON that cannot end the script element it stands in.

    >>> embedded({"name": "</script>"})
    Markup('{"name":"\\\\u003c/script>"}')
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _gradient(table: Sequence[int]) -> str:
    places = [round(i * 255 / (GRADIENT_STEPS - 1)) for i in range(GRADIENT_STEPS)]
    return ",".join("#" + "".join(f"{v:02x}" for v in table[3 * i : 3 * i + 3]) for i in places)


def _notes(viewer: dict[str, Any]) -> list[str]:
    """What is not shown."""
    notes = [
        "Slices are cropped to what the reference or a method marks, with a margin. Confidence is"
        " before any calibrator."
    ]
    if any(case["step"] > 1 or case["across"] > 1 for case in viewer["cases"]):
        notes.append(
            "Large cases are thinned out, so that the report stays small: not every slice or voxel"
            " is shown."
        )
    if any(case["edges"].get("top") for case in viewer["cases"]):
        notes.append(
            "Letters are the patient's right (R), left (L), front (A), back (P), head (S) and feet"
            " (I)."
        )
    if viewer["left_out"]:
        notes.append(f"Not shown: {listed(viewer['left_out'])}.")
    return notes


def linked(text: str) -> Markup:
    """A citation whose doi or arXiv number can be followed.

    >>> linked("A & B, doi:10.1/x")
    Markup('A &amp; B, <a href="https://doi.org/10.1/x" rel="noreferrer">doi:10.1/x</a>')
    """
    homes = {"doi": "https://doi.org/", "arXiv": "https://arxiv.org/abs/"}

    def link(found: re.Match[str]) -> str:
        return f'<a href="{homes[found[1]]}{found[2]}" rel="noreferrer">{found[0]}</a>'

    return Markup(re.sub(r"\b(doi|arXiv):([\w./()-]+\w)", link, str(escape(text))))
