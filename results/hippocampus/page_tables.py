"""The tables of the page that `segcal compare` does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import scipy.stats
from packed_study import SEVEN, Study
from published_rows import paper, published_change, published_mean
from wording import markdown, points, spread

from segcal.compare import setting_text
from segcal.losses import LOSSES
from segcal.metrics import METRICS

NOISE = (0.01, 0.02, 0.03, 0.04, 0.05)
LEVEL = 0.05  # of tests


def noise(strength: float = NOISE[-1]) -> str:
    """The corruption of this strength, as scores call it."""
    return f"gaussian_noise:{strength:g}"


def versus_table(studies: Mapping[str, Study], one: str, other: str, *, published: bool) -> str:
    """A method against another: means, change and tests in every study, and in the paper if
    wanted.
    """
    corrected = {one, other} <= set(SEVEN)
    rows = []
    for metric in ("ece", "cece", "dice", "asd"):
        head = (
            f"**{METRICS[metric].label}** {METRICS[metric].arrow}, {LOSSES[one].label} →"
            f" {LOSSES[other].label}"
        )
        rows += [
            [head],
            ["change"],
            [f"over cases{' (Holm)' if corrected else ''}"],
            ["over seeds, 95 % interval"],
        ]
        if published:
            theirs = points(published_mean(other, metric) - published_mean(one, metric))
            pair = f"{paper(one, metric)} → {paper(other, metric)}"
            _extend(
                rows[-4:],
                [pair, f"{theirs}, {published_change(metric, other, one)}", "—", "one training"],
            )
        for study in studies.values():
            pair = f"{study.value(one, metric)} → {study.value(other, metric)}"
            change = f"{study.difference(other, metric, one)}, {study.change(other, metric, one)}"
            cases = (study.holm if corrected else study.over_cases)(other, one, metric)
            _extend(rows[-4:], [pair, change, cases, _seeds(study, one, other, metric)])
    return markdown(["", *(["paper"] if published else []), *studies], rows)


def _extend(rows: Sequence[list[str]], values: Sequence[str]) -> None:
    for row, value in zip(rows, values, strict=True):
        row.append(value)


def _seeds(study: Study, one: str, other: str, metric: str) -> str:
    if study.n_seeds == 1:
        return "one training"
    return f"{study.over_seeds(other, one, metric)}, {study.interval(other, one, metric)}"


def ece_table(studies: Mapping[str, Study]) -> str:
    """ECE of every method in the paper and in every study; a mark where it differs from that of
    MbLS.
    """
    rows = [
        [
            LOSSES[key].label,
            paper(key, "ece"),
            *(f"{s.value(key, 'ece')}{_marks(s, key)}" for s in studies.values()),
        ]
        for key in SEVEN
    ]
    return markdown(["ECE ↓", "paper", *studies], rows)


def _marks(study: Study, key: str) -> str:
    if key == "mbls":
        return ""
    below = study.mean(key, "ece") < study.mean("mbls", "ece")
    cases = study.p_holm(key, "mbls", "ece") < LEVEL
    seeds = study.n_seeds > 1 and study.p_over_seeds(key, "mbls", "ece") < LEVEL
    return f" {'↓' if below else '↑'}{'²' if seeds else ''}" if cases else ""


def noise_table(study: Study) -> str:
    """ECE as noise grows, and what it costs in DSC."""
    strengths = [f"{strength:g}" for strength in NOISE]
    rows = []
    for key in study.keys:
        ece = [
            study.value(key, "ece"),
            *(study.value(key, "ece", corruption=noise(strength)) for strength in NOISE),
        ]
        rows.append(
            [
                LOSSES[key].label,
                *ece,
                study.value(key, "dice"),
                study.value(key, "dice", corruption=noise(NOISE[-1])),
            ]
        )
    return markdown(["", "ECE ↓ without", *strengths, "DSC ↑ without", strengths[-1]], rows)


def confidence_table(study: Study) -> str:
    """Which way the confidence is wrong, and the temperatures of TS that follow from it."""
    gap, *parts = ("confidence_gap", "overconfidence", "underconfidence")
    rows = [
        [
            c.label,
            points(study.mean(c.key, gap)),
            *(study.value(c.key, metric) for metric in parts),
            study.temperatures(c.key),
        ]
        for c in study.results.contenders
    ]
    return markdown(
        ["", *(METRICS[metric].label for metric in (gap, *parts)), "temperature of TS"], rows
    )


def cells_table(study: Study, keys: Sequence[str] = ()) -> str:
    """Which cells stand for each contender, or for some, and what came out of each."""
    rows = [
        [
            c.label,
            c.setting or "—",
            *(study.each_seed(c.key, m) for m in ("dice", "ece")),
            ", ".join(f"`{r}`" for r in c.runs),
        ]
        for c in study.all.contenders
        if not keys or c.key in keys
    ]
    return markdown(["", "setting", "DSC ↑ of each", "ECE ↓ of each", "cells"], rows)


def settings_table(study: Study) -> str:
    """Validation DSC and ECE of every setting that was tried, at the epoch of the best DSC and over
    the second half.
    """
    heads = [
        "",
        "chosen",
        "kept epoch",
        "DSC ↑",
        "ECE ↓",
        "DSC ↑, second half",
        "ECE ↓, second half",
    ]
    return markdown(heads, _tried(study))


def _tried(study: Study) -> Iterator[list[str]]:
    for c in study.all.contenders:
        for setting, runs in sorted(c.runs_tried.items()):
            kept = study.trainings.facts(c.key, runs)
            label = f"{c.label}, {setting_text(setting, ' ')}" if setting else c.label
            epochs = ", ".join(str(facts["epoch"]) for facts in kept)
            at_best = [spread([facts[key] for facts in kept]) for key in ("val_dice", "val_ece")]
            late = [
                spread([study.trainings.late(run, key) for run in runs])
                for key in ("val_dice", "val_ece")
            ]
            chosen = "yes" if setting in c.chosen.values() else ""
            yield [label, chosen, epochs, *at_best, *late]


def cece_table(study: Study) -> str:
    """CECE as mean and as sum over the classes, beside the paper's."""
    rows = []
    for key in study.keys:
        mean, theirs = study.mean(key, "cece"), published_mean(key, "cece")
        values = [f"{value:.3f}" for value in (mean, study.n_classes * mean, theirs)]
        rows.append(
            [
                LOSSES[key].label,
                *values,
                f"{mean / theirs:.2f}",
                f"{study.n_classes * mean / theirs:.2f}",
            ]
        )
    return markdown(
        ["", "mean over classes", "sum", "published", "mean / published", "sum / published"], rows
    )


