"""A notebook: paths as text, NumPy arrays, figures of what metrics give."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import segcal
from segcal import calibrators, figures, folders, losses, metrics
from segcal.data.prepare import prepare
from segcal.types import UserError

TOUR = Path(__file__).parents[1] / "examples" / "tour.ipynb"


def cells_of(notebook):
    content = json.loads(notebook.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def tour(tmp_path_factory):
    """The notebook, run from top to bottom in a new folder; the last value of each cell."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("tour")
    names, values = {"__name__": "__main__"}, []
    os.chdir(folder)
    try:
        for cell in cells_of(TOUR):
            *lines, last = cell.splitlines()
            is_value = not last.startswith((" ", "import ", "from ")) and " = " not in last
            exec("\n".join(lines if is_value else [*lines, last]), names)
            values.append(eval(last, names) if is_value else None)
    finally:
        os.chdir(before)
    return folder, names, values


def test_the_tour_draws_and_calibrates(tour):
    _, names, values = tour
    assert sum(isinstance(value, Figure) for value in values) == 3
    nll = [metrics.nll(names[each]).item() for each in ("before", "after")]
    assert all(map(math.isfinite, nll))
    # ts2 is fitted on other cases, by this very score
    assert nll[1] < 1.05 * nll[0]


def test_figures_show_themselves_in_a_notebook(tour):
    """Without pyplot, IPython knows nothing of figures but this method."""
    figure = next(value for value in tour[2] if isinstance(value, Figure))
    picture, size = figure._repr_png_()
    assert picture.startswith(b"\x89PNG")
    n_pixels = np.frombuffer(picture[16:24], ">u4")  # the header of PNG: width, height
    assert n_pixels.tolist() == pytest.approx([2 * size["width"], 2 * size["height"]], abs=1)


def test_what_a_cell_ends_with_prints_in_a_line(tour):
    """Not every weight of a network, voxel of a case or record of a data set."""
    names = tour[1]
    for value in (names["run"], names["case"], names["data"]):
        assert len(repr(value)) < 120
    assert repr(names["run"]).endswith("ce': unet on phantom, best weights)")


def test_the_tour_fits_a_screen_and_has_no_outputs():
    content = json.loads(TOUR.read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    assert max(len(cell["source"]) for cell in code) <= 15


def test_paths_may_be_text(tour, tmp_path):
    folder, names, _ = tour
    run, data = str(folder / "tour/runs/ce"), str(folder / "tour/cases/phantom")
    assert (
        prepare("phantom", None, str(folder / "tour/cases"), n_cases=20, shape=(8, 48, 48)).fresh
        is False
    )
    predictor = segcal.open_predictor(run, data=data)
    segcal.evaluate(predictor)
    results = segcal.read_results(run)
    assert len(results.runs) == len(segcal.read_results([run]).runs) == 1
    drawn = segcal.save_figures(results, str(tmp_path / "figures"), keys=["reliability"])
    assert Path(drawn[0]["file"]).is_file()
    settings = names["settings"].model_copy(update={"data": data})
    info = segcal.train(settings, run)  # finished, so that nothing is done
    assert info["status"] == "finished"
    image = tmp_path / "scan.nii.gz"
    folders.write_image(image, _image(predictor.case(predictor.ids("test")[0]).image[:, 0]))
    summaries = segcal.predict(predictor, str(image), str(tmp_path / "predictions"))
    assert list(summaries) == ["scan"]
    assert (tmp_path / "predictions" / "scan_seg.nii.gz").is_file()


def _image(volume):
    import SimpleITK as sitk

    return sitk.GetImageFromArray(volume.numpy())


def test_calibrators_are_fitted_on_what_a_run_gives(tour):
    run = tour[1]["run"]
    case = run.case(run.ids("val")[0])
    batches = [(run.logits(case.image), case.reference, case.image)]
    fitted = calibrators.fit("lts", lambda: batches, epochs=1, least_steps=2)
    assert fitted.facts()["nll_after"] <= fitted.facts()["nll_before"]


def random_case():
    """Logits (N, K, H, W) and labels of three classes."""
    return torch.randn(2, 3, 9, 8) * 2, torch.randint(0, 3, (2, 9, 8))


# Arrays
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [">f4", "<f4", "f8"])
def test_metrics_of_arrays_are_those_of_tensors(kind):
    logits, labels = random_case()
    array, truth = logits.numpy().astype(kind), labels.numpy().astype(np.uint16)
    array.flags.writeable = False
    same = torch.from_numpy(array.astype(kind.replace(">", "<")))
    ours, theirs = (metrics.reliability(x, y) for x, y in ((array, truth), (same, labels)))
    for a, b in zip(ours.parts, theirs.parts, strict=True):
        assert torch.equal(a, b)
    probs = same.softmax(1)
    pairs = [
        (metrics.reliability_of_probs(x, y).nll)
        for x, y in ((probs.numpy(), truth), (probs, labels))
    ]
    assert torch.equal(*pairs)
    n = logits.shape[1]
    maps = metrics.label_map(array), metrics.label_map(same)
    assert torch.equal(*maps)
    options = {"n_classes": n}
    assert torch.equal(
        metrics.dice(maps[0].numpy(), truth, **options), metrics.dice(maps[1], labels, **options)
    )


