"""What goes wrong with raw data: one sentence that names the file and the remedy, exit 2, nothing
half-written.
"""

import json
import os
import shutil

import numpy as np
import pytest
import SimpleITK as sitk

from segcal.data.layouts import write_layout
from segcal.data.prepare import prepare
from segcal.types import UserError


@pytest.fixture
def root(tmp_path):
    write_layout("msd", tmp_path / "raw", n_cases=5, size=(5, 24, 24))
    return tmp_path / "raw"


def files(root, folder):
    return sorted((root / folder).iterdir())


def rewrite(path, change):
    image = sitk.ReadImage(str(path))
    new = sitk.GetImageFromArray(change(sitk.GetArrayFromImage(image)))
    if new.GetSize() == image.GetSize():
        new.CopyInformation(image)
    sitk.WriteImage(new, str(path))


def missing_label(root):
    files(root, "labelsTr")[1].unlink()


def missing_image(root):
    files(root, "imagesTr")[1].unlink()


def shape_mismatch(root):
    rewrite(files(root, "labelsTr")[1], lambda a: a[:-1])


def truncated(root):
    path = files(root, "imagesTr")[1]
    path.write_bytes(path.read_bytes()[:2000])


def not_an_image(root):
    files(root, "imagesTr")[1].write_text("not an image")


def unknown_label(root):
    rewrite(files(root, "labelsTr")[1], lambda a: np.where(a == 2, 9, a))


def fractional_label(root):
    rewrite(files(root, "labelsTr")[1], lambda a: a.astype(np.float32) * 0.5)


def four_dimensions(root):
    path = files(root, "imagesTr")[1]
    image = sitk.ReadImage(str(path))
    sitk.WriteImage(sitk.JoinSeries([image, image]), str(path))


def not_a_number(root):
    def change(array):
        array = array.astype(np.float32)
        array[0, 0, 0] = np.nan
        return array

    rewrite(files(root, "imagesTr")[1], change)


BROKEN = [
    (missing_label, r"labelsTr.*_001.nii.gz is missing"),
    (missing_image, r"imagesTr.*_001.nii.gz is missing"),
    (shape_mismatch, r"labelsTr.*_001.nii.gz and .*imagesTr.*_001.nii.gz have different sizes"),
    (truncated, r"imagesTr.*_001.nii.gz cannot be read: it is no image, or it is truncated"),
    (not_an_image, r"imagesTr.*_001.nii.gz cannot be read"),
    (unknown_label, r"labelsTr.*_001.nii.gz holds the unknown label 9; allowed are 0, 1, 2, 3"),
    (
        fractional_label,
        r"labelsTr.*_001.nii.gz holds the unknown label 0.5; allowed are 0, 1, 2, 3",
    ),
    (four_dimensions, r"imagesTr.*_001.nii.gz holds 2 volumes where one is expected"),
    (not_a_number, r"imagesTr.*_001.nii.gz holds NaN or infinite values"),
]


# Processes are slow to start: two kinds are enough there.
TRIALS = [(*trial, 1) for trial in BROKEN] + [
    (*trial, 2) for trial in BROKEN if trial[0] in (missing_label, unknown_label)
]


@pytest.mark.parametrize(
    ("spoil", "message", "workers"), TRIALS, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_broken_case_stops_everything_or_is_left_out(root, tmp_path, spoil, message, workers):
    spoil(root)
    to = tmp_path / "new" / "cases"
    with pytest.raises(UserError, match=message) as caught:
        prepare("mine", root, to, workers=workers)
    assert "--skip-broken" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()
    done = prepare("mine", root, to, workers=workers, skip_broken=True)
    assert len(done.cases.ids) == 4
    (why,) = done.cases.info["left_out"].values()
    assert "_001" in why
    assert not prepare("mine", root, to, skip_broken=True).fresh


def test_one_case_only(root, tmp_path):
    text = json.loads((root / "dataset.json").read_text())
    text |= {"training": text["training"][:1], "numTraining": 1}
    (root / "dataset.json").write_text(json.dumps(text))
    with pytest.raises(
        UserError, match="needs at least 3 patients; got 1: add some, or give a --split file"
    ):
        prepare("mine", root, tmp_path / "cases")
    assert not (tmp_path / "cases").exists()
    split = tmp_path / "split.json"
    id = text["training"][0]["image"].split("/")[-1].split(".")[0]
    split.write_text(json.dumps({"train": [], "val": [], "test": [id]}))
    assert prepare("mine", root, tmp_path / "cases", split_file=split).cases.split("test") == (id,)


def test_spaces_and_accents_in_names(root, tmp_path):
    odd = tmp_path / "Année 1" / "données brutes"
    shutil.copytree(root, odd)
    text = (odd / "dataset.json").read_text()
    for folder in ("imagesTr", "labelsTr"):
        for path in files(odd, folder):
            path.rename(path.with_name(path.name.replace("phantom_", "patiënt é ")))
    (odd / "dataset.json").write_text(text.replace("phantom_", "patiënt é "), encoding="utf-8")
    cases = prepare("très bon", odd, tmp_path / "où").cases
    assert cases.ids[0].startswith("patiënt é ")
    assert cases.image(cases.ids[0]).size


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "dataset.json is missing; name a known set .*, or bring it into nnU-Net's layout"),
        ("{", "cannot read .*dataset.json"),
        ("[]", "must hold one JSON object"),
        ("{}", "neither channel_names"),
        (
            '{"training": [], "labels": {"0": "background"}}',
            "must name 1 to 254 foreground labels; got 0",
        ),
        ('{"training": [], "labels": {"0": "background", "1": "a"}}', "found no case in"),
        ('{"training": [{"image": "a"}], "labels": {"1": "a"}}', "must have image and label"),
        (
            '{"training": [{"image": "../../x.nii", "label": "y.nii"}], "labels": {"1": "a"}}',
            "outside the data set's folder",
        ),
        ('{"channel_names": {"0": "a"}, "labels": {"a": "one"}}', "labels must be whole numbers"),
        ('{"channel_names": {"0": "a"}, "labels": [1]}', "must have labels and channels"),
    ],
)
def test_a_bad_dataset_json(root, tmp_path, content, message):
    path = root / "dataset.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        prepare("mine", root, tmp_path / "cases")
    assert not (tmp_path / "cases").exists()


