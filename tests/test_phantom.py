"""Phantoms: the laws they are built to obey, and every official layout read back file by file."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import given, settings
from hypothesis import strategies as st
from official_layouts import LAYOUTS, MRBRAINS_IDS, write_layout
from scipy import ndimage

from segcal.data import layouts
from segcal.data import phantom as module
from segcal.data.layouts import msd
from segcal.data.phantom import CLASSES, SMALLEST, phantom, phantoms
from segcal.types import UserError

SIZE = (6, 32, 32)
N_CASES = 6


def same(a, b):
    return (
        (a.id, a.spacing) == (b.id, b.spacing)
        and np.array_equal(a.image, b.image)
        and np.array_equal(a.label, b.label)
    )


def raters_of(index, n_raters=15):
    return np.stack([phantom(index, rater=r).label for r in range(n_raters)])


def boundary_distance(mask, case):
    """In in-plane voxels, positive outside; between voxels of either side the boundary lies half
    way.
    """
    steps = np.array(case.spacing) / case.spacing[1]
    outside, inside = (ndimage.distance_transform_edt(m, steps) for m in (~mask, mask))
    return np.where(mask, 0.5 - inside, outside - 0.5)


# What is drawn
# ------------------------------------------------------------------------------


def test_a_case_depends_on_its_arguments_alone():
    in_order = list(phantoms(4, seed=3, size=SIZE, n_channels=2))
    assert [case.id for case in in_order] == [
        "phantom_000",
        "phantom_001",
        "phantom_002",
        "phantom_003",
    ]
    for index in (2, 0, 3, 1):
        assert same(phantom(index, seed=3, size=SIZE, n_channels=2), in_order[index])


def test_cases_seeds_and_channels_differ():
    a = phantom(0, n_channels=2)
    assert not np.array_equal(a.image[0], a.image[1])
    for other in (phantom(1), phantom(0, seed=1)):
        assert not np.array_equal(a.label, other.label)
        assert not np.array_equal(a.image[0], other.image[0])


def test_more_channels_show_the_same_scene():
    one, three = phantom(5, n_channels=1), phantom(5, n_channels=3)
    assert np.array_equal(one.label, three.label)
    assert np.array_equal(one.image[0], three.image[0])


@settings(max_examples=40)
@given(
    st.tuples(
        *(st.integers(least, most) for least, most in zip(SMALLEST, (24, 90, 90), strict=True))
    ),
    st.integers(0, 2**40),
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.integers(0, 50),
)
def test_every_class_is_there_at_any_size(size, seed, index, n_channels, rater):
    case = phantom(index, seed=seed, size=size, n_channels=n_channels, rater=rater)
    assert (case.image.shape, case.image.dtype) == ((n_channels, *size), np.float32)
    assert (case.label.shape, case.label.dtype) == (size, np.uint8)
    assert np.unique(case.label).tolist() == [0, 1, 2, 3]
    assert np.isfinite(case.image).all()
    assert (case.image >= 0).all()
    assert (np.ptp(case.image, axis=(1, 2, 3)) > 100).all()
    assert np.array_equal(case.image, case.image.round())
    assert case.spacing[0] > case.spacing[1] == case.spacing[2] > 0


@pytest.mark.parametrize("size", [SMALLEST, (4, 24, 200), (120, 24, 24), (40, 200, 160)])
def test_extreme_sizes(size):
    for index in range(60 if size == SMALLEST else 3):
        assert set(np.unique(phantom(index, size=size).label)) == {0, 1, 2, 3}


def test_shapes_sizes_and_places_vary():
    labels = np.stack([case.label for case in phantoms(12)])
    for k in range(1, len(CLASSES) + 1):
        volumes = (labels == k).sum((1, 2, 3))
        centres = np.array([ndimage.center_of_mass(label == k) for label in labels])
        assert volumes.std() > 0.15 * volumes.mean()
        assert (centres[:, 1:].std(0) > 1.5).all()
    body, core, satellite = (np.mean([(label == k).sum() for label in labels]) for k in (1, 2, 3))
    assert body > 2 * core > satellite


def test_the_core_lies_in_or_at_the_body():
    for case in phantoms(6):
        around = boundary_distance(np.isin(case.label, (1, 2)), case)
        assert around[case.label == 2].min() < -2
        assert (boundary_distance(case.label == 1, case)[case.label == 2] < 1).any()


# How it looks
# ------------------------------------------------------------------------------


def test_edges_are_partial_volume(monkeypatch):
    """Without noise, the middle third between background and body is met at the edge, and nowhere
    else.
    """
    monkeypatch.setattr(module, "_NOISE", 0.0)
    for index in range(4):
        case = phantom(index)
        foreground = raters_of(index).astype(bool).mean(0) > 0.5
        distance = boundary_distance(foreground, case)
        alone = boundary_distance(np.isin(case.label, (2, 3)), case) > 4  # body and background only
        image = case.image[0]
        inner, outer = (np.median(image[alone & part]) for part in (distance < -3, distance > 3))
        share = (image - outer) / (inner - outer)
        between = (share > 1 / 3) & (share < 2 / 3)
        assert between[alone & (np.abs(distance) < 1)].mean() > 0.08
        assert between[alone & (np.abs(distance) > 4)].mean() < 0.02


def test_the_core_stands_out_less_than_the_body():
    for case in phantoms(8):
        deep = {k: boundary_distance(case.label == k, case) < -1.5 for k in range(4)}
        background, body, core, satellite = (case.image[0][deep[k]].mean() for k in range(4))
        assert abs(core - body) < 0.8 * abs(body - background)
        assert abs(satellite - background) > 100


def test_noise_and_bias_field_are_there():
    for case in phantoms(6):
        plain = boundary_distance(case.label > 0, case) > 4
        image = case.image[0].astype(float)
        steps = np.diff(image, axis=2)[plain[..., 1:] & plain[..., :-1]]
        assert steps.std() == pytest.approx(module._NOISE * np.sqrt(2), rel=0.2)
        # Means over blocks hold hardly any noise; what varies among them is texture and bias.
        blocks = [
            image[:, y : y + 16, x : x + 16][plain[:, y : y + 16, x : x + 16]]
            for y in (0, 48)
            for x in (0, 48)
        ]
        means = np.array([block.mean() for block in blocks])
        assert means.std() > 0.015 * means.mean()


def test_the_bias_field_multiplies(monkeypatch):
    """Twice as bright tissue is changed twice as much: the ratio of two images of constant tissue
    is constant.
    """
    monkeypatch.setattr(module, "_NOISE", 0.0)
    axes, half = [np.arange(n) - n / 2 for n in SIZE], np.array(SIZE) / 2
    nowhere = np.full((3, *SIZE), 1e3)
    once, twice = (
        module._channel(np.random.default_rng(0), np.array([level] * 4), nowhere, axes, half)
        for level in (4e3, 8e3)
    )
    difference = twice - once
    assert np.ptp(difference) > 0.05 * difference.mean()
    assert np.corrcoef(difference.ravel(), once.ravel())[0, 1] > 0.95


def test_smooth_fields_have_the_variance_and_correlation_they_claim():
    axes = [np.arange(n, dtype=float) for n in (3, 20, 20)]
    fields = np.stack(
        [module._field(np.random.default_rng(s), axes, np.full(3, 4.0)) for s in range(600)]
    )
    assert fields.mean() == pytest.approx(0, abs=0.1)
    assert fields.var() == pytest.approx(1, abs=0.1)
    for lag in (2, 4, 8):
        correlation = (fields[..., lag:] * fields[..., :-lag]).mean()
        assert correlation == pytest.approx(np.exp(-(lag**2) / 32), abs=0.1)


# Who draws it
# ------------------------------------------------------------------------------


def test_raters_see_the_same_image_and_draw_their_own_label():
    first, again, second = phantom(0), phantom(0, rater=0), phantom(0, rater=1)
    assert same(first, again)
    assert np.array_equal(first.image, second.image)
    assert not np.array_equal(first.label, second.label)


@pytest.mark.parametrize("index", range(4))
def test_raters_disagree_near_boundaries_only(index):
    case, labels = phantom(index), raters_of(index)
    votes = np.stack([(labels == k).mean(0) for k in range(4)])
    disputed = votes.max(0) < 1
    nearest = np.min(
        [np.abs(boundary_distance(votes.argmax(0) == k, case)) for k in range(1, 4)], axis=0
    )
    assert nearest[disputed].max() < 6
    assert np.quantile(nearest[disputed], 0.95) < 3.5
    # The best a network can know is the share of votes: far from sure at every structure's edge.
    for k in range(1, 4):
        edge = np.abs(boundary_distance(votes.argmax(0) == k, case)) < 1
        assert votes.max(0)[edge].mean() < 0.9


def test_disputes_are_stretches_of_boundary_not_specks():
    a, b = (phantom(1, rater=r).label for r in (0, 1))
    sizes = np.unique(ndimage.label(a != b, np.ones((3, 3, 3)))[0], return_counts=True)[1][1:]
    assert sizes[sizes < 4].sum() < 0.1 * sizes.sum()


def test_some_raters_draw_large(monkeypatch):
    """The systematic part: without it, sizes vary less among raters."""

    def spread():
        volumes = np.array(
            [[(drawn == k).sum((1, 2, 3)) for k in (1, 2, 3)] for drawn in map(raters_of, range(3))]
        )
        return (volumes.std(-1) / volumes.mean(-1)).mean()

    with_habit = spread()
    monkeypatch.setattr(module, "_HABIT", 0.0)
    assert with_habit > 1.3 * spread()


# Errors
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(3, 24, 24), (4, 23, 24), (4, 24, 23), (64, 64)])
def test_too_small(size):
    with pytest.raises(
        UserError, match=r"size must be \(D, H, W\) and at least \(4, 24, 24\); got \("
    ):
        phantom(0, size=size)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_cases": 0}, "n_cases must be at least 1; got 0"),
        ({"n_cases": 2, "seed": -1}, "seed must be at least 0; got -1"),
    ],
)
def test_impossible_data_sets(arguments, message):
    with pytest.raises(UserError, match=message):
        list(phantoms(**arguments))


# Layouts: where each phantom goes, and what its label codes mean
# ------------------------------------------------------------------------------

RESTORED = {  # layout: (the file's codes, the phantom's classes) on common ground
    "acdc": ({1: 1, 2: 2, 3: 3}, {1: 1, 2: 2, 3: 3}),
    "brats": ({1: 1, 2: 2, 4: 3}, {1: 1, 2: 2, 3: 3}),
    "mrbrains": ({1: 1, 2: 1, 3: 2, 4: 2, 5: 3, 6: 3, 7: 0, 8: 0}, {1: 1, 2: 2, 3: 3}),
    "mrbrains13": ({1: 3, 2: 1, 3: 2}, {1: 1, 2: 2, 3: 3}),
    "flare": ({1: 1, 2: 1, 3: 2, 4: 3}, {1: 1, 2: 2, 3: 3}),
    "promise12": ({1: 1}, {1: 1, 2: 1, 3: 1}),
    "prostate": ({1: 1, 2: 2}, {1: 1, 2: 2, 3: 0}),
    "hippocampus": ({1: 1, 2: 2}, {1: 1, 2: 2, 3: 0}),
    "nnunet": ({1: 1, 2: 2, 3: 3}, {1: 1, 2: 2, 3: 3}),
    "msd": ({1: 1, 2: 2, 3: 3}, {1: 1, 2: 2, 3: 3}),
}


def files(layout, i):
    """The image files and the label file of phantom i, spelt out as they are downloaded."""
    patient, frame = f"patient{i // 2 + 1:03d}", ("frame01", "frame12")[i % 2]
    stem = f"BraTS19_TCIA01_{i:03d}_1"
    grade, brain = ("HGG", "LGG")[i % 2], MRBRAINS_IDS[i % 7]
    table = {
        "acdc": [f"training/{patient}/{patient}_{frame}{end}.nii.gz" for end in ("", "_gt")],
        "brats": [
            f"{grade}/{stem}/{stem}_{end}.nii.gz" for end in ("flair", "t1", "t1ce", "t2", "seg")
        ],
        "mrbrains": [
            f"training/{brain}/{f}.nii.gz"
            for f in ("pre/reg_T1", "pre/reg_IR", "pre/FLAIR", "segm")
        ],
        "mrbrains13": [
            f"TrainingData/{i + 1}/{f}.nii" for f in ("T1", "T1_IR", "T2_FLAIR", "LabelsForTesting")
        ],
        "flare": [f"TrainingImg/train_{i:03d}_0000.nii.gz", f"TrainingMask/train_{i:03d}.nii.gz"],
        "promise12": [f"Case{i:02d}.mhd", f"Case{i:02d}_segmentation.mhd"],
        "prostate": [f"{folder}/prostate_{i:02d}.nii.gz" for folder in ("imagesTr", "labelsTr")],
        "hippocampus": [
            f"{folder}/hippocampus_{i + 1:03d}.nii.gz" for folder in ("imagesTr", "labelsTr")
        ],
        "nnunet": [
            *(f"imagesTr/phantom_{i:03d}_000{c}.nii.gz" for c in (0, 1)),
            f"labelsTr/phantom_{i:03d}.nii.gz",
        ],
        "msd": [f"{folder}/phantom_{i:03d}.nii.gz" for folder in ("imagesTr", "labelsTr")],
    }
    return table[layout][:-1], table[layout][-1]


def test_every_layout_is_read_back():
    assert {*RESTORED, "busi"} == set(LAYOUTS)  # BUSI has a test of its own


def cases_of(layout):
    return list(phantoms(N_CASES, seed=7, size=SIZE, n_channels=LAYOUTS[layout][1]))


def recoded(array, codes):
    assert set(np.unique(array)) <= {0, *codes}
    table = np.zeros(256, int)
    for old, new in codes.items():
        table[old] = new
    return table[array]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    root = tmp_path_factory.mktemp("layouts")
    for layout in LAYOUTS:
        write_layout(layout, root / layout, n_cases=N_CASES, seed=7, size=SIZE)
    return root


@pytest.mark.parametrize("layout", RESTORED)
def test_labels_are_the_phantoms_in_official_codes(written, layout):
    of_file, of_phantom = RESTORED[layout]
    met = set()
    for i, case in enumerate(cases_of(layout)):
        raw = sitk.GetArrayFromImage(sitk.ReadImage(written / layout / files(layout, i)[1]))
        met |= set(np.unique(raw).tolist())
        assert np.array_equal(recoded(raw, of_file), recoded(case.label, of_phantom))
    assert met == {0, *of_file}


@pytest.mark.parametrize("layout", RESTORED)
def test_images_are_the_phantoms_up_to_scale(written, layout):
    for i, case in enumerate(cases_of(layout)):
        arrays = [
            sitk.GetArrayFromImage(sitk.ReadImage(written / layout / f))
            for f in files(layout, i)[0]
        ]
        channels = np.stack(arrays).reshape(-1, *SIZE)
        expected = 1.5 * case.image - 750 if layout == "flare" else case.image
        np.testing.assert_allclose(channels, expected, atol=0.5)


@pytest.mark.parametrize("layout", RESTORED)
def test_image_and_label_share_a_place_in_the_patient(written, layout):
    directions = set()
    for i, case in enumerate(cases_of(layout)):
        images, label = files(layout, i)
        label = sitk.ReadImage(written / layout / label)
        for image in (sitk.ReadImage(written / layout / path) for path in images):
            assert image.GetSize()[:3] == label.GetSize() == SIZE[::-1]
            assert image.GetSpacing()[:3] == label.GetSpacing() == pytest.approx(case.spacing[::-1])
            assert image.GetOrigin()[:3] == label.GetOrigin()
            matrix = np.array(image.GetDirection()).reshape(image.GetDimension(), -1)[:3, :3]
            np.testing.assert_array_equal(matrix.ravel(), label.GetDirection())
        assert all(label.GetOrigin())
        directions.add(tuple(np.round(label.GetDirection(), 3)))
    assert len(directions) > 1


@pytest.mark.parametrize("layout", RESTORED)
def test_no_file_but_those_of_the_layout(written, layout):
    expected = {
        f for i in range(N_CASES) for part in [files(layout, i)] for f in (*part[0], part[1])
    }
    if layout == "acdc":
        expected |= {f"training/patient{p:03d}/Info.cfg" for p in range(1, N_CASES // 2 + 1)}
    if layout == "promise12":
        expected |= {f.replace(".mhd", ".raw") for f in expected}
    if layout == "mrbrains13":
        expected |= {f"TrainingData/{i + 1}/LabelsForTraining.nii" for i in range(N_CASES)}
    if layout in ("prostate", "hippocampus", "nnunet", "msd"):
        expected |= {"dataset.json"}
    root = written / layout
    assert {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()} == expected


def test_acdc_info_names_the_frames(written):
    lines = (written / "acdc/training/patient002/Info.cfg").read_text().splitlines()
    info = dict(line.split(": ") for line in lines)
    assert (info["ED"], info["ES"]) == ("1", "12")
    assert set(info) == {"ED", "ES", "Group", "Height", "NbFrame", "Weight"}


def test_mrbrains13_has_both_codings(written):
    for i, case in enumerate(cases_of("mrbrains13")):
        raw = sitk.GetArrayFromImage(
            sitk.ReadImage(written / f"mrbrains13/TrainingData/{i + 1}/LabelsForTraining.nii")
        )
        assert np.array_equal(recoded(raw, RESTORED["mrbrains"][0]), case.label)


def test_mrbrains_ids_never_collide(tmp_path):
    write_layout("mrbrains", tmp_path, n_cases=9, size=SMALLEST)
    assert {p.name for p in (tmp_path / "training").iterdir()} == {*MRBRAINS_IDS, "1_1", "4_1"}


def test_ct_intensities_are_like_hounsfield_units(written):
    for i, case in enumerate(cases_of("flare")):
        image = sitk.GetArrayFromImage(sitk.ReadImage(written / "flare" / files("flare", i)[0][0]))
        assert -1000 < image.min() < image.max() < 1000
        assert -1000 < np.median(image[case.label == 0]) < -150
        assert -150 < np.median(image[case.label == 2]) < 400


@pytest.mark.parametrize(
    ("layout", "labels", "modality"),
    [
        ("prostate", ["background", "PZ", "TZ"], {"0": "T2", "1": "ADC"}),
        ("hippocampus", ["background", "Anterior", "Posterior"], {"0": "MRI"}),
        ("msd", ["background", *CLASSES], {"0": "MRI"}),
    ],
)
def test_decathlon_description(written, layout, labels, modality):
    info = json.loads((written / layout / "dataset.json").read_text())
    assert info["labels"] == {str(k): name for k, name in enumerate(labels)}
    assert info["modality"] == modality
    assert info["numTraining"] == len(info["training"]) == N_CASES
    for pair in info["training"]:
        image = sitk.ReadImage(written / layout / pair["image"])
        assert (
            image.GetDimension()
            == (4 if layout == "prostate" else 3)
            == int(info["tensorImageSize"][0])
        )
        assert sitk.ReadImage(written / layout / pair["label"]).GetDimension() == 3


def test_nnunet_description(written):
    info = json.loads((written / "nnunet/dataset.json").read_text())
    assert info["labels"] == {"background": 0, "body": 1, "core": 2, "satellite": 3}
    assert len(info["channel_names"]) == LAYOUTS["nnunet"][1]
    assert (info["numTraining"], info["file_ending"]) == (N_CASES, ".nii.gz")


def test_busi(written):
    root = written / "busi/Dataset_BUSI_with_GT"
    expected = {"normal/normal (1).png", "normal/normal (1)_mask.png"}
    for i, case in enumerate(cases_of("busi")):
        kind = ("benign", "malignant")[i % 2]
        stem = f"{kind}/{kind} ({i // 2 + 1})"
        masks = [f"{stem}_mask.png"] + [f"{stem}_mask_1.png"] * (i % 3 == 0)
        expected |= {f"{stem}.png", *masks}
        widest = (case.label > 0).sum((1, 2)).argmax()
        parts = [sitk.GetArrayFromImage(sitk.ReadImage(root / mask)) for mask in masks]
        assert all(np.unique(part).tolist() == [0, 255] for part in parts)
        assert np.array_equal(np.sum(parts, 0), 255 * (case.label[widest] > 0))
        image = sitk.ReadImage(root / f"{stem}.png")
        assert image.GetSize() == SIZE[:0:-1]
        assert image.GetNumberOfComponentsPerPixel() == (3 if kind == "benign" else 1)
        pixels = sitk.GetArrayFromImage(image).reshape(*SIZE[1:], -1)[..., 0]
        assert np.corrcoef(pixels.ravel(), case.image[0, widest].ravel())[0, 1] > 0.999
    assert {p.relative_to(root).as_posix() for p in root.rglob("*.png")} == expected
    assert not sitk.GetArrayFromImage(sitk.ReadImage(root / "normal/normal (1)_mask.png")).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_writing_again_gives_the_same_bytes(written, layout, tmp_path):
    write_layout(layout, tmp_path / layout, n_cases=N_CASES, seed=7, size=SIZE)
    for path in (written / layout).rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / path.relative_to(written)).read_bytes(), (
                path.name
            )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_smallest_size_can_be_written(layout, tmp_path):
    write_layout(layout, tmp_path, n_cases=2, size=SMALLEST)
    assert any(tmp_path.rglob("*.*"))


def test_writers_take_any_phantoms(tmp_path):
    case = phantom(0, size=SIZE)
    msd(tmp_path, iter([case, replace(case, id="mine")]))
    assert len(list((tmp_path / "imagesTr").iterdir())) == 2


@pytest.mark.parametrize(
    ("layout", "arguments", "message"),
    [
        ("acdd", {}, "unknown layout 'acdd'; choose one of nnunet, msd"),
        ("nnunet", {"n_cases": 0}, "n_cases must be at least 1; got 0"),
        ("msd", {"size": (2, 24, 24)}, "size must be"),
    ],
)
def test_errors_come_before_any_file(tmp_path, layout, arguments, message):
    with pytest.raises(UserError, match=message):
        layouts.write_layout(layout, tmp_path / "new", **arguments)
    assert not Path(tmp_path / "new").exists()
