"""The examples run, and say what their pages say."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run(*args, cwd=None):
    done = subprocess.run(
        [sys.executable, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | ONE_THREAD,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


def test_monai_trains_scores_calibrates_and_is_audited(tmp_path):
    out = tmp_path / "monai-example"
    settings = ("--epochs", 2, "--cases", 8, "--out", out)
    told = run(EXAMPLES / "monai" / "train.py", *settings)
    scores = {}
    for name, values in re.findall(r"^([\w, ]+) (\{.*\})$", told, re.M):
        scores[name] = json.loads(values.replace("'", '"'))
    assert scores.keys() == {"validation", "test", "test, calibrated"}
    # The calibrator keeps the label map.
    assert scores["test"]["dice_mean"] == scores["test, calibrated"]["dice_mean"]
    assert scores["test"]["nll"] != scores["test, calibrated"]["nll"]

    places = ("--labels", out / "labels", "--out", out / "audit")
    run("-m", "segcal", "audit", out / "probs", *places)
    facts = json.loads((out / "audit" / "audit.json").read_text())
    assert facts["n_cases"] == 2
    assert facts["kind"] == "softmax"
    # What the audit says of the stored probabilities is what the handler said of the logits.
    for key in ("misplaced", "nll", "volume_ratio"):
        audited = facts["scores"]["before"]["all"][key]
        assert audited == pytest.approx(scores["test"][key], abs=2e-3)


@pytest.fixture(scope="module")
def alone():
    return json.loads(run(EXAMPLES / "lightning" / "train.py", "--epochs", 1).splitlines()[-1])


def test_lightning_gives_the_same_with_two_processes(alone):
    """The same cases in the same steps: gradients are means over processes, scores add up."""
    script = EXAMPLES / "lightning" / "train.py"
    told = run(script, "--epochs", 1, "--devices", 2).splitlines()[-1]
    assert json.loads(told) == pytest.approx(alone, rel=1e-3)
