"""A start finds its cache without listing the corpus or reading its table of pieces."""

import os

import pytest

from musicgen.data.preparation import Shard, starts
from musicgen.data.preparation.cache import INDEX, PIECES
from musicgen.errors import UserError
from musicgen.midi import write
from musicgen.tokenization import REMI
from tests.data.listed import melody
from tests.data.settings import MidiFolder, encoded_corpus

NUM_PIECES = 8


@pytest.fixture
def root(tmp_path):
    for i in range(NUM_PIECES):
        write(melody(i, 10), tmp_path / "midi" / str(i % 2) / f"{i}.mid")
    age(tmp_path / "midi")
    return tmp_path / "midi"


def age(root):
    """Make the folders a minute old: new ones may still change."""
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        changed = folder.stat().st_mtime - 60
        os.utime(folder, (changed, changed))


def opened(root, **settings):
    return encoded_corpus(MidiFolder(root), REMI(), root.parent / "cache", **settings)


@pytest.fixture
def listings(monkeypatch):
    """Count how often the corpus is listed."""
    counted = []
    listed = MidiFolder.made.pieces
    monkeypatch.setattr(
        MidiFolder.made, "pieces", lambda corpus: counted.append(corpus) or listed(corpus)
    )
    return counted


def test_an_unchanged_corpus_is_not_listed(root, listings):
    first = opened(root).cache
    again = opened(root).cache
    assert (again.folder, len(listings)) == (first.folder, 1)
    assert opened(root).find_cache().folder == first.folder
    assert len(listings) == 1
    opened(root).prepare_shard(Shard())
    assert len(listings) == 2, "musicgen-prepare always lists"


@pytest.mark.parametrize("change", ["add", "remove", "rename", "replace", "new folder"])
def test_a_changed_corpus_is_listed(root, listings, change):
    first = opened(root).cache
    path = root / "1" / "7.mid"
    if change == "add":
        write(melody(99), root / "0" / "new.mid")
    elif change == "new folder":
        write(melody(99), root / "2" / "3" / "new.mid")
    elif change == "remove":
        path.unlink()
    elif change == "rename":
        path.rename(path.with_name("other.mid"))
    else:
        path.write_bytes((root / "0" / "0.mid").read_bytes())
    cache = opened(root).cache
    assert len(listings) > 1
    assert cache.folder != first.folder
    assert len(cache) == NUM_PIECES + change.count("add") + change.count("new") - (
        change == "remove"
    )


def test_other_settings_of_the_corpus_are_another_start(root, listings):
    first = opened(root, val_fraction=0.3, test_fraction=0.3).cache
    assert opened(root, val_fraction=0.3, test_fraction=0.1).cache.folder != first.folder
    grouped = encoded_corpus(
        MidiFolder(root, group="^([^/]+)/"),
        REMI(),
        root.parent / "cache",
        val_fraction=0.3,
        test_fraction=0.3,
    )
    assert grouped.cache.folder != first.folder
    assert len(listings) > 2


def test_a_large_corpus_is_sampled(root, listings, monkeypatch):
    monkeypatch.setattr(starts, "MAX_PIECES", 2)
    first = opened(root).cache
    names = first.names
    inside, outside = root / names[0], root / names[1]
    outside.write_bytes(inside.read_bytes())
    assert opened(root).cache.folder == first.folder
    assert len(listings) == 1, "a start looks at a sample"
    second = opened(root).prepare_shard(Shard())
    assert second.folder != first.folder, "musicgen-prepare looks at all files"
    assert opened(root).cache.folder == second.folder
    inside.write_bytes((root / names[2]).read_bytes())
    assert opened(root).cache.folder not in (first.folder, second.folder)


def test_a_folder_that_has_just_changed_is_listed_again(root, listings):
    write(melody(99), root / "0" / "new.mid")
    folder = opened(root).cache.folder
    assert opened(root).cache.folder == folder
    assert len(listings) > 1


def test_training_reads_no_names(root):
    folder = opened(root).cache.folder
    (folder / PIECES).unlink()
    cache = opened(root).cache
    assert len(cache) == NUM_PIECES
    assert sum(len(cache.pieces(split)) for split in ("train", "val", "test")) == NUM_PIECES
    assert all(len(cache[i]) == cache.lengths[i] for i in range(NUM_PIECES))


def test_a_damaged_start_is_written_again(root, listings):
    folder = opened(root).cache.folder
    (start,) = folder.parent.glob("starts/*.json")
    whole = start.read_bytes()
    for damaged in (whole[:-9], b"{}", whole.replace(b"folders", b"fold\xe5rs"), b"\xff" + whole):
        start.write_bytes(damaged)
        listings.clear()
        assert opened(root).cache.folder == folder
        assert (len(listings), start.read_bytes()) == (1, whole)


def test_a_damaged_index_is_named(root):
    index = opened(root).cache.folder / INDEX
    index.write_bytes(index.read_bytes().replace(b"fortran", b"f\xffrtran"))
    with pytest.raises(UserError, match=r"index\.npy: damaged; remove .*, it is made again"):
        len(opened(root).cache)
