import os
import threading

import pytest

from musicgen.errors import UserError
from musicgen.files import atomic_path, read_json, read_plain, write_bytes, write_text


def test_folders_are_made_and_the_content_replaced(tmp_path):
    path = tmp_path / "a" / "b" / "Señor (1).txt"
    write_bytes(path, b"1")
    write_text(str(path), "é\n")
    assert path.read_bytes() == "é\n".encode()
    assert list(path.parent.iterdir()) == [path]


def test_the_temporary_file_lies_beside_the_final_one_and_keeps_the_suffix(tmp_path):
    with atomic_path(tmp_path / "x.npy") as temporary:
        assert temporary.parent == tmp_path
        assert (temporary.suffix, temporary.name[0]) == (".npy", ".")
        assert not (tmp_path / "x.npy").exists()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_older_file(tmp_path, error):
    path = tmp_path / "x.txt"
    write_text(path, "old")

    def fail():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_others_may_read_what_the_umask_allows(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "x", "")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_long_names(tmp_path):
    path = tmp_path / ("é" * 120 + ".mid")  # 244 bytes of the 255 there are
    write_bytes(path, b"x")
    assert path.read_bytes() == b"x"


def test_writers_at_once_leave_one_whole_file(tmp_path):
    path = tmp_path / "x"
    contents = [bytes([i]) * 100_000 for i in range(8)]
    threads = [threading.Thread(target=write_bytes, args=(path, c)) for c in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_plain_files_are_regular_files_of_their_folder(tmp_path):
    mine, elsewhere = tmp_path / "run/x.json", tmp_path / "elsewhere.json"
    write_text(mine, '{"a": 1}')
    write_text(elsewhere, "[]")
    (tmp_path / "run/inner").symlink_to("x.json")
    assert read_json(mine, mine.parent) == read_json(tmp_path / "run/inner", mine.parent)
    (tmp_path / "run/link").symlink_to(elsewhere)
    (tmp_path / "run/folder").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "run/pipe")

    def refused(name, message, **limits):
        with pytest.raises(UserError, match=f"run/{name}: {message}"):
            read_plain(tmp_path / "run" / name, **limits)

    refused("link", "a link out of", folder=mine.parent)
    refused("folder/elsewhere.json", "a link out of", folder=mine.parent)
    refused("pipe", "not a regular file")
    refused("x.json", "8 bytes, of at most 7", most=7)
    refused("missing", "cannot be read")
    assert read_plain(tmp_path / "run/link") == b"[]"
