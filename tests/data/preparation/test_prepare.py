import multiprocessing
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from musicgen.data.corpora import SPLITS, Piece
from musicgen.data.preparation import prepare as module
from musicgen.data.preparation.splits import split_groups
from musicgen.errors import UserError
from musicgen.files import read_csv
from musicgen.midi import read, write
from musicgen.tokenization import REMI, Groove2Groove
from tests.data.builders import ListedCorpus, encoded_corpus, melody, write_melodies
from tests.data.builders import prepare as prepare_with

prepare = partial(prepare_with, fractions=(0.1, 0.1))


def content(cache):
    """Return all that a cache tells: of each piece, and its report."""
    pieces = [(cache[i].tolist(), cache.crop_starts(i).tolist()) for i in range(len(cache))]
    report = (cache.folder / "report.csv").read_bytes()
    return pieces, cache.lengths.tolist(), cache.bar_lengths, cache.names, cache.splits, report


def size_of_arrays(cache):
    """Return the bytes of the crop starts and tokens of all pieces, padded to four each."""
    return sum(size_of_piece(cache, i) for i in range(len(cache)))


def size_of_piece(cache, piece):
    size = 8 * len(cache.crop_starts(piece)) + 2 * len(cache[piece])
    return size + -size % 4


def finished(folder):
    """Return the caches below a folder."""
    return sorted(path.parent for path in folder.rglob("index.npy"))


@pytest.fixture
def pieces(tmp_path):
    return write_melodies(tmp_path / "midi", 6)


@pytest.fixture
def encode(tmp_path):
    def encode(pieces, tokenizer=None, read=read, **kwargs):
        tokenizer, folder = tokenizer or REMI(), tmp_path / "cache"
        return prepare(pieces, read, tokenizer, folder, **kwargs)

    return encode


def test_the_cache_contains_the_encoded_pieces(pieces, encode):
    for tokenizer in (REMI(), Groove2Groove()):
        cache = encode(pieces, tokenizer)
        assert len(cache) == 6
        assert cache.names == [piece.name for piece in pieces]
        for i, piece in enumerate(pieces):
            score = read(piece.path)
            tokens = cache[i]
            assert tokens.dtype == np.int64
            assert np.array_equal(tokens, tokenizer.encode(score))
            assert cache.bar_lengths[i] == tokenizer.bar_length(score)
        train, val, test = (cache.pieces(split) for split in SPLITS)
        assert sorted(train + val + test) == list(range(6))
        assert (len(train), len(val), len(test)) == (4, 1, 1)


def test_a_cache_is_reused_while_nothing_changes(pieces, encode, monkeypatch, capsys):
    first = encode(pieces)
    assert "6 pieces (4 train, 1 val, 1 test)" in capsys.readouterr().err
    # A second build, or reading a file, would fail.
    monkeypatch.setattr(module, "build_cache", None)
    monkeypatch.setattr(module, "run_limited", None)
    assert encode(pieces, REMI()).folder == first.folder
    assert capsys.readouterr().err == ""


def counting_read(path):
    with (path.parent / "reads.txt").open("a") as file:
        file.write(path.name + "\n")
    return read(path)


def test_identical_files_are_encoded_once(pieces, encode, tmp_path):
    """Also of several names; of the same size alone, each."""
    write(melody(77, 11), pieces[3].path)
    for i, original in ((1, 0), (4, 0), (5, 3)):
        Path(pieces[i].path).write_bytes(Path(pieces[original].path).read_bytes())
    log = tmp_path / "midi" / "reads.txt"
    cache = encode(pieces, read=counting_read)
    assert sorted(log.read_text().split()) == ["0.mid", "2.mid", "3.mid"]
    (file,) = cache.folder.parent.glob("*.bin")
    once = size_of_arrays(cache) - 2 * size_of_piece(cache, 0) - size_of_piece(cache, 3)
    assert file.stat().st_size == once
    assert cache.names == [piece.name for piece in pieces]
    for i, piece in enumerate(pieces):
        assert np.array_equal(cache[i], REMI().encode(read(piece.path)))
    rows = read_csv(cache.folder / "report.csv")
    assert sorted(row["piece"] for row in rows) == sorted(cache.names)


