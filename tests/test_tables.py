"""Tables: the right means, marks and sentences from any set of runs, and text that says the same in
every format.
"""

import csv
import io
import itertools
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from rich.console import Console
from synthetic_runs import miss, scores_of, write_run

from segcal.compare import read_results
from segcal.compare.metric_sets import METRIC_SETS
from segcal.compare.ranking import bootstrap_means, counted, rank_results, sum_rank
from segcal.compare.tables import (
    FORMATS,
    NEEDS,
    TABLES,
    Entry,
    Row,
    Table,
    all_tables,
    save_tables,
    to_csv,
    to_latex,
    to_markdown,
    to_rich,
)
from segcal.compare.tables.entries import marks
from segcal.folders import read_scores, write_scores
from segcal.metrics import METRICS
from segcal.types import UserError

CASES = tuple(f"c{i}" for i in range(12))
NOISE = tuple({"corruption": f"gaussian_noise:{s}"} for s in ("0.01", "0.02"))
MAIN_HEADERS = ("DSC ↑", "ASSD ↓ (mm)", "Misplaced ↓", "NLL ↓")


def by_paper(results):
    """The same scores, ordered by the metrics of the paper."""
    return replace(results, metrics=METRIC_SETS["paper"])


def cells_of(table):
    return {row.key: row.cells for row in table.rows}


def notes(table):
    return " ".join(table.notes)


def shown(table, **settings):
    file = io.StringIO()
    console = Console(file=file, **settings)
    console.print(to_rich(table, console), crop=False)
    return file.getvalue()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A little of everything on hippocampus: methods, a variant, another network, calibrators,
    noise, settings.
    """
    root = tmp_path_factory.mktemp("study")
    common = {"dataset": "hippocampus", "classes": ("Anterior", "Posterior"), "cases": CASES}
    common |= {"patients": {case: f"p{i // 2}" for i, case in enumerate(CASES)}}

    def run(name, loss, shift, conditions=({},), **more):
        many = [
            scores_of(CASES, common["classes"], shift=shift + 0.1 * k, seed=7)
            for k in range(len(conditions))
        ]
        for scores in many:
            if loss == "mbls":
                miss(scores, "c3", "Posterior")
        write_run(root, name, loss, scores=many, conditions=conditions, **common, **more)

    posthoc = ({}, {"calibrator": "ts"}, {"calibrator": "lts"})
    run("ce", "ce", 0.0, (*posthoc, *NOISE))
    run("ls1", "ls", 0.1, ({}, {"calibrator": "ts"}), settings={"alpha": 0.1}, val_dice=0.7)
    run("ls2", "ls", 0.9, settings={"alpha": 0.2}, val_dice=0.6)
    run("svls", "svls", 0.2, posthoc)
    run("mbls", "mbls", 0.5, (*posthoc, *NOISE), settings={"margin": 8.0})
    run("l2", "mbls", 0.3, settings={"penalty": "l2"})
    run("plus-ce", "ce", 0.0, network="unetpp")
    run("plus-mbls", "mbls", 0.4, network="unetpp")
    return read_results([root])


# Means, intervals, marks
# ------------------------------------------------------------------------------


def test_the_discriminative_table(study):
    table = TABLES["discriminative"](study)
    assert [row.label for row in table.rows] == ["CE", "LS", "SVLS", "MbLS"]
    parts = ("mean", "Anterior", "Posterior")
    assert table.columns == tuple(
        f"{kind} {metric}" for kind in parts for metric in ("DSC ↑", "ASSD ↓ (mm)")
    )
    assert (table.dataset, table.title) == (
        "hippocampus",
        "Discriminative performance: hippocampus",
    )
    for i, (kind, metric) in enumerate(
        (kind, metric) for kind in parts for metric in ("dice", "assd")
    ):
        values = study.per_case("hippocampus", metric, kind)
        expected = bootstrap_means(values, study.patients("hippocampus"))
        for row in table.rows:
            cell = row.cells[i]
            assert (cell.value, cell.low, cell.high) == pytest.approx(tuple(expected.loc[row.key]))
            assert cell.n == values[row.key].count()
    assert (
        "Mean over 12 test cases ± half of the 95% bootstrap interval over 6 patients (2,000"
        " samples)." in table.notes
    )
    assert (
        "Bold is the best, underlined the second, counting a missed case as the worst distance"
        " anyone had." in table.notes
    )
    assert (
        "Bold is the best mean, underlined the second." in TABLES["calibration"](study).notes
    )  # where nothing is missed


def test_best_and_second_are_marked(study):
    """`shift` orders the methods: mbls, svls, ls, ce, in every metric."""
    table = TABLES["calibration"](study)
    assert table.columns == ("Misplaced ↓", "NLL ↓")
    for key, cells in cells_of(table).items():
        assert {cell.best for cell in cells} == {key == "mbls"}
        assert {cell.second for cell in cells} == {key == "svls"}


@pytest.mark.parametrize("metric", ["dice", "misplaced", "confidence_gap"])
def test_marks_follow_the_direction_of_the_metric(metric):
    values = pd.DataFrame({"a": [-0.1], "b": [0.2], "c": [-0.3], "d": [0.2]})
    expected = {
        "dice": {"b": 1, "d": 1, "a": 2},
        "misplaced": {"c": 1, "a": 2},
        "confidence_gap": {"a": 1, "b": 2, "d": 2},
    }
    assert marks(values, metric) == expected[metric]
    assert (
        METRICS[metric].better
        == {"dice": "higher", "misplaced": "lower", "confidence_gap": "zero"}[metric]
    )
    assert marks(values[["b", "d"]], metric) == {}  # alike
    assert (
        2 not in marks(values[["a", "b"]], metric).values()
    )  # the second of two is no distinction
    assert marks(values * math.nan, metric) == {}


def test_missing_an_object_is_told_and_never_marked_as_success(tmp_path):
    """`easy` has the better mean distance only because it misses the hard case."""
    hard = scores_of(CASES, "AB")
    hard["c5", "B", "assd"] = 40.0
    easy = scores_of(CASES, "AB", shift=-0.001)
    miss(easy, "c5", "B")
    write_run(tmp_path, "hard", "ce", scores=hard, cases=CASES)
    write_run(tmp_path, "easy", "mbls", scores=easy, cases=CASES)
    table = TABLES["discriminative"](read_results([tmp_path]))
    for i, name in enumerate(table.columns):
        found, lost = cells_of(table)["ce"][i], cells_of(table)["mbls"][i]
        if "ASSD" in name and "A ASSD" not in name:
            assert lost.value < found.value
            assert (found.best, lost.best) == (True, False)
            assert (found.n, lost.n, found.note, lost.note) == (12, 11, "", "1 missed")
        elif "DSC" not in name:
            assert (lost.n, lost.note) == (12, "")
    assert "(1 missed)" in to_markdown(table)
    assert "an object was missed or invented, so that it has no distance" in notes(table)


@pytest.fixture(scope="module")
def lossy(tmp_path_factory):
    """CE has no Misplaced in c0 to c3, the hard cases; nobody has a Dice of B in c10 and c11."""
    root = tmp_path_factory.mktemp("lossy")
    for loss, shift in (("ce", 0.1), ("mbls", 0.0), ("ls", -0.1)):
        scores = scores_of(CASES, "AB", shift=shift)
        for case in CASES[:4]:
            scores[case, "all", "misplaced"] = {"ce": math.nan, "mbls": 0.5, "ls": 0.9}[loss]
        for case in CASES[10:]:
            scores |= {(case, "B", "dice"): math.nan, (case, "B", "assd"): math.nan}
        write_run(root, loss, loss, scores=scores, cases=CASES, patients={})
    return read_results([root])


def test_cases_without_a_value_are_counted_beside_the_mean(lossy):
    table = TABLES["calibration"](lossy)
    ce, other = cells_of(table)["ce"], cells_of(table)["mbls"]
    assert (ce[0].n, ce[0].of, ce[0].note) == (8, 12, "4 without")
    assert (other[0].n, other[0].of, other[0].note) == (12, 12, "")
    assert (ce[1].n, ce[1].note) == (12, "")
    assert "in which others have a value, but not CE." in notes(table)
    assert "counting a case without a value as the worst value anyone had" in notes(table)
    for text in (to_markdown(table), to_latex(table), shown(table, width=200)):
        assert "(4 without)" in text
        assert "Without: the number of cases" in text
    assert next(csv.DictReader(io.StringIO(to_csv(table))))["Misplaced ↓ note"] == "4 without"


def test_having_no_value_is_never_marked_as_success(lossy):
    """CE's mean Misplaced is lowest only because its hard cases are missing."""
    cells = cells_of(TABLES["calibration"](lossy))
    assert min(cells, key=lambda key: cells[key][0].value) == "ce"
    assert [key for key in cells if cells[key][0].best] == ["mbls"]
    assert [key for key in cells if cells[key][1].best] == ["ce"]  # of which it has all values
    values = pd.DataFrame({"a": [math.nan, 0.5], "b": [0.1, 0.6], "c": [0.2, 0.55]})
    assert marks(values, "dice") == {"c": 1, "b": 2}


