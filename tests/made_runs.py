"""Run folders with made-up scores, in the format of real ones: what figures can be tried on without
training.
"""

import uuid

import numpy as np

from segcal import folders
from segcal.metrics import BANDS, METRICS

KEPT = "val_dice", "val_ece", "val_ece_perfect", "val_nll"
METHODS = {  # mean Dice, and how much larger logits are than they should be
    "ce": (0.86, 1.6),
    "ce_dice": (0.868, 2.4),
    "focal": (0.83, 0.8),
    "ecp": (0.845, 1.3),
    "ls": (0.85, 0.7),
    "svls": (0.835, 1.5),
    "mbls": (0.872, 1.05),
    "mbls_dice": (0.871, 1.3),
}


def binned(conf, hit, n_bins):
    place = np.clip(np.ceil(conf * n_bins).astype(int) - 1, 0, n_bins - 1)
    return {
        "count": np.bincount(place, minlength=n_bins).astype(float).tolist(),
        "conf": np.bincount(place, conf, n_bins).tolist(),
        "hit": np.bincount(place, hit, n_bins).tolist(),
    }


def made_bands(rng, shown, truth):
    """Sums by distance to the outline, of voxels that are put into bands by chance."""
    band = rng.integers(0, len(BANDS), len(truth))
    member = band == np.arange(len(BANDS))[:, None]  # (B, n)
    true = truth[:, None] == np.arange(shown.shape[1])  # (n, K)
    each = {"count": np.ones(len(truth)), "conf": shown.max(1), "hit": shown.argmax(1) == truth}
    each["nll"] = -np.log((shown * true).sum(1))
    sums = {name: (member @ values).tolist() for name, values in each.items()}
    classes = {"class_conf": shown, "class_hit": true}
    return sums | {name: (member @ values).T.tolist() for name, values in classes.items()}


def made_bins(rng, scale, n_classes, n_voxels, fine=True):
    """Bins of voxels whose logits are `scale` times the honest ones."""
    honest = rng.normal(0, 2.2, (n_voxels, n_classes))
    probs = np.exp(honest) / np.exp(honest).sum(1, keepdims=True)
    truth = (probs.cumsum(1) > rng.random((n_voxels, 1))).argmax(1)
    logits = scale * honest
    shown = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    entry = {
        "sets": {},
        "mean_logits": [logits[truth == k].mean(0).tolist() for k in range(n_classes)],
        "voxels": np.bincount(truth, minlength=n_classes).tolist(),
    }
    if fine:
        entry["bands"] = made_bands(rng, shown, truth)
    for name, inside in {"near": truth >= 0, "reference": truth > 0}.items():
        conf, hit = shown.max(1)[inside], (shown.argmax(1) == truth)[inside]
        per_class = [binned(shown[inside, k], truth[inside] == k, 15) for k in range(n_classes)]
        sums = {"top": binned(conf, hit, 15)}
        sums["per_class"] = {
            what: [part[what] for part in per_class] for what in ("count", "conf", "hit")
        }
        if fine:
            fine_bins = binned(conf, hit, 1000)
            sums["fine"] = {what: fine_bins[what] for what in ("count", "hit")}
        entry["sets"][name] = sums
    return entry


