"""Fetch an open data set: resumable, checked against its digest, unpacked inside its folder."""

from __future__ import annotations

import gzip
import http.client
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PureWindowsPath
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

from segcal.folders import whole_or_not
from segcal.folders.files import digest_of
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
    by_hand = target / Path(urlsplit(url).path).name
    part = by_hand.with_name(f"{by_hand.name}.part")
    folder = target / re.sub(r"\.(tar|tar\.gz|tgz)$", "", by_hand.name)
    if folder.is_dir() and any(folder.iterdir()):
        return folder
    with whole_or_not(folder, url) as partial:
        if by_hand.exists():
            if difference := _difference(by_hand, digest):  # the user's file: not removed
                problem = f"{by_hand} is damaged or another file ({difference})"
                raise UserError(f"{problem}; delete it and run again to download it")
            _extract(by_hand, partial, folder.name)
            return folder
        remedy = f"or download {url} by hand to {by_hand}"
        if not part.exists() or _difference(part, digest):  # else unpacking was interrupted
            _fetch(url, part, remedy, progress or (lambda done, total: None))
        if difference := _difference(part, digest):
            part.unlink()
            problem = f"the download of {url} was damaged ({difference}) and removed"
            raise UserError(f"{problem}; run again to repeat it, {remedy}")
        _extract(part, partial, folder.name)
    part.unlink()
    return folder


def _difference(path: Path, digest: str) -> str:
    """How the digest of a file differs from the expected one; empty if it does not."""
    algorithm, _, expected = digest.partition(":")
    got = digest_of(path, algorithm)
    return "" if got == expected else f"{algorithm} {got}, expected {expected}"


def _fetch(url: str, part: Path, remedy: str, progress: Progress) -> None:
    """Make `part` the whole archive, from where it ends."""
    with _network(url, remedy):
        response, have = _answer(url, part.stat().st_size if part.exists() else 0)
    total = have + (response.length or 0)  # a length that is not known counts as 0
    with response, part.open("ab" if have else "wb") as file:
        progress(have, total)
        while True:
            with _network(url, remedy):
                block = response.read(BLOCK)
            if not block:
                break
            file.write(block)
            have += len(block)
            progress(have, total)
    if have < total:  # http.client takes a closed connection for the end
        problem = f"the connection was lost after {have} of {total} bytes"
        raise UserError(f"{problem}; run again to resume, {remedy}")


@contextmanager
def _network(url: str, remedy: str) -> Iterator[None]:
    """Network errors as sentences. Disk errors have the same types, so no file is used in here."""
    try:
        yield
    except HTTPError as error:
        error.close()
        problem = f"{url} answered {error.code} {error.reason}"
        raise UserError(f"{problem}; run again later, {remedy}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", error)) or type(error).__name__
        problem = f"the connection to {urlsplit(url).hostname} failed ({reason})"
        raise UserError(f"{problem}; run again to resume, {remedy}") from None


def _answer(url: str, have: int) -> tuple[http.client.HTTPResponse, int]:
    """The answer, and its first byte: 0 if it does not go on from the bytes that we have."""
    headers = {"User-Agent": "segcal"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = request.urlopen(request.Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if not have or error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()  # we have more than the server, so it is another file
        return _answer(url, 0)
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return response, 0
    if response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        return response, have
    response.close()
    return _answer(url, 0)


def _extract(archive: Path, folder: Path, name: str) -> None:
    """Unpack into `folder`; a top folder called `name` is not doubled."""
    try:
        with tarfile.open(archive) as tar:
            members = []
            for member in tar.getmembers():
                path = PureWindowsPath(member.name)  # so that either kind of slash is seen
                # What macOS adds beside each file; `._case.nii.gz` would be taken for an image.
                if "__MACOSX" not in path.parts and not path.name.startswith("._"):
                    members.append((path, member))
            if not members:
                raise EOFError("it is empty")
            doubled = {path.parts[0] for path, _ in members if path.parts} == {name}
            for path, member in members:
                _write(tar, member, path, folder.joinpath(*path.parts[doubled:]))
    except UNREADABLE as error:
        why = str(error).partition("\n")[0]  # tarfile adds a list
        problem = f"{archive} is not a readable archive ({why})"
        raise UserError(f"{problem}; nothing was extracted, delete it") from None


def _write(
    tar: tarfile.TarFile, member: tarfile.TarInfo, path: PureWindowsPath, target: Path
) -> None:
    """Write a member's content, without its owner and permissions, if its `path` stays inside."""
    # Links are refused wherever they point: a chain of links inside can lead outside.
    outside = path.anchor or ".." in path.parts
    if outside or not (member.isdir() or member.isreg()):
        fault = "would be outside its folder" if outside else "is neither a file nor a folder"
        problem = f"{tar.name!s} is unsafe: {member.name!r} {fault}"
        raise UserError(f"{problem}; nothing was extracted, delete the archive")
    source = tar.extractfile(member)
    if source is None:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
