"""Songs: what its tokens say, in which order."""

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.generation.constraints import ConstrainedGrammar, end_constraints
from musicgen.midi import TEMPO, KeySignature, Marker, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import Songs
from musicgen.tokenization.augmentation import transpose
from musicgen.tokenization.chords import ROOTS
from tests.tokenization.conftest import random_walk
from tests.tokenizers import frozen_tokenizers

SONGS = frozen_tokenizers()["songs"]
PARTS = [*(part["name"] for part in SONGS.parts), "Chords"]
VOICE, PIANO = ([name == part for part in PARTS] for name in ("Voice", "Piano"))


def song(**changes):
    """Two bars of 3/4: a voice whose note passes the bar line, two hands, and drums."""
    tracks = [
        Track("Klavier", notes=notes_from([(0, 960, 48, 60), (0, 480, 55, 60)])),
        Track("Singstimme", notes=notes_from([(0, 480, 60, 90), (960, 960, 63, 90)])),
        Track("Klavier", notes=notes_from([(1440, 160, 67, 50), (1600, 160, 68, 50)])),
        Track("Kit", is_drum=True, notes=notes_from([(1440, 10, 36, 99)])),
    ]
    settings = {
        "tempos": np.array([(0, 96.0)], TEMPO),
        "time_signatures": [TimeSignature(0, 3, 4)],
        "markers": [Marker(0, "C_m"), Marker(720, "G_7")],
        "key_signatures": [KeySignature(0, -3)],
    }
    return Score(480, tracks, **settings | changes)


def test_a_bar_is_its_header_then_its_parts(names):
    assert names(SONGS, SONGS.encode(song())) == (
        "Bar_3/4 Key_-3 Tempo_95 Part_Chords Beat_0 Chord_C_m Beat_18 Chord_G_7 "
        "Part_Voice Beat_0 Pitch_60 Duration_12 Beat_24 Pitch_63 Duration_24 "
        "Part_Piano Beat_0 Pitch_48 Duration_24 Pitch_55 Duration_12 "
        "Bar_3/4 Part_Piano Beat_0 Pitch_67 Duration_4 Beat_4 Pitch_68 Duration_4 "
        "Part_Drums Beat_0 Drum_36 EOS"
    )


@pytest.mark.parametrize(
    ("name", "program", "part"),
    [
        *(("Singstimme\nVoice", 0, "Voice"), ("CHANT.", 0, "Voice"), ("MELODY", 0, "Voice")),
        *(("Pianoforte", 0, "Piano"), ("PIANO", 52, "Piano"), ("Harpsichord", 0, "Piano")),
        *(("Lead Guitar", 0, "Guitar"), ("Bass Guitar", 0, "Bass"), ("Bassoon", 0, "Winds")),
        *(("Bass", 0, "Bass"), ("Bass", 52, "Voice"), ("", 41, "Strings"), ("", 61, "Winds")),
        ("", 125, None),
    ],
)
def test_names_and_programs_tell_the_part(name, program, part):
    found = SONGS.find_track(Track(name, program))
    assert (None if found is None else SONGS.parts[found]["name"]) == part


def test_the_key_is_the_signature_or_else_found_from_the_notes(names):
    scale = [(480 * i, 480, pitch, 64) for i, pitch in enumerate((62, 64, 66, 67, 69, 71, 73, 74))]
    found = SONGS.encode(Score(480, [Track("Voice", notes=notes_from(scale))]))
    assert names(SONGS, found[:2]) == "Bar_4/4 Key_2"
    flat = SONGS.encode(song(key_signatures=[KeySignature(1440, -7)]))  # sounds as five sharps
    assert names(SONGS, flat[:2]) == "Bar_3/4 Key_5"


@pytest.mark.parametrize("semitones", [-7, 1, 6])
def test_transposed_tokens_are_those_of_transposed_music(semitones):
    tokens = SONGS.encode(song())
    moved = transpose(SONGS, tokens, semitones)
    before, after = SONGS.decode(tokens), SONGS.decode(moved)
    for track in before.tracks:
        track.notes["pitch"] += semitones * (not track.is_drum)
    assert after.tracks == before.tracks
    assert after.key_signatures == [KeySignature(0, (7 * semitones + 2) % 12 - 5)]
    roots = [ROOTS[(root + semitones) % 12] for root in (0, 7)]
    assert [marker.text for marker in after.markers] == [f"{roots[0]}_m", f"{roots[1]}_7"]
    assert np.array_equal(transpose(SONGS, moved, -semitones), tokens)


