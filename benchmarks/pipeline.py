"""Training, evaluation and post-hoc fitting against a bare loop, the network's own inference, and
other ways to fit.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fiducio
import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from benchmarks.calibration import volume as scored_volume
from benchmarks.measure import Row, time_row, times
from segcal import calibrators, training
from segcal.config import RunSettings, run_settings
from segcal.data.prepare import prepare
from segcal.folders import CaseSet, open_cases
from segcal.hardware import channels_last, keep_pages
from segcal.losses import Criterion
from segcal.metrics import reliability
from segcal.networks import build_network
from segcal.predictors.run import Run, volume_logits
from segcal.scoring import FINE, _case_rows, _logit_sums
from segcal.types import IGNORE

SIZES = [
    (8, 64, 264, 4),
    (4, 224, 28, 4),
]  # batch, height and width, cases (185 and 20 to train on), slices of each


class TakingTurns(Callback):
    """After each step of segcal's one of another loop, so that a busy moment of the machine hits
    both alike.
    """

    def __init__(self, other: Callable[[], None]) -> None:
        self.other, self.start = other, 0.0
        self.ours: list[float] = []  # from one batch to the next, less the other's step
        self.theirs: list[float] = []

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        now = time.perf_counter()
        self.ours.append(now - self.start)
        self.other()
        self.start = time.perf_counter()
        self.theirs.append(self.start - now)


def bare(settings: RunSettings, cases: CaseSet) -> Callable[[], None]:
    """A step of a plain loop: the same network, loss and optimiser, over tensors in memory."""
    slices = training._slices(settings, cases)
    batch = settings.training.batch
    torch.manual_seed(0)
    network = channels_last(
        build_network("unet", 1, len(cases.classes) + 1, **settings.network.settings)
    ).train()
    criterion = Criterion(settings.loss.name)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    images, labels = (
        torch.stack(parts) for parts in zip(*(slices[i] for i in range(batch * 4)), strict=True)
    )
    images = images.contiguous(memory_format=torch.channels_last)
    batches = itertools.cycle(zip(images.split(batch), labels.split(batch), strict=True))

    def step() -> None:
        image, label = next(batches)
        optimizer.zero_grad()
        criterion(network(image), label).backward()
        optimizer.step()

    return step


def steps(settings: RunSettings, cases: CaseSet, out: Path) -> tuple[float, float]:
    """Median seconds of a step as `segcal train` runs it, and of a bare loop's, when all files have
    been opened once.
    """
    slices = training._slices(settings, cases)
    model = training.Segmentation(settings, cases, slices)
    trainer, turns = (
        training._trainer(settings, out, training.Best(out), progress=False),
        TakingTurns(bare(settings, cases)),
    )
    trainer.callbacks.append(turns)  # type: ignore[attr-defined]
    keep_pages()
    trainer.fit(
        model,
        training._loader(settings, slices, model.order),
        training._case_loader(cases, settings),
    )
    half = len(turns.ours) // 2 + 1  # from the second batch of the second epoch
    return statistics.median(turns.ours[half:]), statistics.median(turns.theirs[half:])


def training_rows() -> Iterator[Row]:
    for batch, size, n_cases, depth in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            prepare("phantom", to=root, n_cases=n_cases, shape=(depth, size, size))
            cases = open_cases(root / "phantom")
            sets = [
                "network.width=8",
                f"training.batch={batch}",
                "training.epochs=2",
                "loss.name=mbls",
            ]
            settings = run_settings({"data": str(cases.root)}, overrides=sets)
            pairs = [steps(settings, cases, root / str(i)) for i in range(5)]
        ours, theirs = sorted(pairs, key=lambda pair: pair[0] / pair[1])[
            2
        ]  # the round with the median ratio
        what = f"training step, unet width 8, mbls, ({batch}, 1, {size}, {size})"
        yield Row(
            what,
            "bare PyTorch loop",
            ours / theirs,
            1 / 0.95,
            f"{ours * 1e3:.3g} ms / {theirs * 1e3:.3g} ms",
        )


def a_run(n_classes: int) -> Run:
    """A run with fresh weights: they cost what trained ones cost."""
    torch.manual_seed(0)
    network = channels_last(build_network("unet", 1, n_classes, width=8).eval())
    data = {"classes": [f"c{k}" for k in range(1, n_classes)], "regions": {}}
    return Run(Path(), {"data": data, "frame": [1, 1]}, network, torch.device("cpu"))


def evaluation_rows() -> Iterator[Row]:
    logits, labels = scored_volume()
    logits = F.avg_pool2d(logits, 5, 1, 2)  # as smooth as a network's
    run, image = a_run(logits.shape[1]), torch.rand(30, 1, 192, 192)
    data = run.info["data"] | {"regions": {"WT": [1, 2, 3], "TC": [1, 3], "ET": [3]}}
    with_regions = replace(run, info=run.info | {"data": data})
    some_ignored = labels.masked_fill(torch.arange(192) < 4, IGNORE)  # a strip of each slice

    def score(run: Run, labels: Tensor) -> None:
        bins = reliability(logits, labels, n_bins=FINE)
        _logit_sums(logits, labels)
        _case_rows("case", logits, labels, bins.coarser(), run, [2.0, 1.0, 1.0])

    what, against = "all metrics of a volume (30, 192, 192), 5 classes", "inference, width 8"
    for kind, about, truth, reach in (
        ("", run, labels, 0.2),
        (", some ignored", run, some_ignored, 0.2),
        (" and 3 regions", with_regions, labels, 0.3),  # most is done twice
    ):
        ours = functools.partial(score, about, truth)
        yield time_row(what + kind, against, ours, lambda: run.logits(image), reach, 21)


def cached(n_slices: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits like a hippocampus network's, and labels that they are too sure of."""
    torch.manual_seed(0)
    logits = F.interpolate(torch.randn(n_slices, 3, 12, 16), (48, 64), mode="bilinear") * 8
    logits[:, 0] += 6
    labels = torch.distributions.Categorical(logits=(logits / 1.4).movedim(1, -1)).sample()
    return logits, labels, torch.rand(n_slices, 1, 48, 64)


