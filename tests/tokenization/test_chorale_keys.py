"""Chorales in keys: a token behind the first one, which moves no voice from its index."""

from dataclasses import replace

import numpy as np
import pytest

from musicgen.errors import UserError
from musicgen.generation.prompt import empty_prompt
from musicgen.metrics.part_writing import part_writing
from musicgen.midi import KeySignature, Score, Track, notes_from
from musicgen.midi.key import find_key, named_key, pitched_notes
from musicgen.tokenization import Chorale
from musicgen.tokenization.augmentation import transpose
from musicgen.tokenization.chorale_grammar import LEAD
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.vocabulary import within
from musicgen.tokenization.voices import VOICES
from tests.generation.builders import music_model

SETTINGS = {"lead_probability": 0.5, "gap_probability": 0.5}
PLAIN, KEYED = Chorale(**SETTINGS), Chorale(**SETTINGS, keys=True)
COORDINATES = Coordinates(KEYED)
BEAT = 480


def chorale(*chords, key=None):
    """A chorale of chords, half notes each."""
    rows = [
        [(960 * i, 960, chord[voice], 80) for i, chord in enumerate(chords)] for voice in range(4)
    ]
    tracks = [
        Track(name, 52, notes=notes_from(each)) for name, each in zip(VOICES, rows, strict=True)
    ]
    return Score(480, tracks, key_signatures=[key] if key else [])


def sung(score):
    """A chorale as tokens hold it: notes struck again go on."""
    return PLAIN.decode(PLAIN.encode(score))


A_MINOR = ((69, 64, 60, 57), (69, 65, 62, 50), (68, 64, 59, 52), (69, 64, 60, 45))
C_MAJOR = ((72, 67, 64, 48), (72, 69, 65, 53), (71, 67, 62, 55), (72, 67, 64, 48))


def names(tokens):
    return [KEYED.vocabulary.token(token) for token in tokens.tolist()]


def key_of(tokens):
    (found,) = tokens[within(tokens, KEYED.families["Key"])].tolist()
    return KEYED.vocabulary.token(found)


def test_the_key_is_that_of_the_file_and_its_mode_else_that_of_the_notes():
    assert names(KEYED.encode(chorale(*A_MINOR)))[:3] == ["BOS", "Key_0m", "Pitch_69"]
    assert key_of(KEYED.encode(chorale(*C_MAJOR))) == "Key_0"
    assert key_of(KEYED.encode(chorale(*A_MINOR, key=KeySignature(0, 0)))) == "Key_0m"
    assert key_of(KEYED.encode(chorale(*A_MINOR, key=KeySignature(0, -1)))) == "Key_-1m"
    assert key_of(KEYED.encode(chorale(*C_MAJOR, key=KeySignature(0, 0, True)))) == "Key_0m"
    decoded = KEYED.decode(KEYED.encode(chorale(*A_MINOR)))
    assert decoded.key_signatures == [KeySignature(0, 0, True)]
    assert decoded.tracks == sung(chorale(*A_MINOR)).tracks


def test_without_keys_the_tokens_are_as_before_and_with_them_one_is_added():
    plain, keyed = (each.encode(chorale(*A_MINOR)) for each in (PLAIN, KEYED))
    assert np.delete(keyed, 1).tolist() == plain.tolist()
    assert KEYED.vocabulary.names[: len(PLAIN.vocabulary.names)] == PLAIN.vocabulary.names
    assert PLAIN.decode(plain).key_signatures == []
    # Voices and beats stay at their indices, and so do what a model learned of them.
    at, before = (
        Coordinates(x).of(y, ("index", "time")) for x, y in ((KEYED, keyed), (PLAIN, plain))
    )
    assert np.delete(at, 1, axis=0).tolist() == before.tolist()
    assert at[1].tolist() == [0, 0]


