"""A process that is killed at a rename or a removal leaves nothing that the next one minds."""

import multiprocessing
import os
import pathlib
import random
import shutil
import signal

import numpy as np
import pytest
import SimpleITK as sitk
from guarded import N
from made_predictions import made_cases, write_arrays, write_labels
from made_runs import made_run

from segcal.auditing import audit
from segcal.auditing.applying import apply
from segcal.compare import read_results
from segcal.compare.packing import pack
from segcal.compare.tables import all_tables, save_tables
from segcal.config import run_settings
from segcal.data.prepare import prepare
from segcal.figures import save_figures
from segcal.fitting import calibrate
from segcal.predicting import predict
from segcal.predictors import make_ensemble, open_predictor
from segcal.report import save_report
from segcal.scoring import evaluate
from segcal.training import train

POINTS = 2 if N <= 2000 else N // 200
"""At how many renames or removals each verb is killed: `make fuzz` tries all."""

CHANGES = ("replace", "rename", "unlink", "remove", "rmdir")
SAME = (".csv", ".npy", ".md", ".tex", ".svg", ".html", "bins.json", "summary.json", "fold.json")
SAME += (".safetensors",)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Prepared data, two trained runs, an image, runs and predictions made up, and their audit."""
    root = tmp_path_factory.mktemp("made")
    cases = prepare("phantom", to=root / "cases", n_cases=5, shape=(4, 24, 24)).cases
    for seed in (0, 1):
        small = ["network.width=4", "training.epochs=1", f"seed={seed}"]
        settings = run_settings({"data": str(cases.root)}, overrides=small)
        train(settings, root / "trained" / str(seed), progress=False)
    image = np.random.default_rng(0).normal(size=(4, 24, 24)).astype(np.float32)
    sitk.WriteImage(sitk.GetImageFromArray(image), str(root / "scan.nii.gz"))
    for loss in ("ce", "mbls"):
        made_run(root / "runs", loss, loss, n_cases=3, n_voxels=99)
    predicted = made_cases(5, shape=(3, 12, 10), sharpness=1.8)
    write_arrays(root / "maps", predicted)
    write_labels(root / "labels", predicted)
    audit(root / "maps", root / "labels", out=root / "audit", report=False)
    return root


def preparing(root):
    prepare("phantom", to=root / "new", n_cases=5, shape=(4, 24, 24))


def evaluating(root):
    evaluate(open_predictor(root / "trained" / "0"))


def calibrating(root):
    calibrate(open_predictor(root / "trained" / "0"), ["ts"])


def predicting(root):
    images, out = [root / "scan.nii.gz"], root / "predictions"
    predict(open_predictor(root / "trained" / "0"), images, out, probabilities=True)


def joining(root):
    make_ensemble([root / "trained" / "0", root / "trained" / "1"], root / "ensemble")


def packing(root):
    pack([root / "runs"], root / "packed")


def comparing(root):
    results = read_results([root / "runs"])
    save_tables(all_tables(results, ["discriminative"]), root / "tables")


def drawing(root):
    save_figures(read_results([root / "runs"]), root / "figures", keys=["learning_curves"])


def reporting(root):
    save_report(root / "page" / "report.html", "<html></html>")


def training(root):
    small = ["network.width=4", "training.epochs=2"]
    settings = run_settings({"data": str(root / "cases" / "phantom")}, overrides=small)
    train(settings, root / "trained" / "new", progress=False)


def auditing(root):
    audit(root / "maps", root / "labels", out=root / "audited", report=False)


def applying(root):
    if not (root / "calibrated").exists():  # what stands there is whole, and is not replaced
        apply(root / "audit", root / "maps", out=root / "calibrated", calibrator="ts")


VERBS = {
    preparing: "new",
    training: "trained/new",
    auditing: "audited",
    applying: "calibrated",
    evaluating: "trained/0",
    calibrating: "trained/0",
    predicting: "predictions",
    joining: "ensemble",
    packing: "packed",
    comparing: "tables",
    drawing: "figures",
    reporting: "page",
}


def in_a_process(verb, root, kill_at=None):
    """Run a verb; gives how many changes of names it made, or `None` if it was killed."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_counted, args=(verb, root, kill_at, sender))
    process.start()
    sender.close()
    process.join(120)
    assert not process.is_alive(), "it hangs"
    if process.exitcode == -signal.SIGKILL:
        return None
    assert process.exitcode == 0
    return receiver.recv()


def _counted(verb, root, kill_at, sender):
    n_done = 0

    def counted(real):
        def change(*args, **kwargs):
            nonlocal n_done
            if n_done == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            n_done += 1
            return real(*args, **kwargs)

        return change

    for name in CHANGES:  # pathlib and shutil call these
        setattr(os, name, counted(getattr(os, name)))
    verb(root)
    sender.send(n_done)


def files_in(root):
    """Names, with the content where it does not hold times or random numbers."""
    found = {}
    for path in root.rglob("*"):
        if path.suffix == ".lock":  # an empty file, which holds nothing by itself
            continue
        timed = path.name == "log.csv"
        is_same = path.is_file() and path.name.endswith(SAME) and not timed
        found[str(path.relative_to(root))] = path.read_bytes() if is_same else b""
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_a_kill_at_any_change_of_a_name_is_repaired_by_the_same_command(made, tmp_path, verb):
    whole = tmp_path / "whole" / "work"  # of one name, which data sets are named after
    shutil.copytree(made, whole)
    n_changes = in_a_process(verb, whole)
    assert n_changes > 0
    expected = files_in(whole)
    points = random.Random(verb.__name__).sample(range(n_changes), min(n_changes, POINTS))
    for point in points:
        root = tmp_path / "killed" / "work"
        shutil.copytree(made, root)
        before = files_in(root)
        assert in_a_process(verb, root, kill_at=point) is None
        for name, content in files_in(root).items():
            inside = name.startswith(VERBS[verb]) or name.startswith(f".{VERBS[verb]}")
            hidden = pathlib.Path(name).parts[-1].startswith(".")
            assert inside or hidden or before.get(name) == content, f"{name} was changed"
        in_a_process(verb, root)
        assert files_in(root) == expected
        shutil.rmtree(root)
