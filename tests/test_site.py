"""The documentation as a site: it builds without a warning, offline, and what it says of commands
and names is true.
"""

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from inspect import isclass, isfunction
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer
import yaml

from segcal.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
SHELL = re.compile(r"^ *```sh\n(.*?)^ *```$", re.M | re.S)


def name_of(page):
    return str(page.relative_to(ROOT))


class Page(HTMLParser):
    """The anchors of a page, its links, and what a browser would fetch for it."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.fetched = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        elif found.get("src") or (tag == "link" and found.get("href")):
            self.fetched.append(found.get("src") or found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    env = os.environ | {
        "NO_MKDOCS_2_WARNING": "1",
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}


def test_every_page_is_in_the_navigation(pages):
    def files(part):
        if isinstance(part, str):
            return [part]
        return [
            file
            for inner in (part.values() if isinstance(part, dict) else part)
            for file in files(inner)
        ]

    listed = files(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert sorted(listed) == sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
    assert {file.removesuffix(".md") + ".html" for file in listed} <= set(pages)


def test_links_and_anchors_lead_somewhere(site, pages):
    for name, page in pages.items():
        if name == "404.html":  # its links start at the root of a server
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link == "#":
                continue
            path = (site / name).parent / unquote(parts.path) if parts.path else site / name
            target = path.resolve().relative_to(site.resolve()).as_posix()
            target = "index.html" if target == "." else target
            assert (site / target).is_file(), f"{name} links to {link}, which is not there"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, (
                    f"{name} links to {link}: no such anchor"
                )


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent == ROOT], ids=name_of)
def test_anchors_from_outside_exist(page, pages):
    for target in re.findall(
        r"\]\(docs/([^)\s]+\.md(?:#[^)\s]+)?)\)", page.read_text(encoding="utf-8")
    ):
        file, _, anchor = target.partition("#")
        found = pages[file.removesuffix(".md") + ".html"]
        assert not anchor or anchor in found.anchors, (
            f"{page.name} links to docs/{target}: no such anchor"
        )


def test_nothing_is_fetched_from_elsewhere(site, pages):
    for name, page in pages.items():
        assert not [link for link in page.fetched if urlsplit(link).netloc], (
            f"{name} asks the network for something"
        )
    for path in site.rglob("*.css"):
        assert not re.search(
            r"(?:url\(|@import\s+)[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")
        ), path.name


ROOMS = (
    "losses",
    "metrics",
    "calibrators",
    "networks",
    "compare",
    "compare.ranking",
    "compare.tables",
    "figures",
    "report",
)
ALONE = [
    *(
        "corruptions.corrupt",
        "config.run_settings",
        "training.train",
        "predictors.run.open_run",
        "predictors.open_predictor",
        "predictors.ensemble.make_ensemble",
        "scoring.evaluate",
    ),
    *(
        "fitting.calibrate",
        "predicting.predict",
        "data.prepare.prepare",
        "data.catalog.DATASETS",
        "study.plan.read_plan",
    ),
    *(
        "study.runner.run_study",
        "losses.LOSSES",
        "metrics.METRICS",
        "calibrators.CALIBRATORS",
        "networks.NETWORKS",
    ),
    *(
        "corruptions.CORRUPTIONS",
        "compare.tables.TABLES",
        "figures.from_runs.FIGURES",
        "types.UserError",
    ),
]


def test_the_reference_has_every_public_name(pages):
    anchors = set().union(
        *(page.anchors for name, page in pages.items() if name.startswith("api/"))
    )
    lacking = [name for name in ALONE if f"segcal.{name}" not in anchors]
    for room in ROOMS:
        module = importlib.import_module(f"segcal.{room}")
        for name in module.__all__:
            found = getattr(module, name)
            if isfunction(found) or isclass(
                found
            ):  # under our name, or where it is defined if a file has the same name
                lacking += [name] * anchors.isdisjoint(
                    {f"segcal.{room}.{name}", f"{found.__module__}.{name}"}
                )
    assert not lacking, f"the reference lacks {lacking}"


def test_examples_in_docstrings_are_code_and_formulas_are_drawn(site):
    text = (site / "api" / "losses.html").read_text(encoding="utf-8")
    assert "<math " in text
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert 'class="arithmatex"' not in text, path
        assert "api" not in path.parts or "<blockquote>" not in text, (
            f"{path} shows a doctest as a quotation"
        )


@pytest.mark.parametrize("name", ["make_cli_reference", "site_hooks", "doctests"])
def test_what_builds_the_site_does_as_it_says(name, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(
    ("tex", "shape"),
    [
        (r"\sum_k s_k", "mrow(munder(mo mi) msub(mi mi))"),
        (r"\sum_{n=1}^N x", "mrow(munderover(mo mrow(mi mo mn) mi) mi)"),
        (r"\frac\rho2", "mfrac(mi mn)"),
        (r"T_\text{low}", "msub(mi mtext)"),
        (r"\mathrm{CE} < 1.5", "mrow(mi mo mn)"),
    ],
)
def test_formulas_have_the_shape_that_tex_gives_them(tex, shape, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    drawn = ET.fromstring(importlib.import_module("site_hooks").mathml(tex))

    def outline(node):
        return node.tag + (f"({' '.join(map(outline, node))})" if len(node) else "")

    assert outline(drawn[0]) == shape
    assert drawn.get("alttext") == tex


@pytest.mark.parametrize(
    ("tex", "why"),
    [(r"\oint x", r"\\oint"), ("x_", "missing"), ("{x", "brace"), ("x}", "too many")],
)
def test_a_formula_that_cannot_be_drawn_stops_the_build(tex, why, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    with pytest.raises(ValueError, match=why):
        importlib.import_module("site_hooks").mathml(tex)


def test_the_command_line_reference_is_current():
    made = subprocess.run(
        [sys.executable, DOCS / "make_cli_reference.py", "--print"], capture_output=True, check=True
    )
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == made.stdout.decode("utf-8"), (
        "docs/cli.md is not what the command line says now; run: python docs/make_cli_reference.py"
    )


def parse(line):
    """Let the command line read a line as a user would type it, without doing anything; fails as it
    would for them.
    """
    command, words = typer.main.get_command(app), shlex.split(line, comments=True)[1:]
    while hasattr(command, "commands"):
        assert "".join(words[:1]) in command.commands, f"there is no verb {words[:1]}"
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)


def commands(page):
    """The `segcal` lines of a page's shell blocks; what stands in brackets may be left out, and is
    read too.
    """
    for block in SHELL.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(r"\s*(?:\S*/)?segcal ", line):
                yield re.sub(r"[\[\]]", " ", line)


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent.name != "results"], ids=name_of)
def test_commands_are_read_by_the_command_line(page):
    """But for published results, which have the commands of the version that made them."""
    for line in commands(page):
        try:
            parse(line)
        except Exception as error:
            pytest.fail(f"{name_of(page)}: {line.strip()}: {getattr(error, 'message', error)}")


@pytest.mark.parametrize(
    "line",
    ["segcal trane cases", "segcal train --lose ce", "segcal predict runs/ce", "segcal study"],
)
def test_a_false_command_would_be_seen(line):
    with pytest.raises(Exception, match=r"(?i)no verb|no such option|missing"):
        parse(line)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_in_sentences_name_what_there_is(page):
    """`segcal evaluate --noise-series` in a sentence: the verb and its options exist."""
    verbs = typer.main.get_command(app).commands
    for words in re.findall(r"`segcal ([a-z][^`]*)`", page.read_text(encoding="utf-8")):
        verb, *rest = words.split()
        assert verb in verbs, f"{name_of(page)}: there is no verb in `segcal {words}`"
        known = {option for p in verbs[verb].params for option in (*p.opts, *p.secondary_opts)}
        named = {
            word.strip("[]").partition("=")[0] for word in rest if word.strip("[]").startswith("-")
        }
        assert named <= known, f"{name_of(page)}: `segcal {words}` has {sorted(named - known)}"
