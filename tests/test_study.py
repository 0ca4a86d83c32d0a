"""Plans and studies: which cells a plan means, and that carrying it out loses, repeats and peeks at
nothing.
"""

import csv
import hashlib
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import descendants
from synthetic_runs import write_run
from test_calibrators import in_format_1
from typer.testing import CliRunner

from segcal.cli import app
from segcal.cli.study import Board, board_table
from segcal.compare import read_results
from segcal.config import run_settings
from segcal.data.prepare import prepare
from segcal.fitting import calibrate
from segcal.folders import alone, cell_folder, read_json, read_run
from segcal.losses import LOSSES
from segcal.predictors import open_predictor
from segcal.scoring import evaluate
from segcal.study import engines
from segcal.study.engines import Local, start_engine
from segcal.study.estimate import estimate
from segcal.study.folder import cell_state
from segcal.study.jobs import After, Job
from segcal.study.plan import built_in_plans, read_plan
from segcal.study.runner import run_study
from segcal.study.watch import State, Watch
from segcal.training import train
from segcal.types import UserError

SEVEN = ("ce", "ce_dice", "focal", "ecp", "ls", "svls", "mbls")
PLAN = """
choose = "dice"
[network]
width = 4
[training]
epochs = 3
batch = 4
lr = 0.02
[after]
calibrators = ["ts"]
corruptions = ["gaussian_noise:0.05"]
[studies.methods]
loss = ["ce", { name = "mbls", margin = [0.1, 1, 10.0] }]
[studies.backbones]
loss = "mbls"
network = "attention_unet"
setting = "chosen"
"""


class Heard(Watch):
    def __init__(self):
        self.lines, self.states = [], []

    def say(self, line):
        self.lines.append(line)

    def update(self, states, slots):
        self.states.append(dict(states))


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return prepare(
        "phantom", to=tmp_path_factory.mktemp("cases"), n_cases=10, shape=(4, 32, 32)
    ).cases


@pytest.fixture(scope="module")
def folded(tmp_path_factory):
    """Three folds, in which each case is tested once."""
    root, ids = tmp_path_factory.mktemp("folds"), [f"phantom_{i:03d}" for i in range(6)]
    folds = [{"test": ids[2 * i : 2 * i + 2], "val": [ids[2 * i - 1]]} for i in range(3)]
    for fold in folds:
        fold["train"] = [id for id in ids if id not in fold["test"] + fold["val"]]
    (root / "split.json").write_text(json.dumps(folds))
    return prepare(
        "phantom", to=root, split_file=root / "split.json", n_cases=6, shape=(4, 24, 24)
    ).cases


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "mine.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="module")
def done(cases, plan_file, tmp_path_factory):
    """A study that was left in peace."""
    out, heard = tmp_path_factory.mktemp("study") / "out", Heard()
    said = run_study(read_plan(plan_file, data=str(cases.root)), out, workers=2, watch=heard)
    return out, said, heard


def rows(run):
    with (run / "scores.csv").open() as file:
        return list(csv.DictReader(file))


def scores(out):
    """The bytes of all scores of a study."""
    return {path.parent.name: path.read_bytes() for path in sorted(out.glob("runs/*/scores.csv"))}


def everything(folder):
    return {
        p: (p.stat().st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest())
        for p in folder.rglob("*")
        if p.is_file()
    }


def names(plan):
    return [cell.name for cell in plan.cells]


def section(plan, name):
    return [cell for cell in plan.cells if name in cell.sections]


# Plans
# ------------------------------------------------------------------------------


def test_the_paper_s_plan(cases):
    plan = read_plan("paper", data=str(cases.root))
    tried = [(c.settings.loss.name, c.settings.loss.settings) for c in section(plan, "methods")]
    wanted = [(key, LOSSES[key].settings | dict(row)) for key in SEVEN for row in LOSSES[key].grid]
    assert tried == wanted
    assert len(tried) == 15
    margins = [row["margin"] for row in LOSSES["mbls"].grid]
    penalty = [
        (c.settings.loss.settings["penalty"], c.settings.loss.settings["margin"])
        for c in section(plan, "penalty")
    ]
    assert sorted(penalty) == sorted((p, m) for p in ("l1", "l2") for m in margins)
    assert {c.settings.loss.name for c in section(plan, "dice")} == {
        "ce",
        "ce_dice",
        "mbls",
        "mbls_dice",
    }
    backbones = {
        (c.settings.loss.name, c.settings.network.name): c.choices
        for c in section(plan, "backbones")
    }
    assert set(backbones) == {
        (loss, n) for loss in ("ce", "mbls") for n in ("attention_unet", "unetpp", "transunet")
    }
    assert all(
        set(choices) == {f"mbls-margin{m:g}-unet-s0" for m in margins}
        for (m, _), choices in backbones.items()
        if choices
    )
    assert sum(bool(choices) for choices in backbones.values()) == 3  # ce has nothing to choose
    assert (
        len(plan.cells) == len(set(names(plan))) == 15 + 3 + 3 + 6
    )  # what two sections share is one cell
    assert plan.cells[0].after.conditions[0] == ("best", "", "")
    assert len(plan.cells[0].after.conditions) == 1 + 5 + 2


def test_the_paper_s_plan_has_the_paper_s_networks(cases):
    for cell in read_plan("paper", data=str(cases.root)).cells:
        assert cell.settings.network.settings["last_activation"] == "relu"
        assert not cell.settings.training.class_prior
    (default, *_) = read_plan("quick", data=str(cases.root)).cells
    assert default.settings.network.settings["last_activation"] == "none"
    assert default.settings.training.class_prior


def test_the_small_plans(cases):
    assert {"paper", "quick", "smoke"} <= set(built_in_plans())
    for name in built_in_plans():
        assert read_plan(name, data=str(cases.root)).cells
    quick = read_plan("quick", data=str(cases.root))
    assert [c.settings.loss.name for c in quick.cells] == list(SEVEN)
    assert {c.settings.network.settings["width"] for c in quick.cells} == {8}
    assert len({c.settings.loss.name for c in read_plan("smoke", data=str(cases.root)).cells}) == 2


def test_every_list_is_a_cell_per_value(cases, folded, tmp_path):
    lists = {
        "training.lr": [0.1, 0.2],
        "seed": [3, 5],
        "network.width": [2, 4],
        "training.epochs": [1, 2, 3],
    }
    plan = read_plan(
        "smoke", data=str(cases.root), overrides=[f"{key}={value}" for key, value in lists.items()]
    )
    n_losses = 3
    assert (
        len(plan.cells) == len(set(names(plan))) == n_losses * math.prod(map(len, lists.values()))
    )
    assert "mbls-margin5-unet-width2-epochs1-lr0.1-s3" in names(plan)
    other = shutil.copytree(folded.root, tmp_path / "other")
    both = read_plan("smoke", data=[str(cases.root), str(other)])
    assert len(both.cells) == 2 * n_losses
    assert {name.split("-")[0] for name in names(both)} == {"phantom", "other"}
    with pytest.raises(
        UserError, match="two cells of the plan would both be called phantom-ce-unet-s0-f0"
    ):
        read_plan("smoke", data=[str(cases.root), str(folded.root)])