def test_a_file_that_changes_costs_only_itself(pieces, encode, tmp_path):
    log = tmp_path / "midi" / "reads.txt"

    def files_read(pieces):
        log.write_text("")
        cache = encode(pieces, read=counting_read)
        for i, piece in enumerate(pieces):
            assert np.array_equal(cache[i], REMI().encode(read(piece.path)))
        return sorted(log.read_text().split())

    assert files_read(pieces[:5]) == [f"{i}.mid" for i in range(5)]
    assert files_read(pieces) == ["5.mid"], "added"
    assert files_read(pieces[1:]) == [], "taken away"
    write(melody(77, 11), pieces[3].path)  # of the same size
    assert files_read(pieces) == ["3.mid"], "changed"
    moved = tmp_path / "elsewhere"
    (tmp_path / "midi").rename(moved)
    log = moved / "reads.txt"
    moved_pieces = [Piece(p.name, moved / p.path.name, p.group) for p in pieces]
    assert files_read(moved_pieces) == [], "moved as a whole"


def test_a_cache_is_rebuilt_when_anything_changes(pieces, encode):
    caches = [
        encode(pieces),
        encode(pieces, REMI(max_transposition=1)),
        encode(pieces, REMI(chords=False)),
        encode(pieces, Groove2Groove()),
        encode(pieces, fractions=(0.4, 0.1)),
        encode(pieces[:-1]),
        encode([Piece("new name", pieces[0].path, pieces[0].group), *pieces[1:]]),
        encode([Piece(p.name, p.path, "one group") for p in pieces]),
        encode([Piece(p.name, p.path, p.group, "train") for p in pieces]),
        encode(pieces, read=read_transposed),
    ]
    write(melody(99, 20), pieces[2].path)
    caches.append(encode(pieces))
    assert np.array_equal(caches[-1][2], REMI().encode(melody(99, 20)))
    assert len({cache.folder for cache in caches}) == len(caches)


def read_transposed(path):
    score = read(path)
    score.tracks[0].notes["pitch"] += 1
    return score


def test_unusable_pieces_are_reported_and_left_out(pieces, encode, tmp_path, capsys):
    (tmp_path / "cut, short.mid").write_bytes(pieces[0].path.read_bytes()[:-9])
    for name in ("cut, short.mid", "gone.mid"):
        pieces.insert(1, Piece(name, tmp_path / name, name))
    cache = encode(pieces)
    assert cache.names == [f"{i}.mid" for i in range(6)]
    assert np.array_equal(cache[3], REMI().encode(melody(3, 11)))
    rows = read_csv(cache.folder / "report.csv")
    assert [row["piece"] for row in rows] == [piece.name for piece in pieces]
    assert [row["kept"] for row in rows] == ["True", "False", "False", *["True"] * 5]
    assert rows[4]["tokens"] == str(len(cache[2]))
    assert "all 10 notes kept" in rows[4]["notes"]
    shown = " ".join(capsys.readouterr().err.split())
    assert "left out: 2 of 8 pieces gone.mid: [Errno 2] No such file" in shown
    assert "cut, short.mid: cut short" in shown
    assert str(cache.folder / "report.csv") in shown, "a path stays in one piece"


def test_names_that_are_not_utf8(tmp_path, encode):
    name = os.fsdecode(b"Se\xf1or.mid")  # Latin-1, as old archives have them
    path = tmp_path / name
    try:
        write(melody(0), path)
    except OSError:
        pytest.skip("the file system takes UTF-8 only")
    pieces = [Piece(name, path, name), *write_melodies(tmp_path / "midi", 3)]
    cache = encode(pieces)
    assert cache.names[0] == name
    assert b"Se\xf1or.mid,True" in (cache.folder / "report.csv").read_bytes()


def slow_read(path):
    time.sleep(0.05)
    return counting_read(path)


def num_stored(folder):
    """Return how many pieces a preparation has stored."""
    for path in folder.rglob("encoded.db"):
        with closing(sqlite3.connect(path)) as table, suppress(sqlite3.OperationalError):
            return table.execute("SELECT count(*) FROM pieces").fetchone()[0]
    return 0


