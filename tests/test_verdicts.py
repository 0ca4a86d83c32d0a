"""Over- or underconfident: labels drawn from a network's own probabilities decide what is true."""

import functools
import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from report_runs import full_run
from test_voxel_sets import drawn, volume

from segcal.compare import read_results
from segcal.compare.ranking import VERDICTS, Interval, confidences, verdict
from segcal.compare.ranking.bootstrap import bootstrap_ratios
from segcal.compare.ranking.verdicts import LEAST, WIDEST
from segcal.compare.tables import TABLES
from segcal.folders import read_scores, write_json, write_scores
from segcal.predictors import Prediction
from segcal.report import summaries
from segcal.report.volumes import volume_table
from segcal.scoring.cases import bin_rows, statistics
from segcal.scoring.volumes import volume_rows

CASES = tuple(f"c{i}" for i in range(8))


def scored_run(root, name, loss, change, *, pad=0, seed=0):
    """A run whose rows are those of scoring: truth follows honest logits, `change` makes what the
    network says of them; padded with `pad` slices of certain background on each side.
    """
    folder = full_run(root, name, loss, cases=CASES)
    rows = [row for row in read_scores(folder) if not row["voxels"]]
    common = {key: rows[0][key] for key in rows[0] if key not in ("case", "class", "metric")}
    for i, case in enumerate(CASES):
        honest = volume((8, 30, 32), sharpness=4.0, seed=100 * seed + i)
        labels = drawn(honest, seed=100 * seed + i)
        logits = change(honest)
        labels = torch.nn.functional.pad(labels, (0, 0, 0, 0, pad, pad))
        sure = torch.tensor([40.0, 0.0, 0.0])[:, None, None, None].expand(-1, pad, 30, 32)
        logits = torch.cat([sure, logits, sure], 1)
        case_of = Prediction(logits, labels, None, (1.0, 1.0, 1.0))
        rows += [common | row for row in calibration_rows(case, case_of)]
    for row in rows:  # the classes of the run
        row["method"] = loss
    write_scores(folder, rows)
    return folder


def calibration_rows(case, prediction):
    of_case = statistics(prediction, prediction.slices)
    volumes = volume_rows(case, of_case.sets["all"], prediction.spacing, ("A", "B"))
    return bin_rows(case, of_case, ("A", "B")) + volumes


def spread(logits):
    """Probabilities as label smoothing teaches them: a tenth is spread over the other classes."""
    return torch.log(0.85 * logits.softmax(0) + 0.05)


CHANGES = {
    "ce": (lambda x: x, "calibrated"),
    "mbls": (lambda x: 2 * x, "overconfident"),
    "focal": (lambda x: x / 2, "underconfident"),
    "ls": (spread, "underconfident"),
}


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    root = tmp_path_factory.mktemp("verdicts")
    for loss, (change, _) in CHANGES.items():
        scored_run(root, loss, loss, change)
    return read_results([root])


def test_truth_that_follows_the_probabilities_gives_the_verdict(networks):
    found = confidences(networks, "organs", list(CHANGES))
    assert {key: each.verdict for key, each in found.items()} == {
        key: want for key, (_, want) in CHANGES.items()
    }
    assert found["ls"].ratio.low > 1.2  # its probabilities add up to more than the organ
    assert found["ce"].ratio.mean == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("seed", range(1, 6))
def test_other_labels_drawn_from_it_leave_a_network_calibrated(tmp_path, seed):
    scored_run(tmp_path, "ce", "ce", lambda x: x, seed=seed)
    (each,) = confidences(read_results([tmp_path]), "organs", ["ce"]).values()
    assert each.verdict == "calibrated"


@pytest.mark.parametrize("loss", CHANGES)
def test_certain_background_around_the_image_changes_nothing(networks, tmp_path, loss):
    change, want = CHANGES[loss]
    scored_run(tmp_path, loss, loss, change, pad=12)
    (padded,) = confidences(read_results([tmp_path]), "organs", [loss]).values()
    before = confidences(networks, "organs", [loss])[loss]
    assert padded.verdict == before.verdict == want
    np.testing.assert_allclose(padded.all, before.all, atol=1e-6)
    np.testing.assert_allclose(padded.ratio, before.ratio, atol=1e-6)


def test_the_report_says_so(networks):
    text = summaries(networks)["organs"].sections["Confidence"]
    sentences = text.split(". ")
    for loss, label in {"mbls": "MbLS", "focal": "FL", "ls": "LS", "ce": "CE"}.items():
        (line,) = [s for s in sentences if s.lower().startswith(CHANGES[loss][1])]
        assert f"{label} (" in line
    volumes = summaries(networks)["organs"].sections["Expected over true volume"]
    assert "LS" in volumes.partition("Too much: ")[2].partition(".  ")[0]
    tile = next(t for t in summaries(networks)["organs"].tiles if t[0] == "Overconfident")
    assert tile[1:] == (
        "1 of 4",
        "overconfident: MbLS; underconfident: FL and LS; calibrated: CE",
    )


