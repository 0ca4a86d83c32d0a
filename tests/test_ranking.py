"""Ranks, intervals, tests and stability: against slow loops, independent libraries, laws, and the
published conclusion.
"""

import math
import time
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, wilcoxon
from synthetic_runs import miss, scores_of, write_run

from segcal.compare import read_results
from segcal.compare.metric_sets import METRIC_SETS
from segcal.compare.ranking import (
    bootstrap_means,
    counted,
    credited,
    holm,
    main_values,
    mean_case_rank,
    pairwise,
    rank_results,
    ranks,
    signed_rank,
    stability,
    sum_rank,
)
from segcal.losses import LOSSES
from segcal.metrics import METRICS
from segcal.published import published, published_datasets, published_means
from segcal.types import UserError

NAN = math.nan
PAPER = METRIC_SETS["paper"].lead
ALONE = {}  # every case is a patient of its own


def frame(rows, cases=None):
    table = pd.DataFrame(np.array(rows, dtype=float), columns=list("abcdefg")[: len(rows[0])])
    table.index = pd.Index(cases or [f"c{i}" for i in range(len(rows))])
    return table


def random_frame(seed, n_cases=9, n=4, holes=0.0):
    rng = np.random.default_rng(seed)
    values = np.round(rng.random((n_cases, n)), 1)  # rounded, so that there are ties
    values[rng.random(values.shape) < holes] = NAN
    return frame(values)


# Ranks
# ------------------------------------------------------------------------------


def slow_ranks(row, better):
    """A contender's rank is 1, plus the number of better ones, plus half the number of others that
    are alike.
    """

    def loss(value):
        return (
            math.inf
            if math.isnan(value)
            else -value
            if better == "higher"
            else abs(value)
            if better == "zero"
            else (abs(math.log(value)) if value > 0 else math.inf)
            if better == "one"
            else value
        )

    return [
        1 + sum(loss(o) < loss(v) for o in row) + (sum(loss(o) == loss(v) for o in row) - 1) / 2
        for v in row
    ]


@pytest.mark.parametrize("metric", ["dice", "ece", "asd", "confidence_gap", "volume_ratio"])
@pytest.mark.parametrize("seed", range(5))
def test_ranks_are_those_of_a_slow_loop(metric, seed):
    values = random_frame(seed, holes=0.2) - (0.5 if metric == "confidence_gap" else 0)
    values = values.round(1)  # the oracle sees no tie that floating point hides
    values.iloc[3] = NAN
    found = ranks(values, metric)
    kept = values[values.notna().any(axis=1)]
    assert list(found.index) == list(kept.index)
    assert "c3" not in found.index
    for case, row in kept.iterrows():
        assert found.loc[case].tolist() == slow_ranks(row.tolist(), METRICS[metric].better)


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_ranks_agree_with_scipy_for_every_metric(metric):
    values = random_frame(1)
    order = {"higher": -values, "one": np.maximum(values, 1 / values.clip(1e-9))}
    loss = order.get(METRICS[metric].better, values)
    np.testing.assert_array_equal(ranks(values, metric), rankdata(loss, axis=1))


@given(
    st.lists(
        st.lists(st.floats(0.1, 1) | st.just(NAN), min_size=3, max_size=3), min_size=1, max_size=6
    )
)
def test_ranks_add_up_and_do_not_depend_on_order(rows):
    values = frame(rows)
    found = ranks(values, "ece")
    assert (found.sum(axis=1) == 6).all()  # 1 + 2 + 3, ties or not
    pd.testing.assert_frame_equal(ranks(values[["c", "a", "b"]], "ece")[["a", "b", "c"]], found)


