"""Small data in nnU-Net's folders, planned and preprocessed once, and its commands.

These tests run in an environment of their own, `.venv-nnunet`: `make test-nnunet` makes it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from segcal.data.layouts import write_layout
from segcal.integrations import nnunet

HERE = Path(__file__).parent
# Audits run in segcal's own environment: nnU-Net's lacks what they need, and they need no trainer.
SEGCAL = os.environ.get("SEGCAL") or HERE.parents[1] / ".venv" / "bin" / "segcal"
BESIDE = Path(os.environ.get("SEGCAL_REAL_DATA") or HERE.parents[2] / "shared" / "data")
HIPPOCAMPUS = BESIDE / "Task04_Hippocampus"
N_CASES = 10

# What the page says, and what the test does instead.
SHORTER = {
    "^pip install.*$": "",
    r"\$\(segcal nnunet\)": rf"$(segcal nnunet):{HERE / 'trainers'}",
    "nnUNetTrainer": "nnUNetTrainerShort",
    "0 1 2 3 4": "0 1",
    "segcal apply": "segcal apply --calibrator ts2",  # trained so briefly, none helps
    "--npz": "--npz -device cpu",
    "--save_probabilities": "--save_probabilities -device cpu -npp 1 -nps 1",
}

LABELS = {"background": 0, "anterior": 1, "posterior": 2}
DATASETS = {
    "Dataset004_Hippocampus": {"labels": LABELS},
    "Dataset005_Regions": {
        "labels": {"background": 0, "whole": [1, 2], "posterior": 2},
        "regions_class_order": [1, 2],
    },
    "Dataset006_Ignore": {"labels": {**LABELS, "ignore": 3}},
    "Dataset007_OneClass": {"labels": {"background": 0, "whole": 1}},
}


class Home:
    """nnU-Net's three folders, and its commands."""

    n_cases = N_CASES

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {
            "nnUNet_raw": str(root / "nnUNet_raw"),
            "nnUNet_preprocessed": str(root / "nnUNet_preprocessed"),
            "nnUNet_results": str(root / "nnUNet_results"),
            "nnUNet_extTrainer": os.pathsep.join([str(nnunet.FOLDER), str(HERE / "trainers")]),
            "nnUNet_def_n_proc": "1",
            # planning takes this for a number of threads, and fails with 0
            "nnUNet_n_proc_DA": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(HERE / "stand_ins"), os.environ.get("PYTHONPATH", "")]
            ),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, command, *args, **env):
        """A command of nnU-Net's environment; its output, or a failure that shows it."""
        path = Path(sys.executable).with_name(command)
        return finished([path, *map(str, args)], os.environ | self.env | env, self.root)

    def follow(self, page):
        """Run the commands of a page, with short trainings of two folds; returns their output."""
        told = []
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.M | re.S):
            of_nnunet = "nnUNetv2" in block
            place = Path(sys.executable).parent if of_nnunet else Path(SEGCAL).absolute().parent
            path = {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}
            env = self.env | {"nnUNet_n_proc_DA": "0"} if of_nnunet else {"OMP_NUM_THREADS": "1"}
            command = block
            for long, short in SHORTER.items():
                command = re.sub(long, short, command, flags=re.M)
            script = ["bash", "-euc", command]
            told.append(finished(script, os.environ | env | path, self.root).stdout)
        return "\n".join(told)

    def train(self, dataset, configuration, fold, trainer, *options):
        """Train a fold; returns the folder of results."""
        settings = ["-tr", trainer, "-device", "cpu", *options]
        # no more processes: in small trainings starting them takes most of the time
        self.run("nnUNetv2_train", dataset, configuration, fold, *settings, nnUNet_n_proc_DA="0")
        return self.results(dataset, configuration, fold, trainer)

    def results(self, dataset, configuration, fold, trainer):
        """The folder of a fold's results."""
        model = f"Dataset{dataset:03}_*/{trainer}__nnUNetPlans__{configuration}"
        (folder,) = (self.root / "nnUNet_results").glob(f"{model}/fold_{fold}")
        return folder

    def log(self, results):
        """What nnU-Net wrote down of a training."""
        return "".join(file.read_text() for file in sorted(results.glob("training_log_*.txt")))


def finished(command, env, place):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=place)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("nnunet"))
    decathlon = HIPPOCAMPUS
    if not HIPPOCAMPUS.is_dir():
        decathlon = home.root / "Task01_Phantom"
        write_layout("msd", decathlon, n_cases=N_CASES + 1, size=(32, 48, 32))
    for name, facts in DATASETS.items():
        write_raw(decathlon, home.root / "nnUNet_raw" / name, facts)
    for datasets, configuration in (((4, 5, 7), "2d"), ((6,), "3d_fullres")):
        what = ["-d", *datasets, "-c", configuration, "-np", 1, "-npfp", 1]
        home.run("nnUNetv2_plan_and_preprocess", *what)
    for plans in (home.root / "nnUNet_preprocessed").glob("*/nnUNetPlans.json"):
        make_small(plans)
    return home


def write_raw(decathlon, root, facts):
    """The first cases in nnU-Net's raw layout; the last of them without its label, to predict."""
    labels = sorted((decathlon / "labelsTr").glob("[!.]*.nii.gz"))[: N_CASES + 1]
    for i, path in enumerate(labels):
        test = i == N_CASES
        images = root / ("imagesTs" if test else "imagesTr")
        images.mkdir(parents=True, exist_ok=True)
        name = path.name.removesuffix(".nii.gz")
        shutil.copy(decathlon / "imagesTr" / path.name, images / f"{name}_0000.nii.gz")
        if not test:
            label = sitk.ReadImage(str(path))
            values = np.minimum(sitk.GetArrayFromImage(label), 2).astype(np.uint8)
            if "ignore" in facts["labels"]:
                values[::3] = 3  # nobody labelled every third slice
            if len(facts["labels"]) == 2:
                values = np.minimum(values, 1)
            out = sitk.GetImageFromArray(values)
            out.CopyInformation(label)
            (root / "labelsTr").mkdir(exist_ok=True)
            sitk.WriteImage(out, str(root / "labelsTr" / path.name))
    facts = facts | {
        "channel_names": {"0": "MRI"},
        "numTraining": N_CASES,
        "file_ending": ".nii.gz",
    }
    (root / "dataset.json").write_text(json.dumps(facts))


def make_small(path):
    """Narrow networks and small batches: what is tested does not depend on their size."""
    plans = json.loads(path.read_text())
    for configuration in plans["configurations"].values():
        if "architecture" in configuration:
            features = configuration["architecture"]["arch_kwargs"]["features_per_stage"]
            features[:] = [8] * len(features)
            configuration["batch_size"] = 2
    path.write_text(json.dumps(plans))
