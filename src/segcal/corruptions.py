"""What scanners do to images, at a given severity: functions of a volume in a table.

A volume is (D, C, H, W), slices first, scaled to [0, 1]. Nothing is clipped afterwards: clipping
would remove half of the noise where the background is 0. Random numbers are drawn on the CPU, the
same for every severity: a series over severities shows one artefact growing, on any device.

>>> volume = torch.full((4, 1, 8, 8), 0.5)
>>> corrupt(volume, "gamma:2", seed=case_seed(0, "patient_01"))[0, 0, 0, 0]
tensor(0.2500)
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from segcal.types import UserError, check_choice, check_range


@dataclass(frozen=True)
class Corruption:
    """A row of `CORRUPTIONS`: `function(image, severity, generator)`, and how it is printed."""

    function: Callable[[Tensor, float, Generator], Tensor]
    label: str
    meaning: str  # of the severity
    severities: tuple[float, ...]  # the usual series, from neutral on
    allowed: tuple[float, float] = (0, 100)

    @property
    def neutral(self) -> float:
        """The severity that changes nothing."""
        return self.severities[0]


def corrupt(image: Tensor, spec: str, *, seed: int) -> Tensor:
    """A corrupted copy of an image (D, C, H, W), as `spec` says, for example `blur:1.5`."""
    key, severity = parse(spec)
    if severity == CORRUPTIONS[key].neutral:
        return image.clone()
    wide = image if image.dtype == torch.float64 else image.float()
    generator = Generator().manual_seed(seed)
    return CORRUPTIONS[key].function(wide, severity, generator).to(image.dtype)


def parse(spec: str) -> tuple[str, float]:
    """The key and the severity in a text such as `gaussian_noise:0.03`.

    >>> parse("blur")
    Traceback (most recent call last):
    segcal.types.UserError: blur needs a number, its severity, as in blur:3; got 'blur'
    """
    key, _, text = spec.partition(":")
    check_choice("corruption", key, tuple(CORRUPTIONS))
    row = CORRUPTIONS[key]
    try:
        severity = float(text)
    except ValueError:
        needed = f"a number, its severity, as in {key}:{row.severities[-1]:g}"
        raise UserError(f"{key} needs {needed}; got {spec!r}") from None
    check_range(f"severity of {key}", severity, *row.allowed)
    return key, severity


def case_seed(seed: int, case_id: str) -> int:
    """A seed for one case: the same on every machine, and whichever cases came before.

    >>> case_seed(0, "patient_01")
    5306859596826067232
    """
    digest = hashlib.sha256(f"{seed}:{case_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # 63 bits


def gaussian_noise(image: Tensor, severity: float, generator: Generator) -> Tensor:
    """Independent normal noise in every voxel and channel."""
    return image + severity * torch.randn(image.shape, generator=generator).to(image)


def blur(image: Tensor, severity: float, generator: Generator) -> Tensor:
    """A Gaussian blur within slices; the border is repeated outwards, so a constant stays."""
    rows, columns = (_blur_matrix(size, severity).to(image) for size in image.shape[2:])
    return rows @ image @ columns.T


def _blur_matrix(size: int, sigma: float) -> Tensor:
    """The blur of a line of voxels as a matrix, which unlike a convolution works at any size."""
    reach = math.ceil(4 * sigma)
    offsets = torch.arange(-reach, reach + 1)
    kernel = torch.exp(-0.5 * (offsets.double() / sigma) ** 2)
    weights = (kernel / kernel.sum()).expand(size, -1)
    sources = (torch.arange(size)[:, None] + offsets).clamp(0, size - 1)  # (size, kernel)
    return torch.zeros(size, size, dtype=torch.float64).scatter_add_(1, sources, weights)


def motion(image: Tensor, severity: float, generator: Generator) -> Tensor:
    """Ghosts of a patient who moves periodically (breath) along H while k-space is read by line."""
    n_slices, n_channels, height, _ = image.shape
    draws = torch.rand(2, n_slices, n_channels, 1, 1, generator=generator).to(image)
    cycles, phase = 2 + 4 * draws[0], 2 * math.pi * draws[1]  # per slice and channel
    time = torch.arange(height).to(image)[:, None] / height
    shift = severity * torch.sin(2 * math.pi * cycles * time + phase)  # (D, C, H, 1)
    frequencies = torch.fft.fftfreq(height, dtype=image.dtype, device=image.device)
    line = torch.fft.fftshift(frequencies)[:, None]
    space = torch.fft.fftshift(torch.fft.fft(image, dim=2), dim=2)  # read from one end to the other
    # A line k that is read at displacement d has its phase turned by 2πkd.
    turned = space * torch.polar(torch.ones_like(shift), -2 * math.pi * line * shift)
    return torch.fft.ifft(torch.fft.ifftshift(turned, dim=2), dim=2).abs()


def bias_field(image: Tensor, severity: float, generator: Generator) -> Tensor:
    """A smooth factor exp(field), as of a coil's sensitivity, the same in all channels."""
    n_slices, _, height, width = image.shape
    lines = [enumerate(_half_waves(n)) for n in (n_slices, height, width)]
    # A random sum of cosines; a polynomial would be large in the corners only.
    field = torch.zeros(n_slices, height, width)
    for (i, z), (j, y), (k, x) in itertools.product(*lines):
        if 1 <= i + j + k <= 3:  # a constant would only be a gain
            wave = z[:, None, None] * y[:, None] * x
            field += torch.randn((), generator=generator) * wave
    field *= severity / field.abs().max().clamp_min(1e-6)  # all 0 if there is only one voxel
    return image * field.exp().unsqueeze(1).to(image)  # (D, 1, H, W)


