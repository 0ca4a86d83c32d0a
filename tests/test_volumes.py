"""Volume intervals: their coverage, what they refuse, and the way from calibrate to the report."""

import json
import math
import shutil
from fractions import Fraction

import numpy as np
import pytest
import torch.nn.functional as F
from official_layouts import write_layout
from scipy.stats import binom, binomtest
from synthetic_runs import write_run
from typer.testing import CliRunner

from segcal import calibrators, metrics
from segcal.cli import app
from segcal.compare import read_results
from segcal.compare.packing import pack
from segcal.config import run_settings
from segcal.conformal import (
    Coverage,
    Guarantee,
    by_patient,
    coverage,
    interval,
    needed,
    quantile,
    scores,
)
from segcal.data.prepare import prepare
from segcal.data.slices import volume
from segcal.fitting import calibrate
from segcal.folders import read_fits, read_guarantee, read_scores, remove_run, write_json
from segcal.predicting import _volumes, predict
from segcal.predictors import open_run
from segcal.report.volumes import volume_table
from segcal.scoring import evaluate
from segcal.scoring.volumes import class_coverage, load_guarantee, patients_of
from segcal.training import train
from segcal.types import UserError

# The formula
# ------------------------------------------------------------------------------


def drawn(rng, n):
    """Volumes of cases whose errors grow with how uncertain they are; some objects are missed."""
    expected = rng.lognormal(7, 1, n)
    spread = expected * rng.uniform(0.02, 0.6, n)
    true = expected * np.exp(2 * spread / expected * rng.standard_t(3, n))
    return np.where(rng.random(n) < 0.02, 0.0, true), expected, spread


@pytest.mark.parametrize("n", [9, 10, 19, 25])
@pytest.mark.parametrize("level", [0.9, 0.8])
def test_coverage_is_what_the_level_says(n, level):
    """Over 2,000 sets of validation patients and one new patient each, within binomial error."""
    rng, held, trials = np.random.default_rng(n), 0, 2000
    for _ in range(trials):
        true, expected, spread = drawn(rng, n + 1)
        q = quantile(scores(true, expected, spread, 1.0)[:-1].tolist(), level)
        low, high = interval(expected[-1], spread[-1], 1.0, q)
        held += bool(low <= true[-1] <= high)
    exact = math.ceil((n + 1) * Fraction(str(level))) / (n + 1)
    assert exact >= level
    assert binom.ppf(0.0005, trials, exact) <= held <= binom.ppf(0.9995, trials, exact)


def test_the_interval_holds_for_all_scans_of_a_new_patient():
    """Scans of a patient err together; the largest error of each patient gives the level."""
    rng, held, trials, n = np.random.default_rng(0), 0, 2000, 9
    for _ in range(trials):
        of_patient = rng.normal(size=(n + 1, 1))
        true = 1000 * np.exp(0.1 * (of_patient + rng.normal(size=(n + 1, 3))))
        each = scores(true, 1000.0, 100.0, 1.0)
        pairs = [(str(i), float(s)) for i in range(n) for s in each[i]]
        held += bool(each[n].max() <= quantile(list(by_patient(pairs).values()), 0.9))
    assert binom.ppf(0.0005, trials, 0.9) <= held <= binom.ppf(0.9995, trials, 0.9)


def test_an_interval_holds_the_volumes_whose_score_is_at_most_the_quantile():
    true, expected, spread = drawn(np.random.default_rng(1), 400)
    for q in (0.1, 0.7, 3.0):
        low, high = interval(expected, spread, 1.0, q)
        held = (low <= true) & (true <= high)
        assert (held == (scores(true, expected, spread, 1.0) <= q)).all()
        assert ((low <= expected) & (expected <= high)).all()
    np.testing.assert_allclose(  # in any unit
        scores(true, expected, spread, 1.0), scores(true * 3, expected * 3, spread * 3, 3.0)
    )


@pytest.mark.parametrize(("true", "expected"), [(0.0, 50.0), (50.0, 0.0), (0.0, 0.0)])
def test_a_vanished_object_has_a_finite_score_and_an_interval(true, expected):
    spread = expected / 2
    score = scores(true, expected, spread, 1.0)
    assert np.isfinite(score)
    assert (score == 0) == (true == expected)
    low, high = interval(expected, spread, 1.0, float(score))
    assert low - 1e-9 <= true <= high + 1e-9


