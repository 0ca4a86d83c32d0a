"""The engine for many machines: a Ray task per job, which has a process of its own."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from segcal.hardware import before_torch
from segcal.study.engines import TICK, Outcomes, Tick, without_ranks
from segcal.study.jobs import Job, Outcome
from segcal.types import UserError

RETRIES = 3  # of a cell whose process or node died
PATIENCE = 60.0  # seconds to wait for a node on which a cell fits


class Ray:
    """Tasks of a Ray cluster; all nodes must reach runs and data under the same path."""

    def __init__(self, address: str, cpus: int, gpus: float) -> None:
        try:
            self._ray = import_module("ray")
        except ModuleNotFoundError:
            raise UserError("Ray is not installed; pip install 'segcal[cluster]'") from None
        self._connected_before = self._ray.is_initialized()
        if not self._connected_before:
            _check_reachable(address)
            try:
                self._ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise _no_cluster(address, _first_line(error).rstrip(".")) from None
        self._needs = {"num_cpus": cpus, "num_gpus": gpus}
        self._pending: dict[Any, Job] = {}
        try:
            self.slots = self._count()
        except UserError:
            self.close()
            raise

    def _count(self) -> int:
        """How many cells fit on the cluster's nodes; waits for the first node to start."""
        needs = {"CPU": self._needs["num_cpus"]}
        if self._needs["num_gpus"]:
            needs["GPU"] = self._needs["num_gpus"]
        deadline = time.monotonic() + PATIENCE
        while True:
            n_cells = 0
            for node in self._ray.nodes():
                if node["Alive"]:
                    sizes = node["Resources"]
                    n_cells += min(int(sizes.get(key, 0) / need) for key, need in needs.items())
            if n_cells:
                return n_cells
            if time.monotonic() > deadline:
                text = " and ".join(f"{need:g} {key}" for key, need in needs.items())
                wanted = f"the {text} that a cell needs"
                raise UserError(f"no node of the Ray cluster has {wanted}; ask for less per cell")
            time.sleep(TICK)

    def run(self, jobs: Sequence[Job], tick: Tick) -> Outcomes:
        """Ray decides where and when; a task whose process or node dies is started again."""
        options = {"max_retries": RETRIES, "max_calls": 1, **self._needs}  # a process for each
        task = self._ray.remote(**options)(_task)
        for job in jobs:
            self._pending[task.options(name=f"{job.kind} {job.name}").remote(job)] = job
        while self._pending:
            tick([job.name for job in self._pending.values()])
            done, _ = self._ray.wait(list(self._pending), timeout=TICK)
            for reference in done:
                yield self._pending.pop(reference), self._outcome(reference)

    def _outcome(self, reference: Any) -> Outcome:
        try:
            outcome: Outcome = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            reason = _first_line(getattr(error, "cause", None) or error)
            return Outcome(f"its Ray task failed {RETRIES + 1} times; the last reason: {reason}")
        return outcome

    def close(self) -> None:
        """Cancel this study's tasks and leave the cluster."""
        for reference in self._pending:
            self._ray.cancel(reference, force=True)
        self._pending = {}
        if not self._connected_before:
            self._ray.shutdown()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _no_cluster(address: str, reason: str) -> UserError:
    remedy = "start one with ray start --head"
    return UserError(f"there is no Ray cluster at {address} ({reason}); {remedy}")


def _check_reachable(address: str) -> None:
    """Try to connect first: Ray itself waits for minutes where nothing answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise _no_cluster(address, error.strerror or str(error)) from None


def _task(job: Job) -> Outcome:
    """What a Ray worker does, which ends with its task."""
    without_ranks()
    before_torch()
    outcome: Outcome = import_module("segcal.study.work").work(job)
    return outcome
