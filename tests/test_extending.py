"""A run that goes on to more epochs is the run that was longer from the start, or is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file
from test_training import Stopped

from segcal.config import run_settings
from segcal.data.prepare import prepare
from segcal.fitting import calibrate
from segcal.folders import read_log, read_run, weights_path
from segcal.predictors import open_run
from segcal.training import train
from segcal.types import UserError


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    root = tmp_path_factory.mktemp("cases")
    return prepare("phantom", to=root, n_cases=6, shape=(4, 24, 24)).cases


def settings(cases, epochs, *overrides):
    values = {"data": cases.root, "training.epochs": epochs}
    return run_settings(values, overrides=["network.width=4", "training.lr=0.01", *overrides])


CONSTANT = "training.lr_drop=1"
TIMES = ("seconds", "memory_mb")


def log_of(out):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in read_log(out)]


def same_weights(a, b, name):
    ours, theirs = (load_file(weights_path(out, name)) for out in (a, b))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)


def test_an_extended_run_is_the_longer_run(cases, tmp_path):
    short, long = tmp_path / "short", tmp_path / "long"
    train(settings(cases, 5, CONSTANT), long, progress=False)
    first = train(settings(cases, 2, CONSTANT), short, progress=False)
    calibrate(open_run(short), ["ts"])
    said = []
    info = train(settings(cases, 5, CONSTANT), short, progress=False, say=said.append)
    assert said == [f"{short} goes on with epoch 3 of 5"]
    assert log_of(short) == log_of(long)
    whole = read_run(long)
    assert info["status"] == "finished"
    assert info["settings"]["training"]["epochs"] == 5
    for name in ("best", "last"):
        assert info[name] == whole[name]
        assert same_weights(short, long, name)
    # of epochs before, the weights of those that were kept can be chosen
    assert info["nll"]["epoch"] in {first[name]["epoch"] for name in ("best", "last", "nll")} | {
        3,
        4,
        5,
    }
    # what was computed with the weights of the shorter run is gone, and cannot be taken for new
    assert not (short / "scores.csv").exists()
    assert not (short / "calibrators").exists()
    assert info["id"] != first["id"]
    said.clear()
    assert train(settings(cases, 5, CONSTANT), short, progress=False, say=said.append) == info
    assert said == [f"{short} is trained already; --again starts it over"]


def stopped_after(monkeypatch, n_epochs):
    """Stop a training when so many checkpoints are written."""
    real, n_saved = torch.save, []

    def save(value, file):
        real(value, file)
        n_saved.append(file)

    def begin(self, *_):
        if len(n_saved) == n_epochs:
            raise Stopped

    monkeypatch.setattr(torch, "save", save)
    monkeypatch.setattr("segcal.training.callbacks.Log.on_train_epoch_start", begin)


def test_a_run_that_was_stopped_early_goes_on_to_more_epochs(cases, tmp_path, monkeypatch):
    """Its rate has not fallen yet, and then falls at half of the new number."""
    short, long = tmp_path / "short", tmp_path / "long"
    train(settings(cases, 6), long, progress=False)
    with monkeypatch.context() as patched:
        stopped_after(patched, 1)
        with pytest.raises(Stopped):
            train(settings(cases, 4), short, progress=False)
    info = train(settings(cases, 6), short, progress=False)
    assert [row["lr"] for row in log_of(short)][1:] == [row["lr"] for row in log_of(long)][1:]
    assert [row["val_dice"] for row in log_of(short)] == [row["val_dice"] for row in log_of(long)]
    assert same_weights(short, long, "last")
    assert info["nll"] == read_run(long)["nll"]


def test_a_fallen_rate_is_the_reason_not_to_go_on(cases, tmp_path):
    train(settings(cases, 2), tmp_path / "run", progress=False)
    before = read_run(tmp_path / "run")
    told = (
        r"run cannot go on to 8 epochs: its learning rate fell after epoch 1, half of its 2, and"
        r" that of 8 epochs falls after epoch 4; choose another --out, or --again"
    )
    with pytest.raises(UserError, match=told):
        train(settings(cases, 8), tmp_path / "run", progress=False)
    assert read_run(tmp_path / "run") == before
    with pytest.raises(
        UserError, match=r"training.epochs is 2 in .*run and 1 here; choose another"
    ):
        train(settings(cases, 1), tmp_path / "run", progress=False)


def test_a_run_without_its_state_cannot_go_on(cases, tmp_path):
    out = tmp_path / "run"
    train(settings(cases, 1, CONSTANT), out, progress=False)
    (out / "checkpoints" / "last.ckpt").unlink()
    with pytest.raises(UserError, match="has lost the state to go on from"):
        train(settings(cases, 2, CONSTANT), out, progress=False)


def test_epochs_of_older_versions_are_counted_from_1(cases, tmp_path):
    """They counted from 0, in both files."""
    out = tmp_path / "run"
    train(settings(cases, 2), out, progress=False)
    info, rows = read_run(out), read_log(out)
    older = {key: value for key, value in info.items() if key != "first_epoch"}
    for name in ("best", "last", "nll"):
        older[name] = info[name] | {"epoch": info[name]["epoch"] - 1}
    (out / "run.json").write_text(json.dumps(older))
    text = (out / "log.csv").read_text().replace("\n2,", "\n1,").replace("\n1,", "\n0,", 1)
    (out / "log.csv").write_text(text)
    assert read_run(out) == info
    assert read_log(out) == rows
    assert [row["epoch"] for row in rows] == ["1", "2"]
