"""Damaged and hostile files of segcal's own, and settings: a sentence or sense, nothing else."""

import json
import random
import shutil

import pytest
from damage import VALUES, changed, damaged_json, ended, everything_in, text_of
from guarded import outcomes_of, share
from made_runs import made_run
from official_layouts import write_layout

from segcal.config import run_settings
from segcal.data.prepare import prepare
from segcal.folders import (
    open_cases,
    read_bins,
    read_json,
    read_log,
    read_run,
    read_scores,
    study_records,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A prepared data set, raw data, and a study's runs."""
    root = tmp_path_factory.mktemp("made")
    write_layout("nnunet", root / "raw", n_cases=4, size=(4, 24, 24))
    prepare("phantom", to=root / "cases", n_cases=4, shape=(4, 24, 24))
    for loss in ("ce", "mbls"):
        made_run(root / "runs", loss, loss, n_cases=3, n_voxels=99)
    state = {"status": "failed", "error": "why"}
    (root / "runs" / "cells.json").write_text(json.dumps({"cells": {"a": state}}))
    (root / "runs" / "plan.json").write_text(json.dumps({"choose": "nll", "cells": {"a": {}}}))
    return root


READERS = {
    "cases/phantom/cases.json": open_cases,
    "runs/ce/run.json": read_run,
    "runs/ce/bins.json": read_bins,
    "runs/cells.json": study_records,
    "runs/plan.json": study_records,
}


def test_json_files_of_ours(made, tmp_path):
    contents = {name: read_json(made / name) for name in READERS}

    def trial(seed):
        name, path = damaged_json(contents, seed, tmp_path)
        READERS[name](path.parent)
        return "read"

    counts, faults = outcomes_of(trial, range(share(0.15)))
    assert faults == []
    assert counts["refused"] > 0


def test_tables_of_ours(made, tmp_path):
    files = {"log.csv": read_log, "scores.csv": read_scores}

    def trial(seed):
        rng = random.Random(seed)
        name = rng.choice(list(files))
        lines = (made / "runs" / "ce" / name).read_text().splitlines()[:12]
        cells = [line.split(",") for line in lines]
        for _ in range(rng.choice([1, 2])):
            line = rng.choice(cells)
            line[rng.randrange(len(line))] = str(rng.choice(VALUES))
        if rng.random() < 0.3:
            rng.choice(cells).append("more")
        text = "\n".join(",".join(line) for line in cells).encode("utf-8", "surrogatepass")
        folder = tmp_path / str(seed)
        shutil.copytree(made / "runs" / "ce", folder)
        (folder / name).write_bytes(text)
        for row in files[name](folder):
            assert None not in row.values()
        return "read"

    _, faults = outcomes_of(trial, range(share(0.05)))
    assert faults == []


def test_settings(made):
    keys = ["training.epochs", "training.lr", "loss.margin", "loss", "network", "seed", "machine"]
    keys += [
        "machine.devices",
        "training",
        "data",
        "fold",
        "loss.name",
        "",
        ".",
        "a..b",
        "loss.a.b",
    ]
    values = ["1", "-1", "inf", "nan", "[]", "{}", "'x'", "x", "", "1e400", "[[1]]", "9" * 5000]
    values += ["[" * 9999, "'\ud800'", "\0", "true", "1979-05-27"]

    def trial(seed):
        rng = random.Random(seed)
        pairs = [f"{rng.choice(keys)}={rng.choice(values)}" for _ in range(rng.choice([1, 2]))]
        run_settings({"data": "x"}, overrides=pairs)
        return "read"

    counts, faults = outcomes_of(trial, range(share(0.07)))
    assert faults == []
    assert counts["refused"] > 0


def test_commands(made, tmp_path):
    """Nothing is written outside of the target, and no partial file stays."""
    description = read_json(made / "raw" / "dataset.json")
    cases, run = (read_json(made / f) for f in ("cases/phantom/cases.json", "runs/ce/run.json"))

    def trial(seed):
        rng = random.Random(seed)
        work = tmp_path / "work" / str(seed)
        shutil.copytree(made, work)
        before = everything_in(tmp_path)
        kind = rng.choice(["prepare", "inspect", "compare"])
        if kind == "prepare":
            text = text_of(changed(description, rng), rng)
            (work / "raw" / "dataset.json").write_bytes(text)
            more = ["--from", work / "raw", "--to", work / "out", "--workers", "1"]
            word = ended(["prepare", "mine", *more])
        elif kind == "inspect":
            (work / "cases/phantom/cases.json").write_bytes(text_of(changed(cases, rng), rng))
            word = ended(["inspect", work / "cases/phantom"])
        else:
            (work / "runs/ce/run.json").write_bytes(text_of(changed(run, rng), rng))
            word = ended(["compare", work / "runs", "--out", work / "tables"])
        if everything_in(tmp_path) != before:
            return "fault: wrote elsewhere"
        if list(work.rglob(".partial-*")) or list(work.rglob(".*.partial")):
            return "fault: left a partial file"
        shutil.rmtree(work)
        return word

    counts, faults = outcomes_of(trial, range(share(0.03)))
    assert faults == []
    assert counts["ended 2"] > 0