def test_seeds_and_folds_are_cells(cases, folded):
    plan = read_plan("paper", data=str(folded.root), seeds=2, only=["methods"])
    assert len(plan.cells) == 15 * 2 * folded.n_folds
    assert names(plan)[:4] == ["ce-unet-s0-f0", "ce-unet-s0-f1", "ce-unet-s0-f2", "ce-unet-s1-f0"]
    assert {(c.settings.seed, c.settings.fold) for c in plan.cells} == {
        (s, f) for s in range(2) for f in range(3)
    }
    assert (
        len(read_plan("paper", data=str(cases.root), only=["methods"]).cells) == 15
    )  # "all" of one fold


def test_single_cells_keep_their_names(cases):
    data = str(cases.root)
    whole = read_plan("paper", data=data, seeds=2)
    some = read_plan("paper", data=data, seeds=2, names=[whole.cells[3].name, whole.cells[0].name])
    assert some.cells == (whole.cells[0], whole.cells[3])
    with pytest.raises(
        UserError, match=f"unknown cell 'ce-s0'; did you mean '{whole.cells[0].name}'"
    ):
        read_plan("paper", data=data, seeds=2, names=["ce-s0"])
    waits = next(cell for cell in whole.cells if cell.choices)
    with pytest.raises(
        UserError,
        match=f"{waits.name} waits for a choice among other cells; name {waits.choices[0]}",
    ):
        read_plan("paper", data=data, seeds=2, names=[waits.name])
    assert waits in read_plan("paper", data=data, seeds=2, names=[waits.name, *waits.choices]).cells


def test_a_run_file_is_a_plan(cases, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        f'data = "{cases.root}"\nseed = 1\n[loss]\nname = "mbls"\nmargin = 5.0\n[machine]\ncpus ='
        " 3\ngpus = 0.5\n"
    )
    plan = read_plan(path)
    assert names(plan) == ["mbls-margin5-unet-s1"]
    assert (plan.cpus, plan.gpus) == (3, 0.5)
    assert (
        read_plan(path, cpus=2).cpus,
        read_plan(path, gpus=1).gpus,
        read_plan(path, gpus=0).gpus,
    ) == (2, 1, 0)
    assert read_plan("smoke", data=str(cases.root)).gpus is None


def test_the_same_cell_in_two_sections_is_one(cases, tmp_path):
    path = tmp_path / "p.toml"
    path.write_text(
        '[studies.a]\nloss = { name = "mbls", margin = 10 }\n[studies.a.after]\ncalibrators ='
        ' ["ts"]\n[studies.b]\nloss = "mbls"\n[studies.b.after]\ncorruptions = ["blur:1.50",'
        ' "blur:0"]\n'
    )
    (cell,) = read_plan(path, data=str(cases.root)).cells
    assert cell.sections == ("a", "b")
    assert cell.after == After(("ts",), ("blur:1.5",))  # the union; a neutral corruption is none


def test_networks_share_the_plan_s_width(cases):
    plan = read_plan(
        "paper",
        data=str(cases.root),
        overrides=["network.width=4", "network.depth=2"],
        only=["methods", "backbones"],
    )
    settings = {c.settings.network.name: c.settings.network.settings for c in plan.cells}
    assert {s["width"] for s in settings.values()} == {4}
    assert settings["transunet"]["depth"] == 2
    assert "depth" not in settings["unet"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainig.epochs=2", "unknown setting 'trainig'; did you mean 'training'?"),
        ("seeds=3", "unknown setting 'seeds'; did you mean 'seed'?"),
        ("training.epoch=2", "unknown setting 'training.epoch'; did you mean 'training.epochs'?"),
        ("machine.cpu=2", "unknown setting 'machine.cpu'; did you mean 'machine.cpus'?"),
        ("machine.cpus=1.5", "setting machine.cpus: input should be a valid integer, .*; got 1.5"),
        (
            "machine.gpus=-1",
            "setting machine.gpus: .* greater than or equal to 0; got -1",
        ),
        (
            "machine.devices=2",
            "a cell is one process: leave machine.devices and machine.nodes at 1",
        ),
        (
            "after.nosie=true",
            "unknown setting 'after.nosie'; did you mean 'after.noise'?",
        ),
        ("after.noise=3", "setting after.noise: input should be a valid boolean.*; got 3"),
        (
            "after.calibrators='ts'",
            'after.calibrators: input should be a valid list; got "ts"',
        ),
        ("after.calibrators=['tts']", "unknown calibrator 'tts'; choose one of ts"),
        ("after.corruptions=['blurr:1']", "unknown corruption 'blurr'"),
        (
            "after.weights='last'",
            'after.weights: input should be a valid list; got "last"',
        ),
        ("choose='ece'", "setting choose: input should be 'dice' or 'nll'; got \"ece\""),
        ("after.weights=['lats']", "unknown weights 'lats'; choose one of best, last, nll"),
        (
            "after.weights=[]",
            r"after.weights: list should have at least 1 item.*; got \[\]",
        ),
        ("training.keep='last'", "unknown setting 'training.keep'"),
        (
            "studies.methods.los='ce'",
            "unknown setting 'studies.methods.los'; did you mean 'loss'?",
        ),
        ("studies.methods=3", "setting studies.methods: input should be a valid dictionary"),
        ("studies.methods.loss='mbsl'", "unknown loss 'mbsl'; choose one of ce"),
        ("studies.methods.loss=[3]", "loss must be a name or"),
        (
            "studies.methods.loss={name='mbls', marign=[1, 2]}",
            "unknown setting of mbls 'marign'; choose one of margin",
        ),
        ("studies.methods.loss={name='mbls', margin=[1, -2]}", "margin must be at least 0; got -2"),
        (
            "studies.methods.loss={name='mbls', margin='five'}",
            "margin must be a number; got 'five'",
        ),
        ("studies.methods.loss={name='mbls', margin=[]}", "a list in a plan must not be empty"),
        ("seed=[]", "a list in a plan must not be empty"),
        ("network.name=[]", "a list in a plan must not be empty"),
        ("studies.methods.grid='papr'", "setting studies.methods.grid: input should be 'paper'"),
        (
            "studies.penalty.setting='best'",
            "studies.penalty.setting: input should be 'chosen'",
        ),
        ("studies.methods.setting='chosen'", "has both a grid and a chosen setting"),
        ("studies.backbones.network=['unet3']", "unknown network 'unet3'; choose one of unet"),
        ("network.widht=3", "unknown setting of unet 'widht'; choose one of width"),
        ("network.width=1.5", "width must be a whole number; got 1.5"),
        ("loss.name=ce", "loss at the top of the plan has no effect"),
        ("training=3", "setting training: input should be a valid dictionary"),
        ("fold=3", r"fold must lie in 0\.\.0"),
        ("seed='x'", "setting seed: input should be a valid integer"),
        ("data='nowhere'", "nowhere is not a prepared data set"),
        ("epochs", "--set takes key=value, such as training.epochs=10; got 'epochs'"),
    ],
)
def test_mistakes_in_a_plan_are_named_before_any_work(cases, override, message):
    overrides = [override] if override.startswith("data") else [f"data='{cases.root}'", override]
    with pytest.raises(UserError, match=message):
        read_plan("paper", overrides=overrides)


