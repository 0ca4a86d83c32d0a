"""nnU-Net finds the trainers, and their loss is its own plus the margin term."""

import copy
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from segcal.integrations import nnunet
from segcal.integrations.nnunet.trainers import segcal_trainers

NAMES = sorted(segcal_trainers.__all__)
FIND = """
import sys
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name as find
names = sys.argv[1:]
classes = [find(name) for name in names]
assert [c.__name__ for c in classes] == names
heavy = [m for m in ('torchmetrics', 'lightning', 'monai', 'torchvision') if m in sys.modules]
print('found', heavy)
"""


def find(home, *names, **env):
    return home.run("python", "-c", FIND, *names, **env).stdout.splitlines()[-1]


def test_every_trainer_is_found_by_the_variable(home):
    folder = home.run("segcal", "nnunet").stdout.removesuffix("\n")
    assert find(home, *NAMES, nnUNet_extTrainer=folder) == "found []"


def test_every_trainer_is_found_where_torchvision_does_not_load(home):
    """Without the stand-in for timm, nnU-Net stops before it reads the variable."""
    without = {"PYTHONPATH": ""}
    folder = home.run("segcal", "nnunet", **without)
    assert "use segcal nnunet --install" in folder.stderr
    with pytest.raises(AssertionError, match="No module named 'timm'"):
        find(home, NAMES[0], **without)
    try:
        home.run("segcal", "nnunet", "--install", **without)
        assert find(home, *NAMES, nnUNet_extTrainer="", **without) == "found []"
        # Other searches go on too: nnU-Net's own variants, and folders that the variable names.
        assert find(home, "nnUNetTrainerCELoss", "nnUNetTrainerShort", **without) == "found []"
    finally:
        home.run("segcal", "nnunet", "--uninstall", **without)
    with pytest.raises(AssertionError, match="No module named 'timm'"):
        find(home, NAMES[0], **without)


# The loss
# ------------------------------------------------------------------------------


@pytest.fixture
def make(home, monkeypatch):
    """A trainer of a data set, as nnU-Net makes it."""
    for name, value in home.env.items():
        monkeypatch.setenv(name, value)

    def made(trainer, dataset, *, deep=True):
        (folder,) = (home.root / "nnUNet_preprocessed").glob(f"Dataset{dataset:03}_*")
        plans = json.loads((folder / "nnUNetPlans.json").read_text()) | {"continue_training": False}
        about = json.loads((folder / "dataset.json").read_text())
        made = trainer(plans, "2d", 0, about, torch.device("cpu"))
        made.enable_deep_supervision = deep
        return made

    return made


def outputs_and_targets(trainer, deep):
    """Logits beyond the margin and targets as nnU-Net's loader makes them, per resolution."""
    labels, n = trainer.label_manager, trainer.label_manager.num_segmentation_heads
    highest = labels.ignore_label if labels.has_ignore_label else n - 1
    outputs, targets = [], []
    for size in (16, 8, 4) if deep else (16,):
        outputs.append(8 * torch.randn(2, n, size, size))
        if labels.has_regions:
            targets.append(torch.rand(2, n, size, size) < 0.4)
        else:
            targets.append(torch.randint(0, highest + 1, (2, 1, size, size)).short())
    return (outputs, targets) if deep else (outputs[0], targets[0])


def slow_margin_term(logits, target, labels, margin):
    """Equation 7's penalty voxel by voxel, over what counts."""
    values = []
    for item, kept in zip(logits, target, strict=True):
        for at in torch.cartesian_prod(*(torch.arange(size) for size in item.shape[1:])).tolist():
            here = item[(slice(None), *at)].tolist()
            if labels.has_regions:
                values += [max(0.0, abs(z) - margin) for z in here]
            elif kept[(0, *at)] != labels.ignore_label:
                values.append(sum(max(0.0, max(here) - z - margin) for z in here))
    return sum(values) / len(values)


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("dataset", [4, 5, 6, 7])
@pytest.mark.parametrize("name", ["nnUNetTrainerMbLS_m5", "nnUNetTrainerCEMbLS_m8"])
def test_the_loss_is_nnunets_own_plus_the_margin_term(make, name, dataset, deep):
    ours = make(getattr(segcal_trainers, name), dataset, deep=deep)
    theirs = make(nnUNetTrainer, dataset, deep=deep)
    for trainer in (ours, theirs):
        trainer.configuration_manager.configuration["batch_dice"] = True
    torch.manual_seed(0)
    outputs, targets = outputs_and_targets(ours, deep)
    own = theirs._build_loss()
    if "CE" in name:
        (own.loss if deep else own).weight_dice = 0
    value, expected = ours._build_loss()(outputs, targets), own(outputs, copy.deepcopy(targets))
    assert value != expected
    weights = own.weight_factors if deep else [1.0]
    pairs = zip(outputs, targets, strict=True) if deep else [(outputs, targets)]
    for (logits, target), weight in zip(pairs, weights[: len(outputs)], strict=False):
        term = slow_margin_term(logits, target, ours.label_manager, ours.margin)
        expected = expected + weight * 0.1 * term
    torch.testing.assert_close(value, expected)


def test_each_class_has_the_margin_that_it_is_named_after():
    for name in NAMES:
        trainer = getattr(segcal_trainers, name)
        assert f"_m{trainer.margin:g}" in name
        assert trainer.dice == ("CE" not in name)


PAGE = Path(__file__).parents[2] / "docs" / "use" / "nnunet.md"


def test_a_class_of_ones_own_as_the_page_shows_it(home, make, tmp_path):
    (code,) = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (tmp_path / "my_trainers.py").write_text(code)
    folders = os.pathsep.join([str(nnunet.FOLDER), str(tmp_path)])
    (name,) = re.findall(r"class (\w+)", code)
    assert find(home, name, nnUNet_extTrainer=folders) == "found []"
    written = {"__name__": "my_trainers"}
    exec(code, written)
    trainer = make(written[name], 4)
    trainer.initialize()
    assert trainer.num_epochs == trainer.lr_scheduler.max_steps == 250
    assert trainer.loss.loss.margin == 6


# The example
# ------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "examples" / "nnunet"


def test_the_comparisons_trainers_are_found(home):
    folders = os.pathsep.join([str(nnunet.FOLDER), str(EXAMPLE / "trainers")])
    trainers = ("nnUNetTrainerBrief", "nnUNetTrainerBriefMbLS_m5", "nnUNetTrainerBriefMbLS_m8")
    assert find(home, *trainers, nnUNet_extTrainer=folders) == "found []"
    places = [home.root, "--nnunet", Path(sys.executable).parents[1], "--out", home.root / "work"]
    told = home.run("python", EXAMPLE / "compare.py", *places, "--dry-run").stdout
    for trainer in trainers:
        assert told.count(f"-tr {trainer} -p nnUNetPlansBrief --npz") == 2
        assert f"audits/{trainer}" in told


def test_the_audit_in_minutes_names_its_steps(home):
    script = EXAMPLE.with_name("audit_nnunet") / "run.py"
    places = [home.root, "--nnunet", Path(sys.executable).parents[1], "--out", home.root / "work"]
    told = home.run("python", script, *places, "--dry-run").stdout
    folders = os.pathsep.join([str(nnunet.FOLDER), str(EXAMPLE / "trainers")])
    assert find(home, "nnUNetTrainerShort", nnUNet_extTrainer=folders) == "found []"
    assert told.count("-tr nnUNetTrainerShort -p nnUNetPlansBrief --npz") == 2
    assert "segcal audit" in told
