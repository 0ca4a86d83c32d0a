"""The last boundary: every failure of a command is one sentence; a bug of ours is 70 and a file."""

import json
import re
from importlib import import_module

import pytest
from made_runs import made_run
from official_layouts import write_layout

from segcal.config import put_all, read_toml
from segcal.data.prepare import prepare
from segcal.folders import write_json
from segcal.types import UserError

command_line = import_module("segcal.cli.app")


def run(monkeypatch, capsys, *arguments):
    """The exit code of a command, and what it printed to standard output and error."""
    monkeypatch.setattr("sys.argv", ["segcal", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    return ended.value.code or 0, *capsys.readouterr()


@pytest.mark.parametrize("kind", [ValueError, KeyError, RuntimeError, RecursionError, TypeError])
def test_a_bug_is_a_sentence_and_its_traceback_is_kept(kind, monkeypatch, capsys, tmp_path):
    def fails(*args, **kwargs):
        raise kind("what no one foresaw\nin two lines")

    monkeypatch.setattr("segcal.folders.open_cases", fails)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, _, said = run(monkeypatch, capsys, "inspect", tmp_path)
    assert code == 70
    assert len(said.splitlines()) == 1
    assert f"this is a bug in segcal: {kind.__name__}: " in said
    (file,) = tmp_path.iterdir()
    assert said.strip().endswith(f"the traceback is in {file}")
    assert "in fails" in file.read_text()


@pytest.mark.parametrize("name", ["x[/y]", "[red]", ":smile:", "[/]", "a[bold"])
def test_names_are_no_markup(name, monkeypatch, capsys, tmp_path):
    for loss in ("ce", "mbls"):
        made_run(
            tmp_path / "runs", f"{loss} {name.replace('/', '|')}", loss, n_cases=3, n_voxels=99
        )
    code, printed, _ = run(monkeypatch, capsys, "compare", tmp_path / "runs")
    assert code == 0
    write_layout("msd", tmp_path / "raw", n_cases=4, size=(5, 24, 24))
    about = json.loads((tmp_path / "raw" / "dataset.json").read_text())
    about["labels"]["1"] = name
    (tmp_path / "raw" / "dataset.json").write_text(json.dumps(about))
    cases = prepare("mine", tmp_path / "raw", tmp_path / "cases").cases
    code, printed, _ = run(monkeypatch, capsys, "inspect", cases.root)
    assert code == 0
    assert f"class {name}" in printed


LABELS = [
    {"background": 0, "a": float("inf")},
    {"background": 0, "a": float("nan")},
    {"background": 0, "a": 1.5},
    {"background": 0, "a": True},
    {"background": 0, "a": 1, "ignore": []},
    {"background": 0, "a": 1, "ignore": [2, 3]},
    {"background": 0, "a": []},
    {"background": 0, "a": {}},
    {"background": 0, "a": 10**30},
    {"background": 0, "a": "²"},
]


@pytest.mark.parametrize("labels", LABELS)
def test_labels_that_are_no_numbers(labels, tmp_path):
    write_layout("nnunet", tmp_path / "raw", n_cases=3, size=(5, 24, 24))
    about = json.loads((tmp_path / "raw" / "dataset.json").read_text())
    (tmp_path / "raw" / "dataset.json").write_text(json.dumps(about | {"labels": labels}))
    with pytest.raises(UserError, match="labels must be whole numbers up to 65535"):
        prepare("mine", tmp_path / "raw", tmp_path / "cases")


def test_settings_that_are_nested_deeply(tmp_path):
    deep = f"{'[' * 50_000}{']' * 50_000}"
    with pytest.raises(UserError, match="--set loss is nested too deeply"):
        put_all({}, [f"loss={deep}"], {})
    (tmp_path / "a.toml").write_text(f"loss = {deep}")
    with pytest.raises(UserError, match="nested too deeply"):
        read_toml(tmp_path / "a.toml", "settings")


def test_text_that_is_no_unicode_is_not_written(tmp_path):
    with pytest.raises(UserError, match=re.escape("'\\ud800', which is no Unicode; rename it")):
        write_json(tmp_path / "a.json", {"a": "\ud800"})
    assert not list(tmp_path.iterdir())


def test_more_than_a_machine_holds(tmp_path, monkeypatch, capsys):
    cases = prepare("phantom", to=tmp_path, n_cases=4, shape=(4, 24, 24)).cases
    arguments = ["train", cases.root, "--out", tmp_path / "run", "--epochs", 1]
    code, _, said = run(monkeypatch, capsys, *arguments, "--set", "machine.devices=99")
    assert code == 2
    assert "machine.devices=99 would start that many processes" in said
    refused = {
        "network.width=99999999": "width must lie in [0, 1000]",
        "network.width=1000": "more than 1,000,000,000; choose a smaller width",
        "machine.accelerator=tpu": "unknown accelerator 'tpu'",
    }
    for setting, sentence in refused.items():
        code, _, said = run(monkeypatch, capsys, *arguments, "--set", setting)
        assert code == 2
        assert sentence in said
    assert not (tmp_path / "run").exists()
