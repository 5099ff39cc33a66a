"""Properties of every tokenizer, for random settings, scores and sequences."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from musicgen.midi import NOTE, TEMPO, Marker, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import REMI, Chorale, Groove2Groove, Tokenizer

METRES = ["4/4", "3/4", "2/4", "6/8", "7/8", "2/2", "5/4"]
TRACKS = [
    {"name": "Bass", "program": 33},
    {"name": "Drums", "is_drum": True},
    {"name": "Lead 2", "program": 80, "takes": [[0, 31], [80, 103]]},
    {"name": "Señor", "program": 127},
]

REMIS = st.builds(
    REMI,
    time_signatures=st.lists(st.sampled_from(METRES), min_size=1, max_size=4, unique=True),
    positions_per_beat=st.sampled_from([2, 4, 6, 12, 240]),
    pitch_range=st.sampled_from([(21, 108), (0, 127), (60, 62)]),
    velocity_bins=st.sampled_from([(40, 86, 2), (3, 127, 4), (64, 64, 1)]),
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
    max_transposition=st.integers(0, 12),
    drop_track_probability=st.floats(0, 1),
    skip_bar_probability=st.floats(0, 1),
)
CHORALES = st.builds(Chorale, max_transposition=st.integers(0, 12))

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
)  # fmt: skip


def half_up(x):
    return math.floor(x + Fraction(1, 2))


def nearest(value, bins):
    low, high, step = bins
    return min(range(low, high + 1, step), key=lambda b: (abs(value - b), -b))


def on_the_grid(tokenizer, score):
    return (remi_grid if tokenizer.name == "remi" else groove_grid)(score, tokenizer.settings())


def bars_of(score, own):
    """(start, length, metre) of every bar that the settings allow and the score can reach."""
    per_beat = own["positions_per_beat"]
    metres = [tuple(map(int, name.split("/"))) for name in own["time_signatures"]]

    def read(signature):
        equal = [m for m in metres if Fraction(*m) == Fraction(*signature)]
        return signature if signature in metres else (equal or metres)[0]

    bars, begin = [], 0
    while len(bars) < own["max_bars"] and begin <= 3001 * per_beat:
        metre = (4, 4)
        for tick, *signature in score.time_signatures:
            if half_up(Fraction(tick * per_beat, score.ticks_per_beat)) <= begin:
                metre = tuple(signature)
        metre = read(metre)
        length = int(4 * per_beat * Fraction(*metre))
        bars.append((begin, length, metre))
        begin += length
    return bars


def remi_grid(score, own):
    """The Score that REMI encodes, computed note by note."""
    beat, per_beat = score.ticks_per_beat, own["positions_per_beat"]
    step_ticks = 480 // per_beat
    bars = bars_of(score, own)
    end = sum(bars[-1][:2])

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
            velocity = nearest(velocity, own["velocity_bins"])
            loudest[pitch, step] = max(velocity, loudest.get((pitch, step), 0))
            longest[pitch, step] = max(halves, longest.get((pitch, step), 0))
    notes = []
    for (pitch, step), halves in longest.items():
        later = [s for p, s in longest if p == pitch and s > step]
        halves = min([halves] + [2 * (s - step) for s in later])
        notes.append((step * step_ticks, halves * step_ticks // 2, pitch, loudest[pitch, step]))
    tempo, chord = {}, {}
    for tick, bpm in score.tempos.tolist():
        if own["tempo_bins"] and step_of(tick) < end:
            tempo[step_of(tick)] = nearest(bpm, own["tempo_bins"])
    for tick, text in score.markers:
        if text != "intro" and own["chords"] and step_of(tick) < end:
            chord[step_of(tick)] = text

    def changes(events, before):
        values = [before, *events.values()]
        return [
            (s * step_ticks, v) for (s, v), b in zip(events.items(), values, strict=False) if v != b
        ]

    tempos, chords = changes(tempo, None), changes(chord, None)
    last = max([tick // step_ticks for tick, *_ in (*notes, *tempos, *chords)], default=-1)
    metre = {begin: metre for begin, _, metre in bars if begin <= last}
    return Score(
        480,
        [Track("Piano", notes=notes_from(notes))],
        np.array(tempos, dtype=TEMPO),
        [TimeSignature(tick, *signature) for tick, signature in changes(metre, (4, 4))],
        [Marker(*row) for row in chords],
    )


def instrument(track, own):
    """The index of the setting's track that plays a track, or None."""
    names = [other["name"] for other in own]
    if track.name in names:
        return names.index(track.name)
    if track.is_drum:
        return names.index("Drums") if "Drums" in names else None
    for index, other in enumerate(own):
        first = 8 * (other["program"] // 8)
        ranges = other["takes"] or [(first, first + 7)]
        if not other["is_drum"] and any(a <= track.program <= b for a, b in ranges):
            return index
    return None


def groove_grid(score, own):
    """The Score that Groove2Groove encodes, computed note by note."""
    kept = [{} for _ in own["tracks"]]
    limit = 12 * own["max_beats"]
    for track in score.tracks:
        index = instrument(track, own["tracks"])
        for onset, duration, pitch, _ in track.notes.tolist():
            step = half_up(Fraction(onset * 12, score.ticks_per_beat))
            if index is None or step >= limit:
                continue
            steps = max(1, half_up(Fraction(duration * 12, score.ticks_per_beat)))
            steps = min(steps, limit - step)
            kept[index][pitch, step] = max(steps, kept[index].get((pitch, step), 0))
    tracks = []
    for setting, notes in zip(own["tracks"], kept, strict=True):
        rows = []
        longest = own["max_drum_beats" if setting["is_drum"] else "max_note_beats"]
        for (pitch, step), steps in notes.items():
            later = [s - step for p, s in notes if p == pitch and s > step]
            steps = min([steps, *later, 12 * (longest or limit)])
            rows.append((40 * step, 40 * steps, pitch, 80))
        tracks.append(
            Track(setting["name"], setting["program"], setting["is_drum"], notes_from(rows))
        )
    return Score(480, tracks)


TOKENIZERS = pytest.mark.parametrize("tokenizers", [REMIS, GROOVES], ids=["remi", "groove"])


@TOKENIZERS
@given(data=st.data())
@settings(max_examples=150)
def test_decoding_inverts_encoding_up_to_the_grid(tokenizers, data):
    tokenizer, score = data.draw(tokenizers), data.draw(SCORES)
    tokens, summary = tokenizer.encode_with_summary(score)
    assert tokens.dtype == np.int64
    assert tokenizer.grammar().accepts(tokens[None]).all()
    decoded = tokenizer.decode(tokens)
    assert decoded == on_the_grid(tokenizer, score)
    assert (summary.notes_read, summary.notes_kept) == (score.num_notes, decoded.num_notes)
    assert summary.notes_read - summary.notes_kept == sum(
        count for reason, count in summary.dropped.items() if reason.startswith("notes")
    )
    assert np.array_equal(tokenizer.encode(decoded), tokens)


@pytest.mark.parametrize(
    "tokenizers",
    [REMIS, GROOVES, CHORALES],
    ids=["remi", "groove", "chorale"],
)
@given(data=st.data())
@settings(max_examples=100)
def test_crops_are_grammatical_with_or_without_augmentation(crop, tokenizers, data):
    tokenizer, score = data.draw(tokenizers), data.draw(SCORES)
    tokens = tokenizer.encode(score).astype(np.int16)
    before = tokens.copy()
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    length = data.draw(st.integers(1, 60) | st.just(10**6))
    for augment in (False, True):
        window = crop(tokenizer, tokens, rng, length, tokenizer.bar_length(score), augment=augment)
        assert window.dtype == np.int64
        assert 0 < len(window) <= length
        assert np.array_equal(tokens, before)
        tokenizer.grammar().start(torch.from_numpy(window)[None])
        if length == 10**6:
            assert np.array_equal(tokenizer.encode(tokenizer.decode(window)), window)


@given(tokenizer=REMIS | GROOVES | CHORALES)
@settings(max_examples=40)
def test_a_saved_tokenizer_is_loaded_unchanged(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "my tokenizer, für Señor.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert type(loaded) is type(tokenizer)
    assert loaded.settings() == tokenizer.settings()
    assert loaded.vocabulary == tokenizer.vocabulary
