"""Damaged and hostile files of segcal's own, and settings: a sentence or sense, nothing else."""

import copy
import json
import random
import shutil
from importlib import import_module

import pytest
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

command_line = import_module("segcal.cli.app")
VALUES = [None, True, 0, -1, 1, 1e308, 10**40, float("nan"), float("inf"), "", "x", "../../evil"]
VALUES += ["a\nb", "\0", "x[/y]", "=1+1", "\ud800", [], {}, [[]], [None], {"": {}}, "9" * 5000]
VALUES += ["<script>", "é" * 400, "a" * 300]


def changed(value, rng):
    """The same JSON with one to three places that hold something else, or are gone."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 2, 3])):
        part = value
        while isinstance(part, (dict, list)) and part:
            key = rng.choice(list(part)) if isinstance(part, dict) else rng.randrange(len(part))
            inner = part[key]
            if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.3:
                _change(part, key, rng)
                break
            part = inner
    return value


def _change(part, key, rng):
    kind = rng.random()
    if kind < 0.2:
        del part[key]
    elif kind < 0.35 and isinstance(part, dict):
        part[str(rng.choice(VALUES))] = part.pop(key)
    else:
        part[key] = rng.choice(VALUES)


def text_of(value, rng):
    """As text, now and then with damage of the text itself."""
    text = json.dumps(value).encode()
    kind = rng.random()
    if kind < 0.05:
        return text[: rng.randrange(len(text))]
    if kind < 0.1:
        place = rng.randrange(len(text))
        return text[:place] + rng.randbytes(3) + text[place + 1 :]
    if kind < 0.12:
        return rng.choice([b"[" * 100_000, b'{"a":' * 50_000, b"", b"\xff\xfe", b"null", b"5"])
    return text


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
        rng = random.Random(seed)
        name = rng.choice(list(READERS))
        path = tmp_path / str(seed) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(text_of(changed(contents[name], rng), rng))
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


def ended(arguments):
    """How a command ends: its exit code, and whether it said more than one sentence."""
    import sys

    sys.argv = ["segcal", *map(str, arguments)]
    try:
        command_line.main()
    except SystemExit as end:
        return "fault: a bug" if end.code == command_line.BUG else f"ended {end.code or 0}"
    return "fault: did not end"


def everything_in(root):
    return {path for path in root.rglob("*") if not path.is_relative_to(root / "work")}


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