def test_a_killed_preparation_ends_in_the_same_cache(tmp_path, monkeypatch):
    pieces = write_melodies(tmp_path / "midi", 40)
    expected = prepare(pieces, read, REMI(), tmp_path / "whole", prepare_workers=1)
    monkeypatch.setattr(module, "_COMMIT_SECONDS", 0.01)
    folder, killed_with_pieces = tmp_path / "killed", 0
    for least in (1, 10, 20):
        settings = {"prepare_workers": 2}
        arguments = pieces, slow_read, REMI(), folder
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=prepare, args=arguments, kwargs=settings)
        process.start()
        deadline = time.monotonic() + 30
        while num_stored(folder) < least and time.monotonic() < deadline:
            time.sleep(0.002)
        process.kill()
        process.join()
        killed_with_pieces += 0 < num_stored(folder) < 40
    assert killed_with_pieces > 1
    log = tmp_path / "midi/reads.txt"
    log.write_text("")
    stored = num_stored(folder)
    cache = prepare(pieces, slow_read, REMI(), folder)
    assert len({*log.read_text().split()}) == 40 - stored
    assert content(cache) == content(expected)
    assert finished(folder) == [cache.folder]
    (file,) = folder.rglob("*.bin")
    assert file.stat().st_size == size_of_arrays(cache), "nothing else is left behind"
    assert not list(folder.rglob(".new"))


def encoded_list(pieces, read, cache_dir):
    settings = {"chords": "markers", "val_fraction": 0.1, "test_fraction": 0.1}
    return encoded_corpus(ListedCorpus(pieces, read), REMI(), cache_dir, **settings)


def test_shards_are_joined_without_encoding_anything_again(tmp_path):
    """Also if they run at the same time, one is missing, and their number changes later."""
    pieces = write_melodies(tmp_path / "midi", 12)
    log, folder = tmp_path / "midi/reads.txt", tmp_path / "sharded"
    expected = prepare(pieces, read, REMI(), tmp_path / "whole")

    def run_shard(text):
        encoded_list(pieces, counting_read, folder).encode_shard(text)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run_shard, ["1/3", "3/3"]))
    assert sorted(log.read_text().split()) == sorted(f"{i}.mid" for i in range(12) if i % 3 != 1)
    log.write_text("")
    cache = encoded_list(pieces, counting_read, folder).cache
    assert sorted(log.read_text().split()) == sorted(f"{i}.mid" for i in range(1, 12, 3))
    assert content(cache) == content(expected)
    files = [*cache.folder.parent.glob("*.bin")]
    assert len(files) == 3
    assert sum(file.stat().st_size for file in files) == size_of_arrays(cache), "each token once"
    log.write_text("")
    run_shard("2/5")
    assert log.read_text() == ""


def test_a_join_waits_for_a_shard_that_is_still_encoded(tmp_path, capsys):
    pieces = write_melodies(tmp_path / "midi", 6)
    held = encoded_list(pieces, read, tmp_path / "cache")
    held.encode_shard("1/2")
    (store,) = held.folder.glob("encoded-1-of-2.db")
    with ThreadPoolExecutor(1) as pool:
        with FileLock(store.with_suffix(".lock")):
            joined = pool.submit(lambda: encoded_list(pieces, read, tmp_path / "cache").cache)
            deadline = time.monotonic() + 30
            while "waiting for it" not in capsys.readouterr().err:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert not joined.done()
        assert len(joined.result()) == 6


@pytest.mark.parametrize("text", ["0/4", "5/4", "3", "a/b", "-1/4"])
def test_a_shard_that_is_none_is_refused(text, tmp_path):
    with pytest.raises(UserError, match=f"shard={text}: expected a part and their number"):
        encoded_list([], read, tmp_path).encode_shard(text)


def test_a_cache_whose_tokens_were_removed_is_built_again(pieces, encode):
    cache = encode(pieces)
    for path in [*cache.folder.parent.glob("encoded*")]:
        path.unlink()
    again = encode(pieces)
    assert again.folder == cache.folder
    for i, piece in enumerate(pieces):
        assert np.array_equal(again[i], REMI().encode(read(piece.path)))


def test_a_file_system_without_locks_is_refused(pieces, encode, monkeypatch):
    def no_locks(lock, **settings):
        raise NotImplementedError("a file system without locks")

    monkeypatch.setattr(module.FileLock, "acquire", no_locks)
    with pytest.raises(UserError, match=r"no locks; set loader\.cache_dir"):
        encode(pieces)