def test_a_missed_object_ranks_last_and_an_invented_one_behind_a_rightly_empty_one():
    assert ranks(frame([[NAN, 5.0, NAN]]), "asd").iloc[0].tolist() == [2.5, 1.0, 2.5]
    # The object is not there: b and c say so and have no Dice, a invents one.
    assert ranks(frame([[0.0, NAN, NAN]]), "dice").iloc[0].tolist() == [3.0, 1.5, 1.5]
    # Someone has found something, so it is there, and NaN is no success.
    assert ranks(frame([[0.4, NAN, 0.0]]), "dice").iloc[0].tolist() == [1.0, 3.0, 2.0]


def test_missing_hard_cases_never_improves_a_standing():
    """Law: a value that gets lost never gives a better rank, neither in a case nor of the mean.

    In a mean it counts as the worst value that is left, so the law there is for all values but the
    very worst."""
    tried = 0
    for seed in range(10):
        values = random_frame(seed, n_cases=6, n=3)
        before = ranks(counted(values, "asd").mean().to_frame().T, "asd").iloc[0]
        for case in values.index:
            lost = values.copy()
            lost.loc[case, "a"] = NAN
            assert ranks(lost, "asd").loc[case, "a"] >= ranks(values, "asd").loc[case, "a"]
            if lost.max(axis=None) == values.max(axis=None):
                after = ranks(counted(lost, "asd").mean().to_frame().T, "asd").iloc[0]
                assert after["a"] >= before["a"]
                tried += 1
    assert tried > 30


# No value
# ------------------------------------------------------------------------------


def outcomes(seed, n_cases=8, n=3):
    """Random objects and predictions, and what follows by definition: Dice, distance and missed,
    each cases x contenders.
    """
    rng = np.random.default_rng(seed)
    there, said = rng.random(n_cases) < 0.5, rng.random((n_cases, n)) < 0.5
    dice, asd, missed = np.full((3, n_cases, n), NAN)
    for i, j in product(range(n_cases), range(n)):
        missed[i, j] = there[i] != said[i, j]
        if there[i] and said[i, j]:
            dice[i, j], asd[i, j] = rng.uniform(0.1, 0.9), rng.uniform(0.5, 9)
        elif missed[i, j]:
            dice[i, j] = 0
    return there, said, {"dice": frame(dice), "asd": frame(asd), "missed": frame(missed)}


def slow_losses(there, said, values, higher):
    """A row of losses in words: found, by value; rightly empty, the best; missed or invented, the
    worst.
    """
    if not there:
        return [math.inf if s else -math.inf for s in said]
    return [math.inf if not s else -v if higher else v for s, v in zip(said, values, strict=True)]


@pytest.mark.parametrize("metric", ["dice", "asd"])
@pytest.mark.parametrize("seed", range(6))
def test_no_value_counts_by_why_there_is_none(metric, seed):
    there, said, tables = outcomes(seed)
    found = ranks(credited(tables[metric], metric, tables["missed"]), metric)
    for i, case in enumerate(tables[metric].index):
        if len(set(said[i])) == 1 and (said[i, 0] != there[i] or not there[i]):
            assert (
                case not in found.index or found.loc[case].nunique() == 1
            )  # all alike: nothing to compare
        else:
            loss = slow_losses(
                there[i], said[i], tables[metric].loc[case], METRICS[metric].better == "higher"
            )
            assert found.loc[case].tolist() == slow_ranks(loss, "lower")
    if metric == "dice":  # which tells by itself what was invented
        pd.testing.assert_frame_equal(ranks(tables[metric], metric), found)


@pytest.mark.parametrize("metric", ["dice", "asd"])
def test_inventing_an_object_never_improves_a_standing(metric):
    """Law, as for missing one; neither in the case nor of the mean."""
    tried = 0
    for seed in range(30):
        there, said, before = outcomes(seed)
        for i in np.flatnonzero(~there & ~said[:, 0]):
            after = {key: table.copy() for key, table in before.items()}
            after["dice"].iloc[i, 0], after["missed"].iloc[i, 0] = 0.0, 1.0
            fair = [
                credited(tables[metric], metric, tables["missed"]) for tables in (before, after)
            ]
            standing = [
                ranks(counted(table, metric).mean().to_frame().T, metric)["a"].item()
                for table in fair
            ]
            assert standing[1] >= standing[0]
            in_case = [ranks(table, metric)["a"].get(f"c{i}", 2.0) for table in fair]
            assert in_case[1] >= in_case[0]
            tried += standing[1] > standing[0]
    assert tried > 5  # and often it costs a place


