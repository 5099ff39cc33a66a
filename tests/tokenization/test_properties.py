"""Properties of every tokenizer, for random settings, scores and sequences."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from musicgen.midi import NOTE, TEMPO, KeySignature, Marker, Score, TimeSignature, Track, notes_from
from musicgen.midi.score import DEFAULT_VELOCITY
from musicgen.tokenization import REMI, Chorale, Groove2Groove, Songs, Tokenizer
from tests.tokenization.conftest import random_crop

SIGNATURES = ["4/4", "3/4", "2/4", "6/8", "7/8", "2/2", "5/4"]
TRACKS = [
    {"name": "Bass", "program": 33},
    {"name": "Drums", "is_drum": True},
    {"name": "Lead 2", "program": 80, "takes": [[0, 31], [80, 103]]},
    {"name": "Señor", "program": 127},
]

REMIS = st.builds(
    REMI,
    time_signatures=st.lists(st.sampled_from(SIGNATURES), min_size=1, max_size=4, unique=True),
    positions_per_beat=st.sampled_from([2, 4, 6, 12, 240]),
    pitch_range=st.sampled_from([(21, 108), (0, 127), (60, 62)]),
    velocity_bins=st.sampled_from([None, (40, 86, 2), (3, 127, 4), (64, 64, 1)]),
    tempo_bins=st.sampled_from([(32, 224, 3), (60, 180, 40), (90, 90, 1), None]),
    chords=st.booleans(),
    max_bars=st.sampled_from([1, 3, 4096]),
    max_transposition=st.integers(0, 12),
)
GROOVES = st.builds(
    Groove2Groove,
    tracks=st.lists(st.sampled_from(TRACKS), min_size=1, unique_by=lambda track: track["name"]),
    max_beats=st.sampled_from([1, 5, 16384]),
    max_note_beats=st.sampled_from([1, 2, 16, None]),
    max_drum_beats=st.sampled_from([1, 4, None]),
    velocity_bins=st.sampled_from([None, (3, 127, 4), (64, 64, 1)]),
    max_transposition=st.integers(0, 12),
    drop_track_probability=st.floats(0, 1),
    skip_bar_probability=st.floats(0, 1),
)
CHORALES = st.builds(
    Chorale,
    max_beats=st.sampled_from([1, 2, 64]),
    max_transposition=st.integers(0, 12),
    keys=st.booleans(),
)
PARTS = [
    {"name": "Voice", "program": 52, "words": ["lead"]},
    *({"name": name, "program": program} for name, program in (("Piano", 0), ("Bass", 33))),
    {"name": "Drums", "is_drum": True},
]
SONGS = st.builds(
    Songs,
    parts=st.lists(st.sampled_from(PARTS), min_size=1, unique_by=lambda part: part["name"]),
    time_signatures=st.lists(st.sampled_from(SIGNATURES), min_size=1, max_size=4, unique=True),
    pitch_range=st.sampled_from([(21, 108), (60, 62)]),
    velocity_bins=st.sampled_from([None, (3, 127, 4)]),
    tempo_bins=st.sampled_from([None, (30, 240, 37)]),
    chords=st.booleans(),
    max_bars=st.sampled_from([1, 3, 4096]),
    max_transposition=st.integers(0, 12),
)
each_kind = pytest.mark.parametrize(
    "tokenizers", [REMIS, GROOVES, CHORALES, SONGS], ids=["remi", "groove", "chorale", "songs"]
)

TICKS = st.integers(0, 3000)
NOTES = st.lists(
    st.tuples(
        TICKS, st.integers(0, 4000), st.integers(0, 127) | st.integers(60, 62), st.integers(0, 127)
    ),
    max_size=20,
).map(lambda rows: np.array(rows, NOTE))
CHORDS = st.sampled_from(["C_M", "A#_/o7", "N_N", "intro"])
SCORES = st.builds(
    Score,
    st.sampled_from([1, 12, 24, 100, 480, 960]),
    st.lists(
        st.builds(Track, st.sampled_from(["", "Bass", "Lead 2"]), TICKS.map(lambda t: t % 128),
                  st.booleans(), NOTES),
        max_size=4,
    ),
    st.lists(st.tuples(TICKS, st.floats(1, 400)), max_size=4).map(
        lambda rows: np.array(sorted(rows), TEMPO)
    ),
    st.lists(
        st.builds(TimeSignature, TICKS, st.sampled_from([2, 3, 4, 6, 7]), st.sampled_from([4, 8])),
        max_size=3,
    ).map(sorted),
    st.lists(st.builds(Marker, TICKS, CHORDS), max_size=5).map(sorted),
    key_signatures=st.lists(
        st.builds(KeySignature, TICKS, st.integers(-7, 7)), max_size=3
    ).map(sorted),
)  # fmt: skip


def half_up(x):
    return math.floor(x + Fraction(1, 2))


def nearest(value, bins):
    low, high, step = bins
    return min(range(low, high + 1, step), key=lambda b: (abs(value - b), -b))


def remi_grid(score, own, end):
    """The notes, tempi and chords that REMI encodes before a step, computed one by one."""
    beat, per_beat = score.ticks_per_beat, own["positions_per_beat"]
    step_ticks = 480 // per_beat

    def step_of(tick):
        return half_up(Fraction(tick * per_beat, beat))

    low, high = own["pitch_range"]
    loudest, longest = {}, {}
    for track in score.tracks:
        for onset, duration, pitch, velocity in track.notes.tolist():
            step = step_of(onset)
            if track.is_drum or not low <= pitch <= high or step >= end:
                continue
            halves = half_up(Fraction(duration * 2 * per_beat, beat))
            halves = min(max(halves, 1), 8 * per_beat)
            bins = own["velocity_bins"]
            velocity = DEFAULT_VELOCITY if bins is None else nearest(velocity, bins)
            loudest[pitch, step] = max(velocity, loudest.get((pitch, step), 0))
            longest[pitch, step] = max(halves, longest.get((pitch, step), 0))
    notes = []
    for (pitch, step), halves in longest.items():
        later = [s for p, s in longest if p == pitch and s > step]
        halves = min([halves] + [2 * (s - step) for s in later])
        notes.append((step * step_ticks, halves * step_ticks // 2, pitch, loudest[pitch, step]))
    tempi = score.tempos.tolist() if own["tempo_bins"] else []
    chords = [x for x in score.markers if x.text != "intro"] if own["chords"] else []
    tempo = {
        step_of(tick): nearest(bpm, own["tempo_bins"]) for tick, bpm in tempi if step_of(tick) < end
    }
    chord = {step_of(tick): text for tick, text in chords if step_of(tick) < end}

    def changes(events, before):
        values = [before, *events.values()]
        return [
            (s * step_ticks, v) for (s, v), b in zip(events.items(), values, strict=False) if v != b
        ]

    return notes_from(notes).tolist(), changes(tempo, None), changes(chord, None)


@each_kind
@given(data=st.data())
@settings(max_examples=100)
def test_any_score_has_an_encoding_that_stays_the_same(tokenizers, data):
    tokenizer, score = data.draw(tokenizers), data.draw(SCORES)
    tokens, losses = tokenizer.encode_with_report(score)
    assert tokens.dtype == np.int64
    tokenizer.grammar().start(tokens[None])
    decoded = tokenizer.decode(tokens)
    if tokenizer.name == "remi":
        bar_lines, _ = tokenizer.signatures.bars(tokenizer.max_bars, losses)
        found = decoded.notes.tolist(), decoded.tempos.tolist(), decoded.markers
        assert found == remi_grid(losses.score, tokenizer.settings(), bar_lines[-1])
    summary = losses.summary()
    dropped = {k: n for k, n in summary.dropped.items() if k.startswith(("notes", "onsets"))}
    unison = "notes in unison with another track read as one"
    dropped[unison] = summary.changed.get(unison, 0)
    assert summary.notes_read == score.num_notes
    assert decoded.num_notes == score.num_notes - sum(dropped.values())
    repeated = dropped.get("onsets of repeated notes", 0)
    assert summary.notes_kept == decoded.num_notes + repeated
    again, second = tokenizer.encode_with_report(decoded)
    assert np.array_equal(again, tokens)
    assert second.summary().notes_kept == second.summary().notes_read


@each_kind
@given(data=st.data())
@settings(max_examples=60)
def test_crops_are_grammatical_with_or_without_augmentation(tokenizers, data):
    tokenizer, score = data.draw(tokenizers), data.draw(SCORES)
    tokens = tokenizer.encode(score).astype(np.int16)
    before = tokens.copy()
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    length = data.draw(st.integers(1, 60) | st.just(10**6))
    for augment in (False, True):
        bar_length = tokenizer.bar_length(score)
        window = random_crop(tokenizer, tokens, rng, length, bar_length, augment=augment)
        assert window.dtype == np.int64
        assert 0 < len(window) <= length
        assert np.array_equal(tokens, before)
        tokenizer.grammar().start(torch.from_numpy(window)[None])
        if length == 10**6:
            again = tokenizer.encode(tokenizer.decode(window))
            if getattr(tokenizer, "keys", False):  # a part may fit the relative key better
                again[1] = window[1]
            assert np.array_equal(again, window)


@given(tokenizer=REMIS | GROOVES | CHORALES | SONGS)
@settings(max_examples=40)
def test_a_saved_tokenizer_is_loaded_unchanged(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "my tokenizer, für Señor.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert type(loaded) is type(tokenizer)
    assert loaded.settings() == tokenizer.settings()
    assert loaded.vocabulary == tokenizer.vocabulary
