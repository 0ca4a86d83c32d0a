"""`segcal audit` from folders of files to verdict, scores and calibrators."""

import html
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from made_predictions import (
    made_cases,
    made_regions,
    write_arrays,
    write_confidences,
    write_image,
    write_labels,
    write_nnunet,
)
from typer.testing import CliRunner

import segcal
from segcal import calibrators
from segcal.auditing import audit as audit_with_report
from segcal.auditing import making, work
from segcal.auditing.crossfit import Table, out_of_fold
from segcal.auditing.scored import first_pass, second_pass
from segcal.calibrators.curves import curves
from segcal.calibrators.regions import RINGS
from segcal.cli import app
from segcal.compare import read_results
from segcal.folders import read_run, read_scores
from segcal.folders.audits import read_out_of_fold
from segcal.predictors.files import open_source
from segcal.predictors.reading import read_case
from segcal.report import build_report
from segcal.types import UserError

SHAPE = (8, 30, 28)
audit = partial(audit_with_report, report=False)  # which takes most of the time


def model_of(folder, n_cases=12, **settings):
    """An nnU-Net model folder of made cases."""
    options = {key: settings.pop(key) for key in ("n_folds", "regions") if key in settings}
    make = {"make": made_regions} if options.get("regions") else {}
    return write_nnunet(folder, made_cases(n_cases, shape=SHAPE, **make, **settings), **options)


@pytest.fixture(scope="module")
def sharp(tmp_path_factory):
    """An audited network whose logits are 1.8 times too large."""
    folder = tmp_path_factory.mktemp("sharp")
    model = model_of(folder, sharpness=1.8, margin=1)
    return model, audit_with_report(model, out=folder / "audit")


def test_an_overconfident_network_is_found_and_corrected(sharp):
    _, found = sharp
    assert found.verdict == "overconfident"
    low, value, high = (found.temperature[key] for key in ("low", "value", "high"))
    assert low < value < high
    assert value == pytest.approx(1.8, rel=0.05)
    before, after = (found.about["scores"][name] for name in ("before", "ts"))
    for voxels, metric in (("all", "misplaced"), ("all", "nll"), ("near", "ece")):
        assert after[voxels][metric] < before[voxels][metric]
    assert found.about["calibrator"] in ("ts", "ts2")
    assert float(found.calibrator.parameters.get("temperature", torch.tensor(1.8))) > 1.5


@pytest.mark.parametrize(("sharpness", "verdict"), [(1.0, "calibrated"), (0.5, "underconfident")])
def test_verdicts_of_honest_and_of_blunt_probabilities(tmp_path, sharpness, verdict):
    found = audit(model_of(tmp_path, sharpness=sharpness), out=tmp_path / "audit")
    assert found.verdict == verdict
    assert found.temperature["value"] == pytest.approx(sharpness, rel=0.06)


def test_the_verdict_is_said_in_at_most_eight_sentences(sharp):
    _, found = sharp
    assert found.text.startswith("Overconfident. ")
    assert len(found.about["sentences"]) <= 8
    page = html.unescape((found.root / "report.html").read_text())
    for sentence in found.about["sentences"][:3]:
        assert sentence in page


def test_no_temperature_has_seen_its_patient(sharp):
    """A case is calibrated with what the calibrator itself finds on the others of its fold."""
    source = open_source(sharp[0])
    case = next(case for case in source.cases if case.id == "case_003")
    others = [c for c in source.cases if c.fold == case.fold and c.id != case.id]
    assert len(others) >= 4

    def batches():
        for other in others:
            data = read_case(source, other)
            logits = torch.from_numpy(data.maps.stacked()).log().clamp_min(-87.3).movedim(0, 1)
            label = torch.from_numpy(data.label).long()
            label[(logits[:, 0] == 0) & (logits[:, 1:] <= -87).all(1)] = -100  # outside of the crop
            yield logits, label, logits

    facts = {c.id: first_pass(source, c)[1].curves[0] for c in source.cases}
    fits = out_of_fold(source.cases, [Table.of(source.cases, facts)], ("ts", "ts2"))[case.id]
    for name, tolerance in (("ts", 2e-5), ("ts2", 1e-3)):
        wanted = calibrators.fit(name, batches).parameters
        for key, value in wanted.items():
            assert float(fits[name][0].parameters[key]) == pytest.approx(
                float(value), rel=tolerance
            )