def test_what_some_seeds_invent_is_worse_than_leaving_it_out():
    dice, missed = frame([[NAN, 2 / 3, 0.0]]), frame([[0.0, 1 / 3, 1.0]])
    assert ranks(credited(dice, "dice", missed), "dice").iloc[0].tolist() == [1, 2, 3]
    assert (
        credited(frame([[NAN, 0.4, 0.0]]), "dice", frame([[0.0, 0.0, 1.0]])).isna().iloc[0, 0]
    )  # it is there, after all
    assert (
        credited(frame([[NAN, 0.4]]), "ece", frame([[0.0, 1.0]])).isna().iloc[0, 0]
    )  # no object, no credit
    assert credited(frame([[NAN, NAN]]), "asd", frame([[0.0, 0.0]])).isna().all(axis=None)


def test_unknown_metrics_are_named():
    with pytest.raises(UserError, match="unknown metric 'dsc'; choose one of dice, asd"):
        ranks(frame([[1.0]]), "dsc")


# Sum-rank and mean case rank
# ------------------------------------------------------------------------------


def test_sum_rank_is_that_of_a_slow_loop():
    rng = np.random.default_rng(0)
    means = {
        (d, m): pd.Series(np.round(rng.random(5), 1), index=list("abcde"))
        for d in ("x", "y")
        for m in PAPER
    }
    found = sum_rank(means)
    totals = dict.fromkeys("abcde", 0.0)
    for (dataset, metric), values in means.items():
        for name, rank in zip(
            "abcde", slow_ranks(values.tolist(), METRICS[metric].better), strict=True
        ):
            assert found.loc[name, [(dataset, metric)]].item() == rank
            totals[name] += rank
    assert found["sum"].to_dict() == totals
    assert found["rank"].tolist() == slow_ranks(list(totals.values()), "lower")


def test_sum_rank_takes_contenders_by_name():
    means = {
        ("x", "ece"): pd.Series({"a": 1.0, "b": 2.0}),
        ("y", "ece"): pd.Series({"b": 1.0, "a": 2.0}),
    }
    assert sum_rank(means)["sum"].to_dict() == {"a": 3.0, "b": 3.0}
    assert ("y", "asd") not in sum_rank(means | {("y", "asd"): pd.Series({"a": NAN, "b": NAN})})


@pytest.mark.parametrize("seed", range(3))
def test_mean_case_rank_is_that_of_a_slow_loop(seed):
    per_case = {metric: random_frame(seed + 10 * i, holes=0.15) for i, metric in enumerate(PAPER)}
    per_case["asd"].iloc[2] = NAN  # a case without this metric
    found = mean_case_rank(per_case)
    of_cases = []
    for case in per_case["dice"].index:
        rows = [(per_case[m].loc[case].tolist(), METRICS[m].better) for m in PAPER]
        known = [slow_ranks(row, better) for row, better in rows if not all(map(math.isnan, row))]
        of_cases.append([sum(column) / len(known) for column in zip(*known, strict=True)])
    expected = [sum(column) / len(of_cases) for column in zip(*of_cases, strict=True)]
    assert found["mean"].tolist() == pytest.approx(expected)
    assert found["rank"].tolist() == slow_ranks(found["mean"].tolist(), "lower")
    assert found["ece"].tolist() == pytest.approx(ranks(per_case["ece"], "ece").mean().tolist())


# The paper
# ------------------------------------------------------------------------------


