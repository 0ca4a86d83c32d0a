"""The report in a real browser: it sorts, scrolls, has a dark theme, fits a phone and prints."""

import base64
import hashlib
import io
import json
import os
import re
import shutil

import numpy as np
import pytest
from PIL import Image

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = os.environ.get("SEGCAL_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
if BROWSER is None:
    reason = (
        "the report was not tested in a browser: Chromium is missing (install it, or name it in"
        " SEGCAL_CHROMIUM)"
    )
    if os.environ.get("SEGCAL_REQUIRE_BROWSER"):
        raise RuntimeError(reason)
    pytest.skip(reason, allow_module_level=True)

from playwright.sync_api import expect, sync_playwright  # noqa: E402
from report_runs import full_run, tiny_runs  # noqa: E402
from synthetic_runs import scores_of  # noqa: E402

from segcal.compare import read_results  # noqa: E402
from segcal.report import build_report, save_report  # noqa: E402

CASES = [f"case {i}" for i in (1, 2, 10)]


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        args = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=BROWSER, args=args)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    save_report(path, build_report(read_results(tiny_runs())))
    return path


@pytest.fixture
def visit(chromium):
    """Open a page; it must make no error and no request."""
    problems, pages = [], []

    def go(path, width=1280, height=900, **how):
        page = chromium.new_page(viewport={"width": width, "height": height}, **how)
        pages.append(page)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        allowed = re.compile(r"^(data:|blob:)|" + re.escape(path.as_uri()))
        page.on(
            "request",
            lambda r: None if allowed.match(r.url) else problems.append(f"asked for {r.url}"),
        )
        page.goto(path.as_uri())
        page.wait_for_function(
            "() => [...document.querySelectorAll('.viewer')].every((v) => v.dataset.case)"
        )
        return page

    yield go
    for page in pages:
        page.close()
    assert problems == []


def column(page, table, index):
    rows = page.locator(f"#{table} tbody tr")
    return [row.locator("th, td").nth(index).inner_text().split("\n")[0] for row in rows.all()]


def prints(page):
    """A digest of what each canvas shows, with its slice."""
    shown = page.evaluate(
        "[...document.querySelectorAll('.panels canvas')].map((c) => [c.dataset.slice,"
        " c.toDataURL()])"
    )
    return [slice for slice, _ in shown], [
        hashlib.sha256(picture.encode()).hexdigest() for _, picture in shown
    ]


# Tables
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    """A report with a missing value, and case names whose numbers do not sort as words."""
    root = tmp_path_factory.mktemp("awkward")
    for name, first in {"ce": 100.0, "mbls": float("nan")}.items():
        scores = scores_of(CASES, "AB", seed=len(name))
        for case, value in zip(CASES, (first, 10.0, 9.5), strict=True):
            scores[case, "all", "misplaced"] = value
        full_run(root / "runs", name, name, cases=CASES, scores=scores)
    save_report(root / "report.html", build_report(read_results([root / "runs"])))
    return root / "report.html"


def test_a_click_sorts_numbers_and_missing_ones_come_last(visit, awkward):
    page = visit(awkward)
    page.get_by_label("Metric").select_option(label="Misplaced ↓")
    header = page.locator("#d0-case-misplaced thead th").nth(2)
    expect(header).to_have_attribute("aria-sort", "none")
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    assert column(page, "d0-case-misplaced", 2) == ["9.500", "10.000", "—"]
    assert column(page, "d0-case-misplaced", 0) == ["case 10", "case 2", "case 1"]
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "descending")
    assert column(page, "d0-case-misplaced", 2) == ["10.000", "9.500", "—"]
    page.locator("#d0-case-misplaced thead th").nth(1).get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "none")
    assert column(page, "d0-case-misplaced", 1) == ["9.500", "10.000", "100.000"]


def test_keys_sort_too_and_numbers_in_names_count(visit, awkward):
    page = visit(awkward)
    button = page.locator("#d0-case-dice thead th").first.get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    assert column(page, "d0-case-dice", 0) == CASES
    page.keyboard.press("Space")
    assert column(page, "d0-case-dice", 0) == CASES[::-1]


def test_where_more_is_better_the_best_comes_first(visit, report):
    page = visit(report)
    header = page.locator("#d0-table-discriminative thead th").nth(1)
    header.get_by_role("button").click()
    values = [float(text) for text in column(page, "d0-table-discriminative", 1)]
    assert values == sorted(values, reverse=True)
    page.get_by_label("Metric").select_option(label="Misplaced ↓")
    expect(page.locator("#d0-case-misplaced")).to_be_visible()
    expect(page.locator("#d0-case-dice")).to_be_hidden()


# The viewer
# ------------------------------------------------------------------------------


