"""Datasets of muspy: its own classes on folders made here."""

import hashlib
import io
import zipfile

import muspy
import pytest

from musicgen.data.corpora.muspy_dataset import NAMES, archive_of
from musicgen.errors import UserError
from musicgen.midi import Score, Track, dumps, notes_from, write
from musicgen.tokenization import REMI
from tests.data.settings import MuspyDataset, encoded_corpus

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


def piece(ticks_per_beat=100):
    notes = notes_from([(i * ticks_per_beat, ticks_per_beat, 60 + i, 64) for i in range(8)])
    return Score(ticks_per_beat, [Track("Soprano", notes=notes)])


def prepare(name, root):
    corpus = MuspyDataset(name, root)
    return encoded_corpus(corpus, REMI(), root.parent / "cache").cache


def test_names_are_those_of_muspy():
    found = {muspy.get_dataset(name) for name in NAMES}
    assert found == set(muspy.list_datasets()) - {muspy.Music21Dataset}  # data=music21_corpus


def test_files_are_read_by_muspys_class(tmp_path):
    for part in ("train", "test"):
        write(piece(), tmp_path / "jsb" / part / "1.mid")
    data = MuspyDataset("jsb", tmp_path / "jsb")
    pieces = data.pieces()
    assert [(p.name, p.group, p.split) for p in pieces] == [
        (name, name, None) for name in ("test/1.mid", "train/1.mid")
    ]
    score = data.read(pieces[0].path)
    assert score.ticks_per_beat == 120  # this class knows that the files' own 100 is wrong
    assert score.tracks[0].notes["pitch"].tolist() == list(range(60, 68))


def test_preparation_end_to_end(tmp_path):
    for i in range(4):
        write(piece(), tmp_path / "nes" / f"{i}.mid")
    (tmp_path / "nes" / "4.mid").write_text("<html>")
    cache = prepare("nes", tmp_path / "nes")
    assert len(cache) == 4
    report = (cache.folder / "report.csv").read_text()
    assert "4.mid,False" in report
    assert "muspy cannot read it" in report
    assert prepare("lmd", tmp_path / "nes").folder != cache.folder


def test_tunes_of_one_abc_file_are_pieces(tmp_path):
    (tmp_path / "nmd" / "old").mkdir(parents=True)
    (tmp_path / "nmd" / "reels.abc").write_bytes(TUNES)
    (tmp_path / "nmd" / "old" / "reels.abc").write_bytes(b"%\n" + TUNES)
    pieces = MuspyDataset("nmd", tmp_path / "nmd").pieces()
    assert [p.name for p in pieces] == [
        *("old/reels-0001.abc", "old/reels-0002.abc", "reels-0001.abc", "reels-0002.abc")
    ]
    first, second = (p.path.read_text(encoding="utf-8") for p in pieces[2:])
    assert first.startswith("X:1\nT:First")
    assert first.rstrip().endswith("GABc|")
    assert second.startswith("X:2\nT:Second")
    assert second.endswith("GABc|d4|\n")
    written = pieces[0].path.stat().st_mtime_ns
    assert MuspyDataset("nmd", tmp_path / "nmd").pieces() == pieces
    assert pieces[0].path.stat().st_mtime_ns == written


def test_datasets_with_a_licence_can_be_downloaded_and_verified():
    licensed = ["emopia", "lmd", "lmd-aligned", "lmd-matched"]
    licensed += ["maestro", "maestro-v1", "maestro-v2"]
    for name in licensed:
        archive = archive_of(name)
        assert archive.sha256 or archive.url.startswith("https://zenodo.org/")
        assert "Creative Commons" in archive.licence
    for name in set(NAMES) - set(licensed):
        with pytest.raises(UserError, match="yourself if its terms allow it"):
            archive_of(name)


def test_download(tmp_path, monkeypatch):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("maestro-v3.0.0/2004/a.midi", dumps(piece()))
    published = tmp_path / "published.zip"
    published.write_bytes(buffer.getvalue())
    source = {
        "filename": "maestro-v3.0.0-midi.zip",
        "url": published.as_uri(),
        "archive": True,
        "size": len(buffer.getvalue()),
        "sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
    }
    monkeypatch.setattr(muspy.MAESTRODatasetV3, "_sources", {"maestro": source})
    data = MuspyDataset("maestro", tmp_path / "maestro", download=True)
    (found,) = data.pieces()
    assert found.name == "2004/a.midi"
    assert data.read(found.path).num_notes == 8
