"""Which classes a network predicts after a brief training, by what its last layer begins with.

`python -m benchmarks.classes FOLDER` prepares the data in FOLDER (real data as for the tests),
trains what `benchmarks/classes.csv` lacks, a seed after the other, and prints the table of
docs/concepts/every-class.md. It can be stopped at any time; all of it takes about 2.5 hours of
one core."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segcal.data.prepare import prepare
from segcal.data.slices import Slices
from segcal.folders import CaseSet
from segcal.hardware import channels_last, keep_pages
from segcal.networks import NETWORKS, build_network, last_layer
from segcal.training.validation import Sums, case_sums

REAL = Path(os.environ.get("SEGCAL_REAL_DATA") or Path(__file__).parents[2] / "shared" / "data")
FOUND = Path(__file__).with_suffix(".csv")
STEPS, BATCH, LR = 200, 4, 3e-3
N_TRAIN, N_VAL = 320, 80  # slices


class Variant(NamedTuple):
    """What a training begins with."""

    label: str
    activation: str = "none"  # before the last convolution: none, relu or leaky (slope 0.1)
    prior: bool = False  # logits start at the log of the classes' shares
    warm_up: bool = False  # the learning rate rises over the first fifth of the steps
    lr: float = LR
    steps: int = 1  # in units of `STEPS`


VARIANTS = {
    "paper": Variant("ReLU (paper)", "relu"),
    "paper-slow": Variant("ReLU, rate / 3", "relu", lr=LR / 3),
    "paper-warm": Variant("ReLU, warm-up", "relu", warm_up=True),
    "leaky": Variant("leaky ReLU", "leaky"),
    "prior": Variant("ReLU, prior", "relu", prior=True),
    "none": Variant("none"),
    "both": Variant("none, prior (default)", prior=True),
    "both-slow": Variant("none, prior, rate / 3", prior=True, lr=LR / 3),
    "both-warm": Variant("none, prior, warm-up", prior=True, warm_up=True),
    "paper-long": Variant("ReLU (paper), 600 steps", "relu", steps=3),
    "both-long": Variant("none, prior (default), 600 steps", prior=True, steps=3),
}
ENDS = ("paper", "both")
DATA = ("hippocampus", "phantom", "busi")
N_SEEDS = 10
# Network, width and variants, each with `N_SEEDS`.
GRID = (
    ("unet", 4, tuple(VARIANTS)),
    *(("unet", width, ENDS) for width in (8, 16)),
    *((name, width, ENDS) for width in (4, 8, 16) for name in NETWORKS if name != "unet"),
)


class Trial(NamedTuple):
    data: str
    network: str
    width: int
    variant: str
    seed: int


class Outcome(NamedTuple):
    never: int  # classes that are labelled in validation and never predicted
    classes: int
    dice: float  # mean of the classes over all validation slices together


def trials() -> Iterator[Trial]:
    """Seed by seed, so that an interrupted measurement has some of everything."""
    for seed, (network, width, variants) in product(range(N_SEEDS), GRID):
        for variant, data in product(variants, DATA):
            yield Trial(data, network, width, variant, seed)


def prepared(folder: Path, name: str) -> CaseSet:
    """BUSI at 64×64 pixels; phantoms in the middle of an empty image, 2 % foreground in all."""
    to = folder / "cases"
    if name == "phantom":
        small: dict[str, Any] = {"n_cases": 80, "shape": (6, 26, 26), "crop": (6, 64, 64)}
        return prepare("phantom", to=to, **small).cases
    if name == "busi":
        return prepare("busi", REAL / "BUSI", to, size=(64, 64), duplicates="allow").cases
    return prepare("hippocampus", REAL / "Task04_Hippocampus", to).cases


def tensors(cases: CaseSet, split: str, n: int) -> tuple[Tensor, Tensor]:
    """Slices spread over a split."""
    slices = Slices(cases, split)
    places = torch.linspace(0, len(slices) - 1, min(n, len(slices))).long().tolist()
    return slices.batch(places)


def built(trial: Trial, n_channels: int, n_classes: int, shares: Tensor) -> nn.Module:
    variant = VARIANTS[trial.variant]
    settings: dict[str, Any] = {"depth": 2} if trial.network == "transunet" else {}
    settings["last_activation"] = "none" if variant.activation == "none" else "relu"
    network = build_network(trial.network, n_channels, n_classes, width=trial.width, **settings)
    if variant.activation == "leaky":
        convs = cast(Any, network).network.upcat_1.convs
        convs[-1].adn.A = nn.LeakyReLU(0.1)
    if variant.prior:
        with torch.no_grad():
            cast(Tensor, last_layer(network).bias).copy_(shares.log())
    return channels_last(network)


def tried(trial: Trial, cases: CaseSet) -> Outcome:
    variant, n_classes = VARIANTS[trial.variant], len(cases.classes) + 1
    images, labels = tensors(cases, "train", N_TRAIN)
    images = images.contiguous(memory_format=torch.channels_last)
    torch.manual_seed(trial.seed)
    network = built(trial, images.shape[1], n_classes, Slices(cases, "train").class_shares).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=variant.lr, fused=True)
    n_steps = STEPS * variant.steps
    for step in range(n_steps):
        if variant.warm_up:
            optimizer.param_groups[0]["lr"] = variant.lr * min(1.0, (step + 1) / (n_steps / 5))
        some = torch.randint(len(images), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(network(images[some]), labels[some], ignore_index=-100).backward()
        optimizer.step()
    network.eval()
    total = Sums.zero(n_classes)
    with torch.inference_mode():
        parts = [values.split(20) for values in tensors(cases, "val", N_VAL)]
        for image, label in zip(*parts, strict=True):
            total += case_sums(network(image), label)
    dice = total.dice.nan_to_num(0).mean().item()
    return Outcome(len(total.never_predicted), n_classes - 1, dice)


def found() -> dict[Trial, Outcome]:
    if not FOUND.is_file():
        return {}
    known = {}
    with FOUND.open(newline="") as file:
        for row in list(csv.reader(file))[1:]:
            data, network, width, variant, seed, never, classes, dice = row
            trial = Trial(data, network, int(width), variant, int(seed))
            known[trial] = Outcome(int(never), int(classes), float(dice))
    return known


def table(known: dict[Trial, Outcome]) -> str:
    """A row per network, width and variant: lost classes of all (class, seed) pairs, mean DSC.

    Of the seeds that were tried on all data; forms that none was tried with are left out."""
    heads = ["network, width", "form", "seeds", "hippocampus", "phantoms", "BUSI"]
    lines = [heads, ["---"] * len(heads)]
    for network, width, variants in GRID:
        for variant in variants:
            trials = [[Trial(d, network, width, variant, s) for d in DATA] for s in range(N_SEEDS)]
            tried_on_all = [row for row in trials if all(trial in known for trial in row)]
            cells = [f"{network}, {width}", VARIANTS[variant].label, str(len(tried_on_all))]
            for same_data in zip(*tried_on_all, strict=True):
                some = [known[trial] for trial in same_data]
                lost, pairs = sum(o.never for o in some), sum(o.classes for o in some)
                cells.append(f"{lost}/{pairs}, {sum(o.dice for o in some) / len(some):.2f}")
            if tried_on_all:
                lines.append(cells)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    keep_pages()
    known = found()
    sets = {name: prepared(Path(folder), name) for name in DATA}
    begun = FOUND.is_file()
    with FOUND.open("a", newline="") as file:
        writer = csv.writer(file)
        if not begun:
            writer.writerow([*Trial._fields, *Outcome._fields])
        for trial in trials():
            if trial not in known:
                outcome = tried(trial, sets[trial.data])
                known[trial] = outcome
                writer.writerow([*trial, outcome.never, outcome.classes, f"{outcome.dice:.4f}"])
                file.flush()
    print(table(known))


if __name__ == "__main__":
    main(*sys.argv[1:])
