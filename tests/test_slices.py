"""Slices and volumes of prepared cases against the arrays they were written from."""

import json
import mmap
import os
import pickle
import resource
from dataclasses import replace

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from segcal import folders
from segcal.data.layouts import write_layout
from segcal.data.prepare import prepare
from segcal.data.slices import Slices, volume
from segcal.types import IGNORE, UserError

SIZES = {"a": (3, 20, 30), "b": (4, 40, 24), "c": (2, 16, 16)}
SHAPE = (40, 30)  # the largest height and width in train, of two different cases
EMPTY = {("a", 1), ("b", 0), ("b", 3)}


def arrays(id, n_channels=2):
    """A case's image and label: every voxel different, some ignored, some slices without
    foreground.
    """
    depth, height, width = SIZES[id]
    rng = np.random.default_rng(ord(id))
    image = rng.random((depth, n_channels, height, width), dtype=np.float32)
    label = rng.integers(0, 4, (depth, height, width), dtype=np.uint8)
    label[:, :2, :3] = folders.IGNORED
    for case, s in EMPTY:
        if case == id:
            label[s] *= label[s] == folders.IGNORED  # 0 or ignored alone
    return image, label


def info(ids, splits):
    return {
        "format": folders.FORMAT,
        "name": "made",
        "classes": ["A", "B", "C"],
        "channels": ["T1", "T2"],
        "cases": {id: {} for id in ids},
        "splits": splits,
    }


@pytest.fixture
def cases(tmp_path):
    for id in SIZES:
        image, label = arrays(id)
        np.save(folders.array_path(tmp_path, id, "image"), image)
        np.save(folders.array_path(tmp_path, id, "label"), label)
    splits = [
        {"train": ["a", "b"], "val": ["c"], "test": []},
        {"train": ["c"], "val": [], "test": ["a"]},
    ]
    folders.write_json(tmp_path / "cases.json", info(SIZES, splits))
    return folders.open_cases(tmp_path)


def expected(id, s, shape=SHAPE):
    """A slice by loops over its voxels."""
    images, labels = arrays(id)
    image = torch.zeros(2, *shape)
    label = torch.full(shape, IGNORE)
    for y in range(labels.shape[1]):
        for x in range(labels.shape[2]):
            image[:, y, x] = torch.from_numpy(images[s, :, y, x])
            label[y, x] = IGNORE if labels[s, y, x] == 255 else int(labels[s, y, x])
    return image, label


def same(found, wanted):
    return all(f.dtype == w.dtype and torch.equal(f, w) for f, w in zip(found, wanted, strict=True))


def places(ids):
    return [(id, s) for id in ids for s in range(SIZES[id][0])]


# Values
# ------------------------------------------------------------------------------


def test_every_slice_has_its_values_padding_and_ignored_voxels(cases):
    found = Slices(cases, "train")
    assert found.shape == SHAPE
    assert len(found) == len(places("ab"))
    for i, (id, s) in enumerate(places("ab")):
        image, label = found[i]
        assert image.dtype == torch.float32
        assert label.dtype == torch.int64
        assert same((image, label), expected(id, s))
    assert same(found[-1], found[len(found) - 1])


def test_iterating_ends(cases):
    assert len([*Slices(cases, "train")]) == 7


def test_the_shape_is_the_splits_own(cases):
    assert Slices(cases, "val").shape == (16, 16)
    assert same(Slices(cases, "train", fold=1)[1], expected("c", 1, (16, 16)))


def test_slices_without_foreground_can_be_left_out_without_reading_labels(cases, monkeypatch):
    kept = [place for place in places("ab") if place not in EMPTY]
    for id in "ab":
        cases.case(id)["foreground_slices"] = [s for case, s in kept if case == id]
    monkeypatch.setattr(
        folders.cases,
        "_mapped",
        lambda path, real=folders.cases._mapped: unreadable(real(path)),
    )
    found = Slices(cases, "train", keep_empty=False)
    monkeypatch.undo()
    assert len(found) == len(kept) < len(Slices(cases, "train"))
    assert all(same(found[i], expected(*place)) for i, place in enumerate(kept))