def cece_excess(study: Study, factor: int = 1) -> str:
    """How many times the published CECE ours is, from the lowest to the highest; the sum is
    `factor=n_classes`.
    """
    found = [factor * study.mean(key, "cece") / published_mean(key, "cece") for key in study.keys]
    return f"{min(found):.1f} to {max(found):.1f}"


def cece_order(study: Study) -> str:
    """Spearman's correlation of our CECE with the published."""
    pairs = [(study.mean(key, "cece"), published_mean(key, "cece")) for key in study.keys]
    return f"{scipy.stats.spearmanr(pairs).statistic:.2f}"


def margin5_table(studies: Mapping[str, Study]) -> str:
    """MbLS with margin 5: ECE before and after calibration, and with the strongest noise where that
    was tried.
    """
    rows = []
    for title, study in studies.items():
        ece = [study.value("mbls", "ece", calibrator) for calibrator in ("", "ts", "lts")]
        noisy = "mbls" in study.per_case("ece", corruption=noise())
        strong = [
            study.value("mbls", metric, corruption=noise()) if noisy else "—"
            for metric in ("ece", "dice")
        ]
        rows.append([title, *ece, study.temperatures("mbls"), *strong])
    heads = [
        "ECE ↓ Pre",
        "TS",
        "LTS",
        "temperature of TS",
        f"ECE ↓, noise {NOISE[-1]:g}",
        f"DSC ↑, noise {NOISE[-1]:g}",
    ]
    return markdown(["", *heads], rows)
