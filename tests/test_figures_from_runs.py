"""The table `FIGURES`: from run folders to figures, by Python and by the command line."""

import csv
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_runs import made_run
from matplotlib.contour import QuadContourSet
from test_figures import all_text, check_layout, lines, look
from typer.testing import CliRunner

from segcal.cli import app
from segcal.compare import read_results
from segcal.compare.metric_sets import METRIC_SETS
from segcal.compare.ranking import rank_results
from segcal.data.prepare import prepare
from segcal.data.slices import volume
from segcal.figures import FIGURES, aurc, look_of, save_figures, saving
from segcal.figures.calibration import OVER
from segcal.figures.from_runs import median_case
from segcal.folders import read_json, save_weights, write_json
from segcal.losses import LOSSES
from segcal.metrics import METRICS
from segcal.networks import build_network
from segcal.predictors.run import open_run
from segcal.scoring import evaluate
from segcal.types import UserError

NOISE = (0.01, 0.03, 0.05)
KEYS = {
    "rank_heatmap",
    "mean_logits",
    "robustness",
    "sensitivity",
    "qualitative",
    "reliability",
    "calibrated",
    "reliability_per_class",
    "dice_vs_calibration",
    "risk_coverage",
    "distance",
    "learning_curves",
}


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    """All methods on one data set of two classes: settings tried, noise, a variant, other networks,
    two cases a patient.
    """
    root = tmp_path_factory.mktemp("study")
    common = {
        "n_cases": 8,
        "n_voxels": 1500,
        "noise": NOISE,
        "patients": {f"case_{i:03d}": f"patient_{i // 2}" for i in range(8)},
    }
    for loss in LOSSES:
        if loss != "mbls":
            made_run(root, loss, loss, **common)
    for margin, lift in ((5.0, 0.0), (8.0, 0.05), (10.0, -0.05)):
        for seed in (0, 1):
            made_run(
                root,
                f"mbls-{margin:g}-{seed}",
                "mbls",
                settings={"margin": margin},
                lift=lift,
                seed=seed,
                **common,
            )
    made_run(root, "l2", "mbls", settings={"penalty": "l2"}, **common)
    for loss in ("ce", "mbls"):
        made_run(root, f"transunet-{loss}", loss, network="transunet", **common)
    return root


@pytest.fixture(scope="session")
def results(study):
    return read_results([study])


def scored(folder, metric, kind, corruption="", voxels=""):
    """Case by case from scores.csv, by hand."""
    with (folder / "scores.csv").open() as file:
        rows = csv.DictReader(file)
        return {
            row["case"]: float(row["value"])
            for row in rows
            if (row["metric"], row["class"], row["corruption"]) == (metric, kind, corruption)
            and row["voxels"] in ("", voxels or [*METRICS[metric].voxels, ""][0])
        }


def mean(folders, *what):
    return np.mean([list(scored(folder, *what).values()) for folder in folders])


CHOSEN = {"ce": ["ce"], "mbls": ["mbls-8-0", "mbls-8-1"]}


def test_the_table_is_complete():
    assert set(FIGURES) == KEYS
    for row in FIGURES.values():
        for metrics in METRIC_SETS.values():
            caption = row.caption(metrics)
            assert caption.endswith(".")
            assert "{" not in caption
        assert row.label
        assert row.needs


def test_every_row_draws_a_study(results, monkeypatch):
    for key, row in FIGURES.items():
        figure = row.draw(results, "made")
        if key in ("qualitative", "calibrated"):
            assert figure is None  # no weights there, and no fits
        else:
            check_layout(figure, monkeypatch)


def test_robustness_draws_the_means_of_the_chosen_runs(results, study):
    ax = FIGURES["robustness"].draw(results, "made").axes[0]
    levels = ["", *(f"gaussian_noise:{s:g}" for s in NOISE)]
    for key, runs in CHOSEN.items():
        folders = [study / run for run in runs]
        expected = [
            [mean(folders, "dice", "mean", level), mean(folders, "misplaced", "all", level)]
            for level in levels
        ]
        np.testing.assert_allclose(lines(ax)[look_of(key).colour, ""], expected)