class unreadable:  # noqa: N801
    """Something with the shape and type of an array, and no values."""

    def __init__(self, array):
        self.shape, self.ndim, self.dtype = array.shape, array.ndim, array.dtype
        self.filename, self.offset = array.filename, array.offset


def counted(cases, voxels):
    """The same cases with the numbers that preparation counts; `voxels` of an id."""
    records = {}
    for id in cases.ids:
        label = cases.label(id)
        slices = np.flatnonzero([((s > 0) & (s != folders.IGNORED)).any() for s in label])
        about = {"shape": list(label.shape), "foreground_slices": slices.tolist()}
        records[id] = about | {"voxels": voxels(id)}
    return replace(cases, info=cases.info | {"cases": records})


def test_shares_of_classes(cases):
    """Against a count in the arrays."""
    known = counted(cases, lambda id: [int((arrays(id)[1] == k).sum()) for k in range(4)])
    slices = Slices(known, "train", keep_empty=True)
    counts = torch.zeros(4)
    for _, label in slices:
        for k in range(4):
            counts[k] += (label == k).sum()
    torch.testing.assert_close(slices.class_shares, counts / counts.sum())
    fewer = Slices(known, "train", keep_empty=False).class_shares
    counts[0] -= 1 * 20 * 30 + 2 * 40 * 24  # the three slices without foreground
    torch.testing.assert_close(fewer, counts / counts.sum())


def test_a_class_without_voxels_has_a_share(cases):
    slices = Slices(counted(cases, lambda id: [900, 0, 0, 0]), "train", keep_empty=True)
    assert slices.class_shares.log().isfinite().all()


def test_a_whole_volume(cases):
    image, label = volume(cases, "a")
    images, labels = arrays("a")
    assert image.dtype == torch.float32
    assert label.dtype == torch.int64
    assert np.array_equal(image, images)
    assert np.array_equal(label, np.where(labels == 255, IGNORE, labels.astype(int)))


def test_what_is_given_out_can_be_changed_without_changing_the_files(cases):
    for image, label in (Slices(cases, "val")[0], volume(cases, "c")):
        image.fill_(7)
        label.fill_(7)
    assert same(Slices(cases, "val")[0], expected("c", 0, (16, 16)))


# Reading
# ------------------------------------------------------------------------------


@pytest.fixture
def vast(tmp_path):
    """One case of 4 GB, nearly all of it a hole in the file."""
    depth, height, width = 10_000, 256, 400
    for kind, shape, dtype in (
        ("image", (depth, 1, height, width), "f4"),
        ("label", (depth, height, width), "u1"),
    ):
        path = folders.array_path(tmp_path, "vast", kind)
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": f"<{dtype}", "fortran_order": False, "shape": shape}
            )
            start, n_bytes = file.tell(), height * width * np.dtype(dtype).itemsize
            file.seek(start + 7_654 * n_bytes)
            file.write(np.ones((height, width), dtype).tobytes())
            file.truncate(start + depth * n_bytes)
    folders.write_json(tmp_path / "cases.json", info(["vast"], [{"train": ["vast"]}]))
    return folders.open_cases(tmp_path)


