"""Maps read class by class from arrays and images, and what their values give away."""

import io
import math
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import SimpleITK as sitk
from made_predictions import (
    image_of,
    made_case,
    made_regions,
    write_image,
    write_npz,
)

from segcal.predictors.maps import Checks, Maps, together
from segcal.predictors.reading import open_maps, read_probs
from segcal.types import UserError

PROBS = made_case("case", seed=0).probs


def checked(values, kind, *, step=0.0):
    checks = Checks("case_1", kind, step=step)
    for k, part in enumerate(np.asarray(values, np.float32)):
        checks.add(k, part)
    checks.finish()


# Arrays


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("compressed", [True, False])
def test_npz_gives_what_numpy_reads(tmp_path, dtype, compressed):
    path = tmp_path / "a.npz"
    stored = PROBS.astype(dtype)
    (np.savez_compressed if compressed else np.savez)(path, probabilities=stored)
    maps = open_maps(path)
    assert maps.shape == stored.shape
    np.testing.assert_array_equal(read_probs(str(path)), stored.astype("f4"))
    for _ in range(2):  # each call of classes is a new pass
        for values, expected in zip(maps.classes(), stored, strict=True):
            assert values.dtype == np.float32
            np.testing.assert_array_equal(values, expected.astype("f4"))


@pytest.mark.parametrize("ending", [".npz", ".npy"])
@pytest.mark.parametrize("values", [PROBS.astype("f8").T.copy().T, PROBS[:, 0]])
def test_fortran_order_and_2d_cases(tmp_path, ending, values):
    path = tmp_path / f"a{ending}"
    if ending == ".npz":
        write_npz(path, values)
    else:
        np.save(path, values)
    expected = values if values.ndim == 4 else values[:, None]
    np.testing.assert_array_equal(read_probs(path), expected.astype("f4"))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_integers_are_divided_by_their_maximum(tmp_path, dtype):
    largest = np.iinfo(dtype).max
    stored = np.rint(PROBS * largest).astype(dtype)
    np.save(tmp_path / "a.npy", stored)
    maps = open_maps(tmp_path / "a.npy")
    np.testing.assert_allclose(maps.stacked(), stored / largest, rtol=1e-6)
    assert maps.step == 1 / largest
    checked(maps.stacked(), "softmax", step=maps.step)


def test_many_rounded_maps_may_miss_one_by_half_a_step_each(tmp_path):
    few = np.full((60, 1, 2, 2), 1 / 60)
    rounded = np.rint(few * 255) / 255  # 4 / 255 each, 0.941 in all
    checked(rounded, "softmax", step=1 / 255)
    with pytest.raises(UserError, match="add up to 0.941"):
        checked(rounded, "softmax")


@pytest.mark.parametrize("key", ["probabilities", "softmax", "anything"])
def test_the_key_in_npz(tmp_path, key):
    write_npz(tmp_path / "a.npz", PROBS, key=key)
    np.testing.assert_array_equal(read_probs(tmp_path / "a.npz"), PROBS)


def test_nnunets_key_is_taken_among_others_and_other_names_are_not_guessed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, other=np.zeros(3), probabilities=PROBS)
    np.testing.assert_array_equal(read_probs(path), PROBS)
    np.savez(path, first=PROBS, second=PROBS)
    with pytest.raises(UserError, match="its arrays are: first, second"):
        open_maps(path)


def test_one_pass_needs_little_more_than_one_map(tmp_path):
    path = tmp_path / "a.npz"
    write_npz(path, np.zeros((20, 16, 128, 128), np.float32))
    one = 4 * 16 * 128 * 128
    tracemalloc.start()
    for values in open_maps(path).classes():
        assert values.nbytes == one
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert one <= peak < 2.5 * one  # all maps would be 20


# Damaged and hostile files


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


def test_the_bomb_works(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "exploded"))).close()
    assert (tmp_path / "exploded").exists()


@pytest.mark.parametrize("ending", [".npz", ".npy"])
def test_object_arrays_are_never_unpickled(tmp_path, ending):
    path, marker = tmp_path / f"a{ending}", tmp_path / "exploded"
    bombs = np.array([[[Bomb(marker)]]], object)
    np.savez(path, probabilities=bombs) if ending == ".npz" else np.save(path, bombs)
    with pytest.raises(UserError, match="Python objects, which are not opened"):
        read_probs(path)
    assert not marker.exists()


def test_a_truncated_npz(tmp_path):
    path = tmp_path / "a.npz"
    write_npz(path, PROBS)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="truncated or damaged"):
        read_probs(path)