@pytest.mark.parametrize("metric", ["dice", "assd", "misplaced"])
@pytest.mark.parametrize("seed", range(8))
def test_marks_are_the_first_places_of_the_ranks(metric, seed):
    """Law: one rule for both, whatever is missing."""
    rng = np.random.default_rng(seed)
    values = pd.DataFrame(np.round(rng.random((6, 4)), 1), columns=list("abcd"))
    values = values.mask(rng.random(values.shape) < 0.4)
    places = sum_rank({("x", metric): counted(values, metric).mean()})["x", metric]
    best = {key for key, rank in places.items() if rank == places.min() and values[key].count()}
    assert {key for key, mark in marks(values, metric).items() if mark == 1} == (
        best if places.nunique() > 1 else set()
    )


@pytest.fixture(scope="module")
def absent(tmp_path_factory):
    """One class, which is not there in c0 to c2: CE says so, LS invents it; elsewhere CE is a
    little worse.
    """
    root = tmp_path_factory.mktemp("absent")
    for loss, shift in (("ce", 0.0), ("ls", 0.1)):
        scores = scores_of(CASES, "A", shift=shift)
        for case in CASES[:3]:
            miss(scores, case, "A")
            if loss == "ce":
                scores |= {(case, "A", "dice"): math.nan, (case, "A", "missed"): 0.0}
        write_run(root, loss, loss, classes=("A",), scores=scores, cases=CASES, patients={})
    return read_results([root])


def test_an_invented_object_is_charged_and_a_rightly_empty_case_is_not(absent):
    table = TABLES["discriminative"](absent)
    (ce_dice, ce_asd), (ls_dice, ls_asd) = (cells_of(table)[key] for key in ("ce", "ls"))
    assert (ce_dice.n, ce_dice.note, ce_asd.n, ce_asd.note) == (9, "3 empty", 9, "3 empty")
    assert (ls_dice.n, ls_dice.note, ls_asd.n, ls_asd.note) == (12, "", 9, "3 missed")
    assert ls_asd.value < ce_asd.value  # where both have a distance
    assert [cell.best for cell in (ce_dice, ce_asd, ls_dice, ls_asd)] == [True, True, False, False]
    assert (
        "Bold is the better, counting a missed case as the worst distance anyone had and an empty"
        " case as perfect." in (table.notes)
    )
    assert (
        "Empty: the number of cases in which the object is not there and rightly left out"
        in notes(table)
    )
    assert "Without" not in notes(table)
    found = rank_results(absent, "organs", n=50)
    for metric in ("dice", "assd"):  # the same rule
        assert found.sum_rank["organs", metric].to_dict() == {"ce": 1, "ls": 2}
    assert found.means["assd"].loc["ce", "mean"] == ce_asd.value
    assert cells_of(TABLES["ranking"](absent))["ce"][1].best


