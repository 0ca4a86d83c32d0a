"""The engine for many machines: a Ray task per job, which its node then runs in a process of its
own, as `Local` does.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from importlib import import_module
from typing import Any

from segcal.study.engines import TICK, Local, Tick
from segcal.study.jobs import Job, Outcome
from segcal.types import UserError

RETRIES = 3  # of a cell whose process or node died
PATIENCE = 60.0  # seconds for a node to come that can hold a cell


class LostError(Exception):
    """The process of a job has gone: perhaps its node is going too. Ray is to try again, where it
    likes.
    """


class Ray:
    """Tasks of a Ray cluster; run folders and data must lie on a path that all of its nodes
    share.
    """

    def __init__(self, address: str, cpus: int, gpus: float) -> None:
        try:
            self._ray = import_module("ray")
        except ModuleNotFoundError:
            raise UserError("Ray is not installed; pip install 'segcal[cluster]'") from None
        self._connected_before = self._ray.is_initialized()
        try:
            if not self._connected_before:
                _check_reachable(address)
                self._ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            if isinstance(error, UserError):
                raise
            reason = (str(error).splitlines() or [""])[0].rstrip(".")
            raise UserError(_no_cluster(address, reason)) from None
        self._needs = {"num_cpus": cpus, "num_gpus": gpus}
        self._pending: dict[Any, Job] = {}
        try:
            self.slots = self._count()
        except UserError:
            self.close()
            raise

    def _count(self) -> int:
        """How many cells the cluster's nodes hold at a time; the first of them may still be
        starting.
        """
        wanted = {"CPU": self._needs["num_cpus"], "GPU": self._needs["num_gpus"]}
        deadline = time.monotonic() + PATIENCE
        while True:
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            fits = sum(
                min(int(node.get(key, 0) / need) for key, need in wanted.items() if need)
                for node in nodes
            )
            if fits:
                return fits
            if time.monotonic() > deadline:
                text = " and ".join(f"{need:g} {key}" for key, need in wanted.items() if need)
                raise UserError(
                    f"no node of the Ray cluster has the {text} that a cell needs; ask for less per"
                    " cell"
                )
            time.sleep(TICK)

    def run(self, jobs: Sequence[Job], tick: Tick) -> Generator[tuple[Job, Outcome], None, None]:
        """Ray decides where and when; a task whose process or node dies is started again."""
        task = self._ray.remote(max_retries=RETRIES, retry_exceptions=[LostError], **self._needs)(
            _task
        )
        self._pending = {
            task.options(name=f"{job.kind} {job.name}").remote(job): job for job in jobs
        }
        try:
            while self._pending:
                tick([job.name for job in self._pending.values()])
                done, _ = self._ray.wait(list(self._pending), timeout=TICK)
                for reference in done:
                    yield self._pending.pop(reference), self._outcome(reference)
        finally:
            self._cancel()

    def _outcome(self, reference: Any) -> Outcome:
        try:
            outcome: Outcome = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            reason = (str(cause).splitlines() or [type(cause).__name__])[0]
            return Outcome(f"its Ray task failed {RETRIES + 1} times, the last time so: {reason}")
        return outcome

    def _cancel(self) -> None:
        for reference in self._pending:
            self._ray.cancel(reference, force=True)
        self._pending = {}

    def close(self) -> None:
        """Leave the cluster; what this study asked of it is called off."""
        self._cancel()
        if not self._connected_before:
            self._ray.shutdown()


def _no_cluster(address: str, reason: str) -> str:
    return f"there is no Ray cluster at {address} ({reason}); start one with ray start --head"


def _check_reachable(address: str) -> None:
    """Knock first: Ray itself waits for minutes where nobody answers."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except OSError as error:
            raise UserError(_no_cluster(address, error.strerror or str(error))) from None


def _task(job: Job) -> Outcome:
    """What a node's worker does; it stays for the next task, with the server that processes are
    forked from.
    """
    given = os.environ.get(
        "CUDA_VISIBLE_DEVICES"
    )  # by Ray, for this task; the server may have been started for another
    with closing(Local(1, devices=None if given is None else [given])) as here:
        outcomes = [outcome for _, outcome in here.run([job], lambda names: None)]
    if outcomes[0].lost:
        raise LostError(outcomes[0].error)
    return outcomes[0]
