"""What `evaluate` and `calibrate` print: a row per class, what was missed and where, and why."""

import json
import math
import re

import numpy as np
import pytest

from segcal.cli.scores import objects, reasons, show_scores

KINDS = ["liver", "tumour"]
# By class and case: the true volume, whether anything is predicted, Dice.
CASES = {
    "liver": {"a": (900, True, 0.9), "b": (800, True, 0.8), "c": (700, True, 0.7)},
    "tumour": {"a": (5, False, 0.0), "b": (0, True, 0.0), "c": (0, False, math.nan)},
}


def rows():
    made = []

    def add(case, kind, metric, value, voxels=""):
        row = {"case": case, "class": kind, "metric": metric, "value": value, "voxels": voxels}
        made.append(row)

    for kind, cases in CASES.items():
        for case, (true, there, dice) in cases.items():
            add(case, kind, "dice", dice)
            add(case, kind, "missed", int((true > 0) != there))
            for key in ("assd", "hd95"):
                add(case, kind, key, 2.0 if true and there else math.nan)
            add(case, kind, "true_ml", true)
            add(case, kind, "expected_ml", 1.5 * true + 1)
            add(case, kind, "misplaced", 0.1 if kind == "liver" else math.nan, "all")
    for case in "abc":
        add(case, "mean", "dice", 0.5)
        add(case, "mean", "missed", int(case in "ab"))
        for key in ("misplaced", "nll", "ece_perfect"):
            add(case, "all", key, 0.25, "all")
    add("pooled", "all", "nll", 99.0, "all")
    return made


def test_objects_are_named_as_missed_or_invented():
    found = objects(rows(), KINDS)
    assert found == {"missed": {"tumour": ["a"]}, "invented": {"tumour": ["b"]}}


def test_a_missing_distance_has_its_reason():
    assert reasons(rows(), KINDS) == [
        "tumour was missed in a",
        "tumour was invented in b",
        "tumour has no ASSD and HD95 in 3 of 3 cases: missed or invented in 2, in neither label map"
        " in 1",
    ]


def test_many_cases_are_counted():
    many = [row | {"case": f"{row['case']}{i}"} for i in range(7) for row in rows()]
    assert reasons(many, KINDS)[0] == "tumour was missed in a0, a1, a2, a3, a4 and 2 more"


def cells(text):
    """The cells of each row of a printed table."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_every_class_has_a_row_and_all_together_one(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    show_scores("run", {"clean": rows()}, {}, as_json=False, unit="pixels")
    printed = capsys.readouterr().out
    assert "distances in pixels" in printed
    liver, tumour, overall = cells(printed)
    assert liver[:5] == ["liver", "0.8", "2", "2", "0"]
    assert tumour[:5] == ["tumour", "0", "—", "—", "2"]
    assert overall[0] == "all"
    assert overall[4] == "2"  # objects in all cases
    assert overall[6] == "0.25"  # not that of pooled voxels
    true, expected = 2405, 1.5 * 2405 + 6
    assert overall[7] == f"{expected / true:.4g}"
    assert "tumour was missed in a" in printed


def test_conditions_stand_below_each_other_and_say_what_differs_once(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    show_scores("run", {"before": rows(), "ts": rows()}, {}, as_json=False)
    printed = capsys.readouterr().out
    rows_of = ["before", "", "", "ts", "", ""]
    assert [row[0] for row in cells(printed)] == rows_of
    assert [row[1] for row in cells(printed)] == ["liver", "tumour", "all"] * 2
    assert len(re.findall("tumour was missed", printed)) == 1


def test_json_has_classes_and_objects(capsys):
    show_scores("run", {"clean": rows()}, {}, as_json=True)
    values = json.loads(capsys.readouterr().out)["clean"]
    assert values["classes"]["liver"]["dice"] == pytest.approx(np.mean([0.9, 0.8, 0.7]))
    assert values["classes"]["tumour"]["assd"] is None
    assert values["objects"]["missed"] == {"tumour": ["a"]}
