"""Datasets of muspy: its own classes on folders made here."""

import hashlib
import zipfile

import muspy
import pytest

from musicgen.data.corpora.muspy_dataset import NAMES, archive_of
from musicgen.errors import UserError
from musicgen.midi import Score, Track, dumps, notes_from, write
from tests.data.builders import MuspyDataset

NOTES = notes_from([(i * 100, 100, 60 + i, 64) for i in range(8)])
SONG = Score(100, [Track("Soprano", notes=NOTES)])


def test_names_are_those_of_muspy_and_with_a_licence_can_be_downloaded():
    found = {muspy.get_dataset(name) for name in NAMES}
    others = {muspy.Music21Dataset}  # data=music21_corpus
    # As their readers fail with a music21 of version 10 or newer.
    others |= {muspy.EssenFolkSongDatabase, muspy.HaydnOp20Dataset}
    others |= {muspy.NottinghamDatabase}
    assert found == set(muspy.list_datasets()) - others
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


def test_what_muspy_cannot_read_is_left_out(tmp_path):
    (tmp_path / "nes").mkdir()
    (tmp_path / "nes/4.mid").write_text("<html>")
    data, other = (MuspyDataset(name=name, root=tmp_path / "nes") for name in ("nes", "lmd"))
    with pytest.raises(UserError, match="muspy cannot read it"):
        data.read(data.pieces()[0].path)
    assert data.reader_id() != other.reader_id()


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
