"""A trained run, opened again: a volume in, its logits out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from monai.inferers import sliding_window_inference
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from segcal.config import RunSettings, checked
from segcal.folders import read_run, refuse_packed
from segcal.hardware import channels_last, inference_batch, keep_pages
from segcal.networks import build_network
from segcal.types import UserError


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, what `run.json` says, and the network with its best weights."""

    root: Path
    info: dict[str, Any]
    network: nn.Module
    device: torch.device

    @property
    def settings(self) -> RunSettings:
        """The settings it was trained with."""
        return checked(self.info["settings"])

    @property
    def classes(self) -> tuple[str, ...]:
        """The foreground classes it knows."""
        return tuple(self.info["data"]["classes"])

    @property
    def identity(self) -> dict[str, str]:
        """What a calibrator is tied to: these weights, on this data."""
        return {"run": self.info["id"], "data": self.info["data"]["checksum"]}

    @torch.inference_mode()
    def logits(self, image: Tensor) -> Tensor:
        """Logits (D, K, H, W) of a volume (D, C, H, W)."""
        return volume_logits(self.network, image.to(self.device), self.info["frame"]).cpu()


def volume_logits(network: nn.Module, image: Tensor, frame: Sequence[int]) -> Tensor:
    """Logits (D, K, H, W) of a volume (D, C, H, W), a few slices at a time.

    A network knows where the border is, and one that stands elsewhere costs it up to half of its
    Dice. So it gets slices of `frame`, the height and width that it was trained with, alone:
    smaller ones are padded as in training, at the bottom and right with 0; larger ones are seen
    through windows of that size, whose logits are averaged where they overlap."""
    height, width = image.shape[2:]
    margin = (0, max(0, frame[1] - width), 0, max(0, frame[0] - height))
    larger = height > frame[0] or width > frame[1]
    parts = []
    for part in image.split(inference_batch(max(height, frame[0]), max(width, frame[1]))):
        framed = F.pad(part, margin)
        logits = _through_windows(network, framed, frame) if larger else _seen(network, framed)
        parts.append(logits[:, :, :height, :width].float())
    return torch.cat(parts).contiguous()


def _seen(network: nn.Module, slices: Tensor) -> Tensor:
    logits: Tensor = network(slices.contiguous(memory_format=torch.channels_last))
    return logits


def _through_windows(network: nn.Module, slices: Tensor, frame: Sequence[int]) -> Tensor:
    found = sliding_window_inference(
        slices, tuple(frame), len(slices), partial(_seen, network), mode="gaussian"
    )
    assert isinstance(found, Tensor)
    return found


def open_run(root: Path, *, device: str | None = None) -> Run:
    """Open a finished run for evaluation, calibration or prediction."""
    info = read_run(root)
    refuse_packed(root, info)
    if info.get("status") != "finished":
        raise UserError(f"{root} is not finished; the same segcal train command goes on with it")
    chosen, data = checked(info["settings"]), info["data"]
    network = build_network(
        chosen.network.name,
        len(data["channels"]),
        len(data["classes"]) + 1,
        **chosen.network.settings,
    )
    path = root / "checkpoints" / "best.safetensors"
    if path.is_file() and not os.access(path, os.R_OK):
        raise UserError(f"{path} may not be read; ask its owner for permission")
    try:
        network.load_state_dict(load_file(path))
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"cannot load the weights of {root} ({reason}); train it again with --again"
        ) from None
    keep_pages()
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    return Run(root, info, channels_last(network.eval().to(where)), where)