def test_a_changed_value_is_noticed_by_the_checksum(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, probabilities=PROBS)  # not compressed: only the checksum can tell
    content = bytearray(path.read_bytes())
    place = content.find(PROBS[1, 3].tobytes())
    content[place + 1] ^= 1
    path.write_bytes(content)
    classes = open_maps(path).classes()
    assert next(classes) is not None
    assert next(classes) is not None
    with pytest.raises(UserError, match="truncated or damaged"):
        next(classes)  # before the last map is given


@pytest.mark.parametrize("change", [-8, 8])
def test_a_header_that_promises_another_size(tmp_path, change):
    header, body = io.BytesIO(), PROBS.tobytes()
    info = {"descr": "<f4", "fortran_order": False, "shape": PROBS.shape}
    np.lib.format.write_array_header_1_0(header, info)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr(
            "probabilities.npy", header.getvalue() + (body + bytes(8))[: len(body) + change]
        )
    with pytest.raises(UserError, match="truncated or damaged"):
        read_probs(tmp_path / "a.npz")


def test_a_truncated_npy(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, PROBS)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match="truncated or damaged"):
        open_maps(path)


def test_no_array_at_all(tmp_path):
    for name in ("a.npz", "a.npy", "a.nii.gz", "a.nrrd"):
        (tmp_path / name).write_bytes(b"no such thing" * 50)
        with pytest.raises(UserError, match=r"damaged|no array|no image"):
            open_maps(tmp_path / name)
    with pytest.raises(UserError, match="is missing"):
        open_maps(tmp_path / "b.npz")
    (tmp_path / "a.txt").write_text("maps")
    with pytest.raises(UserError, match="no .npz, .npy or image file"):
        open_maps(tmp_path / "a.txt")


@pytest.mark.parametrize("values", [np.zeros((2, 2)), np.zeros((2, 0, 3, 3))])
def test_arrays_of_another_shape(tmp_path, values):
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(UserError, match=r"maps must be \(K, z, y, x\)"):
        open_maps(tmp_path / "a.npy")


@pytest.mark.parametrize("dtype", [np.int64, bool, np.complex64])
def test_types_that_hold_no_probabilities(tmp_path, dtype):
    np.save(tmp_path / "a.npy", PROBS.astype(dtype))
    with pytest.raises(UserError, match="floating point, uint8 or uint16"):
        open_maps(tmp_path / "a.npy")


# Images


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("ending", [".nii.gz", ".nii", ".nrrd", ".mha"])
def test_images_give_what_simpleitk_reads(tmp_path, ending, vector):
    image = sitk.Compose([image_of(part) for part in PROBS]) if vector else image_of(PROBS)
    sitk.WriteImage(image, str(tmp_path / f"a{ending}"))
    maps = open_maps(tmp_path / f"a{ending}")
    read = sitk.GetArrayFromImage(sitk.ReadImage(str(tmp_path / f"a{ending}")))
    expected = np.moveaxis(read, -1, 0) if vector else read
    np.testing.assert_array_equal(maps.stacked(), expected)
    np.testing.assert_array_equal(expected, PROBS)
    single = image_of(PROBS[0])
    assert maps.grid.size == single.GetSize()
    for key in ("Spacing", "Origin", "Direction"):
        wanted = getattr(single, f"Get{key}")()
        np.testing.assert_allclose(getattr(maps.grid, key.lower()), wanted, atol=1e-5)


