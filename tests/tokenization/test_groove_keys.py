"""Bands in keys: a token behind the first one."""

from dataclasses import replace

import numpy as np
import pytest

from musicgen.generation.prompt import empty_prompt
from musicgen.midi import KeySignature, Score, Track, notes_from
from musicgen.midi.key import Key, named_key
from musicgen.tokenization import Groove2Groove
from musicgen.tokenization.augmentation import transpose
from musicgen.tokenization.closing import LastTonic
from musicgen.tokenization.groove_grammar import NUM_KEYS, LastChordOfGroove, last_voices
from tests.generation.builders import music_model

KEYED, PLAIN = Groove2Groove(keys=True), Groove2Groove()


def band(key=None):
    """Four bars of A minor in two parts."""
    bass = notes_from([(96 * i, 96, pitch, 80) for i, pitch in enumerate((45, 50, 40, 45))])
    chords = ((57, 60, 64), (57, 62, 65), (56, 59, 64), (57, 60, 64))
    piano = [(96 * i, 96, pitch, 80) for i, chord in enumerate(chords) for pitch in chord]
    drums = notes_from([(24 * i, 6, 36, 80) for i in range(16)])
    tracks = [
        Track("Bass", 33, notes=bass),
        Track("Drums", 0, True, drums),
        Track("Piano", 0, notes=notes_from(piano)),
    ]
    return Score(24, tracks, key_signatures=[key] if key else [])


def names(tokens):
    return [KEYED.vocabulary.token(token) for token in tokens.tolist()]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (None, "Key_0m"),  # from the notes
        (KeySignature(0, 0), "Key_0m"),  # most programs write C major for A minor
        (KeySignature(0, -1), "Key_-1m"),
        (KeySignature(0, 3, True), "Key_3m"),
    ],
)
def test_the_key_of_a_file(key, name):
    tokens = KEYED.encode(band(key))
    assert names(tokens[:2]) == ["BOS", name]
    assert np.delete(tokens, 1).tolist() == PLAIN.encode(band()).tolist()
    decoded = KEYED.decode(tokens)
    assert replace(decoded, key_signatures=[]) == PLAIN.decode(PLAIN.encode(band()))
    (signature,) = decoded.key_signatures
    assert f"Key_{signature.fifths}m" == name


def test_crops_have_the_key_and_move_with_it():
    tokens = KEYED.encode(band())
    starts = KEYED.crops.starts(tokens, bar_length=48)
    assert len(starts) == 4
    for bar in range(4):
        crop = KEYED.crops.crop(tokens, starts[bar:], 100)
        assert names(crop[:2]) == ["BOS", "Key_0m"]
        KEYED.grammar().start(crop[None])
        assert names(transpose(KEYED, crop, 3)[1:2]) == ["Key_-3m"]
    assert names(KEYED.crops.crop(tokens, starts, 1)) == ["BOS"]


def test_a_key_stands_only_behind_the_first_token():
    grammar = KEYED.grammar()
    bos, key = KEYED.vocabulary.id("BOS"), KEYED.vocabulary.id("Key_2")
    keys = [*KEYED.families["Key"]]
    state = grammar.start(np.array([[bos]]))
    assert np.flatnonzero(grammar.allowed(state)[0]).tolist() == keys
    state = grammar.advance(state, [key])
    after = np.flatnonzero(grammar.allowed(state)[0])
    plain = PLAIN.grammar()
    expected = plain.allowed(plain.start(np.array([[bos]])))[0]
    assert after.tolist() == np.flatnonzero(expected).tolist()


@pytest.mark.parametrize("ending", ["open", "close"])
def test_a_new_band_is_in_the_key_that_is_asked_for(ending):
    options = {"key": "F#m", "bars": 4, "ending": ending, "num_samples": 2, "seed": 1}
    signature = named_key("F#m").signature
    assert names(empty_prompt(KEYED, keys=[signature]).tokens) == ["BOS", "Key_3m"]
    for piece in music_model(KEYED).generate(**options):
        assert piece.score.key_signatures == [signature]
        last = [t.notes["pitch"][t.notes["onset"] >= 12 * 480] for t in piece.score.tracks]
        assert {int(pitch) % 12 for pitch in last[0]} == {6}
        KEYED.grammar().start(piece.tokens[None])


@pytest.mark.parametrize(
    ("playing", "root"), [([], None), (["Piano"], "Piano"), (["Piano", "Bass"], "Bass")]
)
def test_the_last_root_is_in_an_instrument_that_has_played(playing, root):
    drums = Track("Drums", is_drum=True, notes=notes_from([(0, 120, 36, 80), (1440, 120, 36, 80)]))
    others = [
        Track(each.name, each.program, notes=notes_from([(0, 120, 50, 80)]))
        for each in KEYED.instruments
        if each.name in playing
    ]
    tokens = KEYED.until_end(KEYED.encode(Score(480, [drums, *others])))
    grammar = KEYED.grammar()
    state = grammar.start(tokens[None])
    rests = [LastTonic(int(state.time[0]), Key(9, False))]
    voices = last_voices(KEYED.instruments, rests, np.ones((1, len(KEYED.instruments)), bool))
    constraint = LastChordOfGroove(grammar, rests, np.array([32]), voices)
    mask = constraint.allowed(state, constraint.start(state, [tokens]))[0]
    assert mask[grammar.eos] == (root is None)  # nothing must begin
    last = np.flatnonzero(mask[grammar.slices["NoteOn"]]).max() // NUM_KEYS
    assert root in (None, KEYED.instruments[last].name)
