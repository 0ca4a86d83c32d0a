"""A packed study is read like the study itself, and tells nothing of the machine."""

import json

import pandas as pd
import pytest
from made_runs import made_run
from typer.testing import CliRunner

from segcal.cli import app
from segcal.results import pack, read_results
from segcal.types import UserError

SECRET = "/home/someone/private/made"


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "mine"
    for loss in ("ce", "mbls"):
        for seed in (0, 1):
            made_run(out / "runs", f"{loss}-s{seed}", loss, seed=seed, noise=(0.03,), data=SECRET)
    (out / "selection.json").write_text('{"rule": "by validation", "contenders": []}')
    (out / "plan.json").write_text(json.dumps({"cells": {"ce-s0": {"settings": {"data": SECRET}}}}))
    (out / "runs" / "ce-s0" / "checkpoints").mkdir()
    (out / "runs" / "ce-s0" / "checkpoints" / "best.safetensors").write_bytes(b"weights")
    return out


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_what_is_read_from_it_is_the_same(study, tmp_path):
    said = pack([study], tmp_path / "packed")
    mine, theirs = read_results([study]), read_results([tmp_path / "packed"])
    assert said["runs"] == 4
    assert said["bytes"] == sum(map(len, contents(tmp_path / "packed").values()))
    pd.testing.assert_frame_equal(mine.scores, theirs.scores)
    assert mine.contenders == theirs.contenders
    for one, other in zip(mine.contenders, theirs.contenders, strict=True):
        a, b = mine.bins(one, corruption="gaussian_noise:0.03"), theirs.bins(other, corruption="gaussian_noise:0.03")
        assert all((a["top"][key] == b["top"][key]).all() for key in ("count", "conf", "hit"))


def test_it_holds_no_weights_and_no_paths(study, tmp_path):
    pack([study], tmp_path / "packed")
    found = contents(tmp_path / "packed")
    assert {name.split("/")[-1] for name in found} == {
        *("run.json", "log.csv.gz", "scores.csv.gz", "bins.json.gz"),
        *("plan.json", "selection.json", "packed.json"),
    }
    assert not any(b"private" in value for value in found.values())
    assert json.loads(found["plan.json"])["cells"]["ce-s0"]["settings"]["data"] == "made"
    assert read_results([study]).runs["ce-s0"]["settings"]["data"] == SECRET


def test_packing_again_gives_the_same_bytes(study, tmp_path):
    pack([study], tmp_path / "one")
    pack([study], tmp_path / "two")
    pack([tmp_path / "one"], tmp_path / "three")
    first = contents(tmp_path / "one")
    assert first == contents(tmp_path / "two") == contents(tmp_path / "three")
    pack([study], tmp_path / "one")
    assert first == contents(tmp_path / "one")


def test_a_folder_of_somebody_else_is_left_alone(study, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    with pytest.raises(UserError, match="letters exists and is not a packed study; choose another --out"):
        pack([study], tmp_path / "letters")
    assert list(contents(tmp_path / "letters")) == ["dear.txt"]


def test_runs_without_scores_are_refused_and_leave_nothing(study, tmp_path):
    made_run(tmp_path / "runs", "ce", "ce")
    (tmp_path / "runs" / "ce" / "scores.csv").unlink()
    with pytest.raises(UserError, match="ce has no test scores"):
        pack([tmp_path / "runs"], tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_a_damaged_archive_is_named(study, tmp_path):
    pack([study], tmp_path / "packed")
    path = tmp_path / "packed" / "runs" / "ce-s0" / "scores.csv.gz"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match=r"scores.csv is damaged"):
        read_results([tmp_path / "packed"])


def test_the_verbs_read_it(study, tmp_path):
    out = tmp_path / "packed"
    ran = CliRunner().invoke(app, ["pack", str(study), "--out", str(out)])
    assert ran.exit_code == 0
    assert "4" in ran.stdout
    tables = [CliRunner().invoke(app, ["compare", str(folder), "--format", "csv"]).stdout for folder in (study, out)]
    assert tables[0] == tables[1] != ""
    ran = CliRunner().invoke(app, ["figures", str(out), "--out", str(tmp_path / "figures")])
    assert ran.exit_code == 0, ran.output
