"""A synthetic data set for demonstrations and tests: 3D cases with three structures, from a seed.

A large irregular `body` contains a `core` of a similar intensity; a small elongated `satellite` is
beside them. The image shows the true boundaries; the label is what a rater drew: the same
boundaries, shifted at random by about a hundredth of the image's width, at most about a voxel. So
the image does not determine the label near a boundary, and a network that is sure there is
overconfident.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from scipy.special import expit

from segcal.data.containers.contents import check_voxels
from segcal.types import UserError, check_range

Array = NDArray[np.float64]
Axes = Sequence[Array]  # the coordinates of voxels along z, y and x
Rng = np.random.Generator
Size = tuple[int, int, int]  # (D, H, W)

CLASSES = ("body", "core", "satellite")
"""The structures; the label of the first is 1, and 0 is background."""

SMALLEST = (4, 24, 24)
"""The smallest (D, H, W) in which every structure has room."""

# Intensities of background, body, core and satellite: a row per channel, repeated after four.
_CONTRAST = np.array(
    [[250, 500, 640, 660], [420, 600, 550, 330], [300, 430, 480, 620], [200, 560, 615, 470]]
)
# Of a rater, in voxels of an image 80 wide; less in smaller ones, which it would drown:
_SLIP = (0.9, 1.0, 0.7)  # random error of a rater at each structure, largest at low contrast
_HABIT = 0.5  # how much larger or smaller than true a rater draws a whole structure
_FURTHEST = 2.0  # no rater is further away from the true boundary
_WIDE = 80

_EDGE = 0.3  # in voxels: scale of a logistic edge, from 16 % to 84 % over one voxel
_NOISE = 18.0  # standard deviation of each part of the complex signal
_BIAS = 0.06  # of the logarithm of the intensity
_N_WAVES = 24


@dataclass(frozen=True)
class Phantom:
    """One synthetic case; every class of `CLASSES` is in its label."""

    id: str
    image: NDArray[np.float32]  # (C, D, H, W), whole numbers from 0 to about 1000
    label: NDArray[np.uint8]  # (D, H, W)
    spacing: tuple[float, float, float]  # (z, y, x) in millimetres


def phantoms(
    n_cases: int, *, seed: int = 0, size: Size = (16, 64, 64), n_channels: int = 1
) -> Iterator[Phantom]:
    """The first cases of a data set, made one at a time.

    >>> [case.id for case in phantoms(2)]
    ['phantom_000', 'phantom_001']
    """
    check_range("n_cases", n_cases, 1)
    return (phantom(index, seed=seed, size=size, n_channels=n_channels) for index in range(n_cases))


def phantom(
    index: int, *, seed: int = 0, size: Size = (16, 64, 64), n_channels: int = 1, rater: int = 0
) -> Phantom:
    """One case, the same for the same arguments; another `rater` draws another label.

    >>> case = phantom(3, n_channels=2)
    >>> case.id, case.image.shape, np.unique(case.label).tolist()
    ('phantom_003', (2, 16, 64, 64), [0, 1, 2, 3])
    """
    if len(size) != 3 or any(n < least for n, least in zip(size, SMALLEST, strict=True)):
        raise UserError(f"size must be (D, H, W) and at least {SMALLEST}; got {tuple(size)}")
    check_voxels("a phantom would have", size, n_channels)
    check_range("seed", seed, 0)
    rng = np.random.default_rng([seed, index])
    in_plane, thickness = round(rng.uniform(0.8, 1.2), 2), round(rng.uniform(2.5, 3.5), 2)
    steps = (thickness / in_plane, 1.0, 1.0)  # distances below are in in-plane voxels
    pairs = [*zip(size, steps, strict=True)]
    axes = [np.linspace(1 - n, n - 1, n) * step / 2 for n, step in pairs]
    half = np.array([n * step / 2 for n, step in pairs])
    truth = _boundaries(rng, axes, half)
    contrasts = [_CONTRAST[c % len(_CONTRAST)] for c in range(n_channels)]
    image = np.stack([_channel(rng, contrast, truth, axes, half) for contrast in contrasts])
    # Seeds [a, b] and [a, b, 0] are the same to numpy, hence the 1.
    label = _drawn(np.random.default_rng([seed, index, rater + 1]), truth, axes)
    return Phantom(f"phantom_{index:03d}", image, label, (thickness, in_plane, in_plane))


def _boundaries(rng: Rng, axes: Axes, half: Array) -> Array:
    """The true structures as signed distances (3, D, H, W), in voxels, negative inside."""
    # Centres and radii are fractions of the volume's half extents, so that they fit any shape.
    angle = rng.uniform(0, 2 * np.pi)
    away = np.array([0.0, np.sin(angle), np.cos(angle)])  # from body to satellite
    centre = rng.uniform(-0.1, 0.1, 3) - 0.22 * away
    radii = rng.uniform((0.65, 0.46, 0.46), (0.85, 0.6, 0.6))
    turned = Rotation.from_rotvec  # of vectors (z, y, x)
    turn = turned((rng.uniform(0, np.pi), *rng.normal(0, 0.2, 2))).as_matrix()
    body = _blob(rng, axes, half, centre, radii, turn, 0.14)

    aside = rng.standard_normal(3)
    aside *= rng.uniform(0.2, 0.55) / np.linalg.norm(aside)
    within = centre + turn @ (radii * aside)
    core_turn = turned(rng.normal(0, 0.4, 3)).as_matrix() @ turn
    core_radii = radii * rng.uniform(0.48, 0.64, 3)
    core = _blob(rng, axes, half, within, core_radii, core_turn, 0.14)

    beside = 0.66 * away + (rng.uniform(-0.3, 0.3), 0, 0)
    long_and_thin = rng.uniform((0.36, 0.34, 0.17), (0.5, 0.46, 0.22))
    across = turned((-angle + rng.normal(0, 0.4), *rng.normal(0, 0.1, 2))).as_matrix()
    satellite = _blob(rng, axes, half, beside, long_and_thin, across, 0.1)
    return np.stack([body, core, satellite])


def _blob(
    rng: Rng, axes: Axes, half: Array, centre: Array, radii: Array, turn: Array, roughness: float
) -> Array:
    """Signed distance to an ellipsoid with a rough surface, from a smooth random field."""
    # A blob of two voxels' radius around a voxel's centre cannot fall between the slices. The
    # distance is not defined at the centre itself, hence 0.1.
    pairs = zip(axes, centre * half, strict=True)
    near = [axis[np.abs(axis - c).argmin()] + 0.1 for axis, c in pairs]
    radii = np.maximum(radii, 2 / np.array([half[0], half[1:].min(), half[1:].min()]))
    form = np.diag(1 / half) @ turn @ np.diag(radii**-2) @ turn.T @ np.diag(1 / half)
    # The surface is d'Fd = 1 at offsets d from the centre. With r = sqrt(d'Fd), distance is (r -
    # 1)/|grad r| to first order, and grad r = Fd/r.
    z, y, x = np.ix_(*(axis - c for axis, c in zip(axes, near, strict=True)))
    squared, steepness = np.zeros(1), np.zeros(1)
    for row, offset in zip(form, (z, y, x), strict=True):
        slope = row[0] * z + row[1] * y + row[2] * x  # (D, H, W)
        squared = squared + offset * slope
        steepness = steepness + slope**2
    r = np.sqrt(squared)
    smallest = float((radii * half).min())
    dents: Array = roughness * smallest * _field(rng, axes, np.full(3, 0.6 * smallest))
    distance: Array = r * (r - 1) / np.sqrt(steepness) + dents
    return distance


def _field(rng: Rng, axes: Axes, length: Array) -> Array:
    """A smooth random field (D, H, W) of mean 0, variance 1 and correlation exp(-d²/2 length²).

    It is a sum of random waves, whose normal wave numbers give the Gaussian correlation."""
    waves = rng.standard_normal((3, _N_WAVES)) / length[:, None]
    phase = rng.uniform(0, 2 * np.pi, _N_WAVES)
    z, y, x = (np.exp(1j * np.outer(axis, wave)) for axis, wave in zip(axes, waves, strict=True))
    # A wave is a product over the axes, so that only D + H + W exponentials are needed.
    planes = z[:, None] * (y * np.exp(1j * phase))  # (D, H, waves)
    left = np.concatenate([planes.real, planes.imag], -1)
    right = np.concatenate([x.real, -x.imag], -1)
    # Not `@`: its threads would cost more than they save here, many times more on a busy machine.
    field: Array = np.einsum("dhw,xw->dhx", left, right) * np.sqrt(2 / _N_WAVES)
    return field


def _channel(
    rng: Rng, contrast: NDArray[np.int64], truth: Array, axes: Axes, half: Array
) -> NDArray[np.float32]:
    """One channel: tissues mixed at their edges, texture, bias field, Rician noise as in MRI."""
    tissue = contrast * rng.normal(1, 0.1) + rng.normal(0, 8, contrast.shape)
    image = np.full(truth.shape[1:], tissue[0])
    for distance, intensity in zip(truth, tissue[1:], strict=True):
        image += expit(-distance / _EDGE) * (intensity - image)
    image += 18 * _field(rng, axes, half / 4)
    image *= np.exp(_BIAS * _field(rng, axes, 1.5 * half))
    real, imaginary = rng.normal(0, _NOISE, (2, *image.shape))
    # Whole numbers, as scanners store them. The last bits, in which machines differ, are lost.
    magnitude: Array = np.hypot(image + real, imaginary)
    return magnitude.round().astype(np.float32)


def _drawn(rng: Rng, truth: Array, axes: Axes) -> NDArray[np.uint8]:
    """A rater's label map (D, H, W): each boundary shifted by a smooth field and by a constant."""
    label = np.zeros(truth.shape[1:], np.uint8)
    deepest = [_deepest(truth, k) for k in range(len(truth))]
    scale = min(1.0, min(label.shape[1:]) / _WIDE)
    for k, distance in enumerate(truth):
        slip = _SLIP[k] * _field(rng, axes, np.full(3, 4.0))
        shift = scale * (slip + _HABIT * rng.standard_normal())
        # Raters agree on the deepest voxel of each structure drawn so far, so no class is lost.
        clear = min(abs(float(distance[voxel])) for voxel in deepest[: k + 1])
        reach = min(_FURTHEST, 0.75 * clear)
        label[distance + shift.clip(-reach, reach) < 0] = k + 1
    return label


def _deepest(truth: Array, k: int) -> tuple[int, ...]:
    """The voxel deepest in a structure and furthest from those drawn over it."""
    clear = np.maximum(truth[k], (-truth[k + 1 :]).max(0, initial=-np.inf))
    return tuple(int(i) for i in np.unravel_index(clear.argmin(), clear.shape))
