"""Datasets of muspy: its own classes on folders made here."""

import hashlib
import zipfile

import muspy
import pytest

from musicgen.data.corpora.muspy_dataset import NAMES, archive_of
from musicgen.errors import UserError
from musicgen.midi import Score, Track, dumps, notes_from, write
from musicgen.tokenization import REMI
from tests.data.builders import MuspyDataset, encoded_corpus

TUNES = b"""% two tunes
X:1
T:First
M:4/4
L:1/4
K:C
CDEF|GABc|

X:2
T:Second \xe9
M:4/4
L:1/4
K:G
GABc|d4|
"""
NOTES = notes_from([(i * 100, 100, 60 + i, 64) for i in range(8)])
SONG = Score(100, [Track("Soprano", notes=NOTES)])


def test_names_are_those_of_muspy_and_with_a_licence_can_be_downloaded():
    found = {muspy.get_dataset(name) for name in NAMES}
    assert found == set(muspy.list_datasets()) - {muspy.Music21Dataset}  # data=music21_corpus
    licensed = ["emopia", "lmd", "lmd-aligned", "lmd-matched"]
    licensed += ["maestro", "maestro-v1", "maestro-v2"]
    for name in licensed:
        archive = archive_of(name)
        assert archive.sha256 or archive.url.startswith("https://zenodo.org/")
        assert "Creative Commons" in archive.licence
    for name in set(NAMES) - set(licensed):
        with pytest.raises(UserError, match="yourself if its terms allow it"):
            archive_of(name)


def test_files_are_read_by_muspys_class(tmp_path):
    for part in ("train", "test"):
        write(SONG, tmp_path / "jsb" / part / "1.mid")
    data = MuspyDataset(name="jsb", root=tmp_path / "jsb")
    pieces = data.pieces()
    assert [(p.name, p.group, p.split) for p in pieces] == [
        (name, name, None) for name in ("test/1.mid", "train/1.mid")
    ]
    score = data.read(pieces[0].path)
    assert score.ticks_per_beat == 120  # this class knows that the files' own 100 is wrong
    assert score.tracks[0].notes["pitch"].tolist() == list(range(60, 68))


def test_preparation_end_to_end(tmp_path):
    def prepare(name):
        corpus = MuspyDataset(name=name, root=tmp_path / "nes")
        return encoded_corpus(corpus, REMI(), tmp_path / "cache").cache

    for i in range(4):
        write(SONG, tmp_path / "nes" / f"{i}.mid")
    (tmp_path / "nes" / "4.mid").write_text("<html>")
    cache = prepare("nes")
    assert len(cache) == 4
    report = (cache.folder / "report.csv").read_text()
    assert "4.mid,False" in report
    assert "muspy cannot read it" in report
    assert prepare("lmd").folder != cache.folder


def test_tunes_of_one_abc_file_are_pieces(tmp_path):
    (tmp_path / "nmd" / "old").mkdir(parents=True)
    (tmp_path / "nmd" / "reels.abc").write_bytes(TUNES)
    (tmp_path / "nmd" / "old" / "reels.abc").write_bytes(b"%\n" + TUNES)
    corpus = MuspyDataset(name="nmd", root=tmp_path / "nmd")
    pieces = corpus.pieces()
    assert [p.name for p in pieces] == [
        *("old/reels-0001.abc", "old/reels-0002.abc", "reels-0001.abc", "reels-0002.abc")
    ]
    first, second = (p.path.read_text(encoding="utf-8") for p in pieces[2:])
    assert first.startswith("X:1\nT:First")
    assert first.rstrip().endswith("GABc|")
    assert second.startswith("X:2\nT:Second")
    assert second.endswith("GABc|d4|\n")
    written = pieces[0].path.stat().st_mtime_ns
    assert corpus.pieces() == pieces
    assert pieces[0].path.stat().st_mtime_ns == written


def test_download(tmp_path, monkeypatch):
    published = tmp_path / "published.zip"
    with zipfile.ZipFile(published, "w") as archive:
        archive.writestr("maestro-v3.0.0/2004/a.midi", dumps(SONG))
    sha256 = hashlib.sha256(published.read_bytes()).hexdigest()
    source = {"filename": "midi.zip", "url": published.as_uri(), "sha256": sha256}
    monkeypatch.setattr(muspy.MAESTRODatasetV3, "_sources", {"maestro": source})
    data = MuspyDataset(name="maestro", root=tmp_path / "maestro", download=True)
    (found,) = data.pieces()
    assert found.name == "2004/a.midi"
    assert data.read(found.path).num_notes == 8