def test_who_is_better_by_the_test_is_told_where_the_difference_does_not_show_it(tmp_path):
    """CE comes closer in the four cases in which it does not miss the object, of twelve."""
    ce, ls = (scores_of(CASES, "A") for _ in range(2))
    for i, case in enumerate(CASES):
        ce[case, "A", "assd"], ls[case, "A", "assd"] = 1.9 - 0.1 * i, 2.0
        ce[case, "all", "nll"], ls[case, "all", "nll"] = 0.1, 0.2 + 0.01 * i
        if i >= 4:
            miss(ce, case, "A")
        if i == 11:
            miss(ls, case, "A")  # nobody has found it
    write_run(tmp_path, "ce", "ce", classes=("A",), scores=ce, cases=CASES, patients={})
    write_run(tmp_path, "ls", "ls", classes=("A",), scores=ls, cases=CASES, patients={})
    table = TABLES["tests"](read_results([tmp_path]))
    (row,) = table.rows
    cells = dict(zip(table.columns, row.cells, strict=True))
    assert cells["ASSD ↓ difference"].value is None
    assert (cells["ASSD p"].best, cells["ASSD p"].note) == (True, "LS better")
    assert (cells["NLL p"].best, cells["NLL p"].note) == (True, "")  # its difference shows it
    assert cells["NLL ↓ difference"].value < 0
    assert (cells["Misplaced p"].best, cells["Misplaced p"].note) == (False, "")
    assert (
        "over the patients of whom anyone has a value (DSC 12, ASSD 11, Misplaced 12, NLL 12)"
        in notes(table)
    )
    assert "A dash: the median falls on patients in whom one of the two missed an object" in notes(
        table
    )
    assert "Better: by the test" in notes(table)
    json.dumps(table.values(), allow_nan=False)


def test_a_class_that_is_nowhere_is_told_once(lossy):
    table = TABLES["discriminative"](lossy)
    place = table.columns.index("B DSC ↑")
    assert [row.cells[place].note for row in table.rows if row.key != "ce"] == ["", ""]
    assert (
        "Over 10 of 12 cases, as nobody has a value in the others: B DSC ↑, B ASSD ↓ (mm)."
        in table.notes
    )
    assert "nobody has a value" not in notes(TABLES["calibration"](lossy))


def test_regions_are_named_and_calibration_is_not_of_them(tmp_path):
    data = {
        "dataset": "brats",
        "classes": ("NCR", "ED", "ET"),
        "regions": {"TC": [1, 3], "WT": [1, 2, 3]},
        "cases": CASES,
    }
    write_run(tmp_path, "ce", **data)
    write_run(tmp_path, "ls", "ls", **data)
    found = read_results([tmp_path], metrics="paper")
    table = TABLES["discriminative"](found, published=True)
    assert table.columns[::2] == ("mean (region) DSC ↑", "TC (region) DSC ↑", "WT (region) DSC ↑")
    assert cells_of(table)["ce"][0].published == 0.839
    assert "DSC and ASD are of regions (TC is NCR and ET; WT is NCR and ED and ET)" in notes(table)
    assert "Of the raw classes NCR, ED, ET, not of regions." in TABLES["calibration"](found).notes
    assert TABLES["ranking"](found).columns[0] == "DSC rank"


# Other tables
# ------------------------------------------------------------------------------


def test_posthoc_has_a_block_per_calibrator_and_says_who_lacks_it(study):
    table = TABLES["posthoc"](study)
    assert table.columns == ("NLL ↓", "Misplaced ↓", "ECE reference")
    assert list(dict.fromkeys(row.block for row in table.rows)) == ["before", "TS", "LTS"]
    cells = {(row.block, row.key): row.cells for row in table.rows}
    assert cells["LTS", "ls"][0] == Entry(note="not scored")
    assert cells["TS", "ls"][0].value is not None
    for block, calibrator in (("before", ""), ("TS", "ts")):
        for i, metric in enumerate(("nll", "misplaced", "ece")):
            values = study.per_case("hippocampus", metric, "all", calibrator=calibrator)
            assert cells[block, "mbls"][i].value == pytest.approx(values["mbls"].mean())
    assert "Not scored: some runs lack these scores; segcal calibrate" in notes(table)
    second = [cells["LTS", key][0].second for key in ("ce", "svls", "mbls")]
    assert second == [False, True, False]  # among those who have it
    paper = TABLES["posthoc"](by_paper(study))
    heads = tuple(f"{m} ↓ {c}" for m in ("ECE", "CECE") for c in ("Pre", "TS", "LTS"))
    assert paper.columns == heads
    assert cells_of(paper)["mbls"][1].value == cells["TS", "mbls"][2].value


def test_a_calibrator_applies_to_the_main_tables_or_is_refused(study):
    with_ts = TABLES["calibration"](study, calibrator="ts")
    assert with_ts.title == "Calibration with TS: hippocampus"
    for key, cells in cells_of(with_ts).items():
        (row,) = [r for r in TABLES["posthoc"](study).rows if (r.block, r.key) == ("TS", key)]
        assert cells[0].value == row.cells[1].value
    with pytest.raises(
        UserError,
        match="ls1 has no test scores with lts; run segcal calibrate .*ls1 --with lts first",
    ):
        TABLES["calibration"](study, calibrator="lts")
    with pytest.raises(UserError, match="unknown calibrator 'xx'; choose one of ts, ts2, lts, vs"):
        TABLES["calibration"](study, calibrator="xx")


def test_penalty_stands_beside_its_method_and_nowhere_else(study):
    assert TABLES["penalty"](study).columns == MAIN_HEADERS
    table = TABLES["penalty"](by_paper(study), published=True)
    assert [row.label for row in table.rows] == ["MbLS", "MbLS (penalty l2)"]
    assert table.columns == ("DSC ↑", "ASD ↓ (mm)", "ECE ↓", "CECE ↓")
    assert [row.cells[0].published for row in table.rows] == [0.867, 0.864]
    assert [row.cells[1].published for row in table.rows] == [None, None]
    assert all("l2" not in row.key for row in TABLES["calibration"](study).rows)


def test_robustness_has_a_block_per_severity(study):
    table = TABLES["robustness"](study)
    assert list(dict.fromkeys(row.block for row in table.rows)) == [
        "as they are",
        "Gaussian noise 0.01",
        "Gaussian noise 0.02",
    ]
    assert table.columns == MAIN_HEADERS
    noisy = {row.key: row for row in table.rows if row.block == "Gaussian noise 0.02"}
    assert noisy["ls"].cells == (Entry(note="not scored"),) * 4
    expected = study.per_case("hippocampus", "misplaced", "all", corruption="gaussian_noise:0.02")[
        "ce"
    ].mean()
    assert noisy["ce"].cells[2].value == pytest.approx(expected)


def test_backbones_compare_what_was_run_elsewhere_too(study):
    table = TABLES["backbones"](study)
    assert [(row.block, row.key) for row in table.rows] == [
        ("U-Net", "ce"),
        ("U-Net", "mbls"),
        ("U-Net++", "unetpp ce"),
        ("U-Net++", "unetpp mbls"),
    ]
    assert [row.cells[2].best for row in table.rows] == [
        False,
        True,
        False,
        True,
    ]  # within a network


