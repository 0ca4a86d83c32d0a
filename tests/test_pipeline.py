"""From a trained run to scores, calibrated scores and predictions."""

import csv
import itertools
import json
import math
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import SimpleITK as sitk
import torch
import torch.nn.functional as F
from official_layouts import write_layout
from test_calibrators import in_format_1
from typer.testing import CliRunner

from segcal import calibrators, fitting, metrics
from segcal.cli import app
from segcal.compare import read_results
from segcal.compare.tables import TABLES
from segcal.config import run_settings
from segcal.data.images import Grid
from segcal.data.inputs import grouped
from segcal.data.prepare import prepare
from segcal.data.slices import Slices, volume
from segcal.fitting import cache_logits, calibrate
from segcal.folders import alone, copy_packed, read_fits, read_run, write_json, write_scores
from segcal.predicting import Maps, Volumes, predict, summary
from segcal.predictors import Prediction, open_run
from segcal.predictors.run import volume_logits
from segcal.scoring import evaluate, statistics
from segcal.scoring.cases import case_rows, logit_sums
from segcal.scoring.volumes import VOLUMES
from segcal.training import train
from segcal.types import IGNORE, UserError


def trained(cases, out, *overrides):
    small = ["network.width=4", "training.epochs=6", "training.lr=0.01", *overrides]
    train(run_settings({"data": str(cases.root)}, overrides=small), out, progress=False)
    return open_run(out)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return prepare(
        "phantom", to=tmp_path_factory.mktemp("cases"), n_cases=10, shape=(5, 32, 28)
    ).cases


@pytest.fixture(scope="module")
def first(cases, tmp_path_factory):
    return trained(
        cases, tmp_path_factory.mktemp("runs") / "ce", "training.epochs=20", "loss.name=ce_dice"
    )


@pytest.fixture
def run(first, tmp_path):
    """A copy, so that tests may write into it."""
    shutil.copytree(first.root, tmp_path / "ce")
    return open_run(tmp_path / "ce")


def rows(run):
    with (run.root / "scores.csv").open() as file:
        return list(csv.DictReader(file))


def pick(table, **what):
    return [
        float(row["value"])
        for row in table
        if all(row[key] == value for key, value in what.items())
    ]


# Inference
# ------------------------------------------------------------------------------


def test_a_volume_is_seen_as_in_training(tmp_path):
    """Slices smaller than the largest are framed as the training set frames them, so the logits
    agree to the bit.
    """
    write_layout("hippocampus", tmp_path / "raw", n_cases=6, size=(4, 40, 37))
    for path in sorted((tmp_path / "raw").glob("*Tr/*_00[34].nii.gz")):
        image = sitk.ReadImage(str(path))
        sitk.WriteImage(image[:30, :29, :], str(path))
    cases = prepare("hippocampus", tmp_path / "raw", tmp_path / "cases").cases
    run = trained(cases, tmp_path / "run", "training.epochs=1")
    slices = Slices(cases, "train")
    assert tuple(run.info["frame"]) == slices.shape == (40, 37)
    small = next(id for id in cases.split("train") if cases.label(id).shape[1:] == (29, 30))
    start = sum(
        cases.label(id).shape[0] for id in cases.split("train")[: cases.split("train").index(small)]
    )
    batch = torch.stack([slices[start + i][0] for i in range(4)])
    with torch.inference_mode():
        seen = run.network(batch.contiguous(memory_format=torch.channels_last))[:, :, :29, :30]
    torch.testing.assert_close(run.logits(volume(cases, small)[0]), seen)


@pytest.mark.parametrize("size", [(40, 30), (33, 28), (32, 29), (20, 61), (90, 70)])
def test_a_larger_slice_is_seen_through_windows_of_the_size_of_training(size):
    """The network gets that size alone; one that looks at single voxels gives the same through any
    window.
    """
    seen, frame = set(), (32, 28)

    class Pointwise(torch.nn.Module):
        def forward(self, x):
            seen.add(tuple(x.shape[2:]))
            return torch.cat([x, 1 - x, x.square()], 1)

    image = torch.rand(3, 1, *size)
    expected = torch.cat([image, 1 - image, image.square()], 1)
    torch.testing.assert_close(
        volume_logits(Pointwise(), image, frame), expected, rtol=1e-4, atol=1e-5
    )
    assert seen == {frame}


def test_a_network_that_knows_its_border_keeps_its_head_in_a_larger_slice():
    """Logits of a slice that is one row taller differ little from those of the slice itself, but
    for that row.
    """
    border = torch.zeros(1, 1, 32, 28)
    border[:, :, 1:-1, 1:-1] = 5.0

    class KnowsItsBorder(
        torch.nn.Module
    ):  # background at the border of what it was trained with, and beyond
        def forward(self, x):
            if x.shape[2:] != border.shape[2:]:
                return torch.zeros(len(x), 2, *x.shape[2:])
            return torch.cat([5 - border.expand_as(x), border * x], 1)

    image = torch.ones(1, 1, 33, 28)
    logits = volume_logits(KnowsItsBorder(), image, (32, 28))
    assert (logits.argmax(1)[0, 2:-2, 1:-1] == 1).all()
    assert (logits.argmax(1)[0, [0, -1]] == 0).all()