def test_losses_say_that_they_take_tensors_only():
    logits, labels = random_case()
    for arrays in ((logits.numpy(), labels), (logits, labels.numpy())):
        with pytest.raises(UserError, match="must be a torch tensor; got numpy.ndarray"):
            losses.ce(*arrays)
    with pytest.raises(UserError, match="must be a torch tensor; got numpy.ndarray"):
        losses.Criterion("mbls")(logits.numpy(), labels.numpy())


# Figures
# ------------------------------------------------------------------------------


def test_figures_take_what_metrics_give():
    logits, labels = random_case()
    bins = metrics.reliability(logits, labels)
    stored = {name: getattr(bins.top, name).numpy() for name in ("count", "conf", "hit")}
    given = (bins, bins.top, stored)
    drawn = [figures.reliability({"mine": each}) for each in given]
    texts = [[text.get_text() for text in figure.axes[0].texts] for figure in drawn]
    assert texts[0] == texts[1] == texts[2] == [f"ECE {metrics.ece(bins):.3f}"]
    assert [figure.axes[0].get_title() for figure in drawn] == ["mine"] * 3
    per_class = figures.reliability_per_class({"mine": bins})
    titles = [ax.get_title() for ax in per_class.axes if ax.get_title()]
    assert titles == [f"mine: class {k}" for k in range(1, logits.shape[1])]
    areas = figures.risk_coverage({"a": bins, "b": bins.top}).legends[0].get_texts()
    assert [text.get_text() for text in areas] == [
        f"{key}: {figures.aurc(stored):.4f}" for key in "ab"
    ]


def test_a_single_reliability_draws_without_a_name():
    bins = metrics.reliability(*random_case())
    assert figures.reliability(bins).axes[0].get_title() == ""


def test_bands_draw():
    logits = torch.randn(3, 4, 12, 12)
    bands = metrics.bands(logits, torch.randint(0, 3, (4, 12, 12)), (1.0, 1.0, 1.0))
    figure = figures.distance({"mine": bands}, classes=["a", "b"])
    assert [ax.get_title() for ax in figure.axes if ax.get_title()] == ["predicted class", "a", "b"]


def test_before_and_after_have_the_ece_of_each():
    logits, labels = random_case()
    pair = [metrics.reliability(x, labels) for x in (3 * logits, logits)]
    figure = figures.before_and_after(*pair, name="ts")
    assert [ax.get_title() for ax in figure.axes[:2]] == ["before", "after ts"]
    shown = [ax.texts[0].get_text() for ax in figure.axes[:2]]
    assert shown == [f"ECE {metrics.ece(bins):.3f}" for bins in pair]
    by_class = figures.before_and_after(*pair, name="ts", classes=["a", "b"])
    titles = [ax.get_title() for ax in by_class.axes if ax.get_title()]
    assert titles == ["a, before", "a, after ts", "b, before", "b, after ts"]


def test_the_overlay_is_clear_where_the_network_is_sure():
    probs = np.zeros((2, 6, 6))
    probs[1] = 1.0
    probs[:, 0, 0] = 0.5
    figure = figures.confidence_overlay(np.ones((6, 6)), probs, np.ones((6, 6), int))
    drawn = [image.get_array() for image in figure.axes[0].get_images()]
    alpha = drawn[-1][..., 3]
    assert alpha[0, 0] > 0.5
    assert (np.delete(alpha.ravel(), 0) == 0).all()
    assert {"prediction", "reference"} <= {ax.get_title() for ax in figure.axes}


def test_the_overlay_refuses_logits_and_other_shapes():
    image, probs = np.ones((6, 6)), np.full((2, 6, 6), 0.5)
    with pytest.raises(UserError, match="must be probabilities"):
        figures.confidence_overlay(image, 4 * probs)
    with pytest.raises(UserError, match=r"got \(5, 6\) and \(2, 6, 6\)"):
        figures.confidence_overlay(image[1:], probs)


def test_the_names_of_figures_are_listed():
    assert {"reliability", "confidence_overlay", "before_and_after"} <= set(dir(figures))
    assert all(getattr(figures, name) is not None for name in dir(figures))
