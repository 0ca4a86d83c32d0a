"""Which engine a study gets: processes here, as many as cores or GPUs allow, or a Ray cluster."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from importlib import import_module

from segcal.study.engines import Engine, Local
from segcal.types import UserError


def start_engine(
    *,
    workers: int | None = None,
    ray: str = "",
    cpus: int = 1,
    gpus: float | None = None,
    accelerator: str = "auto",
) -> Engine:
    """Processes here, by default as many as cores or GPUs allow; or the Ray cluster at an address.

    `gpus` are the GPUs of a cell, 0 for none. Default: none on a cluster and with `accelerator`
    `cpu`; else one here, or an equal share if `workers` asks for more cells than there are GPUs."""
    if ray:
        if workers is not None:
            rule = "on a Ray cluster the cells' needs decide (--cpus-per-cell)"
            raise UserError(f"--workers is for this machine; {rule}")
        cluster: Engine = import_module("segcal.study.cluster").Ray(ray, cpus, gpus or 0.0)
        return cluster
    names, wanted = gpu_names(), max(1, workers or 1)
    if gpus is None:
        gpus = 0.0 if not names or accelerator == "cpu" else 1 / math.ceil(wanted / len(names))
    if not gpus:
        slots = max(1, _cores() // cpus) if workers is None else workers
        return Local(slots, devices=[""] * slots if names else None)
    places = _places(names, gpus)
    if len(places) < wanted:
        need = f"{wanted} cell{'s' if wanted > 1 else ''} at a time with {gpus:g} GPU each"
        raise UserError(
            f"{need} need more than CUDA finds here ({len(names)}); lower --workers, or"
            " --gpus-per-cell (0: none)"
        )
    return Local(len(places) if workers is None else workers, devices=places)


def gpu_names() -> list[str]:
    """The GPUs of this process, by the numbers or UUIDs of CUDA_VISIBLE_DEVICES."""
    cuda = import_module("torch").cuda
    n = cuda.device_count() if cuda.is_available() else 0
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return [str(i) for i in range(n)]
    return [name.strip() for name in given.split(",")][:n]


def _places(names: Sequence[str], gpus: float) -> list[str]:
    """The GPUs of every cell that fits: some for itself, or one that it shares.

    >>> _places(["2", "3", "5", "7"], 2), _places(["2", "3"], 0.5)
    (['2,3', '5,7'], ['2', '3', '2', '3'])
    """
    if gpus < 1:
        return [*names] * int(1 / gpus + 1e-9)  # 1 / (1 / 93) is a little less than 93
    each = math.ceil(gpus)
    return [",".join(names[i : i + each]) for i in range(0, len(names) - each + 1, each)]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
