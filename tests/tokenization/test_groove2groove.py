import numpy as np
import pytest

from musicgen.errors import ParameterError
from musicgen.midi import Score, Track, notes_from
from musicgen.tokenization import Groove2Groove

groove = Groove2Groove()
NAMES = ["Bass", "Drums", "Guitar", "Piano", "Strings"]


def decoded(**notes):
    """A decoded Score, from rows (onset, duration, pitch) in 12ths of a beat."""
    programs = {"Bass": 33, "Drums": 0, "Guitar": 27, "Piano": 0, "Strings": 48}
    rows = {name: [(40 * s, 40 * d, p, 80) for s, d, p in notes.get(name, [])] for name in NAMES}
    return Score(480, [Track(n, programs[n], n == "Drums", notes_from(rows[n])) for n in NAMES])


def test_a_small_score_by_hand(names):
    # 24 ticks a beat: two to a grid step.
    score = Score(
        24,
        [
            Track("MY BASS", 4, False, notes_from([(0, 24, 40, 90), (24, 27, 40, 10)])),
            Track("kit", 0, True, notes_from([(0, 0, 36, 90), (0, 3, 36, 90), (200, 2, 38, 90)])),
            Track("", 24, False, notes_from([(25, 23, 60, 90)])),
            Track("Lead", 80, False, notes_from([(0, 24, 60, 90)])),
        ],
    )
    tokens, losses = groove.encode_with_report(score)
    assert names(groove, tokens) == (
        "BOS NoteOn_Bass_40 NoteOn_Drums_36"
        " TimeShift_0_2 NoteOff_Drums_36"  # the longer of two drum notes, 1.5 steps
        " TimeShift_1_0 NoteOff_Bass_40 NoteOn_Bass_40"
        " TimeShift_0_1 NoteOn_Guitar_60"  # 12.5 steps
        " TimeShift_1_1 NoteOff_Guitar_60"  # 11.5 steps later
        " TimeShift_0_2 NoteOff_Bass_40"  # 13.5 steps after the second beat
        # On to 100 steps = beat 8 and 4 ticks: three times two beats forward.
        " TimeShift_2_0 TimeShift_2_0 TimeShift_2_0 TimeShift_0_4 NoteOn_Drums_38"
        " TimeShift_0_5 NoteOff_Drums_38 EOS"
    )
    assert losses.summary().describe() == (
        "1 note of tracks without an instrument dropped, 1 note doubling another dropped, 1 onset moved to the grid"
    )
    assert groove.decode(tokens) == decoded(
        Bass=[(0, 12, 40), (12, 14, 40)], Drums=[(0, 2, 36), (100, 1, 38)], Guitar=[(13, 12, 60)]
    )


def test_velocities_by_hand(names):
    played = Groove2Groove(velocity_bins=(20, 120, 20))
    drums = notes_from([(0, 6, 36, 112), (0, 6, 42, 31), (12, 6, 42, 29)])
    score = Score(12, [Track("Drums", 0, True, drums)])
    tokens = played.encode(score)
    assert names(played, tokens) == (
        "BOS NoteOn_Drums_36 Velocity_120 NoteOn_Drums_42 Velocity_40"  # 112 and 31 rounded
        " TimeShift_0_6 NoteOff_Drums_36 NoteOff_Drums_42"
        " TimeShift_1_0 NoteOn_Drums_42 Velocity_20 TimeShift_0_6 NoteOff_Drums_42 EOS"
    )
    assert played.decode(tokens).tracks[1].notes["velocity"].tolist() == [120, 40, 20]
    # Other ids are as without velocities, so that a model's weights are of use to both.
    assert played.vocabulary.names[: len(groove.vocabulary.names)] == groove.vocabulary.names


