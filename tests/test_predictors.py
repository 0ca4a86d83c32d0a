"""Predictors: a run, an ensemble, and anything else that gives predictions for cases."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from segcal import calibrators, metrics
from segcal.config import checked, run_settings
from segcal.data.prepare import prepare
from segcal.data.slices import volume
from segcal.fitting import calibrate
from segcal.folders import (
    calibrator_path,
    read_run,
    read_scores,
    save_weights,
    weights_path,
    write_run,
)
from segcal.predictors import (
    Prediction,
    Predictor,
    make_ensemble,
    open_ensemble,
    open_predictor,
    open_run,
)
from segcal.predictors.ensemble import mean_of_logits, mean_of_probs
from segcal.scoring import evaluate
from segcal.study.cells import Cell
from segcal.study.folder import adopted
from segcal.study.jobs import After
from segcal.training import train
from segcal.types import UserError


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    root = tmp_path_factory.mktemp("cases")
    return prepare("phantom", to=root, n_cases=8, shape=(4, 24, 24)).cases


@pytest.fixture(scope="module")
def trained(cases, tmp_path_factory):
    """Three runs that differ in their seed, and one with another loss."""
    root = tmp_path_factory.mktemp("runs")
    small = ["network.width=2", "training.epochs=2", "training.lr=0.01"]
    for name, loss, seed in (("a", "ce", 0), ("b", "ce", 1), ("c", "ce", 2), ("d", "ls", 0)):
        values = {"data": str(cases.root), "loss.name": loss, "seed": seed}
        train(run_settings(values, overrides=small), root / name, progress=False)
    return root


@pytest.fixture
def runs(trained, tmp_path):
    """Copies, so that tests may write into them."""
    shutil.copytree(trained, tmp_path / "runs")
    return [tmp_path / "runs" / name for name in "abc"]


@given(st.integers(1, 4), st.integers(0, 99))
def test_the_mean_of_probabilities_is_what_its_name_says(n, seed):
    parts = torch.randn(n, 2, 3, 4, 4, generator=torch.Generator().manual_seed(seed)) * 5
    expected = sum(np.asarray(part.softmax(1)) for part in parts) / n
    np.testing.assert_allclose(mean_of_probs(parts).exp(), expected, atol=1e-6)
    np.testing.assert_allclose(mean_of_logits(parts), np.asarray(parts).mean(0), atol=1e-5)


def test_the_mean_is_unsure_where_members_disagree():
    """Of sure members that disagree, the mean of probabilities is 0.5, whatever the logits."""
    parts = [torch.tensor([[60.0, 0.0]]), torch.tensor([[0.0, 20.0]])]
    assert mean_of_probs(parts).exp()[0].tolist() == pytest.approx([0.5, 0.5])
    assert mean_of_logits(parts).softmax(1)[0, 0] > 0.999


def test_a_run_gives_predictions_for_cases(runs, cases):
    run = open_predictor(runs[0])
    id = run.ids("test")[0]
    case = run.case(id)
    image, label = volume(cases, id)
    assert case.logits.shape == (len(run.classes) + 1, *label.shape)
    assert torch.equal(case.slices, run.logits(image))
    assert torch.equal(case.label, label)
    assert torch.equal(case.image, image)
    assert case.spacing == tuple(cases.case(id)["spacing"])
    noisy = run.case(id, corruption="gaussian_noise:0.05")
    assert not torch.equal(noisy.image, image)
    assert torch.equal(noisy.slices, run.logits(noisy.image))


@pytest.mark.parametrize("average", ["probs", "logits"])
def test_an_ensemble_predicts_the_mean_of_its_members(runs, average, tmp_path):
    make_ensemble(runs, tmp_path / "ens", average=average)
    ensemble = open_predictor(tmp_path / "ens")
    members = [open_run(folder) for folder in runs]
    for id in ensemble.ids("test"):
        case, parts = ensemble.case(id), torch.stack([run.case(id).logits for run in members])
        if average == "probs":
            torch.testing.assert_close(case.logits.exp(), parts.softmax(1).mean(0))
        else:
            torch.testing.assert_close(case.logits, parts.mean(0))


def test_scores_of_an_ensemble_are_those_of_its_predictions(runs, cases, tmp_path):
    make_ensemble(runs, tmp_path / "ens")
    ensemble = open_ensemble(tmp_path / "ens")
    rows = evaluate(ensemble)
    assert str(read_scores(tmp_path / "ens")) == str(rows)  # NaN differs from itself
    id = cases.split("test")[0]
    probs = torch.stack([open_run(folder).case(id).slices.softmax(1) for folder in runs]).mean(0)
    bins = metrics.reliability_of_probs(probs, volume(cases, id)[1], mask="reference")
    wanted = (id, "ece", "reference")
    (ece,) = (r["value"] for r in rows if (r["case"], r["metric"], r["voxels"]) == wanted)
    assert ece == pytest.approx(metrics.ece(bins).item(), abs=1e-6)
    assert {(r["method"], r["weights"]) for r in rows} == {("ce", "best")}
    facts = calibrate(ensemble, ["ts"])
    assert facts["ts"]["identity"]["run"] == ensemble.info["id"]
    assert {r["calibrator"] for r in read_scores(tmp_path / "ens")} == {"", "ts"}


def test_a_calibrator_of_each_member_is_applied_first(runs, tmp_path):
    with pytest.raises(UserError, match="there is no fitted calibrator"):
        make_ensemble(runs, tmp_path / "ens", calibrator="ts")
    for folder in runs:
        calibrate(open_run(folder, weights="last"), ["ts"])
    make_ensemble(runs, tmp_path / "ens", calibrator="ts", weights="last")
    ensemble = open_predictor(tmp_path / "ens")
    assert ensemble.weights == "last"
    id, parts = ensemble.ids("test")[0], []
    for folder in runs:
        fitted = calibrators.load(calibrator_path(folder, "ts", "last"))
        parts.append(fitted(open_run(folder, weights="last").case(id).slices).softmax(1))
    torch.testing.assert_close(ensemble.case(id).slices.exp(), torch.stack(parts).mean(0))
    with pytest.raises(UserError, match="is an ensemble of last weights; make another from the"):
        open_predictor(tmp_path / "ens", weights="best")


def test_an_ensemble_of_several_losses_is_named_after_them(runs, tmp_path):
    info = make_ensemble([runs[0], runs[0].parent / "d"], tmp_path / "ens")
    assert info["settings"]["loss"]["name"] == "CE+LS"
    other = make_ensemble([runs[0].parent / "d", runs[0]], tmp_path / "other")
    assert other["settings"] == info["settings"]  # whatever their order
    assert {member["loss"]["name"] for member in info["members"]} == {"ce", "ls"}
    assert info["settings"]["seed"] == 0


def test_an_ensemble_is_made_once_and_made_again_when_asked(runs, tmp_path):
    first = make_ensemble(runs, tmp_path / "ens")
    assert make_ensemble(runs, tmp_path / "ens") == first
    evaluate(open_predictor(tmp_path / "ens"))
    with pytest.raises(UserError, match="is another ensemble; choose another --out"):
        make_ensemble(runs[:2], tmp_path / "ens")
    assert make_ensemble(runs[:2], tmp_path / "ens", again=True)["id"] != first["id"]
    assert read_scores(tmp_path / "ens") == []  # of the ensemble that was there


def test_members_that_do_not_fit_are_refused(runs, cases, tmp_path):
    out = tmp_path / "ens"
    other = read_run(runs[1])
    make_ensemble(runs[1:], tmp_path / "inner")
    for folders, message in (
        (runs[:1], "needs at least two runs; got 1"),
        ([runs[0], runs[0]], "is given twice"),
        ([runs[0], tmp_path / "inner"], "is an ensemble; name its members instead"),
        ([runs[0], tmp_path / "nowhere"], "is not a run"),
    ):
        with pytest.raises(UserError, match=message):
            make_ensemble(folders, out)
    for change, message in (
        ({"data": other["data"] | {"checksum": "x"}}, "differ in their split"),
        ({"data": other["data"] | {"classes": ["x"]}}, "differ in their classes"),
        ({"settings": other["settings"] | {"fold": 1}}, "different folds"),
        ({"status": "running"}, "is not finished"),
        ({"packed": True}, "is a packed copy"),
    ):
        write_run(runs[1], other | change)
        with pytest.raises(UserError, match=message):
            make_ensemble(runs, out)
    assert not out.exists()
    write_run(runs[1], other)
    for again in (False, True):
        with pytest.raises(UserError, match="is a trained run; choose another --out"):
            make_ensemble(runs, runs[0].parent / "d", again=again)


def test_an_ensemble_is_not_trained(runs, cases, tmp_path):
    make_ensemble(runs, tmp_path / "ens")
    settings = run_settings(read_run(runs[0])["settings"] | {"data": str(cases.root)})
    with pytest.raises(UserError, match="is an ensemble, not a run; choose another --out"):
        train(settings, tmp_path / "ens", progress=False)


def test_an_ensemble_among_the_cells_of_a_study_is_no_cell(runs, tmp_path):
    make_ensemble(runs, tmp_path / "runs" / "ens")
    settings = checked(read_run(runs[0])["settings"])
    cell = Cell("a", settings, ("all",), After())
    assert adopted(tmp_path, [cell]) == (cell,)


def test_voxels_that_were_not_seen_are_not_fitted_on(tmp_path):
    """Half of each case is not predicted; only the other half decides the temperature."""
    info = drawn_info()
    write_run(tmp_path, info)

    class Half(Drawn):
        def case(self, id, **options):
            whole = super().case(id, **options)
            seen = torch.ones_like(whole.label, dtype=torch.bool)
            seen[:, 12:] = False
            logits = torch.where(seen, whole.logits, 50 * whole.logits)
            return replace(whole, logits=logits, seen=seen)

    (facts,) = calibrate(Half(tmp_path, info), ["ts"]).values()
    assert facts["temperature"] == pytest.approx(3, rel=0.05)


def test_patients_are_what_intervals_are_over(tmp_path):
    """Two cases of one patient are one."""
    info = drawn_info()
    write_run(tmp_path, info)
    facts = calibrate(Drawn(tmp_path, info), ["ts", "ts2"])
    assert [fact["n_patients"] for fact in facts.values()] == [4, 4]
    info["data"]["patients"] = {"val_0": "a", "val_3": "a"}
    facts = calibrate(Drawn(tmp_path, info), ["ts", "ts2"], again=True)
    assert [fact["n_patients"] for fact in facts.values()] == [3, 3]


def test_a_network_that_predicts_no_foreground_is_fitted_on_all_voxels(tmp_path):
    """And a second call knows the fit again."""
    info = drawn_info()
    write_run(tmp_path, info)

    class Background(Drawn):
        def case(self, id, **options):
            whole = super().case(id, **options)
            return replace(
                whole, logits=whole.logits - 50 * torch.eye(3)[1:].sum(0)[:, None, None, None]
            )

    for _ in range(2):
        facts = calibrate(Background(tmp_path, info), ["ts", "ts2"])
        assert facts["ts"]["voxels"] == "all"
        assert "no validation case has predicted foreground" in facts["ts"]["warnings"][-1]
        assert facts["ts2"]["near"] == 1


def test_a_case_without_a_label_is_refused_in_a_sentence(tmp_path):
    write_run(tmp_path, drawn_info())

    class Unlabelled(Drawn):
        def case(self, id, **options):
            return replace(super().case(id, **options), label=None)

    with pytest.raises(UserError, match="a case without a reference label cannot be scored"):
        evaluate(Unlabelled(tmp_path, drawn_info()))


def test_a_member_that_was_trained_again_is_noticed(runs, tmp_path):
    make_ensemble(runs, tmp_path / "ens")
    write_run(runs[1], read_run(runs[1]) | {"id": "other"})
    with pytest.raises(UserError, match="was trained again; make .* again with --again"):
        open_predictor(tmp_path / "ens")


def test_a_member_that_is_gone_is_named(runs, tmp_path):
    make_ensemble(runs, tmp_path / "ens")
    shutil.rmtree(runs[1])
    with pytest.raises(UserError, match="ens has lost its member .*b; move it back, or make"):
        open_predictor(tmp_path / "ens")


def test_other_data_are_refused_even_if_all_scores_are_known(runs, tmp_path):
    evaluate(open_run(runs[0]))
    other = prepare("phantom", to=tmp_path / "other", n_cases=8, shape=(4, 24, 24), seed=1).cases
    with pytest.raises(UserError, match="has changed since .* was trained"):
        open_run(runs[0], data=other.root)


def test_members_may_move_with_their_ensemble(runs, tmp_path):
    make_ensemble(runs, tmp_path / "runs" / "ens")
    shutil.move(tmp_path / "runs", tmp_path / "moved")
    assert evaluate(open_predictor(tmp_path / "moved" / "ens"))


@dataclass(eq=False)
class Drawn(Predictor):
    """No network at all: probabilities that are known, and labels drawn from them."""

    root: Path
    info: dict[str, Any]
    weights: str = "best"

    def ids(self, split):
        return tuple(f"{split}_{i}" for i in range(4))

    def case(self, id, *, corruption="", seed=0):
        generator = torch.Generator().manual_seed(sum(id.encode()))
        logits = 2 * torch.randn(3, 4, 24, 24, generator=generator)
        drawn = torch.multinomial(logits.flatten(1).softmax(0).T, 1, generator=generator)
        label = drawn.reshape(logits.shape[1:])
        return Prediction(3 * logits, label, torch.zeros(4, 1, 24, 24), (1.0, 1.0, 1.0))


def drawn_info():
    data = {"name": "drawn", "classes": ["x", "y"], "regions": {}, "checksum": "c", "splits": {}}
    settings = {"loss": {"name": "theirs"}, "network": {"name": "theirs"}, "fold": 0, "seed": 0}
    return {"id": "d", "status": "finished", "settings": settings, "data": data, "best": {}}


def test_scoring_and_fitting_need_no_network(tmp_path):
    """Logits three times too large: temperature scaling finds 3, and helps."""
    info = drawn_info()
    write_run(tmp_path, info)
    predictor = Drawn(tmp_path, info)
    facts = calibrate(predictor, ["ts"])
    assert facts["ts"]["temperature"] == pytest.approx(3, rel=0.05)
    rows = read_scores(tmp_path)
    assert {row["method"] for row in rows} == {"theirs"}
    nll = {}
    for row in rows:
        if (row["case"], row["metric"]) == ("pooled", "nll"):
            nll[row["calibrator"]] = row["value"]
    assert nll["ts"] < nll[""]


def test_weights_that_are_not_finite_are_refused(runs):
    path = weights_path(runs[0], "best")
    state = load_file(path)
    next(tensor for tensor in state.values() if tensor.is_floating_point()).fill_(float("nan"))
    save_weights(path, state)
    with pytest.raises(UserError, match="the best weights of .* are not numbers in "):
        open_predictor(runs[0])


def test_a_full_disk_while_calibrators_are_fitted_is_named(runs, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("500 requested and 100 written")  # NumPy's own, without a number

    monkeypatch.setattr("segcal.fitting.np.save", full)
    with pytest.raises(UserError, match="the disk of .*: not everything .*; make room"):
        calibrate(open_predictor(runs[0]), ["ts"])
    assert not (runs[0] / ".logits").exists()
