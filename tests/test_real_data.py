"""The paper's hippocampus data, where it lies beside the project (or in SEGCAL_REAL_DATA)."""

import os
from pathlib import Path

import numpy as np
import pytest

from segcal.data.prepare import prepare

BESIDE = Path(os.environ.get("SEGCAL_REAL_DATA") or Path(__file__).parents[2] / "shared" / "data")
HIPPOCAMPUS = BESIDE / "Task04_Hippocampus"
real = pytest.mark.skipif(
    not HIPPOCAMPUS.is_dir(),
    reason=f"no real data in {BESIDE}; set SEGCAL_REAL_DATA to test with it",
)


@real
@pytest.mark.real
def test_hippocampus_prepares_to_the_papers_split(tmp_path):
    cases = prepare("hippocampus", HIPPOCAMPUS, tmp_path, workers=2).cases
    assert [len(cases.split(name)) for name in ("train", "val", "test")] == [185, 25, 50]
    assert cases.classes == ("Anterior", "Posterior")
    for id in cases.ids[::20]:
        image, label = cases.image(id), cases.label(id)
        assert image.min() == 0
        assert image.max() == 1
        assert set(np.unique(label)) == {0, 1, 2}
        assert cases.case(id)["spacing"] == [1.0, 1.0, 1.0]
    assert not prepare("hippocampus", HIPPOCAMPUS, tmp_path).fresh
