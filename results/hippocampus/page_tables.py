"""The tables of the page that `segcal compare` does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import scipy.stats
from packed_study import Study
from published_rows import paper, published_change, published_mean
from wording import level, markdown, points, spread

from segcal.losses import LOSSES
from segcal.metrics import METRICS

NOISE = (0.01, 0.02, 0.03, 0.04, 0.05)


def promise_table(studies: Mapping[str, Study]) -> str:
    """MbLS against CE, in the paper and in every study."""
    rows = []
    for metric in ("ece", "cece", "dice"):
        row = METRICS[metric]
        pair = [f"{s.value('ce', metric)} → {s.value('mbls', metric)}" for s in studies.values()]
        rows.append([f"**{row.label}** {row.arrow}, CE → MbLS", f"{paper('ce', metric)} → {paper('mbls', metric)}", *pair])
        theirs = points(published_mean("mbls", metric) - published_mean("ce", metric))
        ours = [f"{s.difference('mbls', metric)}, {s.change('mbls', metric)}" for s in studies.values()]
        rows.append(["change", f"{theirs}, {published_change(metric)}", *ours])
        chances = [f"{s.holm('mbls', 'ce', metric)}; {_seeds(s, metric)}" for s in studies.values()]
        rows.append(["over cases (Holm); over seeds", "one training", *chances])
    return markdown(["", "paper", *studies], rows)


def gains(studies: Mapping[str, Study]) -> str:
    """By how much MbLS has a lower ECE than CE, from the least to the most."""
    found = [study.mean("ce", "ece") - study.mean("mbls", "ece") for study in studies.values()]
    return f"{min(found):.3f} to {max(found):.3f}"


def _seeds(study: Study, metric: str) -> str:
    return "one training" if study.seeds == "one seed" else study.over_seeds("mbls", "ce", metric)


def noise_table(study: Study) -> str:
    """ECE as noise grows, and what it costs in DSC."""
    strengths = [f"{strength:g}" for strength in NOISE]
    rows = []
    for key in study.keys:
        ece = [study.value(key, "ece"), *(study.corrupted(key, "ece", strength) for strength in NOISE)]
        rows.append([LOSSES[key].label, *ece, study.value(key, "dice"), study.corrupted(key, "dice", NOISE[-1])])
    return markdown(["", "ECE ↓ without", *strengths, "DSC ↑ without", strengths[-1]], rows)


def confidence_table(study: Study) -> str:
    """Which way the confidence is wrong, and the temperatures of TS that follow from it."""
    gap, *parts = ("confidence_gap", "overconfidence", "underconfidence")
    rows = [
        [
            c.label,
            points(study.mean(c.key, gap)),
            *(study.value(c.key, metric) for metric in parts),
            ", ".join(f"{study.temperature(run):.2f}" for run in c.runs),
        ]
        for c in study.results.contenders
    ]
    return markdown(["", *(METRICS[metric].label for metric in (gap, *parts)), "temperature of TS"], rows)


def cells_table(study: Study) -> str:
    """Which cells stand for each contender, and what came out of each."""
    rows = [
        [
            c.label,
            c.setting or "—",
            *(study.each_seed(c.key, m) for m in ("dice", "ece")),
            ", ".join(f"`{r}`" for r in c.runs),
        ]
        for c in study.all.contenders
    ]
    return markdown(["", "setting", "DSC ↑ of each", "ECE ↓ of each", "cells"], rows)


def settings_table(study: Study) -> str:
    """Validation DSC and ECE of every setting that was tried, at the epoch of the best DSC and over the second half."""
    heads = ["", "chosen", "kept epoch", "DSC ↑", "ECE ↓", "DSC ↑, second half", "ECE ↓, second half"]
    return markdown(heads, _tried(study))


def _tried(study: Study) -> Iterator[list[str]]:
    for c in study.all.contenders:
        for setting, runs in sorted(c.runs_tried.items(), key=lambda item: level(item[0])):
            best = [study.all.runs[run]["best"] for run in runs]
            label = f"{c.label}, {setting.replace('=', ' ')}" if setting else c.label
            epochs = ", ".join(str(b["epoch"] + 1) for b in best)
            at_best = [spread([b[key] for b in best]) for key in ("val_dice", "val_ece")]
            late = [spread([study.late(run, key) for run in runs]) for key in ("val_dice", "val_ece")]
            yield [label, "yes" if setting == c.setting else "", epochs, *at_best, *late]


def cece_table(study: Study) -> str:
    """CECE as mean and as sum over the classes, beside the paper's."""
    rows = []
    for key in study.keys:
        mean, theirs = study.mean(key, "cece"), published_mean(key, "cece")
        values = [f"{value:.3f}" for value in (mean, study.n_classes * mean, theirs)]
        rows.append([LOSSES[key].label, *values, f"{mean / theirs:.2f}", f"{study.n_classes * mean / theirs:.2f}"])
    return markdown(["", "mean over classes", "sum", "published", "mean / published", "sum / published"], rows)


def cece_order(study: Study) -> str:
    """Spearman's correlation of our CECE with the published."""
    pairs = [(study.mean(key, "cece"), published_mean(key, "cece")) for key in study.keys]
    return f"{scipy.stats.spearmanr(pairs).statistic:.2f}"
