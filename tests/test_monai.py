"""MONAI's engines with our handler, and saved calibrators as its transforms."""

import os
import sys
import warnings

import pytest
import torch
import torch.multiprocessing as mp
from monai.data import DataLoader, MetaTensor, partition_dataset
from monai.engines import SupervisedEvaluator
from monai.handlers import CheckpointSaver
from monai.inferers import SlidingWindowInferer
from monai.transforms import Activationsd, AsDiscreted, Compose

from segcal import calibrators
from segcal.integrations.monai import Calibrate, Calibrated, ScoresHandler
from segcal.metrics import CalibrationScores, OverlapScores
from segcal.types import UserError

N_CLASSES, SPACING = 3, (1.0, 2.0, 3.0)
AFFINE = torch.diag(torch.tensor([*SPACING, 1.0]))


class Toy(torch.nn.Module):
    """A network whose logits are known: the image is the class, blurred by noise."""

    def forward(self, image):
        centre = torch.arange(N_CLASSES, device=image.device).view(1, -1, 1, 1, 1)
        return -4 * (image.as_subclass(torch.Tensor) - centre).square()


def cases(n=5):
    torch.manual_seed(2)
    made = []
    for _ in range(n):
        label = torch.randint(0, N_CLASSES, (1, 8, 6, 7))
        image = label + 0.6 * torch.randn(label.shape)
        tensors = {"image": image, "label": label.float()}
        made.append({key: MetaTensor(value, affine=AFFINE) for key, value in tensors.items()})
    return made


def logits_of(case):
    return Toy()(case["image"][None])


def evaluator(data, handlers=(), **options):
    return SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=DataLoader(data, batch_size=2),
        network=Toy(),
        inferer=SlidingWindowInferer((8, 6, 7), overlap=0.0),
        val_handlers=list(handlers),
        **options,
    )


def direct(data, logits=logits_of, *, distances=False):
    calibration, overlap = CalibrationScores(N_CLASSES), OverlapScores(3, distances=distances)
    for case in data:
        labels = case["label"].as_subclass(torch.Tensor).long()
        calibration.update(logits(case), labels)
        overlap.update(logits(case), labels, spacing=SPACING)
    return calibration.compute() | overlap.compute()


def agree(found, expected, prefix=""):
    for key, value in expected.items():
        names = [key] if value.ndim == 0 else [f"{key}_{k + 1}" for k in range(len(value))]
        got = torch.tensor([found[prefix + name] for name in names], dtype=torch.float64)
        torch.testing.assert_close(got, value.reshape(-1), equal_nan=True, msg=key)


# The handler
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("distances", [False, True])
def test_an_epoch_is_scored_case_by_case(distances):
    data = cases()
    # What the engine's postprocessing makes of the logits does not matter.
    after = Compose([AsDiscreted("pred", argmax=True)])
    handler = ScoresHandler(N_CLASSES, distances=distances, prefix="val_")
    engine = evaluator(data, [handler], postprocessing=after)
    for _ in range(2):  # every epoch begins anew
        engine.run()
        agree(engine.state.metrics, direct(data, distances=distances), "val_")
    assert "val_asd_mean" in engine.state.metrics or not distances


def test_it_can_be_the_key_metric_that_chooses_a_checkpoint(tmp_path):
    saver = CheckpointSaver(tmp_path, {"network": Toy()}, save_key_metric=True)
    engine = evaluator(
        cases(),
        [saver],
        key_val_metric={"nll": ScoresHandler(N_CLASSES)},
        metric_cmp_fn=lambda new, best: new < best,
    )
    engine.run()
    assert engine.state.best_metric == engine.state.metrics["nll"]
    assert len(list(tmp_path.iterdir())) == 1


def test_probabilities_after_postprocessing(tmp_path):
    fitted = fit()
    calibrators.save(fitted, tmp_path / "ts")
    after = Compose([Calibrated("pred", tmp_path / "ts"), Activationsd("pred", softmax=True)])
    plain, calibrated = (
        ScoresHandler(3),
        ScoresHandler(3, of="probs", postprocessed=True, prefix="calibrated_"),
    )
    engine = evaluator(cases(), [plain, calibrated], postprocessing=after)
    engine.run()
    agree(engine.state.metrics, direct(cases()))
    found = engine.state.metrics
    expected = direct(cases(), lambda case: fitted(logits_of(case)))
    for key in ("nll", "misplaced", "dice_mean"):
        assert found[f"calibrated_{key}"] == pytest.approx(expected[key].item(), rel=1e-4)
    assert found["calibrated_nll"] < found["nll"]


