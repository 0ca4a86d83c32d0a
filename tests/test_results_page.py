"""The page on the hippocampus study says what its published scores say, and no more is published than that."""

import csv
import gzip
import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER, PAGE = ROOT / "results" / "hippocampus", ROOT / "docs" / "results" / "hippocampus.md"
STUDIES = sorted(path.parent.name for path in FOLDER.glob("*/packed.json"))
CONDITIONS = {"Pre": "", "TS": "ts", "LTS": "lts"}


def number(cell):
    """The mean of a cell such as `**0.034 ± 0.007** \\[0.052\\]`."""
    return re.search(r"\d+\.\d+", cell)[0]


def tables(text):
    """The tables of a page: each a list of rows, each a list of cells."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        yield [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in block.splitlines() if "---" not in line
        ]


def section(study):
    """The part of the page on a study."""
    heads = {"low": "## Low data:", "low-last": "## Low data, the last epoch"}
    heads |= {"full": "## Full data:", "full-last": "## Full data, the last epoch"}
    return re.split(r"^## (?!#)", PAGE.read_text().partition(heads[study])[2], flags=re.M)[0]


def mean(study, runs, metric, calibrator=""):
    """Over cases, straight from the files."""
    values = []
    for run in runs:
        with gzip.open(FOLDER / study / "runs" / run / "scores.csv.gz", "rt", newline="") as file:
            values += [
                float(row["value"])
                for row in csv.DictReader(file)
                if (row["split"], row["corruption"], row["calibrator"], row["metric"]) == ("test", "", calibrator, metric)
                and row["class"] == ("all" if metric in ("ece", "cece") else "mean")
                and row["case"] != "pooled"
            ]
    assert len(values) == 50 * len(runs)
    return sum(values) / len(values)


def test_the_page_is_what_the_script_makes_of_the_scores(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location("make_page", FOLDER / "make_page.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.page() == PAGE.read_text(encoding="utf-8"), "run results/hippocampus/make_page.py"


@pytest.mark.parametrize("study", STUDIES)
def test_its_main_numbers_are_means_that_anyone_can_repeat(study):
    here = list(tables(section(study)))
    runs_of = {row[0]: re.findall(r"`([^`]+)`", row[-1]) for table in here if table[0][-1] == "cells" for row in table[1:]}
    (posthoc,) = [t for t in here if t[0][1:2] == ["ECE ↓ Pre"]]
    (overlap,) = [t for t in here if t[0][1:2] == ["mean DSC ↑"]]
    methods = [label for label in runs_of if "(" not in label and label != "MbLS+Dice"]
    assert [row[0] for row in posthoc[1:]] == [row[0] for row in overlap[1:]] == methods
    for row in overlap[1:]:
        assert number(row[1]) == f"{mean(study, runs_of[row[0]], 'dice'):.3f}"
    for row in posthoc[1:]:
        for head, cell in zip(posthoc[0][1:], row[1:], strict=True):
            metric, _, condition = head.split(" ")
            assert number(cell) == f"{mean(study, runs_of[row[0]], metric.lower(), CONDITIONS[condition]):.3f}"


def test_what_is_published_is_small_and_shows_no_patient():
    files = [path for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files += [path for path in PAGE.parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 20e6
    assert {path.suffix for path in files} <= {".toml", ".json", ".gz", ".py", ".j2", ".md", ".svg"}
    assert not any("qualitative" in path.name for path in files)
    for path in FOLDER.glob("*/runs/*/run.json"):
        assert json.loads(path.read_text())["settings"]["data"] == "hippocampus"


@pytest.mark.parametrize("study", STUDIES)
def test_every_cell_that_the_page_names_is_one_of_the_plan(study):
    plan = json.loads((FOLDER / study / "plan.json").read_text())["cells"]
    named = set(re.findall(r"`((?:ce|focal|ecp|ls|svls|mbls)[\w.-]*-unet-s\d)`", section(study)))
    named |= set(re.findall(rf"{study}.toml .* --cell (\S+)", PAGE.read_text()))
    assert named
    assert named <= set(plan)
    for name in named:
        info = json.loads((FOLDER / study / "runs" / name / "run.json").read_text())
        assert info["settings"]["loss"] == plan[name]["settings"]["loss"]
        assert info["settings"]["seed"] == plan[name]["settings"]["seed"]