def test_wrong_arguments(root, tmp_path):
    for kwargs, message in [
        ({"size": (1, 2, 3)}, "size must be 2 positive numbers"),
        ({"spacing": (1.0, 0.0, 1.0)}, "spacing must be 3 positive numbers"),
        ({"window": (5.0, 1.0)}, "window must be two rising numbers"),
        ({"percentiles": (5.0, 1.0)}, "percentiles must be two rising numbers from 0 to 100"),
        ({"percentiles": (0.5, 101.0)}, "percentiles must be two rising numbers from 0 to 100"),
        ({"percentiles": (float("nan"), 99.0)}, "percentiles must be two rising numbers"),
        ({"percentiles": (1.0, 99.0), "window": (0.0, 9.0)}, "both scale .*; give one of them"),
        ({"window": (float("-inf"), float("inf"))}, "window must be two rising numbers"),
        ({"window": (float("nan"), 1.0)}, "window must be two rising numbers"),
        ({"spacing": (float("inf"), 1.0, 1.0)}, r"spacing must lie in \[0.001, 1000\]"),
        ({"spacing": (1e30, 1.0, 1.0)}, r"spacing must lie in \[0.001, 1000\]"),
        ({"spacing": (1e-3, 1e-3, 1e-3)}, "preparation would give an image a size of"),
        ({"crop": (100_000, 100_000, 100_000)}, "crop gives a size of"),
        ({"size": (100_000, 100_000)}, "size gives a size of"),
        ({"axis": 3}, r"axis must lie in \[0, 2\]"),
        ({"workers": 0}, "workers must be at least 1"),
    ]:
        with pytest.raises(UserError, match=message):
            prepare("mine", root, tmp_path / "cases", **kwargs)
    with pytest.raises(UserError, match="say where the raw data of acdc is, with --from"):
        prepare("acdc", to=tmp_path / "cases")
    with pytest.raises(UserError, match="there is no folder"):
        prepare("acdc", tmp_path / "nowhere", tmp_path / "cases")
    with pytest.raises(UserError, match="must be a plain folder name"):
        prepare("../acdc", root, tmp_path / "cases")
    with pytest.raises(UserError, match=r"found no case in .*; expected \[training/\]patient001"):
        prepare("acdc", root, tmp_path / "cases")


def test_two_cases_of_one_name(root, tmp_path):
    text = json.loads((root / "dataset.json").read_text())
    text["training"].append(text["training"][0])
    (root / "dataset.json").write_text(json.dumps(text))
    with pytest.raises(UserError, match="has two cases named 'phantom_000'"):
        prepare("mine", root, tmp_path / "cases")


def test_a_file_in_the_way_of_the_target(root, tmp_path):
    (tmp_path / "cases").write_text("in the way")
    with pytest.raises(UserError, match="cannot write to .*cases"):
        prepare("mine", root, tmp_path / "cases")


def test_a_full_disk_leaves_nothing(root, tmp_path, monkeypatch):
    real, calls = np.save, []

    def full(path, array, **kwargs):
        calls.append(path)
        if len(calls) == 4:
            raise OSError(28, os.strerror(28), str(path))
        real(path, array, **kwargs)

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(
        UserError,
        match="cannot write to .*: No space left on device; make room or choose another folder",
    ):
        prepare("mine", root, tmp_path / "cases")
    assert not (tmp_path / "cases").exists()


def test_a_read_only_target(root, tmp_path, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, os.strerror(13), str(self))

    monkeypatch.setattr(
        "pathlib.Path.mkdir", refuse
    )  # root may write anywhere, so the system's answer is played
    with pytest.raises(
        UserError, match="cannot write to .*: Permission denied; make room or choose another folder"
    ):
        prepare("mine", root, tmp_path / "cases")
