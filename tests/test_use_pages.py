"""Every command of the pages for users of other tools is run, on made data and briefly.

`tests/nnunet` does the same for the page of nnU-Net.
"""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from made_predictions import made_cases, write_arrays, write_labels
from test_documentation import examples

from segcal import read_probs
from segcal.data.layouts import write_layout

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "use"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def follow(name, place, **instead):
    """Run the commands of a page in a folder, with short forms of what takes long."""
    (place / "examples").symlink_to(ROOT / "examples")
    blocks = re.findall(r"^```sh\n(.*?)^```", (PAGES / name).read_text(), re.M | re.S)
    script = re.sub(r"^pip install.*$", "", "\n".join(blocks), flags=re.M)
    for long, short in instead.items():
        assert long in script
        script = script.replace(long, short)
    env = os.environ | {"PATH": PATH, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-euxc", script], capture_output=True, text=True, check=False, cwd=place, env=env
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_only_predictions(tmp_path):
    cases = made_cases(12, sharpness=1.6)
    for folder in ("mine/probs", "mine/new"):
        write_arrays(tmp_path / folder, cases)
    write_arrays(tmp_path / "other" / "probs", made_cases(12, sharpness=1.0))
    write_labels(tmp_path / "labels", cases)
    rows = [f"{case.id},patient{i // 2}\n" for i, case in enumerate(cases)]
    (tmp_path / "patients.csv").write_text("case,patient\n" + "".join(rows))
    told = follow("predictions.md", tmp_path)
    assert "Overconfident." in told
    assert "12 cases of 6 patients" in told
    for name in ("audits/mine/report.html", "calibrated/case_000.npz", "report.html"):
        assert (tmp_path / name).is_file()


IMAGES = "$sorted(glob.glob(@bundle_root + '/images/*'))"
BUNDLE = {  # in the form of MONAI's model zoo
    "imports": ["$import glob"],
    "bundle_root": ".",
    "network": {"_target_": "torch.nn.Conv3d", "in_channels": 1, "out_channels": 4}
    | {"kernel_size": 1},
    "preprocessing": {
        "_target_": "Compose",
        "transforms": [
            {"_target_": "LoadImaged", "keys": "image"},
            {"_target_": "EnsureChannelFirstd", "keys": "image"},
            {"_target_": "Orientationd", "keys": "image", "axcodes": "RAS"},
        ],
    },
    "dataset": {
        "_target_": "Dataset",
        "data": f"$[{{'image': path}} for path in {IMAGES[1:]}]",
        "transform": "@preprocessing",
    },
    "postprocessing": {
        "_target_": "Compose",
        "transforms": [
            {"_target_": "Activationsd", "keys": "pred", "softmax": True},
            {"_target_": "Invertd", "keys": "pred", "orig_keys": "image"}
            | {"transform": "@preprocessing", "nearest_interp": False},
            {"_target_": "AsDiscreted", "keys": "pred", "argmax": True},
            {"_target_": "SaveImaged", "keys": "pred"} | {"output_dir": "$@bundle_root + '/eval'"},
        ],
    },
    "evaluator": {
        "_target_": "SupervisedEvaluator",
        "device": "cpu",
        "val_data_loader": {"_target_": "DataLoader", "dataset": "@dataset"},
        "network": "@network",
        "postprocessing": "@postprocessing",
        "val_handlers": [
            {
                "_target_": "CheckpointLoader",
                "load_path": "$@bundle_root + '/models/model.pt'",
                "load_dict": {"network": "@network"},
            }
        ],
    },
    "run": ["$@evaluator.run()"],
}


def write_bundle(place):
    """A bundle, its images and, beside it, their references; the grey value tells the class."""
    for folder in ("bundle/configs", "bundle/models", "bundle/images", "labelsTr"):
        (place / folder).mkdir(parents=True)
    (place / "bundle/configs/inference.json").write_text(json.dumps(BUNDLE))
    centres = torch.linspace(-1, 1, 4)
    # -9 (x - c)^2 / 2, without x^2, which all classes share
    weights = {"weight": (9 * centres).view(4, 1, 1, 1, 1), "bias": -4.5 * centres.square()}
    torch.save({"network": weights}, place / "bundle/models/model.pt")
    rng = np.random.default_rng(0)
    for i in range(10):
        labels = np.zeros((6, 18, 20), np.uint8)
        for k in (1, 2, 3):
            labels[k - 1 : 6, 3 * k : 16, 3 * k : 17] = k
        image = centres.numpy()[labels] + 0.5 * rng.normal(size=labels.shape)
        for folder, values in (("bundle/images", image.astype(np.float32)), ("labelsTr", labels)):
            out = sitk.GetImageFromArray(values)
            out.SetSpacing((0.7, 0.8, 2.0))
            out.SetDirection((0, 1, 0, -1, 0, 0, 0, 0, 1))  # so that there is something to invert
            sitk.WriteImage(out, str(place / folder / f"case{i}.nii.gz"))
    return place / "bundle"


def test_monai_and_lightning(tmp_path):
    bundle = write_bundle(tmp_path)
    told = follow(
        "monai.md",
        tmp_path,
        **{
            "monai/train.py": "monai/train.py --epochs 2 --cases 8",
            "lightning/train.py": "lightning/train.py --epochs 1",
            "bundle/eval-new": "bundle/eval --calibrator ts",
        },
    )
    scores = {}
    for name, values in re.findall(r"^([\w, ]+) (\{'.*\})$", told, re.M):
        scores[name] = json.loads(values.replace("'", '"'))
    assert scores.keys() == {"validation", "test", "test, calibrated"}
    # The calibrator keeps the label map.
    assert scores["test"]["dice_mean"] == scores["test, calibrated"]["dice_mean"]
    assert scores["test"]["nll"] != scores["test, calibrated"]["nll"]
    # What the audit says of the stored probabilities is what the handler said of the logits.
    audited = json.loads((tmp_path / "monai-example" / "audit" / "audit.json").read_text())
    assert audited["n_cases"] == 2
    for key in ("misplaced", "nll", "volume_ratio"):
        found = audited["scores"]["before"]["all"][key]
        assert found == pytest.approx(scores["test"][key], abs=2e-3)

    # The bundle's own folders were read, in their place, and written again.
    facts = json.loads((tmp_path / "audits" / "bundle" / "audit.json").read_text())
    assert (facts["kind"], facts["n_cases"]) == ("softmax", 10)
    case = "case3/case3_trans.nii.gz"
    stored, calibrated = (
        read_probs(bundle / "eval" / case),
        read_probs(tmp_path / "calibrated" / case),
    )
    truth = sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / "labelsTr" / "case3.nii.gz")))
    assert (stored.argmax(0) == truth).mean() > 0.6
    assert (calibrated.argmax(0) == stored.argmax(0)).all()
    assert abs(calibrated - stored).max() > 0.001

    # Two processes take the same cases in the same steps as one: gradients are means, scores add.
    two = json.loads(re.findall(r'^\{".*\}$', told, re.M)[-1])
    script = ROOT / "examples" / "lightning" / "train.py"
    alone = subprocess.run(
        [sys.executable, script, "--epochs", "1"], capture_output=True, text=True, check=True
    )
    assert two == pytest.approx(json.loads(alone.stdout.splitlines()[-1]), rel=1e-3)


def test_comparing_methods(tmp_path):
    write_layout("nnunet", tmp_path / "Dataset123_Mine", n_cases=7, size=(4, 32, 32))
    brief = "--set training.epochs=1 --set network.width=4"
    smoke = "segcal study smoke --only methods --workers 1 --set after.corruptions=[]"
    told = follow(
        "compare.md",
        tmp_path,
        **{
            "segcal study quick": smoke,
            "segcal train cases/mine": f"segcal train cases/mine {brief}",
            "--format pdf": "--format svg",
        },
    )
    assert "MbLS" in told
    for name in ("report.html", "figures", "tables", "results/mine/packed.json"):
        assert (tmp_path / name).exists()


def test_the_recipes_print_what_the_page_says():
    names, n_recipes = {}, -1  # the first block is what they share
    for code, told in examples(PAGES / "recipes.md"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "recipe", "exec"), names)
        assert told is None or out.getvalue() == told
        n_recipes += 1
        assert n_recipes == 0 or len(code.strip().splitlines()) < 10
    assert n_recipes == 10


@pytest.mark.parametrize("name", ["nnunet.md", "monai.md", "predictions.md", "compare.md"])
def test_the_pages_stay_short(name):
    assert len((PAGES / name).read_text().split()) <= 400
