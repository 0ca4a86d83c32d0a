"""Training: what is learnt, what is kept, and that a killed run ends where it would have ended."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from segcal.config import run_settings
from segcal.data.prepare import prepare
from segcal.data.sampling import EpochSampler
from segcal.store import read_run, write_json
from segcal.training import train
from segcal.types import UserError

SMALL = ["network.width=2", "training.batch=4"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return prepare("phantom", to=tmp_path_factory.mktemp("cases"), n_cases=6, shape=(4, 24, 24)).cases


def settings(cases, *overrides, **values):
    return run_settings({"data": str(cases.root), "training.epochs": 2} | values, overrides=[*SMALL, *overrides])


def log(out):
    with (out / "log.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def weights(out):
    return load_file(out / "checkpoints" / "best.safetensors")


def same(a, b):
    return all(torch.equal(x, b[name]) for name, x in a.items())


def test_a_run_leaves_what_it_promises(cases, tmp_path):
    info = train(settings(cases, "loss.name=mbls_dice", "loss.margin=0.1"), tmp_path / "run", progress=False)
    assert info["status"] == "finished"
    assert info["data"]["checksum"] == cases.info["checksum"]
    assert info["settings"]["loss"] == {"name": "mbls_dice", "margin": 0.1}
    assert info["versions"]["torch"].startswith("2.")
    assert info["seconds"] > 0
    assert info["peak_memory_mb"] > 50
    rows = log(tmp_path / "run")
    assert [int(row["epoch"]) for row in rows] == [0, 1]
    assert [float(row["lr"]) for row in rows] == [1e-3, 1e-4]
    assert {"train_loss", "train_ce", "train_soft_dice", "train_margin_penalty", "val_dice", "val_ece"} <= set(rows[0])
    assert info["best"]["val_dice"] == max(float(row["val_dice"]) for row in rows)
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file()


def test_it_learns(cases, tmp_path):
    train(
        settings(cases, "training.lr=0.01", "network.width=4", **{"training.epochs": 12}), tmp_path / "run", progress=False
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
    with pytest.raises(UserError, match="was started with another loss, training; choose another --out, or --again"):
        train(settings(cases, "loss.name=ls", "training.lr=0.1"), tmp_path / "run", progress=False)
    assert train(settings(cases), tmp_path / "run", again=True, progress=False)["id"] != first["id"]


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
        (["loss.name=mbls", "loss.marign=3"], "unknown setting of mbls 'marign'; choose one of margin"),
        (["loss.name=mbls", "loss.margin=-3"], "margin must be at least 0; got -3"),
        (["network.name=unet3"], "unknown network 'unet3'; choose one of unet"),
        (["network.widht=3"], "widht"),
        (["machine.loggers=['comet']"], "unknown logger 'comet'; choose one of tensorboard, wandb, mlflow"),
        (["machine.loggers=['wandb']"], "the logger wandb is not installed; pip install wandb"),
        (["machine.precision=foo"], "Lightning refuses these machine settings"),
        (["machine.accelerator=gpu"], "Lightning refuses these machine settings"),
        (["fold=3"], r"fold must lie in 0\.\.0"),
    ],
)
def test_mistakes_are_found_before_any_work(cases, tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        train(settings(cases, *overrides), tmp_path / "run", progress=False)
    assert not list(tmp_path.glob("run/checkpoints/*"))


def test_an_exploding_loss_is_named(cases, tmp_path):
    with pytest.raises(UserError, match="the loss is (nan|inf) in epoch 0; lower training.lr"):
        train(settings(cases, "training.lr=1e30"), tmp_path / "run", progress=False)


def test_orders_are_seeded_and_shared_out(monkeypatch):
    def orders(rank, world, seed=0, epoch=0):
        monkeypatch.setattr("segcal.data.sampling._place", lambda: (rank, world))
        sampler = EpochSampler(7, 3, seed)
        sampler.set_epoch(epoch)
        assert len(list(sampler)) == len(sampler)
        assert all(len(batch) == 3 for batch in list(sampler)[:-1])
        return [index for batch in sampler for index in batch]

    assert sorted(orders(0, 1)) == list(range(7))
    assert orders(0, 1) == orders(0, 1) != orders(0, 1, epoch=1)
    assert orders(0, 1) != orders(0, 1, seed=1)
    assert set(orders(0, 2)) | set(orders(1, 2)) == set(range(7))
    assert len(orders(0, 2)) == len(orders(1, 2)) == 4


# Real processes -------------------------------------------------------------------------------------------------------

SEGCAL = Path(sys.executable).parent / "segcal"


def command(cases, out, *more):
    sets = [part for text in SMALL for part in ("--set", text)]
    return [str(SEGCAL), "train", str(cases.root), "--out", str(out), *sets, *more]


def run(*args):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(args[0], capture_output=True, text=True, env=env, check=False, timeout=300)


def test_a_killed_run_goes_on_to_the_same_result(cases, tmp_path):
    """kill -9 in the middle of an epoch, twice; the weights are those of a run that was left in peace."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    more = ("--epochs", "6", "--loss", "mbls", "--set", "training.augment=true")
    assert run(command(cases, whole, *more)).returncode == 0
    for seen in (1, 3):
        process = subprocess.Popen(
            command(cases, killed, *more),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        deadline = time.monotonic() + 120
        while not ((killed / "log.csv").is_file() and len(log(killed)) >= seen) and time.monotonic() < deadline:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert json.loads((killed / "run.json").read_text())["status"] == "running"
    assert run(command(cases, killed, *more)).returncode == 0
    assert log(killed) == log(whole)
    assert same(weights(killed), weights(whole))
    assert read_run(killed)["status"] == "finished"


def test_two_processes_train_together(cases, tmp_path):
    more = ("--epochs", "2", "--devices", "2", "--strategy", "ddp", "--set", "machine.accelerator=cpu")
    done = run(command(cases, tmp_path / "run", *more))
    assert done.returncode == 0, done.stderr
    assert read_run(tmp_path / "run")["status"] == "finished"
    rows = log(tmp_path / "run")
    assert len(rows) == 2
    assert 0 <= float(rows[-1]["val_dice"]) <= 1


def test_half_precision(cases, tmp_path):
    info = train(settings(cases, "machine.precision=bf16-mixed"), tmp_path / "run", progress=False)
    assert info["status"] == "finished"
