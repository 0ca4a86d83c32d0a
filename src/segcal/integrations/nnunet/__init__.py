"""Trainers for nnU-Net v2, and how it finds them.

nnU-Net looks for a trainer by the name of its class: in its own folder `training/nnUNetTrainer`,
there first in files, then in folders by alphabet, and then, if it is new enough, in the folders
that the variable `nnUNet_extTrainer` names. It imports every module that it passes. Its folder
`primus` needs torchvision, so where that does not load, it gets no further than to a file in its
own folder: `installed` takes it past.

Nothing here imports nnU-Net or torch.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from segcal.types import UserError

FOLDER = Path(__file__).with_name("trainers")
"""What `nnUNet_extTrainer` names."""

VARIABLE = "nnUNet_extTrainer"
FILE = "segcal_trainers.py"
CONTENT = '''\
"""Written by `segcal nnunet --install`; `segcal nnunet --uninstall` removes it."""

try:
    from segcal.integrations.nnunet.installed import *
except ModuleNotFoundError as error:  # segcal was uninstalled: nnU-Net goes on without it
    if (error.name or "").partition(".")[0] != "segcal":
        raise
'''


def nnunet_folder(place: Path | None = None) -> Path | None:
    """The folder of the package `nnunetv2`: the importable one, or that at or below `place`."""
    if place is None:
        spec = find_spec("nnunetv2")
        return Path(spec.origin).parent if spec and spec.origin else None
    below = ("", "nnunetv2", "lib/python*/site-packages/nnunetv2", "Lib/site-packages/nnunetv2")
    for pattern in below:
        for folder in sorted(place.glob(pattern) if pattern else [place]):
            if _trainers(folder).is_dir():
                return folder
    return None


def install(place: Path | None = None) -> Path:
    """Write one file into nnU-Net's folder of trainers; returns it."""
    file = _trainers(_required(place)) / FILE
    if file.is_file() and not _ours(file):
        raise UserError(f"{file} was not written by segcal; move it away first")
    file.write_text(CONTENT)
    return file


def uninstall(place: Path | None = None) -> Path | None:
    """Remove that file; returns it, or None if there was none."""
    file = _trainers(_required(place)) / FILE
    if not file.is_file():
        return None
    if not _ours(file):
        raise UserError(f"{file} was not written by segcal; remove it by hand")
    file.unlink()
    return file


def lacks_segcal(file: Path) -> bool:
    """Whether the environment that an installed file is in is known to have no segcal."""
    site = file.parents[3]  # site-packages/nnunetv2/training/nnUNetTrainer/FILE
    return site.name == "site-packages" and not any(site.glob("segcal-*.dist-info"))


def notes() -> list[str]:
    """What keeps the nnU-Net of this environment from finding the trainers, and the remedy."""
    folder = nnunet_folder()
    if folder is None:
        remedy = "install segcal into that of nnU-Net too (pip install --no-deps)"
        return [f"nnU-Net is not in this environment; {remedy} and run this there"]
    found = []
    if VARIABLE not in (folder / "paths.py").read_text():
        found.append(f"this nnU-Net does not read {VARIABLE}; use segcal nnunet --install")
    if (_trainers(folder) / "primus" / "__init__.py").is_file() and not _torchvision_fits():
        reason = "torchvision is missing here or was not built for this torch, and nnU-Net"
        what = "imports it before it reads the variable"
        found.append(f"{reason} {what}; use segcal nnunet --install, or a torchvision that fits")
    return found


def _trainers(folder: Path) -> Path:
    return folder / "training" / "nnUNetTrainer"


def _required(place: Path | None) -> Path:
    folder = nnunet_folder(place)
    if folder is None:
        where = "in this environment" if place is None else f"in {place}"
        remedy = "name the environment that has it, with --nnunet path/to/environment"
        raise UserError(f"there is no nnunetv2 {where}; {remedy}")
    return folder


def _ours(file: Path) -> bool:
    return file.read_text().startswith(CONTENT.splitlines()[0])


def _torchvision_fits() -> bool:
    """Both have the same build, such as `+cpu`; pip takes one for CUDA beside torch for CPUs."""
    try:
        builds = [version(name).partition("+")[2] for name in ("torch", "torchvision")]
    except PackageNotFoundError:
        return False
    return "cpu" not in builds or builds[0] == builds[1]