def test_too_few_patients_are_refused_with_the_number_needed():
    for level, n in ((0.9, 9), (0.95, 19), (0.99, 99), (0.8, 4), (0.5, 1)):
        assert needed(level) == n
        assert quantile(list(range(n)), level) == n - 1  # the largest of just enough
        with pytest.raises(UserError, match=f"needs at least {n} validation patients"):
            quantile(list(range(n - 1)), level)
    assert quantile(list(range(19)), 0.55) == 10  # 20 * 0.55 is 11.000000000000002 in floats
    with pytest.raises(UserError, match=r"level must lie in \[0.5, 0.99\]; got 0.3"):
        quantile([1.0] * 50, 0.3)


def test_a_refusal_names_a_level_that_works():
    for n in (1, 4, 8, 25, 60):
        with pytest.raises(UserError, match="there are") as refusal:
            quantile(list(range(n)), 0.99)
        quantile(list(range(n)), float(str(refusal.value).rpartition(" ")[2]))


@pytest.mark.parametrize(("held", "patients"), [(0, 9), (46, 50), (50, 50), (1, 1), (30, 50)])
def test_the_bounds_of_coverage_are_where_the_counts_become_rare(held, patients):
    """Clopper and Pearson: at the lower bound, so many or more have a probability of 2.5 %."""
    low, high = Coverage(0.9, held, patients, fitted=25).bounds
    if held > 0:
        assert binom.sf(held - 1, patients, low) == pytest.approx(0.025, rel=1e-6)
    if held < patients:
        assert binom.cdf(held, patients, high) == pytest.approx(0.025, rel=1e-6)
    assert (low == 0) == (held == 0)
    assert (high == 1) == (held == patients)
    exact = binomtest(held, patients).proportion_ci(method="exact")
    assert (low, high) == (exact.low, exact.high)


def test_coverage_says_when_it_is_too_low():
    said = "fewer than a 90 % interval fitted on 25 patients would hold for"
    assert Coverage(0.9, 30, 50, fitted=25).verdict == said
    assert not Coverage(0.9, 46, 50, fitted=25).verdict
    assert not Coverage(0.5, 50, 50, fitted=25).verdict  # too wide, which harms nobody
    assert Coverage(0.9, 39, 50, fitted=25).bounds[1] < 0.9
    assert not Coverage(0.9, 39, 50, fitted=25).verdict  # the fit is by chance too
    assert Coverage(0.9, 39, 50, fitted=1000).verdict


@pytest.mark.parametrize(("n", "m"), [(9, 30), (25, 50), (100, 200)])
def test_valid_intervals_are_seldom_said_to_be_too_narrow(n, m):
    """Scores of validation and test patients from one distribution; 2.5 % of verdicts are false."""
    rng, alarms, times = np.random.default_rng(n), 0, 2000
    for _ in range(times):
        new, known = rng.random(m), rng.random(n)
        held = int((new <= quantile(known.tolist(), 0.9)).sum())
        alarms += bool(Coverage(0.9, held, m, fitted=n).verdict)
    assert 0.005 < alarms / times < 0.025 + 3 * math.sqrt(0.025 / times)


def test_intervals_that_are_too_narrow_are_found():
    rng, found = np.random.default_rng(0), 0
    for _ in range(100):
        q = quantile(rng.random(25).tolist(), 0.9)
        held = int((1.5 * rng.random(50) <= q).sum())  # errors are half as large again
        found += bool(Coverage(0.9, held, 50, fitted=25).verdict)
    assert found > 60


def test_a_patient_is_covered_if_all_cases_are():
    cases = [("a", True), ("b", True), ("a", False), ("b", True), ("c", True)]
    assert coverage(cases, 0.9, 25) == Coverage(0.9, 2, 3, 25)