def test_logits_do_not_depend_on_how_slices_are_grouped(first, cases):
    image = volume(cases, cases.ids[0])[0]
    whole = first.logits(image)
    assert whole.shape == (5, 4, 32, 28)
    single = torch.cat([first.logits(part) for part in image.split(1)])
    torch.testing.assert_close(single, whole, rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        torch.testing.assert_close(volume_logits(first.network, image, (32, 28)), whole)


def test_only_finished_runs_are_opened(run):
    with pytest.raises(UserError, match="is not a run"):
        open_run(run.root / "nowhere")
    write_json(run.root / "run.json", read_run(run.root) | {"status": "running"})
    with pytest.raises(UserError, match="is not finished"):
        open_run(run.root)


def test_damaged_weights_are_named(run):
    (run.root / "checkpoints" / "best.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot load the best weights of"):
        open_run(run.root)


# Evaluation
# ------------------------------------------------------------------------------


def test_scores_are_those_of_the_metrics(run, cases):
    evaluate(run)
    table = rows(run)
    columns = [
        "run",
        "dataset",
        "network",
        "method",
        "setting",
        "weights",
        "split",
        "corruption",
        "calibrator",
        "voxels",
    ]
    assert list(table[0]) == [*columns, "case", "class", "metric", "value"]
    for row in (row for row in table if row["metric"] not in VOLUMES):
        assert row["voxels"] in (metrics.METRICS[row["metric"]].voxels or ("", "empty"))
    total = 0
    for id in cases.split("test"):
        image, label = volume(cases, id)
        logits = run.logits(image)
        bins = metrics.reliability(logits, label, mask="reference")
        total = total + bins
        dice = metrics.dice(metrics.label_map(logits), label, n_classes=4)
        found = metrics.surfaces(
            metrics.label_map(logits), label, n_classes=4, spacing=cases.case(id)["spacing"]
        )
        for k, name in enumerate(cases.classes):
            assert pick(table, case=id, metric="dice", **{"class": name}) == pytest.approx(
                [dice[k].item()], nan_ok=True
            )
            assert pick(table, case=id, metric="hd95", **{"class": name}) == pytest.approx(
                [metrics.hd95(found)[k].item()], nan_ok=True
            )
        assert pick(table, case=id, metric="dice", **{"class": "mean"}) == pytest.approx(
            [dice.nanmean().item()]
        )
        for voxels in ("all", "near", "reference"):
            y = label[None]
            of_set = metrics.reliability(logits.movedim(0, 1)[None], y, mask=voxels)
            for key, row in metrics.METRICS.items():
                if voxels in row.voxels and not row.fine:
                    value = pick(table, case=id, metric=key, voxels=voxels, **{"class": "all"})
                    want = row.over(voxels, of_set).item()
                    assert value == pytest.approx([want], rel=1e-5, abs=1e-7), (voxels, key)
        cece = pick(table, case=id, metric="cece", voxels="reference")
        assert len(cece) == 5  # all, and each of four classes
    ece = pick(table, case="pooled", metric="ece", voxels="reference")
    assert ece == pytest.approx([metrics.ece(total).item()])
    (entry,) = json.loads((run.root / "bins.json").read_text())["entries"]
    assert entry["sets"]["reference"]["top"]["count"] == total.top.count.tolist()
    assert np.array(entry["mean_logits"]).shape == (4, 4)
    assert sum(entry["voxels"]) == sum(cases.label(id).size for id in cases.split("test"))


def test_summed_logits_leave_ignored_voxels_out():
    logits, label = torch.randn(3, 4, 6, 5), torch.randint(0, 4, (3, 6, 5))
    label[0, :2], label[1, 0] = -100, 0
    want = torch.zeros(4, 5).double()
    for d, i, j in itertools.product(range(3), range(6), range(5)):
        if label[d, i, j] >= 0:
            want[label[d, i, j]] += torch.cat([logits[d, :, i, j], torch.ones(1)]).double()
    torch.testing.assert_close(logit_sums(logits, label), want, rtol=1e-5, atol=1e-5)
    empty = logit_sums(logits, torch.zeros_like(label))[0, :4]
    torch.testing.assert_close(empty, logits.double().sum((0, 2, 3)), rtol=1e-5, atol=1e-5)


def test_mean_logits_are_per_true_class(run, cases):
    evaluate(run)
    (entry,) = json.loads((run.root / "bins.json").read_text())["entries"]
    pairs = [(run.logits(volume(cases, id)[0]), volume(cases, id)[1]) for id in cases.split("test")]
    for k in range(4):
        chosen = torch.cat([x.movedim(1, -1)[y == k] for x, y in pairs]).double().mean(0)
        torch.testing.assert_close(
            torch.tensor(entry["mean_logits"][k], dtype=torch.float64), chosen, rtol=1e-5, atol=1e-5
        )


def test_what_is_scored_is_not_scored_again(run, monkeypatch):
    before = evaluate(run)
    text = (run.root / "scores.csv").read_text()
    monkeypatch.setattr("segcal.predictors.run.volume_logits", None)
    again = evaluate(run)
    assert (run.root / "scores.csv").read_text() == text
    assert [row["metric"] for row in again] == [row["metric"] for row in before]


@pytest.mark.parametrize(
    "lost", [("metric", "misplaced"), ("metric", "expected_ml"), ("voxels", "near")]
)
def test_what_an_older_version_scored_is_scored_again(run, lost):
    """It wrote fewer metrics, over fewer voxels."""
    whole = evaluate(run)
    key, value = lost
    older = [row for row in whole if row[key] != value]
    assert len(older) < len(whole)
    write_scores(run.root, older)
    assert str(evaluate(run)) == str(whole)  # NaN is not equal to itself
    assert rows(run) == [{k: str(v) for k, v in row.items()} for row in whole]


def test_corruption_is_seeded_per_case_and_hurts(run):
    clean = evaluate(run)
    noisy = evaluate(run, corruption="gaussian_noise:0.3")
    assert str(evaluate(run, corruption="gaussian_noise:0.3", again=True)) == str(
        noisy
    )  # NaN is not equal to itself
    mean = [np.nanmean(pick(table, metric="dice", **{"class": "mean"})) for table in (clean, noisy)]
    assert mean[1] < mean[0] - 0.05
    assert {row["corruption"] for row in rows(run)} == {"", "gaussian_noise:0.3"}
    other = evaluate(run, corruption="gaussian_noise:0.30", seed=3)
    assert pick(other, metric="nll") != pick(noisy, metric="nll")
    assert evaluate(run, corruption="gaussian_noise:0")[0]["corruption"] == ""
    with pytest.raises(UserError, match="unknown corruption"):
        evaluate(run, corruption="snow:3")


def test_changed_data_are_refused(run):
    info = read_run(run.root)
    info["data"]["checksum"] = "other"
    write_json(run.root / "run.json", info)
    with pytest.raises(UserError, match="has changed since"):
        evaluate(open_run(run.root))


def test_regions_and_classes_are_both_scored_and_named(tmp_path):
    write_layout("brats", tmp_path / "raw", n_cases=6, size=(4, 28, 28))
    cases = prepare("brats", tmp_path / "raw", tmp_path / "cases").cases
    run = trained(cases, tmp_path / "run", "training.epochs=2")
    table = [{k: str(v) for k, v in row.items()} for row in evaluate(run)]
    id = cases.split("test")[0]
    image, label = volume(cases, id)
    pred = metrics.label_map(run.logits(image))
    core = [torch.isin(x, torch.tensor([1, 3])).long() for x in (pred, label)]
    expected = metrics.dice(*core, n_classes=2).item()
    assert pick(table, case=id, metric="dice", **{"class": "TC (region)"}) == pytest.approx(
        [expected], nan_ok=True
    )
    names = {row["class"] for row in table}
    assert {
        "NCR",
        "ED",
        "ET",
        "mean",
        "TC (region)",
        "ET (region)",
        "WT (region)",
        "mean (region)",
    } <= names


@pytest.mark.parametrize("n_classes", [4, 200])  # as bytes, and too many for that
@pytest.mark.parametrize("ignored", [False, True])
def test_regions_are_scored_like_objects_of_their_own(n_classes, ignored):
    generator = torch.Generator().manual_seed(n_classes)
    labels = torch.randint(4, (5, 12, 14), generator=generator) * (
        torch.rand(5, 12, 14, generator=generator) < 0.3
    )
    if ignored:
        labels[:, 3:6] = IGNORE
    logits = torch.randn(5, n_classes, 12, 14, generator=generator)
    logits[:, 4:] -= 50  # classes that nobody has
    regions, classes = (
        {"TC": [1, 3], "WT": [1, 2, 3], "none": [n_classes - 1]},
        [f"c{k}" for k in range(1, n_classes)],
    )
    run = SimpleNamespace(classes=tuple(classes), info={"data": {"regions": regions}})
    case = Prediction(logits.movedim(1, 0), labels, None, (2.0, 1.0, 1.5))
    of_case = statistics(case, logits)
    found = {
        (r["class"], r["metric"]): r["value"] for r in case_rows("a", logits, case, of_case, run)
    }
    pred = metrics.label_map(logits)
    objects = {
        name: [(x == k).long() for x in (pred, labels)]
        for k, name in enumerate(classes[:3], start=1)
    }
    objects |= {
        f"{name} (region)": [torch.isin(x, torch.tensor(p)).long() for x in (pred, labels)]
        for name, p in regions.items()
    }
    for name, (inside, truth) in objects.items():
        truth[labels == IGNORE] = IGNORE
        counts, far = (
            metrics.confusion(inside, truth, n_classes=2),
            metrics.surfaces(inside, truth, n_classes=2, spacing=[2.0, 1.0, 1.5]),
        )
        for key, row in metrics.METRICS.items():
            if row.of in ("confusion", "surfaces"):
                expected = row.function({"confusion": counts, "surfaces": far}[row.of]).item()
                assert found[name, key] == pytest.approx(expected, nan_ok=True), (name, key)
    for mean, names in (
        ("mean", classes),
        ("mean (region)", [f"{name} (region)" for name in regions]),
    ):
        assert found[mean, "missed"] == sum(found[name, "missed"] for name in names) == 0
        assert found[mean, "asd"] == pytest.approx(
            np.nanmean([found[name, "asd"] for name in names])
        )


def test_a_missed_object_leaves_no_mean_distance():
    labels = torch.zeros(5, 12, 14).long()
    labels[1:3, 2:6, 2:6], labels[1:3, 8:11, 8:11] = 1, 2
    logits = 9.0 * torch.nn.functional.one_hot(labels * (labels == 1), 3).movedim(
        -1, 1
    )  # the second is not seen
    for regions in ({}, {"one": [1], "other": [2]}):
        run = SimpleNamespace(classes=("a", "b"), info={"data": {"regions": regions}})
        case = Prediction(logits.movedim(1, 0), labels, None, (1.0, 1.0, 1.0))
        table = case_rows("case", logits, case, statistics(case, logits), run)
        found = {(row["class"], row["metric"]): row["value"] for row in table}
        for mean, first in (
            ("mean", "a"),
            *([("mean (region)", "one (region)")] if regions else []),
        ):
            assert found[first, "asd"] == found[first, "hd95"] == 0
            assert found[mean, "missed"] == 1
            assert found[mean, "dice"] == 0.5
            assert all(math.isnan(found[mean, key]) for key in ("asd", "assd", "hd95"))


def test_single_slices_have_distances_in_the_plane(tmp_path):
    write_layout("busi", tmp_path / "raw", n_cases=6, size=(4, 40, 40))
    cases = prepare("busi", tmp_path / "raw", tmp_path / "cases", size=(40, 40)).cases
    run = trained(cases, tmp_path / "run", "training.epochs=40")
    table = evaluate(run)
    assert run.info["data"]["distances"] == "pixels"
    for key, told in (("discriminative", True), ("calibration", False)):
        notes = " ".join(TABLES[key](read_results([run.root]), "busi", published=False).notes)
        assert ("Distances are in pixels of the original, not in mm" in notes) == told
    found = [row["value"] for row in table if row["metric"] == "asd" and row["class"] == "tumour"]
    assert any(not math.isnan(value) and value > 0 for value in found)


# Calibration
# ------------------------------------------------------------------------------


def test_calibrators_are_fitted_on_validation_and_scored_on_test(run, cases, monkeypatch, tmp_path):
    seen = []
    cache = fitting.cache_logits

    def watched(predictor, *arguments):
        class Watched:
            """The predictor, which notes the cases that a fit asks for."""

            ids, root, info = predictor.ids, predictor.root, predictor.info

            def case(self, id):
                seen.append(id)
                return predictor.case(id)

        return cache(Watched(), *arguments)

    monkeypatch.setattr(fitting, "cache_logits", watched)
    facts = calibrate(run, ["ts", "ts2", "lts", "vs"])
    assert set(seen) == set(cases.split("val"))
    table = rows(run)
    assert {row["calibrator"] for row in table} == {"", "ts", "ts2", "lts", "vs"}
    assert {row["split"] for row in table} == {"test"}
    assert {row["case"] for row in table} == {"pooled", *cases.split("test")}
    for name in ("ts", "ts2", "lts"):
        assert pick(table, calibrator=name, metric="dice") == pytest.approx(
            pick(table, calibrator="", metric="dice"), nan_ok=True
        )
    assert pick(table, calibrator="ts", metric="nll") != pick(table, calibrator="", metric="nll")
    assert set(facts) == {"ts", "ts2", "lts", "vs"}
    assert {name: fact["voxels"] for name, fact in facts.items() if name != "ts2"} == {
        "ts": "near",
        "lts": "all",
        "vs": "all",
    }
    kept = read_fits(run.root)
    assert {name: kept[name] | fact for name, fact in facts.items()} == kept
    assert read_fits(run.root, "last") == {}
    copy_packed(run.root, tmp_path / "packed", run.info)
    assert read_fits(tmp_path / "packed") == kept
    assert not (run.root / ".logits").exists()
    before = len(seen)
    calibrate(run, ["ts"])
    assert len(seen) == before
    with pytest.raises(UserError, match="on the voxels 'near', not 'all'; take --voxels near, or"):
        calibrate(run, ["ts2", "ts"], voxels="all")
    facts = calibrate(run, ["ts"], voxels="all", again=True)
    assert facts["ts"]["voxels"] == read_fits(run.root)["ts"]["voxels"] == "all"
    assert facts["ts"]["warnings"] == calibrate(run, ["ts"], voxels="all")["ts"]["warnings"] == []
    facts = calibrate(run, ["ts", "ts2"])  # nobody asks for voxels: the fit stays, with a warning
    assert facts["ts"]["voxels"] == "all"
    assert "fitted on the voxels 'all' and is kept; segcal calibrate" in facts["ts"]["warnings"][-1]
    assert facts["ts2"]["warnings"] == kept["ts2"]["warnings"]
    assert read_fits(run.root)["ts"]["warnings"] == []


@pytest.mark.parametrize("voxels", [None, "near", "all"])
def test_fits_know_the_nll_over_all_validation_voxels(run, cases, voxels):
    """Whatever they were fitted on; after the fit that is written."""
    facts = calibrate(run, ["ts", "ts2", "lts", "vs"], voxels=voxels)
    volumes = [volume(cases, id) for id in cases.split("val")]
    n_voxels = sum(label.numel() for _, label in volumes)
    assert len({voxels and fact["voxels"] for key, fact in facts.items() if key != "ts2"}) == 1
    for key, fact in facts.items():
        fitted = calibrators.load(run.root / "calibrators" / key)
        for when, apply in (("before", lambda x, _: x), ("after", fitted)):
            total = 0.0
            for image, label in volumes:
                logits = apply(run.logits(image), image).double()
                total += F.cross_entropy(logits, label, reduction="sum").item()
            assert fact["val_nll"][when] == pytest.approx(total / n_voxels, rel=1e-5), (key, when)
            if fact["voxels"] == "all":
                assert fact["val_nll"][when] == pytest.approx(fact[f"nll_{when}"], rel=1e-3)


def test_fits_of_raw_logits_are_fitted_again(run, monkeypatch):
    """By an older version; `ts`, which means the same, stays. Scores of the others are dropped."""
    calibrate(run, ["ts", "vs"])
    evaluate(run, calibrator="vs", split="val")
    for key in ("ts", "vs"):
        in_format_1(run.root / "calibrators" / key, key)
    older = (run.root / "calibrators" / "ts.json").read_bytes()
    with pytest.raises(UserError, match="segcal calibrate fits it on log-probabilities"):
        evaluate(run, calibrator="vs", split="train")
    facts = calibrate(run, ["ts", "vs"])
    assert (run.root / "calibrators" / "ts.json").read_bytes() == older
    assert "val_nll" not in facts["ts"]
    assert "'all' and is kept" in facts["ts"]["warnings"][-1]
    assert "older version had fitted it on raw logits" in facts["vs"]["warnings"][-1]
    assert read_fits(run.root)["vs"]["format"] == 2
    assert {row["split"] for row in rows(run) if row["calibrator"] == "vs"} == {"test"}
    monkeypatch.setattr("segcal.predictors.run.volume_logits", None)
    assert not any("raw logits" in line for line in calibrate(run, ["vs"])["vs"]["warnings"])


def test_a_new_fit_drops_every_score_of_the_old_one(run):
    calibrate(run, ["ts", "vs"])
    evaluate(run, calibrator="ts", corruption="gaussian_noise:0.05")
    evaluate(run, calibrator="ts", split="val")
    (run.root / ".logits").mkdir()  # left by a killed process
    (run.root / ".logits" / "junk.npy").write_bytes(b"x")
    path = run.root / "calibrators" / "ts.json"
    values = json.loads(path.read_text())
    calibrate(run, ["ts"], again=True)
    assert json.loads(path.read_text()).keys() == values.keys()
    assert not (run.root / ".logits").exists()
    conditions = {(row["split"], row["corruption"], row["calibrator"]) for row in rows(run)}
    assert conditions == {("test", "", ""), ("test", "", "ts"), ("test", "", "vs")}
    entries = json.loads((run.root / "bins.json").read_text())["entries"]
    assert {(e["split"], e["corruption"], e["calibrator"]) for e in entries} == conditions


def test_two_at_once_do_not_share_a_run(run):
    with (
        alone(run.root),
        ThreadPoolExecutor(1) as pool,
        pytest.raises(UserError, match="another process is at work on .*ce; wait until it is done"),
    ):
        pool.submit(evaluate, run).result()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(evaluate, run).result()


def test_changed_arrays_are_refused(tmp_path):
    mine = prepare("phantom", to=tmp_path / "cases", n_cases=6, shape=(4, 24, 24)).cases
    done = trained(mine, tmp_path / "run", "network.width=2", "training.epochs=1")
    path = mine.root / f"{mine.split('test')[0]}.label.npy"
    array = np.load(path)
    array[0] = 1 - array[0].clip(0, 1)
    np.save(path, array)
    with pytest.raises(
        UserError, match="is not what was prepared; prepare the data set again with --again"
    ):
        evaluate(done)
    with pytest.raises(UserError, match="is not what was prepared"):
        train(done.settings, tmp_path / "other", progress=False)


def test_edited_splits_are_refused(tmp_path):
    mine = prepare("phantom", to=tmp_path / "cases", n_cases=6, shape=(4, 24, 24)).cases
    done = trained(mine, tmp_path / "run", "network.width=2", "training.epochs=1")
    info = json.loads((mine.root / "cases.json").read_text())
    info["splits"][0]["test"].append(info["splits"][0]["train"].pop())
    write_json(mine.root / "cases.json", info)
    with pytest.raises(
        UserError, match="cases.json was edited; prepare the data set again with --again"
    ):
        evaluate(done)


def test_half_of_the_scores_is_not_taken_for_all(run):
    whole = evaluate(run)
    (run.root / "bins.json").unlink()  # killed between the two files
    evaluate(run)
    assert json.loads((run.root / "bins.json").read_text())["entries"]
    path = run.root / "scores.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:20]))
    assert len(evaluate(run)) == len(whole)
    path.write_bytes(b"\xff\xfe rubbish")
    with pytest.raises(
        UserError, match="scores.csv is damaged; remove it and run the same command again"
    ):
        evaluate(run)


def test_fine_bins_are_counted_like_a_loop(run, cases):
    evaluate(run)
    entry = json.loads((run.root / "bins.json").read_text())["entries"][0]
    entry = entry["sets"]["reference"]
    count, hit = entry["fine"]["count"], entry["fine"]["hit"]
    edges = [i / 15 for i in range(1, 15)]
    edges = sorted({*edges, *(1 / (1 + math.exp(-i / 4)) for i in range(-36, 37))})
    want = [[0, 0] for _ in range(len(edges) + 1)]
    for id in cases.split("test"):
        image, label = volume(cases, id)
        probs = torch.log_softmax(run.logits(image), 1).exp()
        for z, y, x in (label > 0).nonzero().tolist():
            conf, pred = probs[z, :, y, x].max(0)
            place = sum(conf.item() > edge for edge in edges)
            want[place][0] += 1
            want[place][1] += int(pred == label[z, y, x])
    assert [list(pair) for pair in zip(count, hit, strict=True)] == want
    for what, values in (("count", count), ("hit", hit)):
        joined = [0] * 15
        for edge, value in zip([*edges, 1.0], values, strict=True):
            joined[math.ceil(edge * 15 - 1e-9) - 1] += value
        assert joined == entry["top"][what]


def test_temperature_lowers_the_validation_loss(run, cases, tmp_path):
    calibrate(run, ["ts"], voxels="all")
    fitted = calibrators.load(run.root / "calibrators" / "ts")
    pairs = [(run.logits(volume(cases, id)[0]), volume(cases, id)[1]) for id in cases.split("val")]
    before, after = (
        sum(F.cross_entropy(f(x), y, reduction="sum") for x, y in pairs)
        for f in (lambda x: x, fitted)
    )
    assert after < before
    batches = cache_logits(run, tmp_path)
    assert [len(x) for x, _, _, _ in batches()] == [5 for _ in cases.split("val")]


def test_half_a_calibrator_is_fitted_again(run):
    calibrate(run, ["ts"])
    whole = (run.root / "calibrators" / "ts.safetensors").read_bytes()
    (run.root / "calibrators" / "ts.safetensors").unlink()
    calibrate(run, ["ts"])
    assert (run.root / "calibrators" / "ts.safetensors").read_bytes() == whole


def test_a_calibrator_of_another_run_is_refused(run, first, cases, tmp_path):
    calibrate(run, ["ts"])
    other = trained(cases, tmp_path / "other", "seed=1", "training.epochs=1")
    shutil.copytree(run.root / "calibrators", other.root / "calibrators")
    with pytest.raises(UserError, match="run"):
        evaluate(other, calibrator="ts")
    with pytest.raises(UserError, match="unknown calibrator 'tss'; choose one of ts, ts2, lts, vs"):
        calibrate(run, ["tss"])
    with pytest.raises(UserError, match="no fitted calibrator"):
        evaluate(run, calibrator="vs")


# Prediction
# ------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path):
    write_layout("msd", tmp_path / "new", n_cases=2, seed=9, size=(5, 32, 28))
    return sorted((tmp_path / "new" / "imagesTr").iterdir())


def test_predictions_lie_where_their_image_lies(run, images, tmp_path):
    calibrate(run, ["ts"])
    done = predict(run, images, tmp_path / "out", calibrator="ts", probabilities=True)
    assert set(done) == {"phantom_000", "phantom_001"}
    for path in images:
        name = path.name.split(".")[0]
        image = sitk.ReadImage(str(path))
        seg, conf = (
            sitk.ReadImage(str(tmp_path / "out" / f"{name}_{kind}.nii.gz"))
            for kind in ("seg", "confidence")
        )
        assert Grid.of(seg).close_to(Grid.of(image))
        assert Grid.of(conf).close_to(Grid.of(image))
        probs = np.stack(
            [
                sitk.GetArrayFromImage(sitk.ReadImage(str(p)))
                for p in sorted((tmp_path / "out").glob(f"{name}_prob_*"))
            ]
        )
        np.testing.assert_allclose(probs.sum(0), 1, atol=1e-4)
        np.testing.assert_array_equal(sitk.GetArrayFromImage(seg), probs.argmax(0))
        np.testing.assert_allclose(sitk.GetArrayFromImage(conf), probs.max(0), atol=1e-6)
        about = json.loads((tmp_path / "out" / f"{name}_summary.json").read_text())
        millilitres = np.prod(image.GetSpacing()) / 1000
        body = about["classes"]["body"]
        assert body["ml"] == pytest.approx((probs.argmax(0) == 1).sum() * millilitres, abs=1e-3)
        assert body["expected_ml"] == pytest.approx(probs[1].sum() * millilitres, rel=1e-3)
        assert "interval_ml" not in body  # two validation patients are too few for one


def test_a_prediction_is_not_made_twice_nor_overwritten(run, images, tmp_path):
    out = tmp_path / "out"
    first = predict(run, images, out)
    segs = sorted(out.glob("*_seg.nii.gz"))
    segs[0].write_bytes(b"corrected by hand")
    assert predict(run, images, out) == first
    assert segs[0].read_bytes() == b"corrected by hand"
    calibrate(run, ["ts"])
    with pytest.raises(
        UserError,
        match=r'calibrator is not set in .*_summary.json and "ts" here; choose another --out',
    ):
        predict(run, images, out, calibrator="ts")
    predict(run, images, out, calibrator="ts", probabilities=True, again=True)
    assert segs[0].read_bytes() != b"corrected by hand"
    assert list(out.glob("*_prob_*"))
    predict(run, images, out, again=True)
    assert not list(out.glob("*_prob_*"))  # they were of another calibrator
    segs[0].unlink()
    predict(run, images, out)
    assert segs[0].is_file()


def test_a_prepared_case_is_predicted_as_it_is_evaluated(tmp_path):
    """Through resizing and back: the label map agrees with the reference as well as the evaluation
    says.
    """
    write_layout("acdc", tmp_path / "raw", n_cases=12, size=(4, 40, 36))
    cases = prepare("acdc", tmp_path / "raw", tmp_path / "cases", size=(48, 48)).cases
    run = trained(cases, tmp_path / "run")
    id = cases.split("test")[0]
    path = next(tmp_path.glob(f"raw/training/*/{id}.nii.gz"))
    predict(run, [path], tmp_path / "out")
    seg = sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "out" / f"{id}_seg.nii.gz")))
    truth = sitk.GetArrayFromImage(sitk.ReadImage(str(path).replace(".nii.gz", "_gt.nii.gz")))
    here = metrics.dice(torch.from_numpy(seg).long(), torch.from_numpy(truth).long(), n_classes=4)
    table = [{k: str(v) for k, v in row.items()} for row in evaluate(run)]
    there = [pick(table, case=id, metric="dice", **{"class": name})[0] for name in cases.classes]
    np.testing.assert_allclose(np.nan_to_num(here.numpy()), np.nan_to_num(there), atol=0.08)