def test_more_mistakes(cases, tmp_path):
    data = str(cases.root)
    with pytest.raises(
        UserError, match="no plan 'papr'; name a TOML file or one of .*paper, quick, smoke"
    ):
        read_plan("papr", data=data)
    with pytest.raises(UserError, match="the plan names no data"):
        read_plan("paper")
    with pytest.raises(UserError, match="unknown study 'metods'; did you mean 'methods'"):
        read_plan("paper", data=data, only=["metods"])
    with pytest.raises(UserError, match="a list in a plan must not be empty"):
        read_plan("paper", data=data, seeds=0)
    with pytest.raises(
        UserError,
        match="section backbones wants the chosen setting of mbls, but no section tries it on unet",
    ):
        read_plan("paper", data=data, only=["backbones"])
    with pytest.raises(UserError, match="no network of the plan has the setting 'depth'"):
        read_plan("quick", data=data, overrides=["network.depth=2"])
    (tmp_path / "p.toml").write_text("loss = [")
    with pytest.raises(UserError, match=r"cannot read the plan in .*p\.toml"):
        read_plan(tmp_path / "p.toml", data=data)
    with pytest.raises(UserError, match="at least 1 worker; got 0"):
        run_study(read_plan("smoke", data=data), tmp_path / "out", workers=0)
    with pytest.raises(UserError, match="--workers is for this machine"):
        run_study(read_plan("smoke", data=data), tmp_path / "out", workers=1, ray="auto")
    assert not (tmp_path / "out").exists()


# A study
# ------------------------------------------------------------------------------


def test_a_study_leaves_what_it_promises(done, cases, tmp_path):
    """A cell is what train, evaluate and calibrate give when called directly."""
    out, said, heard = done
    assert not said["failed"]
    assert not said["undecided"]
    assert len(list(out.glob("runs/*/run.json"))) == 5
    assert not (out / "logs").exists()
    assert {about["status"] for about in read_json(out / "cells.json")["cells"].values()} == {
        "finished",
        "trained",
    }
    assert any(
        state.step == "trains" and state.left > 0
        for states in heard.states
        for state in states.values()
    )
    assert any(line.startswith("trained: ce-unet-s0: validation DSC 0.") for line in heard.lines)
    small = ["network.width=4", "training.epochs=3", "training.batch=4", "training.lr=0.02"]
    train(
        run_settings({"data": str(cases.root)}, overrides=small),
        tmp_path / "ce-unet-s0",
        progress=False,
    )
    run = open_predictor(tmp_path / "ce-unet-s0")
    evaluate(run)
    calibrate(run, ["ts"])
    evaluate(run, corruption="gaussian_noise:0.05")
    assert (run.root / "scores.csv").read_bytes() == scores(out)["ce-unet-s0"]


def test_a_study_of_an_older_version_is_finished(done, cases, plan_file, tmp_path):
    """Its calibrators were fitted over all voxels: `ts` stays, with a warning; others are fitted
    again.
    """
    out = tmp_path / "out"
    shutil.copytree(done[0], out)
    run = open_predictor(out / "runs" / "ce-unet-s0")
    calibrate(run, ["ts", "vs"], voxels="all", again=True)
    for key in ("ts", "vs"):
        in_format_1(run.root / "calibrators" / key, key)
    (run.root / "scores.csv").unlink()
    older = (run.root / "calibrators" / "ts.json").read_bytes()
    heard = Heard()
    sets = ["after.calibrators=['ts', 'vs']"]
    plan = read_plan(plan_file, data=str(cases.root), overrides=sets)
    said = run_study(plan, out, workers=1, watch=heard)
    assert said["failed"] == {}
    found = {(r["corruption"], r["calibrator"]) for r in rows(run.root)}
    assert found == {("gaussian_noise:0.05", ""), ("", ""), ("", "ts"), ("", "vs")}
    assert (run.root / "calibrators" / "ts.json").read_bytes() == older
    text = "\n".join(heard.lines)
    assert "warning: ce-unet-s0: ts: it was fitted on the voxels 'all' and is kept" in text
    assert "warning: ce-unet-s0: vs: an older version had fitted it on raw logits" in text


def test_validation_chooses_and_test_only_reports(done):
    out, said, _ = done
    selection = read_json(out / "selection.json")
    assert selection["contenders"] == json.loads(json.dumps(said["contenders"]))
    dice = {
        p.parent.name: json.loads(p.read_text())["best"]["val_dice"]
        for p in out.glob("runs/*/run.json")
    }
    mbls = next(c for c in selection["contenders"] if c["key"] == "mbls")
    tried = {f"margin={m}": dice[f"mbls-margin{m}-unet-s0"] for m in ("0.1", "1", "10")}
    assert mbls["tried"] == tried
    assert len(set(tried.values())) == 3  # else this would show nothing
    best = max(tried, key=lambda text: tried[text])
    assert mbls["chosen"] == best
    chosen = {
        "ce-unet-s0",
        f"mbls-{best.replace('=', '')}-unet-s0",
        f"mbls-{best.replace('=', '')}-attention_unet-s0",
    }
    assert set(scores(out)) == chosen  # a setting that was not chosen never meets the test split
    found = {(r["corruption"], r["calibrator"]) for r in rows(out / "runs" / "ce-unet-s0")}
    assert found == {("", ""), ("gaussian_noise:0.05", ""), ("", "ts")}


def test_the_choice_is_blind_to_test_scores(done, cases, plan_file, tmp_path):
    """Test scores that praise another setting change nothing."""
    out, said, _ = done
    shutil.copytree(out, tmp_path / "copy")
    plan = read_plan(plan_file, data=str(cases.root))
    (worst,) = (c for c in said["contenders"] if c["key"] == "mbls")
    other = min(worst["tried"], key=lambda text: worst["tried"][text])
    table = (out / "runs" / worst["runs"][0] / "scores.csv").read_text()
    better = "\n".join(
        line.rsplit(",", 1)[0] + ",1.0" if ",dice," in line else line for line in table.splitlines()
    )
    (
        tmp_path / "copy" / "runs" / f"mbls-{other.replace('=', '')}-unet-s0" / "scores.csv"
    ).write_text(better + "\n")
    again = run_study(plan, tmp_path / "copy", workers=1)
    assert again["contenders"] == said["contenders"]