def test_a_label_changes_no_score_of_its_own_calibrator(tmp_path):
    """Out of fold: with another reference of one patient, its temperature stays."""
    model = model_of(tmp_path, n_cases=6, n_folds=1, sharpness=1.5)
    source = open_source(model)
    facts = {c.id: first_pass(source, c)[1].curves[0] for c in source.cases}
    first, other = source.cases[:2]
    spoiled = curves(lambda: [_all_wrong()], RINGS)
    temperatures = []
    for each in (facts, facts | {first.id: spoiled}):
        fits = out_of_fold(source.cases, [Table.of(source.cases, each)], ("ts",))
        of_cases = {id: fit["ts"][0].parameters["temperature"] for id, fit in fits.items()}
        temperatures.append({id: float(value) for id, value in of_cases.items()})
    same = pytest.approx(temperatures[0][first.id], rel=1e-9)  # sums are subtracted
    assert temperatures[1][first.id] == same
    assert temperatures[0][other.id] != temperatures[1][other.id]


@pytest.fixture(scope="module")
def by_class(tmp_path_factory):
    """Six patients with two cases each, audited with `vs`."""
    folder = tmp_path_factory.mktemp("by_class")
    cases = made_cases(12, shape=SHAPE, sharpness=1.5)
    write_arrays(folder / "probs", cases)
    write_labels(folder / "labels", cases)
    rows = [f"{case.id},p{i // 2}" for i, case in enumerate(cases)]
    (folder / "patients.csv").write_text("\n".join(["case,patient", *rows]))
    return folder, cases, audit_by_class(folder)


def audit_by_class(folder, out="audit"):
    options = {"patients": folder / "patients.csv", "out": folder / out}
    return audit(folder / "probs", folder / "labels", calibrators=("ts", "vs"), **options)


def test_other_calibrators_leave_out_groups_of_patients(by_class):
    """A case has what a fit finds on the patients of the other groups: p0 and p5 are one group."""
    _, cases, found = by_class

    def batches():
        for case in cases[2:10]:
            logits = torch.from_numpy(case.probs).log().movedim(0, 1)
            yield logits, torch.from_numpy(case.label).long(), logits

    wanted = calibrators.fit("vs", batches, voxels="near").parameters
    numbers = read_out_of_fold(found.root)
    for case in (*cases[:2], *cases[10:]):
        (values,) = numbers[case.id]["vs"]
        for name, expected in wanted.items():
            got = [values[f"{name}_{k}"] for k in range(3)]
            assert got == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-4)
    assert numbers[cases[2].id]["vs"] != numbers[cases[0].id]["vs"]


def test_scores_after_vs_are_of_the_label_map_that_it_gives(by_class):
    _, cases, found = by_class
    fits = read_out_of_fold(found.root)
    rows = found.scores
    dice = rows[(rows["metric"] == "dice") & (rows["class"] == "mean")]
    for case in cases:
        (values,) = fits[case.id]["vs"]
        scale, bias = (np.array([values[f"{n}_{k}"] for k in range(3)]) for n in ("scale", "bias"))
        logits = np.log(case.probs) * scale[:, None, None, None] + bias[:, None, None, None]
        prediction = logits.argmax(0)
        of_classes = []
        for k in (1, 2):
            a, b = prediction == k, case.label == k
            of_classes.append(2 * (a & b).sum() / (a.sum() + b.sum()))
        scored = dice[(dice["case"] == case.id) & (dice["calibrator"] == "vs")]["value"]
        assert float(scored.iloc[0]) == pytest.approx(np.mean(of_classes), abs=1e-9)


def test_labels_of_a_group_change_no_calibrator_of_the_group(by_class):
    folder, cases, found = by_class
    spoiled = [replace(case, label=2 - case.label) for case in (*cases[:2], *cases[10:])]
    write_labels(folder / "labels", spoiled)
    other = audit_by_class(folder, "spoiled")
    write_labels(folder / "labels", cases)
    before, after = (read_out_of_fold(each.root) for each in (found, other))
    for case in spoiled:
        assert before[case.id]["vs"] == after[case.id]["vs"]
    assert before[cases[5].id]["vs"] != after[cases[5].id]["vs"]


