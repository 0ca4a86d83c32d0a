"""Runs read together: who is a contender, what stands for it, what is refused."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from synthetic_runs import miss, scores_of, write_run

from segcal.compare import pack, read_results
from segcal.compare.tables import TABLES, all_tables
from segcal.folders import read_run, read_scores, write_bins, write_json, write_scores
from segcal.types import UserError

CASES = tuple(f"c{i}" for i in range(8))


def values(level):
    return {(case, name, "dice"): level for case in CASES for name in "AB"} | {
        key: 0.0
        for case in CASES
        for key in [(case, n, m) for n in "AB" for m in ("assd", "missed")]
        + [(case, "all", m) for m in ("misplaced", "nll")]
    }


# Contenders
# ------------------------------------------------------------------------------


def test_runs_that_differ_in_seed_or_tuned_setting_are_one_contender(tmp_path):
    for margin in (5, 8, 10):
        for seed in (0, 1):
            write_run(
                tmp_path,
                f"m{margin}-{seed}",
                "mbls",
                settings={"margin": float(margin)},
                seed=seed,
                val_dice=0.1 * margin,
            )
    write_run(tmp_path, "ce", "ce")
    write_run(tmp_path, "l2", "mbls", settings={"penalty": "l2"})
    write_run(tmp_path, "plus", "mbls", network="unetpp")
    found = read_results([tmp_path])
    assert [c.key for c in found.contenders] == ["ce", "mbls", "mbls penalty=l2", "unetpp mbls"]
    assert [c.label for c in found.contenders] == [
        "CE",
        "MbLS",
        "MbLS (penalty l2)",
        "MbLS, U-Net++",
    ]
    assert [c.variant for c in found.contenders] == [(), (), (("penalty", "l2"),), ()]
    mbls = found.contenders[1]
    assert (mbls.setting, mbls.runs) == ("margin=10", ("m10-0", "m10-1"))
    assert mbls.chosen == {0: (("margin", 10.0),)}
    assert list(mbls.tried) == [(("margin", m),) for m in (10.0, 5.0, 8.0)]  # as read
    assert list(mbls.tried.values()) == pytest.approx([1.0, 0.5, 0.8])
    assert [c.key for c in found.main("organs")] == ["ce", "mbls"]


def test_a_default_setting_is_the_same_spelled_out(tmp_path):
    write_run(tmp_path, "a", "mbls", settings={"margin": 10.0}, seed=0)
    write_run(tmp_path, "b", "mbls", settings={"weight": 0.1, "ignore_index": 255}, seed=1)
    (only,) = read_results([tmp_path]).contenders
    assert only.runs == ("a", "b")


def test_reach_is_named_only_where_it_is_not_the_default(tmp_path):
    write_run(tmp_path, "a", "mbls", settings={"where": "all", "reach": 3})
    write_run(tmp_path, "b", "mbls", settings={"where": "near", "reach": 3})
    write_run(tmp_path, "c", "mbls", settings={"where": "near", "reach": 5})
    labels = [c.label for c in read_results([tmp_path]).contenders]
    assert labels == ["MbLS", "MbLS (reach 5 where near)", "MbLS (where near)"]


def test_variants_stand_in_where_the_method_itself_was_not_run(tmp_path):
    write_run(tmp_path, "ce", "ce", network="unetpp")
    write_run(tmp_path, "mean", "mbls", settings={"class_reduction": "mean"}, network="unetpp")
    found = read_results([tmp_path])
    assert [c.key for c in found.main("organs")] == [
        "unetpp ce",
        "unetpp mbls class_reduction=mean",
    ]


def test_validation_alone_chooses(tmp_path):
    """The setting with the worst test scores is chosen if validation says so, and a NaN
    never is.
    """
    write_run(
        tmp_path, "good-on-test", "ls", settings={"alpha": 0.1}, val_dice=0.7, scores=values(0.9)
    )
    write_run(
        tmp_path, "good-on-val", "ls", settings={"alpha": 0.2}, val_dice=0.8, scores=values(0.1)
    )
    write_run(
        tmp_path, "diverged", "ls", settings={"alpha": 0.3}, val_dice=math.nan, scores=values(0.95)
    )
    found = read_results([tmp_path])
    assert found.contenders[0].runs == ("good-on-val",)
    assert set(found.rows()["run"]) == {"good-on-val"}
    np.testing.assert_allclose(found.per_case("organs", "dice", "mean"), 0.1)


def test_only_the_chosen_setting_needs_test_scores(tmp_path):
    write_run(tmp_path, "a", "ls", settings={"alpha": 0.1}, val_dice=0.7, conditions=())
    write_run(tmp_path, "b", "ls", settings={"alpha": 0.2}, val_dice=0.8)
    assert read_results([tmp_path]).contenders[0].runs == ("b",)


# Weights
# ------------------------------------------------------------------------------

BOTH = ({}, {"weights": "last"})


def test_each_of_several_weights_is_a_contender_with_a_choice_of_its_own(tmp_path):
    """The validation Dice of the best epoch chooses margin 5, that of the last epoch margin 8."""
    best, last = values(0.7), values(0.6)
    for margin, kept in ((5.0, {"best": 0.9, "last": 0.5}), (8.0, {"best": 0.8, "last": 0.6})):
        name, settings = f"m{margin:g}", {"margin": margin}
        more = {"settings": settings, "kept": kept, "conditions": BOTH, "scores": [best, last]}
        write_run(tmp_path, name, "mbls", **more)
    write_run(tmp_path, "ce")
    results = read_results([tmp_path])
    assert [c.key for c in results.contenders] == ["ce", "mbls", "mbls last epoch"]
    assert [c.label for c in results.contenders] == ["CE", "MbLS", "MbLS (last epoch)"]
    assert [c.runs for c in results.contenders] == [("ce",), ("m5",), ("m8",)]
    assert [c.weights for c in results.contenders] == ["best", "best", "last"]
    assert [c.tried[("margin", 5.0),] for c in results.contenders[1:]] == [0.9, 0.5]
    assert [c.key for c in results.main("organs")] == ["ce", "mbls"]
    dice = results.per_case("organs", "dice", "mean")
    assert dice.mean()[["mbls", "mbls last epoch"]].tolist() == pytest.approx([0.7, 0.6])
    rows = results.scores[results.scores["chosen"]]
    pairs = set(zip(rows["run"], rows["weights"], rows["contender"], strict=True))
    assert pairs == {
        ("ce", "best", "ce"),
        ("m5", "best", "mbls"),
        ("m8", "last", "mbls last epoch"),
    }
    assert [row.key for row in TABLES["penalty"](results).rows] == ["mbls", "mbls last epoch"]


def test_one_kind_of_weights_can_be_read_alone(tmp_path):
    for margin, kept in ((5.0, {"best": 0.9, "last": 0.5}), (8.0, {"best": 0.8, "last": 0.6})):
        settings = {"margin": margin}
        write_run(tmp_path, f"m{margin:g}", "mbls", settings=settings, kept=kept, conditions=())
    chosen = {}
    for weights in ("best", "last"):
        (c,) = read_results([tmp_path], scored=False, weights=weights).contenders
        chosen[weights] = (c.key, c.setting, c.weights)
    assert chosen == {
        "best": ("mbls", "margin=5", "best"),
        "last": ("mbls last epoch", "margin=8", "last"),
    }
    with pytest.raises(UserError, match="unknown weights 'first'; choose one of best, last, nll"):
        read_results([tmp_path], weights="first")
    write_run(tmp_path / "old", "ce")
    for weights in ("last", "nll"):
        message = f"ce has no {weights} weights; leave it out, or train it again"
        with pytest.raises(UserError, match=message):
            read_results([tmp_path / "old"], weights=weights)


def test_weights_of_the_last_epoch_alone_have_plain_names(tmp_path):
    """As in the published tables of the last epoch."""
    for loss in ("ce", "mbls"):
        write_run(tmp_path, loss, loss, kept={"last": 0.8})
    results = read_results([tmp_path])
    assert [(c.key, c.label) for c in results.contenders] == [("ce", "CE"), ("mbls", "MbLS")]
    write_run(tmp_path, "ls", "ls")
    results = read_results([tmp_path])
    assert [c.key for c in results.main("organs")] == ["ce last epoch", "ls", "mbls last epoch"]


def test_last_weights_that_only_some_seeds_were_scored_with_are_refused(tmp_path):
    kept = {"best": 0.9, "last": 0.8}
    write_run(tmp_path, "s0", kept=kept, conditions=BOTH)
    write_run(tmp_path, "s1", kept=kept, seed=1)
    refused(tmp_path, "s1 has no test scores; run segcal evaluate --weights last on it first")
    assert len(read_results([tmp_path], weights="best").contenders) == 1


def test_bins_are_those_of_the_contender_s_weights(tmp_path):
    folder = write_run(tmp_path, "ce", kept={"best": 0.9, "last": 0.8}, conditions=BOTH)
    entries = []
    for weights, count in (("best", 3.0), ("last", 4.0)):
        entry = {"weights": weights, "split": "test", "corruption": "", "calibrator": ""}
        entry |= {"top": {"count": [count]}, "per_class": {"count": [[count]]}}
        entries.append(entry | {"voxels": [1], "mean_logits": [[1.0]]})
    write_bins(folder, ["background"], entries)
    results = read_results([tmp_path])
    counts = [
        results.bins(c, voxels="reference")["top"]["count"].tolist() for c in results.contenders
    ]
    assert counts == [[3.0], [4.0]]


# Ensembles and other predictors
# ------------------------------------------------------------------------------


def test_ensembles_are_contenders_beside_runs(tmp_path):
    write_run(tmp_path, "ce")
    write_run(tmp_path, "m", "mbls", settings={"margin": 8.0})
    write_run(tmp_path, "e", "mbls", settings={"margin": 8.0}, members=3)
    write_run(tmp_path, "l", "mbls", members=3, ensemble={"average": "logits"})
    write_run(tmp_path, "t", "mbls", members=5, ensemble={"calibrator": "ts"})
    write_run(tmp_path, "x", "CE+MbLS", members=2, network="U-Net+U-Net++")
    results = read_results([tmp_path])
    assert {c.label: c.key for c in results.contenders} == {
        "CE": "ce",
        "MbLS": "mbls",
        "MbLS (ensemble of 3)": "mbls ensemble of 3",
        "MbLS (average logits, ensemble of 3)": "mbls average=logits ensemble of 3",
        "MbLS (calibrator ts, ensemble of 5)": "mbls calibrator=ts ensemble of 5",
        "CE+MbLS (ensemble of 2), U-Net+U-Net++": "U-Net+U-Net++ CE+MbLS ensemble of 2",
    }
    assert [c.key for c in results.main("organs")] == [
        "ce",
        "mbls",
        "mbls ensemble of 3",
        "mbls calibrator=ts ensemble of 5",
        "U-Net+U-Net++ CE+MbLS ensemble of 2",
    ]
    tables = {table.key: table for table in all_tables(results)}
    assert [row.label for row in tables["selection"].rows] == ["MbLS, margin=8"]
    assert len(tables["calibration"].rows) == 5
    assert math.isnan(results.contenders[2].tried[("margin", 8.0),])


def test_methods_and_networks_that_are_not_ours_come_last_under_their_names(tmp_path):
    write_run(tmp_path, "b", "someone's loss", network="resnet")
    write_run(tmp_path, "a", "nnU-Net")
    write_run(tmp_path, "c", "svls")
    results = read_results([tmp_path])
    assert [c.label for c in results.contenders] == ["SVLS", "nnU-Net", "someone's loss, resnet"]
    labels = [row.label for row in TABLES["calibration"](results).rows]
    assert labels == ["SVLS", "nnU-Net", "someone's loss, resnet"]


def test_settings_without_validation_dice_are_not_chosen_among(tmp_path):
    for margin in (5.0, 8.0):
        write_run(tmp_path, f"e{margin:g}", "mbls", settings={"margin": margin}, members=3)
    refused(
        tmp_path,
        "e5, e8 have no validation Dice to choose one of margin=5, margin=8; name the runs of one"
        " setting",
    )


def test_a_packed_ensemble_names_no_folders(tmp_path):
    write_run(tmp_path / "runs", "e", "mbls", members=2)
    pack([tmp_path / "runs"], tmp_path / "packed")
    (packed,) = read_results([tmp_path / "packed"]).runs.values()
    assert [member["folder"] for member in packed["members"]] == ["0", "1"]


# Values
# ------------------------------------------------------------------------------


def test_seeds_are_averaged_per_case(tmp_path):
    many = [scores_of(CASES, "AB", seed=seed) for seed in range(3)]
    for seed, scores in enumerate(many):
        write_run(tmp_path, f"s{seed}", seed=seed, scores=scores)
    found = read_results([tmp_path]).per_case("organs", "dice", "A")
    assert list(found.columns) == ["ce"]
    for case in CASES:
        assert found.loc[case, "ce"] == pytest.approx(sum(s[case, "A", "dice"] for s in many) / 3)


def test_scores_over_other_voxels_are_not_averaged_in(tmp_path):
    run = write_run(tmp_path, "ce")
    write_run(tmp_path, "ls", "ls")
    expected = read_results([tmp_path])
    rows = read_scores(run)
    others = [
        row | {"voxels": "near", "value": 9.0} for row in rows if row["metric"] == "misplaced"
    ]
    write_scores(run, rows + others)
    results = read_results([tmp_path])
    for metric, kind in (("misplaced", "all"), ("dice", "mean")):
        tables = [r.per_case("organs", metric, kind) for r in (results, expected)]
        pd.testing.assert_frame_equal(*tables)
    assert len(results.rows()) == len(expected.rows())
    write_scores(run, [row for row in rows if row["metric"] != "misplaced"] + others)
    refused(tmp_path, "ce was scored by an older version, without Misplaced")


def test_folds_are_united(tmp_path):
    for fold in range(4):
        for loss in ("ce", "mbls"):
            write_run(
                tmp_path, f"{loss}{fold}", loss, fold=fold, cases=CASES[2 * fold : 2 * fold + 2]
            )
    found = read_results([tmp_path])
    assert [len(c.runs) for c in found.contenders] == [4, 4]
    table = found.per_case("organs", "misplaced", "all")
    assert list(table.index) == list(CASES)
    assert table.notna().all(axis=None)


def test_a_missed_object_leaves_no_distance_behind(tmp_path):
    """Neither the other class nor the other seed may stand in for it."""
    scores = [scores_of(CASES, "AB", seed=seed) for seed in range(2)]
    miss(scores[0], "c3", "B")
    for seed in range(2):
        write_run(tmp_path, f"s{seed}", seed=seed, scores=scores[seed])
    found = read_results([tmp_path])
    assert list(found.per_case("organs", "assd", "A")["ce"].isna()) == [False] * 8
    for kind in ("B", "mean"):
        assert list(found.per_case("organs", "assd", kind)["ce"].isna()) == [
            case == "c3" for case in CASES
        ]
    assert found.per_case("organs", "dice", "B").loc["c3", "ce"] == pytest.approx(
        scores[1]["c3", "B", "dice"] / 2
    )
    assert found.per_case("organs", "missed", "mean").loc["c3", "ce"] == 0.5


@pytest.mark.parametrize("n_invented", range(4))
def test_of_three_seeds_some_invent_an_object(tmp_path, n_invented):
    """Each that rightly leaves it out is 1 beside those that have 0, by itself it has no value;
    folds are no seeds.
    """
    for seed in range(3):
        for fold, cases in enumerate((CASES[:4], CASES[4:])):
            scores = scores_of(cases, "AB", seed=seed)
            for kind in "AB" if fold == 0 else "":
                miss(scores, "c3", kind)
                if seed >= n_invented:
                    scores |= {("c3", kind, "dice"): math.nan, ("c3", kind, "missed"): 0.0}
            write_run(tmp_path, f"s{seed}f{fold}", seed=seed, fold=fold, cases=cases, scores=scores)
    found = read_results([tmp_path])
    for kind in ("A", "mean"):
        dice = found.per_case("organs", "dice", kind)["ce"]
        assert (
            dice["c3"] == pytest.approx(1 - n_invented / 3)
            if n_invented
            else math.isnan(dice["c3"])
        )
        assert dice.drop("c3").between(0.5, 0.99).all()
        assert math.isnan(found.per_case("organs", "assd", kind).loc["c3", "ce"])


def test_patients_are_those_that_the_run_recorded(tmp_path):
    write_run(tmp_path, "a", patients={case: f"p{i // 2}" for i, case in enumerate(CASES)})
    assert read_results([tmp_path]).patients("organs").loc[list(CASES)].tolist() == [
        f"p{i // 2}" for i in range(8)
    ]
    write_run(tmp_path / "other", "b")
    assert read_results([tmp_path / "other"]).patients("organs")["c1"] == "c1"


def test_regions_have_their_own_mean(tmp_path):
    write_run(tmp_path, "a", regions={"W": [1, 2]})
    write_run(tmp_path, "b", dataset="other")
    found = read_results([tmp_path])
    assert found.datasets == ("organs", "other")
    assert found.mean_class("organs") == "mean (region)"
    assert found.overall_class("organs", "hd95") == "mean (region)"
    assert found.overall_class("organs", "nll") == "all"
    assert found.mean_class("other") == "mean"


def test_a_contender_counts_under_a_condition_only_with_all_its_runs(tmp_path):
    both = ({}, {"calibrator": "ts"})
    write_run(tmp_path, "ce0", conditions=both, seed=0)
    write_run(tmp_path, "ce1", seed=1)
    write_run(tmp_path, "ls", "ls", conditions=both)
    found = read_results([tmp_path])
    assert list(found.per_case("organs", "misplaced", "all", calibrator="ts").columns) == ["ls"]
    assert found.lacking(found.contenders, calibrator="ts") == ("ce1",)
    with pytest.raises(
        UserError,
        match="ce1 has no test scores with ts; run segcal calibrate .*ce1 --with ts first",
    ):
        found.require(found.contenders, calibrator="ts")
    with pytest.raises(UserError, match="unknown calibrator 'tts'; choose one of , ts"):
        found.require(found.contenders, calibrator="tts")


def test_bins_of_seeds_are_added(tmp_path):
    for seed in range(2):
        folder = write_run(tmp_path, f"s{seed}", seed=seed)
        top = {"count": [1.0, 2.0 + seed], "conf": [0.1, 1.5], "hit": [0.0, 2.0]}
        entry = {
            "split": "test",
            "corruption": "",
            "calibrator": "",
            "top": top,
            "per_class": {"count": [[1.0]]},
        }
        entry |= {"voxels": [2, 1 + seed], "mean_logits": [[1.0, 0.0], [0.0, 3.0 + seed]]}
        (folder / "bins.json").write_text(
            json.dumps({"classes": ["background", "A"], "entries": [entry]})
        )
    found = read_results([tmp_path])
    bins = found.bins(found.contenders[0], voxels="reference")
    assert bins["top"]["count"].tolist() == [2.0, 5.0]
    with pytest.raises(UserError, match="s0 are of reference voxels alone, not of near ones; run"):
        found.bins(found.contenders[0])
    assert bins["mean_logits"].tolist() == [[1.0, 0.0], [0.0, pytest.approx((3 * 1 + 4 * 2) / 3)]]
    with pytest.raises(
        UserError,
        match=(
            "s0 has no bins for split test, calibrator ts, weights best; run segcal evaluate or"
            " calibrate first"
        ),
    ):
        found.bins(found.contenders[0], calibrator="ts")


# Refusals
# ------------------------------------------------------------------------------


def refused(tmp_path, message, *folders):
    with pytest.raises(UserError, match=message):
        read_results(list(folders) or [tmp_path])


def test_folders_that_are_no_finished_run(tmp_path):
    with pytest.raises(UserError, match="there is no run to read"):
        read_results([])
    refused(tmp_path, "is not a run")
    write_run(tmp_path, "half", status="running")
    refused(
        tmp_path,
        "half is not finished; the same segcal train command goes on with it, or leave it out",
    )


def test_a_study_folder_is_its_runs(tmp_path):
    write_run(tmp_path / "study" / "runs", "a")
    write_run(tmp_path / "study" / "runs", "b", "ls")
    assert set(read_results([tmp_path / "study"]).runs) == {"a", "b"}


def test_a_run_named_twice(tmp_path):
    run = write_run(tmp_path, "a")
    refused(tmp_path, "is given twice, or is a copy of another run", run, run)


def test_runs_of_one_name_in_two_folders(tmp_path):
    runs = [write_run(tmp_path / "x", "a"), write_run(tmp_path / "y", "a", "ls")]
    found = read_results(runs)
    assert set(found.runs) == {"a", str(tmp_path / "y" / "a")}
    assert found.per_case("organs", "dice", "A").shape == (8, 2)


def test_other_data_protocol_or_repeats(tmp_path):
    write_run(tmp_path / "data", "a")
    write_run(tmp_path / "data", "b", "ls", checksum="two")
    refused(tmp_path / "data", "b and a were trained on different preparations or splits of organs")
    write_run(tmp_path / "training", "a")
    write_run(tmp_path / "training", "b", "ls", epochs=3)
    refused(
        tmp_path / "training",
        r"b and a differ in their training settings; compare runs of one protocol \(epochs",
    )
    older, run = (
        read_run(write_run(tmp_path / "keys", name, loss))
        for name, loss in (("a", "ce"), ("b", "ls"))
    )
    for name, info, training in (("a", older, {}), ("b", run, {"lr_drop": 0.1})):
        info["settings"]["training"] = {"epochs": 2, "batch": 4} | training
        write_json(tmp_path / "keys" / name / "run.json", info)
    assert (
        len(read_results([tmp_path / "keys"]).contenders) == 2
    )  # a key that an older run does not have
    for machine in ({"precision": "bf16-mixed"}, {"devices": 2}):
        run["settings"]["machine"] = machine
        write_json(tmp_path / "keys" / "b" / "run.json", run)
        refused(tmp_path / "keys", "b and a differ in precision or number of processes")
    write_run(tmp_path / "repeat", "a", settings={})
    write_run(tmp_path / "repeat", "b", settings={})
    refused(tmp_path / "repeat", "a, b are the same: ce .*with one seed; name one of them")
    write_run(tmp_path / "seeds", "a", "ls", settings={"alpha": 0.1})
    write_run(tmp_path / "seeds", "b", "ls", settings={"alpha": 0.2}, seed=1)
    refused(tmp_path / "seeds", "the settings of ls were run with different seeds or folds")


def test_data_sets_with_different_contenders(tmp_path):
    write_run(tmp_path, "a")
    write_run(tmp_path, "b", dataset="other")
    write_run(tmp_path, "c", "ls", dataset="other")
    refused(tmp_path, "organs has no run of ls; compare one data set, or run what is missing")


def test_scores_that_are_missing_elsewhere_or_damaged(tmp_path):
    write_run(tmp_path / "none", "a", conditions=())
    refused(tmp_path / "none", "a has no test scores; run segcal evaluate on it first")
    assert len(read_results([tmp_path / "none"], scored=False).scores) == 0
    write_run(tmp_path / "cases", "a")
    write_run(tmp_path / "cases", "b", "ls", cases=CASES[:5])
    refused(tmp_path / "cases", r"ls \(b\) and ce \(a\) were scored on different test cases")
    for fold in range(2):
        write_run(tmp_path / "folds", f"a{fold}", fold=fold, cases=CASES[4 * fold : 4 * fold + 4])
    write_run(tmp_path / "folds", "b", "ls", cases=CASES[:4])
    refused(
        tmp_path / "folds",
        r"ls \(b\) and ce \(a0, a1\) were scored on different test cases; run the folds",
    )
    for text, message in (
        ("abc", "holds values that are not numbers"),
        ("0.5\nx", "scores.csv is damaged; remove it"),
    ):
        run = write_run(tmp_path / text[:3], "a")
        path = run / "scores.csv"
        path.write_text(path.read_text().rstrip().rpartition(",")[0] + f",{text}\n")
        refused(run.parent, message)
    run = write_run(tmp_path / "twice", "a")
    path = run / "scores.csv"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1] + "\n")
    refused(run.parent, "are damaged: rows are twice")


def test_a_study_with_failed_cells_is_read_without_them(tmp_path):
    for seed in range(2):
        write_run(tmp_path / "runs", f"ce{seed}", seed=seed)
        write_run(
            tmp_path / "runs", f"ls1{seed}", "ls", settings={"alpha": 0.1}, seed=seed, val_dice=0.7
        )
    write_run(tmp_path / "runs", "ls20", "ls", settings={"alpha": 0.2}, seed=0, val_dice=0.9)
    failed = {
        "ls21": {"status": "failed", "error": "no memory"},
        "svls0": {"status": "failed", "error": "no luck"},
    }
    (tmp_path / "cells.json").write_text(
        json.dumps({"cells": failed | {"ce0": {"status": "finished"}}})
    )
    found = read_results([tmp_path])
    assert found.failed == {"ls21": "no memory", "svls0": "no luck"}
    assert {c.key: c.setting for c in found.contenders} == {
        "ce": "",
        "ls": "alpha=0.1",
    }  # 0.2 lacks a seed
    write_run(tmp_path / "runs", "ls21", "ls", settings={"alpha": 0.2}, seed=1)
    path = tmp_path / "runs" / "ce0" / "run.json"
    path.write_text(path.read_text().replace("finished", "running"))
    refused(tmp_path, "ce0 is not finished; the same segcal study command goes on with it")
    (tmp_path / "cells.json").write_text("[1]")
    refused(tmp_path, "ce0 is not finished")


def test_scores_that_cannot_be_are_refused(tmp_path):
    def with_rows(name, change):
        run = write_run(tmp_path / name, "a")
        write_run(tmp_path / name, "b", "ls")
        changed = [change(row) for row in read_scores(run)]
        write_scores(run, [row for row in changed if row is not None])
        return tmp_path / name

    def of(metric, value):
        return lambda row: row | {"value": value} if row["metric"] == metric else row

    refused(with_rows("inf", of("assd", "inf")), "values are infinite; run segcal evaluate --again")
    refused(
        with_rows("nan", of("dice", "nan")),
        "a has no value of DSC in any test case; look at its predictions",
    )
    refused(
        with_rows(
            "lacks", lambda row: None if (row["metric"], row["case"]) == ("nll", "c0") else row
        ),
        "a lacks NLL of some test cases; run segcal evaluate --again on it",
    )
    older = with_rows("older", lambda row: None if row["metric"] == "nll" else row)
    refused(
        older,
        "a was scored by an older version, without NLL; run segcal evaluate --again on it, or"
        r" compare by the paper's metrics \(--metrics paper\)",
    )
    assert len(read_results([older], metrics="paper").contenders) == 2
    with pytest.raises(UserError, match="unknown metrics 'all'; choose one of main, paper"):
        read_results([older], metrics="all")
    refused(
        with_rows("other", lambda row: row | {"method": "focal"}),
        "scores of .*a are damaged: they are of another run",
    )


@pytest.mark.parametrize(
    "text", ['{"entries": 5}', "no json", '{"entries": [{"split": "test"}]}', "[]"]
)
def test_damaged_bins_are_named(tmp_path, text):
    run = write_run(tmp_path, "a")
    (run / "bins.json").write_text(text)
    found = read_results([run])
    with pytest.raises(
        UserError,
        match="(bins.json is damaged; run segcal evaluate --again on .*a$|a has no bins for)",
    ):
        found.bins(found.contenders[0])
