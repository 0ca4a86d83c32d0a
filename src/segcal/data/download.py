"""Fetch an open data set: resumable, checked against its digest, and unpacked without leaving the
target folder.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import IO, NamedTuple, cast
from urllib import request
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit

from segcal.types import UserError, check_choice

TIMEOUT = 60.0
"""Seconds without an answer after which a connection counts as lost."""

BLOCK = 1 << 16
SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
DIGITS = {"md5": 32, "sha256": 64}
HANDLERS: tuple[type[request.BaseHandler], ...] = (
    *(request.ProxyHandler, request.HTTPHandler, request.HTTPSHandler, request.UnknownHandler),
    *(request.HTTPRedirectHandler, request.HTTPErrorProcessor, request.HTTPDefaultErrorHandler),
)
UNREADABLE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    RuntimeError,
)

Progress = Callable[[int, int | None], None]


def download(
    url: str, archive_digest: str, target: Path, *, progress: Progress | None = None
) -> Path:
    """Fetch an archive, check its digest (`md5:…` or `sha256:…`) and unpack it; returns the folder
    with its content.

    The folder is `target` / the archive's name without its ending; if it is there already, nothing
    is done. An archive that was put into `target` by hand is used as it is. An interrupted download
    stays as `<name>.part` and is resumed. `progress` is told the bytes so far and in all, where the
    server says."""
    job = _job(url, archive_digest, target)
    try:
        if job.folder.is_dir() and any(job.folder.iterdir()):
            return job.folder
        target.mkdir(parents=True, exist_ok=True)
        if job.archive.exists():
            _check_by_hand(job)
            _extract(job.archive, job.folder)
        else:
            _fetch(job, progress or (lambda have, total: None))
            _extract(job.part, job.folder)
            job.part.unlink()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk of {target} is full; make room and run again to resume"
            ) from None
        where, why = error.filename or target, error.strerror or error
        raise UserError(
            f"cannot write {where} ({why}); make it writable or choose another folder"
        ) from None
    return job.folder


@dataclass(frozen=True)
class _Job:
    """What is wanted and where it goes."""

    url: str
    algorithm: str
    expected: str
    archive: Path

    @property
    def part(self) -> Path:
        return self.archive.with_name(f"{self.archive.name}.part")

    @property
    def folder(self) -> Path:
        suffix = next(s for s in SUFFIXES if self.archive.name.endswith(s))
        return self.archive.with_name(self.archive.name.removesuffix(suffix))

    @property
    def by_hand(self) -> str:
        return f"download {self.url} by hand to {self.archive}"

    def digest(self, path: Path) -> str:
        found = hashlib.new(self.algorithm, usedforsecurity=False)
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
        return found.hexdigest()


def _job(url: str, archive_digest: str, target: Path) -> _Job:
    """Everything that can be wrong before any work starts.

    >>> _job("ftp://host/a.zip", "md5:" + 32 * "0", Path("data"))
    Traceback (most recent call last):
    segcal.types.UserError: only http and https addresses can be downloaded; got 'ftp://host/a.zip'
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"only http and https addresses can be downloaded; got {url!r}")
    name = PureWindowsPath(unquote(parts.path)).name  # so that neither kind of slash is left in it
    if not name.endswith(SUFFIXES) or name.startswith("."):
        raise UserError(
            f"the address must name an archive ending in {', '.join(SUFFIXES)}; got {url!r}"
        )
    algorithm, _, expected = archive_digest.partition(":")
    check_choice("digest", algorithm, tuple(DIGITS))
    if not re.fullmatch(f"[0-9a-fA-F]{{{DIGITS[algorithm]}}}", expected):
        raise UserError(
            f"{algorithm} must be {DIGITS[algorithm]} hexadecimal digits; got {expected!r}"
        )
    return _Job(url, algorithm, expected.lower(), target / name)


def _check_by_hand(job: _Job) -> None:
    found = job.digest(job.archive)
    if found != job.expected:  # not ours to remove
        raise UserError(
            f"{job.archive} is damaged or another file ({job.algorithm} {found}, expected"
            f" {job.expected}); delete it and run again to download it anew"
        )


# Fetching
# ------------------------------------------------------------------------------


def _fetch(job: _Job, progress: Progress) -> None:
    """Make `job.part` the whole archive, with the right digest."""
    have = job.part.stat().st_size if job.part.exists() else 0
    if have and job.digest(job.part) == job.expected:
        return  # complete; unpacking was interrupted
    with _network(job):
        response, have, total = _answer(job.url, have)
    with response, job.part.open("ab" if have else "wb") as file:
        progress(have, total)
        while block := _block(job, response):
            file.write(block)
            have += len(block)
            progress(have, total)
    if total is not None and have < total:  # http.client takes a closed connection for the end
        raise UserError(
            f"the connection was lost after {have} of {total} bytes; run again to resume, or"
            f" {job.by_hand}"
        )
    found = job.digest(job.part)
    if found != job.expected:
        job.part.unlink()
        raise UserError(
            f"the download of {job.url} was damaged ({job.algorithm} {found}, expected"
            f" {job.expected}) and removed; run again to download it anew, or {job.by_hand}"
        )


def _block(job: _Job, response: http.client.HTTPResponse) -> bytes:
    with _network(job):
        return response.read(BLOCK)