@pytest.mark.parametrize("probabilities", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("bar", [0, 2])
def test_crops_have_the_key_in_every_order(probabilities, bar):
    lead, gap = probabilities
    tokenizer = Chorale(**SETTINGS, keys=True)
    tokenizer.lead_probability, tokenizer.gap_probability = lead, gap
    tokens = tokenizer.encode(chorale(*A_MINOR * 6))
    starts = tokenizer.crops.starts(tokens, bar_length=16)
    rng = np.random.default_rng(3)
    for _ in range(8):
        crop = tokenizer.crops.crop(tokens, starts[bar:], 600)
        assert crop[2 : 2 + 200].tolist() == tokens[2 + 64 * bar :][:200].tolist()
        turned = tokenizer.rearrange(crop, rng)
        tokenizer.grammar().start(turned[None])
        first = tokenizer.future_length(turned)
        assert (first > 0) == bool(gap)
        assert key_of(turned[first : first + 2]) == "Key_0m"
        index, time = COORDINATES.of(turned, ("index", "time")).T
        assert index[first : first + 4].tolist() == [0, 0, 1, 2]
        assert time[first:].tolist() == tokenizer.times(turned[first:]).tolist()
        moved = transpose(tokenizer, turned, 3)
        assert key_of(moved[first : first + 2]) == "Key_-3m"
        known = tokenizer.frames(turned)[: 16 if lead else None]
        assert known[:16].tolist() == tokenizer.frames(crop)[:16].tolist()


def test_short_crops_have_at_most_their_length():
    tokens = KEYED.encode(chorale(*A_MINOR))
    starts = KEYED.crops.starts(tokens, bar_length=16)
    assert [names(KEYED.crops.crop(tokens, starts[1:], n)) for n in (1, 2)] == [
        ["BOS"],
        ["BOS", "Key_0m"],
    ]


@pytest.mark.parametrize("key", ["Am", "F#m", "Bb", "Ebm"])
def test_a_new_chorale_is_in_the_key_that_is_asked_for(key):
    signature = named_key(key).signature
    prompt = empty_prompt(KEYED, keys=[signature])
    fifths = signature.fifths % 12
    name = f"Key_{fifths - 12 * (fifths > 6)}{'m' * signature.minor}"
    assert names(prompt.tokens) == ["BOS", name]
    for options in ({"ending": "close"}, {}):
        (piece,) = music_model(KEYED).generate(key=key, bars=2, seed=1, **options)
        assert piece.score.key_signatures == [signature]
        last = [track.notes["pitch"][-1] % 12 for track in piece.score.tracks]
        tonic = named_key(key).tonic
        assert last[3] == tonic
        assert {(pitch - tonic) % 12 for pitch in last} <= {0, 4, 7}
        KEYED.grammar().start(piece.tokens[None])


def test_a_model_without_keys_refuses_one():
    with pytest.raises(UserError, match=r"tokens of keys.*tokenizer\.keys=true"):
        music_model(PLAIN).generate(key="Am", bars=1)


@pytest.mark.parametrize(
    ("signature", "key", "expected"),
    [
        (None, None, "Key_0m"),
        (KeySignature(0, -1, True), None, "Key_-1m"),
        (KeySignature(0, -1, True), "Em", "Key_1m"),
    ],
)
def test_kept_voices_have_the_key_of_the_file_or_the_one_that_is_asked_for(
    signature, key, expected
):
    score = chorale(*A_MINOR * 2, key=signature)
    soprano = replace(score, tracks=score.tracks[:1])
    (piece,) = music_model(KEYED).generate(soprano, keep="soprano", key=key, avoid_parallels=True)
    assert key_of(piece.tokens) == expected
    assert piece.score.tracks[0].notes.tolist() == sung(soprano).tracks[0].notes.tolist()
    assert not part_writing(piece.score)["parallel_fifths"]
    tokens = KEYED.encode(piece.score)
    assert len(tokens) == 2 + 4 * 64 + 1
    conditioning = piece.prompt.kept.conditioning.ids
    at = np.arange(2, len(conditioning) - 1)
    leads = (at - 2) % 4 == 0
    assert (conditioning[at[leads][: 64 - LEAD]] >= 0).all()
    assert (conditioning[at[~leads][3 * LEAD :]] < 0).all()


@pytest.mark.parametrize("fill", ["2-3", "tenor 2-3"])
def test_bars_written_anew_have_the_key_and_the_rest_stays(fill):
    score = chorale(*A_MINOR * 3, key=KeySignature(0, 0, True))
    (piece,) = music_model(KEYED).generate(score, fill=fill, seed=1)
    first = KEYED.future_length(piece.tokens)
    assert first > 0
    assert names(piece.tokens[first:])[1] == "Key_0m"
    KEYED.grammar().start(piece.tokens[None])
    for track, own in zip(piece.score.tracks, sung(score).tracks, strict=True):
        before = own.notes["onset"] < 4 * BEAT
        assert track.notes[: before.sum()].tolist() == own.notes[before].tolist()


def test_the_key_of_a_prompt_stays():
    score = chorale(*A_MINOR * 3, key=KeySignature(0, 0, True))
    (piece,) = music_model(KEYED).generate(score, prompt_bars=2, bars=2, seed=1)
    assert names(piece.tokens)[:2] == ["BOS", "Key_0m"]
    assert piece.score.key_signatures == [KeySignature(0, 0, True)]
    assert find_key(pitched_notes(piece.prompt.score)).major is False