def test_the_published_tables_are_complete():
    seven = [key for key in LOSSES if key != "mbls_dice"]
    means = published_means()
    assert set(means) == {(dataset, metric) for dataset in published_datasets() for metric in PAPER}
    assert len(published_datasets()) == 7
    assert all(list(values.index) == seven and values.notna().all() for values in means.values())
    assert published("nothing").empty
    everything = pd.concat([published(name) for name in published_datasets()])
    assert everything.groupby("table").size().to_dict() == {
        "calibration": 98,
        "discriminative": 350,
        "penalty": 24,
        "posthoc": 252,
    }
    assert set(everything["calibrator"]) == {"", "ts", "lts"}


def test_published_means_are_the_means_of_published_classes():
    """Law: rounded values of the classes give the rounded mean, up to rounding (and a few slips of
    the pen in the paper).
    """
    off = []
    for dataset in published_datasets():
        rows = published(dataset)
        rows = rows[(rows["table"] == "discriminative") & (rows["metric"] == "dice")]
        is_mean = rows["class"].str.startswith("mean")
        of_classes = rows[~is_mean].groupby("method")["value"].mean()
        off += (of_classes - rows[is_mean].set_index("method")["value"]).abs().tolist()
    assert np.median(off) < 0.001
    assert np.mean(np.array(off) < 0.002) > 0.9


def test_the_published_conclusion():
    """mbls is first in every metric and overall; ce_dice is second in ASD and last in ECE."""
    means = published_means()
    overall = sum_rank(means)
    assert overall["rank"].idxmin() == "mbls"
    per_metric = {
        m: sum_rank({key: v for key, v in means.items() if key[1] == m})["rank"] for m in PAPER
    }
    for order in per_metric.values():
        assert order["mbls"] == 1
    assert per_metric["asd"]["ce_dice"] == 2
    assert per_metric["ece"]["ce_dice"] == 7


# Bootstrap
# ------------------------------------------------------------------------------


def slow_bootstrap(values, patients, n, seed):
    """Draw patients, gather their cases one by one, average those that have a value."""
    names = list(dict.fromkeys(patients.get(case, case) for case in values.index))
    counts = np.random.default_rng(seed).multinomial(
        len(names), [1 / len(names)] * len(names), size=n
    )
    for draw in counts:
        cases = [
            c
            for name, k in zip(names, draw, strict=True)
            for _ in range(k)
            for c in values.index
            if patients.get(c, c) == name
        ]
        yield {
            key: [v for v in values.loc[cases, key] if not math.isnan(v)] for key in values.columns
        }


@pytest.mark.parametrize("holes", [0.0, 0.3])
def test_bootstrap_intervals_are_those_of_a_slow_loop(holes):
    values = random_frame(3, n_cases=10, holes=holes)
    patients = {case: f"p{i // 3}" for i, case in enumerate(values.index)}
    samples = list(slow_bootstrap(values, patients, 200, seed=5))
    found = bootstrap_means(values, patients, n=200, seed=5, level=0.8)
    for key in values.columns:
        means = [sum(s[key]) / len(s[key]) for s in samples if s[key]]
        assert found.loc[key, "mean"] == pytest.approx(np.nanmean(values[key]))
        assert found.loc[key, ["low", "high"]].tolist() == pytest.approx(
            np.quantile(means, [0.1, 0.9]).tolist()
        )


def test_bootstrap_agrees_with_the_normal_interval_for_many_cases():
    values = frame(np.random.default_rng(0).normal(3, 2, (400, 1)))
    found = bootstrap_means(values, ALONE).loc["a"]
    half = 1.96 * values["a"].std() / 20
    assert found["low"] == pytest.approx(found["mean"] - half, abs=0.1 * half)
    assert found["high"] == pytest.approx(found["mean"] + half, abs=0.1 * half)


def test_cases_of_one_patient_come_together():
    """Law: copies of a patient's case carry no news; as patients of their own they would narrow the
    interval.
    """
    values = random_frame(2, n_cases=12)
    copies = pd.concat([values, values.rename(index=lambda c: f"{c}'")])
    patients = {case: case.strip("'") for case in copies.index}
    known = bootstrap_means(values, ALONE)
    pd.testing.assert_frame_equal(bootstrap_means(copies, patients), known)
    narrow = bootstrap_means(copies, ALONE)
    assert ((narrow["high"] - narrow["low"]) < (known["high"] - known["low"])).all()