def test_each_kind_of_weights_has_its_own_choice(done, cases, plan_file, tmp_path):
    """Nothing is trained again; a run is scored with the weights for which it was chosen."""
    out, best, last = tmp_path / "out", "mbls-margin1-unet-s0", "mbls-margin10-unet-s0"
    shutil.copytree(done[0], out)
    for run in out.glob("runs/*-attention_unet-*"):
        shutil.rmtree(run)
    for file in out.glob("runs/mbls-*/run.json"):  # as if validation had preferred these
        info, name = json.loads(file.read_text()), file.parent.name
        for kind, preferred in (("best", best), ("last", last)):
            info[kind]["val_dice"] = 0.6 if name == preferred else 0.5
        file.write_text(json.dumps(info))
    for file in out.glob("runs/*/scores.csv"):
        file.unlink()
    ids = {path: read_run(path)["id"] for path in out.glob("runs/*")}
    sets = ["after.weights=['best', 'last']"]
    plan = read_plan(plan_file, data=str(cases.root), overrides=sets)
    study = run_study(plan, out, workers=2)
    assert {path: read_run(path)["id"] for path in ids} == ids
    chosen = {(c["network"], c["method"], c["weights"]): c["runs"] for c in study["contenders"]}
    other = "mbls-margin1-attention_unet-s0"  # at the setting that the first weights chose
    assert chosen == {
        ("unet", "ce", "best"): ("ce-unet-s0",),
        ("unet", "ce", "last"): ("ce-unet-s0",),
        ("unet", "mbls", "best"): (best,),
        ("unet", "mbls", "last"): (last,),
        ("attention_unet", "mbls", "best"): (other,),
        ("attention_unet", "mbls", "last"): (other,),
    }
    written = read_json(out / "selection.json")["contenders"]
    assert written == json.loads(json.dumps(study["contenders"]))
    both = {"best", "last"}
    kinds = {name: {row["weights"] for row in rows(out / "runs" / name)} for name in scores(out)}
    assert kinds == {"ce-unet-s0": both, best: {"best"}, last: {"last"}, other: both}
    copy = shutil.copytree(out / "runs" / last, tmp_path / last)
    (copy / "scores.csv").unlink()
    predictor = open_predictor(copy, weights="last")
    evaluate(predictor)
    calibrate(predictor, ["ts"])
    evaluate(predictor, corruption="gaussian_noise:0.05")
    assert (copy / "scores.csv").read_bytes() == scores(out)[last]
    before = everything(out / "runs")
    run_study(plan, out, workers=1)
    assert everything(out / "runs") == before
    contenders = read_results([out]).contenders
    assert {(c.network, c.method, c.weights): c.runs for c in contenders} == chosen


def test_the_lowest_nll_chooses_among_those_about_as_good_in_dice(done, cases, plan_file, tmp_path):
    """Also for the cells that wait; nothing is trained but these; test scores have no say."""
    out, facts = tmp_path / "out", {"0.1": (0.6, 1.5), "1": (0.58, 1.2), "10": (0.5, 0.1)}
    shutil.copytree(done[0], out)
    for margin, (dice, nll) in facts.items():
        file = out / "runs" / f"mbls-margin{margin}-unet-s0" / "run.json"
        info = json.loads(file.read_text())
        info["best"] |= {"val_dice": dice, "val_dice_se": 0.03, "val_nll": nll}
        file.write_text(json.dumps(info))
    ids = {path: read_run(path)["id"] for path in out.glob("runs/*-unet-*")}
    plan = read_plan(plan_file, data=str(cases.root), overrides=["choose='nll'"])
    said = run_study(plan, out, workers=2)
    assert {path: read_run(path)["id"] for path in ids} == ids
    mbls, other = said["contenders"][1:]
    assert mbls["runs"] == ("mbls-margin1-unet-s0",)
    assert other["runs"] == ("mbls-margin1-attention_unet-s0",)
    assert mbls["nll"] == {f"margin={margin}": nll for margin, (_, nll) in facts.items()}
    written = read_json(out / "selection.json")
    assert written["choose"] == read_json(out / "plan.json")["choose"] == "nll"
    assert "lowest mean validation NLL among those whose DSC is within one" in written["rule"]
    results = read_results([out])
    assert results.choose == "nll"
    chosen = {(c.network, c.method): c.runs for c in results.contenders}
    assert chosen["unet", "mbls"] == mbls["runs"]
    table = out / "runs" / "mbls-margin1-unet-s0" / "scores.csv"
    worse = [line.rsplit(",", 1)[0] + ",0.0" for line in table.read_text().splitlines()[1:]]
    table.write_text("\n".join([table.read_text().splitlines()[0], *worse]) + "\n")
    assert run_study(plan, out, workers=1)["contenders"] == said["contenders"]


def test_plans_say_by_which_rule_validation_chooses(cases, tmp_path):
    rules = {name: read_plan(name, data=str(cases.root)).choose for name in built_in_plans()}
    assert rules.pop("paper") == "dice"
    assert set(rules) == {"demo", "demo-quick", "quick", "smoke"}
    assert set(rules.values()) == {"nll"}
    (tmp_path / "mine.toml").write_text('loss = "ce"\n')
    assert read_plan(tmp_path / "mine.toml", data=str(cases.root)).choose == "nll"


def test_a_second_call_does_nothing(done, cases, plan_file):
    out, said, _ = done
    before, heard = everything(out / "runs"), Heard()
    again = run_study(read_plan(plan_file, data=str(cases.root)), out, workers=1, watch=heard)
    assert again == said
    assert everything(out / "runs") == before
    assert heard.lines == ["4 of 5 cells are trained already"]


def test_results_do_not_depend_on_the_number_of_workers(done, cases, plan_file, tmp_path):
    out, said, _ = done
    one = run_study(read_plan(plan_file, data=str(cases.root)), tmp_path / "one", workers=1)
    assert scores(tmp_path / "one") == scores(out)
    assert one["contenders"] == said["contenders"]
    assert (tmp_path / "one" / "selection.json").read_bytes() == (
        out / "selection.json"
    ).read_bytes()


