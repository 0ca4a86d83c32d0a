"""README and docs are run: what they say is what happens."""

import contextlib
import io
import re
import textwrap
from itertools import zip_longest
from pathlib import Path

import pytest
from rich.console import Console

import segcal
from segcal.compare.tables import Entry, Row, Table, to_rich

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)


def examples(page):
    """The Python blocks of a page, each with the text block that follows it at once, if any: what
    it should print.
    """
    blocks = [
        (m[1], textwrap.dedent(m[2]), m.start(), m.end()) for m in FENCE.finditer(page.read_text())
    ]
    for block, after in zip_longest(blocks, blocks[1:]):
        if block[0] == "python":
            told = (
                after and after[0] == "text" and not page.read_text()[block[3] : after[2]].strip()
            )
            yield block[1], after[1] if told else None


EXAMPLES = [
    pytest.param(code, told, id=f"{page.name}-{i}")
    for page in PAGES
    if page.name != "recipes.md"  # its blocks share names: tests/test_use_pages.py
    for i, (code, told) in enumerate(examples(page))
]


@pytest.mark.parametrize(("code", "told"), EXAMPLES)
def test_examples_print_what_the_page_says(code, told):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    if told is not None:
        assert out.getvalue() == told


def test_the_readme_has_an_example_with_its_output():
    assert any(
        told and len(code.strip().splitlines()) <= 15 for code, told in examples(ROOT / "README.md")
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http", "mailto")):
            assert (page.parent / target).exists(), (
                f"{page.name} links to {target}, which is not there"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_named_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"`make ([a-z]+)`", page.read_text())) <= targets


def test_versions_agree():
    assert f"## {segcal.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {segcal.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_the_tutorials_comparison_looks_as_the_command_prints_it():
    """Its numbers, put into a table again and printed as to a terminal, are its text."""
    page = (ROOT / "docs" / "tutorial.md").read_text()
    told = re.search(
        r"segcal compare [^\n]*--table calibration\n```\n\n```text\n(.*?)```", page, re.S
    )[1]
    heads, *lines = [
        [text.strip() for text in re.split("[┃│]", line)[1:-1]]
        for line in told.splitlines()
        if line[0] in "┃│"
    ]
    rows = []
    for label, *texts in lines:
        pairs = [[float(part) for part in text.split(" ± ")] for text in texts]
        rows.append(
            Row(label, tuple(Entry(mean, mean - half, mean + half) for mean, half in pairs), label)
        )
    title, notes = told.splitlines()[0].strip(), tuple(told[told.index("┘") + 2 :].splitlines())
    digits = tuple(len(text.split()[0].partition(".")[2]) for text in lines[0][1:])
    table = Table("calibration", title, tuple(heads[1:]), tuple(rows), notes, digits)
    file = io.StringIO()
    console = Console(file=file, width=160, force_terminal=True, color_system="standard")
    console.print(to_rich(table, console))
    printed = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    assert [line.rstrip() for line in printed.splitlines()] == told.splitlines()
