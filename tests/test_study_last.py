"""A study that keeps last epochs may take them from another's trainings, and comes out as if it had
trained them.
"""

import json
import shutil

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from segcal.cli import app
from segcal.compare import read_results
from segcal.data.prepare import prepare
from segcal.folders import read_run
from segcal.study.estimate import estimate
from segcal.study.plan import read_plan
from segcal.study.runner import run_study
from segcal.types import UserError

PLAN = """
[network]
width = 4
[training]
epochs = 3
batch = 4
lr = 0.02
[after]
calibrators = ["ts"]
[studies.methods]
loss = ["ce", { name = "mbls", margin = 1 }]
"""
CELLS = ["ce-unet-s0", "mbls-margin1-unet-s0"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return prepare(
        "phantom", to=tmp_path_factory.mktemp("cases"), n_cases=8, shape=(4, 24, 24)
    ).cases


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "mine.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="module")
def best(cases, plan_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("best") / "out"
    run_study(read_plan(plan_file, data=str(cases.root)), out, workers=2)
    return out


@pytest.fixture(scope="module")
def keeping_last(cases, plan_file):
    return read_plan(plan_file, data=str(cases.root), overrides=["training.keep=last"])


def test_it_comes_out_as_if_it_had_been_trained(best, keeping_last, tmp_path):
    run_study(keeping_last, tmp_path / "trained", workers=2)
    said = run_study(keeping_last, tmp_path / "taken", workers=1, last_of=[best])
    assert not said["failed"]
    assert any(
        read_run(best / "runs" / cell)["best"]["epoch"] < 2 for cell in CELLS
    )  # else best and last are the same
    for cell in CELLS:
        trained, taken = (tmp_path / name / "runs" / cell for name in ("trained", "taken"))
        assert (taken / "scores.csv").read_bytes() == (trained / "scores.csv").read_bytes()
        one, two = (load_file(run / "checkpoints" / "best.safetensors") for run in (trained, taken))
        assert one.keys() == two.keys()
        assert all((one[name] == two[name]).all() for name in one)
        facts, source = read_run(taken), read_run(best / "runs" / cell)
        assert facts["best"] == pytest.approx(read_run(trained)["best"], abs=1e-6)
        assert facts["last_epoch_of"] == source["id"] != facts["id"]
        assert (facts["settings"]["training"]["keep"], source["settings"]["training"]["keep"]) == (
            "last",
            "best",
        )
    assert [c.runs for c in read_results([tmp_path / "taken"]).contenders] == [
        (cell,) for cell in CELLS
    ]


def test_what_it_does_not_find_is_trained(best, cases, plan_file, tmp_path):
    plan = read_plan(plan_file, data=str(cases.root), overrides=["training.keep=last"], seeds=2)
    run_study(plan, tmp_path / "out", workers=2, last_of=[best])
    taken = {
        run.name: "last_epoch_of" in read_run(run) for run in (tmp_path / "out" / "runs").iterdir()
    }
    assert taken == {
        "ce-unet-s0": True,
        "ce-unet-s1": False,
        "mbls-margin1-unet-s0": True,
        "mbls-margin1-unet-s1": False,
    }


def test_a_dry_run_knows_that_nothing_is_left_to_train(best, keeping_last, tmp_path):
    said = estimate(keeping_last, tmp_path / "out", workers=1, last_of=[best])
    assert [(row["status"], row["seconds"]) for row in said["cells"]] == [("trained", 0.0)] * 2
    assert said["finish"] > 0
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_there_stays(best, keeping_last, tmp_path):
    run_study(keeping_last, tmp_path / "out", workers=1, last_of=[best])
    before = {run.name: read_run(run)["id"] for run in (tmp_path / "out" / "runs").iterdir()}
    run_study(keeping_last, tmp_path / "out", workers=1, last_of=[best])
    assert {
        run.name: read_run(run)["id"] for run in (tmp_path / "out" / "runs").iterdir()
    } == before


def test_a_study_that_cannot_help_is_refused(best, cases, plan_file, keeping_last, tmp_path):
    with pytest.raises(UserError, match="no cell of the plan keeps the last epoch"):
        run_study(
            read_plan(plan_file, data=str(cases.root)), tmp_path / "out", workers=1, last_of=[best]
        )
    other = read_plan(
        plan_file, data=str(cases.root), overrides=["training.keep=last", "training.lr=0.01"]
    )
    for plan, study in ((other, best), (keeping_last, tmp_path)):
        with pytest.raises(UserError, match="no training of this plan is in"):
            run_study(plan, tmp_path / "out", workers=1, last_of=[study])
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_an_earlier_epoch_is_refused(best, keeping_last, tmp_path):
    shutil.copytree(best, tmp_path / "best")
    path = tmp_path / "best" / "runs" / "ce-unet-s0" / "log.csv"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(UserError, match="is not of epoch 3"):
        run_study(keeping_last, tmp_path / "out", workers=1, last_of=[tmp_path / "best"])
    assert not (tmp_path / "out" / "runs" / "ce-unet-s0").exists()


def test_from_the_command_line(best, cases, plan_file, tmp_path):
    more = [
        "--data",
        str(cases.root),
        "--out",
        str(tmp_path / "out"),
        "--workers",
        "1",
        "--set",
        "training.keep=last",
    ]
    said = CliRunner().invoke(
        app, ["study", str(plan_file), *more, "--last-of", str(best), "--json"]
    )
    assert said.exit_code == 0, said.output
    assert [row["key"] for row in json.loads(said.stdout)["contenders"]] == ["ce", "mbls"]
    assert all("last_epoch_of" in read_run(tmp_path / "out" / "runs" / cell) for cell in CELLS)
