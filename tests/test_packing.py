"""A packed study is read like the study itself, and tells nothing of the machine."""

import itertools
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from made_runs import made_run
from report_runs import tiny_runs
from synthetic_runs import write_run
from typer.testing import CliRunner

from segcal.cli import app
from segcal.compare import pack, read_results
from segcal.config import checked
from segcal.folders import read_run
from segcal.predictors.run import open_run
from segcal.study.folder import adopted
from segcal.training import train
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
    (out / "runs" / "ce-s0" / "calibrators").mkdir()
    (out / "runs" / "ce-s0" / "calibrators" / "ts.safetensors").write_bytes(b"weights")
    (out / "runs" / "ce-s0" / "calibrators" / "ts.json").write_text('{"temperature": 1.25}')
    return out


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_what_is_read_from_it_is_the_same(study, tmp_path):
    said = pack([study], tmp_path / "packed")
    mine, theirs = read_results([study]), read_results([tmp_path / "packed"])
    assert said["runs"] == 4
    assert said["bytes"] == sum(map(len, contents(tmp_path / "packed").values()))
    pd.testing.assert_frame_equal(mine.scores, theirs.scores)
    assert mine.contenders == theirs.contenders
    for one, other in zip(mine.contenders, theirs.contenders, strict=True):
        a, b = (
            mine.bins(one, corruption="gaussian_noise:0.03"),
            theirs.bins(other, corruption="gaussian_noise:0.03"),
        )
        assert all((a["top"][key] == b["top"][key]).all() for key in ("count", "conf", "hit"))


def test_it_holds_no_weights_and_no_paths(study, tmp_path):
    pack([study], tmp_path / "packed")
    found = contents(tmp_path / "packed")
    assert {name.split("/")[-1] for name in found} == {
        *("run.json", "log.csv.gz", "scores.csv.gz", "bins.json.gz"),
        *("plan.json", "selection.json", "packed.json", "ts.json"),
    }
    assert json.loads(found["runs/ce-s0/calibrators/ts.json"]) == {"temperature": 1.25}
    assert not (tmp_path / "packed" / "runs" / "ce-s1" / "calibrators").exists()
    assert not any(b"private" in value for value in found.values())
    assert json.loads(found["plan.json"])["cells"]["ce-s0"]["settings"]["data"] == "made"
    assert read_results([study]).runs["ce-s0"]["settings"]["data"] == SECRET


def test_it_tells_which_cases_are_of_one_patient_and_not_their_names(tmp_path):
    cases = [f"c{i}" for i in range(8)]
    names = {case: f"the name of somebody {9 - i // 2}" for i, case in enumerate(cases)}
    for loss in ("ce", "ls"):
        write_run(tmp_path / "runs", loss, loss, patients=names)
    pack([tmp_path / "runs"], tmp_path / "packed")
    assert not any(b"somebody" in value for value in contents(tmp_path / "packed").values())
    found = read_results([tmp_path / "packed"]).patients("organs")[cases]
    assert found.nunique() == 4
    assert all((found[a] == found[b]) == (names[a] == names[b]) for a in cases for b in cases)


