"""What validation chooses: the rules, the scores they take, and the weights that a run keeps."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from synthetic_runs import scores_of, write_run

from segcal import folders
from segcal.choice import Validated, choose, lowest_least, still_open
from segcal.compare import read_results
from segcal.compare.tables import TABLES, all_tables
from segcal.config import run_settings
from segcal.data.prepare import prepare
from segcal.folders import candidate_path, weights_path
from segcal.predictors import make_ensemble, open_predictor
from segcal.scoring import evaluate
from segcal.training import train
from segcal.training.callbacks import Keep
from segcal.training.validation import SCORES, Sums, case_sums
from segcal.types import IGNORE, UserError

DECIDING = ("val_dice", "val_dice_se", "val_nll")

# Few values, so that ties are common.
dices = st.integers(0, 20).map(lambda i: i / 20)
errors = st.integers(0, 6).map(lambda i: i / 40)
nlls = st.one_of(st.integers(0, 10).map(float), st.just(math.nan))
tables = st.lists(st.builds(Validated, dices, errors, nlls), min_size=1, max_size=8)


def slow_choice(rows):
    """By the sentence of the rule, pair by pair."""
    best = 0
    for i, row in enumerate(rows):
        if row.dice > rows[best].dice:
            best = i
    winner = best
    for i, row in enumerate(rows):
        if row.dice < rows[best].dice - rows[best].dice_se:
            continue
        old = rows[winner]
        lower = row.nll < old.nll or (math.isnan(old.nll) and not math.isnan(row.nll))
        same = row.nll == old.nll or (math.isnan(old.nll) and math.isnan(row.nll))
        earlier = row.dice == old.dice and i < winner
        if lower or (same and (row.dice > old.dice or earlier)):
            winner = i
    return winner


@given(tables)
def test_the_rule_against_loops(rows):
    assert choose(dict(enumerate(rows)), "nll") == slow_choice(rows)


@given(tables)
def test_with_equal_nll_it_is_the_dice_rule(rows):
    same = {i: Validated(row.dice, row.dice_se, 1.0) for i, row in enumerate(rows)}
    assert choose(same, "nll") == choose(same, "dice")


@given(tables)
def test_more_than_one_standard_error_below_is_never_chosen(rows):
    scores = dict(enumerate(rows))
    best = scores[choose(scores, "dice")]
    assert scores[choose(scores, "nll")].dice >= best.dice - best.dice_se
    low = Validated(best.dice - best.dice_se - 0.001, 0.0, -1e9)
    assert choose(scores | {"low": low}, "nll") == choose(scores, "nll")


def test_an_unknown_rule_is_named():
    with pytest.raises(UserError, match="unknown choose 'ece'; choose one of dice, nll"):
        choose({"a": Validated(0.5, 0.1, 1.0)}, "ece")


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9), st.floats(0, 1))
def test_no_later_epoch_can_admit_a_dice_below_the_bound(values, best):
    """Whatever the Dice of its cases, if its mean is the best."""
    cases = np.array(values)
    error = cases.std(ddof=1) / math.sqrt(len(cases))
    best = min(best, cases.mean())
    assert cases.mean() - error >= lowest_least(best, len(cases))
    assert cases.mean() - error >= lowest_least(best, 1)


def epoch_facts(draw, n_cases):
    """Facts as an epoch's validation gives them, from the Dice of each case."""
    cases = np.array(draw(st.lists(dices, min_size=n_cases, max_size=n_cases)))
    error = cases.std(ddof=1) / math.sqrt(n_cases) if n_cases > 1 else 0.0
    values = (cases.mean(), error, 0.1, 0.1, draw(nlls), 0.2)
    return {name: round(float(x), 6) for name, x in zip(SCORES, values, strict=True)}


@st.composite
def logs(draw):
    """The number of cases, a log, and the epochs in which the training is killed."""
    n_cases = draw(st.integers(1, 6))
    rows = [epoch_facts(draw, n_cases) for _ in range(draw(st.integers(1, 12)))]
    return n_cases, rows, draw(st.sets(st.integers(0, len(rows)), max_size=3))


class Killed(BaseException):
    pass


def run_epoch(keep, epoch, rows, n_cases, stop):
    """What Lightning calls in an epoch, with weights that say which epoch they are of."""
    network = SimpleNamespace(state_dict=lambda: {"epoch": torch.tensor(float(epoch))})
    facts = {"scores": rows[epoch], "n_cases": n_cases, "never_predicted": []}
    module = SimpleNamespace(network=network, **facts)
    trainer = SimpleNamespace(current_epoch=epoch, max_epochs=len(rows), is_global_zero=True)
    keep.on_train_epoch_start(trainer, module)
    keep.on_validation_end(trainer, module)
    if stop:
        raise Killed  # before the checkpoint is written


