"""Our own files: the only module that knows their paths and formats.

A prepared data set is a folder `cases/<name>/` with `cases.json` and, per case, `<id>.image.npy` (D, C, H, W) float32 in
[0, 1] and `<id>.label.npy` (D, H, W) uint8, where 255 marks voxels to ignore. D counts slices, each one contiguous read.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segcal.types import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

IGNORED = 255
"""The stored label of voxels to ignore; other labels are 0 (background) to the number of classes."""

FORMAT = 1
"""The version of `cases.json`; raised when older files can no longer be read."""


@dataclass(frozen=True)
class CaseSet:
    """A prepared data set, opened; arrays are memory-mapped when asked for."""

    root: Path
    info: dict[str, Any]

    @property
    def name(self) -> str:
        """The data set's key."""
        return str(self.info["name"])

    @property
    def classes(self) -> tuple[str, ...]:
        """The foreground classes; label 1 is the first."""
        return tuple(self.info["classes"])

    @property
    def channels(self) -> tuple[str, ...]:
        """The image channels (modalities)."""
        return tuple(self.info["channels"])

    @property
    def ids(self) -> tuple[str, ...]:
        """Every case."""
        return tuple(self.info["cases"])

    @property
    def n_folds(self) -> int:
        """How many ways the cases are split: 1, or one per patient where a case is left out in turn."""
        return len(self.info["splits"])

    def split(self, name: str, fold: int = 0) -> tuple[str, ...]:
        """The case ids of `train`, `val` or `test`."""
        if not 0 <= fold < self.n_folds:
            raise UserError(f"fold must lie in 0..{self.n_folds - 1} for {self.name}; got {fold}")
        if name not in self.info["splits"][fold]:
            raise UserError(f"unknown split {name!r}; choose one of train, val, test")
        return tuple(self.info["splits"][fold][name])

    def case(self, id: str) -> dict[str, Any]:
        """What `cases.json` says of a case."""
        if id not in self.info["cases"]:
            raise UserError(f"{self.name} has no case {id!r}")
        record: dict[str, Any] = self.info["cases"][id]
        return record

    def image(self, id: str) -> NDArray[np.float32]:
        """The image (D, C, H, W), memory-mapped."""
        return _mapped(array_path(self.root, id, "image"))

    def label(self, id: str) -> NDArray[np.uint8]:
        """The label map (D, H, W), memory-mapped."""
        return _mapped(array_path(self.root, id, "label"))


def array_path(root: Path, id: str, kind: str) -> Path:
    """Where a case's `image` or `label` array lies."""
    return root / f"{id}.{kind}.npy"


def _mapped(path: Path) -> NDArray[Any]:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}); prepare the data set again with --again") from None


def open_cases(root: Path) -> CaseSet:
    """Open a prepared data set."""
    path = root / "cases.json"
    if not path.is_file():
        raise UserError(f"{root} is not a prepared data set (it has no cases.json); run segcal prepare first")
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        version = info["format"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is damaged; prepare the data set again with --again") from None
    if version != FORMAT:
        raise UserError(f"{path} has format {version}, this segcal reads {FORMAT}; prepare the data set again with --again")
    return CaseSet(root, info)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(path: Path) -> dict[str, Any]:
    """What tells later whether a source file is still the same."""
    if not path.is_file():
        raise UserError(f"{path} is missing")
    try:
        stat = path.stat()
        return {"sha256": sha256(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def changed(path: Path, known: dict[str, Any] | None) -> bool:
    """Whether a file is no longer what its fingerprint says (`None`: not there); read only if size or time differ."""
    if known is None or not path.is_file():
        return (known is None) == path.is_file()
    stat = path.stat()
    same_stat = (stat.st_size, stat.st_mtime_ns) == (known["size"], known["mtime_ns"])
    return not same_stat and sha256(path) != known["sha256"]


def save_figure(path: Path, figure: Figure) -> None:
    """Write a matplotlib figure in the format that the file's ending says."""
    partial = path.with_name(f".partial-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(partial, dpi=150)
        partial.replace(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the figure {path}: {error}") from None


class StoppedError(UserError):
    """A stop that leaves work to go on from."""


@contextmanager
def whole_or_not(target: Path, key: Any) -> Iterator[Path]:
    """A hidden folder: takes the target's name on success, stays for the next try on interruption, goes on failure.

    What an earlier try left there is kept if it had the same `key`. Of two tries at once the second is refused.
    """
    partial, old = (target.with_name(f".{target.name}.{kind}") for kind in ("partial", "old"))
    made = [p for p in (target.parent, *target.parent.parents) if not p.exists()]  # to be taken away again on failure
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target):
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
        raise UserError(f"cannot write to {target.parent}: {reason}; make room or choose another --to") from None
    finally:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()  # only if nothing was written there


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Hold a lock beside the target; the system lets go of it even if this process is killed."""
    path = target.with_name(f".{target.name}.lock")
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoppedError(f"another process is at work on {target}; wait until it is done") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


# Runs -----------------------------------------------------------------------------------------------------------------


def read_run(root: Path) -> dict[str, Any]:
    """What `run.json` says of a run."""
    path = root / "run.json"
    if not path.is_file():
        raise UserError(f"{root} is not a run (it has no run.json); segcal train makes one")
    try:
        info: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{path} is damaged; train the run again with --again") from None
    return info


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file whole or not at all; the first row's keys are the header."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none if there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def save_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a network's weights as safetensors, whole or not at all."""
    from safetensors.torch import save_file  # needs torch, which most users of this module do without

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}, partial)
    partial.replace(path)


def read_json(path: Path) -> Any:
    """What a JSON file of ours holds; `None` if there is no such file, or it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_image(path: Path, image: Any) -> None:
    """Write a SimpleITK image, whole or not at all."""
    import SimpleITK as sitk

    partial = path.with_name(f".partial-{path.name}")
    try:
        sitk.WriteImage(image, str(partial), useCompression=True)
    except RuntimeError:
        partial.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}; make room or choose another folder") from None
    partial.replace(path)
