"""Names and segcal's own JSON files: what is refused where they are read."""

import copy
import json

import pytest
from synthetic_runs import write_run

from segcal.data.prepare import prepare
from segcal.folders import check_name, check_text, open_cases, path_of, read_bins, read_run
from segcal.folders.names import LONGEST, one_name
from segcal.folders.result_schemas import CellsFile, SummaryFile
from segcal.folders.schemas import fault_of
from segcal.types import UserError

NO_NAMES = [
    "../../evil",
    "a/b",
    "..",
    ".hidden",
    "",
    " ",
    "a\nb",
    "a\0b",
    "\ud800",
    "a\\b",
    "é" * 100,
]


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A `cases.json`."""
    to = tmp_path_factory.mktemp("cases")
    return prepare("phantom", to=to, n_cases=4, shape=(4, 24, 24)).cases.info


def opened(root, content):
    (root / "cases.json").write_text(json.dumps(content))
    return open_cases(root)


@pytest.mark.parametrize("name", [*NO_NAMES, None, 3])
def test_names_that_are_none(tmp_path, name):
    with pytest.raises(UserError) as caught:
        check_name("case", name)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200
    with pytest.raises(UserError):
        path_of(tmp_path, name)


@pytest.mark.parametrize("name", ["a", "benign (1)", "Année 1", "[red]", "=1+1"])
def test_names_that_are_files_of_the_folder(tmp_path, name):
    assert path_of(tmp_path, name, ".npy").parent == tmp_path
    assert check_text("class", name) == name
    assert len(check_name("case", "a" * LONGEST)) == LONGEST


def test_a_person_has_one_name():
    assert one_name("Anna") == one_name("anna ") == one_name(" ANNA") != one_name("Ann a")


def test_what_was_prepared_is_read(tmp_path, content):
    assert opened(tmp_path, content).info == content


@pytest.mark.parametrize("name", NO_NAMES)
def test_ids_of_a_foreign_file_are_no_paths(tmp_path, content, name):
    changed = copy.deepcopy(content)
    id = next(iter(changed["cases"]))
    changed["cases"][name] = changed["cases"].pop(id)
    for fold in changed["splits"]:
        for part in fold:
            fold[part] = [name if each == id else each for each in fold[part]]
    with pytest.raises(UserError, match=r"cases.json is damaged; prepare the data set again"):
        opened(tmp_path, changed)


def variants(content):
    """The same file with one value of another kind, or one missing, at every place but in lists."""
    for key, value in content.items():
        if key in ("segcal", "ignored_label", "keep_empty", "patients_known", "settings"):
            continue
        for wrong in (None, 5.5, "x", [], {}, [[]], {"a": {}}):
            yield key, content | {key: wrong}
        yield key, {other: part for other, part in content.items() if other != key}
        if key == "cases":
            id, record = next(iter(value.items()))
            for name in record:
                for wrong in (None, "x", [], {}, [-1], [float("inf")] * 3):
                    yield f"{key} {name}", content | {key: value | {id: record | {name: wrong}}}


def test_any_other_content_is_a_sentence_or_does_no_harm(tmp_path, content):
    """What passes has the same kinds of values as a file of ours."""
    n_refused = n_all = 0
    for _, changed in variants(content):
        n_all += 1
        try:
            opened(tmp_path, changed)
        except UserError as error:
            sentence = str(error)
            n_refused += 1
            assert sentence.isprintable()
            assert "cases.json" in sentence
    assert n_all > 150
    assert n_refused > 0.8 * n_all


@pytest.mark.parametrize("text", ["[" * 99_999, '{"a":' * 99_999, "\ud800", "NaN", "1e999", "5"])
def test_json_that_python_hardly_reads(tmp_path, text):
    (tmp_path / "cases.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match="cases.json is damaged"):
        open_cases(tmp_path)
    (tmp_path / "run.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match="run.json is damaged; move the folder away"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("settings", {"seed": "x"}),
        ("settings", {"loss": "ce"}),
        ("settings", {"fold": -1}),
        ("data", {"name": "../x"}),
        ("data", {"classes": []}),
        ("data", {"regions": []}),
        ("data", {"patients": {"a": 5}}),
        ("best", {"val_dice": "high"}),
        ("best", {"epoch": -1}),
    ],
)
def test_a_run_of_other_content_is_named(tmp_path, part, value):
    folder = write_run(tmp_path, "a")
    info = json.loads((folder / "run.json").read_text())
    info[part] = info[part] | value
    (folder / "run.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match=rf"run.json is damaged; .*\({part}"):
        read_run(folder)


def test_bins_and_cells_of_other_content(tmp_path):
    folder = write_run(tmp_path, "a")
    entry = {"weights": "best", "voxels": [1, 2], "mean_logits": [[0, 0], [0]]}
    (folder / "bins.json").write_text(json.dumps({"entries": [entry]}))
    with pytest.raises(UserError, match="bins.json is damaged; run segcal evaluate --again"):
        read_bins(folder)
    assert fault_of(CellsFile, {"cells": {"a": {"status": "failed"}}}) is None
    assert "plain folder name" in fault_of(CellsFile, {"cells": {"../a": {"status": "failed"}}})


@pytest.mark.parametrize("unit", ["ml", "pixels"])
def test_a_summary_has_its_sizes(unit):
    sizes = {unit: 1.0, f"expected_{unit}": 1, f"spread_{unit}": 0.5}
    whole = {"classes": {"a": sizes}, f"voxel_{unit}": 1, f"image_{unit}": 2.0, "unit": unit}
    whole |= {"mean_confidence": None, "unsure_share": 0.1}
    assert fault_of(SummaryFile, whole) is None
    for name in sizes:
        part = {key: value for key, value in sizes.items() if key != name}
        assert "it lacks" in fault_of(SummaryFile, whole | {"classes": {"a": part}})
    for name in (f"voxel_{unit}", f"image_{unit}"):
        assert f"it lacks {name}" in fault_of(SummaryFile, whole | {name: "x"})