@pytest.fixture(scope="module")
def folds(tmp_path_factory):
    """Two folds of three choose margin 8, the other 5."""
    root = tmp_path_factory.mktemp("folds")
    cases = [f"c{i}" for i in range(9)]
    for fold in range(3):
        for margin in (5.0, 8.0, 10.0):
            write_run(
                root,
                f"m{margin:g}f{fold}",
                "mbls",
                settings={"margin": margin},
                fold=fold,
                cases=cases[3 * fold : 3 * fold + 3],
                val_dice=0.9 if margin == (5.0 if fold == 1 else 8.0) else 0.8,
                regions={"whole": [1, 2]},
            )
    return read_results([root])


def test_where_folds_chose_differently_every_choice_is_marked(folds):
    table = TABLES["selection"](folds)
    assert {row.label: row.cells[0].best for row in table.rows} == {
        "MbLS, margin=5": True,
        "MbLS, margin=8": True,
        "MbLS, margin=10": False,
    }
    marks, regions, rule = table.notes
    assert "each fold chose" in marks
    assert "not of the regions" in regions
    assert "the setting with the best mean validation DSC; test cases take no part" in rule


def test_selection_shows_every_setting_that_was_tried(study):
    table = TABLES["selection"](study)
    found = {row.label: (row.cells[0].value, row.cells[0].best) for row in table.rows}
    assert found["LS, alpha=0.1"] == (0.7, True)
    assert found["LS, alpha=0.2"] == (0.6, False)
    assert found["MbLS, margin=8"] == (0.8, True)
    assert "test cases take no part in the choice" in notes(table)


def test_settings_are_in_the_order_of_their_numbers(tmp_path):
    for margin in (20.0, 5.0, 10.0, 0.5):
        write_run(tmp_path, f"m{margin}", "mbls", settings={"margin": margin})
    table = TABLES["selection"](read_results([tmp_path]))
    assert [row.label for row in table.rows] == [
        f"MbLS, margin={m}" for m in ("0.5", "5", "10", "20")
    ]
    assert to_csv(table).startswith("setting,")


def test_the_ranking_table_is_that_of_the_ranking(study):
    table, found = TABLES["ranking"](study), rank_results(study, "hippocampus")
    assert table.columns[:6] == (
        "DSC rank",
        "ASSD rank",
        "Misplaced rank",
        "NLL rank",
        "sum of ranks",
        "mean case rank",
    )
    assert table.columns[6:8] == ("first overall (%)", "first in DSC (%)")
    for key, cells in cells_of(table).items():
        ranks = found.sum_rank.loc[key].tolist()
        assert [cell.value for cell in cells[:6]] == pytest.approx(
            [*ranks[:5], found.case_rank.loc[key, "mean"]]
        )
        shares = found.stability.loc[key, ["overall", "dice", "assd", "misplaced", "nll"]]
        assert [cell.value for cell in cells[6:]] == pytest.approx((100 * shares).tolist())
        assert cells[4].best == (key == "mbls")


def test_the_table_of_tests(study):
    table, found = TABLES["tests"](study), rank_results(study, "hippocampus").pairwise
    assert [row.label for row in table.rows] == [
        f"{a} − {b}" for a, b in zip(*_pairs(["CE", "LS", "SVLS", "MbLS"]), strict=True)
    ]
    for i, row in enumerate(table.rows):
        assert row.cells[5].value == pytest.approx(found["misplaced"]["p_holm"][i])
        assert row.cells[4].value == pytest.approx(found["misplaced"]["difference"][i])
        assert row.cells[5].best == (found["misplaced"]["p_holm"][i] < 0.05)
    assert "Holm's correction over the 6 pairs" in notes(table)
    assert (
        "DSC, ASSD, Misplaced, NLL: too few patients for any difference to be significant."
        in table.notes
    )


def test_the_table_of_seeds(tmp_path):
    rng = np.random.default_rng(0)
    per_seed = {}
    for loss in ("ce", "ls", "mbls"):
        for seed in range(3):
            scores = scores_of(
                CASES, ("A", "B"), shift=0.2 * (loss == "mbls"), seed=int(rng.integers(1000))
            )
            if seed == 1:
                miss(scores, "c3", "A")
            write_run(
                tmp_path,
                f"{loss}{seed}",
                loss,
                seed=seed,
                cases=CASES,
                classes=("A", "B"),
                scores=scores,
            )
    found = read_results([tmp_path])
    for loss in ("ce", "ls", "mbls"):
        for metric, kind in (("dice", "mean"), ("misplaced", "all"), ("assd", "mean")):
            for seed in range(3):
                text = csv.DictReader((tmp_path / f"{loss}{seed}" / "scores.csv").open())
                rows = [
                    r
                    for r in text
                    if (r["metric"], r["class"]) == (metric, kind) and r["case"] != "pooled"
                ]
                out = {"c3"} if (seed, metric) == (1, "assd") else set()
                values = [float(r["value"]) for r in rows if r["case"] not in out]
                per_seed.setdefault((metric, loss), []).append(sum(values) / len(values))
    table = TABLES["seeds"](found)
    cells = cells_of(table)
    for column, metric in ((0, "dice"), (1, "assd"), (2, "misplaced")):
        groups = [per_seed[metric, loss] for loss in ("ce", "ls", "mbls")]
        for loss, values in zip(("ce", "ls", "mbls"), groups, strict=True):
            cell = cells[loss][column]
            assert cell.value == pytest.approx(np.mean(values))
            assert (cell.high - cell.low) / 2 == pytest.approx(np.std(values, ddof=1))
        within, between = (row.cells[column].value for row in table.rows[-2:])
        assert within**2 == pytest.approx(np.mean([np.var(g, ddof=1) for g in groups]))
        assert between == pytest.approx(np.std([np.mean(g) for g in groups], ddof=1))
        f = (
            3 * between**2 / within**2
        )  # seeds times the variance of means, over the variance within
        p = scipy.stats.f.sf(f, 2, 6)
        assert (
            f"{METRICS[metric].label} {'< 0.0001' if p < 1e-4 else f'{p:.2g}'}" in table.notes[-1]
        )


def test_an_ensemble_takes_no_table_of_seeds_away(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path, f"ce{seed}", "ce", seed=seed, cases=CASES)
    write_run(tmp_path, "ens", "ce", cases=CASES, members=2)
    table = TABLES["seeds"](read_results([tmp_path]))
    assert [row.label for row in table.rows] == ["CE"]


