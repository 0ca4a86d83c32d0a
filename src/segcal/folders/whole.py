"""Work on a folder, alone: it appears under its name when it is complete, and two processes never
share it.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from segcal.folders.files import read_json, write_json
from segcal.types import UserError

try:
    import fcntl
except ModuleNotFoundError:
    raise UserError(
        "on Windows segcal has only its losses and metrics; for all else run it in WSL (wsl"
        " --install)"
    ) from None


class StoppedError(UserError):
    """A stop that leaves work to go on from."""


class BusyError(StoppedError):
    """Another process holds the lock."""


@contextmanager
def whole_or_not(target: Path, key: Any) -> Iterator[Path]:
    """A hidden folder: takes the target's name on success, stays for the next try on interruption,
    goes on failure.

    What an earlier try left there is kept if it had the same `key`. Of two tries at once the second
    is refused."""
    partial, old = (target.with_name(f".{target.name}.{kind}") for kind in ("partial", "old"))
    made = [
        p for p in (target.parent, *target.parent.parents) if not p.exists()
    ]  # to be taken away again on failure
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target):
            try:
                shutil.rmtree(old, ignore_errors=True)
                if read_json(partial / "key.json") != json.loads(json.dumps(key)):
                    shutil.rmtree(partial, ignore_errors=True)
                    partial.mkdir()
                    write_json(partial / "key.json", key)
                yield partial
                for left in (partial / "key.json", *partial.glob("*.record.json")):
                    left.unlink()
                if target.exists():
                    target.rename(old)
                partial.rename(target)
                shutil.rmtree(old, ignore_errors=True)
            except StoppedError:
                raise
            except Exception:  # not KeyboardInterrupt: what is done then is kept
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"cannot write to {target.parent}: {reason}; make room or choose another folder"
        ) from None
    finally:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()  # only if nothing was written there


_HELD: dict[Path, int] = {}  # the locks of this process, and the thread that holds each


@contextmanager
def alone(target: Path, *, nested: bool = False) -> Iterator[None]:
    """Hold a lock beside the target; the system lets go of it even if this process is killed.

    With `nested` a thread may take once more what it holds, as one step of the work calls another.
    """
    path = target.absolute().with_name(f".{target.absolute().name}.lock")
    if nested and _HELD.get(path) == threading.get_ident():
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _locked(path, target)
    _HELD[path] = threading.get_ident()
    try:
        yield
    finally:
        del _HELD[path]
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path, target: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise BusyError(
                f"another process is at work on {target}; wait until it is done"
            ) from None
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)  # its holder took the file away in between: once more