def keep_all(out, n_cases, rows, kills):
    """A training that is killed after the validation of some epochs, in each once."""
    kills, state, start = set(kills), None, 0
    while True:
        keep = Keep(out)
        if state is not None:
            keep.load_state_dict(state)
        try:
            for epoch in range(start, len(rows)):
                stop = epoch in kills
                kills.discard(epoch)
                run_epoch(keep, epoch, rows, n_cases, stop)
                state, start = keep.state_dict(), epoch + 1
            facts = keep.finished()
            if len(rows) in kills:
                kills.discard(len(rows))
                raise Killed  # before run.json says that the run is finished
        except Killed:
            continue
        folders.keep_candidates(out, ())
        return facts


@hypothesis_settings(max_examples=60, deadline=None)
@given(logs())
def test_the_weights_kept_are_those_of_the_whole_log(tmp_path_factory, given_log):
    n_cases, rows, kills = given_log
    out = tmp_path_factory.mktemp("run")
    facts = keep_all(out, n_cases, rows, kills)
    expected = slow_choice([Validated(*(row[key] for key in DECIDING)) for row in rows])
    assert facts["nll"] == {"epoch": expected, "never_predicted": []} | rows[expected]
    stored = {path.name: load_file(path)["epoch"] for path in (out / "checkpoints").iterdir()}
    kept = ("best", "last", "nll")
    assert stored == {f"{name}.safetensors": facts[name]["epoch"] for name in kept}


def test_few_candidates_wait():
    """Dice and NLL that improve together leave one; an epoch far below the best is gone."""
    together = {i: Validated(0.5 + i / 100, 0.02, 2 - i / 100) for i in range(30)}
    assert list(still_open(together, 20)) == [29]
    opposed = {i: Validated(0.5 + i / 100, 0.02, 1 + i / 100) for i in range(45)}
    least = lowest_least(0.94, 20)
    assert list(still_open(opposed, 20)) == [i for i in opposed if 0.5 + i / 100 >= least]
    assert len(still_open(opposed, 20)) < 10


def test_a_candidate_that_is_gone_is_named(tmp_path):
    with pytest.raises(UserError, match="run has lost its weights of epoch 3; train it with"):
        folders.name_candidate(tmp_path / "run", 3, "nll")


def test_a_checkpoint_of_an_older_version_goes_on_without_nll(tmp_path):
    keep = Keep(tmp_path)
    keep.load_state_dict({"best": {"epoch": 0, "val_dice": 0.1, "val_ece": 0.2}})
    row = dict(zip(SCORES, (0.5, 0.1, 0.1, 0.1, 1.0, 0.2), strict=True))
    run_epoch(keep, 1, [row, row], 3, stop=False)
    kept = {name: facts["epoch"] for name, facts in keep.finished().items()}
    assert kept == {"best": 1, "last": 1}
    assert not candidate_path(tmp_path, 1).exists()


# The scores of an epoch
# ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of a run."""
    root = tmp_path_factory.mktemp("trained")
    cases = prepare("phantom", to=root, n_cases=30, shape=(4, 24, 24)).cases
    sets = ["network.width=4", "training.epochs=6", "training.lr=0.01"]
    for seed in (0, 1):
        chosen = run_settings({"data": str(cases.root), "seed": seed}, overrides=sets)
        train(chosen, root / f"s{seed}", progress=False)
    return root


@pytest.mark.parametrize("weights", folders.WEIGHTS)
def test_the_scores_of_an_epoch_are_those_of_evaluate(runs, weights):
    info = folders.read_run(runs / "s0")
    rows = evaluate(open_predictor(runs / "s0", weights=weights), split="val")

    def values(metric, kind, voxels):
        wanted = {"metric": metric, "class": kind, "voxels": voxels}
        of_cases = [row for row in rows if row["case"] != "pooled"]
        return np.array([row["value"] for row in of_cases if wanted.items() <= row.items()])

    dice = values("dice", "mean", "")
    foreground = sum(values("true_ml", kind, "") for kind in info["data"]["classes"])
    voxels = foreground / values("voxel_ml", "all", "")
    expected = {
        "val_dice": dice.mean(),
        "val_dice_se": dice.std(ddof=1) / math.sqrt(len(dice)),
        "val_ece": values("ece", "all", "reference").mean(),
        "val_ece_perfect": values("ece_perfect", "all", "all").mean(),
        "val_nll": np.average(values("nll", "all", "all"), weights=voxels),
        "val_misplaced": np.average(values("misplaced", "all", "all"), weights=voxels),
    }
    assert len(dice) > 2
    assert {key: info[weights][key] for key in SCORES} == pytest.approx(expected, abs=2e-6)
    row = folders.read_log(runs / "s0")[info[weights]["epoch"] - 1]
    assert {key: float(row[key]) for key in SCORES} == {key: info[weights][key] for key in SCORES}


