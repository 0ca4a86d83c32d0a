"""The command line as a user meets it: real processes."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import typer

from segcal.cli import app
from segcal.data.layouts import write_layout
from segcal.folders import read_scores

VERBS = tuple(typer.main.get_command(app).commands)


def segcal(*args, cwd=None, **env):
    command = [sys.executable, "-c", "from segcal.cli import main; main()", *map(str, args)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=os.environ | env, check=False
    )


@pytest.mark.parametrize("verb", [(), *((verb,) for verb in VERBS), ("list", "datasets")])
def test_help_ends_with_an_example_and_loads_nothing_heavy(verb):
    code = (
        "import sys\nfrom segcal.cli import main\ntry:\n    main()\nfinally:\n    print([m for m in"
        " ('torch', 'numpy', 'SimpleITK', 'matplotlib') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *verb, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert " Example: segcal " in " ".join(done.stdout.strip().splitlines()[-2:])
    assert done.stderr.strip() == "[]"


def test_no_help_text_holds_what_looks_like_a_tag():
    """A terminal's help leaves `<name>` out, so that a sentence says nothing where it should say
    most.
    """
    verbs = [typer.main.get_command(app)]
    for verb in verbs:  # grows as groups are met
        verbs += getattr(verb, "commands", {}).values()
        texts = [verb.help or "", verb.epilog or "", *(param.help or "" for param in verb.params)]
        assert not [text for text in texts if re.search(r"<\w", text)]


def test_own_data_from_folder_to_contact_sheet(tmp_path):
    """What the README promises: any nnU-Net folder, one command, results under cases/."""
    write_layout("nnunet", tmp_path / "Dataset123_MyOrgans", n_cases=5, size=(5, 32, 32))
    done = segcal("prepare", "my-organs", "--from", "Dataset123_MyOrgans", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "5 cases (3 train, 1 val, 1 test), classes body, core, satellite" in " ".join(
        done.stdout.split()
    )
    again = segcal("prepare", "my-organs", "--from", "Dataset123_MyOrgans", cwd=tmp_path)
    assert "already prepared; nothing to do" in again.stdout
    seen = segcal("inspect", "cases/my-organs", "--figure", "out/sheet.png", cwd=tmp_path)
    assert seen.returncode == 0, seen.stderr
    assert "class satellite" in seen.stdout
    assert (tmp_path / "out" / "sheet.png").read_bytes()[:4] == b"\x89PNG"
    facts = json.loads(segcal("inspect", "cases/my-organs", "--json", cwd=tmp_path).stdout)
    assert facts["splits"] == {"train": 3, "val": 1, "test": 1}


def test_the_phantom_in_one_command(tmp_path):
    done = segcal(
        "prepare",
        "phantom",
        "--cases",
        4,
        "--shape",
        "4,24,24",
        "--workers",
        1,
        "--json",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cases"] == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cases"]


def test_a_phantom_in_a_known_layout(tmp_path):
    done = segcal(
        "phantom", "msd", "--to", "raw", "--cases", 6, "--shape", "4,24,24", "--json", cwd=tmp_path
    )
    assert json.loads(done.stdout) == {"folder": "raw"}
    done = segcal("prepare", "mine", "--from", "raw", "--workers", 1, cwd=tmp_path)
    expected = "6 cases (4 train, 1 val, 1 test), classes body, core, satellite"
    assert expected in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("prepare", "acdc"), "segcal: say where the raw data of acdc is, with --from"),
        (("prepare", "x", "--from", "nowhere"), "segcal: there is no folder nowhere"),
        (
            ("prepare", "phantom", "--shape", "1,b,3"),
            "segcal: --shape takes 3 whole numbers with commas",
        ),
        (
            ("prepare", "phantom", "--percentiles", "5"),
            "segcal: --percentiles takes 2 numbers with commas",
        ),
        (
            ("phantom", "acdd", "--to", "x"),
            "segcal: unknown layout 'acdd'; choose one of nnunet, msd",
        ),
        (
            ("phantom", "msd", "--to", ".."),
            "segcal: .. is not an empty folder; choose a new one with --to",
        ),
        (("train", "nowhere"), "segcal: nowhere is not a prepared data set"),
        (
            ("train", "x", "--set", "training.epoch=3"),
            "segcal: unknown setting 'training.epoch'; did you mean",
        ),
        (("evaluate", "nowhere"), "segcal: nowhere is not a run"),
        (("inspect", "nowhere"), "segcal: nowhere is not a prepared data set"),
        (
            ("download", "acdc"),
            "segcal: acdc has no open address; ask for access at https://www.creatis",
        ),
        (("download", "acdx"), "segcal: unknown data set 'acdx'; choose one of acdc"),
    ],
)
def test_user_errors_are_one_sentence_and_exit_2(tmp_path, args, message):
    done = segcal(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(message)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_a_run_from_data_to_prediction(tmp_path):
    """Results to standard output, progress to standard error, files where the user said."""
    write_layout("msd", tmp_path / "raw", n_cases=6, size=(4, 24, 24))
    assert segcal("prepare", "mine", "--from", "raw", cwd=tmp_path).returncode == 0
    small = ("--set", "network.width=2", "--epochs", 2, "--json")
    done = segcal(
        "train", "cases/mine", "--loss", "mbls", "--set", "loss.margin=5", *small, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    info = json.loads(done.stdout)
    assert info["folder"] == "runs/mine-unet-mbls-margin5-s0"
    run = tmp_path / info["folder"]
    scores = json.loads(segcal("evaluate", run, "--noise-series", "--json", cwd=tmp_path).stdout)
    assert list(scores) == ["clean", *(f"gaussian_noise:0.0{i}" for i in range(1, 6))]
    shown = {("nll", "all"): "nll", ("ece", "near"): "ece near"}
    shown[("ece_perfect", "all")] = "ece_perfect"
    for (metric, voxels), name in shown.items():
        values = [
            row["value"]
            for row in read_scores(run)
            if (row["metric"], row["voxels"], row["class"]) == (metric, voxels, "all")
            and row["case"] != "pooled"
            and row["corruption"] == ""
        ]
        known = [value for value in values if not np.isnan(value)]
        expected = pytest.approx(np.mean(known)) if known else None  # nothing near is predicted
        assert scores["clean"][name] == expected
    fits = json.loads(segcal("calibrate", run, "--with", "ts", "--json", cwd=tmp_path).stdout)
    assert fits["fits"]["ts"]["temperature"] > 0
    assert fits["scores"]["before"]["dice"] == fits["scores"]["ts"]["dice"]
    image = next((tmp_path / "raw" / "imagesTr").iterdir())
    said = segcal("predict", run, image, "-o", "out", "--calibrator", "ts", "--json", cwd=tmp_path)
    assert set(json.loads(said.stdout)) == {image.name.split(".")[0]}
    assert len(list((tmp_path / "out").iterdir())) == 3
    again = segcal(
        "train", "cases/mine", "--loss", "mbls", "--set", "loss.margin=5", *small, cwd=tmp_path
    )
    assert json.loads(again.stdout) == info


def test_lists():
    values = json.loads(segcal("list", "datasets", "--json").stdout)
    assert values["hippocampus"]["classes"] == ["Anterior", "Posterior"]
    assert values["brats"]["regions"] == ["TC", "ET", "WT"]
    text = segcal("list", "datasets").stdout
    for key, row in values.items():
        assert key in text
        assert row["licence"] in text
    metrics = json.loads(segcal("list", "metrics", "--json").stdout)
    assert metrics["ece"]["voxels"] == "reference, near"
    assert "voxels" not in metrics["dice"]
    assert segcal("--version").stdout.strip()
