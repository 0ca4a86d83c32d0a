"""Folders that appear only when complete, and locks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from segcal.folders.files import read_json, sweep, write_json
from segcal.types import UserError

try:
    import fcntl
except ModuleNotFoundError:
    problem = "on Windows segcal has only its losses and metrics"
    raise UserError(f"{problem}; for all else run it in WSL (wsl --install)") from None

KEY = "key.json"


class StoppedError(UserError):
    """A stop after which the same command resumes."""


class BusyError(StoppedError):
    """Another process holds the lock."""


@contextmanager
def whole_or_not(target: Path, key: Any) -> Iterator[Path]:
    """A hidden folder that takes the target's name on success.

    An interruption keeps it for the next try with the same `key`; a failure deletes it. Of two
    processes at the same target the second is refused."""
    partial, old = (target.with_name(f".{target.name}.{kind}") for kind in ("partial", "old"))
    new_parents = [p for p in (target.parent, *target.parent.parents) if not p.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target):
            try:
                shutil.rmtree(old, ignore_errors=True)
                if read_json(partial / KEY) != json.loads(json.dumps(key)):
                    shutil.rmtree(partial, ignore_errors=True)
                    partial.mkdir()
                    write_json(partial / KEY, key)
                sweep(partial, held=True)
                yield partial
                for left in (partial / KEY, *partial.glob("*.record.json")):
                    left.unlink()
                if target.exists():
                    target.rename(old)
                partial.rename(target)
                shutil.rmtree(old, ignore_errors=True)
            except StoppedError:
                raise
            except Exception:  # not KeyboardInterrupt, which keeps what is done
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as error:
        reason = error.strerror or str(error)
        problem = f"cannot write to {target.parent}: {reason}"
        raise UserError(f"{problem}; make room or choose another folder") from None
    finally:
        for parent in new_parents:
            with suppress(OSError):
                parent.rmdir()  # only if nothing was written there


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Hold a lock beside the target; the system releases it even if this process is killed."""
    path = target.absolute().with_name(f".{target.absolute().name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _locked(path, target)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, target: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            problem = f"another process is at work on {target}"
            raise BusyError(f"{problem}; wait until it is done") from None
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)  # its holder deleted the file in between: try again
