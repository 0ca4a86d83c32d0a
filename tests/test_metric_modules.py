"""The torchmetrics classes: equal to the functions, resettable, and equal over two processes."""

import os

import pytest
import torch
import torch.multiprocessing as mp
import torchmetrics
from monai.data import MetaTensor

from segcal import metrics
from segcal.metrics import METRICS, CalibrationScores, CalibrationScoresOfProbs, OverlapScores
from segcal.types import UserError


def cases(n=4):
    torch.manual_seed(7)
    return [(torch.randn(1, 3, 5, 6, 4), torch.randint(0, 3, (1, 5, 6, 4))) for _ in range(n)]


def test_calibration_is_mean_over_cases_and_pooled():
    scores = CalibrationScores(3, n_bins=10, mask="union")
    for logits, labels in cases():
        scores.update(logits, labels)
    result = scores.compute()
    bins = [metrics.reliability(x, y, n_bins=10, mask="union") for x, y in cases()]
    for key in ("ece", "cece", "nll", "brier", "mce"):
        each = torch.stack([METRICS[key].function(b) for b in bins])
        torch.testing.assert_close(result[key], each.mean())
        torch.testing.assert_close(result[f"{key}_pooled"], METRICS[key].function(sum(bins)))
    assert result["ece"].dtype is torch.float64
    assert result["ece"] != result["ece_pooled"]


def test_over_all_voxels_sums_are_per_foreground_voxel():
    scores = CalibrationScores(3)
    for logits, labels in cases():
        scores.update(logits, labels)
    result = scores.compute()
    assert "ece" not in result  # it would depend on how much background there is
    each = []
    for logits, labels in cases():
        nll = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="sum")
        each.append(nll / (labels > 0).sum())
    torch.testing.assert_close(result["nll"], torch.stack(each).mean(), rtol=1e-5, atol=0)
    bins = [metrics.reliability(x, y, mask="all") for x, y in cases()]
    misplaced = torch.stack([metrics.misplaced(b) for b in bins]).mean()
    torch.testing.assert_close(result["misplaced"], misplaced)


@pytest.mark.parametrize(("mask", "key"), [("reference", "ece"), ("all", "misplaced")])
def test_a_case_without_foreground_is_left_out_of_the_mean(mask, key):
    scores = CalibrationScores(3, mask=mask)
    logits, labels = cases()[0]
    scores.update(logits, labels)
    before = scores.compute()[key]
    scores.update(logits, torch.zeros_like(labels))
    assert scores.compute()[key] == before
    scores.reset()
    assert scores.compute()[key].isnan()


def test_forward_gives_the_case_and_keeps_the_total():
    scores = CalibrationScores(3)
    each = torch.stack([scores(x, y)["misplaced"] for x, y in cases()])
    torch.testing.assert_close(scores.compute()["misplaced"], each.mean())


def test_overlap_is_mean_over_cases_that_have_a_value():
    scores = OverlapScores(3)
    data = cases()
    data[0][1][data[0][1] == 2] = (
        0  # class 2 is absent from one reference: a miss, dice 0, distance NaN
    )
    for logits, labels in data:
        scores.update(logits, labels, spacing=(1.0, 2.0, 3.0))
    result = scores.compute()
    found = [
        metrics.surfaces(metrics.label_map(x)[0], y[0], n_classes=3, spacing=(1.0, 2.0, 3.0))
        for x, y in data
    ]
    dice = torch.stack([metrics.dice(metrics.label_map(x), y, n_classes=3) for x, y in data])
    torch.testing.assert_close(result["dice"], dice.mean(0))
    assert dice[0, 1] == 0
    for key in ("asd", "assd", "hd95"):
        torch.testing.assert_close(
            result[key], torch.stack([METRICS[key].function(f) for f in found]).nanmean(0)
        )
    assert result["missed"].tolist() == [0, 1]
    both = sum(metrics.confusion(metrics.label_map(x), y, n_classes=3) for x, y in data)
    torch.testing.assert_close(result["dice_pooled"], metrics.dice_of_confusion(both))


def test_the_mean_over_classes_is_taken_per_case():
    scores = OverlapScores(3)
    data = cases()
    data[0][1][data[0][1] == 2] = 0
    for logits, labels in data:
        scores.update(logits, labels, spacing=None)
    dice = torch.stack(
        [metrics.dice(metrics.label_map(x), y, n_classes=3).nanmean() for x, y in data]
    )
    torch.testing.assert_close(scores.compute()["dice_mean"], dice.mean())
    found = [
        metrics.surfaces(metrics.label_map(x)[0], y[0], n_classes=3, spacing=None) for x, y in data
    ]
    whole = [
        metrics.asd(f).nanmean() for f in found if not metrics.missed(f).any()
    ]  # one case invents the second class
    assert 0 < len(whole) < len(found)
    torch.testing.assert_close(scores.compute()["asd_mean"], torch.stack(whole).mean())


