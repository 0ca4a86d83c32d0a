"""Damaged and hostile predictions of others, and the files of audits: a sentence or sense."""

import dataclasses
import gzip
import os
import random
import shutil
import zipfile

import numpy as np
import pytest
import SimpleITK as sitk
from damage import changed, damaged, damaged_json, ended, everything_in, text_of
from guarded import outcomes_of, share
from made_predictions import made_cases, write_arrays, write_labels, write_nnunet

from segcal.auditing import audit
from segcal.folders import read_fits, read_json, read_run
from segcal.folders.audits import read_audit, read_out_of_fold
from segcal.folders.files import read_rows
from segcal.predictors.files import open_source
from segcal.predictors.reading import open_maps
from segcal.types import UserError

PACKED = ("a.npz", "lzma.npz", "bzip2.npz", "a.nii.gz")
"""Files whose voxels have a CRC-32, or a checksum of their compressor."""

SHAPES = ["(3, 4, 6, 5)", "(-3, 4, 6, 5)", "(3, 99999, 99999, 99999)", "(3, 4)", "()", "(" * 900]
SHAPES += ["(3L, 4L, 6L, 5L", "(True, 4, 6, 5)", f"({'9' * 5000}, 4, 6, 5)", "(360, 1, 1, 1)"]
TYPES = ["'<f4'", "'|O'", "'<U9'", "[('a', '<f4')]", "'<c8'", "'>f2'", "('<f4', (3,))", "'x'", "5"]


@pytest.fixture(scope="module")
def maps(tmp_path_factory):
    """Files of maps, and the maps in them."""
    root = tmp_path_factory.mktemp("maps")
    logits = np.random.default_rng(0).normal(size=(3, 4, 6, 5)).astype(np.float32)
    probs = np.exp(logits) / np.exp(logits).sum(0)
    np.save(root / "a.npy", probs)
    for name, method in (("a", zipfile.ZIP_DEFLATED), ("lzma", 14), ("bzip2", 12)):
        with zipfile.ZipFile(root / f"{name}.npz", "w", method) as archive:
            archive.writestr("probabilities.npy", (root / "a.npy").read_bytes())
    sitk.WriteImage(sitk.GetImageFromArray(probs, isVector=False), str(root / "a.nii.gz"), True)
    sitk.WriteImage(sitk.GetImageFromArray(probs, isVector=False), str(root / "a.nii"))
    vectors = sitk.GetImageFromArray(np.moveaxis(probs, 0, -1), isVector=True)
    for name in ("a.mha", "a.nrrd"):
        sitk.WriteImage(vectors, str(root / name), True)
    return sorted(root.iterdir()), probs


def test_damaged_maps_are_a_sentence(maps, tmp_path):
    def trial(seed):
        rng = random.Random(seed)
        path = maps[0][seed % len(maps[0])]
        target = tmp_path / f"{seed}{path.name}"
        target.write_bytes(damaged(path.read_bytes(), rng, path.suffix == ".nii", text=False))
        open_maps(target).stacked()
        return "read"

    counts, faults = outcomes_of(trial, range(share(0.1)))
    assert faults == []
    assert counts["refused"] > counts["read"]


def test_no_flipped_byte_of_compressed_maps_is_data(maps, tmp_path):
    paths, probs = [path for path in maps[0] if path.name in PACKED], maps[1]
    assert len(paths) == len(PACKED)

    def trial(seed):
        rng = random.Random(seed)
        path = paths[seed % len(paths)]
        content = bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        target = tmp_path / f"{seed}{path.name}"
        target.write_bytes(content)
        read = open_maps(target).stacked()
        return "same" if np.array_equal(read, probs) else "fault: silent damage"

    counts, faults = outcomes_of(trial, range(share(0.1)))
    assert faults == []
    assert counts["refused"] > counts["same"]


def test_hostile_arrays(tmp_path):
    def trial(seed):
        rng = random.Random(seed)
        shape, kind = rng.choice(SHAPES), rng.choice(TYPES)
        order = rng.choice(["False", "True", "7"])
        text = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}"
        head = b"\x93NUMPY" + rng.choice([b"\1\0", b"\2\0", b"\3\0", b"\t\t"])
        size = len(text).to_bytes(2 if head[6] == 1 else 4, "little")
        target = tmp_path / f"{seed}.npy"
        target.write_bytes(head + size + text.encode() + rng.randbytes(1440))
        if rng.random() < 0.5:
            with zipfile.ZipFile(target.with_suffix(".npz"), "w") as archive:
                archive.write(target, rng.choice(["probabilities.npy", "../evil.npy", ".npy"]))
            target = target.with_suffix(".npz")
        with np.errstate(all="ignore"):
            open_maps(target).stacked()
        return "read"

    counts, faults = outcomes_of(trial, range(share(0.05)))
    assert faults == []
    assert counts["refused"] > counts["read"]


