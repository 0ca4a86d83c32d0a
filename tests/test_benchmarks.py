"""Every benchmark runs to its end, at a tiny size. Times are not looked at."""

import importlib
import math
from pathlib import Path

import pytest
import torch

import benchmarks.__main__ as bench
from benchmarks import classes, pipeline
from benchmarks.measure import HEAD
from segcal.data.prepare import prepare

FOLDER = Path(bench.__file__).parent
TINY = {
    "losses": {"sizes": [((1, 3, 8, 8), 1)]},
    "calibration": {"size": 16, "few": 1, "many": 1, "repeats": 1},
    "surface": {"step": 5, "repeats": (1, 1)},
    "slices": {"n_cases": 2, "shape": (3, 8, 8), "n_drawn": 4, "repeats": 1},
    "pipeline": {
        "sizes": [(2, 32, 6, 4)],
        "n_rounds": 1,
        "scored_size": 32,
        "repeats": 1,
        "n_cases": (1, 2),
        "n_fitted": 25,
        "epochs": 1,
    },
    "audit": {"n_classes": 3, "ct": (4, 32, 32), "n": 12, "few": 2, "shape": (6, 16, 14)},
    "settings": {"size": 32, "n_slices": 4, "n_rounds": 1, "steps": 1, "repeats": 1},
    "ranking": {"n_cases": 4, "n_samples": 20, "repeats": (1, 1)},
    "report": {"methods": ("ce", "mbls"), "n_test": 2, "shape": (4, 32, 32)},
    "study": {
        "losses": '["ce"]',
        "n_cases": 6,
        "shape": (4, 24, 24),
        "epochs": (1, 1),
        "repeats": 1,
    },
}


def test_inference_sees_whole_slices():
    """A run whose frame is smaller than its slices goes through windows, and takes for ever."""
    run, shapes = pipeline.a_run(3, (32, 48)), []
    run.network.register_forward_pre_hook(lambda _, given: shapes.append(given[0].shape[2:]))
    run.logits(torch.rand(2, 1, 32, 48))
    assert set(shapes) == {(32, 48)}


def test_every_benchmark_has_a_tiny_size():
    modules = {module.__name__.rpartition(".")[2] for module in bench.MODULES}
    apart = {"__init__", "__main__", "measure", "classes"}
    assert set(TINY) == modules == {path.stem for path in FOLDER.glob("*.py")} - apart


def test_the_page_on_classes_has_what_was_measured():
    """Not all of it: seeds and networks may be missing, which the page says."""
    known = classes.found()
    assert known
    assert set(known) <= set(classes.trials())
    page = FOLDER.parent / "docs" / "concepts" / "every-class.md"
    assert classes.table(known) in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("variant", classes.VARIANTS)
def test_the_classes_of_a_brief_training_are_counted(variant, tmp_path, monkeypatch):
    monkeypatch.setattr(classes, "STEPS", 2)
    cases = prepare("phantom", to=tmp_path, n_cases=5, shape=(4, 24, 24)).cases
    outcome = classes.tried(classes.Trial("phantom", "unet", 4, variant, 0), cases)
    assert 0 <= outcome.never <= outcome.classes == 3
    assert 0 <= outcome.dice <= 1


@pytest.mark.parametrize("name", TINY)
def test_runs_at_a_tiny_size(name, monkeypatch):
    monkeypatch.chdir(FOLDER.parent)  # memory is measured by `python -m benchmarks.<name>`
    rows = list(importlib.import_module(f"benchmarks.{name}").rows(**TINY[name]))
    assert rows
    for row in rows:
        assert len(row.cells()) == len(HEAD)
        assert math.isfinite(row.value)