def test_items_can_be_cases():
    together, apart = CalibrationScores(3, items_are_cases=True), CalibrationScores(3)
    x, y = torch.randn(4, 3, 9, 9), torch.randint(0, 3, (4, 9, 9))
    together.update(x, y)
    for i in range(4):
        apart.update(x[i : i + 1], y[i : i + 1])
    torch.testing.assert_close(together.compute(), apart.compute())


def test_probabilities_have_a_class_of_their_own():
    x, y = cases()[0]
    logits, probs = CalibrationScores(3), CalibrationScoresOfProbs(3)
    logits.update(x.double(), y)
    probs.update(x.double().softmax(1), y)
    torch.testing.assert_close(logits.compute(), probs.compute())


@pytest.mark.parametrize(
    "as_target",
    [
        lambda y: y[:, None],
        lambda y: y.float(),
        lambda y: y[:, None].to(torch.uint8),
        lambda y: MetaTensor(y[:, None].float()),
    ],
    ids=["channel", "float", "uint8", "MetaTensor"],
)
def test_targets_are_what_a_criterion_takes(as_target):
    x, y = cases()[0]
    for scores, settings in (
        (CalibrationScores(3), {}),
        (CalibrationScoresOfProbs(3), {}),
        (OverlapScores(3), {"spacing": None}),
    ):
        given = x.softmax(1) if isinstance(scores, CalibrationScoresOfProbs) else x
        scores.update(given, y, **settings)
        expected = scores.compute()
        scores.reset()
        scores.update(MetaTensor(given), as_target(y), **settings)
        for key, value in scores.compute().items():
            assert type(value) is torch.Tensor
            torch.testing.assert_close(value, expected[key], rtol=0, atol=0, equal_nan=True)


def test_fractions_are_no_labels():
    x, y = cases()[0]
    with pytest.raises(UserError, match="whole numbers"):
        CalibrationScores(3).update(x, y + 0.5)
    with pytest.raises(UserError, match="target must be a torch tensor; got numpy.ndarray"):
        CalibrationScores(3).update(x, y.numpy())


def test_settings_reach_the_functions():
    x, y = cases()[0]
    y[0, 0] = 9
    scores = CalibrationScores(3, n_bins=7, mask="ring", ring=1, ignore_index=9)
    scores.update(x, y)
    bins = metrics.reliability(x, y, n_bins=7, mask="ring", ring=1, ignore_index=9)
    torch.testing.assert_close(scores.compute()["ece"], metrics.ece(bins))
    assert scores.bins.n_voxels == bins.n_voxels
    overlap = OverlapScores(3, ignore_index=9)
    overlap.update(x, y, spacing=None)
    torch.testing.assert_close(
        overlap.compute()["dice"],
        metrics.dice(metrics.label_map(x), y, n_classes=3, ignore_index=9),
    )


def test_a_collection_keeps_different_settings_apart():
    """torchmetrics takes metrics with equal states for one; after a case without foreground these
    are all zero.
    """
    make = {
        "ref": CalibrationScores(3, mask="reference"),
        "ring": CalibrationScores(3, mask="ring"),
        "all": CalibrationScores(3, mask="all"),
    }
    group = torchmetrics.MetricCollection(make)
    x, y = cases()[0]
    for labels in (torch.zeros_like(y), y):
        group.update(x, labels)
    alone = CalibrationScores(3, mask="ring")
    alone.update(x, y)
    assert group.compute()["ring_ece"] == alone.compute()["ece"]


def test_a_collection_keeps_items_and_batches_apart():
    """The first batch has one item, for which both are the same."""
    group = torchmetrics.MetricCollection(
        {"whole": CalibrationScores(3), "each": CalibrationScores(3, items_are_cases=True)}
    )
    torch.manual_seed(5)
    batches = [(torch.randn(n, 3, 9, 9), torch.randint(0, 3, (n, 9, 9))) for n in (1, 4)]
    for x, y in batches:
        group.update(x, y)
    for key, settings in (("whole", {}), ("each", {"items_are_cases": True})):
        alone = CalibrationScores(3, **settings)
        for x, y in batches:
            alone.update(x, y)
        assert group.compute()[f"{key}_nll"] == alone.compute()["nll"]


