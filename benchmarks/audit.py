"""Audits of stored predictions: a large CT, many small cases, and fits that leave one out.

`python -m benchmarks.audit ct FILE LABEL` prints the peak megabytes of scoring one file,
`python -m benchmarks.audit cases FOLDER N` those of an audit of the first N cases."""

from __future__ import annotations

import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import fiducio
import numpy as np
import SimpleITK as sitk
import torch
from numpy.typing import NDArray

from benchmarks.measure import PeakMemory, Row, peak_in_new_process, times
from segcal import calibrators
from segcal.auditing import audit
from segcal.auditing.crossfit import Table, out_of_fold
from segcal.auditing.scored import first_pass, problems
from segcal.predictors.files import open_source
from segcal.predictors.reading import read_case
from segcal.predictors.source import Source, SourceCase
from segcal.scoring.kept import Kept, curves_of

Map = NDArray[np.float32]
SPACING = 2.0, 1.5, 1.5


def make_ct(folder: Path, n_classes: int, shape: tuple[int, int, int]) -> tuple[Path, Path]:
    """Probabilities of spheres with soft outlines, one per class, as nnU-Net stores them."""
    rng = np.random.default_rng(0)
    total = np.zeros(shape, np.float32)
    label = np.zeros(shape, np.uint8)
    for k in range(1, n_classes):
        probs = _organ(k, n_classes, shape)
        total += probs
        label[probs > rng.uniform(0.3, 0.7)] = k  # a rater's outline is smooth
    folder.mkdir(parents=True, exist_ok=True)
    path, reference = folder / "ct.npz", folder / "labels" / "ct.nii.gz"
    reference.parent.mkdir(exist_ok=True)
    image = sitk.GetImageFromArray(label)
    image.SetSpacing(SPACING[::-1])
    sitk.WriteImage(image, str(reference))
    about = {"descr": "<f4", "fortran_order": False, "shape": (n_classes, *shape)}
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("probabilities.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_1_0(file, about)
        file.write((1 - total).astype("<f4").tobytes())
        for k in range(1, n_classes):
            file.write(_organ(k, n_classes, shape).tobytes())
    return path, reference


def _organ(k: int, n_classes: int, shape: tuple[int, int, int]) -> Map:
    """The probability of a sphere that does not touch the others, with noise far away."""
    angle = 2 * np.pi * k / (n_classes - 1)
    centre = np.array([0.5, 0.5 + 0.32 * np.sin(angle), 0.5 + 0.32 * np.cos(angle)])
    axes = [np.arange(n, dtype=np.float32) - c * n for n, c in zip(shape, centre, strict=True)]
    z, y, x = np.ix_(*axes)
    radius = 0.065 * shape[1]
    distance = np.sqrt((z * shape[1] / shape[0] / 1.5) ** 2 + y**2 + x**2) - radius
    noise = np.random.default_rng(k).random(shape, np.float32)
    return (1 / (1 + np.exp((distance / 3 + noise).clip(-80, 80)))).astype("<f4")


def decompressed(path: Path) -> None:
    """Merely read the member of the archive."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        while file.read(1 << 22):
            pass


def ct_rows(folder: Path, n_classes: int, shape: tuple[int, int, int]) -> Iterator[Row]:
    path, reference = make_ct(folder, n_classes, shape)
    source = open_source(folder, labels=reference.parent)
    what = f"audit of a CT ({n_classes}, {', '.join(map(str, shape))}), first pass"
    ours, theirs = times(
        lambda: first_pass(source, source.cases[0]), lambda: decompressed(path), repeats=1
    )
    detail = f"{ours:.3g} s / {theirs:.3g} s"
    yield Row(what, "decompressing it, time", ours / theirs, 2.5, detail)
    peak = peak_in_new_process("benchmarks.audit", "ct", str(folder))
    size = n_classes * np.prod(shape) * 4 / 1e6
    yield Row("the same", "1.5 GB", peak, 1500.0, f"{size:.0f} MB unpacked", unit=" MB")


def make_cases(folder: Path, n: int, shape: tuple[int, int, int]) -> Source:
    """Cases of two classes, each an ellipsoid, from logits that are 1.6 times too large."""
    (folder / "labels").mkdir(parents=True, exist_ok=True)
    z, y, x = np.ix_(*(np.linspace(-1, 1, size) for size in shape))
    for i in range(n):
        rng = np.random.default_rng(i)
        radii = rng.uniform(0.5, 0.8, 3)
        away = np.sqrt((z / radii[0]) ** 2 + (y / radii[1]) ** 2 + (x / radii[2]) ** 2)
        half = 2 * np.sign(y) * np.ones(shape)
        logits = np.stack([5 * (away - 1), half, -half]) + rng.normal(0, 1, (3, *shape))
        probs = np.exp(logits) / np.exp(logits).sum(0)
        label = (probs.cumsum(0) < rng.random(shape)).sum(0).clip(0, 2).astype(np.uint8)
        sharp = probs**1.6 / (probs**1.6).sum(0)
        np.savez_compressed(folder / f"case_{i:03d}.npz", probabilities=sharp.astype(np.float32))
        reference = folder / "labels" / f"case_{i:03d}.nii.gz"
        sitk.WriteImage(sitk.GetImageFromArray(label), str(reference))
    return open_source(folder, labels=folder / "labels")


def case_rows(folder: Path, n: int, few: int, shape: tuple[int, int, int]) -> Iterator[Row]:
    source = make_cases(folder, n, shape)
    yield audit_row(folder, n, shape)
    peaks = []
    for m in (few, n):
        peaks.append(peak_in_new_process("benchmarks.audit", "cases", str(folder), str(m)))
    detail = f"peak {peaks[0]:.0f} MB for {few}, {peaks[1]:.0f} MB for {n}"
    growth = max(0.0, peaks[1] - peaks[0])
    yield Row(f"first pass over {n} cases: growth", f"over {few}", growth, 5.0, detail, unit=" MB")
    yield from fit_rows(source)


def audit_row(folder: Path, n: int, shape: tuple[int, ...]) -> Row:
    """Both passes in processor time: of one thread, whatever else the machine does."""
    start = time.process_time()
    audit(folder, folder / "labels", out=folder.parent / "audit", calibrators=("ts",), report=False)
    taken = time.process_time() - start
    what = f"audit of {n} cases (3, {', '.join(map(str, shape))}) with TS"
    detail = "processor time of both passes, without the report"
    return Row(what, "two minutes", taken, 120.0, detail, unit=" s")


def fit_rows(source: Source) -> Iterator[Row]:
    """TS that leaves out a patient each time, against one plain fit and against refitting."""
    kept = [_kept(source, case) for case in source.cases]

    def batches() -> Iterator[tuple[torch.Tensor, ...]]:
        for each in kept:
            yield each[0], each[1], each[0]

    def left_out() -> None:
        facts = {}
        for case, (_, _, voxels) in zip(source.cases, kept, strict=True):
            facts[case.id] = curves_of(voxels)
        out_of_fold(source.cases, [Table.of(source.cases, facts)], ("ts",))

    ours, plain = times(left_out, lambda: calibrators.fit("ts", batches), repeats=1)
    detail = f"{ours:.3g} s / {plain:.3g} s"
    what = f"`ts` for each of {len(kept)} cases on the others"
    yield Row(what, "one plain fit", ours / plain, 3.0, detail)

    start = time.perf_counter()
    peer = fiducio.TemperatureScaling()
    peer.fit(torch.cat([each[0] for each in kept]), torch.cat([each[1] for each in kept]))
    theirs = (time.perf_counter() - start) * len(kept)
    detail = f"{ours:.3g} s / {theirs:.3g} s ({len(kept)} times one measured)"
    yield Row(what, "fiducio fitted again for each", ours / theirs, 0.01, detail)


def _kept(source: Source, case: SourceCase) -> tuple[torch.Tensor, torch.Tensor, Kept]:
    """A case as logits (D, K, H, W) with labels, and its kept voxels."""
    data = read_case(source, case)
    assert data.label is not None
    logits = torch.from_numpy(data.maps.stacked()).clamp_min(1e-38).log().movedim(0, 1)
    (voxels,) = problems(source, case, data, data.label)
    return logits.contiguous(), torch.from_numpy(data.label).long(), voxels


def rows(
    n_classes: int = 14,
    ct: tuple[int, int, int] = (200, 512, 512),
    n: int = 260,
    few: int = 10,
    shape: tuple[int, int, int] = (36, 50, 35),
) -> Iterator[Row]:
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        yield from ct_rows(Path(folder) / "ct", n_classes, ct)
        yield from case_rows(Path(folder) / "cases", n, few, shape)


def main(what: str, folder: str, n: str = "1") -> None:
    torch.set_num_threads(1)
    source = open_source(Path(folder), labels=Path(folder) / "labels")
    with PeakMemory() as memory:
        for case in source.cases[: int(n)]:
            first_pass(source, case)
    print(memory.megabytes + (memory.start if what == "ct" else 0.0))


if __name__ == "__main__":
    main(*sys.argv[1:])