@contextmanager
def _network(job: _Job) -> Iterator[None]:
    """Errors of the network as sentences. Disk errors have the same types, so only calls to the
    network go in here.
    """
    try:
        yield
    except HTTPError as error:
        error.close()
        remedy = f"run again later, or get the archive elsewhere and put it at {job.archive}"
        raise UserError(f"{job.url} answered {error.code} {error.reason}; {remedy}") from None
    except (
        OSError,
        http.client.HTTPException,
        ValueError,
    ) as error:  # ValueError: an address that cannot be sent
        host, reason = (
            urlsplit(job.url).hostname,
            str(getattr(error, "reason", error)) or type(error).__name__,
        )
        raise UserError(
            f"the connection to {host} failed ({reason}); run again to resume, or {job.by_hand}"
        ) from None


def _answer(url: str, have: int) -> tuple[http.client.HTTPResponse, int, int | None]:
    """The server's answer, the byte it starts from (`have`, or 0 where it cannot resume) and the
    size of the whole.
    """
    if have:
        try:
            response = _request(url, have)
        except HTTPError as error:
            if (
                error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
            ):  # more is here than there: not the same file
                raise
            error.close()
        else:
            start, total = _extent(response)
            if start in (0, have):
                return response, start, total
            response.close()
    response = _request(url, 0)
    return response, 0, _extent(response)[1]


def _request(url: str, start: int) -> http.client.HTTPResponse:
    opener = request.OpenerDirector()  # not the usual one, which would follow a redirection to ftp
    for handler in HANDLERS:
        opener.add_handler(handler())
    headers = {"User-Agent": "segcal", **({"Range": f"bytes={start}-"} if start else {})}
    return cast(
        http.client.HTTPResponse,
        opener.open(request.Request(url, headers=headers), timeout=TIMEOUT),
    )


def _extent(response: http.client.HTTPResponse) -> tuple[int | None, int | None]:
    """The byte that an answer starts from, None if it does not fit together, and the size of the
    whole if told.
    """
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0, response.length
    told = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", response.headers.get("Content-Range", ""))
    if not told:
        return None, None
    start, last = int(told[1]), int(told[2])
    total = last + 1 if told[3] == "*" else int(told[3])
    fits = start <= last < total and response.length in (None, last + 1 - start)
    return (start if fits else None), total


# Unpacking
# ------------------------------------------------------------------------------


class _Member(NamedTuple):
    """A file or folder in an archive; links, devices and the like are neither."""

    name: str
    is_folder: bool
    is_file: bool
    open: Callable[[], IO[bytes]]


def _extract(archive: Path, folder: Path) -> None:
    """Unpack into `folder`, whole or not at all; a top folder of the same name is not doubled."""
    temporary = folder.with_name(f".{folder.name}.extracting")
    shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
    try:
        temporary.mkdir()
        with _opened(archive) as members:
            for member in members:
                _check(archive, member)
            for member in members:
                _write(member, temporary)
        inner = temporary / folder.name
        content = [*temporary.iterdir()]
        if not content:
            raise EOFError("it is empty")
        (inner if content == [inner] and inner.is_dir() else temporary).replace(folder)
    except UNREADABLE as error:
        why = str(error).partition("\n")[0]  # tarfile goes on with a list
        raise UserError(
            f"{archive} is not a readable archive ({why}); nothing was extracted, delete it"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _opened(archive: Path) -> Iterator[list[_Member]]:
    if archive.name.removesuffix(".part").endswith(".zip"):
        with zipfile.ZipFile(archive) as file:
            yield [
                _Member(info.filename, info.is_dir(), _is_plain(info), partial(file.open, info))
                for info in file.infolist()
            ]
    else:
        with tarfile.open(archive) as tar:
            yield [
                _Member(
                    info.name,
                    info.isdir(),
                    info.isreg(),
                    cast(Callable[[], IO[bytes]], partial(tar.extractfile, info)),
                )
                for info in tar.getmembers()
            ]


def _is_plain(info: zipfile.ZipInfo) -> bool:
    return stat.S_IFMT(info.external_attr >> 16) in (
        0,
        stat.S_IFREG,
    )  # 0: made on a system without such modes


def _check(archive: Path, member: _Member) -> None:
    """Raise unless a member is a plain file or folder that stays inside."""
    # Links are refused wherever they point: a chain of links that each stay inside can lead
    # outside.
    stays = not _leaves(member.name)
    if stays and (member.is_folder or member.is_file):
        return
    fault = "is neither a file nor a folder" if stays else "would be written outside its folder"
    raise UserError(
        f"{archive} is unsafe: {member.name!r} {fault}; nothing was extracted, delete the archive"
    )


def _leaves(name: str) -> bool:
    r"""Whether a path may lead out of its folder on any system.

    >>> [_leaves(name) for name in ("a/b..c", "a/../b", "/a", "C:a", "..\\a")]
    [False, True, True, True, True]
    """
    path = PureWindowsPath(name)
    return bool(path.anchor) or ".." in path.parts or "\0" in name


def _write(member: _Member, root: Path) -> None:
    """Write a member's content; its owner and permissions are left behind."""
    parts = PureWindowsPath(member.name).parts
    if any(part.startswith("._") or part == "__MACOSX" for part in parts):
        return  # what macOS adds beside each file; `._case.nii.gz` would be taken for an image
    path = root.joinpath(*parts)
    if member.is_folder:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with member.open() as source, path.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
