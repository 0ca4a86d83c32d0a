"""A trained run as a predictor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from monai.inferers import sliding_window_inference
from safetensors import SafetensorError
from torch import Tensor, nn

from segcal.config import RunSettings, checked
from segcal.folders import (
    WEIGHTS,
    CaseSet,
    load_weights,
    read_run,
    refuse_packed,
    require_weights,
    weights_path,
)
from segcal.hardware import channels_last, inference_batch, keep_pages
from segcal.networks import build_network
from segcal.predictors.cases import data_of, image_id, prediction_of
from segcal.predictors.protocol import ImagePredictor, Prediction
from segcal.types import AnyPath, UserError, check_choice


@dataclass(eq=False)
class Run(ImagePredictor):
    """A finished run: its folder, the content of `run.json`, and the network with its weights."""

    root: Path
    info: dict[str, Any]
    weights: str
    network: nn.Module
    device: torch.device
    data: Path | None = None  # where its data set is, if it has moved

    def __repr__(self) -> str:
        name, of = self.info["settings"]["network"]["name"], self.info["data"]["name"]
        return f"Run({str(self.root)!r}: {name} on {of}, {self.weights} weights)"

    @property
    def settings(self) -> RunSettings:
        """The settings it was trained with."""
        return checked(self.info["settings"])

    @cached_property
    def cases(self) -> CaseSet:
        """Its data set."""
        return data_of(self.root, self.info, self.data)

    def ids(self, split: str) -> tuple[str, ...]:
        """The cases of a split."""
        return self.cases.split(split, self.info["settings"]["fold"])

    def image_id(self, id: str) -> str | None:
        """What is the same for cases of one image."""
        return image_id(self.cases, id)

    def case(self, id: str, *, corruption: str = "", seed: int = 0) -> Prediction:
        """The prediction for a case."""
        return prediction_of(self.cases, id, self.logits, corruption, seed)

    @torch.no_grad()  # not inference_mode: calibrators are fitted on these
    def logits(self, image: Tensor) -> Tensor:
        """Logits (D, K, H, W) of an image (D, C, H, W)."""
        return volume_logits(self.network, image.to(self.device), self.info["frame"]).cpu()


def volume_logits(network: nn.Module, image: Tensor, frame: Sequence[int]) -> Tensor:
    """Logits (D, K, H, W) of an image (D, C, H, W), a few slices at a time.

    The network only gets slices of `frame`, the height and width of training: a border at another
    place costs up to half of the Dice. Smaller slices are padded with 0 at the bottom and right, as
    in training. Larger ones are seen through windows, whose logits are averaged where they overlap.
    """
    height, width = image.shape[2:]
    margin = (0, max(0, frame[1] - width), 0, max(0, frame[0] - height))
    larger = height > frame[0] or width > frame[1]
    parts = []
    for part in image.split(inference_batch(max(height, frame[0]), max(width, frame[1]))):
        padded = F.pad(part, margin)
        logits = _in_windows(network, padded, frame) if larger else _forward(network, padded)
        parts.append(logits[:, :, :height, :width].float())
    return torch.cat(parts).contiguous()


def _forward(network: nn.Module, slices: Tensor) -> Tensor:
    logits: Tensor = network(slices.contiguous(memory_format=torch.channels_last))
    return logits


def _in_windows(network: nn.Module, slices: Tensor, frame: Sequence[int]) -> Tensor:
    forward = partial(_forward, network)
    logits = sliding_window_inference(slices, tuple(frame), len(slices), forward, mode="gaussian")
    assert isinstance(logits, Tensor)
    return logits


def open_run(
    root: AnyPath, *, weights: str = "best", device: str | None = None, data: AnyPath | None = None
) -> Run:
    """Open a finished run with one kind of its weights; `data` is its data set if moved."""
    check_choice("weights", weights, WEIGHTS)
    root, data = Path(root), None if data is None else Path(data)
    info = finished_run(root)
    if data is not None:
        data_of(root, info, data)  # other data are refused now, even if all scores are known
    kept = [name for name in WEIGHTS if name in info]
    require_weights(root, info, weights)
    settings = checked(info["settings"])
    channels, classes = info["data"]["channels"], info["data"]["classes"]
    options = settings.network.settings
    network = build_network(settings.network.name, len(channels), len(classes) + 1, **options)
    # An older run that kept only its last weights has them in the file of the best ones.
    stored = "best" if kept == ["last"] else weights
    _load(network, root, stored)
    keep_pages()
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Run(root, info, weights, channels_last(network.eval().to(where)), where, data)


def finished_run(root: Path) -> dict[str, Any]:
    """The content of `run.json`; refused for a packed copy and an unfinished run."""
    info = read_run(root)
    refuse_packed(root, info)
    if info["status"] != "finished":
        raise UserError(f"{root} is not finished; the same segcal train command goes on with it")
    return info


def _load(network: nn.Module, root: Path, weights: str) -> None:
    path = weights_path(root, weights)
    if path.is_file() and not os.access(path, os.R_OK):
        raise UserError(f"{path} may not be read; ask its owner for permission")
    try:
        network.load_state_dict(load_weights(path))
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"cannot load the {weights} weights of {root} ({reason}); train it again with --again"
        ) from None
    for name, tensor in network.state_dict().items():
        if not tensor.isfinite().all():
            problem = f"the {weights} weights of {root} are not numbers in {name}"
            raise UserError(f"{problem}; train it again with --again, or take other --weights")
