"""Archives from file addresses: verified, and unpacked inside their folder or not at all."""

import hashlib
import io
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from musicgen.data.corpora.download import Archive, download_archive
from musicgen.errors import UserError

FILES = {"set/midi/a.mid": b"aaaa", "set/midi/b.mid": bytes(range(256)) * 999, "set/c.txt": b"c"}


@pytest.fixture
def publish(tmp_path):
    """`publish("set.zip", files)`: an archive of files' contents; None makes a link to ".."."""

    def make(name, files=FILES, damage=bytes):
        path = tmp_path / "published" / name
        path.parent.mkdir(exist_ok=True)
        if name.endswith("zip"):
            with zipfile.ZipFile(path, "w") as archive:
                for member, content in files.items():
                    archive.writestr(member, content)
        else:
            with tarfile.open(path, "w:gz") as archive:
                for member, content in files.items():
                    info = tarfile.TarInfo(member)
                    info.size = len(content or b"")
                    if content is None:
                        info.type, info.linkname = tarfile.SYMTYPE, ".."
                    archive.addfile(info, io.BytesIO(content))
        path.write_bytes(damage(path.read_bytes()))
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        return Archive(name, path.as_uri(), "a licence", sha256)

    return make


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {f"set/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in files}


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")


@pytest.mark.parametrize("name", ["set.tar.gz", "set.zip"])
def test_an_archive_becomes_a_folder_once(publish, tmp_path, name, capsys):
    archive, folder = publish(name), tmp_path / "data" / "set"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: download_archive(archive, folder), range(4)))
    download_archive(archive, folder)
    assert content(folder) == FILES
    assert capsys.readouterr().err.count("(a licence)") == 1
    download_archive(archive, tmp_path / "other" / "part", only="*/midi/*")
    assert sorted(content(tmp_path / "other" / "part")) == ["set/midi/a.mid", "set/midi/b.mid"]
    assert visible(tmp_path / "data") == ["set"]


def full_disk(*args, **kwargs):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("reason", "url"),
    [
        ("refused", "http://127.0.0.1:1/a.zip"),
        ("No such file", "file:///a.zip"),
        ("No space left", "file:///a.zip"),
        ("invalid hash value .* got", None),
    ],
)
def test_the_error_of_a_failed_download_is_one_line(publish, tmp_path, monkeypatch, reason, url):
    archive = publish("a.zip")._replace(sha256="0" * 64)
    if reason == "No space left":
        monkeypatch.setattr(torch.hub, "download_url_to_file", full_disk)
    with pytest.raises(UserError, match=f"{reason}.*; start again, or download it with a") as error:
        download_archive(archive._replace(url=url or archive.url), tmp_path / "data" / "set")
    assert "\n" not in str(error.value)
    assert visible(tmp_path / "data") == []


@pytest.mark.parametrize("name", ["set.tar.gz", "set.zip"])
@pytest.mark.parametrize("damage", [lambda data: data[:-1000], lambda data: b"<html>"])
def test_a_broken_archive_leaves_nothing_unpacked(publish, tmp_path, name, damage):
    archive = publish(name, damage=damage)
    with pytest.raises(UserError, match=f"{name}: cannot be unpacked"):
        download_archive(archive, tmp_path / "set")
    assert visible(tmp_path) == ["published"]


@pytest.mark.parametrize("path", ["../escaped.mid", "set/../../escaped.mid", "up/escaped.mid"])
def test_nothing_is_written_outside_of_the_folder(publish, tmp_path, path):
    folder = tmp_path / "inside" / "set"
    files = {"set/a.mid": b"a", "up": None, path: b"b"}
    if path[:2] == "up":
        download_archive(publish("set.tar.gz", files), folder)  # without the link
        assert not any(found.is_symlink() for found in folder.rglob("*"))
    else:
        with pytest.raises(UserError, match="outside the destination"):
            download_archive(publish("set.tar.gz", files), folder)
        del files["up"]
        download_archive(publish("set.zip", files), folder)  # with harmless names
    assert all(found.is_relative_to(folder) for found in tmp_path.rglob("escaped*"))
