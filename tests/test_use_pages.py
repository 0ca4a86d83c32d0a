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

import pytest
from made_predictions import made_cases, write_arrays, write_labels
from test_documentation import examples

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


def test_monai_and_lightning(tmp_path):
    told = follow(
        "monai.md",
        tmp_path,
        **{
            "monai/train.py": "monai/train.py --epochs 2 --cases 8",
            "lightning/train.py": "lightning/train.py --epochs 1",
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