def test_a_plan_may_grow_but_not_change(done, cases, plan_file, tmp_path):
    out = tmp_path / "grown"
    shutil.copytree(done[0], out)
    plan = json.loads((out / "plan.json").read_text())
    plan["cells"] = {
        name: cell for name, cell in plan["cells"].items() if "methods" in cell["sections"]
    }
    (out / "plan.json").write_text(json.dumps(plan))  # as if it had been of that section alone
    before = {
        name: read_run(out / "runs" / name)["id"] for name in ("ce-unet-s0", "mbls-margin1-unet-s0")
    }
    data, only = str(cases.root), ["methods"]
    grown = run_study(
        read_plan(
            plan_file, data=data, overrides=["seed=[0, 1]", "training.lr=[0.02, 0.01]"], only=only
        ),
        out,
        workers=2,
    )
    assert not grown["failed"]
    assert {
        name: read_run(out / "runs" / name)["id"] for name in before
    } == before  # as they were, under their old names
    assert len(list(out.glob("runs/*/run.json"))) == 5 + 4 * 3
    assert {len(c["runs"]) for c in grown["contenders"]} == {2}
    with pytest.raises(
        UserError,
        match=r"training.epochs is \d in .*ce-unet-s0 and 4 here; choose another --out for this",
    ):
        run_study(read_plan(plan_file, data=data, overrides=["training.epochs=4"]), out, workers=1)
    with pytest.raises(UserError, match=r"network.width is \d+ in .* and 2 here"):
        run_study(read_plan(plan_file, data=data, overrides=["network.width=2"]), out, workers=1)


def test_the_data_may_move_between_training_and_scoring(cases, plan_file, tmp_path):
    """Nothing is trained again, nothing is read where the data were, and every run says where they
    are now.
    """
    out, old, new = tmp_path / "study", tmp_path / "old" / "phantom", tmp_path / "new" / "phantom"
    shutil.copytree(cases.root, old)
    run_study(
        read_plan(plan_file, data=str(old), overrides=["training.epochs=1"], only=["methods"]),
        out,
        workers=2,
    )
    before = scores(out)
    assert len(before) == 2
    for name in before:  # as if it had been interrupted before the first score
        for part in ("scores.csv", "bins.json", "calibrators"):
            path = out / "runs" / name / part
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    ids = {path.parent.name: read_run(path.parent)["id"] for path in out.glob("runs/*/run.json")}
    new.parent.mkdir()
    old.rename(new)
    plan = read_plan(plan_file, data=str(new), overrides=["training.epochs=1"], only=["methods"])
    assert not run_study(plan, out, workers=2)["failed"]
    assert scores(out) == before
    assert {
        path.parent.name: read_run(path.parent)["id"] for path in out.glob("runs/*/run.json")
    } == ids
    assert {read_run(out / "runs" / name)["settings"]["data"] for name in ids} == {str(new)}
    other = prepare("phantom", to=tmp_path / "other", n_cases=10, shape=(4, 32, 32), seed=1).cases
    with pytest.raises(
        UserError,
        match="ce-unet-s0 was trained on data that were prepared differently; choose another --out",
    ):
        run_study(
            read_plan(plan_file, data=str(other.root), overrides=["training.epochs=1"]),
            out,
            workers=1,
        )


def test_a_part_of_a_study_does_not_overwrite_the_whole(done, cases, plan_file):
    """Its choices and failures would be lost."""
    out, _, _ = done
    before = everything(out)
    part = read_plan(
        plan_file,
        data=str(cases.root),
        names=[read_plan(plan_file, data=str(cases.root)).cells[0].name],
    )
    with pytest.raises(
        UserError,
        match=r"is a study with other cells too \(.* and \d+ more\); choose another --out",
    ):
        run_study(part, out, workers=1)
    assert everything(out) == before


def test_every_fold_is_trained_and_chooses_for_itself(folded, tmp_path):
    """Also for the cells that wait for a choice; and every patient is tested once."""
    path, out = tmp_path / "p.toml", tmp_path / "out"
    path.write_text(
        'fold = "all"\n[network]\nwidth = 2\n[training]\nepochs = 1\n'
        '[studies.methods]\nloss = ["ce", { name = "mbls", margin = [1, 10] }]\n'
        '[studies.backbones]\nloss = "mbls"\nnetwork = "attention_unet"\nsetting = "chosen"\n'
    )
    run_study(read_plan(path, data=str(folded.root), only=["methods"]), out, workers=2)
    wanted = {0: 10, 1: 1, 2: 10}
    for file in out.glob("runs/mbls-*/run.json"):  # as if validation had said so
        info = json.loads(file.read_text())
        liked = info["settings"]["loss"]["margin"] == wanted[info["settings"]["fold"]]
        file.write_text(
            json.dumps(info | {"best": info["best"] | {"val_dice": 0.6 if liked else 0.5}})
        )
    for file in out.glob("runs/*/scores.csv"):
        file.unlink()
    said = run_study(read_plan(path, data=str(folded.root)), out, workers=2)
    for network, contender in zip(("unet", "attention_unet"), said["contenders"][1:], strict=True):
        assert contender["chosen"] == "margin=10 (2 folds), margin=1 (1 fold)"
        assert set(contender["runs"]) == {
            f"mbls-margin{margin}-{network}-s0-f{fold}" for fold, margin in wanted.items()
        }
    tried = {"0": {"margin=1": 0.5, "margin=10": 0.6}, "1": {"margin=1": 0.6, "margin=10": 0.5}}
    assert said["contenders"][1]["folds"] == tried | {"2": tried["0"]}
    assert set(scores(out)) == {
        run for contender in said["contenders"] for run in contender["runs"]
    }
    for contender in said["contenders"]:
        tested = [
            {r["case"] for r in rows(out / "runs" / run)} - {"pooled"} for run in contender["runs"]
        ]
        assert set.union(*tested) == set(folded.ids)
        assert sum(map(len, tested)) == len(folded.ids)
    assert [c.setting for c in read_results([out]).contenders] == [
        c["chosen"] for c in said["contenders"]
    ]
    with pytest.raises(
        UserError, match="no section tries it on unet with the same data, fold and training"
    ):
        read_plan(path, data=str(folded.root), overrides=["studies.methods.fold=[0, 1]"])


def test_validation_of_one_fold_has_no_say_in_another(tmp_path):
    """Its cases are test cases there. Against slow loops; seeds of a fold are averaged."""
    dice = {}
    for margin, fold, seed in itertools.product((5, 8, 10), range(3), range(2)):
        name, key = f"m{margin}-f{fold}-s{seed}", (margin, fold, seed)
        dice[key] = (7 * margin + 11 * fold * margin + 5 * seed * margin * margin) % 23 / 23
        of = {
            "settings": {"margin": float(margin)},
            "fold": fold,
            "seed": seed,
            "val_dice": dice[key],
        }
        write_run(tmp_path, name, "mbls", cases=[f"c{fold}"], **of)

    def slow():
        found = set()
        for fold in range(3):
            means = {m: (dice[m, fold, 0] + dice[m, fold, 1]) / 2 for m in (5, 8, 10)}
            margin = next(m for m in means if means[m] == max(means.values()))
            found |= {f"m{margin}-f{fold}-s{seed}" for seed in range(2)}
        return found

    (contender,) = read_results([tmp_path]).contenders
    assert set(contender.runs) == slow()
    assert len({run.split("-")[0] for run in slow()}) > 1  # else this would show nothing
    for margin, fold, seed in itertools.product((5, 8, 10), (1, 2), range(2)):
        file = tmp_path / f"m{margin}-f{fold}-s{seed}" / "run.json"
        dice[margin, fold, seed] = 1 - dice[margin, fold, seed]
        info = json.loads(file.read_text())
        file.write_text(json.dumps(info | {"best": {"val_dice": dice[margin, fold, seed]}}))
    (turned,) = read_results([tmp_path]).contenders
    assert set(turned.runs) == slow()
    first = [{run for run in c.runs if "-f0-" in run} for c in (contender, turned)]
    assert first[0] == first[1]
    assert set(turned.runs) != set(contender.runs)