def _all_wrong():
    """A certain prediction of which every voxel is wrong."""
    logits = torch.zeros(4, 3, 8, 8)
    logits[:, 1] = 9
    return logits, torch.zeros(4, 8, 8).long(), logits


def test_regions_are_problems_of_two_classes(tmp_path):
    found = audit(model_of(tmp_path, regions=True, sharpness=1.6), out=tmp_path / "audit")
    assert found.about["kind"] == "regions"
    assert found.about["classes"] == ["whole", "core"]
    assert found.verdict == "overconfident"
    for i, name in enumerate(("whole", "core")):
        fit = calibrators.load(found.root / "calibrators" / f"ts_{i}")
        assert float(fit.parameters["temperature"]) == pytest.approx(1.6, rel=0.1)
        assert found.about["temperatures"][name]["value"] == pytest.approx(1.6, rel=0.1)
    assert "Temperature of each region: whole 1." in found.text
    scores = found.about["scores"]
    assert scores["ts"]["all"]["misplaced"] < scores["before"]["all"]["misplaced"]


def test_audits_are_compared_and_reported_like_runs(sharp, tmp_path):
    model, found = sharp
    blunt = audit(model, out=tmp_path / "blunt", name="other")
    results = read_results([found.root, blunt.root])
    assert [c.method for c in results.contenders] == ["nnUNetTrainer", "other"]
    page = html.unescape(build_report(results, viewer=False))
    assert "nnUNetTrainer" in page
    assert "For each case, calibrators are fitted without its patient." in page
    assert "fitted on the validation cases" not in page
    assert "segcal calibrate" not in page


def test_an_interrupted_audit_goes_on(sharp, tmp_path, monkeypatch):
    model, found = sharp
    seen = []

    def noted(source, case, **options):
        seen.append(case.id)
        return first_pass(source, case, **options)

    def interrupted(source, case, **options):
        if len(seen) == 5:
            raise KeyboardInterrupt
        return noted(source, case, **options)

    monkeypatch.setattr(work, "first_pass", interrupted)
    with pytest.raises(KeyboardInterrupt):
        audit(model, out=tmp_path / "audit")
    assert not (tmp_path / "audit").exists()
    monkeypatch.setattr(
        work, "first_pass", lambda *a, **k: seen.append(a[1].id) or first_pass(*a, **k)
    )
    again = audit(model, out=tmp_path / "audit")
    assert len(seen) == len(set(seen)) == 12
    same = [{**row, "run": ""} for row in read_scores(found.root)]
    assert [{**row, "run": ""} for row in read_scores(again.root)] == same


def test_two_processes_give_the_same_scores(sharp, tmp_path):
    model, found = sharp
    other = audit(model, out=tmp_path / "audit", workers=2)
    same = [{**row, "run": ""} for row in read_scores(found.root)]
    assert [{**row, "run": ""} for row in read_scores(other.root)] == same


def test_a_finished_audit_is_opened_and_another_is_refused(sharp, monkeypatch):
    model, found = sharp
    monkeypatch.setattr(making.Making, "carry_out", lambda *a: pytest.fail("made again"))
    assert audit(model, out=found.root).about == found.about
    with pytest.raises(UserError, match="other files or settings"):
        audit(model, out=found.root, calibrators=("ts",))
    (model / "notes").mkdir(exist_ok=True)
    with pytest.raises(UserError, match="is no audit"):
        audit(model, out=model / "notes")


def test_one_case_gets_scores_alone(tmp_path):
    cases = made_cases(1, shape=SHAPE, sharpness=2.0)
    folder = write_arrays(tmp_path / "probs", cases)
    labels = write_labels(tmp_path / "labels", cases)
    found = audit(folder, labels, out=tmp_path / "audit")
    assert found.verdict == "too few"
    assert "too much" not in found.text  # nor too little: one case has no interval
    assert "too little" not in found.text
    assert list(found.about["scores"]) == ["before"]
    assert found.temperature["value"] is None


