"""Nothing damaged passes for an image: containers, headers and lengths are checked before ITK."""

import gzip
import os
import random
import struct
import zlib

import numpy as np
import pytest
import SimpleITK as sitk
from PIL import Image

from segcal.data.containers import FORMATS, check_file, check_header, data_files
from segcal.data.images import Grid, orientation, read
from segcal.types import UserError

SHAPE = (6, 12, 14)


def labels(dtype=np.int16):
    return np.random.default_rng(0).integers(0, 3, SHAPE).astype(dtype)


def written(path, array, *, packed=True):
    image = sitk.GetImageFromArray(array)
    image.SetSpacing((0.7, 1.2, 2.5)[: image.GetDimension()])
    sitk.WriteImage(image, str(path), packed)
    return path


def same(path, array):
    """Whether a file is read as this array; `None` if a sentence that names it refuses it."""
    try:
        image = read(path)
    except UserError as error:
        sentence = str(error)
    else:
        return np.array_equal(sitk.GetArrayFromImage(image), array)
    assert "\n" not in sentence
    assert str(path.parent) in sentence
    return None


# Whole files
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("ending", [".nii", ".nii.gz", ".hdr", ".mha", ".mhd", ".nrrd", ".nhdr"])
def test_what_itk_writes_is_read(tmp_path, ending, dtype, packed):
    path = written(tmp_path / f"a b{ending}", labels(dtype), packed=packed)
    assert same(path, labels(dtype))
    contents, _ = check_file(path)
    assert contents.shape == SHAPE[::-1]
    beside = {*tmp_path.iterdir()} - {path}
    assert set(data_files(path)) == beside
    assert orientation(path) == Grid.of(read(path)).orientation


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "I;16"])
def test_pictures_that_others_write_are_read(tmp_path, mode):
    Image.new("L", (13, 9), 3).convert("L" if mode == "I;16" else mode).save(tmp_path / "a.png")
    if mode == "I;16":
        Image.fromarray(np.full((9, 13), 300, np.uint16)).save(tmp_path / "a.png")
    assert read(tmp_path / "a.png").GetSize() == (13, 9)
    for ending in (".jpg", ".bmp", ".tif"):
        if mode in ("L", "RGB"):
            Image.new(mode, (13, 9)).save(tmp_path / f"a{ending}")
            assert read(tmp_path / f"a{ending}").GetSize() == (13, 9)