def test_bootstrap_is_paired_and_seeded():
    values = random_frame(2)
    values["b"] = values["a"] + 1
    found = bootstrap_means(values, ALONE, seed=1)
    assert (found.loc["b"] - found.loc["a"]).tolist() == pytest.approx([1, 1, 1])
    pd.testing.assert_frame_equal(bootstrap_means(values, ALONE, seed=1), found)
    assert not bootstrap_means(values, ALONE, seed=2).equals(found)


def test_one_patient_has_a_mean_and_no_interval():
    values = random_frame(2, n_cases=3)
    found = bootstrap_means(values, dict.fromkeys(values.index, "p"))
    assert found["mean"].tolist() == pytest.approx(values.mean().tolist())
    assert found[["low", "high"]].isna().all(axis=None)
    assert stability({"ece": values}, dict.fromkeys(values.index, "p")).isna().all(axis=None)
    values["b"] = NAN
    values.loc["c0", "b"] = 1.0
    found = bootstrap_means(values, ALONE)
    assert found.loc["b"].isna().tolist() == [False, True, True]
    assert found.loc["a"].notna().all()


# Stability
# ------------------------------------------------------------------------------


def test_stability_is_that_of_a_slow_loop():
    per_case = {
        "dice": random_frame(0, n_cases=7, n=3),
        "asd": random_frame(1, n_cases=7, n=3, holes=0.2),
    }
    patients = {case: f"p{i // 2}" for i, case in enumerate(per_case["dice"].index)}
    found = stability(per_case, patients, n=150, seed=4)
    case_rank = pd.concat([ranks(v, m) for m, v in per_case.items()]).groupby(level=0).mean()
    order = {m: (counted(v, m), METRICS[m].better) for m, v in per_case.items()} | {
        "overall": (case_rank, "lower")
    }
    for metric, (values, better) in order.items():
        first = dict.fromkeys("abc", 0.0)
        for sample in slow_bootstrap(values, patients, 150, seed=4):
            means = {
                key: sum(v) / len(v) * (-1 if better == "higher" else 1)
                for key, v in sample.items()
            }
            best = [key for key, mean in means.items() if mean <= min(means.values()) + 1e-12]
            for key in best:
                first[key] += 1 / len(best) / 150
        assert found[metric].to_dict() == pytest.approx(first)


def test_stability_shares_ties_and_sums_to_one():
    values = random_frame(0)
    values["d"] = values["c"]
    found = stability({"ece": values, "dice": values}, ALONE, n=300)
    assert found.sum().tolist() == pytest.approx([1, 1, 1])
    assert found.loc["c"].tolist() == found.loc["d"].tolist()
    sure = values.assign(a=values["a"] + 5)
    assert stability({"dice": sure}, ALONE, n=100)["dice"].to_dict() == {
        "a": 1,
        "b": 0,
        "c": 0,
        "d": 0,
    }


# Tests
# ------------------------------------------------------------------------------


def slow_holm(p):
    """From the smallest on: the i-th of m is multiplied by m - i, but never less than the one
    before.
    """
    rest, so_far, found = sorted(range(len(p)), key=lambda i: p[i]), 0.0, [0.0] * len(p)
    for i, k in enumerate(rest):
        so_far = max(so_far, min(1.0, (len(p) - i) * p[k]))
        found[k] = so_far
    return found


@given(st.lists(st.floats(0, 1), min_size=1, max_size=25))
def test_holm(p):
    found = holm(np.array(p))
    assert found.tolist() == pytest.approx(slow_holm(p))
    assert (found >= np.array(p)).all()
    assert (found <= 1).all()
    assert (np.diff(found[np.argsort(p, kind="stable")]) >= 0).all()


