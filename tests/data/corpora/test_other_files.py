"""A missing corpus says how to get it; a folder of other MIDI files is left unchanged."""

import muspy
import pytest

from musicgen.data.corpora import JSBChorales
from musicgen.data.corpora.pop1k7 import SOURCE
from musicgen.errors import UserError
from tests.data.settings import POP909, ComposedCorpus, Groove2GrooveMIDI, MuspyDataset, Pop1K7


def muspy_dataset(name):
    return lambda root: MuspyDataset(name, root)


MISSING = {
    "pop909": (POP909, ["music-x-lab/POP909-Dataset"]),
    "pop1k7": (Pop1K7, [SOURCE, "midi_analyzed"]),
    "jsb_chorales": (JSBChorales, ["download Jsb16thSeparated.json of https"]),
    "groove2groove": (Groove2GrooveMIDI, ["download=true", "zenodo", "NC"]),
    "muspy, no licence": (muspy_dataset("jsb"), [muspy.get_dataset("jsb").info().homepage]),
    "muspy, with a licence": (muspy_dataset("maestro"), ["download=true"]),
}
CORPORA = {
    "composed": ComposedCorpus,
    "pop909": POP909,
    "pop909, downloaded": lambda root: POP909(root, download=True),
    "pop1k7": Pop1K7,
    "jsb_chorales": JSBChorales,
    "groove2groove": Groove2GrooveMIDI,
    "groove2groove by folders": lambda root: Groove2GrooveMIDI(root, split_by="folders"),
    "groove2groove, downloaded": lambda root: Groove2GrooveMIDI(root, download=True),
    "muspy, of MusicXML files": muspy_dataset("wikifonia"),
    "muspy, of ABC files": muspy_dataset("nmd"),
}


@pytest.mark.parametrize("name", MISSING)
@pytest.mark.parametrize("there", ["nothing", "empty folder", "other files"])
def test_the_error_of_a_missing_corpus_names_its_source_and_folder(tmp_path, name, there):
    corpus, parts = MISSING[name]
    root = tmp_path / "my corpus"
    if there != "nothing":
        root.mkdir()
    if there == "other files":
        (root / "readme.txt").touch()
    with pytest.raises(UserError, match="root=") as error:
        corpus(root).pieces()
    message = str(error.value)
    assert all(part in message for part in (f"data=midi_folder 'data.root={root}'", *parts))
    assert "\n" not in message


@pytest.mark.parametrize("name", CORPORA)
def test_other_midi_files_are_refused_and_left_alone(tmp_path, name):
    root = tmp_path / "my music"
    (root / "album").mkdir(parents=True)
    (root / "album/song.mid").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as refusal:
        CORPORA[name](root).pieces()
    assert str(root) in str(refusal.value)
    assert sorted(tmp_path.rglob("*")) == before