def posthoc_rows() -> Iterator[Row]:
    logits, labels, image = cached(900)
    cases = list(zip(logits.split(36), labels.split(36), image.split(36), strict=True))  # 25 cases

    def fit() -> float:
        return float(calibrators.fit("ts", lambda: cases).facts()["temperature"])

    run = a_run(3)

    def one_of_a_grid() -> None:
        for _, truth, picture in cases:
            F.cross_entropy(volume_logits(run.network, picture, (1, 1)) / 1.3, truth)

    with torch.inference_mode():
        ours, once = times(fit, one_of_a_grid, repeats=3)
    grid = 100 * once  # every temperature costs the same
    detail = (
        f"{ours + once:.3g} s with one pass of the network, {grid:.3g} s (100 times one measured)"
    )
    yield Row(
        "`ts` on 25 cases (900, 3, 48, 64)",
        "grid of 100, network each time",
        (ours + once) / grid,
        1 / 20,
        detail,
    )

    few = logits[:225], labels[:225], image[:225]
    peer = fiducio.TemperatureScaling()
    start = time.perf_counter()
    peer.fit(few[0], few[1])
    theirs = time.perf_counter() - start
    (mine,) = times(lambda: calibrators.fit("ts", lambda: [few]), repeats=3)
    found = float(calibrators.fit("ts", lambda: [few]).facts()["temperature"])
    detail = f"{mine:.3g} s / {theirs:.3g} s; T = {found:.4f} / {peer.temperature:.4f}"
    yield Row("`ts` on (225, 3, 48, 64)", "fiducio", mine / theirs, 1 / 50, detail)

    start = time.perf_counter()
    calibrators.fit("lts", lambda: cases)
    yield Row(
        "`lts` on 25 cases (900, 3, 48, 64)",
        "two minutes",
        time.perf_counter() - start,
        120.0,
        "20 epochs",
        unit=" s",
    )


def rows() -> Iterator[Row]:
    keep_pages()
    training._quieten()
    L.seed_everything(0, verbose=False)
    yield from training_rows()
    yield from evaluation_rows()
    yield from posthoc_rows()
