"""Functions that draw: what is seen is what was given, in one look, without overlaps."""

import itertools
import re
import subprocess
import sys
from dataclasses import replace

import matplotlib
import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
import torch
from made_runs import METHODS, made_bands, made_bins
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.contour import QuadContourSet

from segcal import figures
from segcal.data.catalog import class_colours
from segcal.figures import calibration, layout, looks, values
from segcal.figures.looks import look_of
from segcal.folders import save_figure
from segcal.losses import LOSSES
from segcal.metrics import METRICS, ece, reliability
from segcal.networks import NETWORKS
from segcal.types import UserError

LOOKS = {
    method: look_of(method, label=method.replace("mbls", "MbLS").replace("_", " "))
    for method in METHODS
}
LOOKS["mbls l2"] = look_of("mbls", variant=(("penalty", "l2"),), label="MbLS penalty l2")
for network, method in itertools.product(("attention_unet", "unetpp", "transunet"), ("ce", "mbls")):
    text = f"{network} {method}".replace("mbls", "MbLS").replace("_", " ")
    LOOKS[f"{network} {method}"] = look_of(method, network, label=text)
KEYS = list(LOOKS)
CLASSES = [f"left adrenal gland {i}" if i % 3 else f"organ {i}" for i in range(1, 13)]
COLOURS = class_colours(16)


def arrays(entry):
    return {
        kind: {k: np.array(v) for k, v in entry[kind].items()}
        for kind in ("top", "per_class", "fine")
    }


@pytest.fixture(scope="module")
def bins():
    rng = np.random.default_rng(0)
    return {
        key: arrays(made_bins(rng, rng.uniform(0.7, 2), 4, 3000)["sets"]["near"]) for key in KEYS
    }


def cases(keys, middle, n=20, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {key: middle + 0.01 * i + rng.normal(0, 0.02, n) for i, key in enumerate(keys)}
    )


