"""Engines: who carries out jobs. Here: processes on this machine; `cluster` has the one for Ray. Without torch."""

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
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, Protocol

from segcal.hardware import before_torch
from segcal.study.jobs import Job, Outcome
from segcal.types import UserError

TICK = 0.5  # seconds between looks at what is going on
GRACE = 5.0  # seconds that a process has to end by itself
END_BY_SIGNAL = 128 + signal.SIGTERM  # the exit code of a process that was asked to end

RANKS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SCHEDULERS = ("SLURM_", "TORCHELASTIC_", "LSB_", "JSM_", "OMPI_", "PMI_")

Tick = Callable[[Collection[str]], None]


class Engine(Protocol):
    """Carries out jobs, some at a time."""

    slots: int  # how many at a time

    def run(self, jobs: Sequence[Job], tick: Tick) -> Generator[tuple[Job, Outcome], None, None]:
        """Do the jobs; gives each with its outcome when it ends. `tick` hears now and then which may be running."""
        ...

    def close(self) -> None:
        """Let go of processes and connections."""
        ...


def warm_up() -> None:
    """Start the server that processes are forked from; it imports what they need while this process does other things."""
    before_torch()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["segcal.study.work"])
    with _without_ranks(), _deaf_to_interrupts():
        forkserver.ensure_running()


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started here ignore Ctrl-C, which this one answers with a sentence, not with their traceback."""
    if threading.current_thread() is not threading.main_thread():  # where signals cannot be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _without_ranks() -> Iterator[None]:
    """Under Slurm and its like Lightning takes a process for one of many that train one network; a cell trains alone."""
    hidden = {key: value for key, value in os.environ.items() if key in RANKS or key.startswith(SCHEDULERS)}
    for key in hidden:
        del os.environ[key]
    try:
        yield
    finally:
        os.environ.update(hidden)


@dataclass
class _Running:
    job: Job
    process: Any
    connection: Connection


class Local:
    """Processes on this machine, a new one for each job, so that its memory comes back.

    They are forked from a server that has imported everything and done nothing: a job starts in a tenth of a second.
    """

    def __init__(self, slots: int, *, gpus: float = 0.0, devices: str = "") -> None:
        if slots < 1:
            raise UserError(f"a study needs at least 1 worker; got {slots}")
        warm_up()
        self.slots, self.gpus, self.devices = slots, gpus, devices
        self._running: dict[int, _Running] = {}

    def run(self, jobs: Sequence[Job], tick: Tick) -> Generator[tuple[Job, Outcome], None, None]:
        """As many at a time as there are slots; the first ones first."""
        waiting = deque(jobs)
        try:
            while waiting or self._running:
                for slot in range(self.slots):
                    if waiting and slot not in self._running:
                        self._running[slot] = self._start(waiting.popleft(), slot)
                tick([r.job.name for r in self._running.values()])
                ends = [end for r in self._running.values() for end in (r.connection, r.process.sentinel)]
                ready = wait(ends, timeout=TICK)
                for slot, r in list(self._running.items()):
                    if r.connection in ready or r.process.sentinel in ready:
                        outcome = _outcome(r)
                        del self._running[slot]
                        yield r.job, outcome
        finally:
            self.close()

    def close(self) -> None:
        """End what is running; a run that is ended goes on from its last epoch next time."""
        for r in self._running.values():
            r.process.terminate()
        for r in self._running.values():
            _end(r.process)
        self._running = {}

    def _start(self, job: Job, slot: int) -> _Running:
        context = multiprocessing.get_context("forkserver")
        receiver, sender = context.Pipe(duplex=False)
        devices = self.devices or _devices(slot, self.gpus)
        process = context.Process(target=_child, args=(job, devices, sender))
        with _without_main():
            process.start()
        sender.close()
        return _Running(job, process, receiver)


@contextmanager
def _without_main() -> Iterator[None]:
    """Children need nothing of the user's script; left alone, each would run it again, and some scripts start studies."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _devices(slot: int, gpus: float) -> str:
    """The GPUs of a slot: its own whole ones, or a share of one.

    >>> [_devices(slot, 2) for slot in (0, 1)], [_devices(slot, 0.5) for slot in (0, 1, 2)]
    (['0,1', '2,3'], ['0', '0', '1'])
    """
    return ",".join(str(i) for i in range(math.floor(slot * gpus), math.ceil((slot + 1) * gpus))) if gpus else ""


def _child(job: Job, devices: str, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what becomes of us
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(END_BY_SIGNAL))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    sender.send(import_module("segcal.study.work").work(job))
    sender.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _outcome(r: _Running) -> Outcome:
    """What a process sent before it ended; or how it ended, if it sent nothing."""
    try:
        outcome: Outcome = r.connection.recv()
    except (EOFError, OSError):
        time.sleep(TICK)  # if this process is being ended too, it is so now, and has no failure to write down
        outcome = Outcome(lost=True)
    _end(r.process)
    r.connection.close()
    return Outcome(_how_it_ended(r.process.exitcode, r.job), lost=True) if outcome.lost else outcome


def _end(process: Any) -> None:
    process.join(GRACE)
    if process.is_alive():
        process.kill()
        process.join()


def _how_it_ended(code: int, job: Job) -> str:
    if code == -signal.SIGKILL:
        hint = "run fewer cells at a time or lower training.batch, then --retry"
        return f"its process was killed, as the system does when memory runs out; {hint}"
    if code in (END_BY_SIGNAL, -signal.SIGTERM):
        return "its process was asked to end; --retry goes on with it"
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return f"its process {how}; {job.log} says more"


def start_engine(*, workers: int | None = None, ray: str = "", cpus: int = 1, gpus: float = 0.0) -> Engine:
    """Processes here, by default as many as the cores (or GPUs) allow; or a Ray cluster, if its address is given."""
    if ray:
        if workers is not None:
            raise UserError("--workers is for this machine; on a Ray cluster the cells' needs decide (--cpus-per-cell)")
        cluster: Engine = import_module("segcal.study.cluster").Ray(ray, cpus, gpus)
        return cluster
    return Local(_default_slots(cpus, gpus) if workers is None else workers, gpus=gpus)


def _default_slots(cpus: int, gpus: float) -> int:
    if gpus:
        return max(1, int(import_module("torch").cuda.device_count() / gpus))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // cpus)
