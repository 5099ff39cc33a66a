"""The source of chords, between reading and encoding."""

import pytest

from musicgen.data.preparation import encoding
from musicgen.midi import Marker, Score, Track, notes_from, write
from musicgen.tokenization import REMI, Groove2Groove
from tests.data.settings import MidiFolder, encoded_corpus

CHORDS = [(0, 43, 59, 62), (1920, 36, 60, 64)]  # G, then C


def prepare(root, tokenizer=None, **settings):
    cache_dir = root.parent / "cache"
    return encoded_corpus(MidiFolder(root), tokenizer or REMI(), cache_dir, **settings).cache


@pytest.fixture
def root(tmp_path):
    notes = notes_from([(at, 1920, p, 64) for at, *pitches in CHORDS for p in (*pitches, 67)])
    score = Score(480, [Track("Piano", notes=notes)])
    for name in ("plain", "annotated"):
        write(score, tmp_path / "midi" / f"{name}.mid")
        score.markers = [Marker(0, "E_m7")]
    return tmp_path / "midi"


def chords_of(cache):
    """The chords in each piece's tokens."""
    vocabulary = REMI().vocabulary
    found = {}
    for i, name in enumerate(cache.names):
        tokens = [vocabulary.token(int(token)) for token in cache[i]]
        found[name] = [t.removeprefix("Chord_") for t in tokens if t.startswith("Chord_")]
    return found


@pytest.mark.parametrize(
    ("source", "plain", "annotated"),
    [
        ("auto", ["G_M", "C_M"], ["E_m7"]),
        ("markers", [], ["E_m7"]),
        ("recognised", ["G_M", "C_M"], ["G_M", "C_M"]),
        ("none", [], []),
    ],
)
def test_chords_come_from_the_named_source(root, source, plain, annotated):
    assert chords_of(prepare(root, chords=source)) == {
        "plain.mid": plain,
        "annotated.mid": annotated,
    }


def test_each_source_has_its_own_cache(root):
    folders = {prepare(root, chords=s).folder for s in ("auto", "markers", "recognised")}
    assert len(folders) == 3
    assert prepare(root, chords="auto").folder in folders


def test_chords_are_not_recognised_for_tokenizers_without_them(root, monkeypatch):
    monkeypatch.setattr(encoding, "with_chords", None)  # a call would be reported as a bug
    for tokenizer in (REMI(chords=False), Groove2Groove()):
        folders = {prepare(root, tokenizer, chords=s).folder for s in ("auto", "markers")}
        assert len(folders) == 1
        assert len(prepare(root, tokenizer)) == 2