@pytest.mark.parametrize("ending", [".nii.gz", ".nrrd"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_images_of_integers_are_scaled(tmp_path, ending, dtype):
    stored = np.rint(PROBS * np.iinfo(dtype).max).astype(dtype)
    sitk.WriteImage(image_of(stored), str(tmp_path / f"a{ending}"))
    maps = open_maps(tmp_path / f"a{ending}")
    np.testing.assert_allclose(maps.stacked(), stored / np.iinfo(dtype).max, rtol=1e-6)
    assert maps.step == 1 / np.iinfo(dtype).max


def test_the_scale_in_a_nifti_header_is_used(tmp_path):
    path = tmp_path / "a.nii"
    stored = np.rint(PROBS * 10000).astype(np.int16)
    sitk.WriteImage(image_of(stored), str(path))
    content = bytearray(path.read_bytes())
    content[112:120] = struct.pack("<2f", 1e-4, 0.0)
    path.write_bytes(content)
    read = sitk.GetArrayFromImage(sitk.ReadImage(str(path)))
    np.testing.assert_allclose(open_maps(path).stacked(), read, atol=1e-6)
    np.testing.assert_allclose(read, PROBS, atol=1e-4)


def test_a_2d_image_is_one_slice(tmp_path):
    sitk.WriteImage(sitk.GetImageFromArray(PROBS[1, 0]), str(tmp_path / "a.mha"))
    maps = open_maps(tmp_path / "a.mha")
    assert maps.shape == (1, 1, *PROBS.shape[2:])
    np.testing.assert_array_equal(maps.stacked()[0, 0], PROBS[1, 0])


def test_a_truncated_nifti(tmp_path):
    path = tmp_path / "a.nii"
    write_image(path, PROBS)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="truncated or damaged"):
        read_probs(path)


# Several files as one


def part_of(values):
    return Maps((1, *values.shape), lambda: iter([values.copy()]))


def test_background_is_what_is_missing_to_one():
    parts = [part_of(values) for values in PROBS[1:]]
    joined = together(parts, "case_1", rest=True)
    np.testing.assert_allclose(joined.stacked(), PROBS, atol=1e-6)
    assert joined.shape == PROBS.shape
    as_stored = together(parts, "case_1", rest=False)
    np.testing.assert_array_equal(as_stored.stacked(), PROBS[1:])


def test_foreground_beyond_one_leaves_no_background():
    with pytest.raises(UserError, match="add up to 1.4.*--kind regions"):
        together([part_of(np.full((2, 2, 2), 0.7))] * 2, "case_1", rest=True).stacked()


def test_parts_of_other_shapes():
    with pytest.raises(UserError, match=r"\(2, 2, 2\) and \(2, 2, 3\)"):
        together([part_of(np.zeros((2, 2, 2))), part_of(np.zeros((2, 2, 3)))], "a", rest=True)


# What values give away


def test_honest_values_pass():
    checked(PROBS, "softmax")
    checked(np.log(PROBS), "logits")
    checked(made_regions("case", seed=1).probs, "regions")
    checked(PROBS.max(0)[None], "confidence")


@pytest.mark.parametrize("kind", ["softmax", "regions", "logits", "confidence"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(kind, value):
    values = PROBS[:1].copy() if kind == "confidence" else PROBS.copy()
    values[0, 1, 2, 3] = value
    with pytest.raises(UserError, match="case_1: map 0 holds NaN or infinite"):
        checked(values, kind)


def test_percent():
    regions, confidence = (PROBS[1:], "regions"), (PROBS[:1], "confidence")
    for values, kind in ((PROBS, "softmax"), (PROBS, "logits"), regions, confidence):
        with pytest.raises(UserError, match="look like percent; divide them by 100"):
            checked(100 * values, kind)


@pytest.mark.parametrize("kind", ["softmax", "regions"])
def test_logits_where_probabilities_are_due(kind):
    with pytest.raises(UserError, match="no probability.*logits.*--kind logits"):
        checked(3 * np.log(PROBS / 0.3), kind)


@pytest.mark.parametrize("kind", ["softmax", "regions", "confidence"])
def test_positive_values_beyond_one_are_no_logits(kind):
    values = PROBS[:1] if kind == "confidence" else PROBS
    with pytest.raises(UserError, match=r"no probability can have; (divide|export)"):
        checked(1.2 * values / values.max(), kind)


def test_probabilities_where_logits_are_due():
    with pytest.raises(UserError, match="these are probabilities, no logits"):
        checked(PROBS, "logits")


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_sums_off_by_more_than_allowed(factor):
    mixed = 0.9 * PROBS + 0.1 / 3  # below 0.95, so that the sum alone is wrong
    checked(mixed * (1 + (factor - 1) / 2), "softmax")
    with pytest.raises(UserError, match=f"add up to {factor}"):
        checked(mixed * factor, "softmax")


def test_one_wrong_voxel_is_enough():
    values = PROBS.copy()
    values[:, 2, 3, 4] = 0
    with pytest.raises(UserError, match="add up to 0 where 1 is due"):
        checked(values, "softmax")


def test_one_map_is_no_softmax():
    with pytest.raises(UserError, match="one map where each class needs one"):
        checked(PROBS[1:2], "softmax")


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def test_a_sigmoid_applied_twice():
    once = made_regions("case", seed=1).probs
    twice = sigmoid(once)
    twice[:, :1] = 0  # outside of the crop nothing was applied
    for values in (twice, twice.astype(np.float16)):
        with pytest.raises(UserError, match="sigmoid was applied twice"):
            checked(values, "regions")
    checked(once, "regions")
    checked(once.clip(0, 0.7), "regions")  # a network that is nowhere sure
    checked(np.zeros_like(once) + once.min(), "regions")


def test_label_maps_are_no_probabilities():
    hard = np.stack([PROBS.argmax(0) == k for k in range(3)])
    for kind in ("softmax", "regions"):
        with pytest.raises(UserError, match="all values are 0 or 1, so these are label maps"):
            checked(hard, kind)
    checked(np.where(hard, 0.999, 0.0005), "softmax")


def test_step_of_one_map_is_that_of_its_type():
    assert math.isclose(
        1 / 255, together([Maps((1, 1, 1, 1), iter, step=1 / 255)], "a", rest=True).step
    )
