import numpy as np

from musicgen.midi import TEMPO, Marker, Score, TimeSignature, Track, notes_from
from musicgen.tokenization import REMI

remi = REMI()


def tempos(*rows):
    return np.array(list(rows), dtype=TEMPO)


def test_a_small_score_by_hand(names):
    # 100 ticks a beat: a position is 25 ticks, half a position 12.5, a bar 400.
    score = Score(
        100,
        [
            Track(
                "right", 0, False, notes_from([(0, 100, 64, 63), (0, 100, 60, 62), (52, 20, 67, 1)])
            ),
            Track("left", 33, False, notes_from([(0, 150, 60, 50), (1240, 1000, 36, 127)])),
            Track("drums", 0, True, notes_from([(0, 10, 36, 100)])),
        ],
        tempos((0, 119.0), (100, 120.4), (900, 60.0)),
        [TimeSignature(0, 3, 4)],
        [Marker(0, "A_M7_A"), Marker(50, "verse"), Marker(100, "A_M7"), Marker(800, "Bb_sus4")],
    )
    tokens, losses = remi.encode_with_report(score)
    assert names(remi, tokens) == (
        "Bar Beat_0 Chord_A_M7 Tempo_119"
        # Both tracks play 60: the longer duration, the louder velocity (62, from 50 and 62).
        " Pitch_60 Velocity_62 Duration_6 Pitch_64 Velocity_64 Duration_4"
        # 52 ticks are 2.08 positions, 20 ticks 1.6 half positions.
        " Beat_2 Pitch_67 Velocity_40 Duration_1"
        # 120.4 bpm falls into the same bin, so nothing changes at tick 100.
        " Bar Bar Beat_0 Chord_A#_sus4 Beat_4 Tempo_59"
        # 1240 ticks are 49.6 positions: 50; 40 positions exceed the longest duration.
        " Bar Beat_2 Pitch_36 Velocity_86 Duration_16 EOS"
    )
    assert (losses.summary().notes_read, losses.summary().notes_kept) == (6, 4)
    assert losses.summary().describe() == (
        "1 note of drums dropped, 1 marker naming no chord"
        " dropped, 1 note longer than 4 beats clipped, 1 onset moved to the grid,"
        " 1 note in unison with another track read as one,"
        " 3/4 read as 4/4 (tokenizer=remi_metres has it)"
    )
    assert remi.decode(tokens) == Score(
        480,
        [
            Track(
                "Piano",
                0,
                False,
                notes_from(
                    [(0, 720, 60, 62), (0, 480, 64, 64), (240, 120, 67, 40), (6000, 1920, 36, 86)]
                ),
            )
        ],
        tempos((0, 119.0), (4320, 59.0)),
        [],
        [Marker(0, "A_M7"), Marker(3840, "A#_sus4")],
    )


def test_a_long_gap_is_cut_off():
    notes = notes_from([(0, 10, 60, 60), (200_000_000, 10, 60, 60)])
    score = Score(480, [Track(notes=notes)], tempos((0, 120.0), (10**9, 60.0)))
    score.markers = [Marker(10**9, "C_M")]
    tokens, losses = remi.encode_with_report(score)
    assert len(tokens) == 7
    assert losses.summary().dropped == {
        f"{what} beyond bar 4096": 1 for what in ("notes", "chords", "tempi")
    }
    longest = REMI(max_bars=3).encode(Score(1, [Track(notes=notes_from([(11, 1, 60, 60)]))]))
    assert (longest == remi.vocabulary.id("Bar")).sum() == 3


def test_rules_for_chords_and_metre():
    score = Score(480, [Track(notes=notes_from([(0, 480, 60, 60)]))])
    losses = remi.encode_with_report(score)[1]
    assert losses.summary().describe() == "all 1 note kept, no chord markers: no Chord tokens"
    assert REMI(chords=False).encode_with_report(score)[1].summary().describe() == "all 1 note kept"
    score.markers = [Marker(0, "N_N_N")]
    score.time_signatures = [
        TimeSignature(0, 7, 8),
        TimeSignature(9, 2, 2),
        TimeSignature(10, 7, 8),
    ]
    assert remi.encode_with_report(score)[1].summary().rules == [
        "7/8 read as 4/4 (tokenizer=remi_metres has it)"
    ]


def test_chord_spellings():
    spellings = {
        "A_M7_E": "A_M7", "Bb_m": "A#_m", "Cb_7_Gb": "B_7", "B#_+": "C_+", "F##_o7": "G_o7",
        "D_/o7_D": "D_/o7", "N_N": "N_N", "N_N_N": "N_N",
    }  # fmt: skip
    for marker, chord in spellings.items():
        tokens = remi.encode(Score(markers=[Marker(0, marker)]))
        assert remi.vocabulary.token(tokens[2]) == f"Chord_{chord}"
    for marker in ("", "H_M", "A", "A_", "A_maj7", "A_M7_", "A_M7_X", "a_M7", "N"):
        tokens, losses = remi.encode_with_report(Score(markers=[Marker(0, marker)]))
        assert len(tokens) == 1
        assert losses.summary().dropped == {"markers naming no chord": 1}


def test_decode_takes_prefixes_and_padding():
    notes = notes_from([(0, 480, 60, 60), (0, 480, 64, 60), (2000, 480, 62, 60)])
    tokens = remi.encode(Score(480, [Track(notes=notes)], tempos((0, 122.0))))
    whole = remi.decode(tokens)
    assert whole.num_notes == 3
    assert [remi.decode(tokens[:n]).num_notes for n in range(len(tokens) + 1)] == [
        *[0] * 6,  # Bar Beat Tempo Pitch Velocity: a note needs its Duration
        *[1] * 3,
        *[2] * 5,
        *[3] * 2,
    ]
    pad = remi.vocabulary.pad_id
    assert remi.decode(np.concatenate([[pad], tokens, [pad, pad]])) == whole
    assert remi.decode(np.concatenate([tokens, tokens])) == whole