def test_a_case_named_like_its_patient_stays_with_the_other_cases(tmp_path):
    """A run's record leaves such a case out of its patients."""
    names = {"c1": "c0", "c2": "c0", "c4": "somebody"}
    others = {"c1": "c7"}  # of other data, where c0 is not a patient of two cases
    write_run(tmp_path / "runs", "ce", "ce", patients=names)
    write_run(tmp_path / "runs", "other", "ce", patients=others, dataset="b", checksum="two")
    write_run(tmp_path / "runs", "none", "ce", dataset="c", checksum="three")
    pack([tmp_path / "runs"], tmp_path / "packed")
    found = read_results([tmp_path / "packed"])
    cases = [f"c{i}" for i in range(8)]
    for dataset, of in (("organs", names), ("b", others), ("c", {})):
        patients = found.patients(dataset)
        for a, b in itertools.product(cases, cases):
            assert (patients[a] == patients[b]) == (of.get(a, a) == of.get(b, b)), (dataset, a, b)
    packed = json.loads((tmp_path / "packed" / "runs" / "ce" / "run.json").read_text())
    assert set(packed["data"]["patients"]) == {"c0", "c1", "c2", "c4"}
    assert not {"c0", "somebody"} & set(packed["data"]["patients"].values())
    pack([tmp_path / "packed"], tmp_path / "again")
    assert contents(tmp_path / "again") == contents(tmp_path / "packed")


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
    with pytest.raises(
        UserError, match="letters exists and is not a packed study; choose another --out"
    ):
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
    with pytest.raises(UserError, match=r"scores.csv.gz is damaged; get the packed study again"):
        read_results([tmp_path / "packed"])
    pack([study], tmp_path / "other")
    bins = tmp_path / "other" / "runs" / "ce-s0" / "bins.json.gz"
    bins.write_bytes(bins.read_bytes()[:200])
    found = read_results([tmp_path / "other"])
    with pytest.raises(UserError, match=r"bins.json.gz is damaged"):
        found.bins(found.contenders[0])


def test_reasons_of_failures_stay_at_home(study, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(study, own)
    sentence = f"OSError: no space left: {SECRET}"
    (own / "cells.json").write_text(
        json.dumps({"cells": {"ls-s0": {"status": "failed", "error": sentence}}})
    )
    (own / "selection.json").write_text(
        json.dumps({"contenders": [{"left_out": {"ls-s0": sentence, "ls-s1": ""}}]})
    )
    pack([own], tmp_path / "packed")
    assert not any(b"private" in value for value in contents(tmp_path / "packed").values())
    assert read_results([tmp_path / "packed"]).failed == {"ls-s0": "it failed"}
    with pytest.raises(UserError, match="are two studies; pack each into a folder of its own"):
        pack([own, study], tmp_path / "both")


def test_own_files_beside_are_not_lost(study, tmp_path, monkeypatch):
    pack([study], tmp_path / "packed")
    (tmp_path / "packed" / "README.md").write_text("mine")
    with pytest.raises(UserError, match="also holds README.md, which would be lost"):
        pack([study], tmp_path / "packed")
    (tmp_path / "packed" / "README.md").unlink()
    monkeypatch.chdir(tmp_path / "packed")
    before = contents(tmp_path / "packed")
    pack([study], Path())  # the folder that one is in
    assert contents(tmp_path / "packed") == before


def test_a_packed_run_is_for_comparing_alone(tmp_path):
    """It has scores, which would be taken for those of new weights, and no weights of its own."""
    pack(tiny_runs(), tmp_path / "packed")
    run = tmp_path / "packed" / "runs" / "ce"
    settings = checked(read_run(tiny_runs()[0])["settings"])
    for attempt in (
        lambda: open_run(run),
        lambda: train(settings, run, again=True, progress=False),
    ):
        with pytest.raises(UserError, match="is a packed copy of a run, which can only"):
            attempt()
    with pytest.raises(UserError, match="is a packed copy of a run"):
        adopted(tmp_path / "packed", [])


def test_the_verbs_read_it(study, tmp_path):
    out = tmp_path / "packed"
    ran = CliRunner().invoke(app, ["pack", str(study), "--out", str(out)])
    assert ran.exit_code == 0
    assert (
        json.loads(
            CliRunner().invoke(app, ["pack", str(study), "--out", str(out), "--json"]).stdout
        )["runs"]
        == 4
    )
    tables = [
        CliRunner().invoke(app, ["compare", str(folder), "--format", "csv"]).stdout
        for folder in (study, out)
    ]
    assert tables[0] == tables[1] != ""
    ran = CliRunner().invoke(app, ["figures", str(out), "--out", str(tmp_path / "figures")])
    assert ran.exit_code == 0, ran.output