# From calibrate to the report
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with twelve validation cases of ten patients, five test cases of four."""
    root = tmp_path_factory.mktemp("volumes")
    ids = [f"phantom_{i:03d}" for i in range(23)]
    split = {"train": ids[:6], "val": ids[6:18], "test": ids[18:]}
    (root / "split.json").write_text(json.dumps(split))
    patients = {id: id for id in ids} | dict.fromkeys(ids[6:9], "one") | {ids[18]: "two"}
    patients[ids[19]] = "two"
    (root / "patients.json").write_text(json.dumps(patients))
    options = {"split_file": root / "split.json", "patients_file": root / "patients.json"}
    made = prepare("phantom", to=root / "cases", n_cases=23, shape=(4, 24, 24), **options)
    small = ["network.width=4", "training.epochs=16", "training.lr=0.01", "loss.name=ce_dice"]
    settings = run_settings({"data": str(made.cases.root)}, overrides=small)
    train(settings, root / "run", progress=False)
    return open_run(root / "run")


@pytest.fixture
def run(trained, tmp_path):
    """A copy, so that tests may write into it."""
    shutil.copytree(trained.root, tmp_path / "run")
    return open_run(tmp_path / "run")


@pytest.fixture(scope="module")
def calibrated(trained, tmp_path_factory):
    """A copy that was scored, also on noisy images, and then calibrated."""
    root = tmp_path_factory.mktemp("calibrated") / "run"
    shutil.copytree(trained.root, root)
    run = open_run(root)
    evaluate(run)
    evaluate(run, corruption="gaussian_noise:0.03")
    evaluate(run, split="val")
    calibrate(run, ["ts"])
    return run


@pytest.fixture
def fitted(calibrated, tmp_path):
    shutil.copytree(calibrated.root, tmp_path / "fitted")
    return open_run(tmp_path / "fitted")


def volumes_by_loops(run, id):
    """Per class: true and expected volume and spread of a case, in voxels."""
    image, label = volume(run.cases, id)
    probs = run.logits(image).double().softmax(1)
    sizes = []
    for k in range(1, probs.shape[1]):
        p = probs[:, k]
        sizes.append((int((label == k).sum()), float(p.sum()), float((p * (1 - p)).sum())))
    return sizes


def rows_of(run, metric, **condition):
    condition = {"split": "test", "corruption": "", "calibrator": ""} | condition
    rows = [row for row in read_scores(run.root) if row["metric"] == metric]
    rows = [row for row in rows if all(row[key] == value for key, value in condition.items())]
    return {(row["case"], row["class"]): row["value"] for row in rows}


def predicts(run, monkeypatch):
    """The cases that the network predicts from now on."""
    seen, predicted = [], run.case

    def counted(id, **options):
        seen.append(id)
        return predicted(id, **options)

    monkeypatch.setattr(run, "case", counted)
    return seen


def test_rows_hold_the_volumes_of_each_case(calibrated):
    true, expected = rows_of(calibrated, "true_ml"), rows_of(calibrated, "expected_ml")
    spread, voxels = rows_of(calibrated, "spread_ml"), rows_of(calibrated, "voxel_ml")
    for id in calibrated.ids("test"):
        voxel = math.prod(calibrated.cases.case(id)["spacing"]) / 1000
        assert voxels[id, "all"] == pytest.approx(voxel)
        for name, sizes in zip(calibrated.classes, volumes_by_loops(calibrated, id), strict=True):
            values = [rows[id, name] for rows in (true, expected, spread)]
            assert values == pytest.approx([size * voxel for size in sizes], rel=1e-5)
    assert not {"true_ml", "covered", "voxel_ml"} & set(metrics.METRICS)


def test_a_guarantee_holds_the_largest_score_of_each_validation_patient(calibrated):
    patients, each = patients_of(calibrated), {}
    for id in calibrated.ids("val"):
        for name, sizes in zip(calibrated.classes, volumes_by_loops(calibrated, id), strict=True):
            true, expected, spread = sizes
            scale = math.sqrt((spread + 1) / (expected + 1))
            score = abs(math.log(true + 1) - math.log(expected + 1)) / scale
            group = each.setdefault((name, patients.get(id, id)), [])
            group.append(score)
    guarantee = load_guarantee(calibrated.root, "", "best")
    for name in calibrated.classes:
        want = sorted(max(group) for (kind, _), group in each.items() if kind == name)
        assert len(want) == 10  # patients; there are 12 cases
        assert guarantee.scores[name] == pytest.approx(want, rel=1e-4)
        assert guarantee.quantile(name) == guarantee.scores[name][-1]  # ceil(11 * 0.9) = 10


@pytest.mark.parametrize("calibrator", ["", "ts"])
@pytest.mark.parametrize("corruption", ["", "gaussian_noise:0.03"])
def test_covered_follows_from_the_rows_and_the_guarantee(calibrated, calibrator, corruption):
    if calibrator:
        evaluate(calibrated, calibrator=calibrator, corruption=corruption)
    condition = {"calibrator": calibrator, "corruption": corruption}
    true, expected, spread, voxel, covered = (
        rows_of(calibrated, f"{name}", **condition)
        for name in ("true_ml", "expected_ml", "spread_ml", "voxel_ml", "covered")
    )
    guarantee = load_guarantee(calibrated.root, calibrator, "best")
    assert set(covered) == set(true)
    assert len(covered) == 15
    for id, name in covered:
        sizes = expected[id, name], spread[id, name], voxel[id, "all"]
        low, high = interval(*sizes, guarantee.quantile(name))
        assert covered[id, name] == (low <= true[id, name] <= high)


def test_validation_cases_are_not_said_to_be_covered(calibrated):
    assert rows_of(calibrated, "true_ml", split="val")
    assert not rows_of(calibrated, "covered", split="val")


def test_calibrate_predicts_each_validation_case_once(run, monkeypatch):
    evaluate(run)
    seen = predicts(run, monkeypatch)
    calibrate(run, ["ts"])
    assert seen == [*run.ids("val"), *run.ids("test")]  # the latter for the scores after ts
    assert rows_of(run, "covered")
    assert rows_of(run, "covered", calibrator="ts")


def test_a_run_calibrated_before_gets_its_intervals(fitted, monkeypatch):
    shutil.rmtree(fitted.root / "guarantees")
    before = (fitted.root / "calibrators" / "ts.json").read_text()
    seen = predicts(fitted, monkeypatch)
    calibrate(fitted, ["ts"])
    assert seen == list(fitted.ids("val"))
    assert load_guarantee(fitted.root, "ts", "best") is not None
    assert (fitted.root / "calibrators" / "ts.json").read_text() == before


def test_another_level_needs_no_network(fitted, monkeypatch):
    seen = predicts(fitted, monkeypatch)
    nine = load_guarantee(fitted.root, "ts", "best")
    calibrate(fitted, ["ts"], level=0.5)
    five = load_guarantee(fitted.root, "ts", "best")
    assert (nine.level, five.level) == (0.9, 0.5)
    assert five.scores == nine.scores
    calibrate(fitted, ["ts"])  # the level stays
    assert load_guarantee(fitted.root, "ts", "best") == five
    rows = rows_of(fitted, "covered")
    tight = Guarantee(0.5, load_guarantee(fitted.root, "", "best").scores)
    for (id, name), value in rows.items():
        sizes = [rows_of(fitted, f"{part}_ml")[id, name] for part in ("true", "expected", "spread")]
        score = scores(*sizes, rows_of(fitted, "voxel_ml")[id, "all"])
        assert value == (score <= tight.quantile(name))
    assert not seen


def test_labels_of_test_cases_change_no_guarantee(trained, tmp_path):
    """Changed test labels leave every byte as it is; changed validation labels do not."""

    def guarantees(name, changed):
        shutil.copytree(trained.root, tmp_path / name)
        run = open_run(tmp_path / name)
        predicted, ids = run.case, run.ids(changed) if changed else ()

        def case(id, **options):
            of_case = predicted(id, **options)
            if id in ids:
                object.__setattr__(of_case, "label", of_case.label.roll(5, 1).clamp_max(1))
            return of_case

        run.case = case
        calibrate(run, ["ts"])
        return [read_guarantee(run.root, calibrator, "best") for calibrator in ("", "ts")]

    kept = guarantees("kept", "")
    assert None not in kept
    assert guarantees("test", "test") == kept
    assert guarantees("val", "val") != kept


def test_a_guarantee_is_tied_to_run_weights_data_and_fit(fitted):
    def known(name="ts", weights="best"):
        return load_guarantee(fitted.root, name, weights) is not None

    assert known()
    assert known("")
    assert not known("", "last")
    for key in ("id", "checksum"):
        info = json.loads((fitted.root / "run.json").read_text())
        part = info if key == "id" else info["data"]
        part[key], value = "another", part[key]
        write_json(fitted.root / "run.json", info)
        assert not known()
        part[key] = value
        write_json(fitted.root / "run.json", info)
        assert known()
    path = fitted.root / "calibrators" / "ts.json"
    write_json(path, json.loads(path.read_text()) | {"sha256": "of another fit"})
    assert not known()
    assert known("")


def of_one_patient(run):
    """All validation cases become those of one patient."""
    info = json.loads((run.root / "run.json").read_text())
    info["data"]["patients"] = dict.fromkeys(run.ids("val"), "one")
    write_json(run.root / "run.json", info)
    return open_run(run.root)


def test_too_few_validation_patients_fit_no_interval(run, monkeypatch):
    run = of_one_patient(run)
    said = CliRunner().invoke(app, ["calibrate", str(run.root), "--with", "ts"])
    assert said.exit_code == 0
    assert (
        "warning: a 90 % volume interval needs at least 9 validation patients, and there are 1;"
        " ask for a level of at most 0.5" in said.stderr.replace("\n", " ")
    )
    assert not (run.root / "guarantees").exists()
    assert not rows_of(run, "covered")
    with pytest.raises(UserError, match="needs at least 9 validation patients"):
        calibrate(run, ["ts"], level=0.9)
    with pytest.raises(UserError, match="level must lie in"):
        calibrate(run, ["ts"], level=90)
    seen = predicts(run, monkeypatch)
    calibrate(run, ["ts"])  # nothing is left to do
    assert not seen
    calibrate(run, ["ts"], level=0.5)
    assert load_guarantee(run.root, "ts", "best").level == 0.5


def test_evaluate_prints_for_how_many_patients_an_interval_held(fitted):
    said = CliRunner().invoke(app, ["evaluate", str(fitted.root)])
    guarantee = load_guarantee(fitted.root, "", "best")
    held = class_coverage(evaluate(fitted), guarantee, patients_of(fitted))
    assert set(held) == set(fitted.classes)
    for name, each in held.items():
        assert each.patients == 4  # of five cases
        assert f"{name}: {each.sentence()}" in said.stdout
    said = CliRunner().invoke(app, ["evaluate", str(fitted.root), "--json"])
    values = json.loads(said.stdout)["clean"]["coverage"]
    assert values == {name: each.values() for name, each in held.items()}


@pytest.fixture
def image(tmp_path):
    write_layout("msd", tmp_path / "new", n_cases=1, seed=0, size=(4, 24, 24))
    return next((tmp_path / "new" / "imagesTr").iterdir())


def test_predict_has_intervals_where_they_were_fitted(fitted, image, tmp_path, monkeypatch):
    (about,) = predict(fitted, [image], tmp_path / "out", calibrator="ts").values()
    guarantee = load_guarantee(fitted.root, "ts", "best")
    for name, row in about["classes"].items():
        sizes = row["expected_ml"], row["spread_ml"], about["voxel_ml"]
        low, high = interval(*sizes, guarantee.quantile(name))
        assert row["interval_ml"] == pytest.approx([low, min(high, about["image_ml"])], rel=1e-4)
        assert row["level"] == 0.9
    said = CliRunner().invoke(
        app, ["predict", str(fitted.root), str(image), "-o", str(tmp_path / "out"), *CALIBRATED]
    )
    assert "90 % interval" in said.stdout
    assert said.stdout.count(str(about["mean_confidence"])) == 1  # once, though of three classes
    assert "segcal calibrate" not in said.stderr
    # Another level is written into the summary; the network is not asked again.
    calibrate(fitted, ["ts"], level=0.5)
    monkeypatch.setattr("segcal.predicting._predicted", None)
    (later,) = predict(fitted, [image], tmp_path / "out", calibrator="ts").values()
    assert {row["level"] for row in later["classes"].values()} == {0.5}
    (path,) = (tmp_path / "out").glob("*_summary.json")
    assert json.loads(path.read_text()) == later


CALIBRATED = ("--calibrator", "ts")


def test_predict_has_no_interval_without_a_fit(run, image, tmp_path):
    said = CliRunner().invoke(
        app, ["predict", str(run.root), str(image), "-o", str(tmp_path / "out")]
    )
    assert said.exit_code == 0
    assert "interval" not in said.stdout
    assert said.stderr.count("segcal calibrate fits one") == 1
    (path,) = (tmp_path / "out").glob("*_summary.json")
    assert "interval_ml" not in path.read_text()


def test_a_prepared_image_is_predicted_with_the_volumes_of_its_scores(calibrated):
    """The interval of `predict` is made from the same sums as the one that was scored."""
    id = calibrated.ids("test")[0]
    volumes = _volumes(calibrated.logits(volume(calibrated.cases, id)[0]), (1.0, 1.0, 1.0))
    voxel = rows_of(calibrated, "voxel_ml")[id, "all"]
    for metric, values in (("expected_ml", volumes.expected_ml), ("spread_ml", volumes.spread_ml)):
        want = [rows_of(calibrated, metric)[id, name] / voxel for name in calibrated.classes]
        assert [value * 1000 for value in values] == pytest.approx(want)


def test_the_report_has_a_table_of_volumes(calibrated):
    results = read_results([calibrated.root])
    (name,) = results.datasets
    table = volume_table(results, name)
    labels = [(row.label, row.block) for row in table.rows]
    assert labels == [(x, kind) for kind in calibrated.classes for x in ("CE+Dice", "CE+Dice + TS")]
    guarantee = load_guarantee(calibrated.root, "", "best")
    held = class_coverage(evaluate(calibrated), guarantee, patients_of(calibrated))
    true, expected = rows_of(calibrated, "true_ml"), rows_of(calibrated, "expected_ml")
    spread, voxels = rows_of(calibrated, "spread_ml"), rows_of(calibrated, "voxel_ml")
    for row in table.rows[::2]:
        ratio, width, covered = row.cells
        here = [(id, row.block) for id in calibrated.ids("test")]
        sums = [sum(rows[key] for key in here) for rows in (expected, true)]
        assert ratio.value == pytest.approx(sums[0] / sums[1])
        widths = []
        for key in here:
            sizes = expected[key], spread[key], voxels[key[0], "all"]
            low, high = interval(*sizes, guarantee.quantile(row.block))
            widths.append((high - low) / expected[key])
        assert width.value == pytest.approx(100 * np.median(widths))
        assert covered.value == pytest.approx(100 * held[row.block].share)


def test_packed_results_carry_the_intervals(calibrated, tmp_path):
    pack([calibrated.root], tmp_path / "packed")
    ours, packed = (read_results([path]) for path in (calibrated.root, tmp_path / "packed"))
    (name,) = ours.datasets
    assert volume_table(packed, name).rows == volume_table(ours, name).rows
    assert any(row.cells[1].value for row in volume_table(packed, name).rows)


def test_results_without_volumes_have_no_table(tmp_path):
    write_run(tmp_path, "old")
    assert volume_table(read_results([tmp_path / "old"]), "organs") is None


def test_a_run_that_is_removed_loses_its_guarantees(fitted):
    remove_run(fitted.root)
    assert not (fitted.root / "guarantees").exists()


def test_calibrators_are_judged_by_patients_that_their_fit_left_out(calibrated):
    """The validation NLL of `ts`, and the scores of its intervals."""
    patients, cases = patients_of(calibrated), []
    for id in calibrated.ids("val"):
        image, label = volume(calibrated.cases, id)
        cases.append((patients.get(id, id), calibrated.logits(image), label, image))
    names = sorted({patient for patient, *_ in cases})
    halves, sums, scores_of = (set(names[::2]), set(names[1::2])), [0.0, 0], {}
    for half in halves:
        others = [each[1:] for each in cases if each[0] not in half]
        fitted = calibrators.fit("ts", lambda: iter(others))  # noqa: B023 (called at once)
        for patient, logits, label, image in [each for each in cases if each[0] in half]:
            after = fitted(logits, image).double()
            sums[0] += F.cross_entropy(after, label, reduction="sum").item()
            sums[1] += label.numel()
            p = after.softmax(1)[:, 1]
            parts = float((label == 1).sum()), float(p.sum()), float((p * (1 - p)).sum())
            scores_of.setdefault(patient, []).append(float(scores(*parts, 1.0)))
    fact = read_fits(calibrated.root)["ts"]
    assert fact["val_nll"]["after"] == pytest.approx(sums[0] / sums[1], rel=1e-5)
    guarantee = load_guarantee(calibrated.root, "ts", "best")
    want = sorted(max(each) for each in scores_of.values())
    assert guarantee.scores[calibrated.classes[0]] == pytest.approx(want, rel=1e-3)