def test_the_nll_weights_of_a_run_are_chosen_from_its_log(runs):
    for seed in ("s0", "s1"):
        rows = folders.read_log(runs / seed)
        table = [Validated(*(float(row[key]) for key in DECIDING)) for row in rows]
        assert folders.read_run(runs / seed)["nll"]["epoch"] - 1 == slow_choice(table)


def test_cases_in_several_processes_give_the_same_scores():
    generator = torch.Generator().manual_seed(0)
    cases = []
    for i in range(5):
        labels = torch.randint(0, 3, (2, 6, 6), generator=generator)
        labels[0, 0] = IGNORE
        cases.append((torch.randn(2, 3, 6, 6, generator=generator), labels * (i > 0)))
    one = sum((case_sums(*case) for case in cases), start=Sums.zero(3))
    shares = [cases[::2], cases[1::2]]
    parts = [sum((case_sums(*case) for case in share), start=Sums.zero(3)) for share in shares]
    sent = []
    parts[1].reduced(lambda values: sent.append(values) or values)
    both = parts[0].reduced(lambda values: values + sent[0])
    assert both.scores == pytest.approx(one.scores)
    assert both.n_cases == one.n_cases == 4  # one has no foreground
    torch.testing.assert_close(both.dice, one.dice)
    torch.testing.assert_close(both.reference.sums, one.reference.sums)
    torch.testing.assert_close(both.voxels, one.voxels)


def test_a_class_that_no_voxel_is_predicted_as_is_named():
    """Class 1 is predicted, 2 only where labels are ignored, 3 nowhere; 4 is not labelled."""
    total = Sums.zero(5)
    for case in range(2):
        labels = torch.zeros(2, 4, 4, dtype=torch.long)
        labels[0, 0] = torch.tensor([1, 2, 3, 0])
        labels[1, 0] = IGNORE
        pred = torch.zeros(2, 4, 4, dtype=torch.long)
        pred[0, 1, 1] = case  # in one of the cases alone, and not where it is labelled
        pred[1, 0] = 2
        logits = F.one_hot(pred, 5).movedim(-1, 1).float()
        total += case_sums(logits, labels)
    assert total.never_predicted == [2, 3]
    assert total.voxels.tolist() == [[1, 0, 0, 0], [2, 2, 2, 0]]
    assert total.scores["val_dice"] == 0
    assert Sums.zero(5).never_predicted == []


def test_the_nll_of_an_epoch_is_over_all_cases_per_voxel_of_all_foreground():
    """A slow sum over voxels; two of the cases have no foreground."""
    generator = torch.Generator().manual_seed(1)
    nll = misplaced = n = 0.0
    total = Sums.zero(3)
    for foreground in (True, False, True, False):
        logits = 2 * torch.randn(2, 3, 5, 5, generator=generator)
        labels = torch.randint(0, 3, (2, 5, 5), generator=generator) * foreground
        labels[0, 0, 0] = IGNORE
        total += case_sums(logits, labels)
        gaps = np.zeros(15)
        probs = logits.double().softmax(1)
        for d, i, j in itertools.product(range(2), range(5), range(5)):
            p, y = probs[d, :, i, j].numpy(), int(labels[d, i, j])
            if y != IGNORE:
                nll -= math.log(p[y])
                gaps[math.ceil(p.max() * 15) - 1] += p.max() - (p.argmax() == y)
                n += y > 0
        misplaced += abs(gaps).sum()
    want = {"val_nll": nll / n, "val_misplaced": misplaced / n}
    assert {key: total.scores[key] for key in want} == pytest.approx(want, abs=2e-6)
    empty = case_sums(torch.randn(2, 3, 5, 5), torch.zeros(2, 5, 5, dtype=torch.long))
    assert math.isnan(empty.scores["val_nll"])
    assert math.isnan(empty.scores["val_misplaced"])


