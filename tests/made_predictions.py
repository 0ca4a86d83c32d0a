"""Predictions as other tools store them, made up: folders of nnU-Net, arrays and images.

Labels are drawn from the honest probabilities, and stored are those of logits `sharpness` times the
honest ones. So the true temperature is `sharpness`: 1 is calibrated, more is overconfident."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import SimpleITK as sitk
from scipy.ndimage import gaussian_filter

CLASSES = ("anterior", "posterior")
SPACING = (2.0, 0.8, 0.7)  # z, y, x
PKL = b"cos\nsystem\n(S'touch %s'\ntR."  # runs a command if anyone unpickles it


@dataclass(frozen=True)
class Made:
    """One case: its stored probabilities (K, z, y, x), and a label (z, y, x) drawn from honest
    ones."""

    id: str
    probs: np.ndarray
    label: np.ndarray


def made_case(id, *, seed, n_classes=2, shape=(6, 20, 18), sharpness=1.0, margin=0):
    """A softmax case; in the outer `margin` voxels, p(background) is 1, as outside a crop."""
    rng = np.random.default_rng([seed, *id.encode()])
    logits = 2.5 * _smooth(rng, (n_classes + 1, *shape))
    logits[0] += 2 * _from_centre(shape)
    honest, stored = _softmax(logits), _softmax(sharpness * logits)
    draw = rng.random(shape)
    label = (honest.cumsum(0) < draw).sum(0).clip(0, n_classes)
    outside = _margin(shape, margin)
    stored[:, outside], label[outside] = 0, 0
    stored[0, outside] = 1
    return Made(id, stored.astype(np.float32), label.astype(np.uint8))


def made_regions(id, *, seed, shape=(6, 20, 18), sharpness=1.0, margin=0):
    """A case of two nested regions, `whole` (labels 1 and 2) and `core` (label 2), by sigmoids."""
    rng = np.random.default_rng([seed, *id.encode()])
    fields = 2.5 * _smooth(rng, (2, *shape))
    whole = _sigmoid(fields[0] + 1 - 2 * _from_centre(shape))
    honest = np.stack([whole, whole * _sigmoid(fields[1])])
    draw = rng.random(shape)
    label = (draw < honest[0]).astype(int) + (draw < honest[1])
    stored = _sigmoid(sharpness * np.log(honest / (1 - honest)))
    outside = _margin(shape, margin)
    stored[:, outside], label[outside] = 0, 0
    return Made(id, stored.astype(np.float32), label.astype(np.uint8))


def _smooth(rng, shape):
    fields = np.stack([gaussian_filter(part, 1.5) for part in rng.normal(size=shape)])
    return fields / fields.std()


def _from_centre(shape):
    axes = np.meshgrid(*(np.linspace(-1.5, 1.5, n) for n in shape), indexing="ij")
    return sum(axis**2 for axis in axes) - 1


def _margin(shape, width):
    outside = np.ones(shape, bool)
    outside[tuple(slice(width, n - width) for n in shape)] = False
    return outside if width else np.zeros(shape, bool)


def _softmax(logits):
    powers = np.exp(logits - logits.max(0))
    return powers / powers.sum(0)


def _sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def made_cases(n_cases=6, *, seed=0, make=made_case, **settings):
    """Cases `case_000`, `case_001` ...; the second has another shape than the others."""
    shape = settings.pop("shape", (6, 20, 18))
    cases = []
    for i in range(n_cases):
        size = (shape[0] + 1, *shape[1:]) if i == 1 else shape
        cases.append(make(f"case_{i:03d}", seed=seed, shape=size, **settings))
    return cases


def image_of(array, *, spacing=SPACING, origin=(-40.0, 25.5, 10.25), tilt=0.1):
    """An array (z, y, x), or (K, z, y, x) as 4D, as an image with tilted axes."""
    cos, sin = np.cos(tilt), np.sin(tilt)
    parts = []
    for values in array.reshape(-1, *array.shape[-3:]):
        part = sitk.GetImageFromArray(np.ascontiguousarray(values))
        part.SetSpacing(spacing[::-1])
        part.SetOrigin(origin)
        part.SetDirection((cos, -sin, 0, sin, cos, 0, 0, 0, 1))
        parts.append(part)
    return sitk.JoinSeries(parts) if array.ndim == 4 else parts[0]


def write_image(path, array, **geometry):
    """Write an array as an image file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sitk.WriteImage(image_of(array, **geometry), str(path))


def write_labels(folder, cases, *, ending=".nii.gz", **geometry):
    """The references of cases, as `<case>.nii.gz`."""
    for case in cases:
        write_image(folder / f"{case.id}{ending}", case.label, **geometry)
    return folder


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=4))


def dataset_json(*, classes=CLASSES, regions=False, ignore=None, ending=".nii.gz"):
    """What nnU-Net's `dataset.json` says, of classes or of the regions of `made_regions`."""
    labels = {"background": 0} | {name: k for k, name in enumerate(classes, start=1)}
    info = {"channel_names": {"0": "T1"}, "labels": labels, "file_ending": ending}
    if regions:
        info |= {"labels": {"background": 0, "whole": [1, 2], "core": [2]}}
        info |= {"regions_class_order": [1, 2]}
    if ignore is not None:
        info["labels"]["ignore"] = ignore
    return info