def test_the_table_has_a_block_per_verdict(networks):
    table = TABLES["confidence"](networks)
    assert {row.key: row.block for row in table.rows} == {
        key: want for key, (_, want) in CHANGES.items()
    }
    assert table.columns == (
        *("Confidence gap near →0", "Confidence gap all →0", "E/O →1"),
        *("A E/O →1", "B E/O →1"),
    )
    found = confidences(networks, "organs", list(CHANGES))
    for row in table.rows:
        for cell, part in zip(row.cells[:3], found[row.key], strict=True):
            assert (cell.value, cell.low, cell.high) == pytest.approx(tuple(part))


def test_temperatures_stand_beside_with_their_intervals(tmp_path):
    folder = scored_run(tmp_path, "mbls", "mbls", lambda x: 2 * x)
    (folder / "calibrators").mkdir()
    fit = {"temperature": 1.98, "interval": [1.9, 2.05]}
    write_json(folder / "calibrators" / "ts.json", fit)
    text = summaries(read_results([tmp_path]))["organs"].sections["Confidence"]
    assert "; T 1.98 (1.90 to 2.05))." in text
    write_json(folder / "calibrators" / "ts.json", {"temperature": 1.98})  # as older versions
    text = summaries(read_results([tmp_path]))["organs"].sections["Confidence"]
    assert "; T 1.98)." in text


# The rule
# ------------------------------------------------------------------------------

ONE = Interval(1.0, 0.98, 1.02)
NONE = Interval(0.0, -0.005, 0.005)


def around(mean, half=0.005):
    return Interval(mean, mean - half, mean + half)


def test_signs_of_both_sets_decide():
    over, under = around(0.1, 0.01), around(-0.1, 0.01)
    assert verdict(over, over, ONE) == verdict(over, NONE, ONE) == "overconfident"
    assert verdict(NONE, under, ONE) == verdict(under, under, ONE) == "underconfident"
    assert verdict(over, under, ONE) == verdict(under, over, ONE) == "mixed"
    assert verdict(NONE, NONE, around(1.3)) == verdict(NONE, NONE, around(0.7)) == "mixed"
    assert verdict(NONE, NONE, ONE) == "calibrated"


def test_the_rule_has_no_preferred_side():
    """Signs turned round turn over- and underconfidence round, and nothing else."""
    turn = {"overconfident": "underconfident", "underconfident": "overconfident"}
    parts = [around(m, half) for m in (-0.2, -0.004, 0.0, 0.03, 0.2) for half in (0.001, 0.04, 0.5)]
    for near, everywhere in itertools.product(parts, parts):
        other = [Interval(-part.mean, -part.high, -part.low) for part in (near, everywhere)]
        want = verdict(near, everywhere, ONE)
        assert want in VERDICTS
        assert verdict(*other, ONE) == turn.get(want, want)


def test_what_is_tiny_or_uncertain_is_no_verdict():
    assert verdict(around(0.009, 0.001), NONE, ONE) == "calibrated"  # certain, but tiny
    assert verdict(around(0.02, 0.03), NONE, ONE) == "calibrated"  # may be 0
    far = WIDEST * LEAST["near"]
    assert verdict(Interval(0.02, -0.01, far + 0.01), NONE, ONE) == "undecided"
    nan = float("nan")
    assert verdict(Interval(0.3, nan, nan), NONE, ONE) == "undecided"  # one patient
    nowhere = Interval(nan, nan, nan)  # nothing is predicted: the others decide
    assert verdict(nowhere, NONE, ONE) == "calibrated"
    assert verdict(nowhere, around(0.1, 0.01), ONE) == "overconfident"
    assert verdict(nowhere, NONE, around(1.3)) == "mixed"
    assert verdict(NONE, nowhere, nowhere) == "undecided"


# Ratios of sums
# ------------------------------------------------------------------------------


def voxels_of(p, n):
    """Logits (3, 2, 6, 6) of certain background with n voxels of class A with probability p."""
    logits = torch.tensor([30.0, 0.0, 0.0])[:, None, None, None].repeat(1, 2, 6, 6)
    flat = logits.flatten(1)
    flat[:2, 40 : 40 + n] = torch.tensor([1 - p, p]).log()[:, None]
    flat[2, 40 : 40 + n] = -30.0
    return logits


def tiny(generator):
    """An organ of 3 to 8 voxels, each there with the probability that the network says."""
    honest = voxels_of(0.55, int(torch.randint(5, 10, (1,), generator=generator)))
    return honest, drawn(honest, seed=int(torch.randint(10**6, (1,), generator=generator)))


def lesion(generator, p=0.6):
    """A lesion that is there in 60 % of the cases; nothing in the image says in which."""
    there = torch.rand(1, generator=generator) < 0.6
    return voxels_of(p, 20), (voxels_of(0.6, 20)[1] < 0).long() * there


