"""Reading and writing files: each is written completely or not at all."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from segcal.types import AnyPath, UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

PARTIAL = ".partial-"
"""Begins the names of files that are being written; the number of the process follows."""

_BLOCK = 1 << 20
_UNPACKED, _DENSEST = 1 << 26, 100  # bytes that any file may unpack to, and from each of its own
_BROKEN = (gzip.BadGzipFile, EOFError, zlib.error)  # what a damaged compressed file raises


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden file beside the target; it takes the target's name if nothing fails."""
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{path.name}")
    try:
        yield partial
        partial.replace(path)
    except OSError as error:
        if error.errno and error.filename is None:  # a full disk does not say which
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def sweep(folder: Path, *, held: bool = False) -> None:
    """Delete partial files that killed processes left in a folder.

    A caller that holds its lock (`held`) owns all of it: also those below, and those of processes
    that seem to live, perhaps on another machine."""
    for path in (folder.rglob if held else folder.glob)(f"{PARTIAL}*"):
        process = path.name.removeprefix(PARTIAL).partition("-")[0]
        if held or not _is_alive(process):
            path.unlink(missing_ok=True)


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    try:
        content = f"{text}\n".encode()
    except UnicodeEncodeError as error:
        wrong = text[error.start : error.end]
        raise UserError(f"{path} cannot hold {wrong!a}, which is no Unicode; rename it") from None
    with replacing(path) as partial:
        partial.write_bytes(content)


def read_json(path: Path) -> Any:
    """The content of a JSON file; `None` if it does not exist or is damaged."""
    try:
        with _opened(path) as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError, *_BROKEN):
        return None