def test_pairs_are_tested_as_scipy_does():
    values = frame(np.random.default_rng(0).normal((0, 0.1, 0.8, 2), size=(20, 4)))
    found = pairwise(values, "nll")
    assert list(found.columns) == ["a", "b", "difference", "p", "p_holm", "better", "n", "note"]
    assert list(zip(found["a"], found["b"], strict=True)) == list(combinations("abcd", 2))
    for row in found.itertuples():
        assert row.p == pytest.approx(wilcoxon(values[row.a], values[row.b]).pvalue)
        assert row.difference == pytest.approx(np.median(values[row.a] - values[row.b]))
        assert (row.n, row.note) == (20, "")
    assert found["p_holm"].tolist() == pytest.approx(slow_holm(found["p"].tolist()))
    assert found["p_holm"].iloc[-1] < 0.05 < found["p_holm"].iloc[0]
    turned = pairwise(-values, "dice")  # the other way up, the same tests
    assert turned["p"].tolist() == pytest.approx(found["p"].tolist())
    assert turned["difference"].tolist() == pytest.approx((-found["difference"]).tolist())


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_signed_ranks_with_ties_are_those_of_all_choices_of_signs(n):
    """Oracle: every way to choose signs, one by one, in how many is the sum of positive ranks as
    far from the middle?
    """
    rng = np.random.default_rng(n)
    for _ in range(10):
        values = rng.integers(-3, 4, n).astype(float)
        own = values[values != 0]
        places = rankdata(np.abs(own))
        middle = places.sum() / 2
        reached = abs(places[own > 0].sum() - middle)
        sums = [
            sum(r for r, sign in zip(places, signs, strict=True) if sign)
            for signs in product((0, 1), repeat=len(own))
        ]
        expected = np.mean([abs(s - middle) >= reached - 1e-9 for s in sums])
        assert signed_rank(values).p == pytest.approx(expected)
        assert signed_rank(values).sign == np.sign(places[own > 0].sum() - places[own < 0].sum())


def _walsh(values):
    """By how many the means of two differences, each also with itself, are more often positive: W+
    - W- in other words.
    """
    means = [values[i] + values[j] for i in range(len(values)) for j in range(i + 1)]
    return np.sign(means).sum()


def test_ties_that_floating_point_hides_are_ties():
    a, b = [0.4, 0.1, 0.9, 0.8, 0.75], [0.2, 0.3, 0.5, 0.5, 0.5]
    whole = signed_rank(np.array([4.0, -4.0, 8.0, 6.0, 5.0]))  # the same differences times 20
    assert whole.p == 0.1875
    assert pairwise(frame(np.stack([a, b], 1)), "ece")["p"].item() == whole.p
    assert signed_rank(np.subtract(a, b)) == whole
    near = frame(np.stack([np.array([0.9, 0.8, 0.3, 0.7]) + 1e-5, [0.9, 0.8, 0.3, 0.7]], 1))
    turned = near.copy()
    turned.iloc[0] = near.iloc[0, ::-1].to_numpy()  # one of four equal differences the other way
    ones = signed_rank(np.array([-1.0, 1.0, 1.0, 1.0]))
    assert pairwise(turned, "ece")["p"].item() == ones.p

    means = frame([[0.1, 0.3], [0.2, 0.2], [0.3, 0.1]]).mean()
    assert means["a"] != means["b"]
    assert sum_rank({("x", "ece"): means})["rank"].tolist() == [1.5, 1.5]
    assert ranks(means.to_frame().T, "dice").to_numpy().tolist() == [[1.5, 1.5]]


def test_signed_ranks_agree_with_scipy():
    rng = np.random.default_rng(0)
    for n in (6, 13, 50, 51, 200):
        values = rng.normal(0.2, 1, n)
        assert signed_rank(values).p == pytest.approx(wilcoxon(values).pvalue)
        assert signed_rank(values).sign == -signed_rank(-values).sign == np.sign(_walsh(values))
        tied = np.round(values, 1)
        assert signed_rank(tied).p == pytest.approx(
            wilcoxon(tied, method="asymptotic").pvalue, abs=0.05
        )


