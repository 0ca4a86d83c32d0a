"""Damaged and hostile image files: a sentence or the image, never anything else."""

import random
import shutil

import numpy as np
import pytest
import SimpleITK as sitk
from damage import damaged
from guarded import outcomes_of, share
from official_layouts import write_dicom

from segcal.data.containers import data_files
from segcal.data.images import orientation, read, read_channels

# The formats whose data have a CRC-32; Adler-32, that of MetaImage, does not see every change.
STARTS = {"gz.nii.gz": (b"", 10), "gz.nrrd": (b"\n\n", 12), "a.png": (b"", 37)}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder per file, with what ITK wrote, and the array."""
    root = tmp_path_factory.mktemp("images")
    array = np.random.default_rng(0).integers(0, 4, (4, 10, 12)).astype(np.int16)
    made = []
    names = [".nii", ".hdr", ".mha", ".mhd", ".nrrd", ".nhdr"]
    files = [(f"a{ending}", False) for ending in names]
    files += [(f"gz{ending}", True) for ending in (".nii.gz", ".mha", ".mhd", ".nrrd", ".nhdr")]
    files += [(name, False) for name in ("a.png", "a.bmp", "a.jpg", "a.tif")]
    for name, packed in files:
        flat = name.rpartition(".")[2] in ("png", "bmp", "jpg", "tif")
        stored = array[0].astype(np.uint8) if flat else array
        folder = root / f"{len(made):02d}"
        folder.mkdir()
        sitk.WriteImage(sitk.GetImageFromArray(stored), str(folder / name), packed)
        made.append((folder / name, sitk.GetArrayFromImage(sitk.ReadImage(str(folder / name)))))
    return made


def test_no_damaged_image_is_anything_but_a_sentence(images, tmp_path):
    def trial(seed):
        rng = random.Random(seed)
        path, _ = images[seed % len(images)]
        folder = tmp_path / str(seed)
        folder.mkdir()
        for each in (path, *data_files(path)):
            (folder / each.name).write_bytes(each.read_bytes())
        target = folder / rng.choice([path, path, *data_files(path)]).name
        name = target.name
        is_nifti = name.endswith((".nii", ".hdr"))
        text = name.endswith((".mha", ".mhd", ".nrrd", ".nhdr"))
        target.write_bytes(damaged(target.read_bytes(), rng, is_nifti, text))
        orientation(folder / path.name)
        read_channels(folder / path.name)
        return "read"

    counts, faults = outcomes_of(trial, range(share(0.5)))
    assert faults == []
    assert counts["refused"] > counts["read"]


def test_a_damaged_slice_of_a_dicom_series_is_never_left_out(tmp_path):
    """Values have no checksum there, but none takes memory, and the volume keeps its size."""
    array = np.arange(5 * 24 * 24, dtype=np.int16).reshape(5, 24, 24)
    write_dicom(sitk.GetImageFromArray(array), tmp_path / "whole")
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())

    def trial(seed):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(tmp_path / "whole", folder)
        path = folder / rng.choice(names)
        path.write_bytes(damaged(path.read_bytes(), rng, is_nifti=False, text=False))
        size = read(folder).GetSize()
        return "read" if size == array.shape[::-1] else f"fault: {size}"

    counts, faults = outcomes_of(trial, range(share(0.1)))
    assert faults == []
    assert counts["refused"] > counts["read"]


def test_no_flipped_byte_of_a_compressed_stream_is_data(images, tmp_path):
    """Where it is not refused, nothing has changed, as in the date of a gzip file."""
    chosen = [(path, array) for path, array in images if path.name in STARTS]
    assert len(chosen) == len(STARTS)

    def trial(seed):
        rng = random.Random(seed)
        path, array = chosen[seed % len(chosen)]
        content = bytearray(path.read_bytes())
        mark, skipped = STARTS[path.name]
        first = content.find(mark) + skipped
        content[rng.randrange(first, len(content))] ^= rng.randrange(1, 256)
        target = tmp_path / f"{seed}{''.join(path.suffixes)}"
        target.write_bytes(content)
        (image,) = read_channels(target)
        same = np.array_equal(np.squeeze(sitk.GetArrayFromImage(image)), array)
        return "same" if same else "fault: silent damage"

    counts, faults = outcomes_of(trial, range(share(0.2)))
    assert faults == []
    assert counts["refused"] > 0.95 * sum(counts.values())
