"""The composed first bar of a piano: its tones and times, where it is, and what draws it."""

import numpy as np
import pytest

from musicgen.composer.draw import generator
from musicgen.composer.harmony import Chord
from musicgen.generation.accompaniment import TEXTURES_BY_METRE, chord_below, draw_bar
from musicgen.midi import Score, TimeSignature, Track, loads, notes_from
from musicgen.midi.key import Key
from tests.generation.builders import music_model
from tests.tokenizers import frozen_tokenizers

SONGS = frozen_tokenizers()["songs"]
C, G7 = Chord(0, "M", 0), Chord(7, "7", 7)
BEATS = {"4/4": 4, "2/4": 2, "3/4": 3, "6/8": 3, "3/8": 1.5}


@pytest.mark.parametrize("metre", BEATS)
@pytest.mark.parametrize("chords", [[C], [C, G7]], ids=["one chord", "two chords"])
def test_bars_are_of_the_chords_and_within_their_bar(metre, chords):
    drawn = [draw_bar(generator(seed), metre, chords, 480) for seed in range(40)]
    tones = {pitch for chord in chords for pitch in chord.pitch_classes}
    for notes in drawn:
        assert {*(notes["pitch"] % 12).tolist()} <= tones
        assert notes["onset"].min() == 0
        assert (notes["onset"] + notes["duration"]).max() <= BEATS[metre] * 480
        in_first_half = notes["pitch"][notes["onset"] < BEATS[metre] * 240] % 12
        assert {*in_first_half.tolist()} <= {*C.pitch_classes}
    assert len({tuple(notes.tolist()) for notes in drawn}) >= 4


def test_other_time_signatures_have_no_texture():
    assert {*TEXTURES_BY_METRE} == {"4/4", "3/4", "6/8"}
    assert draw_bar(generator(0), "5/4", [C], 480) is None


@pytest.mark.parametrize(
    ("pitches", "key", "expected"),
    [
        ((60, 64, 67), Key(0, True), (0, "M")),
        ((65, 69, 65), Key(0, True), (5, "M")),
        ((67, 71, 74), Key(0, True), (7, "M")),
        ((69, 72, 72), Key(9, False), (9, "m")),
        ((68, 71, 68), Key(9, False), (4, "M")),
    ],
)
def test_the_first_chord_is_that_of_the_tune(pitches, key, expected):
    tune = notes_from([(480 * i, 480, pitch, 80) for i, pitch in enumerate(pitches)])
    chord = chord_below(tune, key)
    assert (chord.root, chord.quality) == expected


def tune(metre=(3, 4), upbeat=True, bars=4):
    """Quarters in G major at 96 ticks each, with or without an upbeat of one."""
    first = metre[0] - 1 if upbeat else 0
    onsets = range(96 * first, 96 * metre[0] * bars, 96)
    rows = [(at, 96, (67, 71, 74, 72, 69)[i % 5], 80) for i, at in enumerate(onsets)]
    return Score(
        96, [Track("Voice", notes=notes_from(rows))], time_signatures=[TimeSignature(0, *metre)]
    )


def piano_of(piece):
    return next(track.notes for track in piece.new_score.tracks if track.name == "Piano")


@pytest.mark.parametrize(("upbeat", "begin"), [(True, 3), (False, 0)])
def test_it_stands_in_the_first_bar_that_the_tune_begins(upbeat, begin):
    model, options = music_model(SONGS), {"keep": "voice", "chords": "G"}
    pieces = [model.generate(tune(upbeat=upbeat), seed=seed, **options)[0] for seed in range(6)]
    bars = set()
    for piece in pieces:
        bar = (piano_of(piece)["onset"] // 480 >= begin) & (
            piano_of(piece)["onset"] // 480 < begin + 3
        )
        notes = piano_of(piece)[bar]
        assert notes["onset"].min() == 480 * begin == piano_of(piece)["onset"].min()
        assert {*(notes["pitch"] % 12).tolist()} <= {7, 11, 2}
        bars.add(tuple(notes["pitch"].tolist()))
        file = loads(piece.midi_file().data)
        assert np.isin(notes["pitch"], file.tracks[1].notes["pitch"]).all()
        SONGS.grammar().start(piece.tokens[None])
    assert len(bars) >= 3
    (again,) = model.generate(tune(upbeat=upbeat), seed=0, **options)
    assert again.tokens.tolist() == pieces[0].tokens.tolist()


def num_free(prompt):
    return int((prompt.kept.conditioning.ids < 0).sum())


@pytest.mark.parametrize(
    ("score", "options", "free"),
    [
        (tune(upbeat=False), {"keep": "voice"}, 3),
        (tune(upbeat=True), {"keep": "voice"}, 2),
        (tune((5, 4), upbeat=False), {"keep": "voice"}, 4),
        (tune(upbeat=False, bars=1), {"keep": "voice"}, 1),
        (tune(upbeat=False), {"keep": "voice", "prompt_bars": 1}, 3),
        (tune(upbeat=False), {"rewrite": "1-2", "keep": "voice"}, 2),
    ],
    ids=["tune", "upbeat", "5/4", "one bar", "bars to go on from", "rewrite"],
)
def test_the_model_writes_all_other_bars(score, options, free):
    model = music_model(SONGS)
    prompt_bars = options.get("prompt_bars")
    asked = {name: value for name, value in options.items() if name != "prompt_bars"}
    prompt = model.prompt(score, "p", prompt_bars, model.request(**asked))
    assert num_free(prompt.of_sample(0)) == free


def test_a_piano_that_the_file_has_begins_without_one():
    score = tune(upbeat=False)
    score.tracks.append(Track("Piano", notes=notes_from([(480, 96, 50, 80)])))
    model = music_model(SONGS)
    prompt = model.prompt(score, "p", None, model.request(keep="voice"))
    assert num_free(prompt.of_sample(0)) == 4


def test_each_sample_has_a_bar_of_its_own():
    model = music_model(SONGS)
    pieces = model.generate(tune(), keep="voice", chords="G", num_samples=6)
    bars = set()
    for piece in pieces:
        notes = piano_of(piece)
        bars.add(tuple(notes["pitch"][notes["onset"] < 480 * 6].tolist()))
        assert piece.prompt is pieces[0].prompt
    assert len(bars) >= 3
    # The first one is that of a request for one sample.
    (first,) = model.generate(tune(), keep="voice", chords="G")
    assert np.array_equal(first.tokens, pieces[0].tokens)
