"""Files of ours, each written whole or not at all: JSON, CSV, weights, images, figures."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from segcal.types import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

_BROKEN = (gzip.BadGzipFile, EOFError, zlib.error)  # what a damaged compressed file raises


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden file beside the target, of the same ending; it takes the target's name if nothing
    fails.
    """
    partial = path.with_name(f".partial-{os.getpid()}-{path.name}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


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
    """Whether a file is no longer what its fingerprint says (`None`: not there); read only if size
    or time differ.
    """
    if known is None or not path.is_file():
        return (known is None) == path.is_file()
    stat = path.stat()
    same_stat = (stat.st_size, stat.st_mtime_ns) == (known["size"], known["mtime_ns"])
    return not same_stat and sha256(path) != known["sha256"]


def save_figure(path: Path, figure: Figure) -> None:
    """Write a matplotlib figure as the file's ending says (svg, pdf, png); the same figure gives
    the same bytes.
    """
    import matplotlib  # slow to load, and most users of this module do without

    date = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix)
    settings: Any = {
        "svg.hashsalt": "segcal",
        "svg.fonttype": "path",
        "pdf.fonttype": 42,
        "savefig.bbox": None,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            replacing(path) as partial,
            matplotlib.rc_context(settings | {"savefig.facecolor": "auto"}),
        ):
            figure.savefig(
                partial, dpi=300, transparent=False, metadata={date: None} if date else None
            )
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the figure {path}: {error}") from None


def sweep(folder: Path) -> None:
    """Take away what killed processes left half-written in a folder that this one holds."""
    for path in folder.glob(".partial-*"):
        path.unlink(missing_ok=True)


def read_run(root: Path) -> dict[str, Any]:
    """What `run.json` says of a run."""
    path = root / "run.json"
    if not path.is_file():
        raise UserError(f"{root} is not a run (it has no run.json); segcal train makes one")
    try:
        info: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        info = {}
    if not isinstance(info, dict) or not {"id", "status", "settings", "data"} <= set(info):
        raise UserError(f"{path} is damaged; move the folder away and train the run again")
    return info


def refuse_packed(root: Path, info: Mapping[str, Any]) -> None:
    """Raise if a run is a copy in a packed study, which has scores but no weights, and must stay as
    it was published.
    """
    if info.get("packed"):
        raise UserError(
            f"{root} is a packed copy of a run, for comparing alone; use the run itself, or another"
            " --out"
        )


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file whole or not at all; the first row's keys are the header."""
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def found(path: Path) -> Path | None:
    """A file of ours, or its compressed copy where only that is there, as in a packed study; `None`
    without either.
    """
    return next((p for p in (path, _packed(path)) if p.is_file()), None)


def _packed(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


def write_packed(path: Path, source: Path) -> None:
    """Write a compressed copy of a file, which may be compressed itself; the same content gives the
    same bytes.
    """
    with _opened(source) as file:
        content = file.read().encode()
    with replacing(_packed(path)) as partial:
        partial.write_bytes(gzip.compress(content, mtime=0))


def _opened(path: Path) -> IO[str]:
    real = found(path) or path
    return (gzip.open if real.suffix == ".gz" else open)(real, "rt", newline="", encoding="utf-8")


def read_rows(path: Path, *, columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """The rows of a CSV file, which must have at least these columns; none if there is no file."""
    real = found(path)
    if real is None:
        return []
    try:
        with _opened(path) as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            if set(columns) <= set(reader.fieldnames or ()) and all(
                None not in row.values() for row in rows
            ):
                return rows
    except (UnicodeDecodeError, csv.Error, *_BROKEN):
        pass
    remedy = (
        "get the packed study again" if real != path else "remove it and run the same command again"
    )
    raise UserError(f"{real} is damaged; {remedy}")


def save_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a network's weights as safetensors, whole or not at all."""
    from safetensors.torch import save  # needs torch, which most users of this module do without

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:  # not save_file, whose files only their owner may read
        partial.write_bytes(
            save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
        )


def read_json(path: Path) -> Any:
    """What a JSON file of ours holds; `None` if there is no such file, or it is damaged."""
    try:
        with _opened(path) as file:
            return json.load(file)
    except (OSError, ValueError, *_BROKEN):
        return None


def write_image(path: Path, image: Any) -> None:
    """Write a SimpleITK image, whole or not at all."""
    import SimpleITK as sitk

    try:
        with replacing(path) as partial:
            sitk.WriteImage(image, str(partial), useCompression=True)
    except RuntimeError:
        raise UserError(f"cannot write {path}; make room or choose another folder") from None
