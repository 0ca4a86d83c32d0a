"""The report: pictures are the predictions, sentences follow from tests, the page is complete."""

import base64
import io
import itertools
import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from report_runs import full_run, tiny_runs
from scipy.stats import wilcoxon
from synthetic_runs import miss, scores_of
from test_cli import segcal

from segcal.compare import pack, read_results
from segcal.compare.metric_sets import METRIC_SETS
from segcal.compare.ranking import Confidence, Interval
from segcal.compare.tables import TABLES
from segcal.data.catalog import class_colours
from segcal.data.orientation import edges
from segcal.data.slices import volume
from segcal.figures import FIGURES
from segcal.figures.from_runs import median_case
from segcal.folders import calibrator_path, read_scores, write_scores
from segcal.losses import LOSSES
from segcal.metrics import label_map
from segcal.predictors.run import open_run
from segcal.report import build_report, save_report, summaries
from segcal.report.appendix import run_facts
from segcal.report.probabilities import on_confidence
from segcal.report.viewer import chosen_cases, crop, pictures, tiled, viewer_data
from segcal.types import UserError


class Page(HTMLParser):
    """A page as a browser reads it: elements with their attributes, and their text."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def inside(self, tag):
        """The text of each element of a kind."""
        return [text for name, text in self.texts if name == tag]

    @property
    def words(self):
        """Everything that is read."""
        read = " ".join(text for tag, text in self.texts if tag not in ("script", "style"))
        return " ".join(read.replace("\xa0", " ").split())


@pytest.fixture(scope="module")
def tiny():
    return read_results(tiny_runs())


@pytest.fixture(scope="module")
def tiny_page(tiny):
    return build_report(tiny)


@pytest.fixture
def few_figures(monkeypatch):
    """Drawing takes most of the time: one figure is enough where figures do not matter."""
    one = {"risk_coverage": FIGURES["risk_coverage"]}
    monkeypatch.setattr("segcal.report.FIGURES", one)
    monkeypatch.setattr("segcal.report.RELIABILITY", ())
    monkeypatch.setattr("segcal.report.OF_CASES", ())


def opened(address):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.split(",")[1]))))


def untiled(picture, shape, columns):
    """Slices of a sheet, one by one."""
    depth, height, width = shape
    places = [divmod(z, columns) for z in range(depth)]
    return np.stack(
        [picture[r * height : (r + 1) * height, c * width : (c + 1) * width] for r, c in places]
    )


# Pictures
# ------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 6), st.integers(1, 4))
def test_every_slice_of_a_sheet_can_be_found_again(depth, height, width, columns):
    stack = np.random.default_rng(0).integers(0, 255, (depth, height, width), dtype=np.uint8)
    np.testing.assert_array_equal(untiled(tiled(stack, columns), stack.shape, columns), stack)


@pytest.mark.parametrize("budget", [3_000_000, 300_000, 60_000])
def test_pictures_fit_their_budget_whatever_they_show(budget):
    """Noise is the worst there is for PNG; voxels that are shown keep their values."""
    rng = np.random.default_rng(0)
    counts = {"images": 2, "reference": 1, "predictions": 3, "confidences": 3}
    stacks = {
        name: [rng.integers(0, 255, (56, 70, 64), dtype=np.uint8) for _ in range(n)]
        for name, n in counts.items()
    }
    content = pictures(stacks, budget)
    assert sum(len(png) for sheets in content["sheets"].values() for png in sheets) <= budget
    kept = (slice(None, None, content["step"]), *[slice(None, None, content["across"])] * 2)
    for name, sheets in content["sheets"].items():
        for png, stack in zip(sheets, stacks[name], strict=name != "images"):
            sheet = np.asarray(Image.open(io.BytesIO(png)))
            shown = untiled(sheet, content["shape"], content["columns"])
            np.testing.assert_array_equal(shown, stack[kept])
    if budget == 3_000_000:
        assert (content["step"], content["across"]) == (1, 1)


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 39), st.integers(0, 29)), max_size=6))
def test_the_crop_holds_all_foreground(places):
    labels = [np.zeros((20, 40, 30), np.uint8) for _ in range(2)]
    for i, place in enumerate(places):
        labels[i % 2][place] = 1
    part = crop(*labels)
    assert sum(label[part].sum() for label in labels) == sum(label.sum() for label in labels)


def test_the_viewer_shows_the_predictions(tiny):
    """Against inference done here, cropped by hand."""
    data = viewer_data(tiny, "phantom")
    runs = [open_run(folder) for folder in tiny_runs()]
    own = tiny.rows().set_index(["case", "run", "metric", "class"])["value"]
    assert [method["key"] for method in data["methods"]] == ["ce", "mbls"]
    assert [each["colour"] for each in data["classes"]] == [
        None,
        *class_colours(len(data["classes"]) - 1),
    ]
    for case in data["cases"]:
        image, label = volume(runs[0].cases, case["id"])
        logits = [run.logits(image) for run in runs]
        labels = [label.numpy(), *(label_map(each).numpy() for each in logits)]
        part = crop(*labels)
        for address, expected in zip(
            [*case["reference"], *case["predictions"]], labels, strict=True
        ):
            np.testing.assert_array_equal(
                untiled(opened(address), case["shape"], case["columns"]), expected[part]
            )
        for k, run in enumerate(runs):
            sure = untiled(opened(case["confidences"][k]), case["shape"], case["columns"])
            conf = logits[k].softmax(1).amax(1).numpy()[part]
            assert np.abs(data["lowest"] + (1 - data["lowest"]) * sure / 255 - conf).max() < 0.002
            dice = own[case["id"], run.root.name, "dice", "mean"]
            error = own[case["id"], run.root.name, "misplaced", "all"]
            assert case["scores"][k] == f"DSC {dice:.3f} · Misplaced {error:.3f}"
    paper = viewer_data(replace(tiny, metrics=METRIC_SETS["paper"]), "phantom", n_cases=1)
    (case,) = paper["cases"]
    ece, perfect = (own[case["id"], "mbls", key, "all"] for key in ("ece", "ece_perfect"))
    assert case["scores"][1].endswith(f"· ECE {ece:.3f}, if perfect {perfect:.3f}")


def test_the_cases_shown_are_the_extremes(tmp_path):
    cases = [f"c{i}" for i in range(9)]
    for name in ("ce", "mbls"):
        full_run(tmp_path, name, name, cases=cases, scores=scores_of(cases, "AB", seed=len(name)))
    results = read_results([tmp_path])
    rows = results.rows()
    mean = rows[rows["class"].isin(["mean", "all"])].groupby(["metric", "case"])["value"].mean()
    order = mean["dice"].sort_values().index
    expected = {order[0]: "worst DSC", order[-1]: "best DSC", order[4]: "median DSC"}
    found = chosen_cases(results, "organs", 4)
    for case, why in expected.items():
        assert why in found[case]
    assert "worst Misplaced" in found[mean["misplaced"].idxmax()]
    assert len(found) <= 4
    assert chosen_cases(results, "organs", 1) == {order[0]: ["worst DSC"]}
    assert len(chosen_cases(results, "organs", 7)) >= 6
    assert median_case(results, "organs") == order[4]  # the figure of one case shows the same
    assert set(chosen_cases(results, "organs", 99)) == set(cases)


CODES = [
    "".join(p)
    for axes in itertools.permutations(("RL", "AP", "SI"))
    for p in itertools.product(*axes)
]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_are_turned_as_their_letters_say(axis):
    """Against SimpleITK's directions: from top to bottom of a turned slice is the way from one
    letter to the other.
    """
    ways = {
        "R": (-1, 0, 0),
        "L": (1, 0, 0),
        "A": (0, -1, 0),
        "P": (0, 1, 0),
        "S": (0, 0, 1),
        "I": (0, 0, -1),
    }  # in LPS
    for code in CODES:
        image = sitk.DICOMOrient(sitk.Image(2, 2, 2, sitk.sitkUInt8), code)
        order = [0, 1, 2]
        order.append(order.pop(2 - axis))
        turned = sitk.PermuteAxes(image, order) if axis else image
        direction = np.array(turned.GetDirection()).reshape(3, 3)
        found = edges(code, axis)
        for way, flip, start, end in (
            (direction[:, 1], found["flip"][0], found["top"], found["bottom"]),
            (direction[:, 0], found["flip"][1], found["left"], found["right"]),
        ):
            shown = -way if flip else way
            np.testing.assert_allclose(shown, ways[end], atol=1e-9)
            np.testing.assert_allclose(-shown, ways[start], atol=1e-9)
            assert start in "RAS"
    assert edges("LPS", 0)["top"] == "A"
    assert edges(None, 0) == {"flip": [False, False]}


# Words
# ------------------------------------------------------------------------------

CASES = tuple(f"c{i:02d}" for i in range(20))
DECIDE = "DSC, misplaced confidence or NLL"


def summary_of(root, **shifts):
    """The summary of made-up runs, each with its scores moved by a shift."""
    for name, shift in shifts.items():
        full_run(root, name, name, cases=CASES, scores=scores_of(CASES, "AB", shift=shift))
    return summaries(read_results([root]))["organs"]


def test_a_clear_winner_is_named_with_its_numbers(tmp_path):
    summary = summary_of(tmp_path, ce=0.0, ls=-0.2, mbls=1.0)
    rows = read_results([tmp_path]).rows()
    values = rows[rows["class"].isin(["mean", "all"])].pivot_table(
        index="case", columns=["metric", "run"], values="value"
    )
    for metric in ("dice", "misplaced"):
        assert f"{values[metric]['mbls'].mean():.3f}" in summary.lead
    assert summary.lead.startswith("3 methods were compared on organs (20 test cases).")
    assert summary.lead.count("significantly better than CE and LS") == 3
    assert (
        summary.advice
        == "MbLS: no other method is significantly better in DSC, misplaced confidence or NLL."
    )
    largest = max(
        wilcoxon(values["dice"]["mbls"] - values["dice"][other]).pvalue for other in ("ce", "ls")
    )
    assert largest * 3 < 0.05
    assert summary.cautions == []


def test_a_tie_is_reported_as_a_tie(tmp_path):
    scores = scores_of(CASES, "AB")
    for name in ("ce", "mbls"):
        full_run(tmp_path, name, name, cases=CASES, scores=scores)
    summary = summaries(read_results([tmp_path]))["organs"]
    assert "Best mean DSC: CE and MbLS (" in summary.lead
    assert "tied with MbLS" in summary.sections["DSC"]
    assert (
        "No method is significantly better than another in DSC, misplaced confidence or NLL"
        in summary.advice
    )
    assert summary.lead.count("not significantly better than any other") == 3
    assert "No significant difference to MbLS (p\xa0=\xa01)" in summary.sections["DSC"]


def test_a_trade_off_is_reported_as_one(tmp_path):
    """One has the better Dice and the other the better Misplaced, both significantly."""
    one, two = (scores_of(CASES, "AB", shift=shift) for shift in (1.0, 0.0))
    for key in one:
        if key[2] in ("misplaced", "nll"):
            one[key], two[key] = two[key], one[key]
    full_run(tmp_path, "ce", "ce", cases=CASES, scores=one)
    full_run(tmp_path, "mbls", "mbls", cases=CASES, scores=two)
    summary = summaries(read_results([tmp_path]))["organs"]
    assert (
        summary.advice
        == "CE for DSC and MbLS for misplaced confidence and NLL: each method is significantly"
        f" worse than another in {DECIDE}."
    )


def mean_of(scores, metric):
    return np.mean([scores[case, "all", metric] for case in CASES])


def test_the_effect_of_a_calibrator_is_reported_and_tested(tmp_path):
    before, better = scores_of(CASES, "AB"), scores_of(CASES, "AB", shift=0.9)
    worse = scores_of(CASES, "AB", shift=-0.9)
    conditions = ({}, {"calibrator": "ts"}, {"calibrator": "lts"})
    full_run(tmp_path, "ce", cases=CASES, scores=[before, better, worse], conditions=conditions)
    summary = summaries(read_results([tmp_path]))["organs"]
    names = {"misplaced": "misplaced confidence", "nll": "NLL", "ece": "ECE of reference voxels"}
    ts, lts = (
        "; ".join(
            f"{name} {mean_of(before, key):.3f} to {mean_of(after, key):.3f}"
            for key, name in names.items()
        )
        for after in (better, worse)
    )
    assert summary.sections["After TS"] == f"Before and after. Better: CE ({ts})."
    assert summary.sections["After LTS"] == f"Before and after. Worse: CE ({lts})."
    assert f"Apply TS to CE ({ts})." in summary.advice
    assert summary.advice.endswith(f"Do not apply LTS to CE ({lts}).")
    assert "There is only one method" in summary.advice


EFFECTS = {  # significant changes of misplaced confidence and NLL: what is said
    (-1, 0): "Better",
    (0, -1): "Better",
    (-1, -1): "Better",
    (0, 1): "Worse",
    (1, 1): "Worse",
    (-1, 1): "Better in one, worse in the other",
    (0, 0): "No significant change",
}


@pytest.mark.parametrize("signs", EFFECTS)
def test_what_decides_about_a_calibrator_is_over_all_voxels(tmp_path, signs):
    """Whatever the paper's ECE does: here it rises when the others fall, and falls when they rise,
    as with label smoothing."""
    before = scores_of(CASES, "AB")
    after = dict(before)
    for case in CASES:
        for metric, sign in zip(("misplaced", "nll"), signs, strict=True):
            after[case, "all", metric] *= 1 + 0.1 * sign
        after[case, "all", "ece"] *= 1.5 if min(signs) < 0 else 0.5
        before[case, "all", "ece_perfect"], after[case, "all", "ece_perfect"] = 0.021, 0.031
    conditions = ({}, {"calibrator": "ts"})
    full_run(tmp_path, "ce", cases=CASES, scores=[before, after], conditions=conditions)
    summary = summaries(read_results([tmp_path]))["organs"]
    assert f"Before and after. {EFFECTS[signs]}: CE (" in summary.sections["After TS"]
    assert ("Apply TS to CE (" in summary.advice) == (EFFECTS[signs] == "Better")
    assert ("Do not apply TS" in summary.advice) == (EFFECTS[signs] == "Worse")
    if EFFECTS[signs] == "Better":
        for text in (summary.advice, summary.sections["After TS"]):
            assert ", if perfect 0.021 to 0.031)" in text
    paper = summaries(read_results([tmp_path], metrics="paper"))["organs"]
    assert ("Do not apply TS" in paper.advice) == (min(signs) < 0)
    assert "This follows from the paper's metrics." in paper.advice


def test_sentences_name_no_ece_without_what_a_perfect_network_has(tmp_path):
    for loss, perfect in (("ce", 0.031), ("ls", 0.042)):
        scores = scores_of(CASES, "AB", shift=perfect)
        for case in CASES:
            scores[case, "all", "ece_perfect"] = scores[case, "all", "cece_perfect"] = perfect
        full_run(tmp_path, loss, loss, cases=CASES, scores=scores)
    paper = summaries(read_results([tmp_path], metrics="paper"))["organs"]
    for label in ("ECE", "CECE"):
        first, second = paper.sections[label].split(", then ")
        assert "; if perfect 0.042)" in first  # of LS, the better one
        assert re.match(r"CE [\d.]+ \(if perfect 0.031\)\.", second)
    assert "if perfect" not in summaries(read_results([tmp_path]))["organs"].sections["NLL"]


def nll_of_fits(run, **after):
    """The facts of fits: validation NLL before (1.0) and after each calibrator."""
    for name, value in after.items():
        facts = {"temperature": 1.5, "val_nll": {"before": 1.0, "after": value}}
        path = calibrator_path(run, name, "best")
        path.parent.mkdir(exist_ok=True, parents=True)
        path.with_name(f"{name}.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ({"ts": 0.8, "lts": 0.9}, "Apply TS to CE ("),
        ({"ts": 0.9, "lts": 0.8}, "Apply LTS to CE ("),
        ({"ts": 1.1, "lts": 1.2}, "No calibrator lowers the validation NLL of CE."),
        ({"ts": 0.8}, "Apply TS to CE ("),  # the other fit lacks it, so both are named
        (
            {"ts2": 0.8, "ts": 0.9, "lts": 0.9},
            "TS2 lowers the validation NLL of CE most, but does not help on test. There TS to CE (",
        ),
    ],
)
def test_validation_chooses_among_calibrators_that_help(tmp_path, after, told):
    """LTS is the best on test cases, which do not choose."""
    before = scores_of(CASES, "AB")
    scores = [before, *(scores_of(CASES, "AB", shift=shift) for shift in (0.5, 0.9))]
    conditions = [{}, {"calibrator": "ts"}, {"calibrator": "lts"}]
    if "ts2" in after:
        scores.append(before)
        conditions.append({"calibrator": "ts2"})
    full_run(tmp_path, "ce", cases=CASES, scores=scores, conditions=tuple(conditions))
    nll_of_fits(tmp_path / "ce", **after)
    advice = summaries(read_results([tmp_path]))["organs"].advice
    assert told in advice
    assert ("or LTS to CE (" in advice) == (len(after) == 1)
    assert ("it lowers the validation NLL most." in advice) == (
        told.startswith("Apply") and len(after) > 1
    )


@pytest.mark.parametrize(("ratio", "told"), [(1.14, True), (1.03, False), (0.9, True)])
def test_a_better_calibrator_that_spoils_the_volume_is_told(tmp_path, ratio, told):
    before, after = (scores_of(CASES, "AB", shift=shift) for shift in (0.0, 0.9))
    for scores, expected in ((before, 0.98), (after, ratio)):
        for case in CASES:
            scores |= {(case, name, "true_ml"): 2.0 for name in "AB"}
            scores |= {(case, name, "expected_ml"): 2 * expected for name in "AB"}
    conditions = ({}, {"calibrator": "ts"})
    full_run(tmp_path, "ce", cases=CASES, scores=[before, after], conditions=conditions)
    summary = summaries(read_results([tmp_path]))["organs"]
    for text in (summary.advice, summary.sections["After TS"]):
        assert (f"but E/O 0.98 to {ratio:.2f}" in text) == told


@pytest.mark.parametrize("apart", [True, False])
def test_the_temperature_over_all_voxels_stands_beside_the_near_one(apart):
    known = Confidence(*(Interval(mean, 0.1, 0.3) for mean in (math.nan, 0.2, 1.1)))
    every = {"temperature": 1.37, "interval": [1.33, 1.41]}
    fit = {"voxels": "near", "temperature": 1.68, "interval": [1.6, 1.75], "over_all": every}
    told = "one temperature cannot serve both: it is 1.68 near ...; use ts2"
    fit["warnings"] = [told] * apart
    parts = {"confidences": {"ce": known}, "temperatures": {"ce": [fit]}}
    parts["results"] = SimpleNamespace(out_of_fold=False)
    text = on_confidence(SimpleNamespace(names={"ce": "CE"}, **parts))
    assert (
        "CE (nothing predicted, all +0.20; T 1.68 (1.60 to 1.75) near, 1.37 (1.33 to 1.41)" in text
    )
    assert text.endswith("near and over all voxels, for CE: use TS2.") == apart


def test_a_network_that_predicts_nothing_is_not_the_best(tmp_path):
    """Its misplaced confidence, 1, is lower than that of a network that is very unsure."""
    for name, misplaced in (("ce", 1.0), ("ls", 2.3)):
        scores = scores_of(CASES, "AB")
        for case in CASES:
            scores[case, "all", "misplaced"] = misplaced
            if name == "ce":
                miss(scores, case, "A")
                miss(scores, case, "B")
        folder = full_run(tmp_path, name, name, cases=CASES, scores=scores)
        rows = read_scores(folder)
        near = [row | {"voxels": "near"} for row in rows if row["metric"] == "ece"]
        if name == "ce":
            near = [row | {"value": math.nan} for row in near]
        write_scores(folder, [*rows, *near])
    summary = summaries(read_results([tmp_path]))["organs"]
    assert "CE predicts no foreground and misses 40 objects." in summary.lead
    assert (
        "Best mean misplaced confidence of those that predict foreground: LS (2.3" in summary.lead
    )
    assert "CE" not in summary.advice
    tiles = {label: (value, note) for label, value, note in summary.tiles}
    assert tiles["Best Misplaced ↓"][0] == "LS"
    rows = read_scores(tmp_path / "ls")
    no_near = [row | {"value": math.nan} if row["voxels"] == "near" else row for row in rows]
    write_scores(tmp_path / "ls", no_near)
    advice = summaries(read_results([tmp_path]))["organs"].advice
    assert advice == "No method can be recommended: none predicts foreground."


def test_a_network_that_lacks_a_class_is_not_recommended_where_another_has_it(tmp_path):
    for name in ("ce", "ls"):
        full_run(tmp_path, name, name, cases=CASES, scores=scores_of(CASES, "AB"))
    assert summaries(read_results([tmp_path]))["organs"].advice.startswith("No method is signif")
    for name, advice in (("ce", "LS: no other method is significantly"), ("ls", "No method is")):
        folder = tmp_path / name
        info = json.loads((folder / "run.json").read_text())
        info["best"]["never_predicted"] = ["B"]
        (folder / "run.json").write_text(json.dumps(info))
        assert summaries(read_results([tmp_path]))["organs"].advice.startswith(advice)


def test_a_calibrator_that_helps_by_chance_is_not_recommended(tmp_path):
    before = scores_of(CASES, "AB")
    after = dict(before)
    for i, case in enumerate(CASES):
        after[case, "all", "misplaced"] += 0.009 if i % 2 else -0.01
    full_run(
        tmp_path, "ce", cases=CASES, scores=[before, after], conditions=({}, {"calibrator": "ts"})
    )
    summary = summaries(read_results([tmp_path]))["organs"]
    assert "No significant change: CE (" in summary.sections["After TS"]
    assert summary.advice.endswith("TS did not change misplaced confidence or NLL significantly.")


def test_one_case_one_method_and_few_cases_are_reported_as_limits(tmp_path):
    one = ("c0",)
    for name in ("ce", "mbls"):
        full_run(
            tmp_path / "one", name, name, cases=one, scores=scores_of(one, "AB", seed=len(name))
        )
        full_run(
            tmp_path / "few",
            name,
            name,
            cases=CASES[:4],
            scores=scores_of(CASES[:4], "AB", seed=len(name)),
        )
    assert chosen_cases(read_results([tmp_path / "one"]), "organs", 4) == {"c0": ["the only case"]}
    single = summaries(read_results([tmp_path / "one"]))["organs"]
    assert "One test case only" in single.cautions[0]
    assert "One patient does not decide it" in single.advice
    assert "%" not in " ".join(single.sections.values())
    assert "significant" not in single.lead
    few = summaries(read_results([tmp_path / "few"]))["organs"]
    assert few.cautions == [
        "Too few patients for any significant difference in DSC, ASSD, misplaced confidence and"
        " NLL."
    ]
    alone = summaries(read_results([tmp_path / "few" / "ce"]))["organs"]
    assert alone.lead.startswith("1 method was scored on organs (4 test cases). Mean DSC: CE (0.")


def test_missed_objects_are_counted(tmp_path):
    from synthetic_runs import miss

    scores = scores_of(CASES, "AB")
    miss(scores, "c03", "A")
    miss(scores, "c05", "B")
    full_run(tmp_path, "ce", "ce", cases=CASES, scores=scores)
    full_run(tmp_path, "mbls", "mbls", cases=CASES, scores=scores_of(CASES, "AB", shift=0.1))
    text = summaries(read_results([tmp_path]))["organs"].sections["Missed or invented objects"]
    assert text.startswith("Over all cases and classes: CE 2 and MbLS 0.")


def summary_of_two(root, *scores, cases=CASES, classes=("A", "B"), **more):
    """The summary of CE and LS with these scores."""
    for name, own in zip(("ce", "ls"), scores, strict=True):
        full_run(root, name, name, cases=cases, classes=classes, scores=own, **more)
    return summaries(read_results([root]))["organs"]


def test_the_method_that_misses_most_is_not_significantly_better(tmp_path):
    """CE has the better mean where it finds the object, but it misses two of three objects."""
    ce, ls = (scores_of(CASES[:12], "A") for _ in range(2))
    for i, case in enumerate(CASES[:12]):
        ce[case, "A", "assd"], ls[case, "A", "assd"] = 1.9 - 0.1 * i, 2.0
        if i >= 4:
            miss(ce, case, "A")
    summary = summary_of_two(tmp_path, ce, ls, cases=CASES[:12], classes=("A",))
    assert summary.sections["ASSD"].startswith("CE 1.7")
    assert "better than LS" not in summary.sections["ASSD"]
    assert "Significantly worse than LS" in summary.sections["ASSD"]
    assert "Significantly better than CE" in summary.sections["DSC"]


def test_few_large_differences_may_decide_a_test(tmp_path):
    """In Misplaced, CE is a little worse in 26 patients and far better in 24."""
    cases = tuple(f"c{i:02d}" for i in range(50))
    ce, ls = (scores_of(cases, "AB") for _ in range(2))
    for i, case in enumerate(cases):
        ls[case, "all", "misplaced"] = 0.5
        ce[case, "all", "misplaced"] = 0.501 + 1e-5 * i if i < 26 else 0.4 - 1e-3 * i
    summary = summary_of_two(tmp_path, ce, ls, cases=cases)
    assert re.search(
        r"Best mean misplaced confidence: CE \(0\.\d+: .*?\), significantly better than LS\.",
        summary.lead,
    )
    (row,) = TABLES["tests"](read_results([tmp_path])).rows
    assert row.cells[4].value > 0  # which alone would be read as worse
    assert (row.cells[5].best, row.cells[5].note) == (True, "CE better")


def test_a_better_mean_may_be_significantly_worse(tmp_path):
    """One outlier of LS decides the means; in all other patients, and by the test, LS is better."""
    ce, ls = (scores_of(CASES, "AB") for _ in range(2))
    for i, case in enumerate(CASES):
        ce[case, "all", "misplaced"], ls[case, "all", "misplaced"] = (
            0.1,
            0.09 - 0.001 * i if i else 0.9,
        )
    conditions = ({}, {"calibrator": "ts"})
    summary = summary_of_two(tmp_path / "two", ce, ls)
    assert "Best mean misplaced confidence: CE" in summary.lead
    assert "but significantly worse than LS" in summary.lead
    assert "Significantly worse than LS" in summary.sections["Misplaced confidence"]
    assert summary.advice.startswith(
        "LS: no other method is significantly better in DSC, misplaced confidence or NLL"
    )
    full_run(tmp_path, "alone", "ce", cases=CASES, scores=[ls, ce], conditions=conditions)
    alone = summaries(read_results([tmp_path / "alone"]))["organs"]
    # The mean falls with TS, but Misplaced rises in nearly every patient.
    assert "Mean and test disagree: CE (" in alone.sections["After TS"]
    assert "TS" not in alone.advice


def test_only_the_metric_with_too_few_values_is_named(tmp_path):
    """No method finds the object in most cases: only distances are too few for a test."""
    ce, ls = (scores_of(CASES, "A", shift=shift) for shift in (0.0, 1.0))
    for case in CASES[3:]:
        for scores in (ce, ls):
            scores |= {(case, "A", "assd"): math.nan, (case, "A", "missed"): 1.0}
    summary = summary_of_two(tmp_path, ce, ls, classes=("A",))
    assert summary.cautions == ["Too few patients for any significant difference in ASSD."]
    assert "significantly better than CE" in summary.lead


def test_correctly_empty_cases_count_as_perfect(tmp_path):
    """LS invents objects: CE lacks nothing there, and its rank is explained."""
    ce, ls = (scores_of(CASES, "A", shift=shift) for shift in (0.0, 0.1))
    for case in CASES[:8]:
        miss(ls, case, "A")
        ce |= {(case, "A", "dice"): math.nan, (case, "A", "assd"): math.nan}
    summary = summary_of_two(tmp_path, ce, ls, classes=("A",))
    assert summary.cautions == []
    assert summary.sections["ASSD"].startswith("CE")
    text = summary.sections["Missed or invented objects"]
    assert "ranks count a correctly empty prediction as perfect" in text


def test_a_metric_without_any_mean_is_left_out(tmp_path):
    ce, ls = (scores_of(CASES, "A") for _ in range(2))
    for case in CASES:
        miss(ls, case, "A")
        miss(ce, case, "A")
    ce |= {(CASES[0], "A", "dice"): math.nan, (CASES[0], "A", "missed"): 0.0}
    summary = summary_of_two(tmp_path, ce, ls, classes=("A",))
    assert "ASSD" not in summary.sections
    assert "DSC" in summary.sections


# The page
# ------------------------------------------------------------------------------


def test_the_page_needs_no_other_file(tiny_page):
    page = Page(tiny_page)
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        if "src" in attributes:
            assert attributes["src"].startswith("data:image/")
        if tag == "a":
            assert attributes["href"].startswith(("#", "https://doi.org/", "https://arxiv.org/"))
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"@import|url\(", "".join(page.inside("style")))
    assert page.inside("title") == ["Calibrated segmentation: phantom"]
    assert len(tiny_page) < 5e6


def test_every_link_in_the_page_leads_somewhere_and_identifiers_are_unique(tiny_page):
    page = Page(tiny_page)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.elements:
        if tag == "a" and attributes["href"].startswith("#"):
            assert attributes["href"][1:] in ids
        for name in ("aria-labelledby", "data-from"):
            assert attributes.get(name) is None or attributes[name] in ids


def test_all_tables_figures_and_sources_are_there(tiny, tiny_page):
    page = Page(tiny_page)
    sorts = {attributes.get("data-value") for tag, attributes in page.elements if tag == "td"}
    for make in TABLES.values():
        table = make(tiny, "phantom")
        for row in table.rows if table is not None else ():
            for cell in row.cells:
                assert cell.value is None or repr(float(cell.value)) in sorts
    for text in (
        "Discriminative performance",
        "Reliability per class",
        "Learning curves",
        "Scores per case",
        "ECE, reference voxels",
        "MbLS, if perfect",
        "Over- or underconfident",
        "The paper's ECE and CECE, over reference voxels",
    ):
        assert text in page.words
    assert page.words.index("What to use") < page.words.index("Best DSC")
    for run in tiny.runs.values():
        assert run["id"] in page.words
        assert run["data"]["checksum"] in page.words
        assert run["versions"]["torch"] in page.words
    for method in ("ce", "mbls"):
        assert LOSSES[method].citation in page.words
    assert "Ronneberger et al." in page.words
    assert "Guo et al." in page.words
    assert "@article{murugesan2023calibrating," in tiny_page
    assert "6 train, 1 val, 5 test" in page.words


def test_the_same_runs_give_the_same_page(tiny, few_figures):
    assert build_report(tiny, viewer=False) == build_report(tiny, viewer=False)


def test_a_run_that_was_not_trained_has_settings_without_a_training(tmp_path):
    """An ensemble has no log, no kept epoch and no cost."""
    folder = full_run(tmp_path, "ce")
    info = json.loads((folder / "run.json").read_text())
    trained = dict(run_facts(info | {"folder": folder}))
    assert trained["loss"] == "ce"
    assert trained["seconds of training"] == "3"
    for key in ("best", "seconds", "peak_memory_mb"):
        del info[key]
    del info["settings"]["training"]
    facts = dict(run_facts(info | {"folder": folder}))
    assert set(trained) - set(facts) == {
        "training", "best epoch (from 0)", "seconds of training", "peak memory (MB)",
    }  # fmt: skip


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>&\"'"


def test_packed_runs_give_the_page_without_the_cases(tiny, tmp_path, few_figures):
    pack(tiny_runs(), tmp_path / "packed")
    packed = build_report(read_results([tmp_path / "packed"]))
    assert summaries(read_results([tmp_path / "packed"])) == summaries(tiny)
    assert "There is no slice viewer: " in Page(packed).words


def test_names_cannot_break_out_of_the_page(tmp_path, few_figures):
    classes, cases = (EVIL, "B"), (f"c {EVIL.replace('/', '')}", "c1", "c2")
    for name in ("ce", "mbls"):
        folder = full_run(
            tmp_path, name, name, classes=classes, cases=cases, dataset=EVIL.replace("/", "|"),
            scores=scores_of(cases, classes, seed=len(name)),
        )  # fmt: skip
        folder.rename(tmp_path / f"{name}<b onclick=alert(1)>")
    html = build_report(read_results([tmp_path]))
    page = Page(html)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 1
    assert "b" not in tags
    assert all(not name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert all(a["src"].startswith("data:") for t, a in page.elements if t == "img")
    assert "ce<b onclick=alert(1)>" in page.words
    assert html.count("<script>alert") == 0


def test_data_in_scripts_cannot_end_them(tiny, monkeypatch, few_figures):
    """The viewer's data carry names too."""
    data = viewer_data(tiny, "phantom")
    data["cases"][0]["id"] = EVIL
    data["classes"][1]["name"] = EVIL
    monkeypatch.setattr("segcal.report.viewer_data", lambda *_, **__: data)
    page = Page(build_report(tiny))
    assert [tag for tag, _ in page.elements].count("script") == 2
    carried = json.loads(page.inside("script")[0])
    assert carried["classes"][1]["name"] == EVIL
    assert carried["cases"][0]["id"] == EVIL