def test_one_slice_costs_the_memory_of_one_slice(vast):
    vast.case("vast")["foreground_slices"] = [7_654]
    found = Slices(vast, "train", keep_empty=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB
    image, label = found[0]
    assert (image == 1).all()
    assert (label == 1).all()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def n_open_maps(root):
    with open("/proc/self/maps") as file:
        return sum(str(root) in line for line in file)


def test_cases_are_mapped_once_when_they_are_read(cases, monkeypatch):
    found, opened = Slices(cases, "train"), []
    assert n_open_maps(cases.root) == 0
    monkeypatch.setattr(
        folders.cases,
        "_mapped",
        lambda path, real=folders.cases._mapped: opened.append(path.name) or real(path),
    )
    for i in (0, 1, 0, 2):
        found[i]
    assert opened == ["a.image.npy", "a.label.npy"]
    assert n_open_maps(cases.root) == 2


def test_more_cases_than_file_descriptors(tmp_path):
    """As for the 647 images of BUSI, where a process may have 1024 or even 256 files open."""
    ids = [f"case{i}" for i in range(300)]
    for id in ids:
        np.save(folders.array_path(tmp_path, id, "image"), np.zeros((1, 1, 4, 4), np.float32))
        np.save(folders.array_path(tmp_path, id, "label"), np.zeros((1, 4, 4), np.uint8))
    folders.write_json(tmp_path / "cases.json", info(ids, [{"train": ids}]))
    found = Slices(folders.open_cases(tmp_path), "train")
    before = len(os.listdir("/proc/self/fd"))
    assert len([*found]) == len(ids)
    assert n_open_maps(tmp_path) == 2 * len(ids)
    assert len(os.listdir("/proc/self/fd")) == before


def test_pickling_takes_no_map_along(cases):
    found = Slices(cases, "train")
    fresh = len(pickle.dumps(found))
    found[0]
    assert len(pickle.dumps(found)) == fresh
    again = pickle.loads(pickle.dumps(found))
    assert all(same(again[i], found[i]) for i in range(len(found)))


def test_a_loader_with_spawned_workers(cases):
    found = Slices(cases, "train")
    found[0]  # a map is open when the workers start
    loader = DataLoader(found, batch_size=3, num_workers=2, multiprocessing_context="spawn")
    batches = [*loader]
    assert [image.shape for image, _ in batches] == [(3, 2, *SHAPE), (3, 2, *SHAPE), (1, 2, *SHAPE)]
    items = [item for batch in batches for item in zip(*batch, strict=True)]
    assert all(
        same(item, expected(*place)) for item, place in zip(items, places("ab"), strict=True)
    )


# Augmentation
# ------------------------------------------------------------------------------


def test_augmentation_is_off_unless_asked_for_and_draws_nothing(cases):
    before = torch.get_rng_state()
    found = Slices(cases, "train")
    assert same(found[3], found[3])
    assert torch.equal(torch.get_rng_state(), before)


def test_augmentation_repeats_with_the_seed_and_varies_without(cases):
    found = Slices(cases, "train", augment=True)

    def drawn(seed):
        torch.manual_seed(seed)
        return [found[i] for i in (0, 3, 3)]

    first, again, other = drawn(1), drawn(1), drawn(2)
    assert all(same(x, y) for x, y in zip(first, again, strict=True))
    assert not same(first[1], first[2])
    assert not same(first[1], other[1])


@pytest.fixture(scope="module")
def coded(tmp_path_factory):
    """A case whose image tells the label: channel 0 is label / 10 + 0.3, channel 1 twice the
    label's parity.
    """
    root = tmp_path_factory.mktemp("coded")
    label = np.random.default_rng(0).integers(
        1, 4, (1, 60, 80), dtype=np.uint8
    )  # no zeros: those come from outside
    image = np.stack([0.3 + label / 10, 0.3 + 0.4 * (label % 2)], 1).astype(np.float32)
    np.save(folders.array_path(root, "x", "image"), image)
    np.save(folders.array_path(root, "x", "label"), label)
    folders.write_json(root / "cases.json", info(["x"], [{"train": ["x"]}]))
    return folders.open_cases(root)


@given(st.integers(0, 2**31))
def test_augmented_labels_stay_with_their_image(coded, seed):
    plain, label_before = Slices(coded, "train")[0]
    torch.manual_seed(seed)
    image, label = Slices(coded, "train", augment=True)[0]
    inside = label != IGNORE
    rows, columns = inside.any(1).nonzero().flatten(), inside.any(0).nonzero().flatten()
    assert inside.sum() == len(rows) * len(columns)  # one window
    assert len(rows) >= 57  # 5 % of 60
    assert len(columns) >= 76
    assert (image[:, ~inside] == 0).all()
    # The window is a piece of the label map, cut at one side of each axis.
    height, width = len(rows), len(columns)
    top, left = (0 if rows[0] > 0 else 60 - height), (0 if columns[0] > 0 else 80 - width)
    assert torch.equal(
        label[inside].view(height, width), label_before[top : top + height, left : left + width]
    )
    for c in range(2):  # each channel: value -> gain * value + bias, the same for every voxel
        x, y = plain[c, top : top + height, left : left + width].flatten(), image[c, inside]
        gain, bias = np.polyfit(x.double(), y.double(), 1)
        assert 0.9 - 1e-4 <= gain <= 1.1 + 1e-4
        assert abs(bias) <= 0.05 + 1e-4
        assert np.allclose(gain * x.numpy() + bias, y, atol=1e-5)


def test_augmentation_uses_its_whole_range(coded):
    found = Slices(coded, "train", augment=True)
    labels = torch.stack([found[0][1] for _ in range(300)])
    first_rows = {int((label != IGNORE).any(1).nonzero()[0]) for label in labels}
    last_columns = {int((label != IGNORE).any(0).nonzero()[-1]) for label in labels}
    assert first_rows == set(range(4))
    assert last_columns == set(range(75, 80))
    channels = torch.stack([found[0][0].flatten(1).max(1).values for _ in range(300)])
    assert abs(np.corrcoef(channels.T)[0, 1]) < 0.3  # each has its own gain and bias


def test_augmented_intensities_stay_in_range_and_padding_stays_zero(cases):
    found = Slices(cases, "train", augment=True)
    for i in range(len(found)):
        image, label = found[i]
        assert image.shape == (2, *SHAPE)
        assert 0 <= image.min() <= image.max() <= 1
        assert not image[:, 25:, 22:].any() or i >= 3  # case a has 20 rows
        assert set(label.unique().tolist()) <= {IGNORE, 0, 1, 2, 3}


# Bad input
# ------------------------------------------------------------------------------


def refused(match, *args, **kwargs):
    with pytest.raises(UserError, match=match) as caught:
        Slices(*args, **kwargs)
    assert "\n" not in str(caught.value)


def test_an_empty_split_is_a_sentence(cases):
    refused(r"split 'test' of made \(fold 0\) has no cases; choose another", cases, "test")
    refused("unknown split 'tset'", cases, "tset")
    refused("fold must lie in 0..1", cases, "train", fold=2)


def test_a_split_without_foreground_is_a_sentence(cases):
    cases.case("c")["foreground_slices"] = []
    refused("has no slice with foreground; keep the empty ones", cases, "val", keep_empty=False)
    assert len(Slices(cases, "val")) == 2


def test_a_damaged_case_is_a_sentence(cases):
    found, path = Slices(cases, "val"), folders.array_path(cases.root, "c", "image")
    path.write_bytes(path.read_bytes()[: mmap.PAGESIZE // 8])
    refused("cannot read .*c.image.npy", cases, "val")
    with pytest.raises(UserError, match=r"c.image.npy \(.*\); prepare the data set again"):
        found[1]
    path.unlink()
    with pytest.raises(UserError, match="cannot read .*c.image.npy"):
        found.batch([0])


def test_a_batch_is_its_items_stacked(tmp_path):
    cases = prepare("phantom", to=tmp_path, n_cases=5, shape=(4, 24, 30)).cases
    for augment in (False, True):
        slices = Slices(cases, "train", augment=augment)
        torch.manual_seed(0)
        image, label = slices.batch([3, 0, 7])
        torch.manual_seed(0)
        items = [slices[i] for i in (3, 0, 7)]
        assert torch.equal(image, torch.stack([x for x, _ in items]))
        assert torch.equal(label, torch.stack([y for _, y in items]))


def test_a_batch_pads_and_ignores_as_its_items_do(tmp_path):
    write_layout("nnunet", tmp_path / "raw", n_cases=6, size=(4, 30, 28))
    for path in sorted((tmp_path / "raw").glob("*Tr/*_00[123]*.nii.gz")):
        image = sitk.ReadImage(str(path))
        sitk.WriteImage(image[:25, :24, :], str(path))
    text = json.loads((tmp_path / "raw" / "dataset.json").read_text())
    text["labels"] = {"background": 0, "body": 1, "core": 2, "ignore": 3}
    (tmp_path / "raw" / "dataset.json").write_text(json.dumps(text))
    slices = Slices(prepare("mine", tmp_path / "raw", tmp_path / "cases").cases, "train")
    image, label = slices.batch(list(range(len(slices))))
    assert torch.equal(image, torch.stack([slices[i][0] for i in range(len(slices))]))
    assert torch.equal(label, torch.stack([slices[i][1] for i in range(len(slices))]))
    assert (label == -100).any()
