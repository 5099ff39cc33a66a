"""The source of chords, between reading and encoding."""

import subprocess
import sys

import pytest

from musicgen.data.corpora import MidiFolder
from musicgen.data.preparation import PreparationRequest, encoding, prepare_corpus
from musicgen.midi import Marker, Score, Track, notes_from, write
from musicgen.tokenization import REMI, Groove2Groove

CHORDS = [(0, 43, 59, 62), (1920, 36, 60, 64)]  # G, then C


def prepare(root, tokenizer=None, **settings):
    return prepare_corpus(
        PreparationRequest(
            MidiFolder(root), tokenizer or REMI(), root.parent / "cache", (0.05, 0.05), **settings
        )
    )


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


def test_the_cache_is_the_same_in_every_process(root):
    code = (
        "import sys; from pathlib import Path; from musicgen.data.corpora import MidiFolder; "
        "from musicgen.data.preparation import PreparationRequest, prepare_corpus; "
        "from musicgen.tokenization import REMI; root = Path(sys.argv[1]); "
        "print(prepare_corpus(PreparationRequest(MidiFolder(root), REMI(), root.parent / 'cache', "
        "(0.05, 0.05))).folder)"
    )
    command = [sys.executable, "-c", code, str(root)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == str(prepare(root).folder)
