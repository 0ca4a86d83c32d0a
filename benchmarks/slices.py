"""Slices in random order from prepared cases, against opening an HDF5 file and reading the volume
for each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import Row, time_row
from segcal import folders
from segcal.data.slices import Slices

Shape = tuple[int, int, int]


def write(root: Path, n_cases: int, shape: Shape) -> None:
    """The same cases in both formats."""
    rng = np.random.default_rng(0)
    ids = [f"case{i}" for i in range(n_cases)]
    for id in ids:
        image = rng.random((shape[0], 1, *shape[1:]), dtype=np.float32)
        label = rng.integers(0, 4, shape, dtype=np.uint8)
        np.save(folders.array_path(root, id, "image"), image)
        np.save(folders.array_path(root, id, "label"), label)
        with h5py.File(root / f"{id}.h5", "w") as file:
            file["image"], file["label"] = image, label
    info = {
        "format": folders.FORMAT,
        "name": "bench",
        "classes": ["A", "B", "C"],
        "channels": ["MR"],
        "cases": {id: {} for id in ids},
        "splits": [{"train": ids, "val": [], "test": []}],
    }
    folders.write_json(root / "cases.json", info)


def by_h5py(root: Path, depth: int, index: int) -> tuple[Tensor, Tensor]:
    """As training code for slices of HDF5 volumes usually does: whole arrays with [:], then one
    slice of them.
    """
    case, s = divmod(index, depth)
    with h5py.File(root / f"case{case}.h5", "r") as file:
        image, label = file["image"][:], file["label"][:]
    return torch.from_numpy(image[s]), torch.from_numpy(label[s]).long()


def rows(
    n_cases: int = 8, shape: Shape = (30, 192, 192), n_drawn: int = 100, repeats: int = 7
) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, n_cases, shape)
        slices = Slices(folders.open_cases(root), "train")
        order = np.random.default_rng(1).choice(len(slices), n_drawn, replace=False).tolist()
        for index in order:
            theirs_here = by_h5py(root, shape[0], index)
            torch.testing.assert_close(slices[index], theirs_here, rtol=0, atol=0)
        what = f"{n_drawn} random slices of {n_cases} cases {shape}"

        def ours() -> None:
            for index in order:
                slices[index]

        def theirs() -> None:
            for index in order:
                by_h5py(root, shape[0], index)

        yield time_row(what, "h5py, whole volumes", ours, theirs, 0.05, repeats)
