from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from musicgen.midi import (
    TEMPO,
    Marker,
    Score,
    TimeSignature,
    Track,
    notes_by_role,
    notes_from,
    role,
    sort_notes,
)
from musicgen.midi.score import FERMATA, is_line


@pytest.fixture
def score():
    notes = notes_from([(0, 900, 60, 80), (480, 480, 62, 81), (960, 10, 64, 82), (960, 9, 59, 83)])
    return Score(
        480,
        [Track("Piano", 1, notes=notes), Track("Empty", 2)],
        np.array([(0, 120), (300, 90), (480, 60), (960, 30)], TEMPO),
        [TimeSignature(0, 3, 4), TimeSignature(300, 4, 4), TimeSignature(700, 2, 4)],
        [Marker(0, "C_M_C"), Marker(480, "D_m_D"), Marker(481, "E_m_E")],
    )


def test_clip_keeps_onsets_from_start_to_before_end(score):
    clip = score.clip(480, 960)
    assert [track.notes.tolist() for track in clip.tracks] == [[(0, 480, 62, 81)], []]
    assert [(track.name, track.program) for track in clip.tracks] == [("Piano", 1), ("Empty", 2)]
    assert score.clip(480, 961).tracks[0].notes["onset"].tolist() == [0, 480, 480]
    assert score.clip(481, 960).num_notes == 0
    assert replace(score, repairs=["1 note without an end closed"]).clip(480, 960).repairs


def test_clip_moves_tempo_metre_and_chord_to_its_beginning(score):
    clip = score.clip(479, 800)
    assert clip.tempos.tolist() == [(0, 90), (1, 60)]
    assert clip.time_signatures == [(0, 4, 4), (221, 2, 4)]
    assert clip.markers == [(0, "C_M_C"), (1, "D_m_D"), (2, "E_m_E")]
    assert score.clip(480, 481).markers == [(0, "D_m_D")], "an end is not inside"
    assert score.clip(480, 960).tempos.tolist() == [(0, 60)]
    assert score.clip(2000, 3000).tempos.tolist() == [(0, 30)]
    # The chord in force does, whatever texts are near it; they stay where they are.
    markers = [Marker(0, "C_M_C"), Marker(0, "Intro"), Marker(480, "Verse"), Marker(700, "F_M")]
    assert Score(markers=markers).clip(0, 480).markers == markers[:2]
    assert Score(markers=markers).clip(480, 700).markers == [(0, "C_M_C"), (0, "Verse")]
    # A fermata before a clip does not apply to it.
    markers = [Marker(0, "C_M_C"), Marker(480, FERMATA), Marker(960, FERMATA)]
    assert Score(markers=markers).clip(500, 1000).markers == [(0, "C_M_C"), (460, FERMATA)]


def test_clip_does_not_change_the_original(score):
    clip = score.clip(480, 2000)
    clip.tracks[0].notes["pitch"] = 1
    clip.tempos["bpm"] = 1
    assert score.tracks[0].notes["pitch"].tolist() == [60, 62, 59, 64]
    assert score.tempos["bpm"].tolist() == [120, 90, 60, 30]


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 1000))
def test_a_clip_of_a_clip_is_a_clip(start, skip, length):
    ticks = np.sort(np.random.default_rng(start).integers(0, 1500, 9)).tolist()
    score = Score(
        480,
        [Track(notes=notes_from((t, 5, 60, 80) for t in ticks))],
        np.array([(t, 100 + i) for i, t in enumerate(ticks)], TEMPO),
        [TimeSignature(t, 1 + i, 4) for i, t in enumerate(ticks)],
        [Marker(t, f"C_M_{i}" if i % 2 else f"Verse {i}") for i, t in enumerate(ticks)],
    )
    once = score.clip(start + skip, start + skip + length)
    assert score.clip(start, start + skip + length + 1).clip(skip, skip + length) == once


def test_bars_follow_changing_metres():
    notes = notes_from([(0, 10, 60, 80), (4000, 321, 60, 80)])  # ends at 4321
    metres = [TimeSignature(0, 3, 4), TimeSignature(1440, 6, 8), TimeSignature(3360, 2, 4)]
    score = Score(480, [Track(notes=notes)], time_signatures=metres)
    # 3/4 of 1440 ticks; 6/8 of 1440, the second of which the 2/4 cuts short; 2/4 of 960.
    assert score.bar_starts().tolist() == [0, 1440, 2880, 3360, 4320]
    assert replace(score, time_signatures=metres[1:]).bar_starts().tolist() == [
        *[0, 1440],  # 4/4 until the first signature, which comes at 1440
        *[2880, 3360, 4320],
    ]