def test_small_folds_take_other_folds_and_say_so(tmp_path):
    found = audit(model_of(tmp_path, n_cases=6, n_folds=3, sharpness=1.5), out=tmp_path / "audit")
    assert any("fewer than 4 patients" in line for line in found.about["warnings"])
    assert "ts" in found.about["scores"]


def test_few_patients_do_not_tell_whether_a_calibrator_helps(tmp_path):
    found = audit(model_of(tmp_path, n_cases=6, n_folds=1, sharpness=2.0), out=tmp_path / "audit")
    assert "Whether a calibrator helps cannot be told from 6 patients (TS and TS2)." in found.text
    assert found.about["calibrator"] is None


def test_nothing_is_left_if_no_case_can_be_scored(tmp_path):
    folder = write_arrays(tmp_path / "probs", made_cases(2, shape=SHAPE))
    with pytest.raises(UserError, match="has no reference; name their folder"):
        audit(folder, out=tmp_path / "audits" / "mine")
    assert not (tmp_path / "audits").exists()


def test_a_damaged_case_is_an_error_or_left_out(tmp_path):
    model = model_of(tmp_path, sharpness=1.5)
    path = sorted(model.glob("fold_*/validation/*.npz"))[3]
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(UserError, match=path.stem):
        audit(model, out=tmp_path / "audit")
    assert not (tmp_path / "audit").exists()
    found = audit(model, out=tmp_path / "audit", keep_going=True)
    assert list(found.about["left_out"]) == [path.stem]
    assert found.about["n_cases"] == 11


def test_the_stored_label_map_is_compared_with_the_probabilities(tmp_path):
    model = model_of(tmp_path)
    path = sorted(model.glob("fold_*/validation/*.nii.gz"))[0]
    image = sitk.ReadImage(str(path))
    image[0:3, 0:3, 0:3] = 2
    sitk.WriteImage(image, str(path))
    found = audit(model, out=tmp_path / "audit")
    assert any("stored label map differs" in line for line in found.about["warnings"])


def test_the_command(sharp, tmp_path):
    model, found = sharp
    result = CliRunner().invoke(app, ["audit", str(model), "--out", str(found.root), "--json"])
    assert result.exit_code == 0
    about = json.loads(result.stdout)
    assert about["verdict"] == "overconfident"
    assert {"n_cases", "n_patients", "kind", "temperature", "scores", "volume_ratio"} <= set(about)
    text = CliRunner().invoke(app, ["audit", str(model), "--out", str(found.root)]).stdout
    assert "Overconfident." in text


def test_python(sharp):
    _, found = sharp
    opened = segcal.open_audit(str(found.root))
    assert opened.verdict == found.verdict
    assert set(opened.scores["calibrator"]) == {"", "ts", "ts2"}
    titles = [axis.get_title() for axis in opened.figure().axes[:2]]
    assert titles[0].endswith("before")
    assert titles[1].endswith(f"after {found.about['calibrator'].upper()}")
    info = read_run(found.root)
    assert info["kind"] == "audit"
    assert Path(info["settings"]["data"]).is_dir()
    assert np.isfinite(opened.scores.loc[opened.scores["metric"] == "nll", "value"]).all()


def test_confidence_maps_get_a_verdict_without_volumes(tmp_path):
    cases = made_cases(12, shape=SHAPE, sharpness=2.0)
    folder = write_confidences(tmp_path / "maps", cases)
    found = audit_with_report(folder, write_labels(tmp_path / "labels", cases), out=tmp_path / "a")
    softmax = write_arrays(tmp_path / "probs", cases)
    whole = audit(softmax, tmp_path / "labels", out=tmp_path / "b")
    assert found.about["kind"] == "confidence"
    assert found.verdict == whole.verdict == "overconfident"
    for voxels, metric in (("all", "misplaced"), ("near", "ece"), ("near", "confidence_gap")):
        of_both = [each.about["scores"]["before"][voxels][metric] for each in (found, whole)]
        assert of_both[0] == pytest.approx(of_both[1], rel=1e-4)
    assert found.about["scores"]["before"]["all"]["nll"] is None
    assert found.calibrator is None


