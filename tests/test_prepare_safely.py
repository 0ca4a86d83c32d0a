"""Preparation must not destroy, mix up or overlook anything."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import SimpleITK as sitk
from official_layouts import write_layout
from processes import descendants

from segcal.data.phantom import phantoms
from segcal.data.prepare import prepare
from segcal.data.slices import Slices
from segcal.types import UserError

SIZE = (5, 24, 24)


@pytest.fixture
def root(tmp_path):
    write_layout("msd", tmp_path / "raw", n_cases=6, size=SIZE)
    return tmp_path / "raw"


def change_description(root, **values):
    path = root / "dataset.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


# A user's folders
# ------------------------------------------------------------------------------


def test_no_folder_of_the_users_is_replaced(root, tmp_path):
    before = sorted(p.name for p in root.iterdir())
    for name, to in (("raw", tmp_path), ("inside", root), ("imagesTr", root)):
        with pytest.raises(UserError, match="overlap; choose another --to"):
            prepare(name, root, to)
    (tmp_path / "cases" / "mine").mkdir(parents=True)
    (tmp_path / "cases" / "mine" / "notes.txt").write_text("mine")
    for again in (False, True):
        with pytest.raises(UserError, match="exists and is not a prepared data set"):
            prepare("mine", root, tmp_path / "cases", again=again)
    with pytest.raises(UserError, match="must be a plain folder name; got ''"):
        prepare("", root, tmp_path / "cases")
    assert sorted(p.name for p in root.iterdir()) == before
    assert (tmp_path / "cases" / "mine" / "notes.txt").read_text() == "mine"


def test_of_two_at_once_the_second_is_refused(root, tmp_path):
    def second(done, total):
        if done == 2:
            with pytest.raises(
                UserError, match="another process is at work on .*mine; wait until it is done"
            ):
                prepare("mine", root, tmp_path / "cases")

    done = prepare("mine", root, tmp_path / "cases", progress=second)
    assert len(done.cases.ids) == 6
    assert sorted(p.name for p in (tmp_path / "cases").iterdir()) == ["mine"]


# Going on
# ------------------------------------------------------------------------------


def interrupted(root, to, after=3):
    def stop(done, total):
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("mine", root, to, progress=stop)


def test_what_was_prepared_by_other_rules_is_not_taken_over(root, tmp_path):
    to = tmp_path / "cases"
    interrupted(root, to)
    change_description(root, labels={"0": "background", "1": "body", "2": "core", "3": "ignore"})
    cases = prepare("mine", root, to).cases
    for id in cases.ids:
        assert set(np.unique(cases.label(id))) <= {0, 1, 2, 255}


def test_a_file_that_changed_meanwhile_is_read_again(root, tmp_path):
    to = tmp_path / "cases"
    interrupted(root, to)
    path = sorted((root / "labelsTr").iterdir())[0]
    label = sitk.ReadImage(str(path))
    sitk.WriteImage(label * 0, str(path))
    cases = prepare("mine", root, to).cases
    assert not cases.label(cases.ids[0]).any()


def test_a_case_that_went_meanwhile_leaves_nothing(root, tmp_path):
    to = tmp_path / "cases"
    interrupted(root, to)
    text = json.loads((root / "dataset.json").read_text())
    change_description(root, training=text["training"][1:], numTraining=5)
    cases = prepare("mine", root, to).cases
    assert len(cases.ids) == 5
    assert len(list(cases.root.glob("*.npy"))) == 10


def test_a_killed_worker_is_named_and_its_work_kept(root, tmp_path):
    """The main process is told to stop while its workers are busy; nothing is left running and the
    next try goes on.
    """
    write_layout("msd", tmp_path / "many", n_cases=60, size=(16, 96, 96))
    code = "from segcal.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "prepare",
        "x",
        "--from",
        str(tmp_path / "many"),
        "--to",
        str(tmp_path / "out"),
    ]
    process = subprocess.Popen(
        [*command, "--workers", "2"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while (
        len(list((tmp_path / "out").glob(".x.partial/*.record.json"))) < 3
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "segcal: interrupted; the same command goes on from here" in said
    assert "Traceback" not in said
    kept = len(list((tmp_path / "out").glob(".x.partial/*.record.json")))
    assert kept >= 3
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["cases"] == 60


# What a no-op must notice
# ------------------------------------------------------------------------------


def test_data_files_beside_headers_are_watched(tmp_path):
    write_layout("promise12", tmp_path / "raw", n_cases=4, size=SIZE)
    prepare("promise12", tmp_path / "raw", tmp_path / "cases")
    assert not prepare("promise12", tmp_path / "raw", tmp_path / "cases").fresh
    path = tmp_path / "raw" / "Case00_segmentation.raw"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(
        UserError, match=r"have changed since it was prepared \(Case00_segmentation.raw\)"
    ):
        prepare("promise12", tmp_path / "raw", tmp_path / "cases")


def test_other_names_for_labels_are_noticed(root, tmp_path):
    prepare("mine", root, tmp_path / "cases")
    change_description(
        root, labels={"0": "background", "1": "liver", "2": "core", "3": "satellite"}
    )
    with pytest.raises(
        UserError,
        match=r"source\.\w+ .*; --again replaces it",
    ):
        prepare("mine", root, tmp_path / "cases")


def test_a_mended_case_is_noticed(root, tmp_path):
    path = sorted((root / "labelsTr").iterdir())[1]
    kept = path.read_bytes()
    for spoil in (path.unlink, lambda: path.write_bytes(kept[:100])):
        spoil()
        to = tmp_path / str(len(list(tmp_path.iterdir())))
        prepare("mine", root, to, skip_broken=True)
        assert not prepare("mine", root, to, skip_broken=True).fresh
        path.write_bytes(kept)
        with pytest.raises(UserError, match=rf"have changed .*labelsTr/{path.name}"):
            prepare("mine", root, to, skip_broken=True)


def test_lost_arrays_are_noticed(root, tmp_path):
    cases = prepare("mine", root, tmp_path / "cases").cases
    next(cases.root.glob("*.label.npy")).unlink()
    with pytest.raises(
        UserError, match="label.npy is not what was prepared; prepare .* with --again"
    ):
        prepare("mine", root, tmp_path / "cases")


# Channels, masks, slices
# ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "order"),
    [("brats", [0, 1, 2, 3]), ("mrbrains", [0, 2, 1]), ("mrbrains13", [0, 2, 1])],
)
def test_channels_come_in_the_catalogs_order(layout, order, tmp_path):
    """The phantom's channels are written as flair, t1, t1ce, t2, and as T1, IR, FLAIR; the catalog
    has FLAIR before IR.
    """
    write_layout(layout, tmp_path / "raw", n_cases=3, size=SIZE)
    name = "mrbrains" if layout == "mrbrains13" else layout
    case = next(iter(phantoms(3, size=SIZE, n_channels=len(order))))
    cases = prepare(
        name, tmp_path / "raw", tmp_path / "cases", crop=SIZE, spacing=case.spacing
    ).cases
    image = cases.image(cases.ids[0])
    for channel, source in enumerate(order):
        values = np.rint(case.image[source])
        expected = (values - values.min()) / (values.max() - values.min())
        np.testing.assert_allclose(image[:, channel], expected, atol=1e-4)


def test_masks_of_one_image_are_merged(tmp_path):
    write_layout("busi", tmp_path / "raw", n_cases=4, size=SIZE)
    cases = prepare("busi", tmp_path / "raw", tmp_path / "cases", size=SIZE[1:]).cases
    assert sorted(cases.ids) == ["benign (1)", "benign (2)", "malignant (1)", "malignant (2)"]
    for index, case in enumerate(phantoms(4, size=SIZE)):
        widest = int((case.label > 0).sum((1, 2)).argmax())
        id = f"{('benign', 'malignant')[index % 2]} ({index // 2 + 1})"
        np.testing.assert_array_equal(cases.label(id)[0], case.label[widest] > 0)


def test_the_recipe_decides_on_empty_slices(tmp_path):
    write_layout("brats", tmp_path / "raw", n_cases=6, size=SIZE)
    cases = prepare("brats", tmp_path / "raw", tmp_path / "cases").cases
    train, everything = Slices(cases, "train"), Slices(cases, "train", keep_empty=True)
    assert (
        len(train)
        == sum(len(cases.case(id)["foreground_slices"]) for id in cases.split("train"))
        < len(everything)
    )
    assert len(Slices(cases, "test")) == sum(
        cases.case(id)["shape"][0] for id in cases.split("test")
    )


def test_colour_images_as_three_channels(tmp_path):
    folder = tmp_path / "raw"
    for kind in ("imagesTr", "labelsTr"):
        (folder / kind).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(4):
        colours = rng.integers(0, 255, (12, 14, 3)).astype(np.uint8)
        sitk.WriteImage(
            sitk.GetImageFromArray(colours, isVector=True),
            str(folder / "imagesTr" / f"a{i}_0000.png"),
        )
        sitk.WriteImage(
            sitk.GetImageFromArray((colours[..., 0] > 99).astype(np.uint8)),
            str(folder / "labelsTr" / f"a{i}.png"),
        )
    names = {"0": "R", "1": "G", "2": "B"}
    (folder / "dataset.json").write_text(
        json.dumps({"channel_names": names, "labels": {"bg": 0, "x": 1}, "file_ending": ".png"})
    )
    cases = prepare("photos", folder, tmp_path / "cases").cases
    image = cases.image("a3")
    assert image.shape == (1, 3, 12, 14)
    np.testing.assert_allclose(
        image[0, 2], (colours[..., 2] - colours[..., 2].min()) / np.ptp(colours[..., 2]), atol=1e-6
    )


# Odd raw data
# ------------------------------------------------------------------------------


def test_acdc_as_downloaded(tmp_path):
    """`testing/` and macOS's left-overs are left alone, frames are found without Info.cfg, broken
    ones can be skipped.
    """
    root = tmp_path / "acdc"
    write_layout("acdc", root, n_cases=12, size=SIZE)
    shutil.copytree(root / "training" / "patient001", root / "testing" / "patient101")
    shutil.copytree(root / "training", root / "__MACOSX" / "training")
    (root / "training" / "patient002" / "Info.cfg").unlink()
    shutil.copy(
        root / "training" / "patient003" / "patient003_frame01.nii.gz",
        root / "training" / "patient003" / "patient003_4d.nii.gz",
    )
    cases = prepare("acdc", root, tmp_path / "cases").cases
    assert len(cases.ids) == 12
    assert "patient002_frame12" in cases.ids
    assert not [id for id in cases.ids if "101" in id]
    for path in (root / "training" / "patient004").iterdir():
        path.unlink()
    done = prepare("acdc", root, tmp_path / "again", skip_broken=True)
    assert list(done.cases.info["left_out"]) == ["patient004_frame01"]
    split = tmp_path / "split.json"
    parts = {
        "train": ["patient001", "patient002", "patient004"],
        "val": ["patient003"],
        "test": ["patient005"],
    }
    split.write_text(json.dumps(parts))
    cases = prepare("acdc", root, tmp_path / "split", skip_broken=True, split_file=split).cases
    assert len(cases.split("train")) == 4


def test_a_patient_named_in_a_split_keeps_the_frames_that_are_not_broken(tmp_path):
    root = tmp_path / "acdc"
    write_layout("acdc", root, n_cases=6, size=SIZE)
    (root / "training" / "patient001" / "patient001_frame01.nii.gz").unlink()
    parts = {"train": ["patient001"], "val": ["patient002"], "test": ["patient003"]}
    (tmp_path / "split.json").write_text(json.dumps(parts))
    options = {"skip_broken": True, "split_file": tmp_path / "split.json"}
    cases = prepare("acdc", root, tmp_path / "cases", **options).cases
    assert cases.split("train") == ("patient001_frame12",)


def test_names_of_brats_2020_and_2021_and_flat_folders(tmp_path):
    for kind, name in (("a", "BraTS20_Training_{:03d}"), ("b", "BraTS2021_{:05d}")):
        root = tmp_path / kind
        write_layout("brats", root, n_cases=3, size=SIZE)
        for i, path in enumerate(sorted(root.glob("*GG/*"))):
            for file in path.iterdir():
                flat = root if kind == "b" else root / name.format(i)
                flat.mkdir(exist_ok=True)
                file.rename(flat / file.name.replace(path.name, name.format(i)))
            path.rmdir()
        cases = prepare("brats", root, tmp_path / f"cases-{kind}").cases
        assert cases.ids == tuple(name.format(i) for i in range(3))


def test_links_to_images_elsewhere_are_fine(root, tmp_path):
    elsewhere = tmp_path / "disk"
    shutil.move(root / "imagesTr", elsewhere)
    (root / "imagesTr").symlink_to(elsewhere)
    assert len(prepare("mine", root, tmp_path / "cases").cases.ids) == 6


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("hippocampus", {"training": None}, "has no list called training"),
        ("mine", {"training": None, "channel_names": {"T1": 0}}, "channels must be numbered"),
        (
            "mine",
            {"labels": {str(i): f"l{i}" for i in range(300)}},
            "must name 1 to 254 foreground labels; got 299",
        ),
        (
            "mine",
            {"training": [{"image": "a\0b.nii.gz", "label": "c"}]},
            "outside the data set's folder",
        ),
    ],
)
def test_odd_descriptions_are_sentences(root, tmp_path, name, values, message):
    change_description(root, **values)
    with pytest.raises(UserError, match=message):
        prepare(name, root, tmp_path / "cases")


def test_values_beyond_float32_are_named(root, tmp_path):
    path = sorted((root / "imagesTr").iterdir())[1]
    array = sitk.GetArrayFromImage(sitk.ReadImage(str(path))).astype(np.float64)
    array[0, 0, 0] = 1e300
    sitk.WriteImage(sitk.GetImageFromArray(array), str(path))
    with pytest.raises(UserError, match="beyond the range of float32"):
        prepare("mine", root, tmp_path / "cases")


def test_an_unreadable_source_is_the_sources_fault(root, tmp_path, monkeypatch):
    real = os.stat
    bad = sorted((root / "imagesTr").iterdir())[1]

    def refuse(path):
        if path == bad:
            raise PermissionError(13, os.strerror(13), str(path))
        return real(path).st_size and "digest"

    monkeypatch.setattr("segcal.folders.files.sha256", refuse)
    with pytest.raises(
        UserError, match=rf"{bad.name} cannot be read: Permission denied; mend it, or leave"
    ):
        prepare("mine", root, tmp_path / "cases")


def test_a_disk_that_is_full_without_saying_why(root, tmp_path, monkeypatch):
    def full(path, array, **kwargs):
        raise OSError("500 requested and 100 written")  # numpy's own, without a number

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(
        UserError, match="cannot write to .*: 500 requested and 100 written; make room"
    ):
        prepare("mine", root, tmp_path / "cases")
    assert not (tmp_path / "cases").exists()


@pytest.mark.parametrize(
    "value", [{"train": 5, "val": [], "test": []}, {"train": [["a"]], "val": [], "test": []}]
)
def test_odd_split_files_are_sentences(root, tmp_path, value):
    (tmp_path / "split.json").write_text(json.dumps(value))
    with pytest.raises(UserError, match="must be a JSON object with the lists"):
        prepare("mine", root, tmp_path / "cases", split_file=tmp_path / "split.json")


def test_a_crash_of_a_reader_names_the_case(root, tmp_path, monkeypatch):
    """A worker that is killed is at a case; what others prepared is kept."""
    from concurrent.futures.process import BrokenProcessPool

    class Pool:
        def __init__(self, *args):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *args):
            return False

        def map(self, work, cases):
            yield work(cases[0])
            folder = next((tmp_path / "cases").glob(".mine.partial"))
            (folder / f"{cases[1].id}.begun").touch()
            raise BrokenProcessPool

    monkeypatch.setattr("segcal.data.prepare.ProcessPoolExecutor", Pool)
    with pytest.raises(UserError, match=r"a worker was killed at \w+_001, for lack of memory or"):
        prepare("mine", root, tmp_path / "cases", workers=2)
    cases = prepare("mine", root, tmp_path / "cases", workers=1).cases
    assert not list(cases.root.glob("*.begun"))


def test_no_worker_outlives_a_killed_parent(tmp_path):
    write_layout("msd", tmp_path / "many", n_cases=40, size=(16, 96, 96))
    code = "from segcal.cli import main; main()"
    command = [sys.executable, "-c", code, "prepare", "x", "--from", str(tmp_path / "many")]
    command += ["--to", str(tmp_path / "out"), "--workers", "2"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").glob(".x.partial/*.record.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    workers = descendants(process.pid)
    assert len(workers) >= 2
    process.kill()
    process.wait()
    while alive := [pid for pid in workers if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def test_a_description_that_is_a_pipe_or_nested_deeply(root, tmp_path):
    path = root / "dataset.json"
    path.write_text("[" * 100_000)
    with pytest.raises(UserError, match="nested too deeply"):
        prepare("hippocampus", root, tmp_path / "cases")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="not a regular file"):
        prepare("hippocampus", root, tmp_path / "cases")