def test_honest_probabilities_have_the_lowest_nll_although_cases_are_empty():
    """A lesion of 10 voxels is present in 60 % of the cases; nothing in the image says in which."""

    def nll(p):
        logits = torch.full((1, 2, 4, 5), -20.0)
        logits[0, 0] = 20.0
        logits[0, :, :2] = torch.tensor([1 - p, p]).log()[:, None, None]
        total = Sums.zero(2)
        for case in range(10):
            labels = torch.zeros(1, 4, 5, dtype=torch.long)
            labels[0, :2] = case < 6
            total += case_sums(logits, labels)
        return total.scores["val_nll"]

    assert nll(0.6) < min(nll(p) for p in (0.3, 0.5, 0.7, 0.9, 0.99))


def test_one_case_has_no_standard_error():
    logits, labels = torch.randn(2, 3, 6, 6), torch.randint(0, 3, (2, 6, 6))
    assert case_sums(logits, labels).scores["val_dice_se"] == 0


def test_ensembles_of_nll_weights(runs):
    make_ensemble([runs / "s0", runs / "s1"], runs / "both", weights="nll")
    ensemble = open_predictor(runs / "both")
    assert [member.weights for member in ensemble.members] == ["nll", "nll"]
    stored = load_file(weights_path(runs / "s0", "nll"))
    state = ensemble.members[0].network.state_dict()
    assert all(torch.equal(state[name], value) for name, value in stored.items())


def test_an_older_run_says_that_it_has_no_nll_weights(runs, tmp_path):
    info = folders.read_run(runs / "s1")
    del info["nll"]
    (tmp_path / "old").mkdir()
    folders.write_run(tmp_path / "old", info)
    message = (
        "old is of an older version and has only best and last weights; use --weights best, or"
        " train it again with --again"
    )
    with pytest.raises(UserError, match=message):
        open_predictor(tmp_path / "old", weights="nll")
    with pytest.raises(UserError, match=message):
        make_ensemble([runs / "s0", tmp_path / "old"], tmp_path / "both", weights="nll")


# Settings
# ------------------------------------------------------------------------------


def facts(dice, error, nll):
    return {"val_dice": dice, "val_dice_se": error, "val_nll": nll}


def tried(root, table, **more):
    """Runs of LS with the validation facts {alpha: one per seed}."""
    for alpha, seeds in table.items():
        for seed, values in enumerate(seeds):
            name, kept = f"ls{alpha}-s{seed}", {"best": values}
            write_run(root, name, "ls", settings={"alpha": alpha}, seed=seed, kept=kept, **more)


def chosen_alpha(root):
    (contender,) = read_results([root]).contenders
    ((_, alpha),) = contender.chosen[0]
    return alpha


def test_seeds_do_not_make_more_validation_cases(tmp_path):
    """Standard errors of 0.01 and 0.03 give 0.02: enough for a mean Dice of 0.79, not of 0.77."""
    best = [facts(0.81, 0.01, 1.5), facts(0.79, 0.03, 1.3)]
    near = [facts(0.79, 0.5, 1.2), facts(0.79, 0.5, 1.4)]
    low = [facts(0.77, 0.5, 0.1), facts(0.77, 0.5, 0.1)]
    tried(tmp_path, {0.1: best, 0.2: near, 0.3: low})
    (contender,) = read_results([tmp_path]).contenders
    assert contender.runs == ("ls0.2-s0", "ls0.2-s1")
    assert list(contender.tried.values()) == pytest.approx([0.8, 0.79, 0.77])
    assert list(contender.tried_nll.values()) == pytest.approx([1.4, 1.3, 0.1])


@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_test_scores_have_no_say_in_the_nll_rule(tmp_path, shift):
    """Whichever of the two has the better test scores."""
    cases = [f"c{i}" for i in range(8)]
    for alpha, values, sign in ((0.1, (0.80, 0.02, 1.5), 1), (0.2, (0.79, 0.02, 1.2), -1)):
        scores = scores_of(cases, ("A", "B"), shift=sign * shift)
        tried(tmp_path, {alpha: [facts(*values)]}, scores=scores)
    assert chosen_alpha(tmp_path) == 0.2