def test_a_crop_begins_with_what_is_in_force(names):
    tokens = SONGS.encode(song())
    starts = SONGS.crops.starts(tokens, bar_length=36)
    crop = SONGS.crops.crop(tokens, starts[1:], 99)
    start = "Bar_3/4 Key_-3 Tempo_95 Part_Chords Beat_0 Chord_G_7 Part_Piano"
    assert names(SONGS, crop[:7]) == start
    assert np.array_equal(SONGS.encode(SONGS.decode(crop)), crop)


def test_other_parts_lead_in_all_bars_or_in_none(names):
    tokens = SONGS.encode(song())
    led = SONGS.lead(tokens, PIANO)
    assert [w for w in names(SONGS, led).split() if w.startswith(("Part", "Bar"))] == [
        *("Bar_3/4", "Part_Piano", "Part_Chords", "Part_Voice"),
        *("Bar_3/4", "Part_Piano", "Part_Drums"),
    ]
    assert SONGS.decode(led) == SONGS.decode(tokens)
    chords_lead = [part == "Chords" for part in PARTS]
    for order in [False] * len(PARTS), chords_lead:
        assert np.array_equal(SONGS.lead(led, order), tokens)
    both = np.concatenate([led[:-1], tokens[:-1], led[-1:]])  # one order, then another
    both = np.delete(both, np.flatnonzero(both == SONGS.vocabulary.id("Key_-3"))[1])
    both = np.delete(both, np.flatnonzero(both == SONGS.vocabulary.id("Tempo_95"))[1])
    SONGS.grammar().start(led[None])
    with pytest.raises(UserError, match="may not follow"):
        SONGS.grammar().start(both[None])
    cut = SONGS.lead(tokens[:-4], PIANO)  # the last bar may lack a part that leads
    assert len(cut) == np.flatnonzero(tokens == tokens[0])[1]


def test_a_share_of_the_crops_has_another_order():
    tokens, rng = SONGS.encode(song()), np.random.default_rng(0)
    half = Songs(**SONGS.settings() | {"lead_probability": 0.5})
    crops = [half.rearrange(tokens, rng) for _ in range(200)]
    changed = np.mean([not np.array_equal(crop, tokens) for crop in crops])
    assert 0.1 < changed < 0.5  # of some orders the first is that of the parts
    half.grammar().start(np.stack([c for c in crops if len(c) == len(tokens)]))
    assert half.vocabulary == SONGS.vocabulary


def test_a_limit_and_a_beginning_hold_though_time_goes_back_in_a_bar():
    grammar, bars = SONGS.grammar(), SONGS.families["Bar"]
    tokens = torch.from_numpy(SONGS.encode(song())[:-1])[None]
    later = end_constraints(grammar, np.array([144]), np.array([0]), None)
    constrained = ConstrainedGrammar(grammar, later)
    state = constrained.start(tokens)
    while state.time < 144:
        assert constrained.allowed(state)[0].nonzero()[:, 0].tolist() == [*bars]
        state = constrained.advance(state, torch.tensor([bars[1]]))
    state = grammar.end_by(grammar.start(tokens.expand(8, -1)), torch.full((8,), 288))
    rows, _ = random_walk(SONGS, 8, 200, seed=2, state=state)
    for row in rows:
        ends = SONGS.decode(np.append(tokens[0], row[row < SONGS.vocabulary.pad_id])).end
        assert ends <= 288 * 40


def test_a_played_rhythm_is_read_as_sixteenths_and_triplets():
    straight = [(0, 131), (131, 90), (236, 20), (352, 141)]
    thirds = [(485, 140), (655, 150), (798, 155)]
    added = [(onset, 40) for onset in range(1000, 1400, 40)]
    notes = notes_from([(*x, 60, 64) for x in straight + thirds + added])
    found = SONGS.normalise_rhythm(Score(480, [Track("Piano", notes=notes)]))
    onsets = [0, 120, 240, 360, 480, 640, 800, *range(1000, 1400, 40)]
    assert found.notes["onset"].tolist() == onsets
    assert found.notes["duration"].tolist() == [120, 120, 120, 120, 160, 160, 160, *[40] * 10]
    assert found.repairs == ["played rhythm read as sixteenths and triplets"]
    assert SONGS.normalise_rhythm(found) is found


def test_shortened_notes_keep_a_printed_rhythm():
    threes, runs, sixths = [0, 240, 160, 320], [480, 540, 600, 660], range(960, 1440, 80)
    notes = [(onset, 38, 60 + i, 64) for i, onset in enumerate([*threes, *runs, *sixths, 1440])]
    score = Score(480, [Track("Piano", notes=notes_from(notes))])
    found = SONGS.normalise_rhythm(score)
    assert found.notes["onset"].tolist() == score.notes["onset"].tolist()
    assert found.notes["duration"].tolist() == [40] * 14 + [120]
    assert found.repairs == []