@pytest.mark.parametrize(
    ("track", "instrument"),
    [
        (Track("bass", 0), "Bass"), (Track(" BB Strings ", 80), "Strings"),
        (Track("Drums", 0, False), "Drums"), (Track("anything", 0, True), "Drums"),
        (Track("Piano", 0, True), "Piano"), (Track("Steel Drums", 114), None),
        (Track("Contrabass", 32), "Bass"), (Track("Contrabass", 43), "Strings"),
        (Track("", 52), "Strings"), (Track("", 31), "Guitar"), (Track("", 7), "Piano"),
        (Track("", 8), None),
    ],
)  # fmt: skip
def test_tracks_are_assigned_to_instruments(track, instrument):
    track.notes = notes_from([(0, 1, 60, 80)])
    tokens, losses = groove.encode_with_report(Score(12, [track]))
    playing = [t.name for t in groove.decode(tokens).tracks if len(t.notes)]
    assert playing == ([instrument] if instrument else [])
    assert losses.summary().notes_kept == len(playing)


def test_tracks_with_unknown_settings_are_refused():
    with pytest.raises(ParameterError, match="expected name, is_drum, program, takes: missing"):
        Groove2Groove(tracks=[{"nam": "Bass"}])


def test_a_long_gap_is_cut_off():
    notes = notes_from([(0, 200_000_000, 40, 60), (200_000_000, 10, 60, 60)])
    unlimited = Groove2Groove(max_note_beats=None)
    tokens, losses = unlimited.encode_with_report(Score(480, [Track("Bass", notes=notes)]))
    assert len(tokens) == 16384 / 2 + 4
    assert losses.summary().dropped == {"notes beyond beat 16384": 1}
    assert losses.summary().clipped == {"notes lasting beyond beat 16384": 1}


def test_notes_are_cut_at_their_maximum_length():
    rows = [(0, 12 * 16 + 1, 40, 80), (12, 12 * 16, 41, 80), (24, 12 * 99, 42, 80)]
    rows.append((24 + 12 * 10, 6, 42, 80))  # struck again before the maximum: not cut by it
    drums = notes_from([(0, 13, 36, 80), (0, 12, 38, 80)])
    score = Score(12, [Track("Piano", notes=notes_from(rows)), Track("Drums", notes=drums)])
    tokens, losses = groove.encode_with_report(score)
    assert losses.summary().clipped == {
        "notes struck again while sounding": 1,
        "notes longer than the maximum": 2,
    }
    assert losses.summary().notes_kept == 6
    assert groove.decode(tokens) == decoded(
        Piano=[(0, 192, 40), (12, 192, 41), (24, 120, 42), (144, 6, 42)],
        Drums=[(0, 12, 36), (0, 12, 38)],
    )
    unlimited = Groove2Groove(max_note_beats=None, max_drum_beats=None)
    assert unlimited.decode(unlimited.encode(score)).end == 40 * 12 * 16 + 40 * 12
    assert unlimited.vocabulary.hash == groove.vocabulary.hash


def test_decode_takes_prefixes_and_padding(names):
    score = decoded(Bass=[(0, 12, 40)], Piano=[(0, 30, 60), (12, 18, 64)])
    tokens = groove.encode(score)
    assert names(groove, tokens) == (
        "BOS NoteOn_Bass_40 NoteOn_Piano_60 TimeShift_1_0 NoteOff_Bass_40 NoteOn_Piano_64"
        " TimeShift_1_6 NoteOff_Piano_60 NoteOff_Piano_64 EOS"
    )
    assert groove.bar_starts(tokens, 10).tolist() == [0, 10, 20, 30]
    assert groove.bar_starts(tokens[:2], 10).tolist() == [0]
    # Sounding notes are closed at the end, after at least one step.
    assert groove.decode(tokens[:2]) == decoded(Bass=[(0, 1, 40)])
    assert groove.decode(tokens[:4]) == decoded(Bass=[(0, 12, 40)], Piano=[(0, 12, 60)])
    assert groove.decode(tokens[:7]) == score
    pad = groove.vocabulary.pad_id
    assert groove.decode(np.concatenate([[pad], tokens, [pad, pad], tokens])) == score