def test_images_are_shown_in_the_report(tmp_path):
    """With --images, the viewer reads maps and images again."""
    cases = made_cases(3, shape=SHAPE)
    folder = write_arrays(tmp_path / "probs", cases)
    labels = write_labels(tmp_path / "labels", cases)
    for case in cases:
        write_image(tmp_path / "images" / f"{case.id}_0000.nii.gz", case.probs[1] * 100)
    found = audit(folder, labels, images=tmp_path / "images", out=tmp_path / "audit")
    predictor = segcal.open_predictor(found.root)
    prediction = predictor.case("case_001")
    assert prediction.image.shape == (9, 1, 30, 28)
    np.testing.assert_allclose(prediction.logits.softmax(0), cases[1].probs, atol=1e-5)
    found.report(tmp_path / "page.html")
    assert "viewer" in (tmp_path / "page.html").read_text()
    with pytest.raises(UserError, match="has no network"):
        predictor.logits(prediction.image)


def test_calibrated_maps_of_the_cases_are_written(tmp_path):
    model = model_of(tmp_path, n_cases=8, n_folds=1, sharpness=2.5)
    found = audit(model, out=tmp_path / "audit", write=("probabilities", "confidence"))
    stored = np.load(model / "fold_0" / "validation" / "case_000.npz")["probabilities"]
    written = np.load(found.root / "probabilities" / "case_000.npz", allow_pickle=False)
    assert written["probabilities"].max() <= 1
    assert written["probabilities"].max(0).mean() < stored.max(0).mean() - 0.01  # less sure
    assert (written["probabilities"].argmax(0) == stored.argmax(0)).all()
    assert list((found.root / "confidence").glob("case_000*"))


def test_python_calls_it_twice(sharp):
    """Importing the package must not take the name of the function."""
    model, found = sharp
    segcal.open_audit(found.root)
    for _ in range(2):
        assert segcal.audit(model, out=found.root).verdict == found.verdict


def test_no_folder_of_others_is_replaced(tmp_path):
    cases = made_cases(2, shape=SHAPE)
    folder = write_arrays(tmp_path / "probs", cases)
    labels = write_labels(tmp_path / "labels", cases)
    for target in (labels, folder, tmp_path):
        with pytest.raises(UserError, match="holds what is audited|is no audit"):
            audit(folder, labels, out=target, again=True)
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="exists and is no audit"):
        audit(folder, labels, out=tmp_path / "other", again=True)
    assert len(list(labels.iterdir())) == len(list(folder.iterdir())) == 2


def test_references_without_foreground_are_refused(tmp_path):
    cases = made_cases(2, shape=SHAPE)
    folder = write_arrays(tmp_path / "probs", cases)
    for case in cases:
        write_image(tmp_path / "labels" / f"{case.id}.nii.gz", np.zeros_like(case.label))
    with pytest.raises(UserError, match="no reference holds any foreground"):
        audit(folder, tmp_path / "labels", out=tmp_path / "audit")
    assert not (tmp_path / "audit").exists()


def test_a_failure_after_the_fits_stops_and_goes_on(sharp, tmp_path, monkeypatch):
    model, found = sharp

    def failing(source, case, fits, **options):
        if case.id == "case_005":
            raise UserError("a disk failed")
        return second_pass(source, case, fits, **options)

    monkeypatch.setattr(work, "second_pass", failing)
    with pytest.raises(UserError, match="a disk failed"):
        audit(model, out=tmp_path / "audit", keep_going=True)
    monkeypatch.undo()
    monkeypatch.setattr(work, "first_pass", lambda *a, **k: pytest.fail("done before"))
    again = audit(model, out=tmp_path / "audit", keep_going=True)
    assert again.about["scores"] == found.about["scores"]


def test_a_softmax_is_not_taken_for_regions(tmp_path):
    cases = made_cases(2, shape=SHAPE)
    folder = write_arrays(tmp_path / "probs", cases)
    labels = write_labels(tmp_path / "labels", cases)
    with pytest.raises(UserError, match="a softmax and no regions"):
        audit(folder, labels, out=tmp_path / "audit", kind="regions")
