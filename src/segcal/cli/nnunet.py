"""The verb for nnU-Net: where its trainers are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from segcal.cli.app import app, note
from segcal.types import UserError

_INSTALL = "Write one file into nnU-Net instead: for versions that do not read the variable."
_UNINSTALL = "Remove that file."
_PLACE = "The environment, checkout or package folder of nnU-Net; else the importable one."


@app.command(epilog="Example: segcal nnunet --install --nnunet path/to/environment")
def nnunet(
    install: Annotated[bool, Option("--install", help=_INSTALL)] = False,
    uninstall: Annotated[bool, Option("--uninstall", help=_UNINSTALL)] = False,
    place: Annotated[Path | None, Option("--nnunet", help=_PLACE)] = None,
) -> None:
    """Print the folder of segcal's nnU-Net trainers, for the variable nnUNet_extTrainer.

    For a shell: `export nnUNet_extTrainer="$(segcal nnunet)"`.
    The trainers keep nnU-Net's own loss and add the margin term: `nnUNetv2_train 4 2d 0 -tr
    nnUNetTrainerMbLS_m8`, also `_m5` and `_m10`; `nnUNetTrainerCEMbLS_m8` and so on leave Dice out.
    nnU-Net reads the variable from version 2.8 on, in training and in prediction. If torchvision
    does not load, as often beside a torch for CPUs, it stops before it reads it: use --install.
    """
    from segcal.integrations import nnunet as trainers

    if install and uninstall:
        raise UserError("--install and --uninstall exclude each other; choose one")
    if install:
        file = trainers.install(place)
        print(file)
        if trainers.lacks_segcal(file):
            note("that environment has no segcal; install it there too (pip install --no-deps)")
    elif uninstall:
        print(trainers.uninstall(place) or "there was nothing to remove")
    elif place is not None:
        raise UserError("--nnunet goes with --install or --uninstall")
    else:
        print(trainers.FOLDER)
        for sentence in trainers.notes():
            note(sentence)
