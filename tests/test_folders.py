"""One owner for our files: names, the schema of scores, and locks."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from segcal.folders import (
    COLUMNS,
    BusyError,
    alone,
    load_weights,
    read_bins,
    read_scores,
    save_weights,
    sweep,
    write_bins,
    write_json,
    write_run,
    write_scores,
)
from segcal.folders.scores import VERSION_1
from segcal.types import UserError

SOURCE = Path(__file__).parents[1] / "src" / "segcal"
NAMES = (
    *("scores.csv", "log.csv", "run.json", "bins.json", "cells.json", "cases.json", "plan.json"),
    *("selection.json", "packed.json", "last.ckpt", "best.safetensors", "last.safetensors"),
)
SPELLED = re.compile(rf"[\"'/]({'|'.join(map(re.escape, NAMES))})[\"']|[\"']checkpoints[\"']")


def test_only_folders_spells_file_names():
    for path in SOURCE.rglob("*.py"):
        if path.parent.name != "folders":
            assert not SPELLED.findall(path.read_text()), path.relative_to(SOURCE)


def test_a_spelled_name_would_be_seen():
    assert SPELLED.findall('root / "scores.csv"')
    assert SPELLED.findall("root / 'checkpoints' / name")
    assert SPELLED.findall('glob("runs/*/run.json")')
    assert not SPELLED.findall('"""Rows of scores.csv."""')


def row(**values):
    return dict.fromkeys(COLUMNS, "") | {"metric": "ece", "value": 0.5} | values


def run_json(root, **facts):
    settings = {"training": {"epochs": 1}}
    write_run(root, {"id": "x", "status": "finished", "settings": settings, "data": {}} | facts)


def test_scores_are_read_as_they_were_written(tmp_path):
    rows = [row(case="a", value=1 / 3), row(case="b", weights="last", voxels="reference")]
    write_scores(tmp_path, [dict(reversed(one.items())) for one in rows])  # in any order of columns
    assert read_scores(tmp_path) == rows
    assert [list(one) for one in read_scores(tmp_path)] == [list(COLUMNS)] * 2
    with pytest.raises(KeyError):
        write_scores(tmp_path, [{"case": "a"}])


def test_scores_without_rows_have_a_header(tmp_path):
    write_scores(tmp_path, [])
    assert (tmp_path / "scores.csv").read_text() == ",".join(COLUMNS) + "\n"
    assert read_scores(tmp_path) == []


@pytest.mark.parametrize(("facts", "weights"), [({"best": {}}, "best"), ({"last": {}}, "last")])
def test_scores_of_version_1_get_their_weights_and_voxels(tmp_path, facts, weights):
    run_json(tmp_path, **facts)
    old = [dict.fromkeys(VERSION_1, "") | {"metric": m, "value": 0.5} for m in ("dice", "ece")]
    lines = [",".join(VERSION_1), *(",".join(str(v) for v in one.values()) for one in old)]
    (tmp_path / "scores.csv").write_text("\n".join(lines) + "\n")
    assert [(r["weights"], r["voxels"]) for r in read_scores(tmp_path)] == [
        (weights, ""),
        (weights, "reference"),
    ]


def test_scores_that_are_no_numbers_are_refused(tmp_path):
    write_scores(tmp_path, [row(value="many")])
    with pytest.raises(UserError, match="holds values that are not numbers; run segcal evaluate"):
        read_scores(tmp_path)


def test_bins_without_weights_get_those_of_their_run(tmp_path):
    run_json(tmp_path, last={})
    assert read_bins(tmp_path) == []
    write_bins(tmp_path, ["background", "a"], [{"split": "test"}])
    assert read_bins(tmp_path) == [{"weights": "last", "split": "test"}]
    write_json(tmp_path / "bins.json", [1])
    with pytest.raises(UserError, match="bins.json is damaged; run segcal evaluate --again"):
        read_bins(tmp_path)


def test_a_lock_is_taken_once_and_released_when_its_holder_dies(tmp_path):
    with alone(tmp_path / "run"), pytest.raises(BusyError), alone(tmp_path / "run"):
        pass
    code = (
        "import os, sys; from pathlib import Path; from segcal.folders import alone\n"
        "with alone(Path(sys.argv[1])): os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=False)
    with alone(tmp_path / "run"):
        pass


@pytest.mark.parametrize("text", ["=1+1", "+a", "@b", "'=c", "'d", "liver", "-5", ""])
def test_cells_that_spreadsheets_would_compute_are_text_and_come_back(tmp_path, text):
    write_scores(tmp_path, [row(case="a", **{"class": text})])
    (written,) = list(csv.DictReader((tmp_path / "scores.csv").open()))
    assert not written["class"].startswith(("=", "+", "@"))
    assert read_scores(tmp_path)[0]["class"] == text


def test_partial_files_of_dead_processes_go_and_of_living_ones_stay(tmp_path):
    """Below a folder only for the holder of its lock; 2**22 is more than Linux has processes."""
    names = [f".partial-{os.getpid()}-a", f".partial-{2**22 + 1}-b", "c", ".partial-x-d"]
    for folder in (tmp_path, tmp_path / "below"):
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).touch()
    sweep(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {names[0], "c", "below"}
    assert len([*(tmp_path / "below").iterdir()]) == 4
    sweep(tmp_path, held=True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["below", "c", "c"]


def some_weights():
    return {"a.weight": torch.randn(2, 3), "a.n": torch.tensor(5), "b": torch.ones(2).bfloat16()}


def test_a_flipped_bit_of_weights_is_found(tmp_path):
    path, weights = tmp_path / "best.safetensors", some_weights()
    save_weights(path, weights)
    content = path.read_bytes()
    n_refused = 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        try:
            read = load_weights(path)
        except (ValueError, SafetensorError):
            n_refused += 1
            continue
        # what has no meaning may change, such as the name of the checksum
        assert set(read) == set(weights)
        assert all(torch.equal(value, weights[name]) for name, value in read.items())
    assert n_refused > 0.9 * len(content)
    path.write_bytes(content)
    assert all(torch.equal(value, weights[name]) for name, value in load_weights(path).items())


def test_weights_of_older_versions_have_no_checksum(tmp_path):
    save_file(some_weights(), tmp_path / "best.safetensors")
    assert set(load_weights(tmp_path / "best.safetensors")) == set(some_weights())