def read_users_json(path: Path) -> Any:
    """The content of a JSON file that a user wrote."""
    if path.exists() and not path.is_file():  # to open a pipe can take for ever
        raise UserError(f"cannot read {path}: it is not a regular file")
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError:
        raise UserError(f"cannot read {path}: it is nested too deeply") from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a CSV file with a header; every row has every column."""
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([as_cell(row[name]) for name in columns] for row in rows)


FORMULA = ("=", "+", "@", "'")
"""What a text cell must not begin with: spreadsheets would compute it."""


def as_cell(value: Any) -> Any:
    """A value for a CSV file; a text that a spreadsheet would compute begins with an apostrophe.

    >>> as_cell("=1+1"), as_cell("liver"), as_cell(-1.5)
    ("'=1+1", 'liver', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _from_cell(text: str) -> str:
    return text[1:] if text.startswith("'") and text[1:].startswith(FORMULA) else text


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a CSV file, which must have these columns; none if there is no file."""
    real = existing(path)
    if real is None:
        return []
    with suppress(UnicodeDecodeError, csv.Error, *_BROKEN), _opened(path) as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        complete = set(columns) <= set(reader.fieldnames or ())
        if complete and all(None not in row and None not in row.values() for row in rows):
            return [{name: _from_cell(text) for name, text in row.items()} for row in rows]
    remedy = "remove it and run the same command again"
    if real != path:
        remedy = "get the packed study again"
    raise UserError(f"{real} is damaged; {remedy}")


def existing(path: Path) -> Path | None:
    """A file, or its compressed copy where only that exists; `None` without either."""
    for candidate in (path, _compressed(path)):
        if candidate.is_file():
            return candidate
    return None


def compress(source: Path, target: Path) -> None:
    """Write a compressed copy of a file; the same content gives the same bytes."""
    with _opened(source) as file:
        content = file.read().encode()
    with replacing(_compressed(target)) as partial:
        partial.write_bytes(gzip.compress(content, mtime=0))


def _compressed(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


def _opened(path: Path) -> IO[str]:
    real = existing(path)
    if real is None:  # nor is a pipe one, which can take for ever to open
        raise FileNotFoundError(f"there is no file {path}")
    if real.suffix != ".gz":
        return real.open(newline="", encoding="utf-8")
    limit = max(_UNPACKED, _DENSEST * real.stat().st_size)
    with gzip.open(real) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise gzip.BadGzipFile("it unpacks to more than any table does")
    return io.StringIO(content.decode(), newline="")


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    return digest_of(path, "sha256")


def digest_of(path: Path, algorithm: str) -> str:
    """The digest of a file, read in blocks."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


_CHECKSUM = "sha256"  # in the metadata of weights
_COMMENT = 64  # characters of a SHA-256
_LENGTH = struct.Struct("<H")  # of a comment, in front of it


def seal(path: Path) -> None:
    """Put the SHA-256 of a zip archive, such as torch writes, into its comment at the end."""
    digest = sha256(path)
    with path.open("r+b") as file:
        file.seek(-_LENGTH.size, os.SEEK_END)
        file.write(_LENGTH.pack(_COMMENT) + digest.encode())


def seal_holds(path: Path) -> bool:
    """Whether a sealed archive is as it was written; true without a seal, as older ones are."""
    n_bytes = path.stat().st_size - _COMMENT - _LENGTH.size
    if n_bytes < 0:
        return True
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for _ in range(n_bytes // _BLOCK):
            digest.update(file.read(_BLOCK))
        digest.update(file.read(n_bytes % _BLOCK))
        length, comment = file.read(_LENGTH.size), file.read()
    digest.update(_LENGTH.pack(0))
    return length != _LENGTH.pack(_COMMENT) or comment == digest.hexdigest().encode()


def fingerprint(path: Path) -> dict[str, Any] | None:
    """What `changed` compares a source file with later; `None` if there is no file."""
    if not path.is_file():
        return None
    try:
        stat = path.stat()
        return {"sha256": sha256(path), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def changed(path: Path, known: dict[str, Any] | None) -> bool:
    """Whether a file differs from its fingerprint.

    The content is read only if size or time differ."""
    if known is None or not path.is_file():
        return (known is None) == path.is_file()
    stat = path.stat()
    same_stat = (stat.st_size, stat.st_mtime_ns) == (known["size"], known["mtime_ns"])
    return not same_stat and sha256(path) != known["sha256"]


def save_figure(path: AnyPath, figure: Figure) -> None:
    """Write a figure as svg, pdf or png, by the file's ending; equal figures give equal bytes."""
    import matplotlib  # slow to load, and most users of this module do without

    path = Path(path)
    dates: Any = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    settings: Any = {"svg.hashsalt": "segcal", "svg.fonttype": "path", "pdf.fonttype": 42}
    settings |= {"savefig.bbox": None, "savefig.facecolor": "auto"}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, matplotlib.rc_context(settings):
            figure.savefig(partial, dpi=300, transparent=False, metadata=dates.get(path.suffix))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the figure {path}: {error}") from None


def save_weights(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a network's weights as safetensors, with their checksum."""
    from safetensors.torch import save  # needs torch, which most users of this module do without

    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    content = save(tensors, {_CHECKSUM: _checksum_of(tensors)})
    with replacing(path) as partial:  # not save_file, whose files only their owner may read
        partial.write_bytes(content)


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read a network's weights; `ValueError` if they are not what was written.

    Older files have no checksum."""
    from safetensors import safe_open

    if not path.is_file():  # to open a pipe can take for ever
        raise FileNotFoundError(f"there is no file {path}")
    with safe_open(str(path), "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        known = (file.metadata() or {}).get(_CHECKSUM)
    if known is not None and known != _checksum_of(tensors):
        raise ValueError("the file was changed after it was written")
    return tensors


def _checksum_of(tensors: Mapping[str, Tensor]) -> str:
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def write_image(path: Path, image: Any) -> None:
    """Write a SimpleITK image."""
    import SimpleITK as sitk

    try:
        with replacing(path) as partial:
            sitk.WriteImage(image, str(partial), useCompression=True)
    except RuntimeError:
        raise UserError(f"cannot write {path}; make room or choose another folder") from None