def network_on(root, case_of, n=40, *, seed=0):
    """Results of one network on some cases (logits, labels)."""
    generator = torch.Generator().manual_seed(seed)
    names = tuple(f"c{i}" for i in range(n))
    folder = full_run(root, "ce", "ce", cases=names)
    rows = [row for row in read_scores(folder) if not row["voxels"]]
    common = {key: rows[0][key] for key in rows[0] if key not in ("case", "class", "metric")}
    cases = [case_of(generator) for _ in names]
    for name, (logits, labels) in zip(names, cases, strict=True):
        prediction = Prediction(logits, labels, None, (1.0, 2.0, 0.5))
        rows += [common | row for row in calibration_rows(name, prediction)]
    write_scores(folder, rows)
    return read_results([root]), cases


@pytest.mark.parametrize("case_of", [tiny, lesion])
def test_honest_probabilities_are_not_accused_however_few_voxels_are_there(tmp_path, case_of):
    verdicts = []
    for seed in range(4, 10):
        results, _ = network_on(tmp_path / str(seed), case_of, n=100, seed=seed)
        (found,) = confidences(results, "organs", ["ce"]).values()
        verdicts.append(found.verdict)
    accused = [each for each in verdicts if each not in ("calibrated", "undecided")]
    assert len(accused) <= 1  # intervals are of 95 %; means over cases would accuse 5 and more


@pytest.mark.parametrize(("p", "want"), [(0.95, "overconfident"), (0.51, "underconfident")])
def test_a_lesion_that_is_said_too_surely_or_too_seldom_is_found(tmp_path, p, want):
    results, _ = network_on(tmp_path, functools.partial(lesion, p=p), n=200)
    (found,) = confidences(results, "organs", ["ce"]).values()
    assert found.verdict == want
    assert found.near.mean == pytest.approx((p - 0.6) * 20 / 72, abs=0.03)


def test_gaps_and_ratios_are_those_of_all_cases_together(tmp_path):
    """A slow sum over the voxels of all cases, 40 % of which have no foreground."""
    results, cases = network_on(tmp_path, lesion)
    (found,) = confidences(results, "organs", ["ce"]).values()
    gap = expected = n = 0.0
    for logits, labels in cases:
        probs = logits.double().softmax(0)
        confidence, predicted = probs.max(0)
        gap += (confidence - (predicted == labels).double()).sum().item()
        expected += probs[1:].sum().item()
        n += (labels > 0).sum().item()
    assert 0 < sum(not labels.any() for _, labels in cases) < len(cases)
    assert (found.all.mean, found.ratio.mean) == pytest.approx((gap / n, expected / n), rel=1e-5)
    table = TABLES["confidence"](results)
    ratio = dict(zip(table.columns, table.rows[0].cells, strict=True))["E/O →1"]
    assert (ratio.value, ratio.n, ratio.of) == (pytest.approx(expected / n), len(cases), len(cases))
    volumes = volume_table(results, "organs")
    (of_class,) = [row.cells[0].value for row in volumes.rows if row.block == "A"]
    per_class = dict(zip(table.columns, table.rows[0].cells, strict=True))["A E/O →1"].value
    assert of_class == pytest.approx(per_class)


def test_numerator_and_denominator_are_drawn_together_by_patient():
    """A slow bootstrap: patients are drawn one by one, each with both of its cases."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 30, 24) * (rng.random(24) < 0.7)
    top = 0.8 * true + rng.normal(0, 3, 24)
    patients = {f"c{i}": f"p{i // 2}" for i in range(24)}
    tables = [pd.DataFrame({"a": values}, list(patients)) for values in (top, true)]
    mean, low, high = bootstrap_ratios(*tables, patients).loc["a"]
    assert mean == pytest.approx(top.sum() / true.sum())
    ratios = []
    for _ in range(4000):
        cases = [2 * p + i for p in rng.integers(0, 12, 12) for i in (0, 1)]
        ratios.append(top[cases].sum() / true[cases].sum())
    want = np.quantile(ratios, [0.025, 0.975])
    assert (low, high) == pytest.approx(tuple(want), abs=0.1 * (want[1] - want[0]))
    assert bootstrap_ratios(*(0 * table for table in tables), patients).isna().all(axis=None)


def test_a_network_that_predicts_nothing_has_a_verdict(tmp_path):
    results, _ = network_on(tmp_path, functools.partial(lesion, p=0.3))
    (found,) = confidences(results, "organs", ["ce"]).values()
    assert math.isnan(found.near.mean)
    assert found.ratio.high < 1
    assert found.verdict == "overconfident"  # of the background
    assert [row.block for row in TABLES["confidence"](results).rows] == ["overconfident"]
    text = summaries(results)["organs"].sections["Confidence"]
    assert "CE (nothing predicted, all +" in text