def test_all_panels_move_through_the_slices_together(visit, report):
    page = visit(report)
    slices, before = prints(page)
    assert len(before) == 6  # image and reference; prediction and confidence of two methods
    assert len(set(slices)) == 1
    start = int(slices[0])
    slider = page.locator("input[name=slice]")
    last = int(slider.get_attribute("max"))
    assert last >= 2
    slider.focus()
    page.keyboard.press("ArrowRight" if start < last else "ArrowLeft")
    slices, after = prints(page)
    moved = start + (1 if start < last else -1)
    assert slices == [str(moved)] * 6
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert (
        f"of {page.evaluate('document.querySelector(`.viewer`).viewer.case.slices')}"
        in page.locator("output").inner_text()
    )
    panels = page.locator(".panels")
    panels.focus()
    page.keyboard.press("Home")
    assert prints(page)[0] == ["0"] * 6
    page.keyboard.press("ArrowUp")
    assert prints(page)[0] == ["1"] * 6
    panels.locator("canvas").first.hover()
    page.mouse.wheel(0, 100)
    page.wait_for_function("() => document.querySelector('.panels canvas').dataset.slice === '2'")
    page.keyboard.press("End")
    assert prints(page)[0] == [str(last)] * 6
    page.mouse.move(0, 0)  # the mark of the voxel under the pointer goes
    slider.fill(str(start))
    assert prints(page) == ([str(start)] * 6, before)


def test_the_wheel_scrolls_the_page_until_the_viewer_is_used(visit, report):
    page = visit(report)
    page.locator(".panels canvas").first.hover()
    before, place = prints(page)[0], page.evaluate("scrollY")
    page.mouse.wheel(0, 200)
    page.wait_for_function(f"() => scrollY > {place}")
    assert prints(page)[0] == before


def test_cases_overlays_and_outlines_can_be_chosen(visit, report):
    page = visit(report)
    kinds = ["image", "reference", *["prediction", "confidence"] * 2]

    def changed(before):
        now = prints(page)[1]
        return {kind for kind, a, b in zip(kinds, before, now, strict=True) if a != b}

    before = prints(page)[1]
    page.locator("select[name=overlay]").select_option("errors")
    assert changed(before) == {"prediction"}
    page.locator("select[name=overlay]").select_option("none")
    assert changed(before) == {"reference", "prediction"}
    before = prints(page)[1]
    page.locator("input[name=outline]").uncheck()
    assert changed(before) == {"prediction", "confidence"}
    before = prints(page)[1]
    other = page.locator("select[name=case] option").last.get_attribute("value")
    page.locator("select[name=case]").select_option(other)
    page.wait_for_function(
        "() => { const v = document.querySelector('.viewer').viewer; return v.case ==="
        f" v.data.cases[{other}] }}"
    )
    assert changed(before) == set(kinds)


STORED = """() => {
  const v = document.querySelector('.viewer').viewer;
  const [, height, width] = v.shape;
  const i = Math.floor(height / 2) * width + Math.floor(width / 2);
  return v.data.lowest + (1 - v.data.lowest) * v.now.confidences[0][i] / 255;
}"""


def test_pointing_at_a_voxel_shows_class_and_confidence(visit, report):
    """The confidence under the pointer is the one that was stored."""
    page = visit(report)
    canvas = page.locator("canvas[data-kind=confidence]").first
    canvas.scroll_into_view_if_needed()
    box, (_, height, width) = (
        canvas.bounding_box(),
        page.evaluate("document.querySelector('.viewer').viewer.shape"),
    )
    middle = [(size // 2 + 0.5) / size for size in (width, height)]
    page.mouse.move(box["x"] + box["width"] * middle[0], box["y"] + box["height"] * middle[1])
    read = page.locator(".here").nth(1)
    expect(read).to_contain_text(
        re.compile(r"^(background|body|core|satellite), confidence (0\.\d\d|1\.00)$")
    )
    assert float(re.search(r"[\d.]+$", read.inner_text())[0]) == pytest.approx(
        page.evaluate(STORED), abs=0.0051
    )
    assert page.locator(".here").first.inner_text().startswith("reference: ")


# What the canvases show at the middle of each voxel, and at which slice.
SAMPLED = """() => [...document.querySelectorAll('.panels canvas')].map((canvas) => {
  const [, height, width] = document.querySelector('.viewer').viewer.shape;
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const middle = (i, n, size) => Math.floor((i + 0.5) * size / n);
  const out = [];
  for (let r = 0; r < height; r++) for (let c = 0; c < width; c++) {
    const row = middle(r, height, canvas.height);
    const place = 4 * (row * canvas.width + middle(c, width, canvas.width));
    out.push([data[place], data[place + 1], data[place + 2]]);
  }
  return [canvas.dataset.kind, out];
})"""


def sliced(case, flips, address, z):
    """A slice of a sheet as it should be shown."""
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(address.split(",")[1]))))
    _, height, width = case["shape"]
    row, column = divmod(z, case["columns"])
    picture = sheet[row * height : (row + 1) * height, column * width : (column + 1) * width]
    for axis, flip in enumerate(flips):
        picture = np.flip(picture, axis) if flip else picture
    return picture.ravel()


