"""Engines carry out jobs. Here: processes on this machine; `cluster` has the one for Ray.

Without torch."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from segcal.hardware import before_torch
from segcal.processes import end_with_parent
from segcal.study.jobs import Job, Outcome
from segcal.types import UserError

TICK = 0.5  # seconds between two reports of what is running
GRACE = 5.0  # seconds that a process has to end by itself
END_BY_SIGNAL = 128 + signal.SIGTERM  # the exit code of a process that was asked to end

RANKS = {"RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
RANKS |= {"MASTER_ADDR", "MASTER_PORT"}
SCHEDULERS = ("SLURM_", "TORCHELASTIC_", "LSB_", "JSM_", "OMPI_", "PMI_")

Tick = Callable[[Collection[str]], None]
Outcomes = Generator[tuple[Job, Outcome], None, None]


class Engine(Protocol):
    """Carries out jobs, `slots` at a time."""

    slots: int

    def run(self, jobs: Sequence[Job], tick: Tick) -> Outcomes:
        """Each job with its outcome when it ends; `tick` gets the names of running cells."""

    def close(self) -> None:
        """End processes and connections."""


def warm_up() -> None:
    """Start the server that processes are forked from; it imports torch in the background."""
    before_torch()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["segcal.study.work"])
    ranks = without_ranks()
    # The server ignores Ctrl-C: this process answers it. Only its main thread can set signals.
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    try:
        forkserver.ensure_running()
    finally:
        os.environ.update(ranks)
        if is_main:
            signal.signal(signal.SIGINT, before)


def without_ranks() -> dict[str, str]:
    """Remove the ranks of this process from its environment, and return them.

    Under Slurm and its like Lightning takes a process for one of many that train one network, but
    a cell trains alone."""
    keys = [key for key in os.environ if key in RANKS or key.startswith(SCHEDULERS)]
    return {key: os.environ.pop(key) for key in keys}


class _Running(NamedTuple):
    job: Job
    process: Any
    connection: Connection


class Local:
    """Processes on this machine, a new one for each job, so that its memory is freed.

    They are forked from a server that has imported everything: a job starts in a tenth of a second.
    """

    def __init__(self, slots: int, *, devices: Sequence[str] | None = None) -> None:
        """`devices` are the GPUs of each slot, as CUDA_VISIBLE_DEVICES names them; None: all."""
        if slots < 1:
            raise UserError(f"a study needs at least 1 worker; got {slots}")
        warm_up()
        self.slots, self.devices = slots, devices
        self._running: dict[int, _Running] = {}

    def run(self, jobs: Sequence[Job], tick: Tick) -> Outcomes:
        """As many at a time as there are slots, in their order."""
        waiting = deque(jobs)
        try:
            while waiting or self._running:
                for slot in range(self.slots):
                    if waiting and slot not in self._running:
                        self._running[slot] = self._start(waiting.popleft(), slot)
                tick([r.job.name for r in self._running.values()])
                ends: list[Any] = []
                for r in self._running.values():
                    ends += [r.connection, r.process.sentinel]
                ready = wait(ends, timeout=TICK)
                for slot, r in list(self._running.items()):
                    if r.connection in ready or r.process.sentinel in ready:
                        outcome = _outcome(r)
                        del self._running[slot]
                        yield r.job, outcome
        finally:
            self.close()

    def close(self) -> None:
        """End what is running; a training resumes from its last epoch next time."""
        for r in self._running.values():
            r.process.terminate()
        for r in self._running.values():
            _end(r.process)
        self._running = {}

    def _start(self, job: Job, slot: int) -> _Running:
        context = multiprocessing.get_context("forkserver")
        receiver, sender = context.Pipe(duplex=False)
        devices = None if self.devices is None else self.devices[slot]
        process = context.Process(target=_child, args=(job, devices, sender))
        with _without_main():
            process.start()
        sender.close()
        return _Running(job, process, receiver)


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep children from running the user's script again, which may start a study itself."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _child(job: Job, devices: str | None, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(END_BY_SIGNAL))
    end_with_parent()
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    sender.send(import_module("segcal.study.work").work(job))
    sender.close()


def _outcome(r: _Running) -> Outcome:
    """What a process sent before it ended; or how it ended, if it sent nothing."""
    outcome: Outcome | None = None
    try:
        outcome = r.connection.recv()
    except (EOFError, OSError):
        time.sleep(TICK)  # if this process is being ended too, it ends now and records no failure
    _end(r.process)
    r.connection.close()
    return outcome or Outcome(_how_it_ended(r.process.exitcode, r.job))


def _end(process: Any) -> None:
    process.join(GRACE)
    if process.is_alive():
        process.kill()
        process.join()


def _how_it_ended(code: int, job: Job) -> str:
    if code == -signal.SIGKILL:
        remedy = "run fewer cells at a time" + " or lower training.batch" * (job.kind != "finish")
        reason = "its process was killed, as the system does when memory runs out"
        return f"{reason}; {remedy}, then --retry"
    if code in (END_BY_SIGNAL, -signal.SIGTERM):
        return "its process was asked to end; --retry resumes it"
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"its process {how}; {job.log} says more"


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
        remedy = "lower --workers, or --gpus-per-cell (0: none)"
        raise UserError(f"{need} need more than CUDA finds here ({len(names)}); {remedy}")
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