def test_seeds_that_cannot_be_told_from_test_cases_make_no_table(tmp_path):
    write_run(tmp_path / "one", "ce", cases=CASES)
    assert TABLES["seeds"](read_results([tmp_path / "one"])) is None
    for fold, part in ((0, CASES[:6]), (1, CASES[6:])):  # the second seed on the first fold alone
        for seed in (0, 1)[: 2 - fold]:
            write_run(
                tmp_path / "folds", f"ce-s{seed}-f{fold}", "ce", seed=seed, fold=fold, cases=part
            )
    assert TABLES["seeds"](read_results([tmp_path / "folds"])) is None


@pytest.mark.parametrize("same_cases", [True, False])
def test_seeds_are_counted_per_data_set(tmp_path, same_cases):
    """Contenders have the same keys on each; what the other has makes no table, and takes none
    away.
    """
    for dataset, n in (("x", 2), ("y", 1), ("z", 3)):
        cases = CASES if same_cases else tuple(f"{dataset}{case}" for case in CASES)
        for loss, seed in itertools.product(("ce", "ls"), range(n)):
            scores = scores_of(cases, "AB", seed=seed)
            write_run(
                tmp_path,
                f"{dataset}-{loss}{seed}",
                loss,
                seed=seed,
                dataset=dataset,
                cases=cases,
                scores=scores,
            )
    found = read_results([tmp_path])
    assert TABLES["seeds"](found, "y") is None
    for dataset, n in (("x", 2), ("z", 3)):
        table = TABLES["seeds"](found, dataset)
        assert f"A mean over test cases per seed, {n} seeds" in notes(table)
        assert np.isfinite(
            [[cell.value, cell.high - cell.low] for row in table.rows[:2] for cell in row.cells]
        ).all()


def test_a_seed_without_any_value_is_not_passed_over(tmp_path):
    for loss in ("ce", "ls"):
        for seed in range(3):
            scores = scores_of(CASES, ("A", "B"), seed=seed)
            for case in CASES if seed == 2 else ():
                miss(scores, case, "A")
            write_run(
                tmp_path,
                f"{loss}{seed}",
                loss,
                seed=seed,
                cases=CASES,
                classes=("A", "B"),
                scores=scores,
            )
    table = TABLES["seeds"](read_results([tmp_path]))
    assert [row.cells[1].value for row in table.rows] == [None] * 4
    assert all(row.cells[2].value is not None for row in table.rows)
    assert "ASSD —" in table.notes[-1]


def _pairs(names):
    both = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    return [a for a, _ in both], [b for _, b in both]


# The paper's values
# ------------------------------------------------------------------------------


def test_published_values_stand_beside(study, tmp_path):
    with pytest.raises(UserError, match="values of its own metrics only; add --metrics paper"):
        TABLES["calibration"](study, published=True)
    study = by_paper(study)
    table = TABLES["calibration"](study, published=True)
    assert cells_of(table)["ce"][0].published == 0.052
    assert cells_of(table)["mbls"][1].published == 0.088
    assert all(cell.published is not None for row in table.rows for cell in row.cells)
    assert all(
        cell.published is None for row in TABLES["calibration"](study).rows for cell in row.cells
    )
    assert "In brackets the value that the paper has." in table.notes
    assert "its surface distances are in voxels" in notes(
        TABLES["discriminative"](study, published=True)
    )
    assert cells_of(TABLES["posthoc"](study, published=True))["mbls"][2].published == 0.032
    assert all(
        cell.published is None
        for row in TABLES["backbones"](study, published=True).rows
        for cell in row.cells
    )
    write_run(tmp_path, "ce", dataset="own")
    assert "The paper has no values for own; it has for acdc" in notes(
        TABLES["calibration"](read_results([tmp_path], metrics="paper"), published=True)
    )


# Odd sets of runs
# ------------------------------------------------------------------------------


def test_one_method_only(tmp_path):
    write_run(tmp_path, "ce", cases=CASES)
    found = read_results([tmp_path])
    tables = {table.key: table for table in all_tables(found)}
    assert set(tables) == {"discriminative", "calibration", "reference"}
    for table in tables.values():
        assert not any(cell.best or cell.second for row in table.rows for cell in row.cells)
        assert "CE is the only contender: no marks and no ranks." in table.notes
    for key in (
        "ranking",
        "tests",
        "seeds",
        "posthoc",
        "penalty",
        "robustness",
        "backbones",
        "selection",
    ):
        needs = re.escape(NEEDS[key])
        with pytest.raises(UserError, match=f"there is no table {key}: it needs {needs}"):
            all_tables(found, [key])
    with pytest.raises(UserError, match="unknown table 'rank'; choose one of discriminative"):
        all_tables(found, ["rank"])


def test_one_case_only(tmp_path):
    for loss, shift in (("ce", 0.0), ("mbls", 0.5)):
        write_run(tmp_path, loss, loss, cases=("c0",), scores=scores_of(("c0",), "AB", shift=shift))
    found = read_results([tmp_path])
    tables = {table.key: table for table in all_tables(found)}
    assert set(tables) == {"discriminative", "calibration", "reference", "ranking", "selection"}
    for row in tables["calibration"].rows:
        assert (row.cells[0].low, row.cells[0].high, row.cells[0].n) == (None, None, 1)
        assert "±" not in tables["calibration"].text(row.cells[0], 0)
    assert "One test case only: no interval and no test." in tables["calibration"].notes
    assert (
        "With one patient there is nothing to draw: no share of first places."
        in tables["ranking"].notes
    )
    assert cells_of(tables["ranking"])["mbls"][6].value is None


def test_two_cases_of_one_patient(tmp_path):
    write_run(tmp_path, "ce", cases=("c0", "c1"), patients={"c0": "p", "c1": "p"})
    table = TABLES["calibration"](read_results([tmp_path]))
    assert "2 test cases of one patient only: no interval and no test." in table.notes