@pytest.mark.parametrize("packing", ["tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_packed_tiffs_are_read(tmp_path, packing):
    array = labels(np.uint8)[0]
    Image.fromarray(array).save(tmp_path / "a.tif", compression=packing)
    assert same(tmp_path / "a.tif", array)


def test_a_gzip_file_of_several_members(tmp_path):
    content = written(tmp_path / "a.nii", labels()).read_bytes()
    parts = [gzip.compress(part) for part in (content[:500], content[500:])]
    (tmp_path / "b.nii.gz").write_bytes(b"".join(parts))
    assert same(tmp_path / "b.nii.gz", labels())


def test_the_other_byte_order(tmp_path):
    content = bytearray(written(tmp_path / "a.nii", labels(), packed=False).read_bytes())
    fields = ((0, "i"), (40, "8h"), (68, "4h"), (76, "11f"), (252, "2h"), (256, "18f"))
    for place, kind in fields:
        struct.pack_into(
            f">{kind}", content, place, *struct.unpack_from(f"<{kind}", content, place)
        )
    (tmp_path / "b.nii").write_bytes(content[:352] + labels().astype(">i2").tobytes())
    assert same(tmp_path / "b.nii", labels())


# Flipped bytes
# ------------------------------------------------------------------------------


def flips(path, array, first, n, seed=0):
    """How many flipped bits from a byte on are refused, harmless, and taken for other data."""
    rng = random.Random(seed)
    content = path.read_bytes()
    outcomes = {None: 0, True: 0, False: 0}
    damaged = path.with_name(f"damaged{''.join(path.suffixes)}")
    for place in rng.sample(range(first, len(content)), n):
        changed = bytearray(content)
        changed[place] ^= 1 << rng.randrange(8)
        damaged.write_bytes(changed)
        outcomes[same(damaged, array)] += 1
    return outcomes


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
@pytest.mark.parametrize("ending", [".nii.gz", ".nrrd", ".mha", ".png"])
def test_a_flipped_bit_in_a_compressed_stream_is_no_data(tmp_path, ending, dtype):
    """Those that are not refused change nothing. Adler-32, all that a MetaImage has, knows fewer
    changes than CRC-32: of low labels it misses about one flip in 500."""
    if ending == ".png":
        dtype = np.uint8 if dtype is np.float32 else np.uint16
    array = labels(dtype)[0] if ending == ".png" else labels(dtype)
    path = written(tmp_path / f"a{ending}", array)
    content = path.read_bytes()
    start = {".nii.gz": 10, ".nrrd": content.find(b"\n\n") + 12, ".png": 33}
    first = start.get(ending, content.find(b"LOCAL\n") + 8)
    outcomes = flips(path, array, first, 120)
    assert outcomes[False] <= (2 if ending == ".mha" else 0)
    assert outcomes[None] > 110


def test_a_flipped_bit_in_data_beside_a_header(tmp_path):
    path = written(tmp_path / "a.mhd", labels(np.float32))
    (data,) = data_files(path)
    content = data.read_bytes()
    for place in range(5, len(content), 97):
        changed = bytearray(content)
        changed[place] ^= 4
        data.write_bytes(changed)
        with pytest.raises(UserError, match="zraw"):
            read(path)


# Headers
# ------------------------------------------------------------------------------

NIFTI = [
    ("vox_offset 0", 108, "f", 0.0, "voxels start at byte 0"),
    ("vox_offset NaN", 108, "f", float("nan"), "voxels start at byte nan"),
    ("vox_offset 1e30", 108, "f", 1e30, "voxels start at byte 1e"),
    ("sform inf", 280, "f", float("inf"), "affine matrix"),
    ("sform NaN", 300, "f", float("nan"), "affine matrix"),
    ("quaternion", 256, "f", 3.0, "quaternion"),
    ("origin", 268, "f", float("inf"), "an origin of inf"),
    ("spacing NaN", 80, "f", float("nan"), "voxels of nan mm"),
    ("spacing 1e30", 84, "f", 1e30, "voxels of 1e"),
    ("dimensions", 40, "h", 99, "99 dimensions"),
    ("size 0", 42, "h", 0, "a size of"),
    ("size negative", 44, "h", -3, "a size of"),
    ("size smaller", 46, "h", 2, "more than the"),
    ("size larger", 46, "h", 20, "truncated"),
    ("size huge", 42, "3h", (32767, 32767, 32767), "more than 500,000,000 voxels"),
    ("type", 70, "h", 77, "voxels of type 77"),
    ("bits", 72, "h", 8, "with 8 bits"),
    ("complex", 70, "2h", (32, 64), "complex numbers; store their magnitude"),
    ("scale", 112, "f", float("inf"), "infinity"),
    ("magic", 344, "4s", b"abcd", "not marked as NIfTI"),
    ("pair", 344, "4s", b"ni1\0", "its name and its header differ"),
    ("length", 0, "i", 349, "truncated"),
    ("version", 0, "i", 540, "NIfTI-2, which ITK does not read"),
    ("extension", 348, "b", 1, "cannot be"),
]


@pytest.mark.parametrize(("what", "place", "kind", "value", "message"), NIFTI)
@pytest.mark.parametrize("zipped", [False, True])
def test_nifti_headers_that_cannot_be(tmp_path, what, place, kind, value, message, zipped):
    content = bytearray(written(tmp_path / "a.nii", labels()).read_bytes())
    struct.pack_into(f"<{kind}", content, place, *(value if isinstance(value, tuple) else (value,)))
    if what == "extension":  # its length is that of the first voxels
        struct.pack_into("<f", content, 108, 368)
        content[352:352] = struct.pack("<ii8x", 5, 0)
    path = tmp_path / ("b.nii.gz" if zipped else "b.nii")
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(UserError, match=message):
        read(path)


META = [
    ("NDims = 3", "NDims = 99999", "NDims = 99999"),
    ("NDims = 3", "NDims = 3\nNDims = 3", "NDims twice"),
    ("DimSize = 14 12 6", "DimSize = 14 12", "DimSize"),
    ("DimSize = 14 12 6", "DimSize = 14 12 0", "a size of"),
    ("DimSize = 14 12 6", "DimSize = 14 12 5", "more than the"),
    ("DimSize = 14 12 6", "DimSize = 14 12 7", "truncated"),
    ("DimSize = 14 12 6", "DimSize = 30000 30000 30000", "more than 500,000,000 voxels"),
    ("CompressedData = False", "CompressedData = True", "CompressedDataSize"),
    ("CompressedData = False", "CompressedData = maybe", "maybe"),
    ("MET_SHORT", "MET_STRING", "ElementType"),
    ("a.raw", "LIST", "a file per slice"),
    ("a.raw", "a%d.raw 1 6 1", "a file per slice"),
    ("a.raw", "../a.raw", "outside of its folder"),
    ("a.raw", "/etc/passwd", "outside of its folder"),
    ("a.raw", "b.raw", "is missing"),
    ("a.raw", "x" * 5000, "the name of its data file"),
    ("ElementSpacing = 0.69", "ElementSpacing = inf", "ElementSpacing|voxels of"),
    ("Offset = 0 0 0", "Offset = 0 nan 0", "an origin of nan"),
    ("TransformMatrix = 1 0 0", "TransformMatrix = 0 0 0", "directions that are none"),
    ("TransformMatrix = 1 0 0", "TransformMatrix = 1 1 0", "not at right angles"),
    ("BinaryData = True", "BinaryData = False", "as text"),
]


@pytest.mark.parametrize(("old", "new", "message"), META)
def test_metaimage_headers_that_cannot_be(tmp_path, old, new, message):
    path = written(tmp_path / "a.mhd", labels(), packed=False)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        read(path)


NRRD = [
    ("dimension: 3", "dimension: 16", "dimension: 16"),
    ("sizes: 14 12 6", "sizes: 14 12", "sizes: 14 12"),
    ("sizes: 14 12 6", "sizes: 14 12 5", "more than the"),
    ("sizes: 14 12 6", "sizes: 14 -12 6", "sizes: 14 -12 6"),
    ("encoding: raw", "encoding: gzip", "not what was written"),
    ("encoding: raw", "encoding: hex", "as text"),
    ("encoding: raw", "encoding: pigz", "encoding: pigz"),
    ("space origin: (0", "space origin: (inf", "an origin of inf"),
    ("space origin: (0", "space origin: (x", "no number"),
    ("type: short", "type: block", "type: block"),
]


@pytest.mark.parametrize(("old", "new", "message"), NRRD)
def test_nrrd_headers_that_cannot_be(tmp_path, old, new, message):
    path = written(tmp_path / "a.nrrd", labels(), packed=False)
    content = path.read_bytes()
    assert old.encode() in content
    path.write_bytes(content.replace(old.encode(), new.encode(), 1))
    with pytest.raises(UserError, match=message):
        read(path)


def test_raw_data_of_the_wrong_length(tmp_path):
    path = written(tmp_path / "a.mhd", labels(), packed=False)
    content = (tmp_path / "a.raw").read_bytes()
    for wrong, message in ((content[:-1], "truncated"), (content + b"\0", "more than the")):
        (tmp_path / "a.raw").write_bytes(wrong)
        with pytest.raises(UserError, match=message):
            read(path)


def test_a_stream_that_unpacks_to_very_much(tmp_path):
    """No more of it is unpacked than its header says."""
    header = written(tmp_path / "a.nii", labels()).read_bytes()[:352]
    stream = zlib.compressobj(9, wbits=31)
    packed = stream.compress(header)
    for _ in range(200):
        packed += stream.compress(bytes(1 << 20))
    (tmp_path / "b.nii.gz").write_bytes(packed + stream.flush())
    with pytest.raises(UserError, match="more than the"):
        read(tmp_path / "b.nii.gz")


def test_a_picture_of_many_pixels_is_refused_unless_the_limit_is_raised(tmp_path, monkeypatch):
    Image.new("1", (30_000, 30_000)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="SEGCAL_MAX_VOXELS=N in the environment raises"):
        read(tmp_path / "a.png")
    monkeypatch.setenv("SEGCAL_MAX_VOXELS", "900000000")
    assert check_header(tmp_path / "a.png") == "PNGImageIO"


# Not files
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", FORMATS)
def test_a_pipe_is_not_opened(tmp_path, ending):
    os.mkfifo(tmp_path / f"a{ending}")
    with pytest.raises(UserError, match="a pipe or a device"):
        read(tmp_path / f"a{ending}")
    assert orientation(tmp_path / f"a{ending}") is None
    assert data_files(tmp_path / f"a{ending}") == []


def test_a_pipe_as_the_data_of_a_header_is_not_opened(tmp_path):
    path = written(tmp_path / "a.mhd", labels(), packed=False)
    (tmp_path / "a.raw").unlink()
    os.mkfifo(tmp_path / "a.raw")
    with pytest.raises(UserError, match="a pipe or a device"):
        read(path)


@pytest.mark.parametrize("ending", FORMATS)
def test_anything_else_is_no_image(tmp_path, ending):
    for content in (b"", b"x", b"not an image" * 99, bytes(2000), b"BM" + bytes(99)):
        (tmp_path / f"a{ending}").write_bytes(content)
        with pytest.raises(UserError):
            read(tmp_path / f"a{ending}")
    (tmp_path / "a.xyz").write_bytes(b"")
    with pytest.raises(UserError, match="no image of a known format; segcal reads .nii.gz"):
        read(tmp_path / "a.xyz")
