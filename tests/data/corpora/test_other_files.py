"""A folder of other MIDI files is refused by every corpus but `MidiFolder`, and left unchanged."""

import pytest

from musicgen.data.corpora import JSBChorales, Pop1K7
from musicgen.errors import UserError
from tests.data.settings import POP909, ComposedCorpus, Groove2GrooveMIDI, MuspyDataset

CORPORA = {
    "composed": ComposedCorpus,
    "pop909": POP909,
    "pop909, downloaded": lambda root: POP909(root, download=True),
    "pop1k7": Pop1K7,
    "jsb_chorales": JSBChorales,
    "groove2groove": Groove2GrooveMIDI,
    "groove2groove by folders": lambda root: Groove2GrooveMIDI(root, split_by="folders"),
    "groove2groove, downloaded": lambda root: Groove2GrooveMIDI(root, download=True),
    "muspy, of MusicXML files": lambda root: MuspyDataset("wikifonia", root),
    "muspy, of ABC files": lambda root: MuspyDataset("nmd", root),
}


@pytest.mark.parametrize("name", CORPORA)
def test_other_midi_files_are_refused_and_left_alone(tmp_path, monkeypatch, name):
    monkeypatch.setattr("musicgen.data.corpora.muspy_dataset._check_music21", lambda name: None)
    root = tmp_path / "my music"
    (root / "album").mkdir(parents=True)
    (root / "album/song.mid").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as refusal:
        CORPORA[name](root).pieces()
    message = str(refusal.value)
    assert message.endswith(f"data=midi_folder 'data.root={root}'")
    assert "\n" not in message
    assert sorted(tmp_path.rglob("*")) == before
