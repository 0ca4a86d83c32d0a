"""MONAI with segcal: train in 3D, score every epoch, calibrate, write what `segcal audit` reads.

    python examples/monai/train.py --out monai-example
    segcal audit monai-example/probs --labels monai-example/labels --out monai-example/audit

Data are phantoms made here, so nothing is fetched. Ignite is needed: pip install pytorch-ignite.
"""

import argparse
from pathlib import Path

import numpy as np
import SimpleITK as sitk
import torch
from monai.data import DataLoader, MetaTensor
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import ValidationHandler
from monai.inferers import SlidingWindowInferer
from monai.networks.nets import BasicUNet
from monai.transforms import Activationsd, Compose
from monai.utils import set_determinism

from segcal import calibrators
from segcal.data.phantom import CLASSES, phantoms
from segcal.integrations.monai import Calibrated, ScoresHandler
from segcal.losses import Criterion

N_CLASSES = 1 + len(CLASSES)
WINDOW = (16, 32, 32)
SHOWN = ("dice_mean", "misplaced", "nll", "volume_ratio")
CPU = torch.device("cpu")


def cases(n):
    """Images and labels (1, D, H, W) as MetaTensors, with the spacing in the affine."""
    for phantom in phantoms(n, size=(16, 48, 48)):
        affine = torch.diag(torch.tensor([*phantom.spacing, 1.0]))
        image = torch.as_tensor(phantom.image) / 500 - 1
        label = torch.as_tensor(phantom.label)[None].float()
        tensors = {"image": image, "label": label}
        case = {key: MetaTensor(value, affine=affine) for key, value in tensors.items()}
        yield case | {"id": phantom.id}


def evaluator(network, data, handlers, postprocessing=None):
    """Whole volumes by a sliding window."""
    return SupervisedEvaluator(
        device=CPU,
        val_data_loader=DataLoader(data, batch_size=1),
        network=network,
        inferer=SlidingWindowInferer(WINDOW, overlap=0.5),
        postprocessing=postprocessing,
        val_handlers=handlers,
    )


def train(network, training, validation, epochs):
    """Train with the margin, and score validation after every epoch."""
    judge = evaluator(network, validation, [ScoresHandler(N_CLASSES)])
    trainer = SupervisedTrainer(
        device=CPU,
        max_epochs=epochs,
        train_data_loader=DataLoader(training, batch_size=2, shuffle=True),
        network=network,
        optimizer=torch.optim.Adam(network.parameters(), lr=3e-3),
        loss_function=Criterion("mbls_dice", margin=8.0),
        train_handlers=[ValidationHandler(interval=1, validator=judge)],
    )
    trainer.run()
    return judge.state.metrics


def fit(network, validation, stem):
    """Fit two temperatures on validation cases and save them."""
    inferer = SlidingWindowInferer(WINDOW, overlap=0.5)

    def batches():
        for case in validation:
            with torch.no_grad():
                logits = inferer(case["image"][None].as_tensor(), network)
            yield logits, case["label"].as_tensor().long(), case["image"][None].as_tensor()

    fitted = calibrators.fit("ts2", batches)
    calibrators.save(fitted, stem, identity={"network": "example"})


def write(folder, case_id, probs, label):
    """The probabilities and the reference of a case, for `segcal audit`."""
    for name in ("probs", "labels"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "probs" / f"{case_id}.npz", probabilities=probs.numpy())
    image = sitk.GetImageFromArray(label[0].numpy().astype(np.uint8))
    image.SetSpacing(tuple(float(size) for size in label.pixdim.flip(0)))
    sitk.WriteImage(image, str(folder / "labels" / f"{case_id}.nii.gz"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("monai-example"))
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--cases", type=int, default=28, help="half of them train")
    settings = parser.parse_args()

    set_determinism(0)
    data = list(cases(settings.cases))
    half, rest = settings.cases // 2, settings.cases // 4
    training, validation, test = data[:half], data[half : half + rest], data[half + rest :]
    network = BasicUNet(3, 1, N_CLASSES, features=(8, 8, 16, 16, 32, 8), norm="instance")
    scores = train(network, training, validation, settings.epochs)
    print("validation", {key: round(scores[key], 3) for key in SHOWN})

    fit(network, validation, settings.out / "ts2")
    calibrated = Calibrated("pred", settings.out / "ts2", identity={"network": "example"})
    after = Compose([calibrated, Activationsd("pred", softmax=True)])
    before = ScoresHandler(N_CLASSES)
    later = ScoresHandler(N_CLASSES, of="probs", postprocessed=True, prefix="ts2_")
    judge = evaluator(network, test, [before, later], after)
    judge.run()
    for prefix, name in (("", "test"), ("ts2_", "test, calibrated")):
        print(name, {key: round(judge.state.metrics[prefix + key], 3) for key in SHOWN})

    inferer = SlidingWindowInferer(WINDOW, overlap=0.5)
    for case in test:
        with torch.no_grad():
            probs = inferer(case["image"][None], network)[0].softmax(0)
        write(settings.out, case["id"], torch.as_tensor(probs), case["label"])


if __name__ == "__main__":
    main()
