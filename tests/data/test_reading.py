"""Readers with settings, and chords between reading and encoding."""

import subprocess
import sys

import pytest

from musicgen.data.midi_folder import MidiFolder
from musicgen.errors import UserError
from musicgen.midi import Marker, Score, Track, notes_from, write
from musicgen.tokenization import REMI, Groove2Groove

CHORDS = [(0, 43, 59, 62), (1920, 36, 60, 64)]  # G, then C


def corpus(root, tokenizer=None, **kwargs):
    return MidiFolder(
        root,
        tokenizer=tokenizer or REMI(),
        cache_dir=root.parent / "cache",
        length=16,
        batch_size=1,
        **kwargs,
    )


@pytest.fixture
def root(tmp_path):
    notes = notes_from([(at, 1920, p, 64) for at, *pitches in CHORDS for p in (*pitches, 67)])
    score = Score(480, [Track("Piano", notes=notes)])
    for name in ("plain", "annotated"):
        write(score, tmp_path / "midi" / f"{name}.mid")
        score.markers = [Marker(0, "E_m7")]
    return tmp_path / "midi"


def chords_of(data):
    """The chords in each piece's tokens."""
    vocabulary = data.tokenizer.vocabulary
    found = {}
    for i, name in enumerate(data.cache.names):
        tokens = [vocabulary.token(int(token)) for token in data.cache[i]]
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
    data = corpus(root, chords=source)
    assert chords_of(data) == {"plain.mid": plain, "annotated.mid": annotated}


def test_each_source_has_a_cache_of_its_own(root):
    folders = {corpus(root, chords=s).cache.folder for s in ("auto", "markers", "recognised")}
    assert len(folders) == 3
    assert corpus(root, chords="auto").cache.folder in folders


def test_tokenizers_without_chords_are_spared_the_work(root):
    for tokenizer in (REMI(chords=False), Groove2Groove()):
        data = corpus(root, tokenizer)
        assert data.reader == data.read


def test_a_wrong_source_lists_them(root):
    with pytest.raises(UserError, match=r"data.chords=yes: give one of auto, markers"):
        corpus(root, chords="yes")


def test_the_cache_is_the_same_in_every_process(root):
    code = (
        "import sys; from pathlib import Path; from musicgen.data.midi_folder import MidiFolder; "
        "from musicgen.tokenization import REMI; root = Path(sys.argv[1]); "
        "print(MidiFolder(root, tokenizer=REMI(), cache_dir=root.parent / 'cache', length=16, "
        "batch_size=1).cache.folder)"
    )
    command = [sys.executable, "-c", code, str(root)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[-1] == str(corpus(root).cache.folder)