def test_a_metric_without_any_value(tmp_path):
    for loss in ("ce", "mbls"):
        scores = scores_of(CASES, "AB")
        for case in CASES:
            miss(scores, case, "A")
            miss(scores, case, "B")
        write_run(tmp_path, loss, loss, cases=CASES, scores=scores)
    found = read_results([tmp_path])
    table = TABLES["discriminative"](found)
    for key in ("ce", "mbls"):
        assert cells_of(table)[key][1] == Entry(note="12 missed", of=12)
    assert table.text(table.rows[0].cells[1], 1) == "— (12 missed)"
    assert "mean ASSD ↓ (mm) has no value in any case." in table.notes
    ranking = TABLES["ranking"](found)
    assert "ASSD rank" not in ranking.columns
    assert "ASSD has no value in any case of organs and is left out." in ranking.notes
    assert all(FORMATS[key][1](one) for key in FORMATS for one in all_tables(found))


def test_seeds_are_told(tmp_path):
    for seed in range(3):
        write_run(tmp_path, f"ce{seed}", seed=seed)
    write_run(tmp_path / "more", "ls", "ls")
    assert (
        "Per case the mean over seeds: 3." in TABLES["calibration"](read_results([tmp_path])).notes
    )
    both = read_results([tmp_path, tmp_path / "more"])
    assert "Per case the mean over seeds: CE (3); LS (1)." in TABLES["calibration"](both).notes


def test_unknown_patients_are_told(tmp_path):
    write_run(tmp_path, "ce")
    assert "each counts as a patient of its own" in notes(
        TABLES["calibration"](read_results([tmp_path]))
    )
    write_run(tmp_path / "known", "ce", patients={})  # every case is of another patient
    assert "of its own" not in notes(TABLES["calibration"](read_results([tmp_path / "known"])))


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    root = tmp_path_factory.mktemp("two")
    for dataset, classes, better in (("x", "AB", "mbls"), ("y", "C", "ce")):
        for loss in ("ce", "mbls"):
            scores = scores_of(CASES, classes, shift=0.2 * (loss == better), seed=2)
            write_run(
                root,
                f"{dataset}-{loss}",
                loss,
                dataset=dataset,
                classes=tuple(classes),
                cases=CASES,
                scores=scores,
            )
    return read_results([root])


def test_of_several_data_sets_each_has_its_tables(two):
    table = TABLES["discriminative"](two, "y")
    assert table.columns == ("C DSC ↑", "C ASSD ↓ (mm)")
    assert [(row.block, row.key, row.cells[0].best) for row in table.rows] == [
        ("", "ce", True),
        ("", "mbls", False),
    ]
    assert [t.dataset for t in all_tables(two, ["calibration", "ranking"])] == ["x", "y", ""]
    for dataset in ("z", ""):  # ranks alone are of all
        with pytest.raises(UserError, match=f"unknown data set '{dataset}'; choose one of x, y"):
            TABLES["calibration"](two, dataset)


def test_ranks_over_several_data_sets(two):
    """Each is best on one: over both they are alike."""
    table = TABLES["ranking"](two)
    overall = [row for row in table.rows if row.block == "all data sets"]
    assert [[cell.value for cell in row.cells[:6]] for row in overall] == [
        [1.5, 1.5, 1.5, 1.5, 12.0, 1.5]
    ] * 2
    assert not any(cell.best for row in overall for cell in row.cells)
    assert [row.cells[4].value for row in table.rows if row.block == "y"] == [4.0, 8.0]
    assert "Over all data sets: ranks are of the sums over data sets" in notes(table)


# Text
# ------------------------------------------------------------------------------

ODD = Table(
    "odd_key",
    "100 % of a_b & #c | [d]",
    ("DSC ↑", "gap →0"),
    (
        Row(
            "CE & {Dice}",
            (
                Entry(0.12345, 0.1, 0.2, 5, best=True, published=0.2),
                Entry(-1.0, note="2 missed", published=0.5),
            ),
            "a",
            "x_1",
        ),
        Row("LS", (Entry(second=True), Entry(2.0)), "b", "y"),
    ),
    ("a_note with 5 % | more",),
    (2, 1),
    "data_set",
)


def test_latex_is_escaped_and_complete():
    text = to_latex(ODD)
    assert r"\caption{100 \% of a\_b \& \#c \textbar{} [d]}" in text
    assert r"CE \& \{Dice\} & \textbf{0.12 $\pm$ 0.05} [0.20] & -1.0 (2 missed) [0.5] \\" in text
    assert r"LS & \underline{---} & 2.0 \\" in text
    assert r"& DSC $\uparrow$ & gap $\to$0 \\" in text
    assert r"\multicolumn{3}{l}{\emph{x\_1}} \\" in text
    assert r"\label{tab:odd-key-data-set}" in text
    assert re.sub(r"\\[{}]", "", text).count("{") == re.sub(r"\\[{}]", "", text).count("}")
    lines = [
        line for line in text.splitlines() if line.endswith(r"\\") and "multicolumn" not in line
    ]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {2}
    assert text.isascii()
    for rule in ("toprule", "midrule", "bottomrule"):
        assert f"\\{rule}" in text


def test_wide_latex_is_scaled_to_the_page():
    n = 30
    text = to_latex(
        Table("t", "p < 0.05 > 0", tuple(f"c{i}" for i in range(n)), (Row("a", (Entry(1.0),) * n),))
    )
    assert text.splitlines()[0] == r"% needs \usepackage{booktabs,graphicx}"
    assert r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%" in text
    assert "\\end{tabular}}\n" in text
    assert text.count("{") == text.count("}")
    assert r"p \textless{} 0.05 \textgreater{} 0" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