def test_a_point_of_dice_against_ece_is_a_patient(results, study):
    figure = FIGURES["dice_vs_calibration"].draw(results, "made")
    by_patient = defaultdict(list)
    for i, ((_, dice), (_, error)) in enumerate(
        zip(
            sorted(scored(study / "ce", "dice", "mean").items()),
            sorted(scored(study / "ce", "misplaced", "all").items()),
            strict=True,
        )
    ):
        by_patient[i // 2].append([dice, error])
    expected = [np.mean(pairs, axis=0) for pairs in by_patient.values()]
    np.testing.assert_allclose(lines(figure.axes[0])[look_of("ce").colour, "."], expected)
    assert figure.axes[0].get_title().startswith("4 patients")


def test_ranks_are_those_of_the_ranking(results):
    figure = FIGURES["rank_heatmap"].draw(results, "made")
    ranking = rank_results(results, "made", n=10)
    columns = [("made", m) for m in METRIC_SETS["main"].lead]
    order = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    keys = {c.label: c.key for c in results.main("made")}
    cells = [t.get_text() for t in figure.axes[0].texts]
    expected = ranking.sum_rank.loc[[keys[label] for label in order], [*columns, "rank"]]
    assert cells == [f"{v:g}" for v in expected.to_numpy().ravel()]
    means = (
        ranking.case_rank.loc[expected.index, [*METRIC_SETS["main"].lead, "mean"]]
        .to_numpy()
        .ravel()
    )
    assert [float(t.get_text()) for t in figure.axes[1].texts] == pytest.approx(means, abs=0.005)
    assert list(expected["rank"]) == sorted(expected["rank"])


def test_sensitivity_reads_validation_scores(results, study):
    figure = FIGURES["sensitivity"].draw(results, "made")
    assert [ax.get_title() for ax in figure.axes if ax.get_title()] == [
        "MbLS"
    ]  # nothing else was tried twice
    infos = [
        [read_json(study / f"mbls-{m}-{seed}" / "run.json")["best"] for seed in (0, 1)]
        for m in (5, 8, 10)
    ]
    for ax, score in zip(figure.axes, ("val_dice", "val_nll"), strict=True):
        means = [np.mean([best[score] for best in pair]) for pair in infos]
        np.testing.assert_allclose(lines(ax)[look("mbls")][:, 1], means)
        np.testing.assert_allclose(lines(ax)["#222222", "o"][0], [1, means[1]])


def test_the_ece_of_older_runs_names_its_voxels(results):
    older = {}
    for name, info in results.runs.items():
        best = {key: value for key, value in info["best"].items() if key != "val_nll"}
        del best["val_ece_perfect"]
        older[name] = info | {"best": best | {"val_ece": 0.1}}
    older = replace(results, runs=older)
    labels = {"main": "validation ECE,\nreference voxels", "paper": "validation ECE ↓"}
    for key, label in labels.items():
        asked = replace(older, metrics=METRIC_SETS[key])
        axes = FIGURES["sensitivity"].draw(asked, "made").axes
        assert [ax.get_ylabel() for ax in axes] == ["validation DSC ↑", label]


@pytest.mark.parametrize("key", ["robustness", "sensitivity", "learning_curves"])
def test_beside_the_paper_s_ece_is_what_a_perfect_network_would_have(results, study, key):
    """A line of dashes below the line of what was measured."""
    colour = look_of("mbls").colour
    for name, metric_set in METRIC_SETS.items():
        figure = FIGURES[key].draw(replace(results, metrics=metric_set), "made")
        ax = figure.axes[1 if key != "robustness" else 0]
        drawn = [line for line in ax.lines if line.get_color() == colour]
        perfect = [line for line in drawn if line.get_linestyle() == "--"]
        assert len(perfect) == (name == "paper")
        assert ("Dashes" in FIGURES[key].caption(metric_set)) == (name == "paper")
    (y,) = [line.get_ydata() for line in perfect]
    if key == "robustness":
        folders = [study / run for run in CHOSEN["mbls"]]
        levels = ["", *(f"gaussian_noise:{s:g}" for s in NOISE)]
        np.testing.assert_allclose(y, [mean(folders, "ece_perfect", "all", at) for at in levels])
    elif key == "sensitivity":
        infos = [
            [read_json(study / f"mbls-{m}-{seed}" / "run.json")["best"] for seed in (0, 1)]
            for m in (5, 8, 10)
        ]
        want = [np.mean([best["val_ece_perfect"] for best in pair]) for pair in infos]
        np.testing.assert_allclose(y, want)
    else:
        np.testing.assert_allclose(y, 0.02 + 0.001 * np.arange(len(y)))


def test_bins_of_all_seeds_are_added_up(results, study):
    stored = [read_json(study / run / "bins.json")["entries"][0] for run in CHOSEN["mbls"]]
    entries = [e | e["sets"]["near"] for e in stored]
    fine = {what: np.sum([e["fine"][what] for e in entries], axis=0) for what in ("count", "hit")}
    assert f"MbLS: {aurc(fine):.4f}" in all_text(FIGURES["risk_coverage"].draw(results, "made"))
    gap = np.sum([np.subtract(e["top"]["conf"], e["top"]["hit"]) for e in entries], axis=0)
    count = np.sum([e["top"]["count"] for e in entries])
    assert f"ECE {np.abs(gap).sum() / count:.3f}" in all_text(
        FIGURES["reliability"].draw(results, "made")
    )
    mean_logits = FIGURES["mean_logits"].draw(results, "made")
    assert [ax.get_title() for ax in mean_logits.axes] == ["CE", "MbLS"]
    sums = [np.array(e["mean_logits"]) * np.array(e["voxels"])[:, None] for e in entries]
    expected = sum(sums) / sum(np.array(e["voxels"]) for e in entries)[:, None]
    np.testing.assert_allclose(
        [p.get_height() for p in mean_logits.axes[1].patches], expected.T.ravel()
    )


def test_learning_curves_are_the_logs(results, study):
    ax = FIGURES["learning_curves"].draw(results, "made").axes[0]
    with (study / "ce" / "log.csv").open() as file:
        expected = [float(row["val_dice"]) for row in csv.DictReader(file)]
    np.testing.assert_allclose(lines(ax)[look_of("ce").colour, ""][:, 1], expected)


def test_ranks_on_several_data_sets_are_added(tmp_path):
    sets = {"acdc": ("RV", "MYO", "LV"), "busi": ("tumour",)}
    for (name, classes), loss in itertools.product(sets.items(), ("ce", "mbls")):
        made = {"dataset": name, "classes": classes, "n_cases": 3, "n_voxels": 300}
        made_run(tmp_path, f"{name}-{loss}", loss, **made)
    figure = FIGURES["rank_heatmap"].draw(read_results([tmp_path]), "acdc")
    assert figure.axes[2].get_title() == "sum-rank, 2 data sets"


def test_a_data_set_scored_by_regions(tmp_path):
    regions = {"TC": [1], "ET": [2], "WT": [1, 2, 3]}
    classes = ("necrosis", "oedema", "enhancing")
    for loss in ("ce", "mbls"):
        made_run(tmp_path, loss, loss, classes=classes, regions=regions, n_cases=3, n_voxels=300)
    results = read_results([tmp_path])
    point = lines(FIGURES["dice_vs_calibration"].draw(results, "made").axes[1])[look("ce")][0]
    assert point[0] == pytest.approx(mean([tmp_path / "ce"], "dice", "mean (region)"))


def test_a_dash_is_at_the_ece_of_a_perfect_network(results, study):
    """In the paper's set; misplaced confidence needs none."""
    paper = replace(results, metrics=METRIC_SETS["paper"])
    ax = FIGURES["dice_vs_calibration"].draw(paper, "made").axes[1]
    for key, runs in CHOSEN.items():
        folders = [study / run for run in runs]
        want = [mean(folders, "dice", "mean"), mean(folders, "ece_perfect", "all")]
        np.testing.assert_allclose(lines(ax)[look_of(key).colour, "_"], [want])
    assert "dash: if perfect" in ax.get_title()
    assert "Dashes" in FIGURES["dice_vs_calibration"].caption(METRIC_SETS["paper"])
    ax = FIGURES["dice_vs_calibration"].draw(results, "made").axes[1]
    assert not any(marker == "_" for _, marker in lines(ax))
    assert "Dashes" not in FIGURES["dice_vs_calibration"].caption(METRIC_SETS["main"])


def test_one_run_with_one_case_without_fine_bins(tmp_path, monkeypatch):
    folder = made_run(tmp_path, "only", "ce", n_cases=1, epochs=1, n_voxels=300)
    bins = read_json(folder / "bins.json")
    del bins["entries"][0]["sets"]["near"]["fine"]
    write_json(folder / "bins.json", bins)
    results = read_results([tmp_path])
    drawn = {key: row.draw(results, "made") for key, row in FIGURES.items()}
    nothing = {"rank_heatmap", "robustness", "sensitivity", "qualitative", "calibrated"}
    assert {key for key, figure in drawn.items() if figure is None} == nothing
    for figure in drawn.values():
        if figure is not None:
            check_layout(figure, monkeypatch)
    top = {what: np.array(v) for what, v in bins["entries"][0]["sets"]["near"]["top"].items()}
    assert f"CE: {aurc(top):.4f}" in all_text(drawn["risk_coverage"])
    assert "too few cases" in all_text(drawn["dice_vs_calibration"])


def test_runs_without_bins_are_named(tmp_path):
    for loss in ("ce", "focal"):
        made_run(tmp_path, loss, loss, n_cases=3, n_voxels=300)
    (tmp_path / "focal" / "bins.json").unlink()
    results = read_results([tmp_path])
    assert "no value: FL" in all_text(FIGURES["reliability"].draw(results, "made"))
    (tmp_path / "ce" / "bins.json").unlink()
    assert FIGURES["reliability"].draw(results, "made") is None


def test_a_corruption_that_one_of_several_seeds_lacks_is_not_drawn(tmp_path):
    made_run(tmp_path, "a", "ce", seed=0, n_cases=3, n_voxels=300, noise=(0.01,))
    made_run(tmp_path, "b", "ce", seed=1, n_cases=3, n_voxels=300)
    assert FIGURES["robustness"].draw(read_results([tmp_path]), "made") is None


def test_runs_without_a_log_have_no_learning_curve(tmp_path):
    for loss in ("ce", "focal"):
        made_run(tmp_path, loss, loss, n_cases=3, n_voxels=300)
    (tmp_path / "focal" / "log.csv").unlink()
    results = read_results([tmp_path])
    assert "no value: FL" in all_text(FIGURES["learning_curves"].draw(results, "made"))
    (tmp_path / "ce" / "log.csv").unlink()
    assert FIGURES["learning_curves"].draw(results, "made") is None


def test_methods_and_networks_of_other_tools_are_drawn(results):
    """What is in neither `LOSSES` nor `NETWORKS`."""
    names = {"ce": "theirs", "transunet": "nnunet"}
    keys = {"ce": "theirs", "transunet ce": "nnunet theirs", "transunet mbls": "nnunet mbls"}
    contenders = []
    for c in results.contenders:
        method, network = names.get(c.method, c.method), names.get(c.network, c.network)
        contenders.append(replace(c, method=method, network=network))
    scores = results.scores.replace({"contender": keys})
    others = replace(results, scores=scores, contenders=tuple(contenders))
    drawn = {key for key, row in FIGURES.items() if row.draw(others, "made") is not None}
    assert drawn == KEYS - {"qualitative", "calibrated"}
    assert "theirs" in all_text(FIGURES["dice_vs_calibration"].draw(others, "made"))


# One case, through real networks
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Two runs with real, if untrained, networks on real, if synthetic, cases."""
    root = tmp_path_factory.mktemp("networks")
    cases = prepare("phantom", None, root, n_cases=8, shape=(4, 24, 28), workers=1).cases
    write_json(
        cases.root / "cases.json", cases.info | {"orientation": "RAS"}
    )  # from back to front, from left to right
    for i, loss in enumerate(("ce", "mbls")):
        data = {
            "name": cases.name,
            "classes": list(cases.classes),
            "channels": list(cases.channels),
            "regions": {},
            "orientation": "RAS",
            "recipe": cases.info["settings"]["recipe"],
        }
        folder = made_run(
            root / "runs", loss, loss, dataset=cases.name, classes=cases.classes, data=cases.root
        )
        info = read_json(folder / "run.json") | {"frame": [24, 28]}
        info["data"] = data | {"checksum": cases.info["checksum"]}
        info["settings"] |= {"network": {"name": "unet", "width": 4}}
        write_json(folder / "run.json", info)
        for stale in ("scores.csv", "bins.json"):
            (folder / stale).unlink()
        torch.manual_seed(i)
        network = build_network("unet", len(cases.channels), len(cases.classes) + 1, width=4)
        save_weights(folder / "checkpoints" / "best.safetensors", network.state_dict())
        evaluate(open_run(folder))
    return root / "runs", cases


def test_the_case_shown_is_the_one_in_the_middle(results, study):
    chosen = [c.runs for c in results.main("made")]
    dice = [{run: scored(study / run, "dice", "mean") for run in runs} for runs in chosen]
    cases = list(dice[0]["ce"])
    means = {
        id: np.mean([np.mean([table[id] for table in runs.values()]) for runs in dice])
        for id in cases
    }
    assert median_case(results, "made") == sorted(cases, key=means.get)[3]  # of eight


def test_one_case_through_the_networks(networks, monkeypatch):
    folder, cases = networks
    results = read_results([folder])
    case = median_case(results, cases.name)
    figure = FIGURES["qualitative"].draw(results, cases.name)
    check_layout(figure, monkeypatch)
    image, label = volume(cases, case)
    z = max(range(len(label)), key=lambda i: int((label[i] > 0).sum()))
    pictures = {
        ax.get_title(): ax.images[0].get_array()
        for ax in figure.axes
        if ax.images and ax.get_title()
    }
    np.testing.assert_array_equal(
        pictures["image"], image[z, 0].numpy()[::-1, ::-1]
    )  # front up, the right on the left
    (shown,) = (ax for ax in figure.axes if ax.get_title() == "image")
    places = {text.get_text(): text.get_position() for text in shown.texts}
    assert places["R"][0] < places["L"][0]
    assert places["A"][1] > places["P"][1]
    (drawn,) = (ax for ax in figure.axes if ax.get_title() == "reference")
    outlines = [c.get_paths()[0] for c in drawn.collections if isinstance(c, QuadContourSet)]
    turned = label[z].numpy()[::-1, ::-1]
    inside = [path.contains_points(np.argwhere(turned > 0)[:, ::-1]) for path in outlines]
    assert np.any(inside, axis=0).mean() > 0.9
    confidence = (
        torch.softmax(open_run(folder / "mbls").logits(image), 1).amax(1)[z].numpy()[::-1, ::-1]
    )
    assert any(
        ax.images and np.array_equal(ax.images[0].get_array(), confidence) for ax in figure.axes
    )
    assert f"ECE {scored(folder / 'mbls', 'ece', 'all', '', 'near')[case]:.3f}" in all_text(figure)
    figure = FIGURES["qualitative"].draw(read_results([folder], metrics="paper"), cases.name)
    ece, perfect = (scored(folder / "mbls", key, "all")[case] for key in ("ece", "ece_perfect"))
    assert f"ECE {ece:.3f}\nperfect {perfect:.3f}" in all_text(figure)


def test_one_case_needs_weights_and_data(networks, tmp_path):
    folder, cases = networks
    for run in ("ce", "mbls"):
        shutil.copytree(folder / run, tmp_path / run)
    shutil.rmtree(tmp_path / "mbls" / "checkpoints")
    assert FIGURES["qualitative"].draw(read_results([tmp_path]), cases.name) is None


# Files and the command line
# ------------------------------------------------------------------------------


def test_unknown_names_are_refused_before_anything_is_drawn(results, tmp_path):
    with pytest.raises(UserError, match="unknown figure 'rank'; choose one of rank_heatmap, "):
        save_figures(results, tmp_path, keys=["rank_heatmap", "rank"])
    with pytest.raises(UserError, match="unknown format 'gif'; choose one of svg, pdf, png"):
        save_figures(results, tmp_path, format="gif")
    assert not list(tmp_path.iterdir())


def test_the_verb(networks, tmp_path):
    folder, cases = networks
    command = [
        sys.executable,
        "-c",
        "from segcal.cli import main; main()",
        "figures",
        folder,
        "--out",
        tmp_path,
        "--json",
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["figure"]: row for row in json.loads(done.stdout)}
    assert set(rows) == KEYS
    drawn = {key for key, row in rows.items() if row["file"]}
    # These networks, which are not trained, predict no foreground.
    assert KEYS - drawn == {"robustness", "sensitivity", "calibrated", "distance"}
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        f"{cases.name}-{key}.svg" for key in drawn
    )
    assert OVER.lower() in (tmp_path / f"{cases.name}-reliability.svg").read_text().lower()


def test_some_figures_in_another_format(networks, tmp_path):
    folder, cases = networks
    wanted = ["--format", "pdf", "--figure", "reliability", "--figure", "sensitivity"]
    done = CliRunner().invoke(
        app, ["figures", str(folder), "-o", str(tmp_path), *wanted], env={"COLUMNS": "120"}
    )
    assert done.exit_code == 0, done.output
    assert [p.name for p in tmp_path.iterdir()] == [f"{cases.name}-reliability.pdf"]
    assert "left out: needs runs of a method with several settings" in " ".join(done.stdout.split())


def test_labels_come_from_the_tables(results):
    text = all_text(FIGURES["dice_vs_calibration"].draw(results, "made"))
    for row in LOSSES.values():
        assert row.label in text
    for key in ("dice", "misplaced"):
        assert f"{METRICS[key].label} {METRICS[key].arrow}" in text


def test_the_page_lists_every_figure():
    page = (Path(__file__).parents[1] / "docs" / "figures.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) == set(FIGURES)


def test_curves_of_a_validation_without_foreground(tmp_path):
    """Scores over foreground are `nan` in `log.csv`: of one run, then of both."""
    for loss in ("ce", "focal"):
        folder = made_run(tmp_path, loss, loss, n_cases=3, n_voxels=300)
        with (folder / "log.csv").open() as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            row |= {"val_nll": "nan", "val_ece": "nan"}
        with (folder / "log.csv").open("w") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        drawn = FIGURES["learning_curves"].draw(read_results([tmp_path]), "made")
    assert "no values" in all_text(drawn)


def test_without_predicted_foreground_there_is_no_distance_to_its_outline(tmp_path):
    folder = made_run(tmp_path, "ce", "ce", n_cases=2, n_voxels=99)
    assert FIGURES["distance"].draw(read_results([tmp_path]), "made") is not None
    bins = read_json(folder / "bins.json")
    for entry in bins["entries"]:
        entry["bands"]["count"] = [0.0] * len(entry["bands"]["count"])
    write_json(folder / "bins.json", bins)
    assert FIGURES["distance"].draw(read_results([tmp_path]), "made") is None


def test_an_exported_figure_says_over_what_its_numbers_are(results, tmp_path, monkeypatch):
    """Pooled bins and means over cases differ, and a file has no caption."""
    told = {}
    monkeypatch.setattr(
        saving, "save_figure", lambda path, figure: told.update({path.stem: figure})
    )
    save_figures(results, tmp_path, keys=["reliability", "dice_vs_calibration", "sensitivity"])
    texts = {name: [text.get_text() for text in each.texts] for name, each in told.items()}
    assert texts == {
        "made-reliability": ["all test cases pooled: not the mean over cases of the tables"],
        "made-dice_vs_calibration": ["means over test cases"],
        "made-sensitivity": [],
    }
    for figure in told.values():  # one below the other
        figure.draw_without_rendering()
        parts = [*figure.texts, *figure.legends, *figure.axes]
        for ours, above in itertools.combinations([part.get_tightbbox() for part in parts], 2):
            assert not figure.texts or not ours.overlaps(above) or above.y0 > ours.y1