# When things go wrong
# ------------------------------------------------------------------------------


def test_a_failed_cell_keeps_its_sentence_and_the_others_go_on(done, cases, plan_file, tmp_path):
    out, blocked = tmp_path / "out", tmp_path / "out" / "runs" / "mbls-margin1-unet-s0"
    blocked.mkdir(parents=True)
    (blocked / "notes.txt").write_text("mine")
    plan = read_plan(plan_file, data=str(cases.root), only=["methods"])
    first = run_study(plan, out, workers=2)
    assert list(first["failed"]) == [blocked.name]
    assert first["failed"][blocked.name].endswith("exists and is not a run; choose another --out")
    assert read_json(out / "cells.json")["cells"][blocked.name] == {
        "status": "failed",
        "error": first["failed"][blocked.name],
    }
    mbls = first["contenders"][1]
    assert set(mbls["tried"]) == {"margin=0.1", "margin=10"}
    assert mbls["left_out"] == first["failed"]
    assert len(scores(out)) == 2
    (blocked / "notes.txt").unlink()
    heard = Heard()
    second = run_study(plan, out, workers=1, watch=heard)
    assert second["failed"] == first["failed"]
    assert any(
        line.startswith(f"left out, it failed before (--retry tries it again): {blocked.name}")
        for line in heard.lines
    )
    third = run_study(plan, out, workers=1, retry=True)
    assert not third["failed"]
    assert third["contenders"] == done[1]["contenders"][:2]
    assert read_json(out / "cells.json")["cells"][blocked.name]["status"] in ("trained", "finished")


def test_what_fails_while_it_is_scored_stays_chosen(done, cases, plan_file, tmp_path):
    """Else a setting that validation did not choose would be scored on test in its place."""
    out, plan = tmp_path / "out", read_plan(plan_file, data=str(cases.root))
    shutil.copytree(done[0], out)
    (mbls,) = (c for c in done[1]["contenders"] if c["key"] == "mbls")
    (run,) = (out / "runs" / name for name in mbls["runs"])
    shutil.rmtree(run / "calibrators")
    (run / "scores.csv").unlink()
    (run / "calibrators").write_text("in the way")
    said = run_study(plan, out, workers=1)
    assert list(said["failed"]) == [run.name]
    assert said["contenders"] == done[1]["contenders"]
    assert set(scores(out)) == set(scores(done[0]))
    assert {(r["corruption"], r["calibrator"]) for r in rows(run)} == {
        ("", "")
    }  # what came before it failed
    results, heard = read_results([out]), Heard()
    assert [c.runs for c in results.contenders] == [tuple(c["runs"]) for c in done[1]["contenders"]]
    assert not results.failed
    assert run_study(plan, out, workers=1, watch=heard)["failed"] == said["failed"]
    assert any(
        line.startswith(f"not scored again, it failed before (--retry tries it again): {run.name}")
        for line in heard.lines
    )
    (run / "calibrators").unlink()
    assert not run_study(plan, out, workers=1, retry=True)["failed"]
    assert scores(out) == scores(done[0])


def test_nothing_stands_in_for_a_run_that_could_not_be_scored(tmp_path):
    write_run(tmp_path / "runs", "ce")
    write_run(tmp_path / "runs", "best", "ls", settings={"alpha": 0.1}, val_dice=0.9, conditions=())
    write_run(tmp_path / "runs", "second", "ls", settings={"alpha": 0.2}, val_dice=0.8)
    with pytest.raises(UserError, match="best has no test scores; run segcal evaluate on it first"):
        read_results([tmp_path])
    (tmp_path / "cells.json").write_text(
        json.dumps({"cells": {"best": {"status": "failed", "error": "no memory"}}})
    )
    found = read_results([tmp_path])
    assert [c.key for c in found.contenders] == ["ce"]
    assert found.failed == {"best": "no memory"}
    assert set(found.rows()["run"]) == {"ce"}
    shutil.rmtree(tmp_path / "runs" / "ce")
    with pytest.raises(UserError, match="no run has test scores; scoring failed of best"):
        read_results([tmp_path])


def test_what_waits_for_a_choice_that_cannot_be_made_is_left_out(cases, plan_file, tmp_path):
    sets = ["studies.methods.loss={name='mbls', margin=1}", "training.lr=1e30", "training.epochs=1"]
    heard = Heard()
    said = run_study(
        read_plan(plan_file, data=str(cases.root), overrides=sets),
        tmp_path / "out",
        workers=1,
        watch=heard,
    )
    assert "lower training.lr" in said["failed"]["mbls-margin1-unet-s0"]
    assert said["undecided"] == ["mbls-chosen-attention_unet-s0"]
    assert said["contenders"][0]["chosen"] is None
    assert not scores(tmp_path / "out")


@pytest.mark.parametrize(("weights", "dice"), [("best", 0.8), ("last", 0.7)])
def test_a_cell_shows_the_score_of_the_weights_that_are_scored(
    cases, plan_file, tmp_path, weights, dice
):
    sets = [f'after.weights=["{weights}"]']
    cell, *_ = read_plan(plan_file, data=str(cases.root), overrides=sets).cells
    run = cell_folder(tmp_path, cell.name)
    run.mkdir(parents=True)
    (run / "log.csv").write_text("epoch,val_dice,seconds\n0,0.8,1\n1,0.7,1\n")
    assert cell_state(tmp_path, cell).dice == dice


def test_an_epoch_that_the_machine_slept_through_does_not_spoil_the_time_left(
    cases, plan_file, tmp_path
):
    cell, *_ = read_plan(plan_file, data=str(cases.root), overrides=["training.epochs=5"]).cells
    run = cell_folder(tmp_path, cell.name)
    run.mkdir(parents=True)
    (run / "log.csv").write_text("epoch,val_dice,seconds\n0,0.8,2\n1,0.7,3600\n2,0.7,2\n")
    assert cell_state(tmp_path, cell).left == 4


