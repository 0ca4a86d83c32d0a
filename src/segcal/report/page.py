"""From the parts to one HTML file: template, style and scripts, with everything else escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from datetime import date
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from segcal import __version__
from segcal.compare import Results
from segcal.compare.names import method_label, network_label
from segcal.compare.tables import TABLES, Entry, Table
from segcal.figures.looks import looks_of
from segcal.report import appendix
from segcal.report.words import MINUS, listed, number_of


def render(results: Results, parts: Sequence[dict[str, Any]]) -> str:
    """The page from a part per data set."""
    folder = files("segcal.report") / "templates"
    names = ("report.html.j2", "report.css", "report.js", "viewer.js")
    html, css, *scripts = ((folder / name).read_text(encoding="utf-8") for name in names)
    script = "".join(scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    trim: Any = {"trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(autoescape=True, undefined=StrictUndefined, **trim)
    environment.filters |= {"embedded": embedded, "linked": linked}
    methods = dict.fromkeys(method_label(c.method) for c in results.contenders)
    networks = dict.fromkeys(network_label(c.network) for c in results.contenders)
    return environment.from_string(html).render(
        title=f"Calibrated segmentation: {listed(results.datasets)}",
        subtitle=f"{listed(methods)} on {listed(networks)}; {number_of(len(results.runs), 'run')}",
        version=__version__,
        date=date.today().isoformat(),
        css=Markup(css),
        js=Markup(script),
        digest=Markup(digest),
        datasets=parts,
        ranking=TABLES["ranking"](results) if len(parts) > 1 else None,
        colours={key: look.colour for key, look in looks_of(results.contenders).items()},
        number=_number,
        results=results,
        appendix=appendix,
    )


def _number(table: Table, value: float | None, column: int) -> str:
    """A value with the decimals of its column."""
    return table.text(Entry(value), column).replace("-", MINUS)


def embedded(value: Any) -> Markup:
    """JSON that cannot end the script element around it.

    >>> embedded({"name": "</script>"})
    Markup('{"name":"\\\\u003c/script>"}')
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def linked(text: str) -> Markup:
    """A citation with a link at its DOI or arXiv number.

    >>> linked("A & B, doi:10.1/x")
    Markup('A &amp; B, <a href="https://doi.org/10.1/x" rel="noreferrer">doi:10.1/x</a>')
    """
    sites = {"doi": "https://doi.org/", "arXiv": "https://arxiv.org/abs/"}

    def link(match: re.Match[str]) -> str:
        return f'<a href="{sites[match[1]]}{match[2]}" rel="noreferrer">{match[0]}</a>'

    return Markup(re.sub(r"\b(doi|arXiv):([\w./()-]+\w)", link, str(escape(text))))
