import pytest

from musicgen.errors import UserError
from musicgen.midi import Score, Track, dumps, notes_from
from musicgen.tokenization import REMI
from tests.data.builders import MidiFolder, encoded_corpus

SONG = dumps(Score(480, [Track("Piano", notes=notes_from([(0, 480, 60, 64)]))]))


@pytest.fixture
def folder(tmp_path):
    """`folder("a.mid", "b/c.mid", group=…)`: a corpus of new files of those names."""

    def make(*names, **kwargs):
        for name in names:
            (tmp_path / "midi" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "midi" / name).write_bytes(SONG)
        return MidiFolder(tmp_path / "midi", **kwargs)

    return make


def test_names_that_musicians_use(folder, tmp_path):
    files = ["My Song (1).mid", "Señor.mid", "UPPER.MID", "a,b.mid", "a&b=c.midi", "x/y z.mid"]
    corpus = folder(*files, "._Señor.mid", "x/._y z.mid", "read me.txt")
    assert [piece.name for piece in corpus.pieces()] == sorted(files)
    assert all(piece.group == piece.name for piece in corpus.pieces())
    assert all(piece.split is None for piece in corpus.pieces())
    assert encoded_corpus(corpus, REMI(), tmp_path / "cache").cache.names == sorted(files)


def test_each_tune_of_a_book_is_a_piece(folder, tmp_path):
    corpus = folder("song.mid", group="^([^/]+)/|.*")
    bars = ("CDEF|", "GABc|", "cBAG|")
    tunes = [f"X:{i}\nM:4/4\nL:1/4\nK:C\n{bar * 4}\n" for i, bar in enumerate(bars)]
    (tmp_path / "midi/train").mkdir()
    (tmp_path / "midi/train/book.abc").write_text("\n".join(tunes))
    pieces = corpus.pieces()
    names = ["train/book.abc/1", "train/book.abc/2", "train/book.abc/3"]
    assert [piece.name for piece in pieces] == ["song.mid", *names]
    assert [piece.split for piece in pieces] == [None, *["train"] * 3]
    cache = encoded_corpus(corpus, REMI(), tmp_path / "cache").cache
    assert cache.names == ["song.mid", *names]
    first = [REMI().decode(cache[i]).notes["pitch"][0] for i in (1, 2, 3)]
    assert first == [60, 67, 72]


def test_split_folders(folder):
    corpus = folder(
        *["train/a.mid", "Valid/b.mid", "validation/c.mid", "val/d.mid", "test/x/e.mid"],
        *["train.mid", "other/test/f.mid"],
    )
    assert {piece.name: piece.split for piece in corpus.pieces()} == {
        "train/a.mid": "train",
        "Valid/b.mid": "val",
        "validation/c.mid": "val",
        "val/d.mid": "val",
        "test/x/e.mid": "test",
        "train.mid": None,
        "other/test/f.mid": None,
    }


def test_groups_by_a_regular_expression(folder):
    files = "Ana/Blues.mid", "Ana/Waltz.mid", "Bob/blues.mid"
    for group in ("^([^/]+)/", "^[^/]+"):
        corpus = folder(*files, group=group)
        assert [piece.group for piece in corpus.pieces()] == ["Ana", "Ana", "Bob"]
    # A group that does not match.
    corpus = folder(*files, group=r"(?i)(blues)?\.mid$")
    assert [piece.group for piece in corpus.pieces()] == ["Blues", ".mid", "blues"]


def test_invalid_settings(folder):
    with pytest.raises(UserError, match=r"matches every path, such as b\.mid"):
        folder("a/x.mid", "b.mid", group="^([^/]+)/").pieces()
    with pytest.raises(UserError, match="no such folder"):
        MidiFolder("gone").pieces()


def test_the_home_folder_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert MidiFolder("~/midi").root == tmp_path / "midi"
    corpus = encoded_corpus(MidiFolder(tmp_path), REMI(), "~/cache")
    assert corpus.folder.parent == tmp_path / "cache"