def test_alike_and_few():
    values = frame([[0.1, 0.1, 0.2]] * 4 + [[0.2, 0.2, 0.1]])
    found = pairwise(values, "ece").set_index(["a", "b"])
    assert found.loc[("a", "b"), "p"] == found.loc[("a", "b"), "p_holm"] == 1
    assert found.loc[("a", "b"), "difference"] == 0
    assert (found["note"] == "too few cases for any difference to be significant").all()
    two = frame([[0.1 * i, 1 + 0.2 * i] for i in range(6)])
    assert pairwise(two.iloc[:5], "ece")["note"].item() != ""
    assert pairwise(two, "ece")["note"].item() == ""
    assert pairwise(two, "ece")["p"].item() == pytest.approx(2 / 2**6)
    assert pairwise(two.iloc[:1], "ece")["p"].item() == 1
    assert pairwise(two.iloc[:0], "ece")["p"].item() == 1


def test_patients_are_the_unit_of_tests():
    values = random_frame(3, n_cases=12, n=2)
    patients = {case: f"p{i // 2}" for i, case in enumerate(values.index)}
    of_patients = (values * 20).groupby(patients).mean().round()  # whole: no tie is hidden
    assert pairwise(values, "ece", patients)["n"].item() == 6
    assert pairwise(values, "ece", patients)["p"].item() == pytest.approx(
        wilcoxon(of_patients["a"], of_patients["b"]).pvalue
    )


def test_a_missed_object_is_the_largest_difference_against_who_missed_it():
    values = frame([[1 + 0.1 * i, 1.05 + 0.11 * i] for i in range(10)])
    clear = pairwise(values, "asd")["p"].item()
    for_a, for_b = values.copy(), values.copy()
    for_a.loc["c9", "a"] = for_b.loc["c9", "b"] = NAN
    assert pairwise(for_b, "asd")["p"].item() == pytest.approx(
        clear
    )  # a was better already, and c9 the largest
    ranked = np.array([*range(1, 10), -10.0])
    assert pairwise(for_a, "asd")["p"].item() == pytest.approx(wilcoxon(ranked).pvalue)
    assert pairwise(for_a.assign(b=for_a["a"]), "asd")["p"].item() == 1
    nothing = pairwise(frame([[NAN, 1.0]] * 7), "asd")
    assert nothing["difference"].item() == math.inf
    assert (nothing["p"].item(), nothing["better"].item()) == (pytest.approx(2 / 2**7), "b")


def test_the_direction_of_a_test_is_its_own():
    """Whoever misses most objects is worse, however close the others come; and its median is no
    number.
    """
    values = frame([[2.0 - 0.1 * i, 2.0] for i in range(1, 5)] + [[NAN, 2.0]] * 8)
    found = pairwise(values, "asd").iloc[0]
    assert found["p"] < 0.05
    assert (found["better"], found["difference"], found["n"]) == ("b", math.inf, 12)
    turned = pairwise(values[["b", "a"]], "asd").iloc[0]
    assert (turned["better"], turned["difference"], turned["p"]) == ("b", -math.inf, found["p"])
    few = values.fillna({"a": 1.5})
    few.loc["c11", "a"] = NAN
    assert pairwise(few, "asd")["better"].item() == "a"
    assert (
        pairwise(few, "asd")["difference"].item() == -0.5
    )  # the miss is one of twelve, at the far end
    alike = pairwise(frame([[NAN, NAN, 1.0]] * 3 + [[1.0, 2.0, 3.0], [2.0, 1.0, 3.0]]), "asd").iloc[
        0
    ]
    assert (alike["better"], alike["difference"], alike["p"]) == (
        "",
        0,
        1,
    )  # both missed what the third has found
    undecided = pairwise(frame([[NAN, 1.0], [1.0, NAN]]), "asd").iloc[0]
    assert (undecided["better"], undecided["p"]) == ("", 1)
    assert math.isnan(undecided["difference"])