def test_without_the_data_a_sentence_replaces_the_viewer(tmp_path, few_figures):
    for folder in tiny_runs():
        shutil.copytree(folder, tmp_path / folder.name)
        info = json.loads((tmp_path / folder.name / "run.json").read_text())
        info["settings"]["data"] = str(tmp_path / "gone")
        (tmp_path / folder.name / "run.json").write_text(json.dumps(info))
    page = Page(build_report(read_results([tmp_path])))
    assert "There is no slice viewer: " in page.words
    assert "6 train, 1 val, 5 test" in page.words  # as the runs recorded them
    assert [tag for tag, _ in page.elements].count("script") == 1


def test_several_data_sets_have_a_part_each(tmp_path, few_figures):
    for dataset in ("organs", "bones"):
        for name in ("ce", "mbls"):
            full_run(
                tmp_path,
                f"{dataset}-{name}",
                name,
                dataset=dataset,
                scores=scores_of(CASES, "AB", seed=len(name)),
                cases=CASES,
            )
    html = build_report(read_results([tmp_path]), viewer=False)
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {"all", "d0-summary", "d1-summary", "d0-scores", "d1-scores"} <= set(ids)
    assert (
        "Calibrated segmentation: bones and organs" in page.words
        or "organs and bones" in page.words
    )