@pytest.mark.parametrize("older", [False, True])
def test_new_images_are_scaled_as_the_prepared_ones_were(tmp_path, monkeypatch, older):
    """By percentiles, or by the range where an older version prepared them so."""
    write_layout("nnunet", tmp_path / "raw", n_cases=6, size=(4, 32, 28))
    asked = {"percentiles": (0.0, 100.0)} if older else {}
    cases = prepare("mine", tmp_path / "raw", tmp_path / "cases", **asked).cases
    if older:
        info = json.loads((cases.root / "cases.json").read_text())
        del info["settings"]["recipe"]["percentiles"]
        write_json(cases.root / "cases.json", info)
    run = trained(cases, tmp_path / "run", "training.epochs=1")
    seen, logits = [], type(run).logits
    monkeypatch.setattr(type(run), "logits", lambda self, x: seen.append(x) or logits(self, x))
    for id in cases.ids[:2]:
        paths = [tmp_path / "raw" / "imagesTr" / f"{id}_000{c}.nii.gz" for c in (0, 1)]
        predict(run, paths, tmp_path / "out")
        np.testing.assert_array_equal(seen.pop().numpy(), cases.image(id))


def test_where_the_network_did_not_look_nothing_is_sure(tmp_path):
    write_layout("msd", tmp_path / "raw", n_cases=6, size=(5, 32, 28))
    cases = prepare("mine", tmp_path / "raw", tmp_path / "cases", crop=(5, 16, 14)).cases
    run = trained(cases, tmp_path / "run", "training.epochs=1")
    path = sorted((tmp_path / "raw" / "imagesTr").iterdir())[0]
    (about,) = predict(run, [path], tmp_path / "out").values()
    name = path.name.split(".")[0]
    seg, sure = (
        sitk.ReadImage(str(tmp_path / "out" / f"{name}_{kind}.nii.gz"))
        for kind in ("seg", "confidence")
    )
    seg, sure = sitk.GetArrayFromImage(seg), sitk.GetArrayFromImage(sure)
    inside = np.zeros(sure.shape, bool)
    inside[:, 8:24, 7:21] = True
    assert (sure[inside] > 0.25).all()
    assert not sure[~inside].any()
    assert not seg[~inside].any()
    assert about["unseen_share"] == 0.75
    said = CliRunner().invoke(
        app, ["predict", str(run.root), str(path), "--out", str(tmp_path / "again")]
    )
    assert (
        f"note: {name}: the network did not look at 75 % of the image; confidence is 0 there"
        in said.stderr
    )


