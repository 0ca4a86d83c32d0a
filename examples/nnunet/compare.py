"""nnU-Net's default loss against the margin, audited: the hippocampus, 2d, two folds.

    python examples/nnunet/compare.py Task04_Hippocampus --nnunet path/to/environment --out work

Run it with segcal's Python; `--nnunet` is the environment that has nnU-Net and, at least with
`pip install --no-deps`, segcal. Where torchvision does not load there, first
`segcal nnunet --install --nnunet path/to/environment`.

What is done is skipped and an interrupted training goes on from its last checkpoint, so the same
command can be repeated until it prints the comparison. On two cores it takes hours; `--dry-run`
prints the commands.

Cut from nnU-Net's recipe, and nothing else: 60 epochs of 100 steps, and batches of 24 slices. Its
augmentation, network, learning rate and schedule are its own.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from segcal.integrations.nnunet import FOLDER

DATASET, PLANS = "Dataset004_Hippocampus", "nnUNetPlansBrief"
TRAINERS = ("nnUNetTrainerBrief", "nnUNetTrainerBriefMbLS_m5", "nnUNetTrainerBriefMbLS_m8")
FOLDS = (0, 1)
BATCH = 24


class Work:
    """A folder with nnU-Net's three folders and the audits, and how commands are run in it."""

    def __init__(self, root, environment, dry):
        self.root, self.bin, self.dry = root, environment / "bin", dry
        trainers = Path(__file__).with_name("trainers")
        self.variables = {
            **{name: str(root / name) for name in ("nnUNet_raw", "nnUNet_preprocessed")},
            "nnUNet_results": str(root / "nnUNet_results"),
            "nnUNet_extTrainer": f"{FOLDER}{os.pathsep}{trainers.resolve()}",
            "nnUNet_n_proc_DA": "1",
            "nnUNet_def_n_proc": "1",
        }

    def nnunet(self, command, *args):
        """A command of nnU-Net."""
        self._run([self.bin / command, *args], os.environ | self.variables)

    def segcal(self, *args):
        """A command of segcal."""
        self._run([sys.executable, "-m", "segcal", *args], os.environ)

    def _run(self, command, env):
        command = [str(part) for part in command]
        print("$", *command, flush=True)
        if not self.dry:
            subprocess.run(command, env=env, check=True)


def convert(task, raw):
    """The Decathlon's task in nnU-Net's raw layout."""
    facts = json.loads((task / "dataset.json").read_text())
    labels = sorted((task / "labelsTr").glob("[!.]*.nii.gz"))
    for folder in ("imagesTr", "labelsTr"):
        (raw / folder).mkdir(parents=True, exist_ok=True)
    for path in labels:
        shutil.copy(path, raw / "labelsTr" / path.name)
        image = path.name.replace(".nii.gz", "_0000.nii.gz")
        shutil.copy(task / "imagesTr" / path.name, raw / "imagesTr" / image)
    about = {
        "channel_names": facts["modality"],
        "labels": {name: int(label) for label, name in facts["labels"].items()},
        "numTraining": len(labels),
        "file_ending": ".nii.gz",
    }
    (raw / "dataset.json").write_text(json.dumps(about))


def write_plans(folder):
    """nnU-Net's plans with smaller batches, under another name."""
    plans = json.loads((folder / "nnUNetPlans.json").read_text())
    plans["plans_name"] = PLANS
    plans["configurations"]["2d"]["batch_size"] = BATCH
    (folder / f"{PLANS}.json").write_text(json.dumps(plans))


def prepare(work, task):
    """Raw data, plans and preprocessed data; `dataset.json` and our plans are written last."""
    raw, folder = (work.root / name / DATASET for name in ("nnUNet_raw", "nnUNet_preprocessed"))
    if not (raw / "dataset.json").is_file() and not work.dry:
        convert(task, raw)
    if not (folder / f"{PLANS}.json").is_file():
        work.nnunet("nnUNetv2_plan_and_preprocess", "-d", 4, "-c", "2d", "-np", 1, "-npfp", 1)
        if not work.dry:
            write_plans(folder)


def train(work, trainer, fold):
    """Train and validate a fold, unless that is done."""
    results = work.root / "nnUNet_results" / DATASET / f"{trainer}__{PLANS}__2d" / f"fold_{fold}"
    if (results / "validation" / "summary.json").is_file():
        return results.parent
    options = ["-tr", trainer, "-p", PLANS, "--npz", "-device", "cpu"]
    if any(results.glob("checkpoint_*.pth")):
        options.append("--c")
    work.nnunet("nnUNetv2_train", 4, "2d", fold, *options)
    return results.parent


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", type=Path, help="Task04_Hippocampus of the Decathlon")
    parser.add_argument("--nnunet", type=Path, required=True, help="nnU-Net's environment")
    parser.add_argument("--out", type=Path, default=Path("nnunet-comparison"))
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    settings = parser.parse_args()

    work = Work(settings.out.resolve(), settings.nnunet, settings.dry_run)
    prepare(work, settings.task)
    models = {trainer: train(work, trainer, fold) for fold in FOLDS for trainer in TRAINERS}
    audits = [work.root / "audits" / trainer for trainer in TRAINERS]
    for folder, model in zip(audits, models.values(), strict=True):
        work.segcal("audit", model, "--out", folder)
    work.segcal("compare", *audits)
    work.segcal("compare", *audits, "--out", work.root / "tables")
    work.segcal("report", *audits, "-o", work.root / "report.html")


if __name__ == "__main__":
    main()
