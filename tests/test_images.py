"""Grids and image files: moving there and back, and files that are not what they should be."""

import gzip
import math

import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import given
from hypothesis import strategies as st

from segcal.data.images import (
    Grid,
    from_array,
    on_grid,
    orientation,
    read,
    read_channels,
    read_single,
    restored,
)
from segcal.types import UserError

TILT = (math.cos(0.3), -math.sin(0.3), 0.0, math.sin(0.3), math.cos(0.3), 0.0, 0.0, 0.0, 1.0)
GRID = Grid((12, 10, 6), (0.8, 0.9, 3.0), (5.0, -7.0, 11.0), TILT)


def corner(grid):
    """Where the field of view begins: half a voxel before the first centre."""
    return np.array(grid._at([-0.5, -0.5, -0.5]))


@given(st.tuples(*[st.integers(1, 40)] * 3))
def test_resizing_keeps_the_field_of_view(size):
    new = GRID.with_size(size)
    np.testing.assert_allclose(corner(new), corner(GRID))
    np.testing.assert_allclose(
        np.multiply(new.size, new.spacing), np.multiply(GRID.size, GRID.spacing)
    )


def test_resampling_rounds_sizes_and_keeps_the_corner():
    new = GRID.with_spacing((1.6, 0.9, 1.5))
    assert new.size == (6, 10, 12)
    np.testing.assert_allclose(corner(new), corner(GRID))


@given(st.tuples(*[st.integers(1, 30)] * 3))
def test_cropping_and_padding_move_by_whole_voxels(size):
    new = GRID.centred(size)
    shift = (
        np.linalg.solve(np.reshape(TILT, (3, 3)), np.subtract(new.origin, GRID.origin))
        / GRID.spacing
    )
    np.testing.assert_allclose(shift, np.round(shift), atol=1e-9)
    assert new.size == size
    array = np.arange(720, dtype=np.float32).reshape(6, 10, 12) + 1
    moved = sitk.GetArrayFromImage(on_grid(from_array(array, GRID), new, labels=True))
    assert set(np.unique(moved)) <= {0, *array.ravel()}


@pytest.mark.parametrize(
    "grid",
    [GRID.with_size((24, 20, 12)), GRID.centred((20, 16, 9)), GRID.with_spacing((0.4, 0.45, 1.5))],
)
def test_a_finer_or_wider_grid_and_back_is_lossless_for_labels(grid):
    label = np.random.default_rng(0).integers(0, 4, (6, 10, 12)).astype(np.uint8)
    there = sitk.GetArrayFromImage(on_grid(from_array(label, GRID), grid, labels=True))
    back = restored(there, grid, GRID, labels=True)
    np.testing.assert_array_equal(sitk.GetArrayFromImage(back), label)
    assert Grid.of(back).close_to(GRID)


def test_linear_for_images_nearest_for_labels():
    ramp = np.broadcast_to(np.arange(12, dtype=np.float32), (6, 10, 12)).copy()
    fine = GRID.with_size((24, 10, 6))
    smooth = sitk.GetArrayFromImage(on_grid(from_array(ramp, GRID), fine, labels=False))
    np.testing.assert_allclose(smooth[0, 0, 1:-1], np.arange(0.25, 11.2, 0.5), atol=1e-4)
    steps = sitk.GetArrayFromImage(
        on_grid(from_array(ramp.astype(np.uint8), GRID), fine, labels=True)
    )
    np.testing.assert_array_equal(steps[0, 0], np.repeat(np.arange(12), 2))


@pytest.mark.parametrize("ending", [".nii", ".nii.gz", ".mha", ".nrrd", ".mhd"])
def test_any_file_that_simpleitk_reads(tmp_path, ending):
    array = np.arange(720, dtype=np.int16).reshape(6, 10, 12)
    path = tmp_path / f"größe 1{ending}"
    sitk.WriteImage(from_array(array, GRID), str(path))
    image = read_single(path)
    np.testing.assert_array_equal(sitk.GetArrayFromImage(image), array)
    assert Grid.of(image).close_to(GRID)


def test_dimensions_become_volumes_and_channels(tmp_path):
    flat = tmp_path / "flat.png"
    sitk.WriteImage(sitk.GetImageFromArray(np.full((5, 7), 9, np.uint8)), str(flat))
    assert read_single(flat).GetSize() == (7, 5, 1)
    colour = tmp_path / "colour.png"
    sitk.WriteImage(
        sitk.GetImageFromArray(np.full((5, 7, 3), 90, np.uint8), isVector=True), str(colour)
    )
    assert sitk.GetArrayFromImage(read(colour)).mean() == pytest.approx(90)
    four = tmp_path / "four.nii.gz"
    sitk.WriteImage(
        sitk.JoinSeries([from_array(np.full((6, 10, 12), i, np.float32), GRID) for i in range(3)]),
        str(four),
    )
    channels = read_channels(four)
    assert [sitk.GetArrayFromImage(c).mean() for c in channels] == [0, 1, 2]
    assert Grid.of(channels[2]).close_to(GRID)
    assert orientation(four) == orientation_of(GRID)
    with pytest.raises(UserError, match="holds 3 volumes where one is expected"):
        read_single(four)


def orientation_of(grid):
    return sitk.DICOMOrientImageFilter.GetOrientationFromDirectionCosines(grid.direction)


def test_broken_files_are_named(tmp_path):
    with pytest.raises(UserError, match="gone.nii is missing"):
        read(tmp_path / "gone.nii")
    text = tmp_path / "text.nii.gz"
    text.write_text("hello")
    with pytest.raises(
        UserError, match="text.nii.gz cannot be read: it is no image, or it is truncated"
    ):
        read(text)
    assert orientation(text) is None


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("ending", [".nii", ".nii.gz", ".mha"])
def test_truncated_files_are_named(tmp_path, keep, ending):
    path = tmp_path / f"case{ending}"
    noise = np.random.default_rng(0).normal(size=(20, 40, 40)).astype(np.float32)
    sitk.WriteImage(sitk.GetImageFromArray(noise), str(path))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(UserError, match="truncated"):
        read(path)


def test_a_file_cut_inside_its_zip_stream_is_named(tmp_path):
    path = tmp_path / "case.nii.gz"
    sitk.WriteImage(sitk.GetImageFromArray(np.ones((20, 40, 40), np.float32)), str(path))
    raw = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(raw[: len(raw) // 2]))
    with pytest.raises(UserError, match="truncated"):
        read(path)


@pytest.mark.parametrize("ending", [".nii", ".nii.gz", ".mha", ".nrrd"])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [(0, 0, 0), (4, 3, 2), (6, 8, 6)])
def test_values_that_are_no_numbers_are_named(tmp_path, ending, kind, bad, where):
    """ITK reads NaN in NIfTI files as 0."""
    path = tmp_path / f"case{ending}"
    array = np.ones((7, 9, 7), kind)
    sitk.WriteImage(sitk.GetImageFromArray(array), str(path))
    assert sitk.GetArrayFromImage(read(path)).all()
    array[where] = bad
    sitk.WriteImage(sitk.GetImageFromArray(array), str(path))
    with pytest.raises(UserError, match="holds NaN or infinite values"):
        read(path)