def test_turned_images_come_back_turned(run, images, tmp_path):
    image = sitk.ReadImage(str(images[0]))
    turned = tmp_path / "turned.nii.gz"
    sitk.WriteImage(sitk.DICOMOrient(image, "PIL"), str(turned))
    predict(run, [images[0], turned], tmp_path / "out")
    one, two = (
        sitk.ReadImage(str(tmp_path / "out" / f"{name}_seg.nii.gz"))
        for name in ("phantom_000", "turned")
    )
    assert Grid.of(two).close_to(Grid.of(sitk.ReadImage(str(turned))))
    same = sitk.GetArrayFromImage(
        sitk.Resample(two, one, sitk.Transform(), sitk.sitkNearestNeighbor)
    ) == sitk.GetArrayFromImage(one)
    assert same.mean() > 0.99


def test_channels_are_gathered_and_counted(run, images, tmp_path):
    both = tmp_path / "both_0000.nii.gz", tmp_path / "both_0001.nii.gz"
    for path in both:
        shutil.copy(images[0], path)
    assert list(grouped([*both], 2)) == ["both"]
    for wrong in ([both[1]], [both[0]], [*both, tmp_path / "both_0002.nii.gz"]):
        with pytest.raises(UserError, match="where this run needs 2 channels, from _0000 on"):
            grouped(wrong, 2)
    here, there = tmp_path / "z" / "s_0000.nii.gz", tmp_path / "a" / "s_0001.nii.gz"
    assert grouped([there, here], 2) == {"s": (here, there)}  # by number, not by folder
    assert list(grouped([tmp_path / "amos_0001.nii.gz", tmp_path / "amos_0004.nii.gz"], 1)) == [
        "amos_0001",
        "amos_0004",
    ]
    with pytest.raises(
        UserError,
        match=r"has the files both_0000.nii.gz, both_0001.nii.gz where this run needs one channel",
    ):
        predict(run, [*both], tmp_path / "out")
    with pytest.raises(UserError, match="would both be case 's'"):
        grouped([here, tmp_path / "a" / "s_0000.nii.gz"], 1)
    four = tmp_path / "four.nii.gz"
    image = sitk.ReadImage(str(images[0]))
    sitk.WriteImage(sitk.JoinSeries([image, image]), str(four))
    with pytest.raises(UserError, match="holds 2 volumes where one is expected"):
        predict(run, [four], tmp_path / "out")
    for n in (2, 3, 4):
        vector = tmp_path / f"vector{n}.mha"
        sitk.WriteImage(sitk.Compose([sitk.Cast(image, sitk.sitkFloat32)] * n), str(vector))
        with pytest.raises(
            UserError, match=f"vector{n}.mha holds {n} volumes where one is expected"
        ):
            predict(run, [vector], tmp_path / "out")
    sitk.WriteImage(sitk.Cast(image, sitk.sitkComplexFloat32), str(tmp_path / "complex.nrrd"))
    for path, problem in (
        ("complex.nrrd", "holds complex numbers"),
        ("none.nii.gz", "missing"),
    ):
        with pytest.raises(UserError, match=problem):
            predict(run, [tmp_path / path], tmp_path / "out")


def test_summaries_count_what_they_say():
    probs = np.zeros((2, 2, 2, 2), np.float32)
    probs[1] = [[[0.99, 0.6], [0.6, 0.1]], [[0.0, 0.0], [0.0, 0.02]]]
    probs[0] = 1 - probs[1]
    grid = Grid((2, 2, 2), (10.0, 10.0, 10.0), (0.0,) * 3, tuple(np.eye(3).ravel()))
    seen = np.ones((2, 2, 2), np.uint8)
    volumes = Volumes((2.31,), (0.5995,), 1.0, 8.0)
    about = summary(Maps(probs, probs.argmax(0).astype(np.uint8), seen, grid, volumes), ("x",))
    assert about["classes"]["x"] == {
        "voxels": 3,
        "ml": 3.0,
        "expected_ml": 2.31,
        "spread_ml": 0.5995,
    }
    assert about["mean_confidence"] == pytest.approx(0.73)
    assert about["unsure_share"] == pytest.approx(2 / 3, abs=1e-3)
    nothing = Maps(probs, np.zeros((2, 2, 2), np.uint8), seen, grid, volumes)
    assert summary(nothing, ("x",))["unsure_share"] is None