def test_the_second_of_two_processes_waits_and_reuses_the_cache(pieces, encode, capsys):
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: encode(pieces, read=slow_read).folder, range(2))
    assert one == other
    shown = capsys.readouterr().err
    assert "another process is working" in shown
    assert shown.count("6 pieces read") == 1


def test_the_cache_is_open_to_others_as_the_umask_has_it(pieces, encode):
    umask = os.umask(0)
    os.umask(umask)
    assert encode(pieces).folder.stat().st_mode & 0o777 == 0o777 & ~umask


def read_folder(path):
    return read(path / "song.mid")


def test_files_in_the_folder_of_a_piece_affect_the_cache(tmp_path, encode):
    write(melody(0), tmp_path / "song" / "song.mid")
    (tmp_path / "song" / "folder").mkdir()
    pieces, folders = [Piece("song", tmp_path / "song", "song")], []
    for chords in ("C", "C", "C D"):
        if not folders or chords != "C":
            (tmp_path / "song" / "chords.txt").write_text(chords)
        folders.append(encode(pieces, read=read_folder).folder)
    assert folders[0] == folders[1] != folders[2]


@pytest.mark.parametrize(
    ("names", "message"),
    [("", "none of 0 pieces"), ("ab", r"none of 2 pieces .*a: not a MIDI file")],
)
def test_a_corpus_without_a_usable_piece_is_refused(tmp_path, encode, names, message):
    for name in names:
        (tmp_path / name).write_text("hello")
    with pytest.raises(UserError, match=message) as caught:
        encode([Piece(name, tmp_path / name, name) for name in names])
    assert len(str(caught.value).splitlines()) == 1
    assert finished(tmp_path / "cache") == []


@pytest.mark.parametrize("seconds", [-1, 1000])  # after each piece, and at the end
def test_a_damaged_store_is_named(pieces, encode, seconds, monkeypatch):
    monkeypatch.setattr(module, "_COMMIT_SECONDS", seconds)
    folder = encode(pieces).folder
    store = folder.parent / "encoded.db"
    content = store.read_bytes()
    for damaged in (b"x" + content[1:], content[:5000] + bytes(len(content) - 5000)):
        store.write_bytes(damaged)
        with pytest.raises(
            UserError, match=r"encoded\.db: damaged; remove it, and it will be created again"
        ):
            encode(pieces[1:])
    store.unlink()
    assert len(encode(pieces)) == len(pieces)


def split(groups, fractions):
    return split_groups([Piece(g, Path(g), g) for g in map(str, groups)], fractions)


def test_a_hash_of_its_group_decides_the_split():
    splits = split(range(4000), (0.1, 0.2))
    assert [splits.count(s) / 4000 for s in SPLITS] == pytest.approx([0.7, 0.1, 0.2], abs=0.02)
    assert split(range(3000), (0.1, 0.2)) == splits[:3000], "others do not matter"
    assert split(range(4000)[::-1], (0.1, 0.2)) == splits[::-1]
    artists = [i % 20 for i in range(200)]
    assert len({*zip(artists, split(artists, (0.1, 0.2)), strict=True)}) == 20


@pytest.mark.parametrize("fractions", [(1e-9, 1e-9), (0.6, 0.3), (0.98, 0.01)])
@pytest.mark.parametrize("num_groups", [0, 2, 3, 11])
def test_each_split_has_a_group_from_three_on(num_groups, fractions):
    splits = split(range(num_groups), fractions)
    assert set(splits) == set(SPLITS) if num_groups > 2 else splits == ["train"] * num_groups


def test_a_group_that_is_moved_leaves_no_split_empty():
    shares = (0.2, 0.2)
    groups = [str(i) for i in range(300)]
    alone = dict(zip(groups, split(groups, shares), strict=True))
    held_out = [group for group in groups if alone[group] != "train"]
    for i in range(0, len(held_out) - 2, 3):
        assert set(split(held_out[i : i + 3], shares)) == set(SPLITS)


def test_a_corpus_own_split_is_kept():
    own = [Piece(split, Path(), split, split) for split in ("test", "train", "val")]
    assert split_groups(own, (0.9, 0.05)) == ["test", "train", "val"]
    mixed = split_groups([*own, *(Piece(name, Path(), name) for name in "abc")], (0.1, 0.1))
    assert mixed[:3] == ["test", "train", "val"]
    assert sorted(mixed[3:]) == ["test", "train", "val"]