def _half_waves(size: int) -> list[Tensor]:
    """Cosines over a line with 0 to 3 half-waves, as many as its voxels can represent."""
    middles = (torch.arange(size) + 0.5) / size
    return [torch.cos(math.pi * i * middles) for i in range(min(4, size))]


def gamma(image: Tensor, severity: float, generator: Generator) -> Tensor:
    """Another contrast: image to the power of gamma; darker above 1, brighter below."""
    return image.clamp_min(0) ** severity  # a power of a negative number is not defined


def low_resolution(image: Tensor, severity: float, generator: Generator) -> Tensor:
    """Thick slices: averaged along D into `severity` times fewer, linearly interpolated back."""
    n_slices = len(image)
    lines = image.reshape(n_slices, -1).T.unsqueeze(0)  # (1, CHW, D)
    thick = F.adaptive_avg_pool1d(lines, max(1, round(n_slices / severity)))
    thin = F.interpolate(thick, size=n_slices, mode="linear", align_corners=False)
    return thin[0].T.reshape(image.shape)


def spikes(image: Tensor, severity: float, generator: Generator) -> Tensor:
    """Stripes from a spike in k-space, a plane wave in the image, one per slice and channel."""
    n_slices, n_channels, height, width = image.shape
    draws = torch.rand(3, n_slices, n_channels, 1, 1, generator=generator).to(image)
    rows, columns = (torch.arange(n).to(image) for n in (height, width))
    turns = (draws[0] - 0.5) * rows[:, None] + (draws[1] - 0.5) * columns + draws[2]
    wave = torch.polar(torch.full_like(turns, severity), 2 * math.pi * turns)
    return (image + wave).abs()


_UNIT = "intensities in [0, 1]"
_ROWS = (  # the name of the function is the key
    Corruption(gaussian_noise, "Gaussian noise", f"σ, {_UNIT}", (0, 0.01, 0.02, 0.03, 0.04, 0.05)),
    Corruption(blur, "Blur", "σ in voxels, within slices", (0, 0.5, 1, 1.5, 2, 3)),
    Corruption(motion, "Motion ghosts", "amplitude in voxels", (0, 0.25, 0.5, 1, 1.5, 2)),
    Corruption(
        bias_field, "Bias field", "largest |log factor|", (0, 0.1, 0.2, 0.3, 0.5, 0.7), (0, 10)
    ),
    Corruption(gamma, "Gamma", "exponent", (1, 1.1, 1.2, 1.3, 1.4, 1.5), (0.05, 20)),
    Corruption(low_resolution, "Thick slices", "slices made one", (1, 1.5, 2, 3, 4, 5), (1, 1000)),
    Corruption(spikes, "k-space spikes", f"amplitude, {_UNIT}", (0, 0.02, 0.04, 0.06, 0.08, 0.1)),
)
CORRUPTIONS = {row.function.__name__: row for row in _ROWS}