@pytest.mark.parametrize(("metric", "better"), [("ece", "a"), ("dice", "b")])
def test_few_large_differences_may_outweigh_many_small_ones(metric, better):
    """26 small differences one way and 24 large ones the other: the median follows the first, the
    test the second.
    """
    apart = np.array([0.001 + 1e-5 * i for i in range(26)] + [-0.1 - 1e-3 * i for i in range(24)])
    found = pairwise(frame(np.stack([0.5 + apart, np.full(50, 0.5)], 1)), metric).iloc[0]
    assert found["p"] == pytest.approx(wilcoxon(apart).pvalue)
    assert found["p"] < 0.05
    assert found["difference"] > 0
    assert found["better"] == better


# From runs
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seven(tmp_path_factory):
    """The methods on 50 cases of 25 patients; mbls misses an object."""
    root = tmp_path_factory.mktemp("seven")
    cases = tuple(f"c{i:02}" for i in range(50))
    for i, loss in enumerate(key for key in LOSSES if key != "mbls_dice"):
        scores = scores_of(cases, "AB", shift=0.2 * i, seed=3)
        if loss == "mbls":
            miss(scores, "c07", "B")
        patients = {case: f"p{k // 2}" for k, case in enumerate(cases)}
        write_run(
            root,
            loss,
            loss,
            cases=cases,
            scores=scores,
            patients=patients,
            conditions=({}, {"calibrator": "ts"}),
        )
    return read_results([root])


def test_everything_of_one_data_set(seven):
    found = rank_results(seven, "organs", n=200)
    assert [c.key for c in found.contenders] == [key for key in LOSSES if key != "mbls_dice"]
    values = main_values(seven, "organs")
    assert values["assd"]["mbls"].isna().sum() == 1
    for metric in METRIC_SETS["main"].lead:
        pd.testing.assert_frame_equal(found.values[metric], values[metric])
        pd.testing.assert_frame_equal(
            found.means[metric], bootstrap_means(values[metric], found.patients, n=200)
        )
        pd.testing.assert_frame_equal(
            found.pairwise[metric], pairwise(values[metric], metric, found.patients)
        )
    assert found.patients.nunique() == 25
    assert (
        found.sum_rank["rank"].tolist() == found.case_rank["rank"].tolist() == [7, 6, 5, 4, 3, 2, 1]
    )
    assert found.stability.loc["mbls", "misplaced"] == 1
    assert found.means["assd"].loc["mbls", "mean"] < counted(values["assd"], "assd")["mbls"].mean()
    pd.testing.assert_frame_equal(
        rank_results(seven, "organs", n=200, calibrator="ts").case_rank, found.case_rank
    )


def test_ranking_is_quick(seven):
    rank_results(seven, "organs", n=10)
    start = time.perf_counter()
    rank_results(seven, "organs")
    assert time.perf_counter() - start < 5


def test_what_cannot_be_ranked(seven, tmp_path):
    with pytest.raises(UserError, match="unknown data set 'organ'; choose one of organs"):
        rank_results(seven, "organ")
    with pytest.raises(UserError, match="ce has no test scores with lts; run segcal calibrate"):
        rank_results(seven, "organs", calibrator="lts")
    write_run(tmp_path, "ce")
    with pytest.raises(
        UserError,
        match="there is one contender only on organs, ce; name runs of another to rank them",
    ):
        rank_results(read_results([tmp_path]), "organs")
    nothing = dict.fromkeys(scores_of(("c0",), "AB"), NAN)
    write_run(tmp_path / "nan", "a", scores=nothing, cases=("c0",))
    write_run(tmp_path / "nan", "b", "ls", scores=nothing, cases=("c0",))
    with pytest.raises(
        UserError, match="no contender on organs has a value of dice, assd, misplaced, nll"
    ):
        rank_results(read_results([tmp_path / "nan"], scored=False), "organs")