def test_runs_without_nll_are_chosen_by_dice(tmp_path):
    table = {0.1: [facts(0.80, 0.02, 1.5)], 0.2: [facts(0.79, 0.02, 1.2)]}
    tried(tmp_path / "new", table)
    tried(tmp_path / "old", table | {0.3: [{"val_dice": 0.1}]})
    assert read_results([tmp_path / "new"]).choose == "nll"
    assert read_results([tmp_path / "old"]).choose == "dice"
    assert (chosen_alpha(tmp_path / "new"), chosen_alpha(tmp_path / "old")) == (0.2, 0.1)


def test_the_rule_is_that_of_the_study(tmp_path):
    """Also for a run of it that is named alone; a study of an older version chose by Dice."""
    table = {0.1: [facts(0.80, 0.02, 1.5)], 0.2: [facts(0.79, 0.02, 1.2)]}
    for name, record in (("a", {"choose": "nll"}), ("b", {"choose": "dice"}), ("c", {})):
        tried(tmp_path / name / "runs", table, dataset=name)
        folders.write_plan_file(tmp_path / name, {"cells": {}} | record)
    found = {name: read_results([tmp_path / name]) for name in "abc"}
    assert {name: results.choose for name, results in found.items()} == {
        "a": "nll",
        "b": "dice",
        "c": "dice",
    }
    assert {name: chosen_alpha(tmp_path / name) for name in "abc"} == {"a": 0.2, "b": 0.1, "c": 0.1}
    for part in ("runs", "runs/ls0.1-s0"):
        assert read_results([tmp_path / "b" / part]).choose == "dice"
    assert read_results([tmp_path / "b", tmp_path / "c"]).choose == "dice"
    with pytest.raises(UserError, match="chose settings by nll and .*c by dice; carry out one of"):
        read_results([tmp_path / "a", tmp_path / "c"])


def test_every_table_says_the_rule(tmp_path):
    tried(tmp_path, {0.1: [facts(0.80, 0.02, 1.5)], 0.2: [facts(0.79, 0.02, 1.2)]})
    write_run(tmp_path, "ce", kept={"best": facts(0.8, 0.02, 1.5)})
    results = read_results([tmp_path])
    for key in ("discriminative", "calibration", "ranking", "tests", "selection"):
        (line,) = (note for note in TABLES[key](results).notes if "validation chose" in note)
        assert "lowest mean validation NLL among those whose DSC is within one standard" in line
    table = TABLES["selection"](results)
    assert table.columns == ("validation DSC ↑", "validation NLL ↓")
    values = {row.label: [(e.value, e.best) for e in row.cells] for row in table.rows}
    assert values == {
        "LS, alpha=0.1": [(0.80, False), (1.5, False)],
        "LS, alpha=0.2": [(0.79, True), (1.2, True)],
    }


def test_names_say_which_weights_are_compared(tmp_path):
    kinds = ({}, {"weights": "last"}, {"weights": "nll"})
    kept = {name: facts(0.8, 0.02, 1.5) for name in folders.WEIGHTS}
    write_run(tmp_path, "ce", kept=kept, conditions=kinds)
    results = read_results([tmp_path])
    assert [c.label for c in results.contenders] == ["CE", "CE (last epoch)", "CE (lowest NLL)"]
    assert [c.key for c in results.main("organs")] == ["ce"]
    (alone,) = read_results([tmp_path], weights="nll").contenders
    assert (alone.key, alone.weights) == ("ce lowest NLL", "nll")
    write_run(tmp_path / "two", "ce", kept=kept, conditions=kinds[1:])
    assert [c.weights for c in read_results([tmp_path / "two"]).main("organs")] == ["last"]


def test_every_table_says_how_epochs_were_chosen(tmp_path):
    """Also if no name says so, because there are no other weights."""
    kept = {name: facts(0.8, 0.02, 1.5) for name in folders.WEIGHTS}

    def lines(name, *weights):
        for loss in ("ce", "ls"):
            conditions = [{"weights": w} for w in weights]
            write_run(tmp_path / name, loss, loss, kept=kept, conditions=conditions)
        tables = all_tables(read_results([tmp_path / name]))
        return {t.key: [n for n in t.notes if "chose the epoch" in n] for t in tables}

    rule = "validation chose the epoch with the lowest mean validation NLL among those whose DSC"
    for (line,) in lines("nll", "nll").values():
        assert line.startswith(f"In each run {rule}")
    both = lines("both", "best", "nll")
    (line,) = both.pop("penalty")  # which alone shows the other weights
    assert line.startswith(f"Lowest NLL: {rule}")
    assert not any(both.values())
    assert not any(lines("best", "best").values())