def test_bars_are_four_quarters_by_default_and_end_with_the_music():
    def bars(end, **kwargs):
        track = Track(notes=notes_from([(0, end, 60, 80)]))
        return Score(120, [track], **kwargs).bar_starts().tolist()

    assert bars(480) == [0], "a bar that begins where the music ends is not its bar"
    assert bars(481) == [0, 480]
    assert len(Score(120, [Track(notes=notes_from([(480, 0, 60, 80)]))]).bar_starts()) == 2
    assert bars(500, time_signatures=[TimeSignature(0, 4, 4), TimeSignature(4800, 3, 4)]) == [
        *[0, 480]
    ]
    assert Score().bar_starts().tolist() == [0]
    assert Score(time_signatures=[TimeSignature(77, 3, 4)]).bar_starts().tolist() == [0]

    # The last of two signatures at one tick applies.
    assert bars(250, time_signatures=[TimeSignature(0, 4, 4), TimeSignature(0, 1, 4)]) == [
        *[0, 120, 240]
    ]


def test_a_gap_of_millions_has_a_bounded_number_of_bars():
    notes = notes_from([(0, 10, 60, 80), (200_000_000, 10, 60, 80)])
    starts = Score(1, [Track(notes=notes)]).bar_starts(max_bars=100)
    assert starts.tolist() == list(range(0, 400, 4))
    assert len(Score(1, [Track(notes=notes)]).bar_starts()) == 4096


def test_equality_ignores_the_order_of_notes():
    rows = [(0, 5, 60, 80), (0, 5, 61, 80), (0, 6, 60, 80), (3, 5, 60, 80)]
    a, b = (Score(tracks=[Track(notes=notes_from(r))]) for r in (rows, rows[::-1]))
    b.tracks[0].notes = b.tracks[0].notes[::-1]
    assert a == b
    assert sort_notes(b.tracks[0].notes).tolist() == [
        *[(0, 5, 60, 80), (0, 6, 60, 80), (0, 5, 61, 80), (3, 5, 60, 80)]
    ]


def test_metre_end_and_seconds(score):
    assert [score.time_signature_at(tick)[1:] for tick in (0, 299, 300, 4800)] == [
        *((3, 4), (3, 4), (4, 4), (2, 4)),
    ]
    assert Score(time_signatures=[TimeSignature(9, 3, 4)]).time_signature_at(8)[1:] == (4, 4)
    assert (score.num_notes, score.end) == (4, 970)
    assert (Score().num_notes, Score().end) == (0, 0)
    # A beat at 120, two at 60 and half of one at 240.
    tempos = np.array([(480, 60), (1440, 240), (9600, 30)], TEMPO)
    score = Score(480, [Track(notes=notes_from([(0, 1680, 60, 64)]))], tempos)
    assert score.seconds_at(score.end) == pytest.approx(0.5 + 2 + 0.125)


# Edges of families of the General MIDI 1 sound set, from 0.
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (0, "Piano"), (7, "Piano"), (8, "Chromatic percussion"), (31, "Guitar"), (32, "Bass"),
        (47, "Strings"), (48, "Ensemble"), (63, "Brass"), (127, "Sound effects"),
    ],
)  # fmt: skip
def test_roles_are_program_families(program, expected):
    assert role(Track("Drums", program)) == expected
    assert role(Track("Piano", program, is_drum=True)) == "Drums"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], False),
        ([(10 * i, 10) for i in range(9)], True),
        ([(10 * i, 19) for i in range(9)], True),  # legato
        ([(10 * i, 21) for i in range(9)], False),  # two voices
        ([(10 * i, 10) for i in range(9)] + [(80, 10)], True),  # a chord at the end
        ([(10 * (i // 2), 10) for i in range(8)], False),
    ],
)
def test_a_line_has_notes_one_by_one(rows, expected):
    notes = notes_from([(at, length, 60 + i, 64) for i, (at, length) in enumerate(rows)])
    assert is_line(notes) == expected


def test_notes_of_one_role_are_joined():
    programs = {5: 0, 0: 33, 3: 1}  # by onset
    tracks = [Track("", p, notes=notes_from([(x, 1, 60, 64)])) for x, p in programs.items()]
    joined = notes_by_role(Score(tracks=tracks))
    assert {name: notes["onset"].tolist() for name, notes in joined.items()} == {
        "Piano": [5, 3],
        "Bass": [0],
    }
