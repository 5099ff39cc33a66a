"""New songs: key, tempo and first chord, asked for or left to the model."""

import numpy as np
import pytest

from musicgen.midi import KeySignature
from musicgen.tokenization import Songs
from musicgen.tokenization.chords import key_of_chords, parse_progression
from tests.generation.builders import music_model
from tests.tokenizers import frozen_tokenizers

SONGS = Songs(**frozen_tokenizers()["songs"].settings() | {"phrases": True})


@pytest.mark.parametrize(
    ("chords", "key"),
    [
        ("C Am F G", "C major"),
        ("Bb | Gm7 C7 | Fmaj7 | %", "F major"),
        ("Am | Dm | E7 | Am", "A minor"),
        ("Dm7 | G7 | Cmaj7 | N.C.", "C major"),
    ],
)
def test_chords_have_a_key(chords, key):
    assert key_of_chords(parse_progression(chords)).name == key
    assert key_of_chords(parse_progression("N.C.")) is None


def beginnings(**options):
    """What the first bars of new songs by an untrained model have by family, in any order."""
    found = []
    for piece in music_model(SONGS, "auto").generate(bars=2, num_samples=8, **options):
        names = [SONGS.vocabulary.token(token) for token in piece.tokens.tolist()]
        first = {}
        for family, _, value in (name.partition("_") for name in names):
            first.setdefault(family, value)
        assert names[0] == "Bar_4/4"
        assert piece.score.tempos["bpm"][0] == options.get("tempo", int(first.get("Tempo", 120)))
        found.append((piece, names, first))
    return found


def test_the_model_chooses_the_key_of_a_song_at_a_tempo():
    found = beginnings(tempo=90)
    assert {first["Tempo"] for *_, first in found} == {"90"}
    assert len({first["Key"] for *_, first in found}) > 2
    for _, names, _ in found:
        header = [name.partition("_")[0] for name in names[1:4]]
        assert header[: header.index("Tempo")] in (["Key"], ["Left", "Key"])


@pytest.mark.parametrize("options", [{"key": "Em"}, {"key": "Em", "tempo": 71}])
def test_a_song_in_a_key_begins_on_its_chord_at_a_tempo_of_the_model(options):
    found = beginnings(**options)
    assert {(first["Key"], first["Chord"]) for *_, first in found} == {("1m", "E_m")}
    for _, names, _ in found:
        assert names[names.index("Part_Chords") + 1 :][:2] == ["Beat_0", "Chord_E_m"]
    tempi = {first["Tempo"] for *_, first in found if "Tempo" in first}
    assert tempi == {"71"} if "tempo" in options else len(tempi) > 2


def test_a_song_with_chords_is_in_their_key():
    for piece, _, first in beginnings(chords="Bb F7 Eb Bb"):
        assert first["Key"] == "-2"
        assert first["Chord"] == "A#_M"
        assert piece.score.key_signatures == [KeySignature(0, -2)]


def test_a_continuation_stays_in_its_key():
    model = music_model(SONGS)
    (new,) = model.generate(bars=8, key="Eb", seed=1)
    (piece,) = model.generate(new.score, bars=16, seed=2)
    keys = piece.tokens[np.isin(piece.tokens, SONGS.families["Key"])]
    assert len(keys) == 1