def made_run(
    root, name, loss, *, network="unet", dataset="made", classes=("anterior", "posterior"),
    n_cases=12, n_voxels=2000, seed=0, noise=(), settings=None, patients=None, regions=None,
    epochs=6, lift=0.0, data="nowhere",
):  # fmt: skip
    """Write `root/name` with run.json, scores.csv, bins.json and log.csv; `lift` raises validation
    Dice.
    """
    rng = np.random.default_rng([seed, *name.encode()])
    folder = root / name
    folder.mkdir(parents=True)
    dice, scale = METHODS[loss]
    ids = [f"case_{i:03d}" for i in range(n_cases)]
    hardness = np.random.default_rng(n_cases).normal(
        0, 0.03, n_cases
    )  # the same cases are hard for all
    rows, entries = [], []
    for corruption in ("", *(f"gaussian_noise:{s:g}" for s in noise)):
        worse = float(corruption.partition(":")[2] or 0)
        about = {"weights": "best", "split": "test", "corruption": corruption, "calibrator": ""}
        common = {
            "run": name,
            "dataset": dataset,
            "network": network,
            "method": loss,
            "setting": "",
        } | about
        for id, hard in zip(ids, hardness, strict=True):
            own = np.clip(
                dice
                - 2 * worse
                + hard
                + rng.normal(0, 0.015, len(classes))
                - 0.01 * np.arange(len(classes)),
                0,
                1,
            )
            cece = np.abs(
                0.02
                + 0.05 * abs(np.log(scale))
                + 2 * worse
                - hard / 2
                + rng.normal(0, 0.005, len(classes) + 1)
            )
            for metric, values in {
                "dice": own,
                "asd": 5 * (1 - own),
                "assd": 5.2 * (1 - own),
                "hd95": 15 * (1 - own),
            }.items():
                named = dict(zip(classes, values, strict=True)) | {"mean": values.mean()}
                if regions:
                    named |= {f"{region} (region)": values[0] for region in regions} | {
                        "mean (region)": values[0]
                    }
                rows += [
                    common | {"case": id, "class": k, "metric": metric, "value": v}
                    for k, v in named.items()
                ]
            named = dict(zip(("background", *classes), cece, strict=True)) | {"all": cece.mean()}
            rows += [
                common | {"case": id, "class": k, "metric": "cece", "value": v}
                for k, v in named.items()
            ]
            ece = 1.2 * cece.mean()
            totals = {
                "ece": ece,
                "mce": 3 * ece,
                "ace": 2 * ece,
                "nll": 0.2 + 2 * ece,
                "brier": 0.1 + ece,
                "accuracy": own.mean(),
                "misplaced": 2 * ece,
                "ece_perfect": 0.7 * ece,
            }
            rows += [
                common | {"case": id, "class": "all", "metric": k, "value": v}
                for k, v in totals.items()
            ]
            rows += [
                common | {"case": id, "class": k, "metric": "missed", "value": 0}
                for k in (*classes, "mean", *(["mean (region)"] if regions else []))
            ]
        for row in rows:
            row["voxels"] = [*METRICS[row["metric"]].voxels, ""][0]
        entries.append(about | made_bins(rng, scale, len(classes) + 1, n_voxels))
    curve = dice + lift - 0.2 * np.exp(-np.arange(epochs) / 3) + rng.normal(0, 0.004, epochs)
    log = [
        {
            "epoch": e,
            "train_loss": 1 / (e + 1),
            "val_dice": d,
            "val_nll": 0.5 + 0.1 * abs(np.log(scale)) + rng.normal(0, 0.004),
            "val_ece": 0.05 + 0.1 * abs(np.log(scale)) + rng.normal(0, 0.004),
            "val_ece_perfect": 0.02 + 0.001 * e,
            "lr": 1e-3,
            "seconds": 1.0,
        }
        for e, d in enumerate(curve)
    ]
    best = max(log, key=lambda row: row["val_dice"])
    about_data = {
        "name": dataset,
        "classes": list(classes),
        "channels": ["MRI"],
        "regions": regions or {},
        "checksum": "0" * 64,
    }
    about_data |= {"patients": patients} if patients else {}
    info = {
        "id": uuid.uuid5(uuid.NAMESPACE_URL, f"{dataset} {name}").hex,
        "status": "finished",
        "settings": {
            "data": str(data), "fold": 0, "seed": seed, "loss": {"name": loss} | (settings or {}),
            "network": {"name": network, "width": 8}, "training": {"epochs": epochs},
        },
        "data": about_data,
        "best": {key: best[key] for key in ("epoch", *KEPT)},
    }  # fmt: skip
    folders.write_run(folder, info)
    folders.write_bins(folder, ["background", *classes], entries)
    folders.write_scores(folder, rows)
    folders.write_log(folder, log)
    return folder