def test_maps_of_more_voxels_than_the_limit_are_refused(tmp_path):
    with open(tmp_path / "a.npy", "wb") as file:
        shape = (2, 1, 30_000, 30_000)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 4 * int(np.prod(shape)))  # a sparse file
    with pytest.raises(UserError, match="more than 500,000,000 voxels; SEGCAL_MAX_VOXELS=N"):
        open_maps(tmp_path / "a.npy")


def test_more_maps_than_labels_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.full((300, 1, 2, 2), 1 / 300, np.float32))
    with pytest.raises(UserError, match="has 300 maps a case, and labels go to 254"):
        open_source(tmp_path)


def test_a_pipe_among_maps_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.nii.gz")
    _, faults = outcomes_of(lambda seed: str(open_source(tmp_path)), [0])
    assert faults == []


def test_one_case_under_two_names_is_refused_unless_it_is_one_patient(tmp_path):
    cases = made_cases(4, shape=(3, 12, 10))
    cases[3] = dataclasses.replace(cases[0], id="case_003")
    write_arrays(tmp_path / "maps", cases)
    write_labels(tmp_path / "labels", cases)
    inputs = tmp_path / "maps", tmp_path / "labels"
    with pytest.raises(UserError, match="case_000 and case_003 hold the same maps"):
        audit(*inputs, out=tmp_path / "audit", report=False)
    (tmp_path / "p.csv").write_text("case,patient\ncase_000,Anna\ncase_003,anna \n")
    audit(*inputs, out=tmp_path / "audit", patients=tmp_path / "p.csv", report=False)
    assert set(read_run(tmp_path / "audit")["data"]["patients"].values()) >= {"Anna"}


def test_a_packed_table_unpacks_to_a_table_alone(tmp_path):
    with gzip.open(tmp_path / "scores.csv.gz", "wb", compresslevel=1) as file:
        for _ in range(70):
            file.write(b"0" * (1 << 20))
    with pytest.raises(UserError, match=r"scores.csv.gz is damaged; get the packed study again"):
        read_rows(tmp_path / "scores.csv", [])


READERS = {
    "audit.json": read_audit,
    "out_of_fold.json": read_out_of_fold,
    "run.json": read_run,
    "calibrators/ts.json": read_fits,
}


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """What was audited, the audit, and predictions to calibrate."""
    root = tmp_path_factory.mktemp("audited")
    model = write_nnunet(root, made_cases(6, shape=(3, 12, 10), sharpness=1.8))
    audit(model, out=root / "audit", report=False)
    shutil.copytree(model / "fold_0" / "validation", root / "new")
    return root, model


def test_json_files_of_an_audit(audited, tmp_path):
    folder = audited[0] / "audit"
    contents = {name: read_json(folder / name) for name in READERS}

    def trial(seed):
        name, _ = damaged_json(contents, seed, tmp_path)
        READERS[name](tmp_path / str(seed))
        return "read"

    counts, faults = outcomes_of(trial, range(share(0.1)))
    assert faults == []
    assert counts["refused"] > 0


def test_json_files_of_a_model_folder(audited, tmp_path):
    root, model = audited
    files = [path.relative_to(root) for path in (*model.rglob("*.json"), *root.glob("*/*/*.json"))]
    contents = {name: read_json(root / name) for name in files}
    assert {name.name for name in files} >= {"dataset.json", "plans.json", "splits_final.json"}

    def trial(seed):
        rng = random.Random(seed)
        name = rng.choice(files)
        work = tmp_path / str(seed)
        shutil.copytree(root, work)
        (work / name).write_bytes(text_of(changed(contents[name], rng), rng))
        open_source(work / model.relative_to(root))
        return "read"

    counts, faults = outcomes_of(trial, range(share(0.05)))
    assert faults == []
    assert counts["refused"] > 0


def test_apply_with_a_damaged_audit(audited, tmp_path):
    root = audited[0]
    contents = {name: read_json(root / "audit" / name) for name in READERS}

    def trial(seed):
        rng = random.Random(seed)
        work = tmp_path / "work" / str(seed)
        shutil.copytree(root, work)
        before = everything_in(tmp_path)
        name = rng.choice(list(READERS))
        (work / "audit" / name).write_bytes(text_of(changed(contents[name], rng), rng))
        more = [work / "audit", work / "new", "--out", work / "out", "--calibrator", "ts"]
        word = ended(["apply", *more])
        if everything_in(tmp_path) != before:
            return "fault: wrote elsewhere"
        if list(work.rglob(".partial-*")):
            return "fault: left a partial file"
        shutil.rmtree(work)
        return word

    counts, faults = outcomes_of(trial, range(share(0.01)))
    assert faults == []
    assert counts["ended 2"] > 0
