"""The report in a browser: numbers, tables as CSV, zoom, confidence after calibration."""

import csv
import io
import json

import pytest
from report_runs import tiny_runs
from test_report_browser import chromium, prints, report, visit  # noqa: F401

from segcal.compare import read_results
from segcal.compare.tables import TABLES


def numbered(page, selector):
    return page.locator(selector).all_inner_texts()


def test_the_decision_comes_first(visit, report):  # noqa: F811
    page = visit(report)
    first = page.locator("#d0-summary > *:not(h2)").first
    assert first.inner_text().startswith("What to use")


@pytest.mark.parametrize(
    ("word", "selector"), [("Table", ".caption"), ("Figure", "figcaption strong")]
)
def test_tables_and_figures_are_numbered_in_their_order(visit, report, word, selector):  # noqa: F811
    page = visit(report)
    texts = page.evaluate(
        f"[...document.querySelectorAll('{selector}')].map((e) => e.textContent.trim())"
    )
    assert len(texts) > 2
    assert [text.split(".")[0] for text in texts] == [
        f"{word} {i}" for i in range(1, len(texts) + 1)
    ]


def test_a_table_downloads_as_csv_with_its_intervals(visit, report):  # noqa: F811
    page = visit(report)
    with page.expect_download() as begun:
        page.locator("#d0-table-discriminative .csv").click()
    assert begun.value.suggested_filename == "d0-table-discriminative.csv"
    with open(begun.value.path(), encoding="utf-8-sig", newline="") as file:
        head, *lines = csv.reader(file)
    results = read_results(tiny_runs())
    table = TABLES["discriminative"](results, results.datasets[0])
    assert len(lines) == len(table.rows)
    for line, row in zip(lines, table.rows, strict=True):
        values = dict(zip(head, line, strict=True))
        assert values["Method"] == row.label
        for header, cell in zip(table.columns, row.cells, strict=True):
            known = values[header.replace(" ↑", "\u00a0↑").replace(" ↓", "\u00a0↓")]
            assert known == "" if cell.value is None else float(known) == pytest.approx(cell.value)


def test_quotes_and_commas_stay_in_their_cells(visit, report):  # noqa: F811
    page = visit(report)
    text = page.evaluate("""() => {
      const table = document.querySelector('#d0-table-discriminative table');
      table.tBodies[0].rows[0].cells[0].textContent = 'a "b", c';
      return csvOf(table);
    }""")
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[1][0] == 'a "b", c'
    assert len({len(row) for row in rows}) == 1


@pytest.mark.parametrize("width", [400, 1280])
def test_zoom_makes_pictures_larger_within_the_page(visit, report, width):  # noqa: F811
    page = visit(report, width=width)
    size = "document.querySelector('.panels canvas').clientWidth"
    before = page.evaluate(size)
    page.locator("input[name=zoom]").fill("4")
    page.wait_for_function(f"() => {size} > {1.5 * before}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_confidence_is_shown_before_and_after_calibration(visit, report):  # noqa: F811
    page = visit(report)
    data = json.loads(page.locator("script[type='application/json']").inner_text())
    fitted = [method["calibrator"] for method in data["methods"]]
    assert any(fitted)
    kinds = page.evaluate(
        "[...document.querySelectorAll('.panels canvas')].map((c) => c.dataset.kind)"
    )
    before = prints(page)[1]
    page.locator("select[name=calibrated]").select_option("after")
    pairs = zip(kinds, before, prints(page)[1], strict=True)
    changed = [kind for kind, old, new in pairs if old != new]
    assert set(changed) == {"confidence"}
    case = data["cases"][0]
    differ = [a != b for a, b in zip(case["confidences"], case["calibrated"], strict=True)]
    assert differ == [bool(name) for name in fitted]
    assert len(changed) == sum(differ)
