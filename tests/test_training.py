"""Training: what is learnt, what is kept, and that a killed run ends where it would have ended."""

import csv
import importlib.util
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from segcal import provenance
from segcal.cli import app
from segcal.config import run_settings
from segcal.data.layouts import msd
from segcal.data.phantom import Phantom
from segcal.data.prepare import prepare
from segcal.data.sampling import EpochSampler
from segcal.data.slices import Slices, volume
from segcal.folders import WEIGHTS, alone, checkpoint_path, read_run, weights_path, write_json
from segcal.losses import LOSSES
from segcal.networks import NETWORKS, last_layer
from segcal.predictors.run import open_run
from segcal.training import Segmentation, callbacks, train
from segcal.training.validation import SCORES, Sums, case_sums
from segcal.types import UserError

command_line = import_module("segcal.cli.app")  # not the app in it, which has its name
SMALL = ["network.width=2", "training.batch=4"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return prepare(
        "phantom", to=tmp_path_factory.mktemp("cases"), n_cases=6, shape=(4, 24, 24)
    ).cases


def settings(cases, *overrides, **values):
    return run_settings(
        {"data": str(cases.root), "training.epochs": 2} | values, overrides=[*SMALL, *overrides]
    )


def log(out):
    with (out / "log.csv").open() as file:
        return [
            {k: v for k, v in row.items() if k not in ("seconds", "memory_mb")}
            for row in csv.DictReader(file)
        ]


def weights(out, name="best"):
    return load_file(weights_path(out, name))


def same(a, b):
    return all(torch.equal(x, b[name]) for name, x in a.items())


def test_the_checkpoint_is_chosen_by_raw_classes_also_where_there_are_regions(cases, tmp_path):
    """Against Dice counted by hand on the validation volumes: that of the classes, not that of
    their union.
    """
    shutil.copytree(cases.root, tmp_path / "cases")
    write_json(tmp_path / "cases" / "cases.json", cases.info | {"regions": {"whole": [1, 2, 3]}})
    quick = ["loss.name=ce_dice", "training.lr=0.01", "network.width=4"]  # to learn something
    chosen = settings(cases, *quick, data=str(tmp_path / "cases"), **{"training.epochs": 12})
    info = train(chosen, tmp_path / "run", progress=False)
    assert info["data"]["regions"] == {"whole": [1, 2, 3]}
    run, of_classes, of_region = open_run(tmp_path / "run"), [], []
    for id in cases.split("val"):
        image, label = volume(cases, id)
        found = run.logits(image).argmax(1)
        pairs = [(found == k, label == k) for k in range(1, len(cases.classes) + 1)]
        of_classes.append(np.nanmean([dice_by_hand(*pair) for pair in pairs]))
        of_region.append(dice_by_hand(found > 0, label > 0))
    assert abs(np.mean(of_classes) - np.mean(of_region)) > 0.01  # or nothing would be shown
    assert info["best"]["val_dice"] == pytest.approx(np.mean(of_classes), abs=1e-4)


def dice_by_hand(found, label):
    both = int(found.sum() + label.sum())
    return 2 * int((found & label).sum()) / both if both else float("nan")


def test_versions_name_the_commit_of_the_sources_and_of_the_working_folder(tmp_path, monkeypatch):
    repository = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run([*repository, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    commit = subprocess.run(
        [*repository, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout[:12]
    monkeypatch.chdir(tmp_path)
    for place, known in (("site-packages", ""), ("src", commit)):
        (tmp_path / place / "segcal").mkdir(parents=True)
        (tmp_path / "pyproject.toml").touch()
        monkeypatch.setattr(
            provenance, "__file__", str(tmp_path / place / "segcal" / "provenance.py")
        )
        assert {key: provenance.versions()[key] for key in ("git", "segcal git")} == {
            "git": commit,
            "segcal git": known,
        }


def test_a_run_leaves_what_it_promises(cases, tmp_path):
    info = train(
        settings(cases, "loss.name=mbls_dice", "loss.margin=0.1"), tmp_path / "run", progress=False
    )
    assert info["status"] == "finished"
    assert info["data"]["checksum"] == cases.info["checksum"]
    loss = info["settings"]["loss"]
    assert loss["margin"] == 0.1
    assert loss == {"name": "mbls_dice"} | LOSSES["mbls_dice"].settings | {
        "margin": 0.1
    }  # defaults are written out
    assert info["settings"]["network"] == {"name": "unet"} | NETWORKS["unet"].settings | {
        "width": 2
    }
    assert (
        info["settings"]["training"]["keep_empty"] is cases.info["settings"]["recipe"]["keep_empty"]
    )
    assert info["settings"]["machine"]["accelerator"] in ("cpu", "cuda", "mps")
    assert info["data"]["splits"] == {
        name: len(cases.split(name)) for name in ("train", "val", "test")
    }
    assert info["versions"]["torch"].startswith("2.")
    assert info["seconds"] > 0
    assert info["peak_memory_mb"] > 50
    rows = log(tmp_path / "run")
    assert [int(row["epoch"]) for row in rows] == [1, 2]
    assert [float(row["lr"]) for row in rows] == [1e-3, 1e-4]
    assert {
        "train_loss",
        "train_ce",
        "train_soft_dice",
        "train_margin_penalty",
        *SCORES,
    } <= set(rows[0])
    assert info["best"]["val_dice"] == pytest.approx(
        max(float(row["val_dice"]) for row in rows), abs=1e-6
    )
    assert rows[info["best"]["epoch"] - 1]["val_dice"] == max(row["val_dice"] for row in rows)
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file()


def test_a_run_keeps_the_best_and_the_last_weights(cases, tmp_path):
    info = train(settings(cases, **{"training.epochs": 5}), tmp_path / "run", progress=False)
    rows = log(tmp_path / "run")
    dices = [float(row["val_dice"]) for row in rows]
    assert info["best"]["epoch"] - 1 == dices.index(max(dices)) < 4  # else this shows nothing
    for name, row in (("best", rows[info["best"]["epoch"] - 1]), ("last", rows[4])):
        lacking = [kind for kind in row["never_predicted"].split("; ") if kind]
        scores = {key: float(row[key]) for key in SCORES}
        expected = {"epoch": int(row["epoch"])} | scores | {"never_predicted": lacking}
        assert info[name] == expected
    state = torch.load(checkpoint_path(tmp_path / "run"), weights_only=True)["state_dict"]
    last = {}
    for name, value in state.items():
        if name.startswith("network."):
            last[name.removeprefix("network.")] = value
    assert same(weights(tmp_path / "run", "last"), last)
    assert not same(weights(tmp_path / "run", "best"), last)
    opened = open_run(tmp_path / "run", weights="last").network.state_dict()
    assert same(opened, last)


def test_an_older_run_that_kept_its_last_weights_is_read_as_such(cases, tmp_path):
    """As packed results have them: `training.keep`, and `best` for what was kept."""
    info = train(settings(cases, **{"training.epochs": 1}), tmp_path / "run", progress=False)
    kept = info.pop("last")
    info["settings"]["training"]["keep"] = "last"
    write_json(tmp_path / "run" / "run.json", info | {"best": kept})
    upgraded = read_run(tmp_path / "run")
    assert upgraded["last"] == kept
    assert "best" not in upgraded
    assert "keep" not in upgraded["settings"]["training"]


OLD = {"network.last_activation": "relu", "training.class_prior": False}
"""The form of all networks before there were settings of it."""


def make_old(root):
    """Take out of `run.json` what an older version did not write."""
    info = json.loads((root / "run.json").read_text())
    del info["settings"]["training"]["class_prior"]
    info["settings"]["network"] = {"name": "unet", "width": 2}
    write_json(root / "run.json", info)


def test_an_older_run_opens_in_the_form_it_was_trained_in(cases, tmp_path):
    train(settings(cases, **OLD), tmp_path / "run", progress=False)
    whole = read_run(tmp_path / "run")["settings"]
    (id, *_) = cases.split("test")
    expected = open_run(tmp_path / "run").case(id).logits
    make_old(tmp_path / "run")
    assert read_run(tmp_path / "run")["settings"] == whole
    assert torch.equal(open_run(tmp_path / "run").case(id).logits, expected)
    train(settings(cases, **OLD), tmp_path / "run", progress=False)  # finished, and the same
    with pytest.raises(
        UserError, match=r"network\.\w+ is .* in .*run and .* here.*; choose another"
    ):
        train(settings(cases), tmp_path / "run", progress=False)


def test_logits_start_at_the_shares_of_the_classes(cases):
    slices = Slices(cases, "train")
    bias = last_layer(Segmentation(settings(cases), cases, slices)).bias
    torch.testing.assert_close(bias.softmax(0), slices.class_shares)
    without = settings(cases, "training.class_prior=false")
    random = last_layer(Segmentation(without, cases, slices)).bias
    assert random.abs().max() <= 2**-0.5  # as PyTorch draws it, for two features


def small_objects(n_cases):
    """Four classes: objects of 12 to 20 voxels a slice at random places, 2 % of all voxels."""
    for i in range(n_cases):
        rng = np.random.default_rng([7, i])
        label = np.zeros((4, 48, 48), np.uint8)
        for k, (height, width) in enumerate(((4, 5), (4, 4), (3, 4)), start=1):
            y, x = rng.integers(2, 38, 2)
            label[:, y : y + height, x : x + width] = k
        image = np.array([300.0, 420.0, 540.0, 660.0])[label] + rng.normal(0, 30, label.shape)
        yield Phantom(f"case_{i:02d}", image[None].round().astype(np.float32), label, (3.0, 1, 1))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    root = tmp_path_factory.mktemp("small")
    msd(root / "raw", small_objects(14))
    return prepare("small", root / "raw", root / "cases").cases


def lost(cases, seed, *overrides):
    """The classes that no validation voxel is predicted as after 60 steps."""
    brief = ("network.width=8", "training.lr=0.003", *overrides)
    slices = Slices(cases, "train")
    chosen = run_settings({"data": str(cases.root), "seed": seed}, overrides=brief)
    module = Segmentation(chosen, cases, slices).train()
    optimizer = module.configure_optimizers()["optimizer"]
    torch.manual_seed(seed)
    for step in range(60):
        batch = slices.batch(torch.randint(len(slices), (8,)).tolist())
        optimizer.zero_grad()
        module.training_step(batch, step).backward()
        optimizer.step()
    module.eval()
    total = Sums.zero(len(cases.classes) + 1)
    with torch.inference_mode():
        for id in cases.split("val"):
            image, label = volume(cases, id)
            total += case_sums(module.network(image), label)
    return total.never_predicted


def test_every_class_is_learned_whatever_the_seed(small):
    shares = Slices(small, "train").class_shares
    assert shares[1:].sum() == pytest.approx(0.02, abs=0.002)
    assert [lost(small, seed) for seed in range(10)] == [[]] * 10


def test_the_form_of_the_paper_loses_classes(small):
    """What the defaults are for; if it no longer does, the test above says nothing."""
    form = [f"{key}={str(value).lower()}" for key, value in OLD.items()]
    assert any(lost(small, seed, *form) for seed in range(3))


def test_it_learns(cases, tmp_path):
    train(
        settings(cases, "training.lr=0.01", "network.width=4", **{"training.epochs": 12}),
        tmp_path / "run",
        progress=False,
    )
    rows = log(tmp_path / "run")
    assert float(rows[-1]["train_loss"]) < 0.5 * float(rows[0]["train_loss"])


def test_the_seed_decides(cases, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(settings(cases, seed=seed), tmp_path / name, progress=False)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert log(tmp_path / "a") == log(tmp_path / "b")
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_a_finished_run_is_left_alone(cases, tmp_path):
    first = train(settings(cases), tmp_path / "run", progress=False)
    assert train(settings(cases), tmp_path / "run", progress=False) == first
    assert train(settings(cases, "machine.workers=1"), tmp_path / "run", progress=False) == first
    same_words = [
        "loss.name=ce",
        "network.name=unet",
        "training.batch=4",
        "training.keep_empty=true",
    ]
    assert (
        train(settings(cases, *same_words), tmp_path / "run", progress=False) == first
    )  # defaults may be named
    with pytest.raises(
        UserError,
        match=r'loss.name is "ce" in .*run and "ls" here; training.lr is .* and 0.1 here; choose',
    ):
        train(settings(cases, "loss.name=ls", "training.lr=0.1"), tmp_path / "run", progress=False)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "run" / "scores.csv").write_text("old")
    assert train(settings(cases), tmp_path / "run", again=True, progress=False)["id"] != first["id"]
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "run" / "scores.csv").exists()


def test_a_second_process_is_refused(cases, tmp_path):
    with alone(tmp_path / "run"), ThreadPoolExecutor(1) as pool:
        second = pool.submit(train, settings(cases), tmp_path / "run", progress=False)
        with pytest.raises(
            UserError, match="another process is at work on .*run; wait until it is done"
        ):
            second.result()
    assert not (tmp_path / "run").exists()


class Stopped(BaseException):
    """Stands for a kill at this very place."""


@pytest.mark.parametrize(
    "more",
    [
        ["training.augment=true", "loss.name=mbls"],
        ["training.augment=true", "machine.workers=1"],
        ["network.name=transunet", "network.width=4", "network.depth=1"],  # with dropout
    ],
    ids=["augmented", "worker", "dropout"],
)
def test_a_kill_while_a_checkpoint_is_written_leaves_the_old_one(
    cases, tmp_path, monkeypatch, more
):
    """The third epoch's checkpoint is cut off halfway; the run goes on from the second one, to the
    same end.
    """
    chosen, out = settings(cases, *more, **{"training.epochs": 4}), tmp_path / "killed"
    whole = train(chosen, tmp_path / "whole", progress=False)
    real, n_saved = torch.save, []

    def cut(value, file):
        n_saved.append(Path(file.name))
        real(value, file)
        if len(n_saved) == 3:
            file.truncate(100)
            raise Stopped

    monkeypatch.setattr(torch, "save", cut)
    with pytest.raises(Stopped):
        train(chosen, out, progress=False)
    monkeypatch.undo()
    assert {path.parent for path in n_saved} == {
        out / "checkpoints"
    }  # never through another file system
    assert torch.load(out / "checkpoints" / "last.ckpt", weights_only=True)["epoch"] == 1
    resumed = train(chosen, out, progress=False)
    assert log(out) == log(tmp_path / "whole")
    for name in WEIGHTS:
        assert resumed[name] == whole[name]
        assert same(weights(out, name), weights(tmp_path / "whole", name))
    names = {f"{name}.safetensors" for name in WEIGHTS} | {"last.ckpt"}
    assert {path.name for path in (out / "checkpoints").iterdir()} == names


@contextmanager
def full_disk(size):
    """No file may grow beyond this; the system answers as it does when the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path):
    path, writer = tmp_path / "last.ckpt", callbacks.Checkpoints()
    writer.save_checkpoint({"epoch": 1}, path)
    message = (
        "cannot write .*last.ckpt: File too large; make room, and the same command goes on from the"
        " epoch before"
    )
    with full_disk(1 << 20), pytest.raises(UserError, match=message):
        writer.save_checkpoint({"epoch": 2, "weights": torch.zeros(1 << 20)}, path)
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]
    assert writer.load_checkpoint(path) == {"epoch": 1}


def test_another_error_is_not_taken_for_a_full_disk(tmp_path, monkeypatch):
    def broken(value, file):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        callbacks.Checkpoints().save_checkpoint({}, tmp_path / "last.ckpt")
    assert not list(tmp_path.iterdir())


def test_calibration_without_foreground_is_unknown_not_perfect(cases, tmp_path, monkeypatch):
    def empty(cases, id):
        image, label = volume(cases, id)
        return image, torch.zeros_like(label)

    monkeypatch.setattr("segcal.training.module.volume", empty)
    info = train(settings(cases), tmp_path / "run", progress=False)
    assert math.isnan(info["best"]["val_ece"])
    assert math.isnan(read_run(tmp_path / "run")["best"]["val_ece"])
    assert all(math.isnan(float(row["val_ece"])) for row in log(tmp_path / "run"))
    assert info["best"]["val_dice"] == 0
    assert info["nll"]["epoch"] == info["best"]["epoch"]  # no NLL: by Dice
    assert weights(tmp_path / "run")


def test_a_damaged_checkpoint_is_named(cases, tmp_path):
    train(settings(cases), tmp_path / "run", progress=False)
    info = read_run(tmp_path / "run")
    write_json(tmp_path / "run" / "run.json", info | {"status": "running"})
    (tmp_path / "run" / "checkpoints" / "last.ckpt").write_bytes(b"PK nonsense")
    with pytest.raises(UserError, match="last.ckpt is damaged; --again starts the run over"):
        train(settings(cases), tmp_path / "run", progress=False)


def test_a_run_with_nonsense_in_it_is_named(cases, tmp_path):
    train(settings(cases), tmp_path / "run", progress=False)
    info = read_run(tmp_path / "run")
    info["settings"]["training"]["epochs"] = "many"
    write_json(tmp_path / "run" / "run.json", info)
    with pytest.raises(UserError, match="setting training.epochs: "):
        open_run(tmp_path / "run")


def test_tensorboard_gets_what_is_logged(cases, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    info = train(settings(cases, "machine.loggers=tensorboard"), tmp_path / "run", progress=False)
    (folder,) = {path.parent for path in (tmp_path / "run" / "tensorboard").rglob("events.*")}
    events = EventAccumulator(str(folder)).Reload()
    for key in ("val_dice", "val_ece", "train_loss", "lr"):
        found = [(event.step, event.value) for event in events.Scalars(key)]
        assert found == [
            (int(row["epoch"]), pytest.approx(float(row[key]), abs=1e-6))
            for row in log(tmp_path / "run")
        ]
    assert info["status"] == "finished"


def test_mlflow_gets_what_is_logged(cases, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    run = tmp_path / "run"
    train(settings(cases, "machine.loggers=['mlflow']"), run, progress=False)
    client = mlflow.MlflowClient(f"sqlite:///{run / 'mlflow.db'}")
    (found,) = client.search_runs(
        [experiment.experiment_id for experiment in client.search_experiments()]
    )
    assert (found.info.run_name, found.data.params["loss/name"]) == ("run", "ce")
    history = [
        (entry.step, entry.value)
        for entry in client.get_metric_history(found.info.run_id, "val_dice")
    ]
    assert history == [
        (int(row["epoch"]), pytest.approx(float(row["val_dice"]))) for row in log(run)
    ]


def test_wandb_writes_into_the_runs_folder(cases, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    train(settings(cases, "machine.loggers=['wandb']"), tmp_path / "run", progress=False)
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert b"val_dice" in file.read_bytes()


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="it is")
def test_a_logger_that_is_not_installed_is_named(cases, tmp_path):
    with pytest.raises(UserError, match="the logger wandb is not installed; pip install wandb"):
        train(settings(cases, "machine.loggers=['wandb']"), tmp_path / "run", progress=False)


def test_a_logger_that_fails_is_named(cases, tmp_path, monkeypatch):
    def refuse(self, *args):
        raise ConnectionError("no server\nat all")

    monkeypatch.setattr("lightning.pytorch.loggers.TensorBoardLogger.log_hyperparams", refuse)
    with pytest.raises(
        UserError,
        match=r"the logger tensorboard does not work \(no server\); correct it, or leave it out",
    ):
        train(settings(cases, "machine.loggers=['tensorboard']"), tmp_path / "run", progress=False)


def test_no_folder_of_the_users_is_replaced(cases, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for again in (False, True):
        with pytest.raises(UserError, match="exists and is not a run; choose another --out"):
            train(settings(cases), tmp_path, again=again, progress=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_changed_data_is_refused(cases, tmp_path):
    train(settings(cases), tmp_path / "run", progress=False)
    info = read_run(tmp_path / "run")
    info["data"]["checksum"] = "other"
    write_json(tmp_path / "run" / "run.json", info)
    with pytest.raises(UserError, match="has changed since"):
        train(settings(cases), tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss.name=mbsl"], "unknown loss 'mbsl'; choose one of ce"),
        (
            ["loss.name=mbls", "loss.marign=3"],
            "unknown setting of mbls 'marign'; choose one of margin",
        ),
        (["loss.name=mbls", "loss.margin=-3"], "margin must be at least 0; got -3"),
        (["network.name=unet3"], "unknown network 'unet3'; choose one of unet"),
        (["network.widht=3"], "widht"),
        (
            ["machine.loggers=['comet']"],
            "unknown logger 'comet'; choose one of tensorboard, wandb, mlflow",
        ),
        (["machine.precision=foo"], "Lightning refuses these machine settings"),
        (["machine.accelerator=gpu"], "Lightning refuses these machine settings"),
        (["loss.name=mbls", "loss.margin=abc"], "margin must be a number; got 'abc'"),
        (["loss.ignore_index=1"], "a run marks ignored voxels with -100"),
        (["fold=3"], r"fold must lie in 0\.\.0"),
    ],
)
def test_mistakes_are_found_before_any_work(cases, tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        train(settings(cases, *overrides), tmp_path / "run", progress=False)
    assert not list(tmp_path.glob("run/checkpoints/*"))


def test_an_exploding_loss_is_named(cases, tmp_path):
    with pytest.raises(UserError, match="the loss is (nan|inf) in epoch 1; lower training.lr"):
        train(settings(cases, "training.lr=1e30"), tmp_path / "run", progress=False)


def test_orders_are_seeded_and_shared_out(monkeypatch):
    def orders(rank, world, seed=0, epoch=0):
        monkeypatch.setattr("segcal.data.sampling._place", lambda: (rank, world))
        sampler = EpochSampler(7, 3, seed)
        sampler.set_epoch(epoch)
        assert len(list(sampler)) == len(sampler)
        assert all(len(batch) == 3 for batch, _ in list(sampler)[:-1])
        seeds = [own for _, own in sampler]
        assert len(set(seeds)) == len(seeds)
        return [index for batch, _ in sampler for index in batch]

    assert sorted(orders(0, 1)) == list(range(7))
    assert orders(0, 1) == orders(0, 1) != orders(0, 1, epoch=1)
    assert orders(0, 1) != orders(0, 1, seed=1)
    assert set(orders(0, 2)) | set(orders(1, 2)) == set(range(7))
    assert len(orders(0, 2)) == len(orders(1, 2)) == 4


# Real processes
# ------------------------------------------------------------------------------

SEGCAL = Path(sys.executable).parent / "segcal"


def command(cases, out, *more):
    sets = [part for text in SMALL for part in ("--set", text)]
    return [str(SEGCAL), "train", str(cases.root), "--out", str(out), *sets, *more]


def run(*args):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        args[0], capture_output=True, text=True, env=env, check=False, timeout=300
    )


def timed(out):
    with (out / "log.csv").open() as file:
        return [(row["epoch"], row["seconds"], row["memory_mb"]) for row in csv.DictReader(file)]


ENDS = {
    "cuda": (
        "import torch; raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00"
        " GiB.')"
    ),
    "cpu": "import torch; torch.empty(1 << 50)",
    "numpy": "import numpy; numpy.zeros(1 << 50)",
    "disk": "import errno; raise OSError(errno.ENOSPC, 'No space left on device')",
    "other": "raise RuntimeError('a mistake of ours')",
}


@pytest.mark.parametrize("kind", ENDS)
def test_what_the_machine_lacks_is_said_in_one_sentence(kind, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where tracebacks go
    monkeypatch.setattr(command_line, "app", lambda: exec(ENDS[kind]))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as end:
        command_line.main()
    (line,) = capsys.readouterr().err.splitlines()
    if kind == "other":
        assert "this is a bug in segcal: RuntimeError: a mistake of ours" in line
        assert end.value.code == 70
        return
    assert end.value.code == 2
    remedy = (
        "make room, then run the same command again"
        if kind == "disk"
        else "a smaller training.batch or network.width"
    )
    assert line.startswith("segcal: ")
    assert line.endswith(remedy)


def test_windows_has_losses_and_metrics_and_is_told_of_wsl():
    """Without the modules that only Unix has."""
    code = (
        "import sys; sys.modules |= dict(fcntl=None, resource=None); sys.argv = ['segcal', 'train',"
        " 'x']; "
    )
    code += (
        "from segcal.losses import LOSSES; from segcal.metrics import CalibrationScores;"
        " CalibrationScores(2); "
    )
    done = run([sys.executable, "-c", code + "from segcal.cli import main; main()"])
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(
        "segcal: on Windows segcal has only its losses and metrics; for all else"
    )
    assert "WSL" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_killed_run_goes_on_to_the_same_result(cases, tmp_path):
    """kill -9 in the middle of an epoch, twice; the weights are those of a run that was left in
    peace.
    """
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    more = ("--epochs", "6", "--loss", "mbls", "--set", "training.augment=true")
    assert run(command(cases, whole, *more)).returncode == 0
    before = []
    for seen in (1, 3):
        process = subprocess.Popen(
            command(cases, killed, *more),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        deadline = time.monotonic() + 120
        while (
            not ((killed / "log.csv").is_file() and len(log(killed)) >= seen)
            and time.monotonic() < deadline
        ):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert json.loads((killed / "run.json").read_text())["status"] == "running"
        before = timed(killed)[: seen - 1] + before[seen - 1 :]
    assert run(command(cases, killed, *more)).returncode == 0
    assert log(killed) == log(whole)
    assert timed(killed)[:2] == before[:2]  # the epochs before the kill were not run again
    assert all(same(weights(killed, name), weights(whole, name)) for name in WEIGHTS)
    assert read_run(killed)["status"] == "finished"


def test_two_processes_train_together(cases, tmp_path):
    more = (
        "--json",
        "--epochs",
        "2",
        "--devices",
        "2",
        "--strategy",
        "ddp",
        "--set",
        "machine.accelerator=cpu",
    )
    done = run(command(cases, tmp_path / "run", *more))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"  # once, not once per process
    both = log(tmp_path / "run")
    # one process with the batch of both sees the same mean gradient; batch statistics and rounding
    # differ a little
    one = train(
        settings(cases, "training.batch=8", "machine.accelerator=cpu"),
        tmp_path / "one",
        progress=False,
    )
    for a, b in zip(both, log(tmp_path / "one"), strict=True):
        assert float(a["train_loss"]) == pytest.approx(float(b["train_loss"]), rel=0.15)
        assert float(a["val_ece"]) == pytest.approx(float(b["val_ece"]), abs=0.1)
    assert one["status"] == "finished"


TOGETHER = """
import sys
from pathlib import Path
from segcal import provenance
from segcal.config import run_settings
from segcal.training import train
data, out, *sets = sys.argv[1:]
for more, again in (([], False), ([], False), (["training.lr=0.5"], False), ([], True)):
    chosen = run_settings({"data": data}, overrides=[*sets, *more])
    try:
        info = train(chosen, Path(out), again=again, progress=False)
        print(info["status"], info.get("id"), sep=":")
    except ValueError as error:
        print("refused", error, sep=":")
"""


def test_processes_started_together_hear_what_the_first_decides(cases, tmp_path, unused_port):
    """As torchrun starts them. A new run, a finished one, a refused one, and again: none may wait
    for another in vain.
    """
    sets = [
        *SMALL,
        "training.epochs=1",
        "machine.devices=2",
        "machine.strategy=ddp",
        "machine.accelerator=cpu",
    ]
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(unused_port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
    }
    place |= {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(cases.root), str(tmp_path / "run"), *sets],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        first, second = (
            [line.split(":") for line in p.communicate(timeout=240)[0].splitlines()]
            for p in started
        )
    finally:
        for process in started:
            process.kill()
    assert [line[0] for line in first] == ["finished", "finished", "refused", "finished"]
    assert first[0] == first[1] != first[3]  # left alone, then begun anew
    assert [line[0] for line in second] == ["running", "running", "refused", "running"]
    assert "choose another --out, or --again" in ":".join(first[2])
    assert "choose another --out, or --again" in ":".join(second[2])
    assert len(log(tmp_path / "run")) == 1


@pytest.mark.parametrize("strategy", ["ddp_spawn", "fsdp", "deepspeed"])
def test_strategies_that_lose_what_was_learnt_are_refused(cases, tmp_path, strategy):
    with pytest.raises(UserError, match=f"unknown strategy '{strategy}'; choose one of auto, ddp"):
        train(settings(cases, f"machine.strategy={strategy}"), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_processes_that_would_not_find_each_other_are_refused(cases, tmp_path, monkeypatch):
    two = settings(cases, "machine.nodes=2", "machine.strategy=ddp", "machine.accelerator=cpu")
    with pytest.raises(
        UserError, match="several nodes need srun or torchrun to start their processes; got nodes 2"
    ):
        train(two, tmp_path / "run", progress=False)
    monkeypatch.setattr(
        "lightning.pytorch.trainer.connectors.accelerator_connector._IS_INTERACTIVE", True
    )
    with pytest.raises(UserError, match="a notebook cannot train on several devices"):
        train(
            settings(cases, "machine.devices=2", "machine.accelerator=cpu"),
            tmp_path / "run",
            progress=False,
        )
    monkeypatch.undo()
    for key, value in {
        "TORCHELASTIC_RUN_ID": "x",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
    }.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(
        UserError, match="Lightning refuses these machine settings: .*does not match the world size"
    ):
        train(settings(cases), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_slurm_does_not_requeue_by_itself(cases, tmp_path, monkeypatch):
    """No handler for its signal, and a checkpoint that such a handler once left is not gone on
    from.
    """
    place = {
        "NTASKS": "1",
        "NTASKS_PER_NODE": "1",
        "JOB_NAME": "x",
        "JOB_ID": "7",
        "PROCID": "0",
        "LOCALID": "0",
    }
    for key, value in (place | {"NODEID": "0", "NNODES": "1"}).items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    seen, real = [], callbacks.Log.on_train_epoch_start

    def look(self, trainer, module):
        seen.append((trainer.current_epoch, signal.getsignal(signal.SIGUSR1)))
        real(self, trainer, module)

    monkeypatch.setattr(callbacks.Log, "on_train_epoch_start", look)
    (tmp_path / "run").mkdir()
    train(settings(cases), tmp_path / "run", progress=False)
    shutil.copy(
        tmp_path / "run" / "checkpoints" / "last.ckpt", tmp_path / "run" / "hpc_ckpt_1.ckpt"
    )
    train(settings(cases), tmp_path / "run", again=True, progress=False)
    assert [epoch for epoch, _ in seen] == [0, 1, 0, 1]
    assert {handler for _, handler in seen} == {signal.SIG_DFL}


def test_auto_is_the_cpu_on_a_mac(cases, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for where in ("fabric", "pytorch"):  # which would choose its GPU
        monkeypatch.setattr(
            f"lightning.{where}.accelerators.mps.MPSAccelerator.is_available",
            staticmethod(lambda: True),
        )
    info = train(settings(cases), tmp_path / "run", progress=False)
    assert info["settings"]["machine"]["accelerator"] == "cpu"


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_other_precisions(cases, tmp_path, precision):
    info = train(
        settings(cases, f"machine.precision={precision}"), tmp_path / "run", progress=False
    )
    assert info["status"] == "finished"
    assert open_run(tmp_path / "run").logits(torch.zeros(2, 1, 24, 24)).dtype == torch.float32


def test_a_run_killed_while_it_begins_or_is_removed_can_be_begun_again(
    cases, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".partial-1-run.json").write_text("{")  # killed before the first run.json had its name
    first = train(settings(cases), out, progress=False)
    assert not list(out.glob(".partial-*"))

    def killed(path):
        if path.name == "checkpoints":
            real(path)
            raise Stopped

    real = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(Stopped):
        train(settings(cases), out, again=True, progress=False)
    monkeypatch.undo()
    second = train(settings(cases), out, progress=False)
    assert second["id"] != first["id"]
    assert second["best"] == first["best"]
    (out / "checkpoints" / "best.safetensors").unlink()
    with pytest.raises(
        UserError, match="is finished but has lost its weights; train it with --again"
    ):
        train(settings(cases), out, progress=False)


def test_others_may_read_the_weights(cases, tmp_path):
    train(settings(cases), tmp_path / "run", progress=False)
    modes = {
        path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_file()
    }
    assert len(modes) == 1


@pytest.mark.parametrize("text", ["[]", "{}", "no json"])
def test_a_damaged_run_json_is_named(cases, tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    for action in (
        lambda: open_run(tmp_path),
        lambda: train(settings(cases), tmp_path, progress=False),
    ):
        with pytest.raises(UserError, match="run.json is damaged; move the folder away"):
            action()


def test_data_that_moved_are_found_again(cases, tmp_path, monkeypatch):
    from segcal.scoring import evaluate

    monkeypatch.chdir(cases.root.parent)
    chosen = run_settings({"data": cases.root.name, "training.epochs": 1}, overrides=SMALL)
    train(chosen, tmp_path / "run", progress=False)
    monkeypatch.chdir(tmp_path)
    assert evaluate(open_run(tmp_path / "run"))  # from another folder
    shutil.copytree(cases.root, tmp_path / "moved")
    info = read_run(tmp_path / "run")
    info["settings"]["data"] = "nowhere"
    write_json(tmp_path / "run" / "run.json", info)
    with pytest.raises(UserError, match="nowhere is not a prepared data set"):
        evaluate(open_run(tmp_path / "run"), split="val")
    moved = open_run(tmp_path / "run", data=tmp_path / "moved")
    assert evaluate(moved, split="val")
    train(
        run_settings({"data": "moved", "training.epochs": 1}, overrides=SMALL),
        tmp_path / "run",
        progress=False,
    )
    assert evaluate(open_run(tmp_path / "run"), split="train")


def test_the_bar_tells_the_time_of_the_whole_run(monkeypatch):
    """Resumed at step 20 of 60, then 10 steps in 5 seconds: 30 more take 15."""
    clock = iter([100.0, 105.0])
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: next(clock))
    for name in ("on_train_start", "get_metrics"):
        monkeypatch.setattr(callbacks.RichProgressBar, name, lambda *_: {"val_dice": 0.5})
    bar = callbacks.Bar()
    trainer = SimpleNamespace(global_step=20, num_training_batches=10, max_epochs=6)
    module = SimpleNamespace(never_predicted=[])
    bar.on_train_start(trainer, module)
    assert bar.get_metrics(trainer, module) == {"val_dice": 0.5}
    trainer.global_step = 30
    assert bar.get_metrics(trainer, module) == {"val_dice": 0.5, "left": "0:00:15"}


def test_the_bar_names_what_validation_never_predicts(monkeypatch):
    monkeypatch.setattr(callbacks.RichProgressBar, "get_metrics", lambda *_: {"val_dice": 0.5})
    bar, trainer = callbacks.Bar(), SimpleNamespace(global_step=0)
    module = SimpleNamespace(never_predicted=["RV", "LV"])
    assert bar.get_metrics(trainer, module) == {"val_dice": 0.5, "never_predicted": "RV,LV"}


STUCK = ("training.lr=1e-9",)
"""Logits stay at the shares of the classes, so that everything is background."""


def test_classes_that_validation_never_predicts_are_named(cases, tmp_path):
    train(settings(cases, *STUCK), tmp_path / "stuck", progress=False)
    info, names = read_run(tmp_path / "stuck"), list(cases.classes)
    for weights in WEIGHTS:
        assert info[weights]["never_predicted"] == names
    assert {row["never_predicted"] for row in log(tmp_path / "stuck")} == {"; ".join(names)}
    words = f"no voxel of the validation cases is predicted as {', '.join(names)}; train for more"
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "stuck")])
    assert f"warning: stuck: {words}" in done.stderr
    run = ["train", str(cases.root), "--out", str(tmp_path / "cli"), "--epochs", "1"]
    for setting in (*SMALL, *STUCK, *(f"{key}={value}" for key, value in OLD.items())):
        run += ["--set", setting]
    done = CliRunner().invoke(app, run)
    assert read_run(tmp_path / "cli")["best"]["never_predicted"]
    remedy = "--set network.last_activation=none and --set training.class_prior=true"
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert said.startswith("warning: best, last, nll weights: no voxel of the validation cases")
    assert said.endswith(f"; train with {remedy}")


@pytest.mark.parametrize("older", [False, True])
def test_a_run_that_predicts_every_class_is_not_warned_of(cases, tmp_path, older):
    """Nor an older one, which does not say whether it does."""
    info = train(settings(cases, **{"training.epochs": 1}), tmp_path / "run", progress=False)
    info["best"]["never_predicted"] = []
    if older:
        del info["best"]["never_predicted"]
    write_json(tmp_path / "run" / "run.json", info)
    done = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run")])
    assert done.exit_code == 0
    assert "warning" not in done.stderr


def test_a_checkpoint_with_any_flipped_byte_is_damaged(tmp_path):
    """Also where torch would read it: in the values of a tensor."""
    path, writer = tmp_path / "last.ckpt", callbacks.Checkpoints()
    writer.save_checkpoint({"values": torch.arange(40.0)}, path)
    content = path.read_bytes()
    assert torch.equal(writer.load_checkpoint(path)["values"], torch.arange(40.0))
    for place in [*range(0, len(content) - 66, 11), len(content) - 1, len(content) - 60]:
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        with pytest.raises(UserError, match="last.ckpt is damaged; --again starts the run over"):
            writer.load_checkpoint(path)
    torch.save({"values": torch.ones(2)}, path)  # as older versions did, without a checksum
    assert writer.load_checkpoint(path)["values"].sum() == 2


def test_a_checkpoint_that_is_not_complete_is_damaged(tmp_path):
    whole = dict.fromkeys(callbacks.NEEDED, 0)
    path = tmp_path / "last.ckpt"
    for key in whole:
        torch.save({name: value for name, value in whole.items() if name != key}, path)
        with pytest.raises(UserError, match="last.ckpt is damaged"):
            callbacks.Checkpoints(callbacks.NEEDED).load_checkpoint(path)
    torch.save([1, 2], path)
    with pytest.raises(UserError, match="last.ckpt is damaged"):
        callbacks.Checkpoints().load_checkpoint(path)