def bands_of(keys, n_classes, seed=0):
    """Voxels in bands by chance, whose probabilities are right."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(n_classes), 4000)
    truth = (probs.cumsum(1) > rng.random((4000, 1))).argmax(1)
    arrays = {name: np.array(v) for name, v in made_bands(rng, probs, truth).items()}
    return dict.fromkeys(keys, arrays)


def looks_of(keys):
    return {key: LOOKS[key] for key in keys}


# What is drawn
# ------------------------------------------------------------------------------


def drawn_texts(figure, monkeypatch):
    """Every text that is really drawn, with its box in pixels."""
    seen = []
    draw = RendererAgg.draw_text

    def record(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
        seen.append(mtext)
        draw(self, gc, x, y, s, prop, angle, ismath, mtext)

    monkeypatch.setattr(RendererAgg, "draw_text", record)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return {
        text: text.get_window_extent(canvas.get_renderer()) for text in seen if text is not None
    }


def check_layout(figure, monkeypatch):
    """Inside the page, on white, in letters of at least 6 pt, and no two texts on each other."""
    boxes = drawn_texts(figure, monkeypatch)
    assert figure.get_size_inches()[0] <= 180 / 25.4 + 1e-9
    assert to_hex(figure.get_facecolor()) == "#ffffff"
    assert np.min([box.min for box in boxes.values()]) > -1
    assert np.all(np.max([box.max for box in boxes.values()], axis=0) < figure.bbox.max + 1)
    assert min(text.get_fontsize() for text in boxes) >= 6
    upright = {
        text: box for text, box in boxes.items() if text.get_rotation() % 90 == 0
    }  # slanted ones have wide boxes
    for (a, one), (b, two) in itertools.combinations(upright.items(), 2):
        common = np.minimum(one.max, two.max) - np.maximum(one.min, two.min)
        assert not (common > 1.5).all(), f"{a.get_text()!r} lies on {b.get_text()!r}"


def all_text(figure):
    return "\n".join(
        text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_visible()
    )


def lines(ax):
    return {(line.get_color(), line.get_marker()): line.get_xydata() for line in ax.lines}


def look(key):
    return LOOKS[key].colour, LOOKS[key].marker


SEVERITIES = (0, 0.01, 0.02, 0.03, 0.04, 0.05)


def noise_table(keys, kinds=("Gaussian noise",)):
    rows = itertools.product(kinds, enumerate(keys), SEVERITIES)
    return pd.DataFrame(
        [
            {
                "kind": kind,
                "severity": s,
                "contender": key,
                "dice": 0.9 - 0.01 * i - 2 * s,
                "ece": 0.03 + 0.002 * i + s,
            }
            for kind, (i, key), s in rows
        ]
    )


def tried_table(keys, seeds=1):
    rng = np.random.default_rng(1)
    rows = itertools.product(keys, (5, 8, 10), range(seeds))
    return pd.DataFrame(
        [
            {"contender": k, "setting": (("margin", m),), "dice": d, "ece": e, "chosen": m == 8}
            for (k, m, _), d, e in zip(
                rows, rng.uniform(0.8, 0.9, 999), rng.uniform(0, 0.1, 999), strict=False
            )
        ]
    )


def logs(keys, n=12, runs=1):
    rng = np.random.default_rng(2)
    epochs = np.arange(n)

    def run():
        dice = 0.8 - 0.3 * np.exp(-epochs) + rng.normal(0, 0.01, n)
        return pd.DataFrame(
            {"epoch": epochs + 1, "val_dice": dice, "val_ece": rng.uniform(0, 0.1, n)}
        )

    return {key: [run() for _ in range(runs)] for key in keys}


def every_figure(keys, classes, bins):
    """One of each for these contenders and classes."""
    named, n = looks_of(keys), len(classes)
    rng = np.random.default_rng(3)
    mine = {key: bins[key] for key in keys}
    per_class = {
        key: {what: np.tile(sums[1:2], (n, 1)) for what, sums in b["per_class"].items()}
        for key, b in mine.items()
    }
    ranks = pd.DataFrame(
        {m: np.arange(len(keys)) + 1.0 for m in ("dice", "asd", "ece", "cece", "rank")}, list(keys)
    )
    image, mask = rng.random((30, 24)), rng.integers(0, n + 1, (30, 24))
    outcomes = {
        key: figures.Outcome(mask, rng.uniform(0.4, 1, mask.shape), b["top"])
        for key, b in mine.items()
    }
    both = {"sum-rank": ranks, "mean case rank": ranks}
    yield "rank_heatmap", figures.rank_heatmap(both, named)
    yield (
        "dice_vs_calibration",
        figures.dice_vs_calibration(cases(keys, 0.8), cases(keys, 0.05, seed=1), named),
    )
    yield "reliability", figures.reliability({k: b["top"] for k, b in mine.items()}, named)
    first = mine[next(iter(keys))]["top"]
    yield "calibrated", figures.before_and_after(first, first, name="TS2")
    yield "reliability_per_class", figures.reliability_per_class(per_class, named, classes)
    yield "distance", figures.distance(bands_of(keys, n + 1), named, classes)
    yield "risk_coverage", figures.risk_coverage({k: b["fine"] for k, b in mine.items()}, named)
    yield (
        "robustness",
        figures.robustness(noise_table(keys, ("Gaussian noise", "Blur", "Gamma")), named),
    )
    yield "sensitivity", figures.sensitivity(tried_table(keys), named)
    yield "learning_curves", figures.learning_curves(logs(keys), named)
    square = rng.normal(0, 3, (n + 1, n + 1))
    yield (
        "mean_logits",
        figures.mean_logits(dict.fromkeys(list(keys)[:2], square), named, ["background", *classes]),
    )
    yield (
        "qualitative",
        figures.qualitative(image, mask, outcomes, named, classes, title="case 1"),
    )


def a_figure():
    return figures.dice_vs_calibration(cases(["ce"], 0.8), cases(["ce"], 0.05), looks_of(["ce"]))


@pytest.mark.parametrize(("keys", "classes"), [(KEYS, CLASSES[:1]), (KEYS[:1], CLASSES)])
def test_nothing_overlaps_or_leaves_the_page(keys, classes, bins, monkeypatch):
    seen = set()
    for name, figure in every_figure(keys, classes, bins):
        try:
            check_layout(figure, monkeypatch)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
        seen.add(name)
    assert seen == set(figures.FIGURES)


def test_the_layout_check_can_fail(monkeypatch):
    figure = a_figure()
    figure.text(0.3, 0.5, "one")
    figure.text(0.3, 0.5, "two")
    with pytest.raises(AssertionError, match="'one' lies on 'two'"):
        check_layout(figure, monkeypatch)


# One look
# ------------------------------------------------------------------------------


def test_looks_tell_contenders_apart_and_methods_keep_their_colour():
    assert len({(look.colour, look.marker, str(look.line)) for look in LOOKS.values()}) == len(KEYS)
    assert {look_of("mbls", network).colour for network in NETWORKS} == {"#D55E00"}
    assert len({(look.line, look.fill) for look in (look_of("ce", n) for n in NETWORKS)}) == 4
    assert LOOKS["mbls l2"].colour != LOOKS["mbls"].colour
    assert LOOKS["mbls"].colour == figures.look_of("mbls", label="another").colour


def test_the_look_of_a_new_loss_follows_from_its_row(monkeypatch):
    known = {(look_of(method).colour, look_of(method).marker) for method in LOSSES}
    monkeypatch.setitem(LOSSES, "a_new_loss", replace(LOSSES["ce"], label="New"))
    new = look_of("a_new_loss")
    assert new.label == "New"
    assert (new.colour, new.marker) == looks.METHOD_LOOKS[len(LOSSES) - 1]
    assert (new.colour, new.marker) not in known


def test_what_is_in_no_table_has_its_name_and_a_look_of_its_own():
    other = look_of("nnU-Net of my group", "nnunet")
    assert other == look_of("nnU-Net of my group", "nnunet")
    assert other.label == "nnU-Net of my group"
    assert other.colour not in {look_of(method).colour for method in LOSSES}
    assert other.line not in {look_of("ce", network).line for network in NETWORKS}
    names = [look_of(f"model {i}") for i in range(10)]
    assert len({(look.colour, look.marker) for look in names}) > 6


# Linear RGB as the two common kinds of colour blindness see it (Viénot, Brettel and Mollon 1999,
# through LMS cones).
TO_LMS = np.array(
    [[17.8824, 43.5161, 4.11935], [3.45565, 27.1554, 3.86714], [0.0299566, 0.184309, 1.46709]]
)
SEEN = {
    "normal": np.eye(3),
    "protan": np.array([[0, 2.02344, -2.52581], [0, 1, 0], [0, 0, 1]]),
    "deutan": np.array([[1, 0, 0], [0.494207, 0, 1.24827], [0, 0, 1]]),
}


def lab(colour, kind):
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.linalg.inv(TO_LMS) @ SEEN[kind] @ TO_LMS @ linear, 0, 1)
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = np.cbrt(to_xyz @ linear / np.array([0.9505, 1, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", SEEN)
def test_colours_differ_for_colour_blind_readers(kind):
    colours = {marker: lab(colour, kind) for colour, marker in looks.METHOD_LOOKS}
    for (a, one), (b, two) in itertools.combinations(colours.items(), 2):
        assert np.linalg.norm(one - two) > 12, (a, b)
    assert (
        np.linalg.norm(lab("#00A000", "deutan") - lab("#B07000", "deutan")) < 12
    )  # what the test would refuse


@pytest.mark.parametrize("kind", SEEN)
def test_classes_look_like_each_other_and_like_methods_to_nobody(kind):
    classes = {colour: lab(colour, kind) for colour in COLOURS[:8]}
    methods = {colour: lab(colour, kind) for colour, _ in looks.METHOD_LOOKS}
    for (a, one), (b, two) in itertools.combinations(classes.items(), 2):
        assert np.linalg.norm(one - two) > 12, (a, b)
    for (a, one), (b, two) in itertools.product(classes.items(), methods.items()):
        assert np.linalg.norm(one - two) > (25 if kind == "normal" else 10), (a, b)


def test_no_bar_of_a_class_has_a_colour():
    square = np.random.default_rng(0).normal(size=(4, 4))
    figure = figures.mean_logits({"ce": square}, looks_of(["ce"]), ["background", *CLASSES[:3]])
    assert {to_hex(bar.get_facecolor()) for bar in figure.axes[0].patches} == {"#ffffff"}


def test_a_class_is_drawn_as_its_legend_says(bins):
    mask = np.arange(12).reshape(3, 4).repeat(3, 0).repeat(3, 1)
    outcome = figures.Outcome(mask, np.ones(mask.shape), bins["ce"]["top"])
    figure = figures.qualitative(mask, mask, {"ce": outcome}, looks_of(["ce"]), CLASSES[:11])
    (legend,) = figure.legends
    ax = next(ax for ax in figure.axes if ax.get_title() == "ce")
    drawn = [
        (to_hex(c.get_edgecolor()[0]), c.get_linestyle()[0][1] is not None) for c in ax.collections
    ]
    told = [
        (to_hex(h.get_edgecolor()), h._dash_pattern[1] is not None) for h in legend.get_patches()
    ]
    assert drawn == told
    assert len(set(drawn)) == 11  # a colour that comes again is dashed
    assert [t.get_text() for t in legend.get_texts()] == CLASSES[:11]


def test_the_same_colour_in_every_figure(bins):
    keys = ["ce", "mbls"]
    for name, figure in every_figure(keys, CLASSES[:2], bins):
        if name in ("rank_heatmap", "mean_logits", "qualitative"):
            continue  # coloured by rank or class
        artists = [
            *figure.findobj(matplotlib.lines.Line2D),
            *figure.findobj(matplotlib.patches.Patch),
        ]
        used = {
            to_hex(a.get_color() if hasattr(a, "get_color") else a.get_facecolor()) for a in artists
        }
        assert {LOOKS[key].colour.lower() for key in keys} <= used, name


def test_users_settings_change_nothing_and_none_are_left_behind():
    before = dict(matplotlib.rcParams)
    plain = a_figure()
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context(
        {"font.size": 30, "axes.labelsize": 30, "xtick.labelsize": 30, "figure.facecolor": "black"}
    ):
        other = a_figure()
        other.draw_without_rendering()
    plain.draw_without_rendering()
    for a, b in zip(
        plain.findobj(matplotlib.text.Text), other.findobj(matplotlib.text.Text), strict=True
    ):
        assert a.get_fontsize() == b.get_fontsize()
    assert other.get_facecolor() == plain.get_facecolor()


# Numbers
# ------------------------------------------------------------------------------


def aurc_by_voxel(count, hit):
    """The mean over every order of the voxels that the bins allow, each summed voxel by voxel."""
    blocks = [[1] * int(c - h) + [0] * int(h) for c, h in zip(count, hit, strict=True)][::-1]
    areas = []
    for orders in itertools.product(*(set(itertools.permutations(block)) for block in blocks)):
        wrong = [error for order in orders for error in order]
        areas.append(sum(sum(wrong[:n]) / n for n in range(1, len(wrong) + 1)) / len(wrong))
    return sum(areas) / len(areas)


@pytest.mark.parametrize(
    ("count", "hit"),
    [
        ([1, 3, 0, 2], [0, 2, 0, 2]),
        ([4], [1]),
        ([0, 5, 0], [0, 5, 0]),
        ([2, 2, 3], [2, 0, 1]),
        ([0, 3, 2, 0], [0, 0, 2, 0]),
    ],
)
def test_aurc_is_the_mean_over_all_orders(count, hit):
    sums = {"count": np.array(count, float), "hit": np.array(hit, float)}
    assert figures.aurc(sums) == pytest.approx(aurc_by_voxel(count, hit), abs=1e-12)


def test_aurc_is_the_area_under_the_curve_that_is_drawn(bins):
    for sums in (bins["ce"]["fine"], bins["mbls"]["top"]):
        coverage, risk = figures.risk_curve(sums, n_points=20000)
        assert figures.aurc(sums) == pytest.approx(np.trapezoid(risk, coverage), abs=1e-4)
        assert risk[-1] == pytest.approx(1 - sums["hit"].sum() / sums["count"].sum())
        assert (coverage[0], coverage[-1]) == (0, 1)


def test_aurc_without_voxels_is_nan():
    assert np.isnan(figures.aurc({"count": np.zeros(3), "hit": np.zeros(3)}))


def test_ece_of_bins_is_the_metric():
    torch.manual_seed(1)
    found = reliability(torch.randn(4, 3, 50), torch.randint(0, 3, (4, 50)))
    sums = {name: getattr(found.top, name).numpy() for name in ("count", "conf", "hit")}
    assert values.ece_of(sums) == pytest.approx(ece(found).item(), abs=1e-12)


def boundary(shape):
    """Points on an ellipse as matplotlib draws it."""
    return shape.get_transform().transform(shape.get_path().vertices[:-1:3])


def test_the_ellipse_of_the_mean_is_hotellings():
    from scipy.stats import f

    points = np.random.default_rng(0).normal(size=(12, 2)) @ np.array([[1, 0.8], [0, 0.3]])
    n, inverse = len(points), np.linalg.inv(np.cov(points.T))
    for x in boundary(values.mean_ellipse(points)):
        away = x - points.mean(0)
        assert n * away @ inverse @ away == pytest.approx(
            2 * (n - 1) / (n - 2) * f.ppf(0.95, 2, n - 2), rel=1e-6
        )


def test_ellipses_hold_what_they_promise():
    rng = np.random.default_rng(0)
    mix = np.array([[0.02, -0.01], [0, 0.004]])

    def holds(shape, x):
        turn = np.radians(shape.angle)
        turned = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        away = turned @ (x - np.array(shape.center))
        return (2 * away[0] / shape.width) ** 2 + (2 * away[1] / shape.height) ** 2 <= 1

    samples = [rng.normal(size=(8, 2)) @ mix for _ in range(600)]
    inside = [holds(values.mean_ellipse(sample), np.zeros(2)) for sample in samples]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.025)
    points = rng.normal(size=(2000, 2)) @ mix
    assert np.mean([holds(values.spread_ellipse(points), x) for x in points]) == pytest.approx(
        0.5, abs=0.03
    )


# Values drawn are values given
# ------------------------------------------------------------------------------


def test_rank_heatmap_prints_every_rank_and_the_best_in_bold():
    table = pd.DataFrame(
        {"dice": [1.0, 2.0, 3.0], "ece": [2.5, np.nan, 1.0], "rank": [1.0, 2.0, 3.0]},
        ["ls", "ce", "mbls"],
    )
    figure = figures.rank_heatmap({"sum-rank": table}, looks_of(table.index))
    cells = {
        (t.get_position()[::-1]): (t.get_text(), t.get_fontweight()) for t in figure.axes[0].texts
    }
    assert cells[0, 0] == ("1", "bold")
    assert cells[1, 1] == ("–", "normal")
    assert cells[2, 1] == ("1", "bold")
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["dice", "ece", "rank"]
    heat, bar = figure.axes[0].images[0], figure.axes[1]
    assert heat.get_array()[0, 0] < heat.get_array()[2, 0]
    assert (bar.get_ylabel(), [t.get_text() for t in bar.get_yticklabels()]) == (
        "rank",
        ["1, best", "3"],
    )
    ends = [
        mesh.cmap(mesh.norm(tick)) for mesh in bar.collections[-1:] for tick in bar.get_yticks()
    ]
    assert ends == [heat.cmap(heat.norm(rank)) for rank in (1.0, 3.0)]
    assert len(set(ends)) == 2


def test_dice_vs_calibration_draws_each_case_and_the_means():
    keys = ["ce", "mbls"]
    dice, error = cases(keys, 0.8), cases(keys, 0.05, seed=5)
    dice.loc[3, "ce"] = np.nan
    figure = figures.dice_vs_calibration(dice, error, looks_of(keys))
    for key in keys:
        both = np.stack([dice[key], error[key]], 1)
        both = both[~np.isnan(both).any(1)]
        colour, marker = look(key)
        np.testing.assert_array_equal(lines(figure.axes[0])[colour, "."], both)
        for ax in figure.axes[:2]:
            np.testing.assert_allclose(lines(ax)[colour, marker], both.mean(0)[None])
    assert [len(ax.patches) for ax in figure.axes[:2]] == [2, 2]
    assert figure.axes[0].get_title().startswith("20 cases")


def test_reliability_draws_accuracy_gap_counts_and_ece():
    sums = {
        "count": np.array([0, 40.0, 60.0]),
        "conf": np.array([0, 20.0, 54.0]),
        "hit": np.array([0, 30.0, 48.0]),
    }
    figure = figures.reliability({"mbls": sums}, looks_of(["mbls"]))
    top, bottom = figure.axes[:2]
    bars = {
        (round(p.get_x() + p.get_width() / 2, 4), round(p.get_y(), 4), round(p.get_height(), 4))
        for p in top.patches
    }
    assert bars == {
        (0.5, 0, 0.75),
        (0.8333, 0, 0.8),
        (0.5, 0.5, 0.25),
        (0.8333, 0.8, 0.1),
    }  # accuracy, and the gaps
    hatched = {p.get_hatch()[0]: to_hex(p.get_edgecolor()) for p in top.patches if p.get_hatch()}
    assert hatched == {"/": calibration.OVER.lower(), "\\": calibration.UNDER.lower()}
    assert [round(p.get_height(), 4) for p in bottom.patches] == [0, 0.4, 0.6]
    assert "ECE 0.160" in all_text(figure)  # (|20 - 30| + |54 - 48|) / 100
    assert any(np.array_equal(line.get_xydata(), [[0, 0], [1, 1]]) for line in top.lines)


def test_reliability_per_class_as_diagrams_and_as_lines(bins):
    keys = ["ce", "mbls"]
    some = {key: {what: sums[1:] for what, sums in bins[key]["per_class"].items()} for key in keys}
    each = {
        (k, i): {what: sums[i] for what, sums in some[k].items()} for k in keys for i in range(3)
    }
    figure = figures.reliability_per_class(some, looks_of(keys), ["RV", "MYO", "LV"])
    text = all_text(figure)
    for (key, i), part in each.items():
        assert f"{LOOKS[key].label}: {['RV', 'MYO', 'LV'][i]}" in text
        assert f"ECE {values.ece_of(part):.3f}" in text
    wide = {
        key: {what: np.tile(sums, (4, 1)) for what, sums in part.items()}
        for key, part in some.items()
    }
    figure = figures.reliability_per_class(wide, looks_of(keys), CLASSES)
    tops = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in tops] == CLASSES
    part = each["mbls", 1]
    known = part["count"] > 0
    expected = np.stack([part["conf"][known], part["hit"][known]], 1) / part["count"][known, None]
    np.testing.assert_allclose(lines(tops[4])[look("mbls")], expected)


def test_risk_coverage_prints_the_area(bins):
    keys = ["ce", "mbls"]
    figure = figures.risk_coverage({key: bins[key]["fine"] for key in keys}, looks_of(keys))
    for key in keys:
        assert f"{LOOKS[key].label}: {figures.aurc(bins[key]['fine']):.4f}" in all_text(figure)
        np.testing.assert_allclose(
            lines(figure.axes[0])[look(key)].T, figures.risk_curve(bins[key]["fine"])
        )


def test_robustness_draws_the_noise_levels_with_smaller_markers():
    table = noise_table(["ce", "mbls"])
    figure = figures.robustness(table, looks_of(["ce", "mbls"]))
    for key in ("ce", "mbls"):
        colour, marker = look(key)
        dots = [
            line
            for line in figure.axes[0].lines
            if (line.get_color(), line.get_marker()) == (colour, marker)
        ]
        mine = table[table["contender"] == key]
        np.testing.assert_allclose([d.get_xydata()[0] for d in dots], mine[["dice", "ece"]])
        assert np.all(np.diff([d.get_markersize() for d in dots]) < 0)
        np.testing.assert_allclose(lines(figure.axes[0])[colour, ""], mine[["dice", "ece"]])


def test_sensitivity_draws_means_over_seeds_and_rings_the_chosen():
    table = tried_table(["ls", "mbls"], seeds=2)
    figure = figures.sensitivity(table, looks_of(["ls", "mbls"]))
    assert [t.get_text() for t in figure.axes[2].get_xticklabels()] == ["5", "8", "10"]
    assert figure.axes[2].get_xlabel() == "margin"
    assert figure.axes[0].get_ylabel() == f"validation {METRICS['dice'].label} ↑"
    for ax, (metric, key) in zip(
        figure.axes, itertools.product(("dice", "ece"), ("ls", "mbls")), strict=True
    ):
        means = (
            table[table["contender"] == key]
            .groupby("setting", sort=False)[metric]
            .mean()
            .to_numpy()
        )
        np.testing.assert_allclose(lines(ax)[look(key)][:, 1], means)
        np.testing.assert_allclose(lines(ax)[layout.INK, "o"], [[1, means[1]]])
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_learning_curves_are_means_of_runs_with_the_best_epoch_marked():
    found = logs(["mbls"], runs=3)
    figure = figures.learning_curves(found, looks_of(["mbls"]))
    for ax, column in zip(figure.axes, ("val_dice", "val_ece"), strict=True):
        mean = np.mean([run[column] for run in found["mbls"]], axis=0)
        np.testing.assert_allclose(ax.lines[0].get_ydata(), mean)
    best = np.mean([run["val_dice"] for run in found["mbls"]], axis=0).argmax()
    assert [ax.lines[1].get_xdata()[0] for ax in figure.axes] == [
        best + 1,
        best + 1,
    ]  # counted from 1
    assert len(figure.axes[0].collections) == 1  # the band


def test_a_network_that_knows_nothing_yet_does_not_flatten_its_learning_curve():
    log = pd.DataFrame(
        {
            "epoch": range(20),
            "val_dice": [0.0, 0.1] + [0.8, 0.82] * 9,
            "val_ece": [0.9, 0.8] + [0.05, 0.06] * 9,
        }
    )
    dice, ece = figures.learning_curves({"ce": [log]}, looks_of(["ce"])).axes
    for ax, low, high in ((dice, 0.8, 0.82), (ece, 0.05, 0.06)):
        assert ax.get_ylim()[0] == pytest.approx(low, abs=0.005)
        assert ax.get_ylim()[1] == pytest.approx(high, abs=0.005)
        assert ax.get_ylim()[0] < low < high < ax.get_ylim()[1]
        assert len(ax.lines[0].get_ydata()) == 20  # still there, should someone zoom out


def test_mean_logits_are_bars_grouped_by_true_class():
    table = np.array([[1.0, -1.0], [np.nan, np.nan]])
    figure = figures.mean_logits({"ce": table}, looks_of(["ce"]), ["background", "tumour"])
    bars = figure.axes[0].patches
    assert [p.get_height() for p in bars] == [1, 0, -1, 0]
    assert [bool(p.get_hatch()) for p in bars] == [
        True,
        False,
        False,
        True,
    ]  # the logit of the true class
    numbers = [(*text.xy, text.get_text()) for text in figure.axes[0].texts if hasattr(text, "xy")]
    middles = [bar.get_x() + bar.get_width() / 2 for bar in bars]
    assert numbers == [(pytest.approx(middles[0]), 1, "0"), (pytest.approx(middles[2]), -1, "1")]
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["0 background", "1 tumour"]
    assert "no voxels" in all_text(figure)


@pytest.mark.parametrize("n", [6, 7])
def test_mean_logits_of_many_classes_are_a_matrix(n, monkeypatch):
    table = np.random.default_rng(0).normal(size=(n, n))
    table[1] = np.nan
    named = ["background", *CLASSES[: n - 1]]
    figure = figures.mean_logits({"ce": table, "mbls": table + 5}, looks_of(["ce", "mbls"]), named)
    check_layout(figure, monkeypatch)
    assert "no voxels" in all_text(figure)
    shown = [ax.images[0] for ax in figure.axes if ax.images and ax.get_title()]
    assert len(shown) == (2 if n > 6 else 0)
    for picture, values_ in zip(shown, (table, table + 5), strict=False):
        np.testing.assert_array_equal(picture.get_array().filled(np.nan), values_)
        assert picture.get_clim() == (
            min(np.nanmin(table), 0),
            np.nanmax(table) + 5,
        )  # one scale for all


def test_qualitative_shows_masks_confidence_and_reliability(bins):
    image = np.linspace(0, 1, 12).reshape(4, 3)
    mask = np.array([[0, 1, 2]] * 4)
    confidence = np.full((4, 3), 0.7)
    outcome = figures.Outcome(mask, confidence, bins["ce"]["top"])
    figure = figures.qualitative(image, mask, {"ce": outcome}, looks_of(["ce"]), ["one", "two"])
    pictures = {
        ax.get_title(): ax.images[0].get_array()
        for ax in figure.axes
        if ax.images and ax.get_title()
    }
    np.testing.assert_array_equal(pictures["image"], image)
    np.testing.assert_array_equal(pictures["ce"], image)
    for ax in figure.axes:
        outlines = [c for c in ax.collections if isinstance(c, QuadContourSet)]
        assert [to_hex(c.get_edgecolor()[0]) for c in outlines] == (
            [colour.lower() for colour in COLOURS[:2]]
            if ax.get_title() in ("reference", "ce")
            else []
        )
        for k, outline in enumerate(outlines, start=1):
            (path,) = outline.get_paths()
            rows, columns = np.indices(mask.shape)
            inside = path.contains_points(np.stack([columns.ravel(), rows.ravel()], 1)).reshape(
                mask.shape
            )
            np.testing.assert_array_equal(inside, mask == k)
    assert any(
        ax.images and np.array_equal(ax.images[0].get_array(), confidence) for ax in figure.axes
    )
    assert f"ECE {values.ece_of(bins['ce']['top']):.3f}" in all_text(figure)


# Too little, or nothing
# ------------------------------------------------------------------------------


def test_what_has_no_value_is_said(bins, monkeypatch):
    keys = ["ce", "focal", "mbls"]
    named = looks_of(keys)
    empty = {what: np.zeros_like(sums) for what, sums in bins["ce"]["top"].items()}
    top = {"ce": bins["ce"]["top"], "mbls": empty}
    gone = cases(keys, 0.8).assign(focal=np.nan)
    noise = noise_table(keys)
    noise.loc[noise["contender"] == "focal", "ece"] = np.nan
    lost = logs(keys)
    lost["focal"][0]["val_dice"] = np.nan
    for figure in (
        figures.reliability(top, named),
        figures.reliability_per_class({"ce": bins["ce"]["per_class"]}, named, CLASSES[:4]),
        figures.risk_coverage(top, named),
        figures.dice_vs_calibration(gone, gone, named),
        figures.robustness(noise, named),
        figures.learning_curves(lost, named),
        figures.sensitivity(tried_table(["focal"]).assign(ece=np.nan), named),
    ):
        assert re.search(r"no value: [\s\S]*focal", all_text(figure)), all_text(figure)
        check_layout(figure, monkeypatch)
    assert "no voxels" in all_text(figures.reliability(top, named))
    assert "no voxels" in all_text(figures.risk_coverage({"ce": empty}, named))
    assert "too few cases" in all_text(
        figures.dice_vs_calibration(gone.head(1), gone.head(1), named)
    )


# Files
# ------------------------------------------------------------------------------


def test_files_are_the_same_every_time(tmp_path):
    for ending, start in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        paths = [tmp_path / f"{i}" / f"figure.{ending}" for i in (1, 2)]
        for path in paths:
            save_figure(path, a_figure())
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert paths[0].read_bytes().startswith(start)
    assert b"<dc:date>" not in (tmp_path / "1" / "figure.svg").read_bytes()
    with pytest.raises(UserError, match="cannot write the figure"):
        save_figure(tmp_path / "figure.nonsense", a_figure())


def test_all_names_lead_somewhere():
    assert all(getattr(figures, name) is not None for name in figures.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        figures.nonsense  # noqa: B018


def test_a_contact_sheet_needs_neither_torch_nor_pandas():
    code = (
        "import sys; from segcal.figures import contact_sheet; print([m for m in ('torch',"
        " 'pandas') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


# By distance to the outline
# ------------------------------------------------------------------------------


def test_distance_draws_the_sums_of_each_band():
    bands = bands_of(["ce"], 3)
    bands["ce"]["count"][0] = 0  # a band without voxels is left out
    figure = figures.distance(bands, looks_of(["ce"]), ["tumour", "cyst"])
    assert [ax.get_title() for ax in figure.axes if ax.get_title()] == [
        "predicted class",
        "tumour",
        "cyst",
    ]
    sums = bands["ce"]
    shown = [ax.get_lines()[0].get_xydata() for ax in figure.axes]
    pairs = [("conf", "hit", ...), ("class_conf", "class_hit", 1), ("class_conf", "class_hit", 2)]
    for column, (conf, hit, k) in enumerate(pairs):
        means = [sums[name][k][1:] / sums["count"][1:] for name in (conf, hit)]
        above, below = shown[column], shown[3 + column]
        np.testing.assert_allclose(above[:, 0], [-3.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 4.5])
        np.testing.assert_allclose(above[:, 1], means[0] - means[1])
        np.testing.assert_allclose(below[:, 1], means[1])
