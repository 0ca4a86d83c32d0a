"""How long will it take? A few training steps and one volume of the real data, timed, and what
follows for a whole plan.
"""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segcal.calibrators import CALIBRATORS
from segcal.config import RunSettings
from segcal.data.slices import Slices, volume
from segcal.folders import CaseSet, open_cases
from segcal.hardware import channels_last, keep_pages
from segcal.losses import Criterion
from segcal.metrics import reliability
from segcal.networks import build_network
from segcal.predictors.run import volume_logits

STEPS = 4  # timed after one to warm up
FIT_SLICES = 5  # of a case, to time a fit on
SCORING = 1.2  # a volume's inference with all its metrics, in units of its inference
START = 1.5  # seconds to start a process and open the data


def probe(settings: RunSettings, calibrators: Sequence[str]) -> dict[str, float]:
    """Seconds of training and of one pass over the test split, and of fitting each of the
    calibrators.
    """
    keep_pages()
    cases = open_cases(Path(settings.data))
    slices = Slices(cases, "train", fold=settings.fold, keep_empty=settings.training.keep_empty)
    device = torch.device(
        "cuda" if torch.cuda.is_available() and settings.machine.accelerator != "cpu" else "cpu"
    )
    classes = len(cases.classes) + 1
    network = build_network(
        settings.network.name, len(cases.channels), classes, **settings.network.settings
    )
    network = channels_last(network.to(device))
    batch = settings.training.batch
    step = _step_seconds(settings, network, slices, device)
    id = cases.split("val", settings.fold)[0]
    image, label = volume(cases, id)
    with torch.inference_mode():
        network.eval()
        logits = volume_logits(network, image.to(device), slices.shape).cpu()
        score = _seconds(
            lambda: reliability(volume_logits(network, image.to(device), slices.shape).cpu(), label)
        )
    per_slice = score / len(image)
    n_val, n_test = (_n_slices(cases, split, settings.fold) for split in ("val", "test"))
    epoch = -(-len(slices) // batch) * step + n_val * per_slice
    found = {
        "train": START + settings.training.epochs * epoch,
        "test": n_test * per_slice * SCORING,
    }
    n_cases = len(cases.split("val", settings.fold))
    for name in calibrators:
        found[name] = n_val * per_slice + _fit_seconds(
            name, (logits, label, image), n_cases, n_val / n_cases
        )
    return found


def _fit_seconds(name: str, case: tuple[Tensor, ...], n_cases: int, n_slices: float) -> float:
    """Seconds to fit a calibrator on so many cases of so many slices, from two fits on so many thin
    ones.

    A fit takes as many steps on thin cases as on whole ones; a step's seconds are a line in the
    number of slices."""
    thin, thick = 1, min(FIT_SLICES, len(case[0]))
    taken = {}
    for n in {thin, thick}:
        start = (len(case[0]) - n) // 2
        part = tuple(x[start : start + n].clone() for x in case)
        taken[n] = _seconds(partial(CALIBRATORS[name].fit, lambda part=part: [part] * n_cases))
    slope = max(0.0, taken[thick] - taken[thin]) / max(1, thick - thin)
    return taken[thick] + slope * max(0.0, n_slices - thick)


def _step_seconds(
    settings: RunSettings, network: Any, slices: Slices, device: torch.device
) -> float:
    """The median of a few training steps."""
    n_classes = len(slices.cases.classes) + 1
    criterion = Criterion(settings.loss.name, n_classes=n_classes, **settings.loss.settings)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.training.lr, fused=True)
    places = [i * len(slices) // settings.training.batch for i in range(settings.training.batch)]
    taken = []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        image, label = slices.batch(places)
        optimizer.zero_grad()
        loss = criterion(
            network(image.to(device, memory_format=torch.channels_last)), label.to(device)
        )
        loss.backward()
        optimizer.step()
        loss.item()  # waits for a GPU
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def _seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _n_slices(cases: CaseSet, split: str, fold: int) -> int:
    return sum(cases.label(id).shape[0] for id in cases.split(split, fold))


def duration(stages: Iterable[Sequence[float]], slots: int) -> float:
    """Seconds until the last job ends: a free slot takes the next job, and a stage waits for the
    one before.

    >>> duration([[3.0, 1.0, 1.0, 1.0], [2.0]], slots=2)
    5.0
    """
    end = 0.0
    for jobs in stages:
        free = [end] * slots
        for seconds in jobs:
            heapq.heappush(free, heapq.heappop(free) + seconds)
        end = max(free)
    return end