def _process(rank, port, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    mine = partition_dataset(cases(), num_partitions=2, even_divisible=False)[rank]
    engine = evaluator(mine, [ScoresHandler(N_CLASSES)])
    engine.run()
    queue.put((len(mine), dict(engine.state.metrics)))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_two_processes_give_what_one_gives(unused_port):
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=_process, args=(r, unused_port, queue)) for r in range(2)]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=120) for _ in workers]  # a failed worker puts nothing
    for worker in workers:
        worker.join()
    assert sorted(n for n, _ in results) == [2, 3]
    for _, found in results:
        agree(found, direct(cases()))


def test_mistakes_with_the_handler_are_named(monkeypatch):
    with pytest.raises(UserError, match="named after one of its scores; got 'mine', of"):
        evaluator(cases(), key_val_metric={"mine": ScoresHandler(3)})
    with pytest.raises(UserError, match="unknown of 'labels'; choose one of logits, probs"):
        ScoresHandler(3, of="labels")
    monkeypatch.setitem(sys.modules, "ignite.engine", None)
    with pytest.raises(UserError, match="ScoresHandler needs Ignite; pip install pytorch-ignite"):
        ScoresHandler(3).attach(object())


def test_distances_need_a_spacing():
    data = [{key: value.as_tensor() for key, value in case.items()} for case in cases()]
    engine = evaluator(data, [ScoresHandler(3, distances=True)])
    with pytest.raises(UserError, match="need the spacing of a MetaTensor"):
        engine.run()


# The calibrator
# ------------------------------------------------------------------------------


def fit(key="ts"):
    def batches():
        for case in cases(3):
            labels = case["label"].as_subclass(torch.Tensor).long()
            yield logits_of(case), labels, logits_of(case)

    return calibrators.fit(key, batches)


@pytest.mark.parametrize("key", ["ts", "ts2", "vs"])
@pytest.mark.parametrize("of", ["logits", "probs"])
def test_a_volume_keeps_its_place(key, of):
    fitted, logits = fit(key), logits_of(cases()[0])
    given = logits if of == "logits" else logits.softmax(1)
    case = MetaTensor(given[0], affine=AFFINE, meta={"filename_or_obj": "a.nii.gz"})
    out = Calibrate(fitted, of=of)(case)
    expected = fitted(logits)[0]
    expected = expected if of == "logits" else expected.softmax(0)
    torch.testing.assert_close(out.as_tensor(), expected, atol=1e-5, rtol=1e-5)
    assert isinstance(out, MetaTensor)
    assert torch.equal(out.affine, case.affine)
    assert out.meta["filename_or_obj"] == "a.nii.gz"
    assert out.applied_operations == case.applied_operations
    assert type(Calibrate(fitted, of=of)(given[0])) is torch.Tensor


def test_an_image_is_a_volume_of_one_slice():
    fitted, logits = fit(), logits_of(cases()[0])[0, :, :, :, 0]
    out = Calibrate(fitted)(logits)
    assert torch.equal(out, fitted(logits[None, :, None])[0, :, 0])
    assert torch.equal(out.argmax(0), logits.argmax(0))


def test_in_a_compose_other_keys_are_left_alone(tmp_path):
    calibrators.save(fit("ts2"), tmp_path / "ts2")
    logits = logits_of(cases()[0])[0]
    case = {"pred": logits, "image": cases()[0]["image"], "name": "a"}
    done = Compose([Calibrated("pred", str(tmp_path / "ts2"))])(case)
    assert done["image"] is case["image"]
    assert done["name"] == "a"
    assert torch.equal(case["pred"], logits)  # the caller's own is not changed
    assert not torch.equal(done["pred"], logits)
    with pytest.raises(KeyError, match="pred"):
        Calibrated("pred", tmp_path / "ts2")({})


def test_a_calibrator_of_another_network(tmp_path):
    calibrators.save(fit(), tmp_path / "ts", identity={"network": "mine"})
    with pytest.raises(UserError, match=r"fitted on 3 classes; got shape \(1, 2, 4, 4, 4\)"):
        Calibrate(tmp_path / "ts")(torch.zeros(2, 4, 4, 4))
    with pytest.warns(UserWarning, match="fitted on network 'mine', not 'yours'"):
        Calibrated("pred", tmp_path / "ts", identity={"network": "yours"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Calibrate(tmp_path / "ts", identity={"network": "mine"})


def test_mistakes_with_a_calibrator_are_named(tmp_path):
    with pytest.raises(UserError, match="there is no fitted calibrator"):
        Calibrate(tmp_path / "none")
    with pytest.raises(UserError, match=r"takes one case \(K, \*S\); got shape \(1, 3, 4, 4, 4\)"):
        Calibrate(fit())(torch.zeros(1, 3, 4, 4, 4))
    local = calibrators.Fitted("lts", lambda *_: None, {}, {"n_classes": 3})
    with pytest.raises(UserError, match="lts needs slices and their image"):
        Calibrate(local)
