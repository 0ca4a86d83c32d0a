"""The pages on the hippocampus study say what its published scores say, and no more is published
than that.
"""

import csv
import doctest
import gzip
import importlib
import json
import math
import re
import statistics
import sys
from pathlib import Path

import pytest

from segcal.compare.tables.seeds import spreads

ROOT = Path(__file__).parents[1]
FOLDER, PAGES = ROOT / "results" / "hippocampus", ROOT / "docs" / "results"
PAGE, DETAILS = PAGES / "hippocampus.md", PAGES / "hippocampus-details.md"
HEADS = {"low": "## Low data:", "low-last": "## Low data, the last epoch"}
HEADS |= {"full": "## Full data:", "full-last": "## Full data, the last epoch"}
PARTS = {"low": ("low", "low-variants")}
CONDITIONS = {"Pre": "", "TS": "ts", "LTS": "lts"}
MEAN, L2 = "mbls class_reduction=mean", "mbls penalty=l2"


@pytest.fixture(scope="module")
def script():
    """The script that writes the pages; it and its neighbours are no package."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module("make_page")
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def studies(script):
    return {name: script.Study(name) for name in script.STUDIES}


@pytest.fixture(scope="module")
def margin5(script):
    """The same with MbLS at margin 5, where it was run."""
    return {name: script.Study(name, margin5=True) for name in script.MARGIN5}


def number(cell):
    """The mean of a cell such as `**0.034 ± 0.007** \\[0.052\\]`."""
    return re.search(r"\d+\.\d+", cell)[0]


def tables(text):
    """The tables of a page: each a list of rows, each a list of cells."""
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        yield [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in block.splitlines()
            if "---" not in line
        ]


def section(study):
    """The parts of the pages on a study."""
    parts = [
        page.read_text(encoding="utf-8").partition(HEADS[study])[2] for page in (PAGE, DETAILS)
    ]
    return "\n".join(re.split(r"^## (?!#)", part, flags=re.M)[0] for part in parts)


def folder_of(study, run):
    (found,) = [
        path
        for part in PARTS.get(study, (study,))
        if (path := FOLDER / part / "runs" / run).is_dir()
    ]
    return found


def rows(study, run):
    with gzip.open(folder_of(study, run) / "scores.csv.gz", "rt", newline="") as file:
        yield from csv.DictReader(file)


def mean(study, runs, metric, calibrator=""):
    """Over cases and seeds, straight from the files; a distance is none where an object was missed,
    be it by one seed.
    """
    values, missed = {}, set()
    for run in runs:
        for row in rows(study, run):
            if (row["split"], row["corruption"], row["calibrator"]) != (
                "test",
                "",
                calibrator,
            ) or row["case"] == "pooled":
                continue
            if row["class"] == ("all" if metric in ("ece", "cece") else "mean"):
                if row["metric"] == metric:
                    values.setdefault(row["case"], []).append(float(row["value"]))
                elif row["metric"] == "missed" and float(row["value"]):
                    missed.add(row["case"])
    assert len(values) == 50
    assert {len(each) for each in values.values()} == {len(runs)}
    return statistics.fmean(
        statistics.fmean(each)
        for case, each in values.items()
        if metric != "asd" or case not in missed
    )


def test_the_pages_are_what_the_script_makes_of_the_scores(script):
    for name, text in script.pages().items():
        assert text == (PAGES / name).read_text(encoding="utf-8"), (
            "run results/hippocampus/make_page.py"
        )


@pytest.mark.parametrize("study", HEADS)
def test_their_main_numbers_are_means_that_anyone_can_repeat(study):
    here = list(tables(section(study)))
    runs_of = {
        row[0]: re.findall(r"`([^`]+)`", row[-1])
        for table in here
        if table[0][-1] == "cells"
        for row in table[1:]
    }
    (posthoc,) = [t for t in here if t[0][1:2] == ["ECE ↓ Pre"]]
    (overlap,) = [t for t in here if t[0][1:2] == ["mean DSC ↑"]]
    methods = [label for label in runs_of if "(" not in label and label != "MbLS+Dice"]
    assert [row[0] for row in posthoc[1:]] == [row[0] for row in overlap[1:]] == methods
    assert len(methods) == 7
    for row in overlap[1:]:
        assert number(row[1]) == f"{mean(study, runs_of[row[0]], 'dice'):.3f}"
        assert number(row[2]) == f"{mean(study, runs_of[row[0]], 'asd'):.2f}"
    for row in posthoc[1:]:
        for head, cell in zip(posthoc[0][1:], row[1:], strict=True):
            metric, _, condition = head.split(" ")
            assert (
                number(cell)
                == f"{mean(study, runs_of[row[0]], metric.lower(), CONDITIONS[condition]):.3f}"
            )


def test_the_tables_that_lead_to_the_verdict_hold_the_same_means():
    here = list(tables(PAGE.read_text(encoding="utf-8")))
    (versus,) = [t for t in here if t[1][0].endswith("CE → MbLS") and "paper" in t[0]]
    (eces,) = [t for t in here if t[0][0] == "ECE ↓"]
    for column, study in enumerate(("full", "full-last", "low", "low-last"), start=2):
        posthoc = next(t for t in tables(section(study)) if t[0][1:2] == ["ECE ↓ Pre"])
        ece = {row[0]: number(row[1]) for row in posthoc[1:]}
        assert versus[1][column] == f"{ece['CE']} → {ece['MbLS']}"
        assert {row[0]: number(row[column]) for row in eces[1:]} == ece


@pytest.mark.parametrize("template", sorted(path.name for path in FOLDER.glob("*.j2")))
def test_no_score_is_typed_into_a_template(template):
    text = (FOLDER / template).read_text(encoding="utf-8")
    words = re.sub(
        r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.S
    )
    assert set(re.findall(r"\d+[.,]\d+", words)) <= {"0.05", "2,000"}  # level of tests, samples


@pytest.mark.parametrize(("study", "rows", "columns"), [("full", 58, 43), ("low", 52, 42)])
def test_what_it_says_of_the_protocol_is_what_was_run(study, rows, columns):
    assert f"{rows} × {columns}" in PAGE.read_text(encoding="utf-8")
    for path in FOLDER.glob(f"{study}*/runs/*/run.json"):
        info = json.loads(path.read_text())
        assert info["frame"] == [rows, columns]
        assert info["settings"]["network"]["width"] == 8
        assert info["settings"]["training"]["batch"] == 8
        assert info["data"]["splits"] == {
            "train": 185 if study == "full" else 20,
            "val": 25,
            "test": 50,
        }


def test_the_pooled_ece_in_the_reliability_diagrams_is_that_of_the_scores():
    drawn = re.findall(
        r"ECE (\d\.\d+)",
        (PAGES / "full" / "hippocampus-reliability.svg").read_text(encoding="utf-8"),
    )
    pooled = [
        f"{float(row['value']):.3f}"
        for run in ("ce", "mbls-margin10", "svls", "focal-gamma1")
        for row in rows("full", f"{run}-unet-s0")
        if (row["case"], row["metric"], row["class"], row["calibrator"], row["corruption"])
        == ("pooled", "ece", "all", "", "")
    ]
    assert len(pooled) == 4
    assert set(pooled) <= set(drawn)


def clean_bins(study, run):
    with gzip.open(folder_of(study, run) / "bins.json.gz", "rt") as file:
        entries = json.load(file)["entries"]
    return next(
        e for e in entries if (e["split"], e["corruption"], e["calibrator"]) == ("test", "", "")
    )


def test_what_the_margin_does_is_what_the_bins_say(script):
    names, ceiling = (
        {title: name for name, title in script.STUDIES.items()},
        1 / (1 + 2 * math.exp(-5)),
    )
    (table,) = [
        t
        for t in tables(PAGE.read_text(encoding="utf-8"))
        if t[0][1:2] == ["span of the mean logits"]
    ]
    sure_of = {}
    for label, *cells in table[1:]:
        title, method, margin = re.match(r"(.*), (CE|MbLS)(?:, margin (\d+))?$", label).groups()
        study = f"{names[title]}-margin5" if margin == "5" else names[title]
        stem = "ce" if method == "CE" else f"mbls-margin{margin}"
        runs = [f"{stem}-unet-s{seed}" for seed in range(1 if title.startswith("full") else 3)]
        parts = [clean_bins(study, run) for run in runs]
        n, conf, hit = (
            sum(sum(part["top"][what]) for part in parts) for what in ("count", "conf", "hit")
        )
        fine = [
            sum(counts) for counts in zip(*(part["fine"]["count"] for part in parts), strict=True)
        ]
        sure = sum(count for i, count in enumerate(fine) if i / len(fine) >= ceiling) / n
        spans, leads = [], []
        for true in (1, 2):
            voxels = [part["voxels"][true] for part in parts]
            rows = [part["mean_logits"][true] for part in parts]
            logits = [
                sum(v * row[k] for v, row in zip(voxels, rows, strict=True)) / sum(voxels)
                for k in range(3)
            ]
            spans.append(max(logits) - min(logits))
            leads.append(logits[true] - max(value for k, value in enumerate(logits) if k != true))
        logits = [f"{sum(values) / 2:.1f}" for values in (spans, leads)]
        assert cells == [*logits, f"{conf / n:.3f}", f"{hit / n:.3f}", f"{100 * sure:.0f} %"]
        sure_of[title, method, margin] = sure
    assert len(sure_of) == 2 * len(script.STUDIES) + 3
    assert (
        max(sure for (_, _, margin), sure in sure_of.items() if margin == "5") < 0.05
    )  # hardly a voxel
    assert min(sure for (_, method, _), sure in sure_of.items() if method == "CE") > 0.4


@pytest.mark.parametrize("name", ["wording", "margins"])
def test_the_examples_in_the_script_hold(script, name):
    said = doctest.testmod(sys.modules[name])
    assert said.attempted
    assert not said.failed


def test_what_the_words_claim_of_mbls_is_so(studies):
    full, full_last, low, last = (
        studies[name] for name in ("full", "full-last", "low", "low-last")
    )
    assert full.mean("mbls", "ece") < full.mean("ce", "ece")
    assert full.p_holm("mbls", "ce", "ece") < 0.05
    for study in (full_last, low, last):  # like CE
        assert study.p_holm("mbls", "ce", "ece") > 0.05
        assert study.n_seeds == 1 or study.p_over_seeds("mbls", "ce", "ece") > 0.05
        for key in ("svls", "focal", "ecp", "ls"):
            assert study.mean(key, "ece") < study.mean("mbls", "ece")
            assert study.p_holm(key, "mbls", "ece") < 0.05
    for study in studies.values():  # DSC does not improve; local temperature scaling does more
        assert study.p_holm("mbls", "ce", "dice") > 0.05 or study.mean("mbls", "dice") < study.mean(
            "ce", "dice"
        )
        lower = study.mean("ce", "ece", "lts") / study.mean("mbls", "ece")
        assert 0.9 < lower < 1 if study is full else lower < 0.6
    assert full.mean("mbls", "cece") < full.mean("ce", "cece")
    assert low.mean("mbls", "cece") > low.mean("ce", "cece")
    assert full.p_holm("mbls", "ce", "cece") < 0.05 > low.p_holm("mbls", "ce", "cece")
    for metric in ("cece", "dice", "asd"):  # a little worse, which seeds do not confirm
        assert low.p_holm("mbls", "ce", metric) < 0.05 < low.p_over_seeds("mbls", "ce", metric)
    assert low.mean("mbls", "asd") > low.mean("ce", "asd")
    assert all(last.p_over_seeds(key, "ce", "ece") > 0.05 for key in (MEAN, L2))
    for key, other in (("mbls", L2), ("mbls", MEAN)):  # not told apart over seeds
        assert min(study.p_over_seeds(key, other, "ece") for study in (low, last)) > 0.05
    assert (last.by_seed("ece")["mbls_dice"] < last.by_seed("ece")["ce_dice"]).all()


def test_what_the_words_claim_of_the_kept_epochs_is_so(studies):
    full = studies["full"].trainings
    kept = [full.kept_epochs(key)[0] for key in ("mbls", "ce")]
    assert kept[0] < kept[1] < 50
    ce, mbls = (
        full.curve(run, "val_ece")[kept[0] - 1 : kept[1]]
        for run in ("ce-unet-s0", "mbls-margin10-unet-s0")
    )
    assert abs(statistics.fmean(ce) - statistics.fmean(mbls)) < 0.003  # the trainings are alike
    assert max(mbls) - min(mbls) > 0.01  # up and down
    assert (full.mean_amid("ce", kept), full.mean_amid("mbls", kept)) == tuple(
        f"{statistics.fmean(values):.3f}" for values in (ce, mbls)
    )
    assert full.range_amid("mbls", kept) == f"{min(mbls):.3f} to {max(mbls):.3f}"
    for key in ("svls", "ecp"):  # the method decides
        assert sum(a < b for a, b in zip(full.amid(key, kept), ce, strict=True)) == len(ce)


def test_what_the_words_claim_of_noise_is_so(studies, margin5):
    full, low, strong = studies["full"], studies["low"], "gaussian_noise:0.05"
    lead = full.mean("ce", "ece") - full.mean("mbls", "ece")
    assert (
        0
        < full.mean("ce", "ece", corruption=strong) - full.mean("mbls", "ece", corruption=strong)
        < lead
    )
    assert full.mean("mbls", "dice", corruption=strong) < full.mean("ce", "dice", corruption=strong)
    five = margin5["full"]
    assert five.mean("mbls", "ece", corruption=strong) > 1.5 * five.mean(
        "ce", "ece", corruption=strong
    )
    noisy = low.by_seed("ece", strong)
    assert len(set(noisy["mbls"] > noisy["ce"])) == 2  # seeds disagree


def test_what_the_words_claim_of_margin_5_is_so(studies, margin5):
    margins = sys.modules["margins"]
    assert all(five.setting("mbls") == "margin 5" for five in margin5.values())
    for name in ("full-last", "low-last"):  # lower late in training
        assert margin5[name].mean("mbls", "ece") < studies[name].mean("ce", "ece")
        assert margin5[name].p_holm("mbls", "ce", "ece") < 0.05
        assert margin5[name].mean("ce", "ece") == studies[name].mean("ce", "ece")
        assert all(
            margin5[name].mean(key, "ece") < margin5[name].mean("mbls", "ece")
            for key in ("svls", "focal", "ls")
        )
    low = margin5["low-last"]
    assert (low.by_seed("ece")["mbls"] < low.by_seed("ece")["ce"]).all()
    assert low.p_over_seeds("mbls", "ce", "ece") < 0.05
    room = 1 - margins.ceiling(5)
    gain = {
        name: five.mean("ce", "ece") - five.mean("mbls", "ece") for name, five in margin5.items()
    }
    assert 0 < max(gain["full"], gain["full-last"]) < room
    assert gain["low-last"] > room + 2 * studies["low-last"].mean("ce", "underconfidence")
    for study, key in (
        (margin5["full"], "mbls"),
        (studies["full"], "ecp"),
        (studies["low"], "ls"),
    ):  # TS makes worse
        assert study.mean(key, "ece", "ts") > study.mean(key, "ece")
        assert all(study.temperature(run) < 1 for run in study.contender(key).runs)
    for study in (studies["full"], studies["low"]):
        assert all(
            study.mean(key, "cece", "lts") > study.mean(key, "cece") for key in ("ce", "mbls")
        )
        assert [study.setting(key) for key in study.keys] == [
            studies["low"].setting(key) for key in study.keys
        ]
    tried = studies["low"].contender("mbls")
    seeds = [studies["low"].all.runs[run]["best"]["val_dice"] for run in tried.runs]
    assert (
        max(tried.tried.values()) - min(tried.tried.values()) < statistics.stdev(seeds) / 2
    )  # far below those of seeds


def test_what_the_words_claim_of_epochs_and_seeds_is_so(studies):
    full, low, last = (studies[name] for name in ("full", "low", "low-last"))
    assert all(max(full.trainings.kept_epochs(key)) < 50 for key in full.keys)
    assert (
        0.4 < float(last.sd_of_seeds("ece")) / float(low.sd_of_seeds("ece")) < 0.6
    )  # half as large
    within, between, p = spreads(low.by_seed("ece")[low.keys])
    assert between > within
    assert p < 0.05
    assert spreads(low.by_seed("dice")[low.keys])[2] > 0.05
    assert sum(low.p_over_seeds(key, "ce", "ece") < 0.05 for key in low.keys if key != "ce") <= 1
    margins = {
        key: [(("margin", m),) for m in ((5.0, 10.0) if key == L2 else (5.0, 8.0, 10.0))]
        for key in ("mbls", MEAN, L2)
    }
    for key, tried in margins.items():
        assert sorted(low.contender(key).tried) == sorted(tried)
        lowest, *others = low.trainings.late_p(key, "ce", tried, same=False)
        assert min(others) > 0.05
        assert lowest < 0.05 or key == L2
        assert low.trainings.late_ece(key, tried[0]) < low.trainings.late_ece("ce")
    five = sorted(
        low.trainings.late_p(key, "ce", tried[:1], same=False)[0] for key, tried in margins.items()
    )
    assert 8 * five[0] < 0.05 < 7 * five[1]  # of eight tests one would stand Holm's correction
    for key in (MEAN, L2):  # cannot be told apart at equal margins
        assert min(low.trainings.late_p("mbls", key, margins[key])) > 0.05


def test_what_the_words_claim_of_the_other_methods_is_so(studies):
    published_mean = sys.modules["published_rows"].published_mean
    low, full = studies["low"], studies["full"]
    assert [full.rank(key) for key in ("ecp", "mbls", "ce")] == ["first", "second", "third"]
    assert float(full.case_rank("ce")) - float(full.case_rank("ecp")) < 0.3  # close
    assert set(sorted(full.keys, key=lambda key: full.mean(key, "ece"))[:2]) == {"svls", "ecp"}
    assert all(full.p_holm(key, "mbls", "ece") > 0.05 for key in ("svls", "focal", "ecp"))
    assert all(full.p_holm(key, "mbls", "ece") < 0.05 for key in ("ce", "ce_dice", "ls"))
    assert all(full.mean(key, "ece") > full.mean("mbls", "ece") for key in ("ce", "ce_dice", "ls"))
    assert min(full.keys, key=lambda key: full.mean(key, "cece")) == "ce_dice"
    near = [
        key
        for key in full.keys
        if 0.85 < full.mean(key, "cece") / published_mean(key, "cece") < 1.15
    ]
    assert set(full.keys) - set(near) == {"ls"}
    assert all(
        abs(full.mean(key, "dice") - published_mean(key, "dice")) < 0.015 for key in full.keys
    )
    assert all(full.mean(key, "confidence_gap") < 0 for key in ("focal", "ls"))
    gain = (full.mean("ce", "ece") - full.mean("mbls", "ece")) / (
        published_mean("ce", "ece") - published_mean("mbls", "ece")
    )
    assert 0.45 < gain < 0.55  # half
    late = studies["full-last"]
    assert late.mean("ce_dice", "ece") < late.mean("ce", "ece")
    assert low.mean("ce_dice", "confidence_gap") > low.mean("ce", "confidence_gap")
    assert [
        key for key in full.keys if late.mean(key, "dice") > full.mean(key, "dice") - 0.005
    ] == ["ce_dice"]
    by_cece = sorted(low.keys, key=lambda key: low.mean(key, "cece"))
    assert set(by_cece[-3:]) == {"focal", "ls", "svls"}
    assert "ce_dice" in by_cece[:2]
    assert max(low.keys, key=lambda key: low.mean(key, "ece")) == "ce_dice"


def test_what_is_published_is_small_and_shows_no_patient():
    files = [
        path for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    files += [path for path in PAGES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 20e6
    assert {path.suffix for path in files} <= {".toml", ".json", ".gz", ".py", ".j2", ".md", ".svg"}
    assert not any("qualitative" in path.name for path in files)
    for path in FOLDER.glob("*/runs/*/run.json"):
        assert json.loads(path.read_text())["settings"]["data"] == "hippocampus"


@pytest.mark.parametrize("study", HEADS)
def test_every_cell_that_the_pages_name_is_one_of_the_plan(study):
    parts = [FOLDER / part for part in PARTS.get(study, (study,))]
    plan = {
        name: cell
        for part in parts
        for name, cell in json.loads((part / "plan.json").read_text())["cells"].items()
    }
    named = set(re.findall(r"`((?:ce|focal|ecp|ls|svls|mbls)[\w.-]*-unet-s\d)`", section(study)))
    for part in parts:
        named |= set(
            re.findall(rf"/{part.name}.toml .* --cell (\S+)", PAGE.read_text(encoding="utf-8"))
        )
    assert named
    assert named <= set(plan)
    for name in named:
        info = json.loads((folder_of(study, name) / "run.json").read_text())
        assert info["settings"]["loss"] == plan[name]["settings"]["loss"]
        assert info["settings"]["seed"] == plan[name]["settings"]["seed"]


@pytest.mark.parametrize("study", ["full", "full-last", "low-last"])
def test_the_cells_of_margin_5_are_those_of_its_plans(study):
    section = DETAILS.read_text(encoding="utf-8").partition("## MbLS with margin 5")[2]
    folder, plan = FOLDER / f"{study}-margin5", (FOLDER / f"{study}-margin5.toml").read_text()
    named = re.findall(
        r"`(mbls-margin5-unet-s\d)`",
        section.partition(f"`{study}-margin5.toml`")[0].rpartition("###")[2],
    )
    assert sorted(named) == sorted(path.name for path in (folder / "runs").iterdir())
    assert f"seed = {list(range(len(named))) if len(named) > 1 else 0}\n" in plan
    for name in named:
        settings = json.loads((folder / "runs" / name / "run.json").read_text())["settings"]
        assert settings["loss"]["margin"] == 5
        assert (settings["training"].get("keep") == "last") == ('weights = ["last"]' in plan)


@pytest.mark.parametrize("study", sorted(path.parent.name for path in FOLDER.glob("*/cells.json")))
def test_the_list_of_cells_has_the_score_of_the_epoch_that_was_kept(study):
    cells = json.loads((FOLDER / study / "cells.json").read_text())["cells"]
    for path in (FOLDER / study).glob("runs/*/run.json"):
        assert math.isclose(
            cells[path.parent.name]["val_dice"],
            json.loads(path.read_text())["best"]["val_dice"],
            abs_tol=1e-5,
        )
