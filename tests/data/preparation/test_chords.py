"""What happens between reading and encoding: the source of chords, and played rhythms."""

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from musicgen.data.preparation import encoding
from musicgen.midi import Score, Track, notes_from, write
from musicgen.package_data import CONF
from musicgen.tokenization import REMI, Groove2Groove
from tests.data.builders import MidiFolder, encoded_corpus


@pytest.fixture
def prepare(tmp_path):
    """Encode a file of G, then C, without chord markers."""
    chords = [(0, 43, 59, 62, 67), (1920, 36, 60, 64, 67)]
    notes = notes_from([(at, 1920, p, 64) for at, *pitches in chords for p in pitches])
    write(Score(480, [Track("Piano", notes=notes)]), tmp_path / "midi/plain.mid")

    def make(source, tokenizer=None):
        corpus, cache_dir = MidiFolder(tmp_path / "midi"), tmp_path / "cache"
        return encoded_corpus(corpus, tokenizer or REMI(), cache_dir, chords=source).cache

    return make


def test_chords_come_from_the_named_source(prepare):
    for source, expected in ("auto", ["Chord_G_M", "Chord_C_M"]), ("markers", []):
        tokens = [REMI().vocabulary.token(int(token)) for token in prepare(source)[0]]
        assert [token for token in tokens if token.startswith("Chord_")] == expected


def test_chords_are_not_recognised_for_tokenizers_without_them(prepare, monkeypatch):
    monkeypatch.setattr(encoding, "with_chords", None)  # a call would be reported as a bug
    for tokenizer in (REMI(chords=False), Groove2Groove()):
        assert len(prepare("auto", tokenizer)) == 1
        assert prepare("auto", tokenizer).folder == prepare("markers", tokenizer).folder


def test_training_data_are_brought_in_time(tmp_path):
    """143 of 480 ticks is played for a sixteenth; a tokenizer alone reads the nearest twelfth."""
    songs = instantiate(OmegaConf.load(CONF / "tokenizer/songs.yaml"), _convert_="all")
    rows = [(480 * beat + 143, 31, 60, 80) for beat in range(4)]
    score = Score(480, [Track("Piano", notes=notes_from(rows))])
    write(score, tmp_path / "midi/played.mid")
    cache = encoded_corpus(MidiFolder(tmp_path / "midi"), songs, tmp_path / "cache").cache
    onsets = songs.decode(cache[0]).notes["onset"]
    assert onsets.tolist() == [480 * beat + 120 for beat in range(4)]
    assert songs.decode(songs.encode(score)).notes["onset"][0] == 160
