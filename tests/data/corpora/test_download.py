"""Downloads against a server of our own, which interrupts, lies and refuses as configured."""

import hashlib
import io
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from musicgen.data.corpora import download
from musicgen.data.corpora.download import Archive, download_archive
from musicgen.errors import UserError

FILES = {
    "set/midi/a.mid": b"aaaa",
    "set/midi/b.mid": np.random.default_rng(0).bytes(300_000),
    "set/text/c.txt": b"c",
}


def tar_of(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class Server(ThreadingHTTPServer):
    """Serves `content`; breaks off after so many bytes of each answer in `breaks`."""

    def __init__(self, content):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.breaks = content, []
        self.ranges = True
        self.status = None
        self.asked = []  # the ranges

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/set.tar.gz?download=1"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        status = server.status or (206 if asked and server.ranges else 200)
        body = server.content[start:] if status == 206 else server.content
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status < 300:
            with suppress(OSError):
                self.wfile.write(body[: server.breaks.pop(0)] if server.breaks else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "_PAUSE", 0)
    server = Server(tar_of(FILES))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def published(server, name="set.tar.gz", **kwargs):
    digests = {"sha256": hashlib.sha256(server.content).hexdigest()}
    kwargs = {"digests": digests, "size": len(server.content)} | kwargs
    return Archive(name, server.url, "a licence", **kwargs)


def files_of(folder):
    return {
        "set/" + path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")


def test_an_archive_becomes_a_folder(server, tmp_path, capsys):
    download_archive(published(server), tmp_path / "data" / "set")
    assert files_of(tmp_path / "data" / "set") == FILES
    assert visible(tmp_path / "data") == ["set"]
    assert "(a licence)" in capsys.readouterr().err
    download_archive(published(server), tmp_path / "data" / "set")
    assert server.asked == [None]  # the second time nothing was left to do


def test_only_matching_files_are_unpacked(server, tmp_path):
    for name, content in (("set.tar.gz", tar_of(FILES)), ("set.zip", zip_of(FILES))):
        server.content = content
        download_archive(published(server, name), tmp_path / name[4:], only="*/midi/*")
        assert sorted(files_of(tmp_path / name[4:])) == ["set/midi/a.mid", "set/midi/b.mid"]


@pytest.mark.parametrize(
    ("ranges", "digests", "asked"),
    [
        (True, None, [None, "bytes=100000-", "bytes=150000-"]),
        (False, None, [None, "bytes=100000-", "bytes=50000-"]),
        (True, {}, [None, None, None]),  # the rest may be of another version
    ],
)
def test_an_interrupted_download_continues(server, tmp_path, ranges, digests, asked):
    server.breaks, server.ranges = [100_000, 50_000], ranges
    settings = {} if digests is None else {"digests": digests}
    download_archive(published(server, **settings), tmp_path / "set")
    assert server.asked == asked
    assert files_of(tmp_path / "set") == FILES


def test_an_abandoned_download_is_resumed_at_the_next_start(server, tmp_path):
    server.breaks = [100_000] + [0] * download._ATTEMPTS
    with pytest.raises(UserError, match=r"start again to resume .*set.tar.gz.part"):
        download_archive(published(server), tmp_path / "set")
    assert visible(tmp_path) == ["set.tar.gz.part"]
    server.asked.clear()
    server.breaks.clear()
    download_archive(published(server), tmp_path / "set")
    assert server.asked == ["bytes=100000-"]
    assert files_of(tmp_path / "set") == FILES


@pytest.mark.parametrize("name", ["set.tar.gz.part", "set.tar.gz"])
def test_a_complete_part_or_archive_is_used_without_a_request(server, tmp_path, name):
    (tmp_path / name).write_bytes(server.content)
    download_archive(published(server), tmp_path / "set")
    assert files_of(tmp_path / "set") == FILES
    assert server.asked == []


@pytest.mark.parametrize("by_hand", [False, True])
def test_files_other_than_the_published_one_are_removed(server, tmp_path, by_hand):
    if by_hand:
        (tmp_path / "set.tar.gz").write_bytes(server.content)
    with pytest.raises(UserError, match=r"has the md5 .* instead of 0000"):
        download_archive(published(server, digests={"md5": "0" * 32}), tmp_path / "set")
    assert visible(tmp_path) == []
    assert len(server.asked) == (not by_hand)


@pytest.mark.parametrize("status", [404, 503, None])
def test_the_error_of_a_refused_request_is_one_line(server, tmp_path, status):
    server.status = status
    archive = published(server) if status else Archive("a.zip", "http://127.0.0.1:1/a.zip", "free")
    with pytest.raises(
        UserError, match=f"{status or 'refused'}.*download it with a browser"
    ) as error:
        download_archive(archive, tmp_path / "set")
    assert "\n" not in str(error.value)
    assert len(server.asked) == bool(status)


@pytest.mark.parametrize("name", ["set.tar.gz", "set.zip"])
def test_a_broken_archive_leaves_nothing_unpacked(server, tmp_path, name):
    whole = tar_of(FILES) if name == "set.tar.gz" else zip_of(FILES)
    for content in (whole[:-1000], b"<html>"):
        server.content = content
        with pytest.raises(UserError, match="cannot be unpacked"):
            download_archive(published(server, name), tmp_path / "set")
        assert visible(tmp_path) == [name]
        (tmp_path / name).unlink()


@pytest.mark.parametrize("path", ["../escaped.mid", "set/../../escaped.mid"])
def test_nothing_is_written_outside_of_the_folder(server, tmp_path, path):
    folder = tmp_path / "inside" / "set"
    server.content = tar_of({"set/a.mid": b"a", path: b"b"})
    with pytest.raises(UserError, match="outside the destination"):
        download_archive(published(server), folder)
    server.content = zip_of({"set/a.mid": b"a", path: b"b"})
    download_archive(published(server, "set.zip"), folder)  # with harmless names
    assert not list(tmp_path.glob("escaped*"))
    assert all(found.is_relative_to(folder) for found in tmp_path.rglob("escaped*"))


def tar_of_links(content: bytes) -> bytes:
    """A file behind links whose whole path is too long to be resolved, two folders up."""
    buffer, path, steps = io.BytesIO(), "", "abcdefghijklmnop"
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:

        def add(name: str, kind: bytes, target: str = "") -> None:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)

        for step in steps:
            add(path + "d" * 247, tarfile.DIRTYPE)
            add(path + step, tarfile.SYMTYPE, "d" * 247)
            path += "d" * 247 + "/"
        chain = "/".join([*steps, "l" * 254])
        add(chain, tarfile.SYMTYPE, "../" * len(steps))
        add("up", tarfile.SYMTYPE, f"{chain}/../..")
        member = tarfile.TarInfo("up/escaped.mid")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_links_are_not_unpacked(server, tmp_path):
    folder = tmp_path / "inside" / "set"
    server.content = tar_of_links(b"b")
    download_archive(published(server), folder)
    assert [path.relative_to(folder) for path in tmp_path.rglob("escaped*")] == [
        Path("up/escaped.mid")
    ]
    assert not any(path.is_symlink() for path in folder.rglob("*"))


def test_concurrent_calls_download_once(server, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: download_archive(published(server), tmp_path / "set"), range(4)))
    assert server.asked == [None]
    assert files_of(tmp_path / "set") == FILES