@pytest.mark.parametrize("n", [1, 30])
def test_latex_compiles_and_fits_the_page(tmp_path, n):
    wide = Table(
        "t",
        "wide",
        tuple(f"column {i}" for i in range(n)),
        (Row("a", (Entry(1.0),) * n),),
        notes=("Mean.",),
    )
    body = "\n".join(to_latex(table) for table in (wide, ODD))
    head = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{head}\n{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout


def test_markdown_has_a_cell_per_column():
    text = to_markdown(ODD)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert r"**0.12 ± 0.05** \[0.20\]" in text
    assert "<u>—</u>" in text
    assert r"- a\_note with 5 % \| more" in text


def test_csv_reads_back_to_the_same_numbers(study):
    assert list(csv.reader(io.StringIO(to_csv(ODD))))[1] == [
        "CE & {Dice}",
        "x_1",
        "0.12345",
        "0.1",
        "0.2",
        "5",
        "0.2",
        "-1.0",
        "0.5",
        "2 missed",
    ]
    table = TABLES["discriminative"](by_paper(study), published=True)
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    for row, read in zip(table.rows, rows, strict=True):
        assert read["method"] == row.label
        for name, cell in zip(table.columns, row.cells, strict=True):
            assert float(read[name]) == cell.value
            assert (float(read[f"{name} low"]), int(read[f"{name} n"])) == (cell.low, cell.n)
            assert float(read[f"{name} paper"]) == cell.published


def test_the_terminal_shows_marks_and_notes():
    text = shown(ODD, force_terminal=True, width=100, color_system="standard")
    assert "\x1b[1m0.12 ± 0.05\x1b[0m [0.20]" in text
    assert "\x1b[4m—\x1b[0m" in text
    assert "[d]" in text  # no markup
    assert "a_note with 5 % | more" in text


def test_without_styles_marks_are_signs_and_the_notes_say_so(study):
    assert "0.12 ± 0.05* [0.20]" in shown(ODD, width=100)
    assert "—+" in shown(ODD, width=100)
    for table in all_tables(study):
        plain, styled = (
            shown(table, width=400),
            shown(table, width=400, force_terminal=True, color_system="standard"),
        )
        marked = any(cell.best for row in table.rows for cell in row.cells)
        assert "Bold" not in plain
        assert "underlined" not in plain
        assert ("* is the " in plain or "*: below" in plain) == marked or table.key == "tests"
        assert ("Bold" in styled) == (marked or table.key == "tests")
    assert "* is the best mean, + the second." in shown(TABLES["calibration"](study), width=100)


@pytest.mark.parametrize("width", [24, 40, 80, 120, 10_000])
@pytest.mark.parametrize("styled", [False, True])
def test_no_number_is_cut_at_any_width(study, width, styled):
    for table in all_tables(by_paper(study), published=True):
        text = shown(
            table,
            width=width,
            **({"force_terminal": True, "color_system": "standard"} if styled else {}),
        )
        text = re.sub(r"\x1b\[\d*m", "", text)
        assert "…" not in text
        frames = [line for line in text.splitlines() if line and line[0] in "┃│┏┡└├"]
        assert width < 80 or max(map(len, frames)) <= width
        lines = " ".join(frames)
        for i in range(len(table.columns)):
            for row in table.rows:
                assert f" {table.text(row.cells[i], i)}" in lines
        for row in table.rows if width >= 80 else ():
            assert text.count(f"│ {row.label} ") >= text.count("┏")  # the labels are in every part


def test_json_holds_everything(study):
    for table in all_tables(by_paper(study), published=True):
        read = json.loads(json.dumps(table.values(), allow_nan=False))
        assert read["title"] == table.title
        assert len(read["rows"]) == len(table.rows)
        assert (
            {len(row["cells"]) for row in read["rows"]}
            == {len(table.columns)}
            == {len(table.digits)}
        )


def test_tables_are_saved_whole_or_not_at_all(study, tmp_path, monkeypatch):
    tables = all_tables(study)
    out = tmp_path / "deep" / "tables"
    paths = save_tables(tables, out)
    assert {path.name for path in paths} == {path.name for path in out.iterdir()}
    assert {path.suffix for path in paths} == {".csv", ".md", ".tex", ".json"}
    assert len(paths) == 3 * len(tables) + 1
    assert (out / "calibration-hippocampus.tex").read_text() == to_latex(tables[1])
    before = {path: path.read_text() for path in paths}
    monkeypatch.setitem(FORMATS, "latex", ("tex", lambda table: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        save_tables(tables[:1], out)
    assert {path: path.read_text() for path in out.iterdir()} == before
    monkeypatch.undo()
    save_tables(tables[:1], out)  # replaces: nothing old stays
    assert {path.name for path in out.iterdir()} == {
        f"discriminative-hippocampus.{e}" for e in ("csv", "md", "tex")
    } | {"tables.json"}
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(
        UserError, match="holds other things than tables; choose a new folder with --out"
    ):
        save_tables(tables, out)
    assert (out / "thesis.txt").read_text() == "mine"
    with pytest.raises(UserError, match="holds other things than tables"):
        save_tables(tables, out / "thesis.txt")


def test_every_table_of_the_study_can_be_written(study):
    tables = all_tables(study)
    assert [table.key for table in tables] == [
        key for key in TABLES if key not in ("seeds", "confidence")
    ]  # it has one seed, and no confidence gaps
    for table in tables:
        for _, write in FORMATS.values():
            assert all(part in write(table) for part in ("MbLS",))
        assert np.isfinite(
            [c.value for row in table.rows for c in row.cells if c.value is not None]
        ).all()


@pytest.mark.parametrize(
    ("n_failed", "told"), [(0, ""), (1, "it failed"), (2, "they failed"), (30, "and 26 more")]
)
def test_failed_cells_of_a_study_are_named_under_its_tables(n_failed, told, tmp_path):
    for name in ("ce", "ls"):
        write_run(tmp_path / "runs", name, name)
    failed = {f"svls_{i}": {"status": "failed", "error": "no memory"} for i in range(n_failed)}
    (tmp_path / "cells.json").write_text(json.dumps({"cells": failed}))
    results = read_results([tmp_path])
    tables = all_tables(results)
    assert {"calibration", "ranking", "tests"} <= {table.key for table in tables}
    for table in tables:
        lines = [note for note in table.notes if "failed" in note]
        assert len(lines) == (1 if n_failed else 0)
        for text in (to_markdown(table), to_latex(table), shown(table, width=200)):
            assert told in text
            assert ("failed" in text) == bool(n_failed)
            plain = text.replace("\\_", "_")
            assert [name in plain for name in failed] == [i < 4 for i in range(n_failed)]


# All voxels, and the paper's
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two methods with every score of calibration; the case c0 has no foreground."""
    root = tmp_path_factory.mktemp("measured")
    for loss, ratio in (("ce", 0.8), ("ls", 3.0)):
        scores = scores_of(CASES, "AB", shift=-ratio / 10)
        for i, case in enumerate(CASES):
            scores[case, "all", "volume_ratio"] = ratio + 0.01 * i
            scores |= {(case, name, "volume_ratio"): ratio + 0.01 * i for name in "AB"}
            scores |= {(case, name, "true_ml"): float(i) for name in "AB"}
            scores |= {(case, name, "expected_ml"): ratio * i + 0.5 for name in "AB"}
            scores |= {(case, name, "misplaced"): ratio for name in "AB"}
            scores[case, "all", "slope"] = 1 / ratio
            scores[case, "all", "ece_perfect"] = 0.07
            scores[case, "all", "cece_perfect"] = 0.05
        scores[CASES[0], "all", "misplaced"] = scores[CASES[0], "all", "nll"] = math.nan
        folder = write_run(root, loss, loss, scores=scores, cases=CASES, patients={})
        rows = read_scores(folder)
        more = [row | {"value": row["value"] / 3} for row in rows if row["metric"] == "ece"]
        near = [row | {"voxels": "near"} for row in more]
        apart = dict(rows[0]) | {"case": CASES[0], "class": "all", "metric": "misplaced"}
        write_scores(folder, [*rows, *near, apart | {"voxels": "empty", "value": 0.25 * ratio}])
    return read_results([root])


def test_calibration_leads_with_all_voxels(measured):
    table = TABLES["calibration"](measured)
    assert table.columns == (
        *("Misplaced ↓", "NLL ↓", "ECE near ↓", "E/O →1", "Slope near →1"),
        *("A Misplaced ↓", "B Misplaced ↓"),
    )
    near = measured.per_case("organs", "ece", "all", voxels="near")
    cells = cells_of(table)
    for key in ("ce", "ls"):
        assert cells[key][2].value == pytest.approx(near[key].mean())
    # Sums over all cases, also over c0, where 0.5 is expected and nothing is there. The first is
    # nearer to 1; the direction is in the number.
    more = 0.5 * len(CASES) / sum(range(len(CASES)))
    ratios = [cells[key][3].value for key in ("ce", "ls")]
    assert ratios == pytest.approx([0.8 + more, 3 + more])
    assert [cells[key][3].best for key in ("ce", "ls")] == [True, False]


def test_a_case_without_foreground_is_kept_apart_and_told(measured):
    table = TABLES["calibration"](measured)
    assert cells_of(table)["ce"][0].n == len(CASES) - 1
    line = "1 case has no foreground and no score per foreground voxel."
    assert f"{line} Misplaced there, per 1,000 voxels: CE 0.2, LS 0.75." in table.notes


def test_the_paper_s_metrics_stand_beside_those_of_a_perfect_network(measured):
    table = TABLES["reference"](measured)
    heads = ("ECE reference", "ECE if perfect", "CECE reference", "CECE if perfect")
    assert table.columns == heads
    for cells in cells_of(table).values():
        assert [cells[i].value for i in (1, 3)] == pytest.approx([0.07, 0.05])
        assert not any(cell.best or cell.second for cell in cells)  # no value is better
    paper = by_paper(measured)
    assert TABLES["reference"](paper) is None
    own = TABLES["calibration"](paper)
    assert own.columns == ("ECE ↓", "ECE if perfect", "CECE ↓", "CECE if perfect")
    values = {key: [cell.value for cell in cells] for key, cells in cells_of(table).items()}
    assert {k: [cell.value for cell in cells] for k, cells in cells_of(own).items()} == values
    assert [key for key, cells in cells_of(own).items() if cells[0].best] == ["ce"]
    unsure = (
        'A value below "if perfect" means that probabilities are too unsure, above it too sure.'
    )
    for one in (table, own):
        assert unsure in one.notes
        assert "a perfectly calibrated network does not get 0" in notes(one)
        assert ("Marks are as in the paper: the lowest is best" in notes(one)) == (one is own)


def test_no_table_has_the_paper_s_ece_without_what_a_perfect_network_has(tmp_path):
    """Nor CECE, whatever the table, also with noise and calibrators."""

    def run(name, loss, values, **more):
        conditions, many = [{"calibrator": key} for key in ("", "ts")] + list(NOISE), []
        for value in values:
            scores = scores_of(CASES, "AB", seed=len(name))
            for case in CASES:
                scores[case, "all", "ece_perfect"] = value
                scores[case, "all", "cece_perfect"] = value / 2
            many.append(scores)
        write_run(tmp_path, name, loss, scores=many, conditions=conditions, cases=CASES, **more)

    for seed in (0, 1):
        run(f"ce{seed}", "ce", (0.07, 0.08, 0.09, 0.10), seed=seed)
        run(f"mbls{seed}", "mbls", (0.02, 0.03, 0.04, 0.05), seed=seed)
        run(f"l2-{seed}", "mbls", (0.06,) * 4, settings={"penalty": "l2"}, seed=seed)
        run(f"plus{seed}", "ce", (0.01,) * 4, network="unetpp", seed=seed)
    results = read_results([tmp_path], metrics="paper")
    tables = {table.key: table for table in all_tables(results)}
    assert {"penalty", "robustness", "backbones", "seeds", "posthoc", "calibration"} <= set(tables)
    for table in tables.values():
        for i, head in enumerate(table.columns):
            if re.match(r"C?ECE [^ir]*$", head) and table.key not in ("ranking", "tests"):
                assert table.columns[i + 1].startswith(f"{head.split()[0]} if perfect"), table.key
    place = tables["robustness"].columns.index("ECE if perfect")
    values = {(row.block, row.key): row.cells[place] for row in tables["robustness"].rows}
    assert values["as they are", "ce"].value == pytest.approx(0.07)
    assert values["Gaussian noise 0.02", "ce"].value == pytest.approx(0.10)
    assert not any(cell.best or cell.second for cell in values.values())
    assert "a perfectly calibrated network does not get 0" in notes(tables["robustness"])


def test_a_network_that_predicts_nothing_was_scored(tmp_path):
    """It has no voxel near a prediction, and that is what the table says."""
    for loss in ("ce", "ls"):
        folder = write_run(tmp_path, loss, loss, cases=CASES, scores=scores_of(CASES, "AB"))
        rows = read_scores(folder)
        near = [row | {"voxels": "near"} for row in rows if row["metric"] == "ece"]
        if loss == "ls":
            near = [row | {"value": math.nan} for row in near]
        slopes = [row | {"metric": "slope"} for row in near]
        write_scores(folder, [*rows, *near, *slopes])
    table = TABLES["calibration"](read_results([tmp_path]))
    places = [i for i, head in enumerate(table.columns) if "near" in head]
    assert len(places) == 2
    for i in places:
        assert cells_of(table)["ls"][i].note == "no near voxels"
        assert cells_of(table)["ce"][i].note == ""
    assert "No near voxels: it predicts no foreground." in table.notes
    assert not re.search("[Nn]ot scored|Without", notes(table))
