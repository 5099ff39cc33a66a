"""The source of chords, between reading and encoding."""

import pytest

from musicgen.data.preparation import encoding
from musicgen.midi import Marker, Score, Track, notes_from, write
from musicgen.tokenization import REMI, Groove2Groove
from tests.data.builders import MidiFolder, encoded_corpus

CHORDS = [(0, 43, 59, 62), (1920, 36, 60, 64)]  # G, then C


@pytest.fixture
def prepare(tmp_path):
    """Encode a file without chord markers, and one with them."""
    notes = notes_from([(at, 1920, p, 64) for at, *pitches in CHORDS for p in (*pitches, 67)])
    score = Score(480, [Track("Piano", notes=notes)])
    for name in ("plain", "annotated"):
        write(score, tmp_path / "midi" / f"{name}.mid")
        score.markers = [Marker(0, "E_m7")]

    def make(source, tokenizer=None):
        corpus, cache_dir = MidiFolder(tmp_path / "midi"), tmp_path / "cache"
        return encoded_corpus(corpus, tokenizer or REMI(), cache_dir, chords=source).cache

    return make


@pytest.mark.parametrize(
    ("source", "plain", "annotated"),
    [
        ("auto", ["G_M", "C_M"], ["E_m7"]),
        ("markers", [], ["E_m7"]),
        ("recognised", ["G_M", "C_M"], ["G_M", "C_M"]),
        ("none", [], []),
    ],
)
def test_chords_come_from_the_named_source(prepare, source, plain, annotated):
    cache = prepare(source)
    assert cache.names == ["annotated.mid", "plain.mid"]
    for piece, expected in enumerate((annotated, plain)):
        tokens = [REMI().vocabulary.token(int(token)) for token in cache[piece]]
        assert [t.removeprefix("Chord_") for t in tokens if t.startswith("Chord_")] == expected
    assert prepare("auto" if source == "none" else "none").folder != cache.folder


def test_chords_are_not_recognised_for_tokenizers_without_them(prepare, monkeypatch):
    monkeypatch.setattr(encoding, "with_chords", None)  # a call would be reported as a bug
    for tokenizer in (REMI(chords=False), Groove2Groove()):
        assert len(prepare("auto", tokenizer)) == 2
        assert prepare("auto", tokenizer).folder == prepare("markers", tokenizer).folder
