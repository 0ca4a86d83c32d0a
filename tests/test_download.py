"""Downloads from a real server that behaves and misbehaves, and archives that try to get out."""

import contextlib
import errno
import hashlib
import http.server
import io
import resource
import socket
import struct
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest

from segcal.data.download import download
from segcal.types import UserError

MODULE = "segcal.data.download"
SUFFIXES = [".tar", ".tar.gz", ".tgz"]
FILES = {"imagesTr/ä 1.nii.gz": b"image" * 1000, "dataset.json": b"{}", "empty.txt": b""}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.ranges_asked.append(wanted)
        if server.stall:
            server.done.wait(10)
            self.close_connection = True
            return
        if server.status != 200:
            self.answer(server.status, {"Location": server.location})
            return
        start = (
            int(wanted.removeprefix("bytes=").removesuffix("-"))
            if wanted and server.can_resume
            else 0
        )
        size = len(server.content)
        if start >= size:
            self.answer(416, {"Content-Range": f"bytes */{size}"})
        elif start:
            told = f"bytes {start + server.range_error}-{size - 1}/{size}"
            self.answer(206, {"Content-Range": told}, server.content[start:])
        else:
            self.answer(200, {}, server.content)

    def answer(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        sent = body[: self.server.drop_after]
        self.server.served += len(
            sent
        )  # before the last byte goes out: the client may look as soon as it has it
        self.wfile.write(sent)
        if len(sent) < len(body):
            self.close_connection = True
            if self.server.reset:  # closing with no time to linger sends RST instead of FIN
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.status, self.location = b"", 200, ""
        self.can_resume, self.drop_after, self.reset, self.range_error, self.stall = (
            True,
            None,
            False,
            0,
            False,
        )
        self.ranges_asked, self.served, self.done = [], 0, threading.Event()

    def url(self, name):
        return f"http://127.0.0.1:{self.server_port}/some/where/{name}?download=1"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.done.set()
        running.shutdown()
        thread.join()


def packed(suffix, files=None):
    """An archive's bytes. Random content, so that compression does not make it tiny."""
    files = (
        FILES | {"noise.bin": np.random.default_rng(0).bytes(300_000)} if files is None else files
    )
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w" if suffix == ".tar" else "w:gz") as file:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return out.getvalue()


def digest(content, algorithm="sha256"):
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"


def tree(root):
    """Every path below a folder, hidden ones too."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def get(server, target, name="Task.tar", **kwargs):
    return download(server.url(name), digest(GOOD), target, **kwargs)


def refused(server, target, match, url=None, name="Task.tar"):
    """The one sentence that a failure must end in."""
    with pytest.raises(UserError, match=match) as caught:
        download(url or server.url(name), digest(GOOD), target)
    assert "\n" not in str(caught.value)
    return str(caught.value)


GOOD = packed(".tar")
HALF = len(GOOD) // 2


def is_complete(target):
    return tree(target) == {f"Task/{n}": c for n, c in FILES.items()} | {
        "Task/noise.bin": np.random.default_rng(0).bytes(300_000)
    }


# What should happen
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_archive_is_fetched_and_unpacked(server, tmp_path, suffix, algorithm):
    server.content, target = packed(suffix), tmp_path / "new" / "data"
    folder = download(server.url(f"Task{suffix}"), digest(server.content, algorithm), target)
    assert folder == target / "Task"
    assert is_complete(target)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_top_folder_of_the_same_name_is_not_doubled_and_others_stay(server, tmp_path, suffix):
    for top, expected in {"Task": "Task/a", "training": "Task/training/a"}.items():
        junk = {f"._{top}": b"mac", f"{top}/._a": b"mac", f"__MACOSX/{top}/a": b"mac"}
        server.content = packed(suffix, {f"{top}/a": b"1"} | junk)
        download(server.url(f"Task{suffix}"), digest(server.content), tmp_path / top)
        assert tree(tmp_path / top) == {expected: b"1"}


def test_what_is_there_is_not_fetched_again(server, tmp_path):
    server.content = GOOD
    get(server, tmp_path)
    (tmp_path / "Task" / "dataset.json").write_text("mine now")
    assert get(server, tmp_path) == tmp_path / "Task"
    assert len(server.ranges_asked) == 1
    assert (tmp_path / "Task" / "dataset.json").read_text() == "mine now"


def test_progress_is_told(server, tmp_path):
    server.content, server.drop_after, told = GOOD, HALF, []
    for _ in range(2):
        with contextlib.suppress(UserError):
            get(server, tmp_path, progress=lambda *now: told.append(now))
        server.drop_after = None
    assert [told[0], told[-1]] == [(0, len(GOOD)), (len(GOOD), len(GOOD))]
    assert told == sorted(told)
    assert told.count((HALF, len(GOOD))) == 2  # where the first ended and the second began


def test_an_archive_put_there_by_hand_is_used_and_kept(server, tmp_path):
    (tmp_path / "Task.tar").write_bytes(GOOD)
    get(server, tmp_path)
    assert not server.ranges_asked
    assert (tmp_path / "Task.tar").read_bytes() == GOOD
    assert (tmp_path / "Task" / "dataset.json").exists()


def test_a_damaged_archive_put_there_by_hand_is_named_and_kept(server, tmp_path):
    (tmp_path / "Task.tar").write_bytes(GOOD[:-1])
    assert "delete it and run again" in refused(
        server, tmp_path, "Task.tar is damaged or another file"
    )
    assert tree(tmp_path) == {"Task.tar": GOOD[:-1]}


# Resuming
# ------------------------------------------------------------------------------


def test_a_dropped_download_goes_on_where_it_stopped(server, tmp_path):
    server.content, server.drop_after = GOOD, HALF
    message = refused(
        server, tmp_path, f"lost after {HALF} of {len(GOOD)} bytes; run again to resume"
    )
    assert str(tmp_path / "Task.tar") in message
    assert tree(tmp_path) == {"Task.tar.part": GOOD[:HALF]}
    server.drop_after = None
    get(server, tmp_path)
    assert is_complete(tmp_path)
    assert server.ranges_asked == [None, f"bytes={HALF}-"]
    assert server.served == len(GOOD)  # no byte twice


def test_a_reset_connection_is_a_sentence_and_can_be_resumed(server, tmp_path):
    server.content, server.drop_after, server.reset = GOOD, HALF, True
    refused(server, tmp_path, "run again to resume")
    server.drop_after = None
    get(server, tmp_path)
    assert is_complete(tmp_path)


def test_a_server_that_cannot_resume_starts_over(server, tmp_path):
    server.content, server.can_resume = GOOD, False
    (tmp_path / "Task.tar.part").write_bytes(GOOD[:HALF])
    get(server, tmp_path)
    assert is_complete(tmp_path)
    assert server.served == len(GOOD)


@pytest.mark.parametrize("extra", [0, 10])
def test_more_than_the_server_has_starts_over(server, tmp_path, extra):
    server.content = GOOD
    (tmp_path / "Task.tar.part").write_bytes(b"x" * (len(GOOD) + extra))
    get(server, tmp_path)
    assert is_complete(tmp_path)
    assert len(server.ranges_asked) == 2


def test_an_answer_that_starts_elsewhere_starts_over(server, tmp_path):
    server.content, server.range_error = GOOD, 3
    (tmp_path / "Task.tar.part").write_bytes(GOOD[:HALF])
    get(server, tmp_path)
    assert is_complete(tmp_path)
    assert server.ranges_asked[-1] is None


def test_a_whole_download_is_not_asked_for_again(server, tmp_path):
    (tmp_path / "Task.tar.part").write_bytes(GOOD)
    get(server, tmp_path)
    assert is_complete(tmp_path)
    assert not server.ranges_asked


def test_damaged_content_is_removed(server, tmp_path):
    server.content = b"x" + GOOD[1:]
    message = refused(server, tmp_path, "was damaged .* and removed; run again")
    assert str(tmp_path / "Task.tar") in message
    assert tree(tmp_path) == {}
    server.content = GOOD
    get(server, tmp_path)
    assert is_complete(tmp_path)


# Networks that fail
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 404, 500])
def test_an_http_error_is_a_sentence(server, tmp_path, status):
    server.status = status
    message = refused(
        server,
        tmp_path,
        f"Task.tar.download=1 answered {status} .*; run again later, or download http",
    )
    assert str(tmp_path / "Task.tar") in message


def test_an_http_error_keeps_what_was_fetched(server, tmp_path):
    (tmp_path / "Task.tar.part").write_bytes(GOOD[:HALF])
    server.status = 503
    refused(server, tmp_path, "answered 503")
    assert tree(tmp_path) == {"Task.tar.part": GOOD[:HALF]}


def test_a_refused_connection_is_a_sentence(server, tmp_path, unused_port):
    url = f"http://127.0.0.1:{unused_port}/Task.tar"
    message = refused(
        server, tmp_path, "the connection to 127.0.0.1 failed .*efused.*; run again to resume", url
    )
    assert f"download {url} by hand to {tmp_path / 'Task.tar'}" in message


def test_an_unknown_host_is_a_sentence(server, tmp_path, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    refused(
        server,
        tmp_path,
        "the connection to data.invalid failed .*not known.*; run again",
        "https://data.invalid/Task.tar",
    )


def test_a_silent_server_is_a_sentence(server, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{MODULE}.TIMEOUT", 0.1)
    server.stall = True
    refused(server, tmp_path, "failed .*timed out.*; run again to resume")


def test_a_redirection_does_not_lead_to_a_file_of_this_computer(server, tmp_path):
    server.status, server.location = 302, "file:///etc/passwd"
    refused(server, tmp_path, "answered 302")


# Archives that are not what they should be
# ------------------------------------------------------------------------------


def member(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


BAD_TARS = {
    "parent": [member("../evil")],
    "hidden parent": [member("a/../../evil")],
    "absolute": [member("/tmp/segcal-evil")],
    "backslashes": [member("..\\evil")],
    "drive": [member("C:\\evil")],
    "folder": [member("../evil", tarfile.DIRTYPE)],
    "symlink": [member("link", tarfile.SYMTYPE, "../../evil"), member("link/file")],
    "absolute symlink": [member("link", tarfile.SYMTYPE, "/etc/passwd")],
    "chain": [
        member("a/b/c", tarfile.SYMTYPE, "../.."),
        member("d", tarfile.SYMTYPE, "a/b/c/../.."),
        member("d/evil"),
    ],
    "hardlink": [member("link", tarfile.LNKTYPE, "../outside.txt")],
    "device": [member("null", tarfile.CHRTYPE)],
    "disk": [member("sda", tarfile.BLKTYPE)],
    "pipe": [member("pipe", tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("members", BAD_TARS.values(), ids=BAD_TARS.keys())
def test_a_tar_that_gets_out_is_refused_whole(server, tmp_path, members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for info in (member("harmless"), *members):
            file.addfile(info)
    content, name = out.getvalue(), "Task.tar"
    (tmp_path / "outside.txt").write_text("mine")
    server.content, target = content, tmp_path / "data"
    with pytest.raises(UserError, match=f"{name}.part is unsafe: .*; nothing was extracted"):
        download(server.url(name), digest(content), target)
    assert tree(tmp_path) == {"outside.txt": b"mine", f"data/{name}.part": content}
    assert not [*target.glob(".*")]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "content", [b"<html>sign in</html>", b" ", packed(".tar.gz")[:5000], packed(".tar", {})]
)
def test_what_is_no_archive_is_a_sentence(server, tmp_path, suffix, content):
    server.content = content
    with pytest.raises(UserError, match=r"is not a readable archive .*; nothing was extracted"):
        download(server.url(f"Task{suffix}"), digest(server.content), tmp_path)
    assert not (tmp_path / "Task").exists()


def test_permissions_and_owners_are_left_behind(server, tmp_path):
    info, out = member("tool"), io.BytesIO()
    info.mode, info.uid = 0o6777, 12345
    with tarfile.open(fileobj=out, mode="w") as file:
        file.addfile(info)
    server.content = out.getvalue()
    made = (download(server.url("Task.tar"), digest(server.content), tmp_path) / "tool").stat()
    assert made.st_mode & 0o7111 == 0
    assert made.st_uid != 12345


# Disks that fail
# ------------------------------------------------------------------------------


def test_unpacking_is_whole_or_not_at_all(server, tmp_path, monkeypatch):
    server.content, copied = GOOD, []

    def interrupted(*_):
        copied.append(1)
        if len(copied) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", interrupted)
        with pytest.raises(KeyboardInterrupt):
            get(server, tmp_path)
    assert (tmp_path / "Task.tar.part").read_bytes() == GOOD
    assert not (tmp_path / "Task").exists()
    get(server, tmp_path)
    assert is_complete(tmp_path)
    assert len(server.ranges_asked) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_while_unpacking_is_a_sentence(server, tmp_path, monkeypatch, number):
    def full(*_):
        raise OSError(number, "full")

    server.content = GOOD
    monkeypatch.setattr("shutil.copyfileobj", full)
    refused(
        server,
        tmp_path,
        "cannot write to .*: full; make room or choose another folder",
    )
    assert tree(tmp_path) == {"Task.tar.part": GOOD}


def test_a_file_that_cannot_grow_is_a_sentence_and_goes_on_later(server, tmp_path):
    server.content = GOOD
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        refused(
            server,
            tmp_path,
            "cannot write to .*too large; make room or choose another folder",
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert tree(tmp_path) == {"Task.tar.part": GOOD[:100_000]}
    get(server, tmp_path)
    assert is_complete(tmp_path)
    assert server.ranges_asked == [None, "bytes=100000-"]


def test_a_folder_that_cannot_be_made_is_a_sentence(server, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    refused(
        server,
        tmp_path / "file" / "data",
        "cannot write to .*file/data: .*; make room or choose another folder",
    )

    def read_only(self, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", read_only)
    refused(server, tmp_path / "data", "cannot write to .*data: Read-only file system; make room")
    assert not server.ranges_asked
