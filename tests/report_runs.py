"""Runs for the report's tests: two tiny networks, trained once for all tests."""

import functools
import json
import tempfile
from pathlib import Path

from synthetic_runs import write_run

from segcal.config import run_settings
from segcal.data.prepare import prepare
from segcal.fitting import calibrate
from segcal.predictors.run import open_run
from segcal.training import train

_FOLDER = tempfile.TemporaryDirectory(prefix="segcal-report-")  # removed when the process ends


@functools.cache
def tiny_runs():
    """The folders of runs `ce` and `mbls`, calibrated and scored on five phantoms."""
    root = Path(_FOLDER.name)
    ids = [f"phantom_{i:03d}" for i in range(12)]
    (root / "split.json").write_text(
        json.dumps({"train": ids[:6], "val": ids[6:7], "test": ids[7:]})
    )
    cases = prepare(
        "phantom", to=root / "cases", n_cases=12, shape=(6, 40, 36), split_file=root / "split.json"
    ).cases
    folders = []
    for loss in ("ce", "mbls"):
        small = ["network.width=4", "training.epochs=16", "training.lr=0.01", f"loss.name={loss}"]
        train(
            run_settings({"data": str(cases.root)}, overrides=small),
            root / "runs" / loss,
            progress=False,
        )
        calibrate(open_run(root / "runs" / loss), ["ts"])
        folders.append(root / "runs" / loss)
    return tuple(folders)


def full_run(root, name, loss="ce", *, classes=("A", "B"), **kwargs):
    """A made-up run as `write_run` gives it, with all else that a real `run.json` holds."""
    folder = write_run(root, name, loss, classes=classes, **kwargs)
    info = json.loads((folder / "run.json").read_text())
    info["data"] |= {
        "channels": ["MRI"],
        "recipe": {"axis": 0, "spacing": None},
        "orientation": None,
    }
    info["settings"] |= {"machine": {"devices": 1}}
    info["best"] |= {"epoch": 1, "val_ece": 0.1}
    info |= {
        "seconds": 3.0,
        "peak_memory_mb": 100,
        "versions": {"python": "3.11", "segcal": "0", "git": ""},
    }
    (folder / "run.json").write_text(json.dumps(info))
    return folder