def job(cases, folder, *overrides):
    settings = run_settings({"data": str(cases.root)}, overrides=["network.width=2", *overrides])
    return Job(
        "train",
        "ce",
        folder,
        settings,
        After(),
        1,
        folder.parent / "log.txt",
    )


def test_a_killed_process_is_a_failed_cell_and_no_hang(cases, tmp_path):
    engine = Local(1)

    def kill(names):
        if (tmp_path / "run" / "log.csv").is_file():
            os.kill(engine._running[0].process.pid, signal.SIGKILL)

    ((_, outcome),) = engine.run([job(cases, tmp_path / "run", "training.epochs=1000")], kill)
    assert outcome.error.startswith(
        "its process was killed, as the system does when memory runs out; run fewer cells"
    )


def test_the_hint_for_lack_of_memory_names_what_takes_it():
    hints = {
        kind: engines._how_it_ended(-signal.SIGKILL, Job(kind, "", Path(), {}, After(), 1))
        for kind in ("train", "finish")
    }
    assert all(
        hint.endswith(", then --retry") and "run fewer cells at a time" in hint
        for hint in hints.values()
    )
    assert {kind: "training.batch" in hint for kind, hint in hints.items()} == {
        "train": True,
        "finish": False,
    }


def test_a_cell_waits_for_another_process_at_the_same_run(cases, tmp_path):
    """As when a node was given up whose process lives on for a while."""
    lock = alone(tmp_path / "run")
    lock.__enter__()
    released = []
    threading.Timer(
        1.5, lambda: (released.append(time.monotonic()), lock.__exit__(None, None, None))
    ).start()
    ((_, outcome),) = Local(1).run(
        [job(cases, tmp_path / "run", "training.epochs=1")], lambda names: None
    )
    assert not outcome.error
    assert released
    assert read_run(tmp_path / "run")["status"] == "finished"


def test_two_studies_in_one_folder_are_refused(cases, tmp_path):
    with alone(tmp_path / "out"), pytest.raises(UserError, match="another process is at work on"):
        run_study(read_plan("smoke", data=str(cases.root)), tmp_path / "out", workers=1)


def test_a_missing_ray_is_named(cases, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"Ray is not installed; pip install 'segcal\[cluster\]'"):
        run_study(read_plan("smoke", data=str(cases.root)), tmp_path / "out", ray="auto")


# GPUs
# ------------------------------------------------------------------------------


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that CUDA shows so many GPUs, called as CUDA_VISIBLE_DEVICES says."""

    def pretend(n, visible=None):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: n > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: n)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return pretend


def places(monkeypatch, **needs):
    """What each slot's process is told of GPUs."""
    engine, told = start_engine(**needs), []
    pipe = SimpleNamespace(close=int)
    context = SimpleNamespace(
        Pipe=lambda duplex: (pipe, pipe),
        Process=lambda target, args: told.append(args[1]) or SimpleNamespace(start=int),
    )
    with monkeypatch.context() as patch:
        patch.setattr(engines.multiprocessing, "get_context", lambda name: context)
        for slot in range(engine.slots):
            engine._start(None, slot)
    return told


def test_cells_get_the_gpus_that_the_study_was_given(gpus, monkeypatch):
    gpus(2, "2,3")
    assert places(monkeypatch, gpus=1) == ["2", "3"]
    assert places(monkeypatch, gpus=1, workers=1) == ["2"]
    assert places(monkeypatch, gpus=2) == ["2,3"]
    gpus(2, "GPU-8f3a, MIG-77, GPU-unknown")  # CUDA stops at the first that it does not know
    assert places(monkeypatch, gpus=1) == ["GPU-8f3a", "MIG-77"]
    gpus(3)
    assert places(monkeypatch, gpus=2) == ["0,1"]
    for share, most in ((0.5, 2), (1 / 3, 3), (0.3, 3), (0.1, 10)):
        told = places(monkeypatch, gpus=share)
        assert {name: told.count(name) for name in told} == {"0": most, "1": most, "2": most}
    assert len(set(places(monkeypatch, gpus=0.5, workers=3))) == 3  # spread out before they share


def test_more_cells_than_gpus_are_refused(gpus):
    gpus(2)
    with pytest.raises(
        UserError,
        match=(
            r"4 cells at a time with 1 GPU each need more than CUDA finds here \(2\); lower --work"
        ),
    ):
        start_engine(workers=4, gpus=1)
    with pytest.raises(
        UserError, match=r"1 cell at a time with 3 GPU each need more than CUDA finds here \(2\)"
    ):
        start_engine(gpus=3)
    gpus(0)
    with pytest.raises(
        UserError, match=r"2 cells at a time with 0.5 GPU each need more than CUDA finds here \(0\)"
    ):
        start_engine(workers=2, gpus=0.5)
    gpus(0, "")
    with pytest.raises(UserError, match="need more than CUDA finds here"):
        start_engine(gpus=1)


def test_a_cell_has_a_gpu_of_its_own_unless_told_otherwise(gpus, cases, monkeypatch):
    """One process per core, all of them on the first GPU, would be the worst of both."""
    plain = read_plan("smoke", data=str(cases.root))
    on_cpu = read_plan("smoke", data=str(cases.root), overrides=["machine.accelerator=cpu"])
    none = read_plan("smoke", data=str(cases.root), overrides=["machine.gpus=0"])
    monkeypatch.setattr(engines, "_cores", lambda: 6)
    gpus(2)
    assert places(monkeypatch, **plain.needs) == ["0", "1"]
    assert places(monkeypatch, **plain.needs, workers=1) == ["0"]
    assert places(monkeypatch, **plain.needs, workers=4) == [
        "0",
        "1",
        "0",
        "1",
    ]  # as asked; they share
    assert (
        places(monkeypatch, **on_cpu.needs) == places(monkeypatch, **none.needs) == [""] * 6
    )  # kept from scoring, too
    gpus(0)
    assert places(monkeypatch, **plain.needs) == [None] * 6
    assert places(monkeypatch, **plain.needs | {"cpus": 4}) == [None]


def test_a_process_sees_what_it_is_told():
    code = """
import os
from types import SimpleNamespace
from segcal.study import engines
seen = lambda job: os.environ.get("CUDA_VISIBLE_DEVICES")
engines.import_module = lambda name: SimpleNamespace(work=seen)
for devices in (None, "GPU-3", ""):
    engines._child(None, devices, SimpleNamespace(send=lambda seen: print(f"[{seen}]"), close=int))
"""
    env = os.environ | {"CUDA_VISIBLE_DEVICES": "7"}
    said = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["[7]", "[GPU-3]", "[]"]


