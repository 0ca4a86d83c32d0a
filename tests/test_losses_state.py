"""A loss that learns values from validation: the module, and a run that is interrupted."""

import json

import pytest
import torch
import torch.nn.functional as F

from segcal.config import run_settings
from segcal.data.prepare import prepare
from segcal.losses import LOSSES, Criterion, Loss, Validation
from segcal.losses.checks import objective
from segcal.metrics import accuracy, reliability
from segcal.training import train
from segcal.types import IGNORE, UserError


class PowerCutError(RuntimeError):
    pass


def toy(steps_left=None):
    """Cross-entropy weighted per class; a class with a low Dice weighs more in the next epoch."""

    @objective
    def weighted(logits, labels, *, multiplier, strength=1.0, ignore_index=IGNORE):
        if steps_left is not None and logits.requires_grad:
            steps_left.pop()
        if steps_left == []:
            raise PowerCutError
        log_probs = F.log_softmax(logits, 1) * multiplier.view(-1, *[1] * (logits.ndim - 2))
        return strength * F.nll_loss(log_probs, labels, ignore_index=ignore_index)

    def update(state, validation):
        low = (1 - validation.dice.nan_to_num(0)).to(state["multiplier"])
        right = accuracy(validation.reliability).nan_to_num(0).to(low)
        return {"multiplier": state["multiplier"] * torch.cat([right.view(1) + 0.5, 1 + low])}

    return Loss(
        weighted,
        "Toy",
        "cross-entropy weighted per class",
        "none",
        state=lambda n_classes: {"multiplier": torch.ones(n_classes)},
        update=update,
    )


@pytest.fixture
def toy_loss(monkeypatch):
    monkeypatch.setitem(LOSSES, "toy", toy())


X, Y = torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([1])
FACTS = Validation(reliability(X, Y), torch.tensor([0.5, 1.0]))


@pytest.mark.usefixtures("toy_loss")
def test_an_update_changes_the_loss_and_is_saved():
    criterion = Criterion("toy", n_classes=3)
    before = criterion(X, Y)
    torch.testing.assert_close(before, F.cross_entropy(X, Y))
    criterion.update(FACTS)
    assert criterion.multiplier.tolist() == [0.5, 1.5, 1.0]
    torch.testing.assert_close(criterion(X, Y), 1.5 * before)
    again = Criterion("toy", n_classes=3)
    again.load_state_dict(criterion.state_dict())
    assert torch.equal(again(X, Y), criterion(X, Y))


@pytest.mark.usefixtures("toy_loss")
def test_learned_values_are_no_settings():
    assert LOSSES["toy"].settings == {"strength": 1.0, "ignore_index": IGNORE}
    with pytest.raises(UserError, match="toy learns values per class; give Criterion n_classes"):
        Criterion("toy")
    with pytest.raises(UserError, match="unknown setting of toy 'multiplier'"):
        Criterion("toy", n_classes=3, multiplier=2)


def test_losses_without_state_have_nothing_to_save_or_learn():
    for key in LOSSES:
        criterion = Criterion(key)
        assert not criterion.state_dict()
        criterion.update(FACTS)


def test_an_interrupted_run_learns_what_an_uninterrupted_one_does(tmp_path, monkeypatch):
    cases = prepare("phantom", to=tmp_path / "cases", n_cases=6, shape=(4, 24, 24)).cases
    sets = ["network.width=2", "training.batch=4", "training.epochs=3", "loss.name=toy"]
    settings = run_settings({"data": str(cases.root)}, overrides=sets)

    monkeypatch.setitem(LOSSES, "toy", toy())
    train(settings, tmp_path / "whole", progress=False)
    n_steps = _checkpoint(tmp_path / "whole")["global_step"]

    monkeypatch.setitem(LOSSES, "toy", toy(steps_left=[0] * (n_steps - 1)))  # in the third epoch
    with pytest.raises(PowerCutError):
        train(settings, tmp_path / "cut", progress=False)
    halfway = _learned(tmp_path / "cut")
    monkeypatch.setitem(LOSSES, "toy", toy())
    train(settings, tmp_path / "cut", progress=False)

    assert torch.equal(_learned(tmp_path / "cut"), _learned(tmp_path / "whole"))
    assert not torch.equal(_learned(tmp_path / "whole"), halfway)
    assert not torch.equal(halfway, torch.ones_like(halfway))
    logs = [_losses(tmp_path / name) for name in ("cut", "whole")]
    assert logs[0] == logs[1]

    monkeypatch.setitem(LOSSES, "toy", Loss(toy().function, "", "", "", state=toy().state))
    train(settings, tmp_path / "fixed", progress=False)  # nothing is learned: other losses
    assert _losses(tmp_path / "fixed")[0] == logs[0][0]
    assert _losses(tmp_path / "fixed")[1:] != logs[0][1:]
    kept = json.loads((tmp_path / "whole" / "run.json").read_text())["settings"]["loss"]
    assert kept == {"name": "toy", "strength": 1.0, "ignore_index": IGNORE}


def _checkpoint(out):
    (path,) = (out / "checkpoints").glob("last*.ckpt")
    return torch.load(path, weights_only=False)


def _learned(out):
    return _checkpoint(out)["state_dict"]["criterion.multiplier"]


def _losses(out):
    lines = (out / "log.csv").read_text().splitlines()
    column = lines[0].split(",").index("train_loss")
    return [line.split(",")[column] for line in lines[1:]]
