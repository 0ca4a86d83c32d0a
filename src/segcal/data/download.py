"""Fetch an open data set: resumable, checked against its digest, unpacked inside its folder."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

from segcal.types import Progress, UserError

TIMEOUT = 60.0
"""Seconds without an answer after which a connection counts as lost."""

BLOCK = 1 << 16
UNREADABLE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError)


def download(url: str, digest: str, target: Path, *, progress: Progress | None = None) -> Path:
    """Fetch an archive, check its digest (`md5:…` or `sha256:…`), unpack it and return its folder.

    The folder is `target` / the archive's name without its ending; if it exists, nothing is done.
    An archive that was put into `target` by hand is used as it is. An interrupted download stays
    as `<name>.part` and is resumed. `progress` gets bytes."""
    archive = _Archive(url, digest, target / Path(urlsplit(url).path).name)
    try:
        if archive.folder.is_dir() and any(archive.folder.iterdir()):
            return archive.folder
        target.mkdir(parents=True, exist_ok=True)
        if archive.path.exists():
            if difference := archive.difference(archive.path):  # the user's file: not removed
                problem = f"{archive.path} is damaged or another file ({difference})"
                raise UserError(f"{problem}; delete it and run again to download it")
            _extract(archive.path, archive.folder)
        else:
            _fetch(archive, progress or (lambda done, total: None))
            _extract(archive.part, archive.folder)
            archive.part.unlink()
    except OSError as error:
        problem = f"cannot write {error.filename or target} ({error.strerror or error})"
        remedy = "make room or choose another folder, and run again to resume"
        raise UserError(f"{problem}; {remedy}") from None
    return archive.folder


@dataclass(frozen=True)
class _Archive:
    """An archive on the web, and the file it becomes."""

    url: str
    digest: str
    path: Path

    @property
    def part(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def folder(self) -> Path:
        return self.path.with_name(re.sub(r"\.(tar|tar\.gz|tgz)$", "", self.path.name))

    @property
    def by_hand(self) -> str:
        return f"download {self.url} by hand to {self.path}"

    def difference(self, path: Path) -> str:
        """How the digest of a file differs from the expected one; empty if it does not."""
        algorithm, _, expected = self.digest.partition(":")
        hashed = hashlib.new(algorithm, usedforsecurity=False)
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                hashed.update(block)
        got = hashed.hexdigest()
        return "" if got == expected else f"{algorithm} {got}, expected {expected}"


def _fetch(archive: _Archive, progress: Progress) -> None:
    """Make `archive.part` the whole archive, with the right digest."""
    have = archive.part.stat().st_size if archive.part.exists() else 0
    if have and not archive.difference(archive.part):
        return  # complete; unpacking was interrupted
    with _network(archive):
        response, have, total = _answer(archive.url, have)
    with response, archive.part.open("ab" if have else "wb") as file:
        progress(have, total)
        while True:
            with _network(archive):
                block = response.read(BLOCK)
            if not block:
                break
            file.write(block)
            have += len(block)
            progress(have, total)
    if have < total:  # http.client takes a closed connection for the end
        problem = f"the connection was lost after {have} of {total} bytes"
        raise UserError(f"{problem}; run again to resume, or {archive.by_hand}")
    if difference := archive.difference(archive.part):
        archive.part.unlink()
        problem = f"the download of {archive.url} was damaged ({difference}) and removed"
        raise UserError(f"{problem}; run again to repeat it, or {archive.by_hand}")


@contextmanager
def _network(archive: _Archive) -> Iterator[None]:
    """Network errors as sentences. Disk errors have the same types, so no file is used in here."""
    try:
        yield
    except HTTPError as error:
        error.close()
        remedy = f"run again later, or get the archive elsewhere and put it at {archive.path}"
        raise UserError(f"{archive.url} answered {error.code} {error.reason}; {remedy}") from None
    except (OSError, http.client.HTTPException) as error:
        host = urlsplit(archive.url).hostname
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        remedy = f"run again to resume, or {archive.by_hand}"
        raise UserError(f"the connection to {host} failed ({reason}); {remedy}") from None


def _answer(url: str, have: int) -> tuple[http.client.HTTPResponse, int, int]:
    """The answer, its first byte (0 if the server cannot resume), the whole size (0: unknown)."""
    headers = {"User-Agent": "segcal"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = request.urlopen(request.Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if not have or error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()  # we have more than the server, so it is another file
        return _answer(url, 0)
    if not have or response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return response, 0, response.length or 0
    extent = re.fullmatch(rf"bytes {have}-(\d+)/.*", response.headers.get("Content-Range", ""))
    if extent:
        return response, have, int(extent[1]) + 1
    response.close()
    return _answer(url, 0)


def _extract(archive: Path, folder: Path) -> None:
    """Unpack into `folder`, whole or not at all; a top folder of the same name is not doubled."""
    temporary = folder.with_name(f".{folder.name}.extracting")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a run that was killed
    try:
        temporary.mkdir()
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                _write(tar, member, temporary)
        inner = temporary / folder.name
        content = [*temporary.iterdir()]
        if not content:
            raise EOFError("it is empty")
        (inner if content == [inner] and inner.is_dir() else temporary).replace(folder)
    except UNREADABLE as error:
        why = str(error).partition("\n")[0]  # tarfile adds a list
        problem = f"{archive} is not a readable archive ({why})"
        raise UserError(f"{problem}; nothing was extracted, delete it") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    """Write a member's content, without its owner and permissions, if it stays inside `root`."""
    path = PureWindowsPath(member.name)  # so that either kind of slash and drives are seen
    if any(part.startswith("._") or part == "__MACOSX" for part in path.parts):
        return  # what macOS adds beside each file; `._case.nii.gz` would be taken for an image
    # Links are refused wherever they point: a chain of links inside can lead outside.
    outside = path.anchor or ".." in path.parts
    if outside or not (member.isdir() or member.isreg()):
        fault = "would be outside its folder" if outside else "is neither a file nor a folder"
        problem = f"{tar.name!s} is unsafe: {member.name!r} {fault}"
        raise UserError(f"{problem}; nothing was extracted, delete the archive")
    target = root.joinpath(*path.parts)
    source = tar.extractfile(member)
    if source is None:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