def test_of_several_seeds_the_first_is_shown(tmp_path):
    """The networks of two seeds differ; the pictures are those of the lower seed."""
    for seed, name in ((4, "late"), (1, "early")):
        source = tiny_runs()[0 if seed == 1 else 1]
        shutil.copytree(source, tmp_path / name)
        info = json.loads((tmp_path / name / "run.json").read_text())
        info["settings"] |= {"seed": seed, "loss": {"name": "ce"}}
        (tmp_path / name / "run.json").write_text(json.dumps(info | {"id": name}))
        head, *rows = (tmp_path / name / "scores.csv").read_text().splitlines()
        rows = [re.sub(r"^([^,]*,[^,]*,[^,]*),\w+,[^,]*,", r"\1,ce,,", row) for row in rows]
        (tmp_path / name / "scores.csv").write_text("\n".join([head, *rows]) + "\n")
    results = read_results([tmp_path / "late", tmp_path / "early"])
    assert results.contenders[0].runs == ("late", "early")
    shown = viewer_data(results, "phantom", n_cases=1)["cases"][0]
    alone = viewer_data(read_results([tmp_path / "early"]), "phantom", n_cases=99)["cases"]
    same = next(case for case in alone if case["id"] == shown["id"])
    assert shown["predictions"] == same["predictions"]
    assert shown["confidences"] == same["confidences"]