def test_an_infinite_value_stays_infinite():
    x, y = torch.tensor([[[0.0, 0.0], [-torch.inf, 1.0]]]), torch.tensor([[1, 1]])
    scores = CalibrationScores(2)
    scores.update(x, y)
    assert scores.compute()["nll"] == torch.inf


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CalibrationScores(3, mask="foo"), "unknown mask 'foo'"),
        (lambda: CalibrationScores(1), "n_classes must be at least 2"),
        (lambda: CalibrationScores(3, n_bins=0), "n_bins must be at least 1"),
        (lambda: CalibrationScores(3, ring=0), "ring must be at least 1"),
        (lambda: OverlapScores(1), "n_classes must be at least 2"),
        (
            lambda: OverlapScores(5).update(*cases()[0], spacing=None),
            "was made for 5 classes; got shape",
        ),
        (lambda: CalibrationScores(5).update(*cases()[0]), "was made for 5 classes; got shape"),
        (
            lambda: OverlapScores(3).update(cases()[0][0] / 0 * 0, cases()[0][1], spacing=None),
            "NaN",
        ),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_slices_of_a_volume_are_not_taken_for_a_case():
    x, y = torch.randn(6, 3, 5, 5), torch.randint(0, 3, (6, 5, 5))
    scores = OverlapScores(3)
    with pytest.raises(UserError, match=r"one case per update.*movedim"):
        scores.update(x, y, spacing=None)
    scores.update(x.movedim(0, 1)[None], y[None], spacing=None)
    torch.testing.assert_close(
        scores.compute()["dice"], metrics.dice(metrics.label_map(x), y, n_classes=3)
    )


CASTS = [
    lambda metric: metric.half(),
    lambda metric: metric.to(torch.bfloat16),  # as Lightning does for bf16-true
    lambda metric: metric.to("cpu", torch.float16),
]


@pytest.mark.parametrize("cast", CASTS, ids=["half", "bfloat16", "with a device"])
def test_states_stay_float64_when_a_model_is_cast(cast):
    """Many cases: a running bfloat16 sum of values near 1 is percents off after tens of them."""
    torch.manual_seed(3)
    plain, moved = ([OverlapScores(3, distances=False), CalibrationScores(3)] for _ in range(2))
    moved = [cast(metric) for metric in moved]
    for _ in range(65):
        labels = torch.randint(0, 3, (1, 8, 8))
        logits = (
            torch.nn.functional.one_hot(labels.where(torch.rand(labels.shape) > 0.1, 0), 3)
            .movedim(-1, 1)
            .float()
        )
        for overlap, calibration in (plain, moved):
            overlap.update(logits, labels, spacing=None)
            calibration.update(logits, labels)
    for metric, other in zip(plain, moved, strict=True):
        torch.testing.assert_close(other.compute(), metric.compute(), rtol=0, atol=0)
        metric.reset()
        other.reset()
        assert {state.dtype for state in other.metric_state.values()} == {torch.float64}


class OnApple:
    """A tensor on a device that has no float64."""

    def __init__(self, tensor):
        if tensor.dtype is torch.float64:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support"
                " float64."
            )
        self.device, self.dtype = torch.device("mps"), tensor.dtype


def test_states_stay_on_the_cpu_where_there_is_no_float64():
    scores = CalibrationScores(3)
    scores.update(*cases()[0])
    before = scores.compute()
    scores._apply(OnApple)
    assert scores.device.type == "cpu"
    torch.testing.assert_close(scores.compute(), before)
    scores.reset()
    scores.update(*cases()[0])
    torch.testing.assert_close(scores.compute(), before)


def test_states_go_where_the_model_goes():
    scores = torch.nn.Sequential(CalibrationScores(3), OverlapScores(3)).to("meta")
    for metric in scores:
        assert metric.device.type == "meta"
        assert {state.device.type for state in metric.metric_state.values()} == {"meta"}
        metric.reset()  # to defaults, which have moved as well
        assert {state.device.type for state in metric.metric_state.values()} == {"meta"}


def _worker(rank, port, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    calibration, overlap = CalibrationScores(3), OverlapScores(3)
    for logits, labels in cases(5)[rank::2]:  # three cases here, two there
        calibration.update(logits, labels)
        overlap.update(logits, labels, spacing=None)
    results = {k: v.tolist() for k, v in (calibration.compute() | overlap.compute()).items()}
    queue.put((rank, results))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_two_processes_give_what_one_gives(unused_port):
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [
        context.Process(target=_worker, args=(rank, unused_port, queue)) for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=60) for _ in workers]  # a failed worker puts nothing
    for worker in workers:
        worker.join()
    calibration, overlap = CalibrationScores(3), OverlapScores(3)
    for logits, labels in cases(5):
        calibration.update(logits, labels)
        overlap.update(logits, labels, spacing=None)
    expected = calibration.compute() | overlap.compute()
    assert sorted(rank for rank, _ in results) == [0, 1]
    for _, result in results:
        assert result.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(
                torch.tensor(result[key], dtype=torch.float64), value, equal_nan=True
            )