def segmentation_of(case, *, regions=False):
    """The label map that nnU-Net makes from probabilities."""
    if not regions:
        return case.probs.argmax(0).astype(np.uint8)
    out = np.zeros(case.label.shape, np.uint8)
    for k, label in enumerate((1, 2)):
        out[case.probs[k] > 0.5] = label
    return out


def write_nnunet(
    base,
    cases,
    *,
    n_folds=2,
    dataset="Dataset004_Hippocampus",
    model="nnUNetTrainer__nnUNetPlans__2d",
    regions=False,
    ignore=None,
    classes=CLASSES,
    reader="SimpleITKIO",
    preprocessed=True,
    summary=True,
    key="probabilities",
    marker=None,
):
    """`base/nnUNet_{raw,preprocessed,results}` with the held-out cases of each fold, as nnU-Net v2
    leaves them after `--npz`; returns the model folder.

    Each npz has a hostile `.pkl` beside it, which makes the file `marker` if it is opened."""
    base = Path(base)
    root = base / "nnUNet_results" / dataset / model
    info = dataset_json(classes=classes, regions=regions, ignore=ignore)
    write_json(root / "dataset.json", info)
    configuration = model.split("__")[-1]
    plans = {"dataset_name": dataset, "plans_name": "nnUNetPlans", "image_reader_writer": reader}
    plans["configurations"] = {configuration: {"spacing": list(SPACING)}}
    write_json(root / "plans.json", plans)
    held_out = [cases[fold::n_folds] for fold in range(n_folds)]
    raw = write_labels(base / "nnUNet_raw" / dataset / "labelsTr", cases)
    for case in cases:
        write_image(raw.parent / "imagesTr" / f"{case.id}_0000.nii.gz", case.label.astype("f4"))
    if preprocessed:
        folder = base / "nnUNet_preprocessed" / dataset
        truths = write_labels(folder / "gt_segmentations", cases)
        ids = [[case.id for case in part] for part in held_out]
        splits = []
        for fold in range(n_folds):
            train = [id for other in range(n_folds) if other != fold for id in ids[other]]
            splits.append({"train": sorted(train), "val": ids[fold]})
        write_json(folder / "splits_final.json", splits)
    for fold, part in enumerate(held_out):
        place = root / f"fold_{fold}" / "validation"
        place.mkdir(parents=True)
        entries = []
        for case in part:
            write_npz(place / f"{case.id}.npz", case.probs, key=key)
            command = PKL % str(marker or place / "unpickled").encode()
            (place / f"{case.id}.pkl").write_bytes(command)
            stored = place / f"{case.id}.nii.gz"
            write_image(stored, segmentation_of(case, regions=regions))
            truth = (truths if preprocessed else raw) / f"{case.id}.nii.gz"
            names = {"reference_file": str(truth), "prediction_file": str(stored)}
            entries.append({"metrics": {"1": {"Dice": 0.9}}, **names})
        if summary:
            content = {"foreground_mean": {"Dice": 0.9}, "mean": {"1": {"Dice": 0.9}}}
            write_json(place / "summary.json", content | {"metric_per_case": entries})
    return root


def write_npz(path, probs, *, key="probabilities"):
    """An array as nnU-Net stores it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **{key: probs})


def write_arrays(folder, cases, *, ending=".npz"):
    """`<case>.npz` or `<case>.npy`."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        if ending == ".npz":
            write_npz(folder / f"{case.id}.npz", case.probs)
        else:
            np.save(folder / f"{case.id}.npy", case.probs)
    return folder


def write_volumes(folder, cases, *, ending=".nii.gz", vector=False):
    """A 4D image per case, or one with a vector per voxel."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        image = image_of(case.probs)
        if vector:
            image = sitk.Compose([image_of(part) for part in case.probs])
        sitk.WriteImage(image, str(folder / f"{case.id}{ending}"))
    return folder


def write_monai(folder, cases, *, postfix="trans"):
    """What MONAI's `SaveImaged` writes: a folder per case, with a 4D image."""
    for case in cases:
        (folder / case.id).mkdir(parents=True)
        image = image_of(case.probs)
        sitk.WriteImage(image, str(folder / case.id / f"{case.id}_{postfix}.nii.gz"))
    return folder


def write_class_maps(folder, cases, *, words=("1", "2"), background=False):
    """`<case>_<class>.nii.gz`, a 3D image per foreground class."""
    for case in cases:
        if background:
            write_image(folder / f"{case.id}_background.nii.gz", case.probs[0])
        for word, part in zip(words, case.probs[1:], strict=True):
            write_image(folder / f"{case.id}_{word}.nii.gz", part)
    return folder


def write_confidences(folder, cases):
    """`<case>_confidence.nii.gz` beside the label map `<case>_seg.nii.gz`."""
    for case in cases:
        write_image(folder / f"{case.id}_confidence.nii.gz", case.probs.max(0))
        write_image(folder / f"{case.id}_seg.nii.gz", segmentation_of(case))
    return folder


def write_segcal(folder, cases, *, classes=CLASSES):
    """The names that `segcal predict --probabilities` gives; tests compare with the real ones."""
    write_confidences(folder, cases)
    for case in cases:
        for k, (word, part) in enumerate(zip(("background", *classes), case.probs, strict=True)):
            write_image(folder / f"{case.id}_prob_{k}_{word}.nii.gz", part)
        write_json(folder / f"{case.id}_summary.json", {"classes": {name: {} for name in classes}})
    return folder