# Files and the command line
# ------------------------------------------------------------------------------


def test_a_report_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "report.html"
    save_report(path, "one")
    assert path.read_text() == "one"
    with pytest.raises(UserError, match="is a folder; name a file for the report"):
        save_report(tmp_path, "two")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(UserError, match="cannot write the report to .*: No space left on device"):
        save_report(path, "two")
    monkeypatch.undo()
    assert path.read_text() == "one"
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]


def test_from_the_command_line(tmp_path):
    runs = [str(folder) for folder in tiny_runs()]
    done = segcal("report", *runs, "-o", "out/r.html", "--no-viewer", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    about = json.loads(done.stdout)
    assert about["report"] == "out/r.html"
    assert about["bytes"] == (tmp_path / "out" / "r.html").stat().st_size
    assert about["summary"]["phantom"].startswith(
        "2 methods were compared on phantom (5 test cases)."
    )
    assert "left out, as asked" in (tmp_path / "out" / "r.html").read_text()
    wrong = segcal("report", *runs, "-o", "out", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "segcal: out is a folder" in wrong.stderr


@pytest.mark.parametrize("relu", [False, True])
def test_a_class_that_validation_never_predicts_is_named_with_the_remedy(tmp_path, relu):
    """By the weights that are compared, and in how many of the runs of a method."""
    for seed in (0, 1):
        folder = full_run(
            tmp_path, f"ce{seed}", cases=CASES, scores=scores_of(CASES, "AB", seed=seed)
        )
        info = json.loads((folder / "run.json").read_text())
        info["settings"]["seed"] = seed
        info["settings"]["network"] |= {"last_activation": "relu" if relu else "none"}
        info["settings"]["training"] |= {"class_prior": not relu}
        info["best"]["never_predicted"] = ["A", "B"] if seed else ["B"]
        (folder / "run.json").write_text(json.dumps(info))
    cure = "network.last_activation=none and --set training.class_prior=true"
    remedy = f"train with --set {cure}." if relu else "train for more epochs"
    report = build_report(read_results([tmp_path]))
    start = "CE never predicts B (2 of 2 runs) and A (1 of 2 runs) on validation; "
    (caution,) = [
        line for line in summaries(read_results([tmp_path]))["organs"].cautions if "never" in line
    ]
    assert caution.startswith(start + remedy)
    assert caution in Page(report).words


def test_missing_scores_are_reported_as_cautions(tmp_path):
    """Cells that failed, cases without a value, and an order of distances that counts misses."""
    some = scores_of(CASES, "AB")
    for case in CASES[:3]:
        some[case, "all", "misplaced"] = math.nan
    full_run(tmp_path / "runs", "ce", cases=CASES, scores=some)
    other = scores_of(CASES, "AB", shift=0.5)
    miss(other, CASES[0], "A")
    full_run(tmp_path / "runs", "ls", "ls", cases=CASES, scores=other)
    (tmp_path / "cells.json").write_text(
        json.dumps({"cells": {"svls": {"status": "failed", "error": "no memory."}}})
    )
    summary = summaries(read_results([tmp_path]))["organs"]
    assert summary.cautions[0] == "svls failed and is left out: no memory."
    assert (
        f"CE has no misplaced confidence in 3 of {len(CASES)} cases; its mean is over the others."
        in summary.cautions
    )
    text = summary.sections["Missed or invented objects"]
    assert "ranks count them as the worst" in text
