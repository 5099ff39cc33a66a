import numpy as np
import pytest

from musicgen.midi import Score, Track, notes_from
from musicgen.tokenization import REMI, Chorale, Groove2Groove
from musicgen.tokenization.augmentation import transpose
from musicgen.tokenization.chords import ROOTS
from tests.tokenization.conftest import random_crop

NAMES = ["Bass", "Drums", "Guitar", "Piano", "Strings"]
BARS = 12
each_tokenizer = pytest.mark.parametrize(
    "tokenizer", [REMI(), Groove2Groove(), Chorale()], ids=["remi", "groove", "chorale"]
)


def random_score(seed, ticks_per_bar=480 * 4):
    rng = np.random.default_rng(seed)
    tracks = []
    for name in NAMES:
        rows = zip(
            rng.integers(0, BARS * ticks_per_bar, 120),
            rng.integers(20, 3000, 120),
            rng.integers(30, 100, 120),
            rng.integers(40, 87, 120),
            strict=True,
        )
        tracks.append(Track(name, is_drum=name == "Drums", notes=notes_from(rows)))
    return Score(480, tracks)


def rows_of(tokenizer, tokens):
    """(track, onset, pitch) of the notes, in grid steps."""
    score = tokenizer.decode(tokens)
    step = 480 // tokenizer.steps_per_beat
    return [
        (track.name, int(note["onset"]) // step, int(note["pitch"]))
        for track in score.tracks
        for note in track.notes
    ]


@pytest.mark.parametrize(
    ("tokenizer", "bar_length"), [(REMI(), 16), (Groove2Groove(), 48), (Groove2Groove(), 42)]
)
def test_without_augmentation_a_crop_is_the_music_from_its_bar_on(tokenizer, bar_length):
    tokens = tokenizer.encode(random_score(7))
    rows, starts = rows_of(tokenizer, tokens), tokenizer.crops.starts(tokens, bar_length=bar_length)
    assert len(starts) == max(onset for _, onset, _ in rows) // bar_length + 1
    for bar in range(len(starts)):
        first = bar * bar_length
        whole = tokenizer.crops.crop(tokens, starts[bar:], len(tokens) + 50)
        expected = [(t, onset - first, pitch) for t, onset, pitch in rows if onset >= first]
        assert rows_of(tokenizer, whole) == expected
        short = tokenizer.crops.crop(tokens, starts[bar:], 150)
        assert np.array_equal(short, whole[:150])


def test_transposition_moves_pitches_and_chords_alike():
    remi = REMI(max_transposition=6)
    vocabulary = remi.vocabulary
    words = "Bar Beat_0 Chord_A_m7 Pitch_23 Velocity_60 Duration_4 Pitch_60 Velocity_60 Duration_4"
    words += " Beat_4 Chord_N_N Bar Beat_0 Chord_C_/o7 EOS"
    tokens = np.array([vocabulary.id(word) for word in words.split()])
    expected = set()
    for shift in range(-2, 7):  # 23 may go down to 21 and no further
        text = words.replace("Pitch_23", f"Pitch_{23 + shift}")
        text = text.replace("Pitch_60", f"Pitch_{60 + shift}")
        text = text.replace("Chord_A_", f"Chord_{ROOTS[(9 + shift) % 12]}_")
        text = text.replace("Chord_C_/", f"Chord_{ROOTS[shift % 12]}_/")
        expected.add(text)
    rng = np.random.default_rng(0)
    seen = []
    while len(seen) < 300:
        window = random_crop(remi, tokens, rng, 99, 16, augment=True)
        if len(window) == len(tokens):
            seen.append(" ".join(vocabulary.token(i) for i in window))
    assert set(seen) == expected
    assert max(map(seen.count, expected)) < 3 * min(map(seen.count, expected))


def test_dropping_leaves_at_least_one_instrument():
    chord = [Track(name, notes=notes_from([(0, 12, 60, 80)])) for name in NAMES]
    tokens = Groove2Groove().encode(Score(12, chord))
    rng = np.random.default_rng(0)

    def tracks(probability):
        groove = Groove2Groove(drop_track_probability=probability, skip_bar_probability=0)
        window = random_crop(groove, tokens, rng, 10_000, 48, augment=True)
        return {name for name, _, _ in rows_of(groove, window)}

    kept = [tracks(1.0) for _ in range(100)]
    assert {len(names) for names in kept} == {1}
    assert set.union(*kept) == set(NAMES)
    # Of five independent tracks at 0.3, 3.5 are expected to stay.
    assert 3.2 < np.mean([len(tracks(0.3)) for _ in range(200)]) < 3.8


def test_skipping_cuts_whole_bars_out():
    settings = {"max_transposition": 0, "drop_track_probability": 0}
    # A note across a cut becomes shorter; the later bars move up.
    groove = Groove2Groove(**settings, skip_bar_probability=0.5)
    notes = notes_from([(0, 144, 40, 80), (60, 12, 60, 80), (97, 12, 61, 80)])
    tokens = groove.encode(Score(12, [Track("Bass", notes=notes)]))
    rng, seen = np.random.default_rng(0), set()
    for _ in range(200):
        window = random_crop(groove, tokens, rng, 99, 48, augment=True)
        (bass, *_) = groove.decode(window).tracks
        seen.add(tuple((o // 40, d // 40, p) for o, d, p, _ in bass.notes.tolist()))
    from_first_bar = {rows for rows in seen if rows[0][2] == 40}
    assert from_first_bar == {
        ((0, 144, 40), (60, 12, 60), (97, 12, 61)),
        ((0, 96, 40), (49, 12, 61)),
        ((0, 96, 40), (60, 12, 60)),
        ((0, 48, 40),),
    }


def test_skipping_never_removes_all_notes():
    groove = Groove2Groove(skip_bar_probability=1, drop_track_probability=0, max_transposition=0)
    notes = notes_from([(100, 12, 40, 80)])
    tokens = groove.encode(Score(12, [Track("Bass", notes=notes)]))
    rng = np.random.default_rng(0)
    windows = [random_crop(groove, tokens, rng, 99, 48, augment=True) for _ in range(50)]
    onsets = {onset for window in windows for _, onset, _ in rows_of(groove, window)}
    assert onsets == {100, 52, 4}
    assert all(len(rows_of(groove, window)) == 1 for window in windows)


@each_tokenizer
@pytest.mark.parametrize("semitones", [-7, 3])
def test_transposed_tokens_are_those_of_transposed_music(tokenizer, semitones):
    tokens = tokenizer.encode(random_score(3)).astype(np.int16)
    moved = transpose(tokenizer, tokens, semitones)
    assert rows_of(tokenizer, moved) == [
        (track, onset, pitch + semitones * (track != "Drums"))
        for track, onset, pitch in rows_of(tokenizer, tokens)
    ]
    assert np.array_equal(transpose(tokenizer, moved, -semitones), tokens)