# Estimates
# ------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing(done, cases, plan_file, tmp_path):
    plan = read_plan(plan_file, data=str(cases.root))
    said = estimate(plan, tmp_path / "out", workers=2)
    assert not list(tmp_path.iterdir())
    assert [row["cell"] for row in said["cells"]] == names(plan)
    assert [row["waits"] for row in said["cells"]] == [False] * 4 + [True]
    work = sum(row["seconds"] for row in said["cells"]) + said["finish"]
    assert work / 2 < said["total"] < work
    assert all(row["seconds"] > 0 for row in said["cells"])
    before = everything(done[0].parent)
    again = estimate(plan, done[0], workers=2)
    assert everything(done[0].parent) == before
    assert [row["seconds"] for row in again["cells"][:4]] == [0.0] * 4  # trained already
    longer = estimate(
        read_plan(plan_file, data=str(cases.root), overrides=["training.epochs=3000"]),
        tmp_path / "out",
        workers=2,
    )
    assert longer["cells"][0]["seconds"] > 5 * said["cells"][0]["seconds"]


def test_the_board_shows_what_happens_first():
    states = {
        f"cell{i}": State(step, 1, 4, 0.5, 10.0)
        for i, step in enumerate(("finished", "trained", "waits", "trains"))
    }
    shown = board_table(states, 2, 2)
    assert list(shown.columns[0].cells) == ["cell3", "cell2"]
    assert list(shown.columns[4].cells) == ["30 s", ""]
    assert (
        shown.title == "2 of 4 cells, about 30 s of training left"
    )  # two cells of 3 epochs by two workers
    assert board_table({"a": State("waits", 0, 4)}, 1, 9).title == "0 of 1 cells, starting"


def test_the_board_names_what_validation_never_predicts():
    states = {"a": State("trains", 1, 4, 0.5, 10.0), "b": State("trains", 1, 4, 0.1, 10.0, "LV")}
    shown = board_table(states, 2, 9)
    assert shown.columns[5].header == "never predicted"
    assert list(shown.columns[5].cells) == ["", "LV"]
    assert len(board_table({"a": states["a"]}, 2, 9).columns) == 5


def test_a_study_names_what_validation_never_predicts(cases, tmp_path):
    """At this learning rate logits stay at the shares of the classes: everything is background."""
    plan = ["study", "smoke", "--data", str(cases.root), "--out", str(tmp_path / "out")]
    plan += ["--workers", "1", "--only", "methods"]
    sets = ("training.lr=1e-9", "training.epochs=1", "studies.methods.loss=ce")
    for setting in (*sets, "after.calibrators=[]", "after.corruptions=[]"):
        plan += ["--set", setting]
    said = CliRunner().invoke(app, plan, env={"COLUMNS": "300"})
    assert said.exit_code == 0
    assert "never predicted" in said.stdout
    assert "body (1 of 1), core (1 of 1), satellite (1 of 1)" in said.stdout
    words = "no voxel of the validation cases is predicted as body, core, satellite; train for more"
    assert f"warning: ce-unet-s0: {words}" in said.stderr
    end = (
        "warning: CE never predicts body (1 of 1), core (1 of 1), satellite (1 of 1) on validation"
    )
    assert said.stderr.splitlines()[-1].startswith(f"{end}; train for more epochs")
    state = cell_state(tmp_path / "out", read_plan("smoke", data=str(cases.root)).cells[0])
    assert state.never_predicted == "body; core; satellite"


def test_without_a_terminal_every_line_says_how_far_all_are(capsys):
    board = Board()
    board.say("begins")
    board.update({"a": State("trained", 4, 4, 0.5, 10.0), "b": State("trains", 1, 4, 0.5, 10.0)}, 2)
    board.say("trained: a")
    board.update(
        {"a": State("finished", 4, 4, 0.5, 10.0), "b": State("scores", 4, 4, 0.5, 10.0)}, 2
    )
    board.say("scored: a")
    assert capsys.readouterr().err.splitlines() == [
        "begins",
        "trained: a (1 of 2 cells, about 15 s of training left)",
        "scored: a (2 of 2 cells, all trained)",
    ]


# The command line, in real processes
# ------------------------------------------------------------------------------


def command(cases, plan_file, out, *more):
    segcal = Path(sys.executable).parent / "segcal"
    return [
        str(segcal),
        "study",
        str(plan_file),
        "--data",
        str(cases.root),
        "--out",
        str(out),
        "--workers",
        "2",
        *more,
    ]


def gone(pids, seconds=20):
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def until(condition, process):
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it could be interrupted"
        time.sleep(0.005)


UNDER_SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "study",
    "SLURM_NTASKS": "4",
    "SLURM_NTASKS_PER_NODE": "2",
}
UNDER_SLURM |= {"SLURM_NNODES": "2", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_an_interrupted_study_goes_on_to_the_same_scores(done, cases, plan_file, tmp_path):
    """kill -9 in the middle of a cell, then Ctrl-C later on; no process is left behind, and what is
    left can be finished.

    Both as if inside a Slurm job, whose variables must not make a cell believe that it is one of
    many processes."""
    out, runs = tmp_path / "out", tmp_path / "out" / "runs"
    moments = {
        signal.SIGKILL: lambda: list(runs.glob("*/log.csv")),
        signal.SIGINT: (out / "selection.json").exists,
    }
    for number, moment in moments.items():
        pipes = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "env": os.environ | UNDER_SLURM,
        }
        process = subprocess.Popen(
            command(cases, plan_file, out), text=True, start_new_session=True, **pipes
        )
        until(moment, process)
        children = descendants(process.pid)
        assert children
        os.killpg(process.pid, number) if number == signal.SIGINT else process.kill()
        stderr = process.communicate(timeout=30)[1]
        assert process.returncode != 0
        assert not gone(children)
        if number == signal.SIGINT:
            assert "interrupted; the same command goes on from here" in stderr
    finished = run_study(read_plan(plan_file, data=str(cases.root)), out, workers=2)
    assert finished["contenders"] == done[1]["contenders"]
    assert scores(out) == scores(done[0])


def test_a_failed_cell_is_exit_code_1_with_its_sentence(done, cases, plan_file, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(done[0], out)
    shutil.rmtree(out / "runs" / "ce-unet-s0")
    (out / "runs" / "ce-unet-s0").mkdir()
    (out / "runs" / "ce-unet-s0" / "notes.txt").write_text("mine")
    options = [
        "study",
        str(plan_file),
        "--data",
        str(cases.root),
        "--out",
        str(out),
        "--workers",
        "2",
    ]
    said = CliRunner().invoke(app, options)
    assert said.exit_code == 1
    assert said.stderr.splitlines()[-1].startswith("segcal: failed: ce-unet-s0: ")
    assert "Attention" in said.stdout  # the column may be narrow
    dry = CliRunner().invoke(app, [*options, "--dry-run"])
    assert dry.exit_code == 0
    assert "all, with 2 at a time" in dry.stdout
    assert "estimates" in dry.stdout
    assert dry.stderr.splitlines()[-1].startswith("timed 2 of 2: ")  # a time per network