@pytest.mark.parametrize("key", ["Home", "End"])
def test_every_panel_shows_its_own_slice_voxel_by_voxel(visit, report, key):
    page = visit(report, width=1920)
    page.locator("input[name=outline]").uncheck()
    page.locator(".panels").focus()
    page.keyboard.press(key)
    data = json.loads(page.locator("script[type='application/json']").inner_text())
    case, flips = data["cases"][0], data["edges"]["flip"]
    colours = np.array(data["map"]).reshape(256, 3)
    z = 0 if key == "Home" else case["shape"][0] - 1
    shown = [(kind, np.array(pixels)) for kind, pixels in page.evaluate(SAMPLED)]
    grey = shown[0][1]
    assert [kind for kind, _ in shown] == ["image", "reference", *["prediction", "confidence"] * 2]
    for place, address in (
        (1, case["reference"][0]),
        (2, case["predictions"][0]),
        (4, case["predictions"][1]),
    ):
        marked = np.abs(shown[place][1] - grey).max(1) > 8
        wanted = sliced(case, flips, address, z) > 0
        assert (
            marked == wanted
        ).mean() > 0.97  # the image's own letters and smoothing touch a few voxels
    for place, address in ((3, case["confidences"][0]), (5, case["confidences"][1])):
        wanted = colours[sliced(case, flips, address, z)]
        assert np.abs(shown[place][1] - wanted).max() <= 2
    image = sliced(case, flips, case["images"][0], z)
    assert np.corrcoef(image, grey[:, 0])[0, 1] > 0.9


# The page
# ------------------------------------------------------------------------------


def test_dark_follows_the_system_and_the_button(visit, report):
    page = visit(report, color_scheme="dark")
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    assert max(map(int, re.findall(r"\d+", dark))) < 60
    page.get_by_role("button", name="Light page").click()
    light = page.evaluate(colour)
    assert min(map(int, re.findall(r"\d+", light))) > 200
    page.reload()
    assert page.evaluate(colour) == light
    page.get_by_role("button", name="Dark page").click()
    assert page.evaluate(colour) == dark


@pytest.mark.parametrize("width", [400, 800, 1280, 3840])
def test_nothing_sticks_out_at_any_width(visit, report, width):
    page = visit(report, width=width, height=2160 if width > 2000 else 800)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    beyond = page.evaluate("""() => [...document.querySelectorAll('main *')]
        .filter((e) => !e.closest('.scroll, .picture'))
        .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
        .map((e) => e.outerHTML.slice(0, 80))""")
    assert beyond == []
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('main p, main td')].map((e) =>"
        " parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 12


def test_keys_reach_everything_and_show_where_they_are(visit, report):
    page = visit(report)
    page.keyboard.press("Tab")
    skip = page.get_by_text("Skip to the content")
    expect(skip).to_be_focused()
    assert skip.bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    page.reload()
    reached = set()
    for _ in range(400):
        page.keyboard.press("Tab")
        kind = page.evaluate(
            """() => { const e = document.activeElement, s = getComputedStyle(e);
            const name = e.className || e.name || e.tagName;
            return e === document.body ? '' : `${name}|${s.outlineStyle}` }"""
        )
        if not kind:
            break
        reached.add(kind)
    names = {kind.split("|")[0] for kind in reached}
    assert {
        "sort",
        "case",
        "slice",
        "overlay",
        "outline",
        "panels",
        "SUMMARY",
        "button theme",
    } <= names
    assert all(kind.split("|")[1] not in ("none", "") for kind in reached)


def test_it_prints_whole_and_without_controls(visit, report, tmp_path):
    page = visit(report)
    page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    content = (tmp_path / "report.pdf").read_bytes()
    assert content[:5] == b"%PDF-"
    n_pages = len(re.findall(rb"/Type\s*/Page\b", content))
    assert 3 <= n_pages <= 25
    page.emulate_media(media="print", color_scheme="dark")
    for selector in (".contents", ".theme", ".controls", ".skip"):
        for each in page.locator(selector).all():
            expect(each).to_be_hidden()
    expect(page.locator("#d0-case-dice")).to_be_visible()
    expect(page.locator("#d0-case-misplaced")).to_be_visible()
    expect(page.locator(".panels canvas").first).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    cut = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter((e) => getComputedStyle(e).overflowX !=="
        " 'visible').length"
    )
    assert cut == 0


def test_names_cannot_run_code_in_a_browser(visit, tmp_path):
    """Names from outside are neither run nor loaded."""
    evil = "<img src=x onerror=document.title='broken'><script>document.title='broken'</script>"
    for name in ("ce", "mbls"):
        scores = scores_of(CASES, (evil, "B"), seed=len(name))
        full_run(tmp_path / "runs", name, name, cases=CASES, classes=(evil, "B"), scores=scores)
    save_report(tmp_path / "report.html", build_report(read_results([tmp_path / "runs"])))
    page = visit(tmp_path / "report.html")
    assert page.title() == "Calibrated segmentation: organs"
    assert page.locator("img[src=x]").count() == 0
