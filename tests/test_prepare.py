"""Preparation: every layout end to end, what is recorded, and doing it again."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import SimpleITK as sitk
from matplotlib.contour import QuadContourSet
from official_layouts import LAYOUTS, write_layout

from segcal.data import inspect
from segcal.data.catalog import DATASETS, source_of
from segcal.data.images import Grid, restored
from segcal.data.prepare import prepare
from segcal.figures import contact_sheet
from segcal.folders import IGNORED, open_cases, sha256
from segcal.training import facts
from segcal.types import UserError

SIZE = (6, 32, 28)
KEY = {
    "mrbrains13": "mrbrains",
    "nnunet": "my-organs",
    "msd": "my-organs",
}  # layout -> data set; the rest share one name


def raw(layout, path, **kwargs):
    write_layout(layout, path, **({"n_cases": 8, "size": SIZE} | kwargs))
    return path


def grid_of(values):
    """A grid from its fields in `cases.json`."""
    return Grid(**{key: tuple(value) for key, value in values.items()})


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


def test_every_layout_prepares(layout, tmp_path):
    """Labels become 0..K, images [0, 1], both on the recipe's grid; every case has every file it
    came from on record.
    """
    name = KEY.get(layout, layout)
    root = raw(layout, tmp_path / "raw folder ü")
    done = prepare(name, root, tmp_path / "cases")
    cases, source = done.cases, source_of(name, root)
    assert done.fresh
    assert not done.cases.info["left_out"]
    assert cases.classes == source.classes
    assert cases.channels == source.channels
    for id in cases.ids:
        image, label, record = cases.image(id), cases.label(id), cases.case(id)
        assert isinstance(image, np.memmap)
        assert image.dtype == np.float32
        assert label.dtype == np.uint8
        assert image.shape == (label.shape[0], len(source.channels), *label.shape[1:])
        assert 0 <= image.min() < image.max() <= 1
        assert set(np.unique(label)) <= set(range(len(source.classes) + 1))
        assert record["voxels"][1] > 0
        assert grid_of(record["prepared"]).size == label.shape[::-1]
        for path, mark in record["sources"].items():
            assert sha256(root / path) == mark["sha256"]
    if source.recipe.size:
        assert all(cases.label(id).shape[1:] == source.recipe.size for id in cases.ids)
    if source.recipe.crop:
        assert all(cases.label(id).shape == source.recipe.crop for id in cases.ids)


@pytest.mark.parametrize("name", ["msd", "nnunet", "hippocampus"])
def test_without_a_recipe_voxels_are_kept_as_they_are(name, tmp_path):
    root, by_range = raw(name, tmp_path / "raw"), (0.0, 100.0)
    cases = prepare(KEY.get(name, name), root, tmp_path / "cases", percentiles=by_range).cases
    for id in cases.ids:
        record = cases.case(id)
        label_path = next(root / path for path in record["sources"] if "labels" in path)
        image_path = next(root / path for path in record["sources"] if "images" in path)
        label, image = (sitk.ReadImage(str(path)) for path in (label_path, image_path))
        np.testing.assert_array_equal(cases.label(id), sitk.GetArrayFromImage(label))
        values = sitk.GetArrayFromImage(image).astype(float)
        scaled = (values - values.min()) / (values.max() - values.min())
        np.testing.assert_allclose(cases.image(id)[:, 0], scaled, atol=1e-6)
        assert grid_of(record["original"]).close_to(Grid.of(image))
        np.testing.assert_allclose(record["spacing"], image.GetSpacing()[::-1])


def test_codes_become_classes(tmp_path):
    """BraTS's 4 becomes 3; both MRBrainS editions give grey matter, white matter and CSF in that
    order.
    """
    root = raw("brats", tmp_path / "brats")
    cases = prepare("brats", root, tmp_path / "cases").cases
    for id in cases.ids:
        path = next(root / p for p in cases.case(id)["sources"] if "_seg" in p)
        original = sitk.GetArrayFromImage(sitk.ReadImage(str(path)))
        finer = cases.label(id).size / original.size  # resampled to 1 mm
        assert cases.case(id)["voxels"][3] == pytest.approx((original == 4).sum() * finer, rel=0.2)
        assert 4 in original
        assert 4 not in cases.label(id)
    assert cases.info["regions"] == {"TC": [1, 3], "ET": [3], "WT": [1, 2, 3]}
    editions = [
        prepare("mrbrains", raw(edition, tmp_path / edition), tmp_path / f"cases-{edition}").cases
        for edition in ("mrbrains", "mrbrains13")
    ]
    pairs = [
        ("1", "1"),
        ("4", "2"),
        ("5", "3"),
        ("7", "4"),
    ]  # the ids of the same phantom in each edition
    for old, new in pairs:
        assert set(np.unique(editions[0].label(old))) == {0, 1, 2, 3}
        np.testing.assert_array_equal(editions[0].label(old), editions[1].label(new))


def test_frames_of_a_patient_share_a_split_and_brains_are_left_out_in_turn(tmp_path):
    acdc = prepare("acdc", raw("acdc", tmp_path / "acdc", n_cases=16), tmp_path / "cases").cases
    patients = [
        {acdc.case(id)["patient"] for id in acdc.split(name)} for name in ("train", "val", "test")
    ]
    assert sum(map(len, patients)) == len(set.union(*patients)) == 8
    brains = prepare(
        "mrbrains", raw("mrbrains", tmp_path / "brains", n_cases=7), tmp_path / "cases"
    ).cases
    assert brains.n_folds == 7
    assert len({brains.split("test", fold) for fold in range(7)}) == 7
    with pytest.raises(UserError, match=r"fold must lie in 0\.\.6"):
        brains.split("test", 7)


def test_geometry_leads_back_to_the_original(tmp_path):
    """A resized, cropped label map goes back to its file's grid and still fits the
    reference there.
    """
    root = raw("acdc", tmp_path / "raw", size=(6, 64, 60))
    cases = prepare("acdc", root, tmp_path / "cases").cases
    for id in cases.ids[:3]:
        record = cases.case(id)
        path = next(root / p for p in record["sources"] if "_gt" in p)
        reference = sitk.ReadImage(str(path))
        grids = [grid_of(record[key]) for key in ("prepared", "original")]
        back = restored(np.array(cases.label(id)), *grids, labels=True)
        assert Grid.of(back).close_to(Grid.of(reference))
        agree = sitk.GetArrayFromImage(back) == sitk.GetArrayFromImage(reference)
        assert agree.mean() > 0.995


def test_recipes_can_be_overridden(tmp_path):
    root = raw("msd", tmp_path / "raw")
    cases = prepare("mine", root, tmp_path / "a", size=(40, 36), window=(0.0, 500.0)).cases
    assert cases.label(cases.ids[0]).shape == (SIZE[0], 40, 36)
    cropped = prepare("mine", root, tmp_path / "b", crop=(8, 20, 40)).cases
    assert cropped.label(cropped.ids[0]).shape == (8, 20, 40)
    finer = prepare("mine", root, tmp_path / "c", spacing=(1.5, 1.0, 1.0)).cases
    assert finer.case(finer.ids[0])["spacing"] == [1.5, 1.0, 1.0]
    turned = prepare("mine", root, tmp_path / "d", axis=2).cases
    whole = prepare("mine", root, tmp_path / "e").cases
    for id in turned.ids:
        np.testing.assert_array_equal(
            turned.label(id), np.moveaxis(np.array(whole.label(id)), 2, 0)
        )
        grids = [grid_of(turned.case(id)[key]) for key in ("prepared", "original")]
        back = sitk.GetArrayFromImage(restored(np.array(turned.label(id)), *grids, labels=True))
        np.testing.assert_array_equal(back, whole.label(id))


@pytest.mark.parametrize("axis", [1, 2])
def test_spacing_and_crop_are_of_the_file_whatever_the_slicing_axis(tmp_path, axis):
    root, recipe = raw("msd", tmp_path / "raw"), {"spacing": (1.5, 1.0, 0.7), "crop": (8, 20, 40)}
    along_z = prepare("mine", root, tmp_path / "a", **recipe).cases
    turned = prepare("mine", root, tmp_path / "b", axis=axis, **recipe).cases
    for id in turned.ids:
        np.testing.assert_array_equal(
            turned.label(id), np.moveaxis(np.array(along_z.label(id)), axis, 0)
        )
        assert turned.case(id)["spacing"] == {1: [1.0, 1.5, 0.7], 2: [0.7, 1.5, 1.0]}[axis]


def test_a_folder_may_be_named_by_a_detour(tmp_path):
    root = raw("msd", tmp_path / "raw")
    assert prepare("mine", root / ".." / "raw", tmp_path / "a").fresh
    assert not prepare("mine", root, tmp_path / "a").fresh


def _spaced(image):
    image.SetSpacing([2.0 * x for x in image.GetSpacing()])


def _moved(image):
    image.SetOrigin([x + 40 for x in image.GetOrigin()])


def _mirrored(image):
    image.SetDirection([-1, 0, 0, 0, 1, 0, 0, 0, 1])


@pytest.mark.parametrize("change", [_spaced, _moved, _mirrored])
def test_channels_that_lie_elsewhere_are_refused(tmp_path, change):
    root = raw("brats", tmp_path / "raw")
    path = sorted(root.rglob("*_t2.nii.gz"))[0]
    image = sitk.ReadImage(str(path))
    image.SetOrigin(
        [x + 0.1 for x in image.GetOrigin()]
    )  # registered, and rounded by another program
    sitk.WriteImage(image, str(path))
    prepare("brats", root, tmp_path / "a")
    change(image)
    sitk.WriteImage(image, str(path))
    with pytest.raises(
        UserError,
        match=f"{path.name} and .* have different spacing, origin or direction; resample one",
    ):
        prepare("brats", root, tmp_path / "b")


def test_cases_of_one_patient_stay_together_if_a_file_says_so(tmp_path):
    root = raw("nnunet", tmp_path / "raw")
    ids = prepare("mine", root, tmp_path / "a").cases.ids
    known = {id: f"person {i // 2}" for i, id in enumerate(ids[:-1])}
    (tmp_path / "patients.json").write_text(json.dumps(known))
    cases = prepare("mine", root, tmp_path / "b", patients_file=tmp_path / "patients.json").cases
    roles = {}
    for name in ("train", "val", "test"):
        for id in cases.split(name):
            assert roles.setdefault(known.get(id, id), name) == name
    assert len(roles) == len(set(known.values())) + 1
    assert inspect.summary(cases)["patients"] == len(roles)
    assert inspect.summary(open_cases(tmp_path / "a" / "mine"))["patients"] is None
    assert facts(cases)["patients"] == known
    assert "no file says which cases are of one patient" in " ".join(
        inspect.warnings(open_cases(tmp_path / "a" / "mine"))
    )
    assert "of one patient" not in " ".join(inspect.warnings(cases))
    assert facts(open_cases(tmp_path / "a" / "mine"))["patients"] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot read"),
        ("[]", "must be a JSON object"),
        ('{"x": 1}', "must be a JSON object"),
        ('{"x": "y"}', "no case of"),
    ],
)
def test_a_patients_file_is_checked(tmp_path, text, message):
    root = raw("nnunet", tmp_path / "raw")
    (tmp_path / "patients.json").write_text(text)
    with pytest.raises(UserError, match=message):
        prepare("mine", root, tmp_path / "a", patients_file=tmp_path / "patients.json")


def test_window_and_constant_images(tmp_path):
    root = raw("msd", tmp_path / "raw")
    path = sorted((root / "imagesTr").iterdir())[0]
    image = sitk.ReadImage(str(path))
    sitk.WriteImage(image * 0 + 7, str(path))
    cases = prepare("mine", root, tmp_path / "cases").cases
    assert not cases.image(cases.ids[0]).any()
    assert f"{cases.ids[0]} has one value alone in MRI: 7" in inspect.warnings(cases)
    windowed = prepare("mine", root, tmp_path / "w", window=(-100.0, 100.0)).cases
    np.testing.assert_allclose(np.unique(windowed.image(windowed.ids[0])), 0.535, atol=1e-6)


def percentile(values, share):
    """Between the two nearest of the sorted values, by distance."""
    ordered = sorted(values)
    place = share / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def with_bright_voxels(path):
    """Three voxels far above all others, as of a vessel or a clip; returns the raw values."""
    image = sitk.ReadImage(str(path))
    for x in (1, 4, 9):
        image[x, 5, 2] = 30000
    sitk.WriteImage(image, str(path))
    return sitk.GetArrayFromImage(image).astype(float)


def test_own_images_are_clipped_to_percentiles_of_each_channel(tmp_path):
    root = raw("nnunet", tmp_path / "raw")
    first, second = sorted((root / "imagesTr").iterdir())[:2]  # two channels of a case
    values = with_bright_voxels(first)
    cases = prepare("mine", root, tmp_path / "a").cases
    assert cases.info["settings"]["recipe"]["percentiles"] == [0.5, 99.5]
    found = np.array(cases.image(cases.ids[0]))
    for c, raw_values in ((0, values), (1, sitk.GetArrayFromImage(sitk.ReadImage(str(second))))):
        low, high = (percentile(raw_values.ravel().tolist(), share) for share in (0.5, 99.5))
        expected = np.minimum(np.maximum(raw_values - low, 0) / (high - low), 1)
        np.testing.assert_allclose(found[:, c], expected, atol=1e-6)
    assert found[:, 0].mean() > 0.1
    squeezed = prepare("mine", root, tmp_path / "b", percentiles=(0.0, 100.0)).cases
    by_range = (values - values.min()) / (values.max() - values.min())
    np.testing.assert_allclose(squeezed.image(cases.ids[0])[:, 0], by_range, atol=1e-6)
    windowed = prepare("mine", root, tmp_path / "c", window=(0.0, 900.0)).cases
    in_window = np.clip(values / 900, 0, 1)
    np.testing.assert_allclose(windowed.image(cases.ids[0])[:, 0], in_window, atol=1e-6)


@pytest.mark.parametrize("name", ["hippocampus", "acdc"])
def test_the_paper_s_data_sets_are_scaled_by_their_range(name, tmp_path):
    root = raw(name, tmp_path / "raw")
    cases = prepare(name, root, tmp_path / "cases", size=SIZE[1:]).cases
    for id in cases.ids:
        image = cases.image(id)
        assert (image == 0).sum() < 0.004 * image.size  # clipping at 0.5 % would make more
        assert image.max() == 1


def test_an_image_of_few_bright_voxels_keeps_them(tmp_path):
    """Both percentiles are the same value there."""
    root = raw("msd", tmp_path / "raw")
    path = sorted((root / "imagesTr").iterdir())[0]
    image = sitk.ReadImage(str(path)) * 0
    sitk.WriteImage(image, str(path))
    with_bright_voxels(path)
    cases = prepare("mine", root, tmp_path / "cases").cases
    assert cases.image(cases.ids[0]).sum() == 3


def test_a_set_of_an_older_version_stays_as_it_is(tmp_path):
    root = raw("msd", tmp_path / "raw")
    cases = prepare("mine", root, tmp_path / "cases", percentiles=(0.0, 100.0)).cases
    info = json.loads((cases.root / "cases.json").read_text())
    del info["settings"]["recipe"]["percentiles"]
    (cases.root / "cases.json").write_text(json.dumps(info))
    before = snapshot(cases.root)
    for asked in ({}, {"percentiles": (0.0, 100.0)}):
        assert not prepare("mine", root, tmp_path / "cases", **asked).fresh
    assert snapshot(cases.root) == before
    with pytest.raises(UserError, match=r"recipe\.\w+ is .* here; --again replaces it"):
        prepare("mine", root, tmp_path / "cases", percentiles=(0.5, 99.5))
    assert prepare("mine", root, tmp_path / "cases", again=True).fresh
    assert open_cases(cases.root).info["settings"]["recipe"]["percentiles"] == [0.5, 99.5]


@pytest.mark.parametrize("core", [[2], 2])
def test_nnunet_ignore_label_regions_and_endings(tmp_path, core):
    root = raw("nnunet", tmp_path / "raw")
    for path in [*(root / "imagesTr").iterdir(), *(root / "labelsTr").iterdir()]:
        image = sitk.ReadImage(str(path))
        path.unlink()
        sitk.WriteImage(image, str(path).replace(".nii.gz", ".nrrd"))
    text = json.loads((root / "dataset.json").read_text())
    text |= {
        "file_ending": ".nrrd",
        "labels": {"background": 0, "whole": [1, 2], "core": core, "ignore": 3},
    }
    (root / "dataset.json").write_text(json.dumps(text))
    cases = prepare("mine", root, tmp_path / "cases").cases
    assert cases.classes == ("label 1", "core")
    assert cases.info["regions"] == {"whole": [1, 2], "core": [2]}
    assert IGNORED in cases.label(cases.ids[0])
    assert (
        cases.case(cases.ids[0])["ignored_voxels"]
        == (cases.label(cases.ids[0]) == IGNORED).sum()
        > 0
    )


def test_mixed_orientations_are_turned_alike(tmp_path):
    root = raw("msd", tmp_path / "raw")
    name = sorted((root / "imagesTr").iterdir())[0].name
    straight = prepare("mine", root, tmp_path / "a").cases
    id = straight.ids[0]
    codes = {}
    for folder in ("imagesTr", "labelsTr"):
        image = sitk.ReadImage(str(root / folder / name))
        codes[folder] = sitk.DICOMOrientImageFilter.GetOrientationFromDirectionCosines(
            image.GetDirection()
        )
        sitk.WriteImage(
            sitk.DICOMOrient(image, "PIR" if codes[folder] != "PIR" else "RAS"),
            str(root / folder / name),
        )
    turned = prepare("mine", root, tmp_path / "b").cases
    assert turned.case(id)["reoriented"]
    assert any("turned to the orientation" in line for line in inspect.warnings(turned))
    label = sitk.ReadImage(str(root / "labelsTr" / name))
    grids = [grid_of(turned.case(id)[key]) for key in ("prepared", "original")]
    back = sitk.GetArrayFromImage(restored(np.array(turned.label(id)), *grids, labels=True))
    np.testing.assert_array_equal(back, sitk.GetArrayFromImage(label))


# Again, elsewhere, interrupted
# ------------------------------------------------------------------------------


def snapshot(folder):
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_again_is_a_no_op_until_something_changes(tmp_path):
    root = raw("msd", tmp_path / "raw")
    to = tmp_path / "cases"
    prepare("mine", root, to)
    before = snapshot(to / "mine")
    assert not prepare("mine", root, to).fresh
    assert snapshot(to / "mine") == before
    with pytest.raises(UserError, match=r"recipe\.\w+ is .* here; --again replaces it"):
        prepare("mine", root, to, size=(20, 20))
    with pytest.raises(UserError, match=r"seed is \d in .* and \d here"):
        prepare("mine", root, to, seed=5)
    path = sorted((root / "imagesTr").iterdir())[2]
    image = sitk.ReadImage(str(path))
    sitk.WriteImage(image + 1, str(path))
    with pytest.raises(
        UserError, match=rf"sources of .* have changed .*imagesTr/{path.name}\); --again"
    ):
        prepare("mine", root, to)
    assert snapshot(to / "mine") == before
    assert prepare("mine", root, to, again=True).fresh
    assert not prepare("mine", root, to).fresh
    assert sorted(p.name for p in to.iterdir()) == ["mine"]


def test_touching_a_file_without_changing_it_is_no_change(tmp_path):
    root = raw("msd", tmp_path / "raw")
    prepare("mine", root, tmp_path / "cases")
    sorted((root / "imagesTr").iterdir())[0].touch()
    assert not prepare("mine", root, tmp_path / "cases").fresh


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    root, to = raw("msd", tmp_path / "raw"), tmp_path / "cases"

    def interrupt(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare("mine", root, to, progress=interrupt)
    assert not (to / "mine").exists()
    opened = []
    real = sitk.ReadImage
    monkeypatch.setattr(sitk, "ReadImage", lambda path, *a: opened.append(path) or real(path, *a))
    cases = prepare("mine", root, to).cases
    assert len(cases.ids) == 8
    assert len(opened) == 2 * 5  # three of eight cases were there already
    assert not [p for p in to.iterdir() if p.name.startswith(".")]
    straight = prepare("mine", root, tmp_path / "other").cases
    assert straight.info["checksum"] == cases.info["checksum"]


def test_processes_give_what_one_gives(tmp_path):
    root = raw("nnunet", tmp_path / "raw")
    one, two = (prepare("mine", root, tmp_path / str(n), workers=n).cases for n in (1, 2))
    assert one.info == two.info


def test_the_phantom_needs_no_folder(tmp_path):
    done = prepare("phantom", to=tmp_path, n_cases=6, shape=(5, 32, 32))
    assert len(done.cases.ids) == 6
    assert done.cases.classes == ("body", "core", "satellite")
    assert not prepare("phantom", to=tmp_path, n_cases=6, shape=(5, 32, 32)).fresh
    with pytest.raises(UserError, match="phantom.n_cases is 6 in .* and 7 here"):
        prepare("phantom", to=tmp_path, n_cases=7, shape=(5, 32, 32))


def test_inspection_finds_what_is_odd(tmp_path):
    root = raw("msd", tmp_path / "raw")
    files = sorted((root / "imagesTr").iterdir())
    shutil.copy(files[0], files[1])
    labels = sorted((root / "labelsTr").iterdir())
    empty = sitk.ReadImage(str(labels[2])) * 0
    sitk.WriteImage(empty, str(labels[2]))
    moved = sitk.ReadImage(str(labels[3]))
    moved.SetOrigin([x + 40 for x in moved.GetOrigin()])
    sitk.WriteImage(moved, str(labels[3]))
    cases = prepare("mine", root, tmp_path / "cases", duplicates="allow").cases
    found = "\n".join(inspect.warnings(cases))
    a, b, c, d = cases.ids[:4]
    assert f"{a}, {b} are the same image" in found
    assert f"{c} has an empty label map" in found
    assert f"{d}: image and label geometry differ" in found
    facts = inspect.summary(cases)
    assert facts["cases"] == 8
    assert facts["classes"]["body"]["voxels"] == sum(
        (cases.label(id) == 1).sum() for id in cases.ids
    )
    json.dumps(facts)


def test_cases_that_a_split_leaves_out_are_counted(tmp_path):
    ids = [f"phantom_{i:03d}" for i in range(6)]
    (tmp_path / "split.json").write_text(
        json.dumps({"train": ids[:2], "val": ids[2:3], "test": ids[3:4]})
    )
    some = prepare(
        "phantom",
        to=tmp_path / "some",
        n_cases=6,
        shape=(4, 24, 24),
        split_file=tmp_path / "split.json",
    ).cases
    assert inspect.warnings(some) == ["2 of 6 cases are in none of train, val and test"]
    assert (
        inspect.warnings(
            prepare("phantom", to=tmp_path / "all", n_cases=6, shape=(4, 24, 24)).cases
        )
        == []
    )


def test_every_row_of_the_catalog_is_complete():
    for key, row in DATASETS.items():
        assert row.classes
        assert row.layout
        assert row.licence
        assert row.citation
        assert key == "phantom" or row.homepage.startswith("http")
        assert row.archive is None or row.archive[1].startswith(("md5:", "sha256:"))
    assert {
        "acdc",
        "brats",
        "mrbrains",
        "flare",
        "promise12",
        "prostate",
        "hippocampus",
        "busi",
    } <= set(DATASETS)


def test_damaged_sets_are_not_opened(tmp_path):
    with pytest.raises(UserError, match="is not a prepared data set"):
        open_cases(tmp_path)
    (tmp_path / "cases.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        open_cases(tmp_path)
    (tmp_path / "cases.json").write_text('{"format": 99}')
    with pytest.raises(UserError, match="has format 99"):
        open_cases(tmp_path)


def as_radiologists_see(volume, code):
    """A volume (z, y, x) whose axes go the ways of `code`, turned by SimpleITK: rows to the back,
    columns to the left.
    """
    image = sitk.GetImageFromArray(volume)
    image.SetDirection(sitk.DICOMOrient(sitk.Image(2, 2, 2, sitk.sitkUInt8), code).GetDirection())
    return sitk.GetArrayFromImage(sitk.DICOMOrient(image, "LPS"))


@pytest.mark.parametrize("code", ["RAS", "LAS", "RPS", "LPS", None])
def test_contact_sheets_show_the_middle_of_the_labelled_slices(code, tmp_path):
    cases = prepare("mine", raw("msd", tmp_path / "raw"), tmp_path / "cases").cases
    cases = replace(cases, info=cases.info | {"orientation": code})
    cases.case(cases.ids[0])["spacing"] = [3.0, 2.0, 1.0]
    chosen = inspect.middle_slices(cases, 3)
    assert [view.id for view in chosen] == [cases.ids[0], cases.ids[4], cases.ids[7]]
    for id, image, label, _, _ in chosen:
        labelled = cases.case(id)["foreground_slices"]
        z = labelled[len(labelled) // 2]
        stored = np.array(cases.label(id)), np.array(cases.image(id)[:, 0])
        for found, volume in zip((label, image), stored, strict=True):
            np.testing.assert_array_equal(
                found, (as_radiologists_see(volume, code) if code else volume)[z]
            )
    figure = contact_sheet(chosen, cases.classes, "sheet")
    assert [ax.get_aspect() for ax in figure.axes[:2]] == [2, chosen[1].aspect]
    letters = [
        {text.get_text(): text.get_position() for text in ax.texts} for ax in figure.axes[:3]
    ]
    for found in letters:
        assert set(found) == (set("RLAP") if code else set())
        assert not code or (found["R"][0] < found["L"][0] and found["A"][1] > found["P"][1])
    label = chosen[0].label
    outlines = [c for c in figure.axes[0].collections if isinstance(c, QuadContourSet)]
    assert len(outlines) == len(set(np.unique(label)) - {0})
    (path,) = outlines[0].get_paths()
    assert path.contains_points(np.argwhere(label == 1)[:, ::-1]).mean() > 0.9
    assert path.contains_points(np.argwhere(label == 0)[:, ::-1]).mean() < 0.1
