"""`segcal apply`: maps in the format they came in, equal to dense calibration, labels unchanged."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from made_predictions import (
    CLASSES,
    PKL,
    dataset_json,
    made_cases,
    made_regions,
    segmentation_of,
    write_arrays,
    write_class_maps,
    write_confidences,
    write_image,
    write_json,
    write_labels,
    write_monai,
    write_nnunet,
    write_npz,
    write_segcal,
    write_volumes,
)
from typer.testing import CliRunner

from segcal import calibrators
from segcal.auditing import applying, audit, map_files
from segcal.auditing.applying import apply, write_audited
from segcal.auditing.map_files import write_case
from segcal.auditing.written import fit_path
from segcal.calibrators import CALIBRATORS, Fitted
from segcal.cli import app
from segcal.folders import read_scores
from segcal.folders.audits import read_out_of_fold
from segcal.predictors.files import open_source
from segcal.predictors.reading import case_maps, read_probs
from segcal.predictors.source import Source, SourceCase
from segcal.types import UserError

TS = {"temperature": 1.7}
TS2 = {"near": 1.6, "far": 0.8, "radius": 2.0}
OTHER = {"ts": {"temperature": 0.7}, "ts2": {"near": 0.9, "far": 3.0, "radius": 1.0}}


def fitted(name, values, n_classes):
    """A calibrator with these parameters."""
    parameters = {key: torch.tensor(value, dtype=torch.float64) for key, value in values.items()}
    record = {"n_classes": n_classes, "voxels": "all", "warnings": []}
    return Fitted(name, CALIBRATORS[name].apply, parameters, record)


def made_audit(root, *, kind="softmax", classes=CLASSES, helps="ts2", folds=("",), model="probs"):
    """The files of a finished audit that `apply` reads; each region and fold has its own fit."""
    root.mkdir()
    facts = {"kind": kind, "format": "nnunet", "folds": list(folds)}
    facts |= {"key": {}, "options": {}, "left_out": {}, "warnings": []}
    info = {"id": "a1", "kind": "audit", "status": "finished", "audit": facts}
    own = {"loss": {"name": "nnUNetTrainer"}, "network": {"name": "2d"}, "fold": 0, "seed": 0}
    info |= {"settings": {"data": str(model), **own}}
    info |= {"data": {"name": "made", "classes": list(classes), "regions": {}, "checksum": "0"}}
    write_json(root / "run.json", info)
    about = {"verdict": "overconfident", "kind": kind, "calibrator": helps, "sentences": []}
    about |= {"n_cases": 0, "classes": list(classes), "temperature": {}, "scores": {}}
    about |= {"warnings": [], "left_out": {}}
    write_json(root / "audit.json", about)
    if kind == "confidence":
        return root
    for name, values in (("ts", TS), ("ts2", TS2)):
        for fold in {"", *folds}:
            for region in range(len(classes)) if kind == "regions" else (None,):
                of_fit = OTHER[name] if fold or region else values
                n_classes = 2 if kind == "regions" else len(classes) + 1
                path = fit_path(root, name, fold, region)
                fit = fitted(name, of_fit, n_classes)
                calibrators.save(fit, path, identity={"run": "a1", "weights": "best"})
    return root


def densely(name, values, probs, *, logits=False):
    """Calibrated log-probabilities (K, D, H, W) by the calibrator itself, all in memory."""
    maps = torch.from_numpy(probs.astype(np.float32))
    scores = (maps if logits else maps.log()).movedim(0, 1)
    return fitted(name, values, len(maps))(scores).log_softmax(1).movedim(1, 0).numpy()


def predicted_folder(folder, cases, *, regions=False):
    """What `nnUNetv2_predict --save_probabilities` leaves."""
    write_arrays(folder, cases)
    write_json(folder / "dataset.json", dataset_json(regions=regions))
    write_json(folder / "plans.json", {"dataset_name": "Dataset004_Hippocampus", "plans_name": "p"})
    write_json(folder / "predict_from_raw_data_args.json", {"save_probabilities": True})
    for case in cases:
        write_image(folder / f"{case.id}.nii.gz", segmentation_of(case, regions=regions))
        (folder / f"{case.id}.pkl").write_bytes(PKL % str(folder / "unpickled").encode())
    return folder


@pytest.mark.parametrize(("name", "values"), [("ts", TS), ("ts2", TS2)])
def test_a_prediction_folder_of_nnunet_stays_a_drop_in(tmp_path, name, values):
    cases = made_cases(2, sharpness=1.7, margin=2)
    new = predicted_folder(tmp_path / "new", cases)
    root = made_audit(tmp_path / "audit")
    applied = apply(root, new, out=tmp_path / "out", calibrator=name)
    assert (applied.cases, applied.calibrator) == (("case_000", "case_001"), name)
    for case in cases:
        with np.load(tmp_path / "out" / f"{case.id}.npz", allow_pickle=False) as archive:
            assert archive.files == ["probabilities"]
            probs = archive["probabilities"]
        assert (probs.dtype, probs.shape) == (np.float32, case.probs.shape)
        unseen = (case.probs[1:] == 0).all(0)
        assert unseen.any()
        np.testing.assert_array_equal(probs[:, unseen], case.probs[:, unseen])
        dense = np.exp(densely(name, values, case.probs))
        np.testing.assert_allclose(probs[:, ~unseen], dense[:, ~unseen], rtol=2e-5, atol=1e-7)
        np.testing.assert_array_equal(probs.argmax(0), case.probs.argmax(0))
        assert np.abs(probs - case.probs).max() > 0.01
    others = {path.name for path in new.iterdir() if path.suffix != ".npz"}
    for other in others:
        assert (tmp_path / "out" / other).read_bytes() == (new / other).read_bytes()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *others, "case_000.npz", "case_001.npz", "calibrated.json",
    }  # fmt: skip
    assert not (new / "unpickled").exists()


WRITERS = {
    "npy": (lambda folder, cases: write_arrays(folder, cases, ending=".npy"), True),
    "4D NIfTI": (write_volumes, True),
    "vector NIfTI": (lambda folder, cases: write_volumes(folder, cases, vector=True), True),
    "4D NRRD": (lambda folder, cases: write_volumes(folder, cases, ending=".nrrd"), True),
    "vector MHA": (
        lambda folder, cases: write_volumes(folder, cases, ending=".mha", vector=True),
        True,
    ),
    "4D NIfTI in folders": (write_monai, True),
    "class maps": (write_class_maps, False),
    "class maps with background": (
        lambda folder, cases: write_class_maps(folder, cases, background=True),
        True,
    ),
    "segcal": (write_segcal, True),
}


@pytest.mark.parametrize(("write", "background"), WRITERS.values(), ids=WRITERS)
def test_every_format_comes_out_as_it_went_in(tmp_path, write, background):
    cases = made_cases(2)
    new = write(tmp_path / "new", cases) or tmp_path / "new"
    apply(made_audit(tmp_path / "audit"), new, out=tmp_path / "out")
    before, after = (open_source(folder) for folder in (new, tmp_path / "out"))
    assert before.format == after.format
    for case, old, made in zip(before.cases, after.cases, cases, strict=True):
        maps = [case_maps(before, case), case_maps(after, old)]
        stored, probs = (each.stacked() for each in maps)
        if maps[0].grid is not None:
            assert maps[0].grid.close_to(maps[1].grid, apart=1e-6)
        dense = np.exp(densely("ts2", TS2, made.probs))
        np.testing.assert_allclose(probs, dense, atol=1e-5 if background is False else 1e-6)
        np.testing.assert_array_equal(probs.argmax(0), stored.argmax(0))
        for path in case.files:
            _same_image(path, tmp_path / "out" / path.relative_to(new))


def test_other_files_beside_maps_in_folders_are_copied(tmp_path):
    (case,) = made_cases(1)
    new = write_monai(tmp_path / "new", [case])
    (new / "dataset.json").write_text(json.dumps(dataset_json()))
    write_image(new / case.id / f"{case.id}_seg.nii.gz", case.label)
    apply(made_audit(tmp_path / "audit"), new, out=tmp_path / "out")
    for path in (new / "dataset.json", new / case.id / f"{case.id}_seg.nii.gz"):
        assert (tmp_path / "out" / path.relative_to(new)).read_bytes() == path.read_bytes()
    assert len([path for path in (tmp_path / "out").rglob("*") if path.is_file()]) == 4


def _same_image(old, new):
    if old.suffix == ".npy":
        assert np.load(new).dtype == np.load(old).dtype
        return
    a, b = sitk.ReadImage(str(old)), sitk.ReadImage(str(new))
    assert a.GetPixelID() == b.GetPixelID()
    for name in ("GetSize", "GetSpacing", "GetOrigin", "GetDirection"):
        assert getattr(a, name)() == pytest.approx(getattr(b, name)(), abs=1e-12)


def test_the_values_of_the_header_of_a_nifti_file_stay(tmp_path):
    write_volumes(tmp_path / "new", made_cases(1))
    apply(made_audit(tmp_path / "audit"), tmp_path / "new", out=tmp_path / "out")
    a, b = (sitk.ReadImage(str(tmp_path / folder / "case_000.nii.gz")) for folder in ("new", "out"))
    assert {key: a.GetMetaData(key) for key in a.GetMetaDataKeys()} == {
        key: b.GetMetaData(key) for key in b.GetMetaDataKeys()
    }


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_maps_of_whole_numbers_are_written_as_float32(tmp_path, dtype):
    (case,) = made_cases(1)
    largest = np.iinfo(dtype).max
    whole = np.round(case.probs * largest).astype(dtype)
    write_image(tmp_path / "new" / "case_000.nii.gz", whole)
    applied = apply(made_audit(tmp_path / "audit"), tmp_path / "new", out=tmp_path / "out")
    (note,) = applied.notes
    assert note == f"maps of whole numbers ({dtype.__name__}) are written as float32"
    probs = read_probs(tmp_path / "out" / "case_000.nii.gz")
    seen = (whole[1:] > 0).any(0)
    dense = np.exp(densely("ts2", TS2, whole.astype(np.float32) / np.float32(largest)))
    np.testing.assert_allclose(probs[:, seen], dense[:, seen], atol=1e-6)
    np.testing.assert_array_equal(probs.argmax(0), whole.argmax(0))


@pytest.mark.parametrize(("name", "values"), [("ts", TS), ("ts2", TS2)])
def test_logits_come_out_as_log_probabilities(tmp_path, name, values):
    (case,) = made_cases(1)
    logits = np.log(case.probs) + np.random.default_rng(0).normal(size=case.probs.shape[1:]) * 3
    write_npz(tmp_path / "new" / "case_000.npz", logits.astype(np.float32))
    root = made_audit(tmp_path / "audit", kind="logits")
    applied = apply(root, tmp_path / "new", out=tmp_path / "out", calibrator=name)
    assert "log-probabilities" in applied.notes[0]
    new = read_probs(tmp_path / "out" / "case_000.npz")
    dense = densely(name, values, logits, logits=True)
    np.testing.assert_allclose(new, dense, rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(new.argmax(0), logits.astype(np.float32).argmax(0))


@pytest.mark.parametrize("name", ["ts", "ts2"])
def test_each_region_has_a_calibrator_of_its_own(tmp_path, name):
    cases = made_cases(2, make=made_regions, sharpness=2.0, margin=2)
    new = predicted_folder(tmp_path / "new", cases, regions=True)
    root = made_audit(tmp_path / "audit", kind="regions", classes=("whole", "core"))
    apply(root, new, out=tmp_path / "out", calibrator=name)
    for case in cases:
        probs = read_probs(tmp_path / "out" / f"{case.id}.npz")
        fits = ({"ts": TS, "ts2": TS2}[name], OTHER[name])
        for stored, region, values in zip(case.probs, probs, fits, strict=True):
            dense = np.exp(densely(name, values, np.stack([1 - stored, stored])))[1]
            np.testing.assert_allclose(region[stored > 0], dense[stored > 0], rtol=2e-5)
            np.testing.assert_array_equal(region[stored == 0], 0)
            np.testing.assert_array_equal(region > 0.5, stored > 0.5)


def test_regions_at_one_half_stay_on_their_side(tmp_path):
    near = np.nextafter(np.float32(0.5), [0, 1], dtype=np.float32)
    values = np.array([0.5, *near, 1, 0, 1e-30], np.float32)
    write_npz(tmp_path / "c.npz", values.reshape(1, 1, 2, 3))
    source = a_source(tmp_path, "regions", ("whole",), {"whole": (1,)})
    for temperature in (0.05, 0.9, 3.3, 20.0):
        out = tmp_path / str(temperature)
        out.mkdir()
        write_case(source, source.cases[0], [{"temperature": temperature}], out)
        new = read_probs(out / "c.npz").ravel()
        assert (new > 0.5).tolist() == (values > 0.5).tolist()


def a_source(root, kind, classes, regions, *, files=("c.npz",), format="npz"):
    paths = tuple(root / name for name in files)
    case = SourceCase("c", "c", "", paths, None, None, None)
    facts = (regions, (), None, (case,), (), {})
    return Source(root, format, kind, "made", "made", "", classes, *facts)


SHARES = arrays(np.int32, (3, 1, 3, 4), elements=st.sampled_from([0, 1, 2, 3, 7, 8, 1000, 10**6]))
FITS = st.one_of(
    st.floats(0.05, 20).map(lambda t: {"temperature": t}),
    st.tuples(st.floats(0.05, 20), st.floats(0.05, 20), st.sampled_from([1.0, 2.0, 5.0])).map(
        lambda values: dict(zip(("near", "far", "radius"), values, strict=True))
    ),
)
STEPS = arrays(np.int8, (3, 1, 3, 4), elements=st.integers(-2, 2))


def almost_tied(shares, steps, dtype):
    """Probabilities of which many are equal, or a few steps of their type apart."""
    shares[:, 0, 0, 0] = 2, 1, 1  # only 0 and 1 would be refused as label maps
    shares[0] += (shares == 0).all(0)
    probs = (shares / shares.sum(0)).astype(dtype)
    return np.abs(probs + steps.astype(dtype) * np.spacing(probs)).astype(dtype)


@settings(max_examples=60, deadline=None)
@given(shares=SHARES, steps=STEPS, fit=FITS, dtype=st.sampled_from([np.float16, np.float32]))
def test_label_maps_stay_in_spite_of_ties_and_rounding(shares, steps, fit, dtype):
    probs = almost_tied(shares, steps, dtype)
    with tempfile.TemporaryDirectory() as place:
        root, out = Path(place), Path(place) / "out"
        out.mkdir()
        write_npz(root / "c.npz", probs)
        source = a_source(root, "softmax", CLASSES, {})
        write_case(source, source.cases[0], [fit], out)
        with np.load(out / "c.npz") as archive:
            new = archive["probabilities"]
    assert new.dtype == dtype
    np.testing.assert_array_equal(new.argmax(0), probs.argmax(0))
    assert (new >= 0).all()
    apart = 5e-3 if dtype is np.float16 else 1e-5
    np.testing.assert_allclose(new.astype(float).sum(0), 1, atol=apart)


@settings(max_examples=30, deadline=None)
@given(shares=SHARES, steps=STEPS, fit=FITS)
def test_label_maps_stay_where_background_is_the_rest(shares, steps, fit):
    probs = almost_tied(shares, steps, np.float32)
    with tempfile.TemporaryDirectory() as place:
        root, out = Path(place), Path(place) / "out"
        out.mkdir()
        for k in (1, 2):
            np.save(root / f"c_{k}.npy", probs[k][None])
        files = ("c_1.npy", "c_2.npy")
        source = a_source(root, "softmax", CLASSES, {}, files=files, format="class maps")
        after = a_source(out, "softmax", CLASSES, {}, files=files, format="class maps")
        write_case(source, source.cases[0], [fit], out)
        labels = [case_maps(each, each.cases[0]).stacked().argmax(0) for each in (source, after)]
    np.testing.assert_array_equal(*labels)


def test_a_map_that_is_stored_first_axis_fastest(tmp_path):
    (case,) = made_cases(1)
    (tmp_path / "new").mkdir()
    np.save(tmp_path / "new" / "case_000.npy", np.asfortranarray(case.probs))
    apply(made_audit(tmp_path / "audit"), tmp_path / "new", out=tmp_path / "out")
    new = np.load(tmp_path / "out" / "case_000.npy")
    np.testing.assert_allclose(new, np.exp(densely("ts2", TS2, case.probs)), atol=1e-6)


def test_other_arrays_of_an_archive_and_2d_shapes_stay(tmp_path):
    (case,) = made_cases(1, shape=(1, 12, 14))
    (tmp_path / "new").mkdir()
    np.savez(tmp_path / "new" / "a.npz", probabilities=case.probs[:, 0], spacing=np.array([2.0, 3]))
    apply(made_audit(tmp_path / "audit"), tmp_path / "new", out=tmp_path / "out")
    with np.load(tmp_path / "out" / "a.npz") as archive:
        assert archive["spacing"].tolist() == [2, 3]
        dense = np.exp(densely("ts2", TS2, case.probs))[:, 0]
        np.testing.assert_allclose(archive["probabilities"], dense, atol=1e-6)


def with_other_array(folder):
    """A case whose archive holds 4,000 bytes beside the maps, not compressed."""
    (case,) = made_cases(1, shape=(1, 12, 14))
    folder.mkdir()
    np.savez(folder / "a.npz", probabilities=case.probs, other=np.full(1000, 7, np.float32))
    return folder / "a.npz"


def test_other_arrays_of_more_bytes_than_the_limit_are_refused(tmp_path, monkeypatch):
    with_other_array(tmp_path / "new")
    monkeypatch.setenv("SEGCAL_MAX_VOXELS", "4000")  # less than the array and its header
    refused(tmp_path, "4,128 bytes beside its maps; remove them, or raise the limit")


def test_other_arrays_that_are_damaged_are_refused(tmp_path):
    path = with_other_array(tmp_path / "new")
    sevens = np.full(500, 7, np.float32).tobytes()
    path.write_bytes(path.read_bytes().replace(sevens, b"x" + sevens[1:], 1))
    refused(tmp_path, "a.npz is truncated or damaged; export it again")


def test_label_maps_beside_class_maps_are_told_apart_without_references(tmp_path):
    cases = made_cases(2)
    write_class_maps(tmp_path / "new", cases)
    for case in cases:
        write_image(tmp_path / "new" / f"{case.id}.nii.gz", segmentation_of(case))
    applied = apply(made_audit(tmp_path / "audit"), tmp_path / "new", out=tmp_path / "out")
    assert applied.cases == ("case_000", "case_001")
    assert (tmp_path / "out" / "case_001.nii.gz").is_file()


def test_a_fold_has_a_fit_of_its_own_and_the_ensemble_was_not_measured(tmp_path):
    (case,) = made_cases(1)
    new = write_arrays(tmp_path / "new", [case])
    root = made_audit(tmp_path / "audit", folds=("0", "1"), helps="ts")
    of_all = apply(root, new, out=tmp_path / "all")
    assert any("no out-of-fold predictions of the ensemble" in note for note in of_all.notes)
    of_fold = apply(root, new, out=tmp_path / "fold", fold="1")
    assert of_fold.notes == ()
    for applied, values in ((of_all, TS), (of_fold, OTHER["ts"])):
        assert applied.fits == (pytest.approx(values),)
        probs = read_probs(applied.out / "case_000.npz")
        np.testing.assert_allclose(probs, np.exp(densely("ts", values, case.probs)), atol=1e-6)


def test_another_network_and_other_names_are_said(tmp_path):
    model = Path("results") / "Dataset007_Pancreas" / "nnUNetTrainer__nnUNetPlans__2d"
    root = made_audit(tmp_path / "audit", model=model, classes=("head", "tail"))
    applied = apply(root, predicted_folder(tmp_path / "new", made_cases(1)), out=tmp_path / "out")
    text = " ".join(applied.notes)
    for name in ("'Dataset004_Hippocampus'", "'Dataset007_Pancreas'", "'nnUNetPlans'", "'p'"):
        assert name in text
    assert "anterior, posterior where the audit has head, tail" in text


def test_audited_predictions_are_said_to_be_fitted_on(tmp_path):
    new = write_arrays(tmp_path / "new", made_cases(1))
    applied = apply(made_audit(tmp_path / "audit", model=new), new, out=tmp_path / "out")
    assert "these are the audited predictions" in applied.notes[0]


def test_confidence_maps_of_segcal_are_not_copied(tmp_path):
    new = write_segcal(tmp_path / "new", made_cases(1))
    applied = apply(made_audit(tmp_path / "audit"), new, out=tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "case_000_seg.nii.gz" in names
    assert not {"case_000_confidence.nii.gz", "case_000_summary.json"} & names
    assert "left out" in applied.notes[0]


def test_an_interrupted_one_goes_on(tmp_path, monkeypatch):
    new, root = write_arrays(tmp_path / "new", made_cases(3)), made_audit(tmp_path / "audit")

    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply(root, new, out=tmp_path / "out", progress=stop)
    assert not (tmp_path / "out").exists()
    calibrated = []

    def counted(source, case, fits, **options):
        calibrated.append(case.id)
        return plain(source, case, fits, **options)

    plain = map_files.calibrated_maps
    monkeypatch.setattr(map_files, "calibrated_maps", counted)
    apply(root, new, out=tmp_path / "out")
    assert calibrated == ["case_002"]
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_case_leaves_nothing(tmp_path):
    new = write_arrays(tmp_path / "new", made_cases(3))
    content = (new / "case_001.npz").read_bytes()  # the largest, so it is not the one looked at
    middle = len(content) // 2
    (new / "case_001.npz").write_bytes(content[:middle] + b"x" * 40 + content[middle + 40 :])
    with pytest.raises(UserError, match="case_001"):
        apply(made_audit(tmp_path / "audit"), new, out=tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"new", "audit"}


def test_what_is_there_is_replaced_only_if_asked_and_if_it_was_calibrated(tmp_path):
    new, root = write_arrays(tmp_path / "new", made_cases(1)), made_audit(tmp_path / "audit")
    out = tmp_path / "out"
    apply(root, new, out=out)
    with pytest.raises(UserError, match="exists; choose another --out, or --again"):
        apply(root, new, out=out)
    apply(root, new, out=out, calibrator="ts", again=True)
    assert json.loads((out / "calibrated.json").read_text())["calibrator"] == "ts"
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="holds no calibrated predictions"):
        apply(root, new, out=tmp_path / "mine", again=True)
    with pytest.raises(UserError, match="holds calibrated predictions"):
        apply(root, out, out=tmp_path / "twice")


@pytest.mark.parametrize("target", ["new", ".", "audit"])
def test_inputs_are_never_replaced(tmp_path, target):
    new, root = write_arrays(tmp_path / "new", made_cases(1)), made_audit(tmp_path / "audit")
    with pytest.raises(UserError, match="would replace"):
        apply(root, new, out=tmp_path / target, again=True)


def refused(tmp_path, sentence, *, new=None, audited=None, **options):
    """`apply` raises this sentence and writes nothing."""
    root = made_audit(tmp_path / "audit", **(audited or {}))
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=sentence) as error:
        apply(root, new or tmp_path / "new", out=tmp_path / "out", **options)
    assert "\n" not in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_no_calibrator_helped(tmp_path):
    new = write_arrays(tmp_path / "new", made_cases(1))
    sentence = r"no calibrator helps .* name one with --calibrator \(ts or ts2\)"
    refused(tmp_path, sentence, new=new, audited={"helps": None})


def test_calibrators_and_folds_that_do_not_exist(tmp_path):
    new = write_arrays(tmp_path / "new", made_cases(1))
    root = made_audit(tmp_path / "audit", folds=("0", "1"))
    for options, sentence in (
        ({"calibrator": "vs"}, "unknown calibrator that keeps label maps 'vs'"),
        ({"fold": "7"}, "has no fold '7'; its folds are: 0, 1"),
    ):
        with pytest.raises(UserError, match=sentence):
            apply(root, new, out=tmp_path / "out", **options)
    shutil.rmtree(root / "calibrators")
    with pytest.raises(UserError, match="has no fitted ts; audit more patients"):
        apply(root, new, out=tmp_path / "out", calibrator="ts")


def test_confidence_has_nothing_to_apply(tmp_path):
    audited = {"kind": "confidence", "helps": None}
    write_confidences(tmp_path / "new", made_cases(1))
    refused(tmp_path, "an audit of confidence maps", audited=audited, calibrator="ts")


def test_other_classes(tmp_path):
    write_arrays(tmp_path / "new", made_cases(1, n_classes=3))
    refused(tmp_path, "has 3 classes .* where the audit .* has 2 ")


def test_other_kinds(tmp_path):
    (case,) = made_cases(1)
    predicted_folder(tmp_path / "regions", made_cases(1, make=made_regions), regions=True)
    write_npz(tmp_path / "logits" / "case_000.npz", 10 * np.log(case.probs + 1e-3))
    write_arrays(tmp_path / "softmax", [case])
    for held, kind in (("regions", "softmax"), ("logits", "softmax"), ("softmax", "logits")):
        place = tmp_path / f"{held}-{kind}"
        place.mkdir()
        sentence = f"holds {held} where the audit .* is of {kind}"
        refused(place, sentence, new=tmp_path / held, audited={"kind": kind})


def test_confidence_maps_where_probabilities_were_audited(tmp_path):
    write_confidences(tmp_path / "new", made_cases(1))
    refused(tmp_path, "holds confidence where the audit .* is of softmax")


def test_class_maps_of_whole_numbers(tmp_path):
    (case,) = made_cases(1)
    whole = case.__class__(case.id, np.round(case.probs * 255).astype(np.uint8), case.label)
    write_class_maps(tmp_path / "new", [whole])
    apply(made_audit(tmp_path / "audit"), tmp_path / "new", out=tmp_path / "out")
    assert read_probs(tmp_path / "out" / "case_000_1.nii.gz").dtype == np.float32


def test_folders_without_maps(tmp_path):
    write_labels(tmp_path / "labels", made_cases(2))
    refused(tmp_path, "holds label maps only", new=tmp_path / "labels")
    shutil.rmtree(tmp_path / "audit")
    (tmp_path / "new").mkdir()
    refused(tmp_path, "holds no files with maps")
    shutil.rmtree(tmp_path / "audit")
    refused(tmp_path, "is no folder", new=tmp_path / "missing")
    shutil.rmtree(tmp_path / "audit")
    model = write_nnunet(tmp_path / "base", made_cases(2))
    refused(tmp_path, "predictions for training cases", new=model)


def test_files_that_cannot_hold_fractions(tmp_path):
    write_class_maps(tmp_path / "new", made_cases(1, shape=(1, 12, 14)))
    for path in (tmp_path / "new").iterdir():
        image = sitk.Cast(sitk.ReadImage(str(path))[:, :, 0] * 255, sitk.sitkUInt8)
        sitk.WriteImage(image, str(path).replace(".nii.gz", ".png"))
        path.unlink()
    refused(tmp_path, "cannot be written again with calibrated values")


def test_no_audit(tmp_path):
    new = write_arrays(tmp_path / "new", made_cases(1))
    with pytest.raises(UserError, match="is no audit"):
        apply(tmp_path / "nothing", new, out=tmp_path / "out")


def test_the_command(tmp_path):
    write_arrays(tmp_path / "new", made_cases(2))
    made_audit(tmp_path / "audit", folds=("0", "1"))
    command = ["apply", str(tmp_path / "audit"), str(tmp_path / "new"), "--json"]
    ran = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    shown = json.loads(ran.stdout)
    assert shown["cases"] == ["case_000", "case_001"]
    assert shown["fits"] == [pytest.approx(TS2)]
    assert "ensemble of folds" in ran.stderr
    text = CliRunner().invoke(app, ["apply", "--help"]).stdout
    assert "Example: segcal apply" in text


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """A real audit of made predictions of an overconfident network, and what was audited."""
    folder = tmp_path_factory.mktemp("audited")
    cases = made_cases(10, shape=(6, 16, 14), sharpness=1.8, margin=1)
    model = write_nnunet(folder, cases)
    audit(model, out=folder / "audit", report=False)
    return folder / "audit", open_source(model), {case.id: case for case in cases}


def test_audited_cases_get_calibrators_that_never_saw_their_patient(audited):
    root, source, cases = audited
    fits = read_out_of_fold(root)
    assert set(fits) == set(cases)
    write_audited(root, source, ["confidence", "probabilities"], calibrator="ts")
    rows = [row for row in read_scores(root) if row["calibrator"] == "ts"]
    rows = [row for row in rows if (row["metric"], row["voxels"]) == ("nll", "all")]
    values = {row["case"]: float(row["value"]) for row in rows if row["class"] == "all"}
    temperatures = set()
    for id, case in cases.items():
        probs = read_probs(root / "probabilities" / f"{id}.npz")
        (values_of_fit,) = fits[id]["ts"]
        temperatures.add(values_of_fit["temperature"])
        seen = (case.probs[1:] > 0).any(0)
        dense = np.exp(densely("ts", values_of_fit, case.probs))
        np.testing.assert_allclose(probs[:, seen], dense[:, seen], rtol=2e-5, atol=1e-7)
        of_truth = np.take_along_axis(probs, case.label[None].astype(int), 0)[0]
        nll = -np.log(of_truth).sum() / (case.label > 0).sum()  # over all voxels, per foreground
        assert nll == pytest.approx(values[id], rel=1e-4)
        image = sitk.ReadImage(str(root / "confidence" / f"{id}_confidence.nii.gz"))
        np.testing.assert_array_equal(sitk.GetArrayFromImage(image), probs.max(0))
        stored = sitk.ReadImage(str(source.cases[0].label))
        assert image.GetDirection() == pytest.approx(stored.GetDirection())
    assert len(temperatures) == len(cases)


def test_maps_that_are_written_are_kept(audited, monkeypatch):
    root, source, _ = audited
    write_audited(root, source, ["confidence"])
    monkeypatch.setattr(applying, "write_confidence", None)  # not to be called
    write_audited(root, source, ["confidence"])
    with pytest.raises(UserError, match="unknown map to write 'labels'"):
        write_audited(root, source, ["labels"])


def test_the_default_calibrator_of_a_real_audit(audited, tmp_path):
    root, _, _ = audited
    (case,) = made_cases(1, seed=5, sharpness=1.8, shape=(6, 16, 14))
    new = predicted_folder(tmp_path / "new", [case])
    applied = apply(root, new, out=tmp_path / "out")
    about = json.loads((root / "audit.json").read_text())
    assert applied.calibrator == about["calibrator"]
    source = open_source(new, labels=write_labels(tmp_path / "labels", [case]))
    truth = sitk.GetArrayFromImage(sitk.ReadImage(str(source.cases[0].label))).astype(int)
    nll = []
    for probs in (case.probs, read_probs(tmp_path / "out" / "case_000.npz")):
        nll.append(-np.log(np.take_along_axis(probs, truth[None], 0)).mean())
    assert nll[1] < nll[0]
